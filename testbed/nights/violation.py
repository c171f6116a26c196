"""What a night finds."""

from __future__ import annotations


class Violation(BaseException):
    """Something that must never happen has happened. No handler of the code under test may swallow it."""


def demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)
