"""A real machine: where its driver, its kernel log and DCGM are asked.

All reading functions run in a child process (see `probe`) and send up what they learn as they learn it.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ecs_gpu_recovery.health.sources import host, nvml
from ecs_gpu_recovery.health.sources.commands import output_of
from ecs_gpu_recovery.health.sources.follow import KMSG, KernelFollower
from ecs_gpu_recovery.health.sources.kernel_log import select
from ecs_gpu_recovery.health.sources.probe import Emit

_LONGEST_LINE = 8192
_MOST_LINES = 20_000

_NVIDIA_SMI = ("nvidia-smi", "-q", "-x")
_DMESG = ("dmesg", "--time-format", "iso", "--kernel")
_PLAIN_DMESG = ("dmesg",)
_JOURNAL = ("journalctl", "--dmesg", "--boot", "--no-pager", "--output", "short-iso", "--quiet")


class Machine:
    """This host."""

    kind = "live"
    driver_deadline_s = 30.0

    def expected_gpus(self) -> int | None:
        """Nothing on a machine says for sure how many GPUs it should have; the caller must."""
        return None

    def gpus_on_bus(self) -> int:
        """NVIDIA devices on the PCI bus, driver or not."""
        return host.pci_gpus()

    def boot_id(self) -> str | None:
        """Another one after each reboot."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            return None

    def read_driver(self, emit: Emit) -> None:
        """Through NVML where the binding is installed, else through nvidia-smi."""
        if nvml.available():
            emit({"route": "nvml"})
            nvml.read(emit)
        else:
            _nvidia_smi(emit)

    def read_samples(self, emit: Emit) -> None:
        """What the GPUs do, every few seconds and without end."""
        nvml.read_samples(emit)

    def read_driver_again(self, emit: Emit) -> None:
        """The second attempt after a hang: the other way in, where there is one."""
        if shutil.which(_NVIDIA_SMI[0]):
            _nvidia_smi(emit)
        else:
            self.read_driver(emit)

    def read_kernel_log(self, emit: Emit) -> None:
        """This boot's kernel log from the first place that lets us read it."""
        emit({"boot": booted_at().isoformat()})
        refused = _read_kmsg(emit)
        if refused is None:
            return
        for argv in (_DMESG, _PLAIN_DMESG, _JOURNAL):
            ran = output_of(argv)
            if ran is not None and ran.exit_code == 0 and ran.text.strip():
                emit({"from": argv[0]})
                _send_lines(ran.text.splitlines(), emit)
                return
        emit({"problem": f"{KMSG}: {refused}; dmesg and journalctl give nothing either"})


def read_log_file(path: Path, own: Machine | None, emit: Emit) -> None:
    """A kernel log that someone kept in a file. `own`: the machine whose boot tells what is past in it."""
    if own is not None:
        emit({"boot": booted_at().isoformat(), "boot_id": own.boot_id() or ""})
    emit({"from": str(path)})
    with open(path, encoding="utf-8", errors="replace") as file:
        _send_lines(file, emit)


def dcgm_health(host_engine: str | None, emit: Emit) -> None:
    """What DCGM's watches have seen so far."""
    _dcgmi(["health", *_engine(host_engine), "-g", "0", "-c", "-j"], emit)


def dcgm_diag(level: str, host_engine: str | None, emit: Emit) -> None:
    """DCGM's active tests; the GPUs must be idle."""
    _dcgmi(["diag", *_engine(host_engine), "-r", level, "-j"], emit)


def _engine(host_engine: str | None) -> list[str]:
    return ["--host", host_engine] if host_engine else []


def _dcgmi(arguments: list[str], emit: Emit) -> None:
    ran = output_of(["dcgmi", *arguments])
    if ran is None:
        emit({"problem": "dcgmi is not installed"})
    else:
        emit({"exit": ran.exit_code, "out": ran.text, "err": ran.errors})


def _nvidia_smi(emit: Emit) -> None:
    emit({"route": "nvidia-smi"})
    ran = output_of(_NVIDIA_SMI)
    if ran is None:
        emit({"problem": "neither the NVML binding (pynvml) nor nvidia-smi is installed"})
        return
    from ecs_gpu_recovery.health.sources import (
        nvsmi,  # XML and CSV take a while to load and are mostly not needed
    )

    output = nvsmi.parse(f"{ran.text}\n{ran.errors}")
    emit({"driver": output.driver})
    for gpu in output.gpus:
        emit({"gpu": gpu.to_json()})
    if output.no_devices:
        emit({"count": 0})
    elif not output.gpus:
        emit({"problem": output.problem or f"nvidia-smi ended with exit code {ran.exit_code}"})


def _read_kmsg(emit: Emit) -> str | None:
    """None after the whole log was sent, else why it cannot be read."""
    try:
        with closing(KernelFollower(None, None, from_start=True)) as kmsg:
            emit({"from": kmsg.name})
            _send_lines(kmsg.lines(), emit)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _send_lines(lines: Iterable[str], emit: Emit) -> None:
    """Only what concerns the NVIDIA driver travels to the parent, and of very much the latest."""
    for line in deque(select(lines), maxlen=_MOST_LINES):
        emit({"line": line[:_LONGEST_LINE]})


def booted_at() -> datetime:
    """When this machine was started."""
    uptime_s = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    return datetime.now(UTC) - timedelta(seconds=uptime_s)
