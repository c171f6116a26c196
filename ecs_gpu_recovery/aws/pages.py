"""Long answers of AWS come in pages, each with the name of the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .errors import translated


def pages(
    doing: str, ask: Callable[..., Any], *, following: str = "nextToken", sent: str = "", **question: Any
) -> Iterator[Mapping[str, Any]]:
    """Every page of an answer, asked for when it is wanted. `doing` says in errors what was asked.

    `following` is what the service calls the name of the next page; `sent`, what it wants it called in the question.
    """
    more: dict[str, Any] = {}
    while True:
        with translated(doing):
            page = ask(**question, **more)
        yield page
        if not page.get(following):
            return
        more = {sent or following: page[following]}
