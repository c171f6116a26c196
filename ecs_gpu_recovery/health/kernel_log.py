"""Kernel-log lines of the NVIDIA driver, read from whatever wrapped them.

The same message reaches us through dmesg (four time formats), journald, syslog, raw /dev/kmsg, other health
checkers' output or a file someone pasted together. So the message is searched for anywhere in the line, and
the time is taken from whatever stands in front of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

_WHERE_AND_CODE = r"\s*\((?:PCI:)?([0-9A-Fa-f:.]{5,24})\)\s*:\s*([0-9]{1,6})(?![0-9A-Za-z])(.*)"
_XID = re.compile(r"NVRM:\s*Xid" + _WHERE_AND_CODE, re.DOTALL)
_SXID = re.compile(r"SXid" + _WHERE_AND_CODE, re.DOTALL | re.IGNORECASE)
_OFF_BUS = re.compile(
    r"NVRM:.{0,40}?\bGPU\s+(?:at\s+)?(?:PCI:)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]{4,7})?"
    r".{0,160}?fallen off the bus"
    r"|NVRM:\s*fallen off the bus",  # the last line of three
    re.DOTALL,
)
_INIT = re.compile(
    r"NVRM:\s*(?:GPU\s+([0-9A-Fa-f:.]{5,18}):\s*)?(?:RmInitAdapter|rm_init_adapter) failed", re.DOTALL
)
_PID = re.compile(r"\s*,?\s*pid='?`?<?[\w ]+>?`?'?")
_NAME = re.compile(r"\s*,\s*name=(?:`?<unknown>`?|[^,]*)")

_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: number for number, name in enumerate(_NAMES, start=1)}
_MONTH = "(" + "|".join(_NAMES) + ")"
_ISO = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,]([0-9]{1,9}))?\s?"
    r"(Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_CTIME = re.compile(r"\[\w{3} " + _MONTH + r" +([0-9]{1,2}) ([0-9]{2}:[0-9]{2}:[0-9]{2}) ([0-9]{4})\]")
_SYSLOG = re.compile(r"(?:^|[\s>])" + _MONTH + r" +([0-9]{1,2}) ([0-9]{2}:[0-9]{2}:[0-9]{2})\s")
_KMSG = re.compile(r"^[0-9]{1,4},[0-9]{1,20},([0-9]{1,18}),")
_UPTIME = re.compile(r"\[\s*([0-9]{1,10}\.[0-9]{1,9})\]")
_LOOKS_LIKE = re.compile(r"NVRM|nvidia|\bkernel\b|^<[0-9]{1,3}>|^kern\s*:", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEvent:
    """One line that says something about a GPU or an NVSwitch."""

    kind: str
    """xid, sxid, off-bus or init-failed."""
    device: str | None
    """PCI id in our spelling, None when the line does not name one."""
    code: int
    text: str
    """What follows the number, without process id and name."""
    line: str
    at: datetime | None = None
    uptime_s: float | None = None


def bus_id(text: str) -> str | None:
    """One spelling for a PCI id: 00000000:0A:00.0, PCI:0000:0a:00 and 0000:0a:00.0 are all 0000:0a:00."""
    parts = text.strip().upper().removeprefix("PCI:").lower().split(".")[0].split(":")
    if len(parts) == 2:
        parts.insert(0, "0")
    if len(parts) != 3:
        return None
    try:
        domain, bus, device = (int(part, 16) for part in parts)
    except ValueError:
        return None
    if domain > 0xFFFFFFFF or bus > 0xFF or device > 0xFF:
        return None
    return f"{domain:04x}:{bus:02x}:{device:02x}"


def is_relevant(line: str) -> bool:
    """Cheap first look: can this line hold anything for us?"""
    return "NVRM" in line or "SXid" in line or "sxid" in line


def looks_like_kernel_log(line: str) -> bool:
    """True for a line that a kernel log may hold; a text without one is no kernel log."""
    return bool(_LOOKS_LIKE.search(line) or _KMSG.search(line) or _UPTIME.search(line) or _CTIME.search(line))


def parse_line(line: str, now: datetime, boot: datetime | None = None) -> KernelEvent | None:
    """The event in this line, or None. `boot` dates lines that carry only seconds since boot."""
    if not is_relevant(line):
        return None
    found = _XID.search(line)
    if found:
        kind, device, code, text = "xid", bus_id(found[1]), int(found[2]), _message(found[3])
    elif found := _SXID.search(line):
        kind, device, code, text = "sxid", bus_id(found[1]), int(found[2]), found[3].strip(" ,\r\n\t")
    elif found := _OFF_BUS.search(line):
        kind, device, code, text = "off-bus", bus_id(found[1] or ""), 79, "GPU has fallen off the bus"
    elif found := _INIT.search(line):
        kind, device, code, text = "init-failed", bus_id(found[1] or ""), 0, line[found.start() :]
    else:
        return None
    at, uptime_s = _when(line[: found.start()], now, boot)
    return KernelEvent(
        kind=kind, device=device, code=code, text=text, line=line.strip(), at=at, uptime_s=uptime_s
    )


def parse(
    lines: Iterable[str], now: datetime, since: datetime | None = None, boot: datetime | None = None
) -> Iterator[KernelEvent]:
    """Every event not older than `since`. A line without a date is kept: silence about time is no alibi."""
    for line in lines:
        event = parse_line(line, now, boot)
        if event is not None and (since is None or event.at is None or event.at >= since):
            yield event


def parse_time(text: str) -> datetime | None:
    """An ISO 8601 time; without a zone it is UTC, as everywhere in this project."""
    found = _ISO.match(text.strip())
    if not found:
        return None
    return _iso(found, UTC)


def _message(rest: str) -> str:
    """The driver's words after the number, without who it happened to."""
    rest = rest.strip("\r\n\t ")
    rest = _PID.sub("", rest, count=1) if rest.lstrip(", ").startswith("pid=") else rest
    rest = _NAME.sub("", rest, count=1) if rest.lstrip(", ").startswith("name=") else rest
    return rest.strip(" ,")


def _when(prefix: str, now: datetime, boot: datetime | None) -> tuple[datetime | None, float | None]:
    local = now.tzinfo
    if found := _ISO.search(prefix):
        return _iso(found, local), None
    if found := _CTIME.search(prefix):
        return _moment(f"{found[4]}-{_MONTHS[found[1]]:02d}-{int(found[2]):02d}T{found[3]}", local), None
    uptime_s = _uptime(prefix)
    if found := _SYSLOG.search(prefix):
        return _this_year(_MONTHS[found[1]], int(found[2]), found[3], now), uptime_s
    if uptime_s is not None and boot is not None:
        return boot + timedelta(seconds=uptime_s), uptime_s
    return None, uptime_s


def _uptime(prefix: str) -> float | None:
    if found := _KMSG.search(prefix):
        return int(found[1]) / 1e6
    stamps = _UPTIME.findall(prefix)
    return float(stamps[-1]) if stamps else None


def _iso(found: re.Match[str], zone: object) -> datetime | None:
    fraction = (found[3] or "0").ljust(6, "0")[:6]
    offset = (found[4] or "").replace("Z", "+00:00")
    if offset and ":" not in offset:
        offset = f"{offset[:3]}:{offset[3:]}"
    return _moment(f"{found[1]}T{found[2]}.{fraction}{offset}", zone)


def _moment(text: str, zone: object) -> datetime | None:
    """Text such as 2026-02-31 is no time at all, and then the line is simply undated."""
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None and isinstance(zone, timezone):
            at = at.replace(tzinfo=zone)
        return at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _this_year(month: int, day: int, clock: str, now: datetime) -> datetime | None:
    """Syslog writes no year: take the latest one that does not lie in the future."""
    for year in (now.year, now.year - 1):
        at = _moment(f"{year}-{month:02d}-{day:02d}T{clock}", now.tzinfo)
        if at is not None and at <= now + timedelta(days=1):
            return at
    return None
