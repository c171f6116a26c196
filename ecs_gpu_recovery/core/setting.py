"""A setting is one row: a field of a dataclass that says how it is read, what it is without, and what it is for.

Reading, documentation and what is passed on are made from these rows; `rows` is the table. Whoever adds a setting
writes one field and its use.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, TypeVar

T = TypeVar("T")
_ROW = "setting"
_DAY_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row."""

    name: str  #: the environment variable
    attribute: str = ""
    default: Any
    parse: Callable[[str], Any]  #: raises `ValueError` with a hint
    about: str
    unit: str = ""
    embedded: Any = None  #: the default of the embedded mode, where it is another one
    older: tuple[str, ...] = ()  #: names that earlier versions gave to it
    needed: bool = False  #: the functions must be told: nothing can stand in for it there


def setting(
    default: T,
    parse: Callable[[str], T],
    about: str,
    *,
    name: str = "",
    unit: str = "",
    embedded: T | None = None,
    older: tuple[str, ...] = (),
    needed: bool = False,
) -> T:
    """A field of a dataclass that is a setting. Its variable has the field's name unless another is given."""
    row = Setting(
        name=name,
        default=default,
        parse=parse,
        about=about,
        unit=unit,
        embedded=embedded,
        older=older,
        needed=needed,
    )
    return field(default=default, metadata={_ROW: row})


def duration(
    name: str, default_s: float, embedded_s: float, about: str, limits_s: tuple[float, float] = (1, _DAY_S)
) -> timedelta:
    """A setting that is a time, with its default on AWS and in the embedded mode, in seconds."""
    default, embedded = timedelta(seconds=default_s), timedelta(seconds=embedded_s)
    return setting(default, seconds(*limits_s), about, name=name, unit="s", embedded=embedded)


def rows(owner: type) -> tuple[Setting, ...]:
    """The settings among the fields of a dataclass."""
    return tuple(
        replace(row, attribute=each.name, name=row.name or each.name)
        for each in fields(owner)
        if (row := each.metadata.get(_ROW))
    )


def text_of(value: object) -> str:
    """A value as somebody would write it into a variable: what every row's parser takes."""
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.12g}"
    if isinstance(value, frozenset):
        return ",".join(map(str, sorted(value)))
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("true", "1", "yes", "on"):
        return True
    if lowered in ("false", "0", "no", "off"):
        return False
    raise ValueError("use true or false")


def whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", text):
            raise ValueError("use a whole number")
        value = int(text)
        if not least <= value <= most:
            raise ValueError(f"use a whole number from {least} to {most}")
        return value

    return parse


def seconds(least: float, most: float) -> Callable[[str], timedelta]:
    def parse(text: str) -> timedelta:
        try:
            value = float(text)
        except ValueError:
            raise ValueError("use a number of seconds") from None
        if not least <= value <= most:
            raise ValueError(f"use a number of seconds from {least:g} to {most:g}")
        return timedelta(seconds=value)

    return parse


def exit_codes(text: str) -> frozenset[int]:
    return frozenset(whole(1, 255)(part.strip()) for part in text.split(","))


def one_of(*choices: int | str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in map(str, choices):
            raise ValueError(f"use one of {', '.join(map(str, choices))}")
        return text

    return parse


def matching(pattern: str, hint: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(hint)
        return text

    return parse
