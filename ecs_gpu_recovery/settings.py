"""How a variable is read: strictly, into one type, with a hint where it makes no sense."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TypeVar

from .core.errors import Refused

T = TypeVar("T")


class ConfigError(Refused):
    """The environment does not make sense; the message names every variable that is wrong."""


class Reader:
    """Reads variables and collects what is wrong with them."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.problems: list[str] = []

    def get(self, names: tuple[str, ...], parse: Callable[[str], T], default: T) -> T:
        """The first of the names that is set and not empty."""
        for name in names:
            text = self._env.get(name, "").strip()
            if text:
                return self.parse(name, text, parse, default)
        return default

    def need(self, names: tuple[str, ...], parse: Callable[[str], str]) -> str:
        """The same for a variable that nothing can stand in for."""
        if not any(self._env.get(name, "").strip() for name in names):
            self.problems.append(f"{names[0]} is missing")
        return self.get(names, parse, "")

    def parse(self, name: str, text: str, parse: Callable[[str], T], default: T) -> T:
        try:
            return parse(text)
        except ValueError as exc:
            self.problems.append(f"{name}={text!r}: {exc}")
            return default

    def over(self, env: Mapping[str, str]) -> Reader:
        """A reader of other variables that adds to the same list of problems."""
        other = Reader(env)
        other.problems = self.problems
        return other

    def finish(self) -> None:
        if self.problems:
            raise ConfigError("; ".join(self.problems))


def boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("true", "1", "yes", "on"):
        return True
    if lowered in ("false", "0", "no", "off"):
        return False
    raise ValueError("use true or false")


def whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.lstrip("-").isdigit():
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


def matching(pattern: str, hint: str) -> Callable[[str], str]:
    known = re.compile(pattern)

    def parse(text: str) -> str:
        if not known.fullmatch(text):
            raise ValueError(hint)
        return text

    return parse


def optional(parse: Callable[[str], str]) -> Callable[[str], str]:
    """Empty means that there is none."""
    return lambda text: parse(text) if text else ""


def each(parse: Callable[[str], str]) -> Callable[[str], str]:
    """A list with commas. It stays a text, without blanks."""
    return lambda text: ",".join(parse(part.strip()) for part in text.split(","))


def one_of(*choices: int | str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in map(str, choices):
            raise ValueError(f"use one of {', '.join(map(str, choices))}")
        return text

    return parse


def network(text: str) -> str:
    from ipaddress import IPv4Network  # the functions start without it

    try:
        return str(IPv4Network(text))
    except ValueError:
        raise ValueError("use networks such as 10.0.0.0/8, with commas") from None


def lustre_gib(text: str) -> int:
    """What FSx for Lustre sells: a first step, and then whole ones."""
    value = whole(1200, 1_000_000)(text)
    if value != 1200 and value % 2400:
        raise ValueError("use 1200, or a multiple of 2400")
    return value


def cluster_name(text: str) -> str:
    """A name, or the name in an ARN."""
    name = text.rpartition("/")[2] if text.startswith("arn:") else text
    return matching(r"[A-Za-z0-9_-]{1,255}", "use the name of an ECS cluster")(name)


table_name = matching(r"[A-Za-z0-9_.-]{3,255}", "use 3 to 255 letters, digits, dots, dashes and underscores")
family = matching(r"[A-Za-z0-9_-]{1,255}", "use the family of a task definition")
task_definition = matching(
    r"(arn:[a-z-]+:ecs:[^:/]*:[^:/]*:task-definition/)?[A-Za-z0-9_-]{1,255}(:[0-9]+)?",
    "use the family of a task definition, family:revision or an ARN",
)
topic_arn = matching(
    r"arn:[a-z-]+:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_.-]{1,256}", "use the ARN of an SNS topic"
)
role_arn = matching(r"arn:[a-z-]+:iam::[0-9]{12}:role/[\w+=,.@/-]{1,512}", "use ARNs of IAM roles")
