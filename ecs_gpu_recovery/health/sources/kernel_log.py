"""Kernel-log lines of the NVIDIA driver, read from whatever wrapped them.

The same message reaches us through dmesg, journald, syslog, raw /dev/kmsg, other health checkers' output or a file
someone pasted together. So the message is searched for anywhere in the line, and the time is taken from whatever
stands in front of it. A line may hold many messages: JSON knows no line ends. A file may hold many boots: what an
earlier one saw is history.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

from ecs_gpu_recovery.health.sources import log_records, log_times
from ecs_gpu_recovery.health.sources.log_times import parse_time as parse_time

#: Behind the PCI id may stand a part of the GPU (MIG): GPU-I:01 GPU-CI:00. The fault is the whole GPU's.
_DEVICE = r"\((?:PCI:)?([0-9A-Fa-f:.]{5,24})(?:\s[^()]{0,60})?\)"
_WHERE_AND_CODE = rf"\s*{_DEVICE}\s*:\s*([0-9]{{1,6}})(?![0-9A-Za-z])(.*)"
_PCI_ID = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]{4,7}"
_XID = re.compile(r"NVRM:\s*Xid" + _WHERE_AND_CODE, re.DOTALL | re.IGNORECASE)
_XID_RETOLD = re.compile(  # as people and other programs write it down
    rf"NVRM:\s*Xid\s+([0-9]{{1,6}})(?![0-9A-Za-z])\s*(?:{_DEVICE})?:?(.*)", re.DOTALL | re.IGNORECASE
)
_SXID = re.compile(r"SXid" + _WHERE_AND_CODE, re.DOTALL | re.IGNORECASE)
_OFF_BUS = re.compile(
    rf"NVRM:.{{0,40}}?\bGPU\s+(?:at\s+)?(?:PCI:)?({_PCI_ID})?"
    r".{0,160}?fallen off the bus"
    r"|NVRM:\s*fallen off the bus",  # the last line of three
    re.DOTALL | re.IGNORECASE,
)
_BY_GPU = rf"NVRM:.{{0,120}}?(?:\bGPU (?:at )?(?:PCI:)?({_PCI_ID}).{{0,60}}?)?"
#: Lines without a number: the condition in the policy and how the driver or the kernel words it.
_WORDED: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (condition, re.compile(words, re.IGNORECASE))
    for condition, words in (
        (
            "init-failed",
            r"NVRM:\s*(?:GPU\s+([0-9A-Fa-f:.]{5,18}):\s*)?(?:(?:RmInitAdapter|rm_init_adapter) failed"
            r"|RmInitAdapter: Cannot initialize|The NVIDIA probe routine failed)",
        ),
        ("reboot-asked", r"NVRM:.{0,80}()requiring os reboot to recover"),
        ("gpu-lost", r"NVRM:.{0,80}()GPU lost from the bus \[NV_ERR_GPU_IS_LOST\]"),
        (
            "reset-asked",
            r"NVRM:.{0,120}?(?:GPU at PCI:([0-9A-Fa-f:]{5,16})\b.{0,60}?)?(?:The GPU likely needs to be reset"
            r"|GPU (?:is likely|may be) in a bad state and may need to be reset|GPU marked for reset"
            r"|\[NV_ERR_RESET_REQUIRED\])",
        ),
        ("link-discovery", r"NVRM:\s*knvlinkDiscoverPostRxDetLinks\w*:.{0,40}()postRxDetLinkMask failed"),
        ("gpu-locked", _BY_GPU + r"RC watchdog: GPU is probably locked"),
        ("controller-halted", _BY_GPU + r"PMU has halted"),
        ("chip-reset", _BY_GPU + r"(?:NV_ERR_GPU_IN_FULLCHIP_RESET|GPU is in full ?chip reset)"),
        ("memory-subsystem", _BY_GPU + r"Memory Subsystem Error detected"),
        ("firmware-silent", _BY_GPU + r"heartbeat timed out"),
        (
            "bus-error",
            rf"\bnvidia ({_PCI_ID}):.{{0,40}}?(?:can't recover \(no error_detected"
            r"|Uncorrect(?:ed|able) \(Fatal\)|Unable to change power state .{0,40}device inaccessible)",
        ),
        ("xid-cut", r"NVRM:\s*Xid\s*\((?:PCI:)?([0-9A-Fa-f:.]{0,24})(?:\)\s*:?\s*)?(?:$|[\x00\\\"])"),
    )
)
_PID = re.compile(r"\s*,?\s*pid='?`?<?[\w ]+>?`?'?")
_NAME = re.compile(r"\s*,\s*name=(?:`?<unknown>`?|[^,]*)")

_BOOT = re.compile(r"^-- (?:Boot [0-9a-f]{32}|Reboot) --|(?:^|[\]:;\"])\s*Linux version [0-9]+\.[0-9]")
_ESCAPED_LINE_END = re.compile(r"\\[nr]")
_MESSAGE = re.compile(r"NVRM:|nvidia-nvswitch[0-9]{1,3}: SXid")
_LOOKS_LIKE = re.compile(
    r"NVRM:|SXid|\bnvidia[\w-]{0,40}(?: [0-9A-Fa-f:.]{7,16})?: |\bkernel(?:\[[0-9]+\])?:\s|^<[0-9]{1,3}>"
    r"|\bkern\s*:\s*\w+\s*:"
    r"|(?:^|[:>] )(?:\x1b\[[0-9;]*m)?\[\s*\+?[0-9]{1,10}\.[0-9]{1,9}\]|^\[[A-Z][a-z]{2} ?[0-9]{1,2} [0-9]{2}:[0-9]{2}\]"
    r"|\"?_TRANSPORT\"?\s*[:=]\s*\"?kernel|^[0-9]{1,4},[0-9]{1,20},[0-9]{1,18},"
    r"|\[[^\]\n]{3,30} [0-9]{1,2} [0-9:]{8} [0-9]{4}\]"
    r"|^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8},[0-9]{6}[+-]",
    re.MULTILINE | re.ASCII,
)
_CLOCK_STEP = timedelta(minutes=5)
"""By so much a clock may be set while a machine runs; boots further apart than this are two."""
_DRIFT = 0.001
"""The kernel counts its seconds by a clock that is never set; in a month it may be off by minutes."""
_ROUNDED = timedelta(seconds=2)
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
    old: bool = False
    """Of an earlier boot than the one that the machine, or the file, is in now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLog:
    """What a log told, with the events of earlier boots marked as such."""

    events: tuple[KernelEvent, ...]

    @property
    def current(self) -> tuple[KernelEvent, ...]:
        return tuple(event for event in self.events if not event.old)

    @property
    def undated(self) -> int:
        """How many say nothing about their time, or say it in a way that can't be read."""
        return sum(1 for event in self.current if event.at is None)

    def summary(self, since: datetime | None = None) -> str:
        """In a few words: what counts, what does not, and what could not be told apart."""
        old, undated = len(self.events) - len(self.current), self.undated
        earlier = f", {old} of an earlier boot left out" if old else ""
        kept = " and kept all the same" if since else ""
        unread = f", {undated} without a time that can be read{kept}" if undated else ""
        return f"{len(self.current)} event(s) of the NVIDIA driver{earlier}{unread}"

    def note(self, since: datetime | None) -> str:
        """What the verdict's sentence must add: lines that count although it is not known when they were written."""
        if since is None or not self.undated:
            return ""
        return (
            f"{self.undated} event(s) of the kernel log have no time that can be read and count all the same"
        )


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
    return (
        "NVRM" in line
        or "SXid" in line
        or "nvidia 0" in line
        or "nvrm" in line
        or "sxid" in line
        or log_records.has_bytes(line)
    )


def select(lines: Iterable[str]) -> Iterator[str]:
    """Of a whole log only what concerns us: the driver's messages, and where another boot begins."""
    known = None
    for record in log_records.records(lines):
        boot_id = log_records.boot_id(record)
        if boot_id is not None and boot_id != known:
            known = boot_id
            yield f"-- Boot {boot_id} --"
        if is_relevant(record) or _BOOT.search(record):
            yield record


def looks_like_kernel_log(text: str) -> bool:
    """True for a text with a line that a kernel log may hold."""
    return bool(_LOOKS_LIKE.search(text, 0, _ENOUGH)) or any(
        map(text.__contains__, ("NVRM:", "nvrm:", "SXid"))
    )


def parse_line(line: str, now: datetime, boot: datetime | None = None) -> KernelEvent | None:
    """The event in this line, or None. `boot` dates lines that carry only seconds since boot."""
    return next(events_in(line, now, boot), None) if is_relevant(line) else None


def events_in(record: str, now: datetime, boot: datetime | None = None) -> Iterator[KernelEvent]:
    """The events in one record: mostly one, many where a program put a whole log into a JSON string."""
    record = log_records.plain(record)
    kept = log_records.entry(record)
    for text in messages(kept.message if kept else record):
        told = _told(text)
        if told is None:
            continue
        kind, device, code, words, start = told
        at, uptime_s = log_times.when((kept.before if kept else "") + text[:start], now, boot)
        if kept and kept.at:
            at, text = kept.at, f"{kept.at.isoformat()} {text}"
        yield KernelEvent(
            kind=kind, device=device, code=code, text=words, line=text.strip(), at=at, uptime_s=uptime_s
        )


def _told(text: str) -> tuple[str, str | None, int, str, int] | None:
    """Kind, device, number, words, and where they begin."""
    if found := _XID.search(text):
        return "xid", bus_id(found[1]), int(found[2]), _message(found[3]), found.start()
    if found := _XID_RETOLD.search(text):
        return "xid", bus_id(found[2] or ""), int(found[1]), _message(found[3]), found.start()
    if found := _SXID.search(text):
        return "sxid", bus_id(found[1]), int(found[2]), found[3].strip(" ,\r\n\t"), found.start()
    if found := _OFF_BUS.search(text):
        return "off-bus", bus_id(found[1] or ""), 79, "GPU has fallen off the bus", found.start()
    for condition, pattern in _WORDED:
        if found := pattern.search(text):
            return condition, bus_id(found[1] or ""), 0, text[found.start() :], found.start()
    return None


def parse(
    lines: Iterable[str],
    now: datetime,
    since: datetime | None = None,
    boot: datetime | None = None,
    boot_id: str | None = None,
) -> KernelLog:
    """Every event not older than `since`. A line without a date is kept: silence about time is no alibi.

    `boot` and `boot_id` are the machine's own; the id is given where the log was kept in a file, which may be older
    than the boot. The file itself may show that a machine was started again: by a new kernel's first words, by
    journald's marks, by the clock.
    """
    events: list[tuple[KernelEvent, int, str | None]] = []
    starts: list[datetime] = []
    number, id_here = 0, None
    for record in select(lines):
        if _BOOT.search(record):
            number += 1
            mark = re.match(r"-- Boot ([0-9a-f]{32})", record)
            id_here = mark[1] if mark else id_here
        told = list(events_in(record, now, boot))
        events += [(event, number, id_here) for event in told]
        times = [(event.at, event.uptime_s) for event in told] or [log_times.when(record[:100], now)]
        starts += [at - timedelta(seconds=up) for at, up in times if at is not None and up is not None]
    own = (boot_id or "").replace("-", "")
    here = None if boot_id is None else boot
    start = max((s for s in starts if s <= now), default=None)
    judged = [
        replace(
            event, old=place < number or _is_past(event, now, here, start) or bool(own and of and of != own)
        )
        for event, place, of in events
    ]
    return KernelLog(events=tuple(e for e in judged if since is None or e.at is None or e.at >= since))


def _is_past(event: KernelEvent, now: datetime, boot: datetime | None, start: datetime | None) -> bool:
    """True when the event's time lies before the machine's boot, or before the last boot that the file knows of."""
    if event.at is None:
        return False
    if boot is not None and event.at < boot - _ROUNDED:
        return True
    if event.uptime_s is None:
        return False
    began = event.at - timedelta(seconds=event.uptime_s)
    slack = _CLOCK_STEP + _DRIFT * (now - began)
    if boot is not None and began == boot:  # counted from this boot, and so it cannot lie ahead of us
        return event.at > now + slack
    return start is not None and began < start - slack


def messages(line: str) -> list[str]:
    """The messages in one line: mostly one, many where a program put a whole log into a JSON string."""
    if line.count("NVRM:") + line.count("SXid") < 2 or log_records.entry(line):
        return [line]
    parts = []
    for piece in _ESCAPED_LINE_END.split(line):
        later = [found.start() for found in _MESSAGE.finditer(piece)][1:]
        parts += [piece[start:end] for start, end in pairwise([0, *later, len(piece)])]
    return parts


def _message(rest: str) -> str:
    """The driver's words after the number, without who it happened to."""
    rest = rest.strip("\r\n\t ")
    rest = _PID.sub("", rest, count=1) if rest.lstrip(", ").startswith("pid=") else rest
    rest = _NAME.sub("", rest, count=1) if rest.lstrip(", ").startswith("name=") else rest
    return rest.strip(" ,")
