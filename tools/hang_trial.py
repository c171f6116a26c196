"""`python -m tools.hang_trial [hangs] [pauses] [NAME...]`: real NCCL hangs on this machine's GPU; pauses that are none.

Two ranks share one GPU, as `tools.hang_rank` says. `gpu-health watch --pulse` runs beside them as it does on a node,
with a window of 20 s instead of 60, so that it takes minutes. Each hang must be called flat, and where NCCL can tell,
the odd rank must be named; no pause may be called so. It needs the NVIDIA driver and PyTorch. The transcript goes to
build/hang-trial.md.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OUT = Path("build/hang-trial.md")
HEALTH = (sys.executable, "-m", "ecs_gpu_recovery.health")
RAS = ("localhost:28028", "localhost:28029")
TRAIN_S, WINDOW_S, PATIENCE_S, PAUSE_S = 28.0, 20.0, 70.0, 32.0
#: So long the longest pause may take, with what comes before it.
LONGEST_S = 400.0
#: What happens to rank 1, and what NCCL must say of it.
HANGS = {
    "stopped": "rank 1",
    "killed": "rank 1",
    "asleep": "rank 1",
    "other-collective": "rank 1",
    "endless": "no rank stands out",
}
#: What may be seen of each pause. Where all ranks wait for data their GPU rests: that alone stops nobody.
PAUSES = {
    "evaluation": {"moving"},
    "checkpoint": {"moving"},
    "compilation": {"moving"},
    "accumulation": {"moving"},
    "small-model": {"moving", "idle"},
    "data-stall": {"moving", "idle"},
    "slow-step": {"moving"},
    "cpu-only": {"moving", "idle"},
}


class Trial:
    """The ranks, the watch, and what was said."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lines, self.failed = folder, list[str](), list[str]()
        self.ranks: list[subprocess.Popen[bytes]] = []
        rules = folder / "policy.toml"
        rules.write_text(f"version = 1\n[limits]\npulse_window_s = {WINDOW_S}\n")
        (folder / "kmsg").touch()
        self.watch = subprocess.Popen(
            [
                *HEALTH,
                "watch",
                "--pulse",
                "--policy",
                rules,
                "--kernel-log",
                folder / "kmsg",
                "--node",
                "h200",
            ],
            stdout=open(folder / "watch.jsonl", "wb"),  # noqa: SIM115 - the child's for all its life
        )
        self.began = time.monotonic()

    def say(self, text: str = "") -> None:
        self.lines.append(text)
        print(text, flush=True)

    def must(self, holds: object, what: str) -> None:
        if not holds:
            self.failed.append(what)
            self.say(f"    NOT as it should be: {what}")

    def start(self) -> None:
        self.tell("train")
        for rank in (0, 1):
            env = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "29511",
                "NCCL_HOSTID": f"host{rank}",
                "NCCL_P2P_DISABLE": "1",
                "NCCL_SHM_DISABLE": "1",
                "NCCL_NET": "Socket",
                "NCCL_SOCKET_IFNAME": "lo",
                "NCCL_RAS_ADDR": RAS[rank],
                "PAUSE_S": str(PAUSE_S),
                "TORCH_FR_BUFFER_SIZE": "2000",
                "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{self.folder}/pipe",
                "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{self.folder}/trace",
            }
            log = open(self.folder / f"rank{rank}.log", "wb")  # noqa: SIM115 - likewise
            command = [sys.executable, "tools/hang_rank.py", str(self.folder)]
            self.ranks.append(subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT))
        self.wait("both train", lambda: all("step 20" in self.log(rank) for rank in (0, 1)))
        time.sleep(TRAIN_S)

    def end(self) -> None:
        for process in self.ranks:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        self.ranks.clear()
        time.sleep(3)

    def tell(self, mode: str) -> None:
        """Whole or not at all: rank 0 reads it twenty times a second."""
        beside = self.folder / "mode.new"
        beside.write_text(mode)
        beside.replace(self.folder / "mode")

    def log(self, rank: int) -> str:
        return (self.folder / f"rank{rank}.log").read_text(errors="replace")

    def pulses(self) -> list[dict[str, Any]]:
        lines = (self.folder / "watch.jsonl").read_text().splitlines()
        return [event for line in lines if (event := json.loads(line)).get("schema") == "gpu-pulse/1"]

    def wait(self, what: str, holds: Callable[[], object], patience_s: float = PATIENCE_S) -> bool:
        end = time.monotonic() + patience_s
        while not holds():
            if time.monotonic() > end:
                self.must(False, f"waited in vain until {what}")
                return False
            time.sleep(0.2)
        return True

    def hang(self, what: str, expected: str) -> None:
        self.say(f"\n## {what}\n")
        self.start()
        before, at = len(self.pulses()), time.monotonic()
        if what == "stopped":
            os.kill(self.ranks[1].pid, signal.SIGSTOP)
        elif what == "killed":
            self.ranks[1].kill()
        else:
            self.tell(what)
        if self.wait(
            "the GPU is called flat", lambda: [p for p in self.pulses()[before:] if p["state"] == "flat"]
        ):
            pulse = self.pulses()[-1]
            self.say(f"    flat {time.monotonic() - at:.0f} s after it began: {pulse['what']}")
        for form in ([], ["--text"]):
            said = self.call("ras", *form, *(f"--address={address}" for address in RAS))
            self.must(said.startswith(expected), f"NCCL should say {expected}: {said}")
        alive = [str(process.pid) for process in self.ranks if process.poll() is None]
        self.call("stacks", *(f"--pid={pid}" for pid in alive))
        self.flight_recorder()
        self.end()

    def flight_recorder(self) -> None:
        """Rank 0 waits in a collective: asked through its pipe, PyTorch writes down its last ones at once."""
        dump = self.folder / "trace0"
        dump.unlink(missing_ok=True)
        pipe = os.open(self.folder / "pipe0.pipe", os.O_WRONLY | os.O_NONBLOCK)
        os.write(pipe, b"1\n")
        os.close(pipe)
        at = time.monotonic()
        if self.wait("the flight recorder has written", lambda: dump.exists() and dump.stat().st_size, 20.0):
            size = dump.stat().st_size
            self.say(f"    the flight recorder's dump: {size} bytes after {time.monotonic() - at:.1f} s")

    def call(self, *arguments: str) -> str:
        ran = subprocess.run([*HEALTH, *arguments], capture_output=True, text=True, timeout=120, check=False)
        self.say(f"    $ gpu-health {' '.join(arguments)}")
        for line in (ran.stdout + ran.stderr).strip().splitlines()[:30]:
            self.say(f"    {line}")
        self.say()
        return ran.stdout

    def pause(self, what: str, allowed: set[str]) -> None:
        """All of it, and until the window has forgotten it."""
        before, at = len(self.pulses()), time.monotonic()
        self.tell(what)
        time.sleep(PAUSE_S / 2)
        self.tell("train")
        once = len(self.log(1))
        self.wait("it trains again", lambda: " train" in self.log(1)[once:], LONGEST_S)
        took = time.monotonic() - at
        time.sleep(WINDOW_S + 2)
        seen = [pulse["state"] for pulse in self.pulses()[before:]] or ["moving"]
        self.say(f"    {what}: {took:.0f} s, the watch said {', '.join(seen)}")
        self.must(set(seen) <= allowed | {"moving"}, f"{what} was called {seen}")

    def cost(self) -> None:
        """Of the watch and its sampler, from the beginning."""
        used, memory = 0.0, 0
        children = (
            (Path(f"/proc/{self.watch.pid}/task") / str(self.watch.pid) / "children").read_text().split()
        )
        for pid in (str(self.watch.pid), *children):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            memory += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        share = used / (time.monotonic() - self.began)
        self.say(f"\nThe watch took {share:.2%} of one core and {memory / 1024:.0f} MiB.")
        self.must(share < 0.01, "the watch took more than 1 % of a core")


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as name:
        trial = Trial(Path(name))
        trial.say("# Hangs on a real GPU")
        try:
            for what, expected in HANGS.items():
                if not arguments or what in arguments or "hangs" in arguments:
                    trial.hang(what, expected)
            everything = not arguments or "pauses" in arguments
            if pauses := [what for what in PAUSES if everything or what in arguments]:
                trial.say("\n## Pauses that are no hang\n")
                trial.start()
                for what in pauses:
                    trial.pause(what, PAUSES[what])
            trial.cost()
        finally:
            trial.end()
            trial.watch.terminate()
            trial.watch.wait()
            OUT.parent.mkdir(exist_ok=True)
            OUT.write_text("\n".join(trial.lines) + "\n", encoding="utf-8")
    print("all as it should be" if not trial.failed else f"{len(trial.failed)} NOT as it should be")
    return 1 if trial.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
