"""Kernel-log lines of the NVIDIA driver, read from whatever wrapped them.

The same message reaches us through dmesg (four time formats), journald, syslog, raw /dev/kmsg, other health
checkers' output or a file someone pasted together. So the message is searched for anywhere in the line, and
the time is taken from whatever stands in front of it. A line may hold many messages: JSON knows no line ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

_WHERE_AND_CODE = r"\s*\((?:PCI:)?([0-9A-Fa-f:.]{5,24})\)\s*:\s*([0-9]{1,6})(?![0-9A-Za-z])(.*)"
_XID = re.compile(r"NVRM:\s*Xid" + _WHERE_AND_CODE, re.DOTALL)
_XID_RETOLD = re.compile(  # as people and other programs write it down
    r"NVRM:\s*Xid\s+([0-9]{1,6})(?![0-9A-Za-z])\s*(?:\((?:PCI:)?([0-9A-Fa-f:.]{5,24})\))?:?(.*)", re.DOTALL
)
_SXID = re.compile(r"SXid" + _WHERE_AND_CODE, re.DOTALL | re.IGNORECASE)
_OFF_BUS = re.compile(
    r"NVRM:.{0,40}?\bGPU\s+(?:at\s+)?(?:PCI:)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]{4,7})?"
    r".{0,160}?fallen off the bus"
    r"|NVRM:\s*fallen off the bus",  # the last line of three
    re.DOTALL,
)
#: Lines without a number: the condition in the policy and how the driver or the kernel words it.
_WORDED: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "init-failed",
        re.compile(r"NVRM:\s*(?:GPU\s+([0-9A-Fa-f:.]{5,18}):\s*)?(?:RmInitAdapter|rm_init_adapter) failed"),
    ),
    ("reboot-asked", re.compile(r"NVRM:.{0,80}()requiring os reboot to recover", re.IGNORECASE)),
    ("gpu-lost", re.compile(r"NVRM:.{0,80}()GPU lost from the bus \[NV_ERR_GPU_IS_LOST\]")),
    (
        "reset-asked",
        re.compile(
            r"NVRM:.{0,120}?(?:GPU at PCI:([0-9A-Fa-f:]{5,16})\b.{0,60}?)?(?:The GPU likely needs to be reset"
            r"|GPU (?:is likely|may be) in a bad state and may need to be reset|GPU marked for reset"
            r"|\[NV_ERR_RESET_REQUIRED\])",
            re.IGNORECASE,
        ),
    ),
    (
        "link-discovery",
        re.compile(r"NVRM:\s*knvlinkDiscoverPostRxDetLinks\w*:.{0,40}()postRxDetLinkMask failed"),
    ),
    (
        "bus-error",
        re.compile(
            r"\bnvidia ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]{4,7}):.{0,40}?(?:can't recover \(no error_detected"
            r"|Uncorrect(?:ed|able) \(Fatal\)|Unable to change power state .{0,40}device inaccessible)"
        ),
    ),
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
_JOURNAL_TIME = re.compile(r"\"?__REALTIME_TIMESTAMP\"?\s*[:=]\s*\"?([0-9]{16})\b")
_JOURNAL_BYTES = re.compile(r"\"MESSAGE\":\[((?:[0-9]{1,3}, ?){5,9000}[0-9]{1,3})\]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ESCAPED_LINE_END = re.compile(r"\\[nr]")
_MESSAGE = re.compile(r"NVRM:|nvidia-nvswitch[0-9]{1,3}: SXid")
_LOOKS_LIKE = re.compile(
    r"NVRM:|SXid|\bnvidia[\w-]{0,40}(?: [0-9A-Fa-f:.]{7,16})?: |\bkernel(?:\[[0-9]+\])?: |^<[0-9]{1,3}>"
    r"|\bkern\s*:\s*\w+\s*:"
    r"|^(?:\x1b\[[0-9;]*m)?\[\s*\+?[0-9]{1,10}\.[0-9]{1,9}\]|^\[[A-Z][a-z]{2} ?[0-9]{1,2} [0-9]{2}:[0-9]{2}\]"
    r"|\"_TRANSPORT\"\s*:\s*\"kernel\"|^[0-9]{1,4},[0-9]{1,20},[0-9]{1,18},"
    rf"|\[\w{{3}} {_MONTH} +[0-9]{{1,2}} [0-9:]{{8}} [0-9]{{4}}\]"
    r"|^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8},[0-9]{6}[+-]",
    re.MULTILINE | re.ASCII,
)
_ENOUGH = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEvent:
    """One line that says something about a GPU or an NVSwitch."""

    kind: str
    """xid, sxid, off-bus, or the condition that a line without a number tells of."""
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
    return "NVRM" in line or "SXid" in line or "sxid" in line or "nvidia 0" in line or 'MESSAGE":[' in line


def looks_like_kernel_log(text: str) -> bool:
    """True for a text with a line that a kernel log may hold."""
    return bool(_LOOKS_LIKE.search(text, 0, _ENOUGH)) or "NVRM:" in text or "SXid" in text


def parse_line(line: str, now: datetime, boot: datetime | None = None) -> KernelEvent | None:
    """The event in this line, or None. `boot` dates lines that carry only seconds since boot."""
    if not is_relevant(line):
        return None
    line = _readable(line)
    found = _XID.search(line)
    if found:
        kind, device, code, text = "xid", bus_id(found[1]), int(found[2]), _message(found[3])
    elif found := _XID_RETOLD.search(line):
        kind, device, code, text = "xid", bus_id(found[2] or ""), int(found[1]), _message(found[3])
    elif found := _SXID.search(line):
        kind, device, code, text = "sxid", bus_id(found[1]), int(found[2]), found[3].strip(" ,\r\n\t")
    elif found := _OFF_BUS.search(line):
        kind, device, code, text = "off-bus", bus_id(found[1] or ""), 79, "GPU has fallen off the bus"
    else:
        worded = ((name, pattern.search(line)) for name, pattern in _WORDED)
        kind, found = next(((name, match) for name, match in worded if match), ("", None))
        if found is None:
            return None
        device, code, text = bus_id(found[1] or ""), 0, line[found.start() :]
    at, uptime_s = _when(line[: found.start()], now, boot)
    if at is None and (journal := _JOURNAL_TIME.search(line)):
        at = datetime.fromtimestamp(int(journal[1]) / 1e6, UTC)
    return KernelEvent(
        kind=kind, device=device, code=code, text=text, line=line.strip(), at=at, uptime_s=uptime_s
    )


def parse(
    lines: Iterable[str], now: datetime, since: datetime | None = None, boot: datetime | None = None
) -> Iterator[KernelEvent]:
    """Every event not older than `since`. A line without a date is kept: silence about time is no alibi."""
    for line in lines:
        for message in messages(line):
            event = parse_line(message, now, boot)
            if event is not None and (since is None or event.at is None or event.at >= since):
                yield event


def messages(line: str) -> list[str]:
    """The messages in one line: mostly one, many where a program put a whole log into a JSON string."""
    if line.count("NVRM:") + line.count("SXid") < 2:
        return [line]
    parts = []
    for piece in _ESCAPED_LINE_END.split(line):
        later = [found.start() for found in _MESSAGE.finditer(piece)][1:]
        parts += [piece[start:end] for start, end in pairwise([0, *later, len(piece)])]
    return parts


def _readable(line: str) -> str:
    """Without a terminal's colours, and with the message that journald gives as numbers if it has odd bytes."""
    if numbers := _JOURNAL_BYTES.search(line):
        data = bytes(int(number) & 0xFF for number in numbers[1].split(","))
        line = f"{line[: numbers.start()]} {line[numbers.end() :]} {data.decode(errors='replace')}"
    return _COLOUR.sub("", line) if "\x1b" in line else line


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
