"""What the numbers in an NVLink Xid mean.

Xid 74 carries seven registers, Xid 144-150 an interrupt word and an error status. NVIDIA publishes which of
their values need a reset and which need nothing; `nvlink.toml` holds those facts, and no policy.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_HEX = re.compile(r"0x([0-9A-Fa-f]{1,8})\b")
_LINK = re.compile(r"\blink\s+(-?[0-9]{1,3})", re.IGNORECASE)
_UNIT = re.compile(r"^\s*([A-Z][A-Z0-9_]{2,40})")

_REGISTERS = 7
_FACTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """One reporting unit: its number in the interrupt word, and what each status means; `nvlink.toml` explains it."""

    names: Sequence[str]
    old: int
    new: int
    reset: Sequence[int] = ()
    ignore: Sequence[int] = ()
    follow: Sequence[int] = ()
    severe: Sequence[int] = ()
    any_status: str = ""


_UNITS = {int(xid): [_Unit(**unit) for unit in units] for xid, units in _FACTS["units"].items()}


def is_nvlink5(xid: int) -> bool:
    """True for the Xids whose meaning lies in their numbers."""
    return xid in _UNITS


def link(text: str) -> str:
    """The link a message names, to tell the same link failing twice from two links failing once."""
    found = _LINK.search(text)
    return found[1].lstrip("0") or "0" if found else ""


def decode(xid: int, text: str) -> str:
    """reset, ignore, application (follow Xid 154, else restart the program) or undecoded."""
    numbers = [int(number, 16) for number in _HEX.findall(text)]
    if len(numbers) < 2:
        return "undecoded"
    word, status = numbers[0], numbers[1]
    found = _UNIT.search(text)
    name = found[1] if found else ""
    for unit in _UNITS.get(xid, ()):
        new = word & 0x7F == unit.new
        old = word & 0x1F == (xid - 143) % 7 and word >> 5 & 0x1F == unit.old
        if (new or old) and (not name or name in unit.names):
            return _meaning(unit, word, status, severe=bool(word & (0x80 if new else 0x400)))
    return "undecoded"


def is_benign_74(text: str) -> bool:
    """True when an Xid 74 has bits set, and only such that NVIDIA says to work on with."""
    numbers = [int(number, 16) for number in _HEX.findall(text)[:_REGISTERS]]
    if len(numbers) < 5 or not any(numbers):
        return False
    for register, value in enumerate(numbers):
        allowed = sum(1 << bit for bit in _FACTS["benign_74"].get(str(register), ()))
        if value & ~allowed:
            return False
    return True


def _meaning(unit: _Unit, word: int, status: int, *, severe: bool) -> str:
    reason = word >> 20 & 0x3F
    if unit.any_status == "link-down":
        return next((what for what, reasons in _FACTS["link_down"].items() if reason in reasons), "undecoded")
    if reason:
        return "undecoded"
    if unit.any_status:
        return unit.any_status
    if severe and status in unit.severe:
        return "reset"
    whole = status in (*unit.reset, *unit.ignore, *unit.follow)
    bits = (
        {status} if whole else {1 << bit for bit in range(32) if status >> bit & 1}
    )  # several errors at once
    if bits.intersection(unit.reset):
        return "reset"
    if bits.intersection(unit.follow):
        return "application"
    return "ignore" if bits and bits.issubset(unit.ignore) else "undecoded"
