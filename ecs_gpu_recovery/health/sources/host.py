"""The machine around the GPUs: disks, shared files, network, clock, fast network ports.

Every function here runs in a child process, because a dead file server or name server hangs the process that asks.
Each sends up facts as (condition, evidence); none of them ever leads to a reboot.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ecs_gpu_recovery.health.policy import Limits
from ecs_gpu_recovery.health.sources import network_ports
from ecs_gpu_recovery.health.sources.commands import output_of
from ecs_gpu_recovery.health.sources.probe import Emit

GIB = 1024**3
CONNECT_TIMEOUT_S = 3.0
_NICS = Path("/sys/class/infiniband")
_PCI = Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"
_UNSYNCHRONISED = 0x40
_TIME_ERROR = 5


def disk(paths: Sequence[str], limits: Limits, emit: Emit) -> None:
    """Free space and free inodes of each file system that holds one of the paths."""
    seen = set()
    for path in paths:
        if not os.path.exists(path):
            continue
        device = os.stat(path).st_dev
        if device in seen:
            continue
        seen.add(device)
        room = os.statvfs(path)
        free, total = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
        big = total / GIB >= 10 * limits.min_free_gib
        if total and (
            free / total * 100 < limits.min_free_percent or (big and free / GIB < limits.min_free_gib)
        ):
            emit(fact("disk-full", f"{path}: {free / GIB:.1f} GiB free of {total / GIB:.1f}"))
        if room.f_files and room.f_favail / room.f_files * 100 < limits.min_free_percent:
            emit(fact("inodes-used-up", f"{path}: {room.f_favail} of {room.f_files} inodes free"))
    emit({"detail": f"{len(seen)} file system(s) looked at"})


def shared_dir(path: str, emit: Emit) -> None:
    """Write, flush, read back, delete: what a checkpoint needs."""
    own = Path(path) / f".gpu-health-{os.urandom(8).hex()}"
    text = own.name.encode()
    try:
        with open(own, "xb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if own.read_bytes() != text:
            emit(fact("shared-dir-corrupt", f"{path}: what was written is not what was read"))
    except OSError as error:
        emit(fact("shared-dir-unusable", f"{path}: {error.strerror or error}"))
    finally:
        try:
            own.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            emit(fact("shared-dir-unusable", f"{own}: cannot be deleted: {error.strerror or error}"))
    emit({"detail": f"{path} written and read"})


def network(peers: Sequence[str], emit: Emit) -> None:
    """A TCP connection to each peer."""
    import socket  # only this check needs it

    reached = 0
    for peer in peers:
        name, port = split_peer(peer)
        try:
            with socket.create_connection((name, port), timeout=CONNECT_TIMEOUT_S):
                reached += 1
        except OSError as error:
            emit(fact("peer-unreachable", f"{peer}: {error.strerror or error}"))
    emit({"detail": f"{reached} of {len(peers)} peer(s) reached"})


def split_peer(peer: str) -> tuple[str, int]:
    """host:port, [v6]:port; raises ValueError for anything else."""
    name, colon, port = peer.rpartition(":")
    if not colon or not name or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{peer!r} is not host:port")
    return name.strip("[]"), int(port)


def clock(limits: Limits, emit: Emit) -> None:
    """How far the clock may be off, as far as this machine knows without asking another."""
    tracking = output_of(["chronyc", "-c", "tracking"])
    if tracking is not None and tracking.exit_code == 0:
        fields = tracking.text.strip().split(",")
        if len(fields) > 4:
            offset_s = abs(float(fields[4]))
            emit({"detail": f"chrony: {offset_s:.6f} s off"})
            if offset_s > limits.max_clock_offset_s:
                emit(fact("clock-off", f"the clock is {offset_s:.3f} s off according to chrony"))
            return
    state = _kernel_clock()
    if state is None:
        emit({"problem": "neither chrony nor the kernel tells anything about the clock"})
        return
    status, error_s = state
    emit(
        {"detail": f"kernel: {'not ' if status & _UNSYNCHRONISED else ''}synchronised, error {error_s:.6f} s"}
    )
    if status & _UNSYNCHRONISED:
        emit(fact("clock-unsynchronised", "the kernel says that nobody steers this clock"))
    elif error_s > limits.max_clock_offset_s:
        emit(fact("clock-off", f"the kernel estimates the clock to be {error_s:.3f} s off"))


def _kernel_clock() -> tuple[int, float] | None:
    """(status bits, estimated error) from adjtimex, which reads when it is asked to change nothing."""
    import ctypes  # only this check needs it, and it is slow to load

    class Timex(ctypes.Structure):
        _fields_ = [
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("freq", ctypes.c_long),
            ("maxerror", ctypes.c_long),
            ("esterror", ctypes.c_long),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_char * 512),
        ]

    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    buffer = Timex()
    result = adjtimex(ctypes.byref(buffer))
    if result < 0:
        return None
    status = int(buffer.status) | (_UNSYNCHRONISED if result == _TIME_ERROR else 0)
    return status, int(buffer.esterror) / 1e6


def nics(expected: int | None, emit: Emit) -> None:
    """InfiniBand, RoCE and EFA ports in sysfs: a port that is cabled must be active."""
    if not _NICS.is_dir() or not any(_NICS.iterdir()):
        if expected:
            emit(fact("nics-missing", f"no InfiniBand or EFA device, {expected} expected"))
        else:
            emit({"problem": "no InfiniBand or EFA device on this machine"})
        return
    active, facts = network_ports.judge(_ports(), expected)
    for condition, evidence in facts:
        emit(fact(condition, evidence))
    emit({"detail": f"{active} active port(s)"})


def _ports() -> Iterator[tuple[str, str, str]]:
    for device in sorted(_NICS.iterdir()):
        for port in sorted((device / "ports").glob("*")):
            yield f"{device.name}/{port.name}", _word(port / "state"), _word(port / "phys_state")


def _word(file: Path) -> str:
    """sysfs writes "4: ACTIVE"."""
    try:
        return file.read_text().partition(":")[2].strip()
    except OSError:
        return ""


def pci_gpus() -> int:
    """NVIDIA GPUs the kernel sees on the PCI bus, with no driver involved."""
    number = 0
    for device in _PCI.glob("*") if _PCI.is_dir() else ():
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        number += vendor == _NVIDIA and kind.startswith("0x03")
    return number


def fact(condition: str, evidence: str) -> dict[str, object]:
    """A finding in the making; the policy judges it in the parent."""
    return {"fact": condition, "evidence": evidence}
