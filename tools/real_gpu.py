"""`python -m tools.real_gpu`: tries what is promised about GPUs on this machine's real ones, and keeps the transcript.

It needs the NVIDIA driver, root (for the kernel log) and PyTorch, and takes about two minutes. Nothing is rebooted:
programs fault, are killed and go on. The transcript goes to build/real-gpu.md, of which docs/health.md tells. It
fails if anything ends in another way than it should.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

OUT = Path("build/real-gpu.md")
HEALTH = (sys.executable, "-m", "ecs_gpu_recovery.health")
RECOVERY = (sys.executable, "-m", "ecs_gpu_recovery.main")
FAULTS = {"wild-write": "31", "assert": "43", "trap": "43"}
PATIENCE_S = 180
TRAINING = ("python3", "-m", "ecs_gpu_recovery.examples.train_torch")
STEPS = 600


class WrongEndError(Exception):
    """Something did not end as it should."""


def must(holds: object, what: str) -> None:
    if not holds:
        raise WrongEndError(what)


class Transcript:
    """What was run and what came back, with identifiers replaced."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def title(self, text: str) -> None:
        self.lines += ["", f"## {text}", ""]
        print(f"== {text}", flush=True)

    def show(self, command: str, said: str) -> None:
        text = re.sub(r"GPU-[0-9a-f-]{36}", "GPU-…", f"$ {command}\n{said.rstrip()}")
        text = re.sub(r"/\S*/(?=state\b|work\b)", "", text)
        self.lines += [*(f"    {line}".rstrip() for line in text.splitlines()), ""]
        print(text, flush=True)

    def write(self) -> None:
        OUT.parent.mkdir(exist_ok=True)
        OUT.write_text("\n".join(["# On a real GPU", *self.lines]), encoding="utf-8")


def call(*command: str, expect: int | None = 0) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if expect is not None:
        must(
            done.returncode == expect,
            f"{command[2:]} ended with {done.returncode}: {done.stdout}{done.stderr}",
        )
    return done.stdout + done.stderr


def wait_for(what: str, holds: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        must(time.monotonic() < end, f"waited in vain until {what}")
        time.sleep(0.2)
    return found


def sound(log: Transcript) -> int:
    """A sound GPU: the verdict, and every field that was read."""
    log.title("A sound GPU")
    log.show("gpu-health", call(*HEALTH))
    report = json.loads(call(*HEALTH, "--json"))
    gpus = report["gpus"]
    must(gpus, "no GPU in the report")
    log.show("gpu-health --json   (the first GPU)", json.dumps(gpus[0], indent=1))
    return len(gpus)


def faults(log: Transcript, gpus: int) -> None:
    """Programs that really fault are the programs' fault; the watcher tells the moment it happens."""
    log.title("Programs that really fault")
    since = datetime.now(UTC).isoformat()
    watcher = subprocess.Popen((*HEALTH, "watch"), stdout=subprocess.PIPE, text=True)
    time.sleep(3)
    for fault in FAULTS:
        said = call(sys.executable, "-m", "ecs_gpu_recovery.examples.gpu_fault", fault, expect=1)
        log.show(f"python -m ecs_gpu_recovery.examples.gpu_fault {fault}", said)
    time.sleep(3)
    kernel = [line for line in call("dmesg", expect=None).splitlines() if "NVRM: Xid" in line]
    log.show("dmesg | grep Xid", "\n".join(kernel[-len(FAULTS) :]))
    said = call(*HEALTH, "--expect-gpus", str(gpus), "--since", since)
    log.show("gpu-health --since …", said)
    for code in set(FAULTS.values()):
        must(f"Xid {code}" in said, f"Xid {code} is missing in the verdict")
    watcher.send_signal(signal.SIGTERM)
    told, _ = watcher.communicate(timeout=PATIENCE_S)
    must(watcher.returncode == 0, f"the watcher ended with {watcher.returncode}")
    lines = told.splitlines()
    must(len(lines) >= len(FAULTS), f"the watcher told {len(lines)} faults: {told}")
    log.show("gpu-health watch   (started before them, ended with SIGTERM)", told)


def collective(log: Transcript) -> None:
    """NCCL between two members. One GPU is enough if NCCL takes them for two hosts: then it speaks TCP between them."""
    log.title("NCCL between two nodes")
    members = []
    for rank in ("0", "1"):
        env = {
            "NCCL_HOSTID": f"host-{rank}",
            "NCCL_SOCKET_IFNAME": "lo",
            "NNODES": "2",
            "NODE_RANK": rank,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29555",
            "JOB_ID": "two-hosts",
        }
        command = (*HEALTH, "collective", "--backend", "nccl", "--pairs", "--name", f"node-{rank}")
        members.append(
            subprocess.Popen(
                command,
                env={**os.environ, **env},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    said = [member.communicate(timeout=PATIENCE_S)[0] for member in members]
    log.show("NCCL_HOSTID=host-$NODE_RANK gpu-health collective --backend nccl --pairs   (twice)", said[0])
    must(all(member.returncode == 0 for member in members), f"NCCL between two members: {said}")


class Embedded:
    """The embedded control plane with the real GPUs of this machine, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.state, self.folder = folder / "state", folder
        self.plane: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        with (self.folder / "up.log").open("ab") as log:
            command = (*RECOVERY, "up", "--real", "--state", str(self.state))
            self.plane = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

        def free() -> bool:
            nodes = json.loads(self.ask("nodes", "--json", expect=None) or "{}").get("nodes")
            return bool(nodes) and all(node["connected"] for node in nodes)

        wait_for("the node is there", free)

    def down(self, how: signal.Signals) -> None:
        if self.plane is not None:
            self.plane.send_signal(how)
            self.plane.wait(timeout=PATIENCE_S)
            self.plane = None

    def ask(self, *arguments: str, expect: int | None = 0) -> str:
        done = subprocess.run(
            (*RECOVERY, *arguments),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            cwd=self.folder,
            env={**os.environ, "GPU_RECOVERY_STATE": str(self.state)},
        )
        if expect is not None:
            must(
                done.returncode == expect,
                f"{arguments} ended with {done.returncode}: {done.stdout}{done.stderr}",
            )
        return done.stdout if expect is None else done.stdout + done.stderr

    def submit(self, name: str, *command: str) -> None:
        options = ("--any", "1", "--id", name, "--checkpoint-dir", str(self.folder / name))
        self.ask("submit", *options, "--", *command)

    def job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask("job", name, "--json"))
        return found

    def ends(self, name: str, status: str) -> str:
        def ended() -> bool:
            return bool(self.job(name)["status"] in ("COMPLETE", "FAILED", "USER_STOPPED"))

        wait_for(f"{name} has ended", ended)
        said = self.ask("job", name)
        must(self.job(name)["status"] == status, f"{name} is not {status}: {said}")
        return said


def healing(log: Transcript, side: Embedded) -> None:
    """A job whose program faults fails without a reboot; a training that is killed with its node goes on."""
    log.title("A job whose program faults on the GPU")
    side.up()
    fault = "ecs_gpu_recovery.examples.gpu_fault"
    side.submit("faulty", sys.executable, "-m", fault, "wild-write")
    said = side.ends("faulty", "FAILED")
    must("REBOOTING" not in said, f"a node was rebooted for a program's fault: {said}")
    log.show(
        f"gpu-recovery submit --any 1 --id faulty -- python -m {fault} wild-write; gpu-recovery job faulty",
        said,
    )

    log.title("A training that is killed and goes on from its checkpoint")
    side.submit("training", sys.executable, *TRAINING[1:], "--steps", str(STEPS), "--step-seconds", "0.05")

    def steps() -> list[str]:
        return [line for line in side.ask("logs", "training", "--all").splitlines() if " loss " in line]

    wait_for("it has trained for a while", lambda: len(steps()) > STEPS // 60)
    side.down(signal.SIGKILL)
    before = len(steps())
    wait_for("it trains on without a control plane", lambda: len(steps()) > before)
    log.show("kill -9 CONTROL-PLANE", f"{before} lines of progress so far, and more to come: it trains on")
    side.up()
    side.down(signal.SIGINT)
    log.show(
        "gpu-recovery down   (the node goes off with the training in the middle of a step)", side.ask("down")
    )
    side.up()
    said = side.ends("training", "COMPLETE")
    log.show("gpu-recovery job training", said)
    lines = side.ask("logs", "training", "--all").splitlines()
    resumed = [line for line in lines if "resumed from step" in line]
    must(resumed, "nothing was resumed")
    log.show("gpu-recovery logs training --all | grep -e resumed -e 'step .*00/'", "\n".join(
        line for line in lines if "resumed" in line or re.search(r"step \d+00/", line)
    ))  # fmt: skip


def main() -> int:
    log = Transcript()
    with tempfile.TemporaryDirectory() as folder:
        side = Embedded(Path(folder))
        try:
            gpus = sound(log)
            faults(log, gpus)
            collective(log)
            healing(log, side)
        except WrongEndError as error:
            log.title(f"WRONG: {error}")
            print((Path(folder) / "up.log").read_text(encoding="utf-8") if side.plane else "", flush=True)
            return 1
        finally:
            side.down(signal.SIGINT)
            side.ask("down", expect=None)
            log.write()
    print(f"All of it ended as it should. The transcript is in {OUT}.", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
