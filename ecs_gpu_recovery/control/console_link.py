"""The link to a console without users. Its token is new with every start, and who holds it is the console's owner.

The link is printed, and kept in a file that only its owner can read. So the owner's commands find it by themselves.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from ..local.files import read_text, write_text

PARAMETER = "token"


@dataclass(frozen=True, slots=True)
class ConsoleLink:
    """Where a console listens, and the token that lets its owner in; none where people sign in."""

    address: str
    token: str = ""

    def page(self, path: str = "/") -> str:
        """The address of a page, to be opened with one click."""
        return f"{self.address}{path}" + (f"?{PARAMETER}={self.token}" if self.token else "")

    def keep(self, folder: Path) -> None:
        """Only if there is a token to keep. The file is its owner's alone, and whole from its first moment."""
        if self.token:
            write_text(_file(folder, self.address), f"{self.page()}\n")

    def forget(self, folder: Path) -> None:
        """At the end. The file of a later console on the same port stays."""
        path = _file(folder, self.address)
        if self.token and read_text(path) == f"{self.page()}\n":
            os.unlink(path)


def token_of(state: Path, address: str) -> str:
    """The token of this user's console at just this address; empty if there is none.

    A console is never asked under another name: `localhost` may be another user's program, on `::1`.
    """
    link = urlsplit((read_text(_file(state / "console", address)) or "").strip())
    asked = urlsplit(address)
    if (link.scheme, link.netloc) != (asked.scheme, asked.netloc):
        return ""
    return parse_qs(link.query).get(PARAMETER, [""])[0]


def _file(folder: Path, address: str) -> str:
    return str(folder / f"link-{urlsplit(address).port or 80}")
