"""When a line of a log was written, by whatever stands in front of its message.

dmesg knows five forms, journald eight, syslog three, and most name the month in the language of the machine; the names
are in `log_times.toml`. What no form fits has no time: such a line is kept, and the report says so.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

When = tuple[datetime | None, float | None]
"""The moment, and the seconds since boot; either may be unknown."""

_FACTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_MONTHS = {name: number for number, row in enumerate(_FACTS["months"], start=1) for name in row.split()}
_ZONES: dict[str, int] = _FACTS["zones"]
_SEVERAL: list[str] = _FACTS["several"]

_WORD = r"([^\W\d_]{3,9}\.?|[0-9]{1,2}[月월])"
_CLOCK = r"([0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?)"
_ISO = re.compile(
    r"([0-9]{4})[-/]([0-9]{2})[-/]([0-9]{2})[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,]([0-9]{1,9}))?\s?"
    r"(Z\b|[+-][0-9]{2}:?[0-9]{2}|[A-Z]{3,4}\b)?"
)
_WITH_YEAR = re.compile(_WORD + r" +([0-9]{1,2}) +" + _CLOCK + r" (?:([A-Z]{3,4}) )?([0-9]{4})\b")
_YEAR_FIRST = re.compile(_WORD + r" +([0-9]{1,2}),? ([0-9]{4}) " + _CLOCK)
_SYSLOG = re.compile(r"(?:^|[\s>])" + _WORD + r" +([0-9]{1,2}) " + _CLOCK + r"\s")
_RELATIVE = re.compile(
    r"\[" + _WORD + r" ?([0-9]{1,2}) ([0-9]{2}:[0-9]{2})(?: \+([0-9]{1,9}(?:\.[0-9]{1,9})?))?\]"
)
_KMSG = re.compile(r"^[0-9]{1,4},[0-9]{1,20},([0-9]{1,18}),")
_SINCE_BOOT = re.compile(r"\[\s*([0-9]{1,10}\.[0-9]{1,9})(?:\s+<[^<>]{1,20}>)?\]")
_SINCE_1970 = re.compile(r"^\s*([0-9]{10}\.[0-9]{3,9})\s")
_EPOCH = 1e9
"""More seconds than this count from 1970: no machine has been up for thirty years."""


def when(prefix: str, now: datetime, boot: datetime | None = None) -> When:
    """The time in what stands before a message. `boot` dates lines that carry only seconds since boot."""
    if found := _ISO.search(prefix):
        return _iso(found, now), None
    if found := _WITH_YEAR.search(prefix):
        return _named(found[1], found[2], found[3], found[5], _zone(found[4], now)), None
    if found := _YEAR_FIRST.search(prefix):
        return _named(found[1], found[2], found[4], found[3], now.tzinfo), None
    if found := _SINCE_1970.search(prefix):
        return datetime.fromtimestamp(float(found[1]), UTC), None
    uptime_s = _uptime(prefix)
    if uptime_s is not None and uptime_s > _EPOCH:
        return datetime.fromtimestamp(uptime_s, UTC), None
    if found := _SYSLOG.search(prefix):
        return _this_year(found[1], found[2], found[3], now), uptime_s
    if found := _RELATIVE.search(prefix):
        at = _this_year(found[1], found[2], f"{found[3]}:00", now)
        return at + timedelta(seconds=float(found[4] or 0)) if at else None, None
    if uptime_s is not None and boot is not None:
        return boot + timedelta(seconds=uptime_s), uptime_s
    return None, uptime_s


def parse_time(text: str) -> datetime | None:
    """An ISO 8601 time; without a zone it is UTC, as everywhere in this project."""
    found = _ISO.match(text.strip())
    return _iso(found, datetime.now(UTC)) if found else None


def journal_time(microseconds: str) -> datetime | None:
    """journald's own stamp."""
    try:
        return datetime.fromtimestamp(int(microseconds) / 1e6, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def month(word: str) -> int | None:
    """The number of a month by its short name in many languages."""
    if word[:-1].isdecimal():
        return int(word[:-1]) if 1 <= int(word[:-1]) <= 12 else None
    apart = unicodedata.normalize("NFKD", word.rstrip(".").casefold())
    return _MONTHS.get("".join(c for c in apart if not unicodedata.combining(c)))


def _uptime(prefix: str) -> float | None:
    if found := _KMSG.search(prefix):
        return int(found[1]) / 1e6
    stamps = _SINCE_BOOT.findall(prefix)
    return float(stamps[-1]) if stamps else None


def _zone(name: str | None, now: datetime) -> object:
    """The zone of that name; where we are, if the word is no zone at all."""
    if name in _SEVERAL and name != now.tzname():
        return None
    return timezone(timedelta(hours=_ZONES[name])) if name in _ZONES else now.tzinfo


def _iso(found: re.Match[str], now: datetime) -> datetime | None:
    fraction = (found[5] or "0").ljust(6, "0")[:6]
    text = f"{found[1]}-{found[2]}-{found[3]}T{found[4]}.{fraction}"
    zone = "+00:00" if found[6] == "Z" else found[6] or ""
    if zone.startswith(("+", "-")):
        return _moment(text + (zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"), None)
    return _moment(text, _zone(zone, now))


def _named(name: str, day: str, clock: str, year: str | int, zone: object) -> datetime | None:
    number = month(name)
    return _moment(f"{year}-{number:02d}-{int(day):02d}T{clock}", zone) if number else None


def _moment(text: str, zone: object) -> datetime | None:
    """Text such as 2026-02-31 is no time at all, and then the line is simply undated."""
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            if not isinstance(zone, timezone):
                return None
            at = at.replace(tzinfo=zone)
        return at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _this_year(name: str, day: str, clock: str, now: datetime) -> datetime | None:
    """Syslog writes no year: take the latest one that has such a day and does not lie in the future."""
    for year in range(now.year, now.year - 5, -1):
        at = _named(name, day, clock, year, now.tzinfo)
        if at is not None and at <= now + timedelta(days=1):
            return at
    return None
