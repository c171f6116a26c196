"""Configuration from the environment, parsed once and strictly. Every problem is reported at once.

This is the only place that reads environment variables for the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from .core.errors import Refused
from .core.policy import Policy

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
                try:
                    return parse(text)
                except ValueError as exc:
                    self.problems.append(f"{name}={text!r}: {exc}")
                    return default
        return default

    def finish(self) -> None:
        if self.problems:
            raise ConfigError("; ".join(self.problems))


def boolean(text: str) -> bool:
    known = {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }
    if text.lower() not in known:
        raise ValueError("use true or false")
    return known[text.lower()]


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
    codes = frozenset(whole(1, 255)(part.strip()) for part in text.split(","))
    return codes


_DAY = 86400.0
#: Variable, field of the policy, how it is read. The documentation's table is made from this.
POLICY_VARIABLES: tuple[tuple[str, str, Callable[[str], Any], str], ...] = (
    ("MAX_RETRIES", "max_retries", whole(0, 100), "automatic restarts per job"),
    ("HEALTHCHECK_EXIT_CODES", "healthcheck_exit_codes", exit_codes, "exit codes that start a health check"),
    ("POST_REBOOT_CHECK", "post_reboot_check", boolean, "examine a node again after its reboot"),
    ("CHECK_TRIES", "check_tries", whole(1, 5), "how often an inconclusive check is tried in all"),
    ("START_TIMEOUT_S", "start_timeout", seconds(1, _DAY), "a task must run within this time"),
    ("STOP_TIMEOUT_S", "stop_timeout", seconds(1, _DAY), "a stopped task must end within this time"),
    ("CHECK_TIMEOUT_S", "check_timeout", seconds(1, _DAY), "a health check must answer within this time"),
    (
        "REBOOT_TIMEOUT_S",
        "reboot_timeout",
        seconds(1, _DAY),
        "a rebooting or lost node must be back within this time",
    ),
    ("NODE_LOST_AFTER_S", "node_lost_after", seconds(1, _DAY), "a node that is silent for longer is lost"),
    (
        "BACKOFF_FIRST_S",
        "backoff_first",
        seconds(0.01, 3600),
        "the wait before an order is sent again; it doubles",
    ),
    ("BACKOFF_MOST_S", "backoff_most", seconds(0.01, 3600), "the longest such wait"),
    (
        "DISPATCH_LEASE_S",
        "lease",
        seconds(0, 3600),
        "how long an order belongs to the process that committed it",
    ),
)


def policy_from(env: Mapping[str, str], base: Policy | None = None, reader: Reader | None = None) -> Policy:
    """The policy, with the environment's numbers in place of the defaults."""
    mine = reader or Reader(env)
    policy = base or Policy()
    values = {
        name: mine.get((variable,), parse, getattr(policy, name))
        for variable, name, parse, _ in POLICY_VARIABLES
    }
    if reader is None:
        mine.finish()
    return replace(policy, **values)
