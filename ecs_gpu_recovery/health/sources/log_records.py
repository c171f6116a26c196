"""One line for each message, from logs that spread a message over several or tell the time once for many.

journald writes an entry as a block of fields (export, verbose) or as JSON over many lines; `dmesg --reltime` names the
minute once and then counts the seconds from line to line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from ecs_gpu_recovery.health.sources.log_times import journal_time

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_EXPORT = re.compile(r"__(?:CURSOR|REALTIME_TIMESTAMP|MONOTONIC_TIMESTAMP)=")
_VERBOSE = re.compile(r"\[s=[0-9a-f]{1,40};i=.{0,80}b=[0-9a-f]{32}")
_MINUTE = re.compile(r"(\[(?:[^\W\d_]{3,9}\.?|[0-9]{1,2}[月월]) ?[0-9]{1,2} [0-9]{2}:[0-9]{2})\]")
_STEP = re.compile(r"\[\s*\+([0-9]{1,9}\.[0-9]{1,9})\]")
_MOST_FIELDS = 200

_TIME = re.compile(r"\"?__REALTIME_TIMESTAMP\"?\s*[:=]\s*\"?([0-9]{16})\b")
_BOOT_ID = re.compile(r"(?:\b_BOOT_ID\"?\s*[:=]\s*\"?|\[s=[0-9a-f]{1,40};i=[^]\s]{0,40};b=)([0-9a-f]{32})\b")
_BYTES = re.compile(r"\"MESSAGE\"\s*:\s*\[((?:\s*[0-9]{1,3}\s*,){5,9000}\s*[0-9]{1,3})\s*\]")
_FIELD = re.compile(r"\bMESSAGE[=\s](.*?)(?=\s_{0,2}[A-Z][A-Z_]{3,40}=|$)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What journald knows of a message."""

    message: str
    before: str
    """What stands in front of the message, for a form that tells the time there."""
    at: datetime | None


def records(lines: Iterable[str]) -> Iterator[str]:
    """The messages of a log, each in one line, without a terminal's colours."""
    block: list[str] = []
    goes_on: Callable[[str], bool] = _never
    minute, seconds = "", 0.0
    for raw in lines:
        line = plain(raw)
        if block:
            if goes_on(line) and len(block) < _MOST_FIELDS:
                block.append(line)
                continue
            if goes_on is _in_braces and line.strip().startswith("}"):
                block.append(line)
                line = ""
            yield " ".join(part.strip() for part in block)
            block = []
        goes_on = _form(line)
        if goes_on is not _never:
            block = [line]
        elif found := _MINUTE.match(line):
            minute, seconds = found[1], 0.0
            yield line
        elif minute and line.startswith("[") and (step := _STEP.match(line)):
            seconds += float(step[1])
            yield f"{minute} +{seconds:.6f}]{line[step.end() :]}"
        elif line:
            yield line
    if block:
        yield " ".join(part.strip() for part in block)


def plain(line: str) -> str:
    """Without a terminal's colours and the ends of lines of other systems."""
    return (_COLOUR.sub("", line) if "\x1b" in line else line).strip("\r\n\x1e")


def entry(line: str) -> Entry | None:
    """The message inside a record of journald; None for a line of another kind."""
    if "MESSAGE" not in line:
        return None
    stamp = _TIME.search(line)
    at = journal_time(stamp[1]) if stamp else None
    message = _json_message(line)
    if message is None and (numbers := _BYTES.search(line)):
        message = _decoded(numbers[1].split(","))
    if message is None and (field := _FIELD.search(line)):
        return Entry(message=field[1], before=line[: field.start()], at=at)
    if message is None:  # cut off
        return Entry(message=line, before="", at=at) if at else None
    return Entry(message=message, before="", at=at)


def has_bytes(line: str) -> bool:
    """True for a record whose message is written as numbers, so that no word in it can be searched for."""
    return "MESSAGE" in line and bool(_BYTES.search(line))


def boot_id(line: str) -> str | None:
    """The boot that a record of journald belongs to."""
    found = _BOOT_ID.search(line) if "_BOOT_ID" in line or ";b=" in line else None
    return found[1] if found else None


def _never(line: str) -> bool:
    return False


def _in_braces(line: str) -> bool:
    return line[:1] in ("\t", " ", "")


def _is_field(line: str) -> bool:
    return bool(line)


def _is_indented(line: str) -> bool:
    return line.startswith("    ")


def _form(line: str) -> Callable[[str], bool]:
    """Which lines belong to the one that begins here."""
    if line == "{":
        return _in_braces
    if line.startswith("__") and _EXPORT.match(line):
        return _is_field
    return _is_indented if "[s=" in line and _VERBOSE.search(line) else _never


def _json_message(line: str) -> str | None:
    start = line.find("{")
    if start < 0:
        return None
    try:
        fields, _ = json.JSONDecoder().raw_decode(line, start)
    except (ValueError, RecursionError):
        return None
    message = fields.get("MESSAGE") if isinstance(fields, dict) else None
    if isinstance(message, list):
        return _decoded([str(number) for number in message])
    return message if isinstance(message, str) else None


def _decoded(numbers: list[str]) -> str:
    """A message with odd bytes is written as numbers."""
    return bytes(int(n) & 0xFF for n in numbers if n.strip().isdecimal()).decode(errors="replace")
