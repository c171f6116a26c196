"""Reading what a caller sent, and saying no in AWS's words."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class ApiError(Exception):
    """An answer with an error code. What a client makes of it depends on how it was reached."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        self.code, self.message, self.status = code, message, status
        super().__init__(f"{code}: {message}")


def invalid(message: str) -> ApiError:
    return ApiError("InvalidParameterException", message)


def short(reference: str) -> str:
    """The last part of an ARN; a plain name is its own last part."""
    return reference.rpartition("/")[2]


def listed(data: dict[str, Any], name: str, *, most: int) -> list[Any]:
    """A list that must be there, and not be too long."""
    found = data.get(name) or []
    words = "".join(f" {c.lower()}" if c.isupper() else c for c in name).capitalize()
    if not found:
        raise invalid(f"{words} cannot be empty.")
    if len(found) > most:
        raise invalid(f"{words} cannot have more than {most} entries.")
    return list(found)


def page(
    items: Sequence[T], token: str | None, size: int, *, error: str = "InvalidParameterException"
) -> tuple[list[T], str]:
    """One page of a list and the token for the next, empty at the end."""
    start = 0
    if token:
        try:
            word, _, number = base64.b64decode(token, validate=True).decode("ascii").partition(":")
            start = int(number)
        except (binascii.Error, ValueError, UnicodeDecodeError) as exc:
            raise ApiError(error, "Invalid token") from exc
        if word != "page" or start < 0:
            raise ApiError(error, "Invalid token")
    more = base64.b64encode(f"page:{start + size}".encode()).decode() if start + size < len(items) else ""
    return list(items[start : start + size]), more


def page_size(data: dict[str, Any], name: str, most: int) -> int:
    asked = data.get(name)
    return most if asked is None else max(1, min(most, int(asked)))
