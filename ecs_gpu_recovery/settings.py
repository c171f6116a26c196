"""How variables are read: strictly, row by row, into one type each. Every problem is told at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .core.errors import Refused
from .core.setting import Setting, matching, whole


class ConfigError(Refused):
    """The environment does not make sense; the message names every variable that is wrong."""


class Reader:
    """Reads rows of settings and collects what is wrong with them."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.problems: list[str] = []
        self._wrong: set[str] = set()

    def value(self, row: Setting, default: Any) -> Any:
        """What the first of the row's names that is set and not empty says; else the default."""
        for name in (row.name, *row.older):
            if text := self._env.get(name, "").strip():
                return self.parse(row, text, default, name)
        return default

    def needed(self, row: Setting) -> Any:
        """The same where nothing can stand in for what the functions must be told."""
        missing = object()
        found = self.value(row, missing)
        if row.needed and found is missing and row.name not in self._wrong:
            self.problems.append(f"{row.name} is missing")
        return row.default if found is missing else found

    def parse(self, row: Setting, text: str, default: Any, name: str = "") -> Any:
        try:
            return row.parse(text)
        except ValueError as exc:
            self.problems.append(f"{name or row.name}={text!r}: {exc}")
            self._wrong.add(row.name)
            return default

    def over(self, env: Mapping[str, str]) -> Reader:
        """A reader of other variables that adds to the same problems."""
        other = Reader(env)
        other.problems, other._wrong = self.problems, self._wrong
        return other

    def fine(self, *names: str) -> bool:
        """Whether none of these was wrong, so that they can be looked at together."""
        return self._wrong.isdisjoint(names)

    def finish(self) -> None:
        if self.problems:
            raise ConfigError("; ".join(self.problems))


def optional(parse: Callable[[str], str]) -> Callable[[str], str]:
    """Empty means that there is none."""
    return lambda text: parse(text) if text else ""


def each(parse: Callable[[str], str]) -> Callable[[str], str]:
    """A list with commas. It stays a text, without blanks."""
    return lambda text: ",".join(parse(part.strip()) for part in text.split(","))


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
