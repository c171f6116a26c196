"""What a vendor wants to know of a node that they are to repair: one text, to be pasted into a ticket.

From the node's own record, and from what was kept before its last reboot: which machine, which GPUs with their serial
numbers, what was found and when, what was tried and what came of it, and the driver's own lines.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator, Sequence
from datetime import datetime

from .core.events import FAULT
from .core.node_record import Node

#: The names that `nvidia-smi -q` gives to what identifies a driver and a GPU.
_DRIVER = ("Driver Version", "CUDA Version")
_GPU = ("Product Name", "Serial Number", "GPU UUID", "VBIOS Version", "GPU Part Number")
_KERNEL_LOGS, _SMI = ("kernel.txt", "kernel.log"), "nvidia-smi.txt"
_DRIVER_LINE = re.compile(r"\bNVRM\b|\bXid\b|\bSXid\b|nvidia-nvswitch|AER:|PCIe Bus Error", re.IGNORECASE)
#: As much of each file is read, and so many of the driver's last lines are shown.
_MOST_BYTES, _MOST_LINES = 4 << 20, 40


def ticket(node: Node, now: datetime, kept: Sequence[str] = (), archive: bytes = b"") -> str:
    """`kept` names what was kept before reboots, newest first; `archive` is the first of it."""
    files = _files(archive)
    parts = [
        _machine(node, now),
        _section("GPUs", _gpus(files.get(_SMI, ""))),
        _section("Found and tried", _repairs(node)),
        _section("Faults that were seen", _faults(node)),
        _section("Last lines of the driver", _driver_lines(files)),
        _section(
            "Kept before reboots",
            [f"{name}  (gpu-recovery evidence {node.name} --fetch FOLDER)" for name in kept],
        ),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)]) if lines else ""


def _machine(node: Node, now: datetime) -> str:
    told = {
        "machine": node.host or node.name,
        "kind": node.kind,
        "container instance": node.instance if node.instance != node.name else "",
        "GPUs": f"{node.gpus} registered"
        + (f", {node.gpus_seen} seen" if node.gpus_seen not in (None, node.gpus) else ""),
        "boot": node.boot_id,
        "state": f"{node.status} since {node.updated_at:%Y-%m-%d %H:%M:%S} UTC",
        "last verdict": f"{node.verdict}: {node.findings}" if node.verdict else node.findings,
    }
    lines = [f"{name}: {value}" for name, value in told.items() if value]
    return _section(f"GPU node {node.name} ({now:%Y-%m-%d %H:%M} UTC)", lines)


def _repairs(node: Node) -> list[str]:
    return [
        f"{each.at:%Y-%m-%d %H:%M:%S} {each.verdict}: {each.findings or 'no reason kept'}; "
        f"{each.repair or 'not repaired any more'}: {each.outcome or 'under way'}"
        for each in node.condemned
    ]


def _faults(node: Node) -> list[str]:
    return [
        f"{entry.at:%Y-%m-%d %H:%M:%S} {entry.evidence}" for entry in node.timeline if entry.why == FAULT
    ][-_MOST_LINES:]


def _gpus(smi: str) -> list[str]:
    """Driver first, then each GPU on a line. Empty where the driver did not answer."""
    driver = [f"{name}: {found[1]}" for name in _DRIVER if (found := _value(name).search(smi))]
    gpus = []
    for part in re.split(r"(?m)^GPU (?=[0-9A-Fa-f]{4,8}:)", smi)[1:]:
        said = [f"{name}: {found[1]}" for name in _GPU if (found := _value(name).search(part))]
        gpus.append(", ".join([part.partition("\n")[0].strip(), *said]))
    return [*([", ".join(driver)] if driver else []), *gpus]


def _value(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?m)^\s*{name}\s*:\s*(\S.*?)\s*$")


def _driver_lines(files: dict[str, str]) -> list[str]:
    log = next((files[name] for name in _KERNEL_LOGS if name in files), "")
    return [line.rstrip() for line in log.splitlines() if _DRIVER_LINE.search(line)][-_MOST_LINES:]


def _files(archive: bytes) -> dict[str, str]:
    return dict(_read(archive)) if archive else {}


def _read(archive: bytes) -> Iterator[tuple[str, str]]:
    """The files that a ticket quotes. A damaged archive is still named, and whoever fetches it sees what is wrong."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as opened:
            for member in opened:
                name = member.name.removeprefix("./")
                file = opened.extractfile(member) if name in (*_KERNEL_LOGS, _SMI) else None
                if file is not None:
                    yield name, file.read(_MOST_BYTES).decode(errors="replace")
    except (tarfile.TarError, OSError, EOFError):
        return
