"""What the health tests share: the shipped rules, recordings judged in process, checks run as programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ecs_gpu_recovery.health import check, main, policy
from ecs_gpu_recovery.health.sources import probe
from ecs_gpu_recovery.local import gpus
from tests.programs import python

ROOT = Path(__file__).resolve().parents[2]
BUSY_MACHINE_S = 120

Explain = Callable[..., dict[str, Any]]
T = TypeVar("T")


def patiently(ask: Callable[[float], T], answered: Callable[[T], object], *deadlines: float) -> T:
    """What hangs costs its deadline, so that is short. A machine too busy for the rest to answer in time gets more."""
    for deadline in deadlines:
        found = ask(deadline)
        if answered(found):
            break
    return found


@pytest.fixture(scope="session")
def rules() -> policy.Policy:
    return policy.load()


@pytest.fixture
def explain(tmp_path: Path) -> Explain:
    """explain(kernel_log="...", dcgm_diag="...") -> the JSON that the command prints."""

    def run(*more: str, **recordings: str | bytes) -> dict[str, Any]:
        argv = ["explain", "--json", *more]
        for kind, content in recordings.items():
            file = tmp_path / kind
            file.write_bytes(content.encode() if isinstance(content, str) else content)
            argv += [f"--{kind.replace('_', '-')}", str(file)]
        with redirect_stdout(StringIO()) as out:
            assert main.run(argv) == 0
        answer: dict[str, Any] = json.loads(out.getvalue())
        return answer

    return run


@dataclass
class Ran:
    """A check that ran as a program of its own."""

    exit_code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.out)
        return answer


@dataclass
class Bench:
    """A place to run the program in. Neither driver nor DCGM nor kernel log, until the test brings one."""

    folder: Path

    def __post_init__(self) -> None:
        self.nvml("raise ImportError('not on this node')")

    def command(self, name: str, script: str) -> None:
        """A stand-in for nvidia-smi or dcgmi."""
        file = self.folder / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def prints(self, name: str, text: str, exit_code: int = 0) -> None:
        """A stand-in that prints this and ends."""
        kept = self.folder / f"{name}.out"
        kept.write_text(text)
        self.command(name, f"cat {kept}\nexit {exit_code}")

    def nvml(self, source: str) -> None:
        """A stand-in for NVIDIA's binding; `raise ImportError` for a node without it."""
        (self.folder / "python").mkdir(exist_ok=True)
        (self.folder / "python" / "pynvml.py").write_text(source)

    def folder_with_tools(self) -> Path:
        bin_folder = self.folder / "bin"
        bin_folder.mkdir(exist_ok=True)
        for name in ("sh", "cat", "sleep"):
            if not (bin_folder / name).exists():
                (bin_folder / name).symlink_to(f"/bin/{name}")
        return bin_folder

    def check(self, *argv: str, **environment: str) -> Ran:
        bin_folder = self.folder_with_tools()
        kept = {key: value for key, value in os.environ.items() if key != "GPU_HEALTH_SIMULATED"}
        kept |= {"PATH": str(bin_folder), "PYTHONPATH": str(self.folder / "python")}
        kept |= environment
        done = python("-W", "error", "-m", "ecs_gpu_recovery.health", *argv, env=kept)
        return Ran(done.returncode, done.stdout, done.stderr)


class QuickBench(Bench):
    """The same program without its child processes, for long tables of cases in which nothing hangs."""

    def check(self, *argv: str, **environment: str) -> Ran:
        self.folder_with_tools()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
            patch.setenv("PATH", str(self.folder / "bin"))
            patch.delenv("GPU_HEALTH_SIMULATED", raising=False)
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setattr(check, "run_probes", run_here)
            patch.syspath_prepend(str(self.folder / "python"))
            patch.delitem(sys.modules, "pynvml", raising=False)
            with redirect_stderr(StringIO()) as err:
                exit_code = main.run(list(argv))
            sys.modules.pop("pynvml", None)
        return Ran(exit_code, out.getvalue(), err.getvalue())


def run_here(probes: Sequence[probe.Probe]) -> dict[str, probe.Outcome]:
    """Every question asked in this process, one after the other."""
    outcomes = {}
    for asked in probes:
        messages: list[dict[str, object]] = []
        problem = ""
        try:
            asked.work(lambda message, kept=messages: kept.append(json.loads(json.dumps(message))))  # type: ignore[misc]
        except Exception as error:  # noqa: BLE001 (as in a child process)
            problem = f"{type(error).__name__}: {error}"
        state = "failed" if problem else "done"
        outcomes[asked.name] = probe.Outcome(
            name=asked.name, state=state, messages=tuple(messages), seconds=0.0, problem=problem
        )
    return outcomes


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(folder=tmp_path)


@pytest.fixture
def quick_bench(tmp_path: Path) -> QuickBench:
    return QuickBench(folder=tmp_path)


class Bus:
    """A stand-in for EventBridge that refuses the first calls."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals, self.entries = refusals, list[dict[str, Any]]()

    def put_events(self, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        if self.refusals:
            self.refusals -= 1
            return {"FailedEntryCount": 1, "Entries": [{"ErrorCode": "ThrottlingException"}]}
        self.entries += Entries
        return {"FailedEntryCount": 0, "Entries": [{"EventId": "1"} for _ in Entries]}


@dataclass
class Node:
    """A node folder of the embedded mode."""

    folder: Path
    bench: Bench

    def write(self, name: str, content: object) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        (self.folder / name).write_text(text)

    def check(self, *argv: str) -> Ran:
        return self.bench.check(*argv, "--json", GPU_HEALTH_SIMULATED=str(self.folder))


def a_gpu(index: int, **different: object) -> dict[str, object]:
    sound: dict[str, object] = gpus.simulated("n1", index + 1)["gpus"][index]
    return sound | different


@pytest.fixture
def node(tmp_path: Path, bench: Bench) -> Node:
    """Two sound GPUs and nothing in the log."""
    return a_node(tmp_path, bench)


@pytest.fixture
def quick_node(tmp_path: Path, quick_bench: QuickBench) -> Node:
    """The same, looked at in this process."""
    return a_node(tmp_path, quick_bench)


def a_node(tmp_path: Path, bench: Bench) -> Node:
    folder = tmp_path / "node"
    folder.mkdir()
    made = Node(folder=folder, bench=bench)
    made.write("node.json", {"name": "n1", "gpus": 2, "boot_seconds": 0.1, "kind": "simulated"})
    made.write("gpus.json", {"gpus": [a_gpu(0), a_gpu(1)], "driver_hung": False})
    made.write("faults.json", {})
    return made
