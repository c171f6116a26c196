"""What the health tests share: the shipped rules, recordings judged in process, checks run as programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ecs_gpu_recovery.health import main, policy

ROOT = Path(__file__).resolve().parents[2]
BUSY_MACHINE_S = 120

Explain = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def rules() -> policy.Policy:
    return policy.load()


@pytest.fixture
def explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    """explain(kernel_log="...", dcgm_diag="...") -> the JSON that the command prints."""

    def run(*more: str, **recordings: str | bytes) -> dict[str, Any]:
        argv = ["explain", "--json", *more]
        for kind, content in recordings.items():
            file = tmp_path / kind
            file.write_bytes(content.encode() if isinstance(content, str) else content)
            argv += [f"--{kind.replace('_', '-')}", str(file)]
        assert main.run(argv) == 0
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
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
    """A place to run the program in: which commands exist, which NVML, which environment."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

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

    def check(self, *argv: str, **environment: str) -> Ran:
        bin_folder = self.folder / "bin"
        bin_folder.mkdir(exist_ok=True)
        for name in ("sh", "cat", "sleep"):
            if not (bin_folder / name).exists():
                (bin_folder / name).symlink_to(f"/bin/{name}")
        kept = {key: value for key, value in os.environ.items() if key != "GPU_HEALTH_SIMULATED"}
        kept |= {"PATH": str(bin_folder), "PYTHONPATH": str(self.folder / "python")}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "ecs_gpu_recovery.health", *argv],
            cwd=ROOT,
            env={**kept, **self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=BUSY_MACHINE_S,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Neither driver nor DCGM nor kernel log, until the test brings one."""
    made = Bench(folder=tmp_path)
    made.nvml("raise ImportError('not on this node')")
    return made


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
    return {
        "index": index,
        "uuid": f"GPU-{index}",
        "name": "Simulated H200",
        "bus_id": f"0000:{index + 1:02x}:00",
        "present": True,
        "recovery_action": "none",
        "ecc_uncorrectable": 0,
        "remap_pending": False,
        "remap_failure": False,
        "sram_threshold_exceeded": False,
        "throttled": False,
        "temperature_c": 41,
        "power_w": 120,
        "memory_used_mib": 0,
        "memory_total_mib": 143771,
        "utilization": 0,
    } | different


@pytest.fixture
def node(tmp_path: Path, bench: Bench) -> Node:
    """Two sound GPUs and nothing in the log."""
    folder = tmp_path / "node"
    folder.mkdir()
    made = Node(folder=folder, bench=bench)
    made.write("node.json", {"name": "n1", "gpus": 2, "boot_seconds": 0.1, "kind": "simulated"})
    made.write("gpus.json", {"gpus": [a_gpu(0), a_gpu(1)], "driver_hung": False})
    made.write("faults.json", {})
    return made
