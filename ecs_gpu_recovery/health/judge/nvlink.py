"""What the numbers in an NVLink Xid mean.

Xid 74 carries seven registers, Xid 144-150 an interrupt word and an error status. NVIDIA publishes which of
their values need a reset and which need nothing; this module holds those facts and no policy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEX = re.compile(r"0x([0-9A-Fa-f]{1,8})\b")
_LINK = re.compile(r"\blink\s+(-?[0-9]{1,3})", re.IGNORECASE)
_UNIT = re.compile(r"^\s*([A-Z][A-Z0-9_]{2,40})")

_TOP = 0x8000_0000

_REGISTERS = 7
# Bits of an Xid 74 that allow the work to go on: (register, bits).
_BENIGN_74 = {0: (0, 23, 30), 4: (20, 23, 26, 29)}


@dataclass(frozen=True, slots=True)
class _Unit:
    """One reporting unit: its number in the interrupt word, and what each status means."""

    names: tuple[str, ...]
    old: int
    """Bits 9:5 of the interrupt word, drivers before R575."""
    new: int
    """Bits 6:0 of the interrupt word, drivers from R575 on."""
    reset: frozenset[int] = frozenset()
    ignore: frozenset[int] = frozenset()
    follow: frozenset[int] = frozenset()
    any_status: str = ""
    severe: frozenset[int] = frozenset()
    """Statuses that mean a reset when the bit above the unit number is set."""


def _set(*values: int) -> frozenset[int]:
    return frozenset(values)


def _tlw(names: tuple[str, ...], old: int, new: int) -> _Unit:
    """The five units of Xid 146 share one table."""
    return _Unit(names, old, new, _set(4), _set(1, 2, _TOP))


_UNITS: dict[int, tuple[_Unit, ...]] = {
    144: (_Unit(("SAW_MVB",), 1, 1, _set(2, 0x10), _set(1, 4, 8, 0x20)),),
    145: (
        _Unit(("RLW_CTRL",), 3, 3, ignore=_set(_TOP)),
        _Unit(("RLW_REMAP",), 4, 4, _set(0x40, 0x80), _set(0x100, 0x200, _TOP), _set(1, 2, 4, 8, 0x10, 0x20)),
        _Unit(("RLW_RSPCOL",), 5, 5, _set(2), _set(1, _TOP)),
        _Unit(("RLW_RXPIPE",), 6, 6, ignore=_set(1, 2, 4, 8, _TOP), severe=_set(1, 2, 4)),
        _Unit(("RLW_SRC_TRACK",), 7, 7, _set(1, 0x10, 0x20), _set(2, _TOP), _set(4, 8)),
        _Unit(("RLW_TAGSTATE",), 8, 8, _set(2, 0x20000, 0x100000), _set(1, 0x10000, _TOP)),
    ),
    146: (
        _tlw(("TLW_CTRL",), 9, 9),
        _tlw(("TLW_RX", "TLW_RX_PIPE0"), 10, 10),
        _tlw(("TLW_RX", "TLW_RX_PIPE1"), 10, 11),
        _tlw(("TLW_TX", "TLW_TX_PIPE0"), 11, 12),
        _tlw(("TLW_TX", "TLW_TX_PIPE1"), 11, 13),
    ),
    147: (_Unit(("TREX",), 12, 14, any_status="ignore"),),
    148: (_Unit(("NVLPW_CTRL", "NVLPW"), 0, 15, any_status="ignore"),),
    149: (
        _Unit(("NETIR", "NETIR_INT"), 0, 24, any_status="reset"),
        _Unit(("NETIR_LINK_EVT", "NETIR_LINK_DOWN"), 14, 17, any_status="link-down"),
        _Unit(("NETIR_BER_EVENT",), 17, 19, any_status="ignore"),
        _Unit(("NETIR_MFDE_EVENT",), 18, 20, _set(1, 4, 5, 7), _set(3)),
    ),
    150: (_Unit(("MSE", "MSE_WATCHDOG"), 0, 0, any_status="reset"),),
}

# Reasons of a link going down (bits 25:20) for which NVIDIA names a reset, and those that need nothing.
_LINK_DOWN_RESET = _set(
    0,
    1,
    2,
    4,
    0b001010,
    0b001111,
    0b010000,
    0b010001,
    0b010010,
    0b010101,
    0b010110,
    0b100000,
    0b100001,
    0b100010,
    0b100011,
    0b100100,
    0b100101,
    0b101010,
    0b101011,
)
_LINK_DOWN_IGNORE = _set(0b100110, 0b101000)


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
        allowed = sum(1 << bit for bit in _BENIGN_74.get(register, ()))
        if value & ~allowed:
            return False
    return True


def _meaning(unit: _Unit, word: int, status: int, *, severe: bool) -> str:
    reason = word >> 20 & 0x3F
    if unit.any_status == "link-down":
        harmless = "ignore" if reason in _LINK_DOWN_IGNORE else "undecoded"
        return "reset" if reason in _LINK_DOWN_RESET else harmless
    if reason:
        return "undecoded"
    if unit.any_status:
        return unit.any_status
    if severe and status in unit.severe:
        return "reset"
    bits = _set(status) if status in unit.reset | unit.ignore | unit.follow else _one_hot(status)
    if bits & unit.reset:
        return "reset"
    if bits & unit.follow:
        return "application"
    return "ignore" if bits and bits <= unit.ignore else "undecoded"


def _one_hot(status: int) -> frozenset[int]:
    """Several errors at once: each set bit is one."""
    return frozenset(1 << bit for bit in range(32) if status >> bit & 1)
