"""A search through one log: in blocks, from a position on, and never for longer than its limits allow.

A thread can't be ended from outside, so the search asks by itself whether it shall go on, after every block.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

BLOCK = 256 * 1024
LONGEST_TEXT = 1000
#: Kept of a line without an end, so that a text is found that lies across two blocks of it.
_OVERLAP = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    """What one request may take; the next goes on where it stopped."""

    most_bytes: int = 64 << 20
    seconds: float = 5.0
    hits: int = 500


@dataclass(slots=True)
class Search:
    """Lines after line `after` that hold a text, upper or lower case. `offset` is where that line ends, if known."""

    needle: str
    after: int = 0
    offset: int = 0
    limits: SearchLimits = field(default_factory=SearchLimits)
    hits: list[dict[str, Any]] = field(default_factory=list, init=False)
    _line: int = field(default=0, init=False)  #: how many lines lie before `_place`
    _place: int = field(default=0, init=False)

    def run(
        self, size: int, read: Callable[[int, int], bytes], stopped: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """What was found, and which limit ended it: `hits`, `bytes`, `time`, or none."""
        ends = time.monotonic() + self.limits.seconds
        self._line, self._place = self.after if self.offset else 0, self.offset
        last = min(size, self.offset + self.limits.most_bytes)
        at, rest, limit = self.offset, b"", ""
        while not limit and at < last and (data := read(at, min(BLOCK, last - at))):
            at += len(data)
            rest = self._take(at, rest + data)
            if len(self.hits) >= self.limits.hits:
                limit = "hits"
            elif at < size and (stopped() or time.monotonic() >= ends):
                limit = "time"
        if not limit and last < size:
            limit = "bytes"
        if not limit:
            self._look(rest)
        elif self._place == self.offset:  # a line longer than the limit: go on within it
            self._look(rest)
            self._place = at
        return {
            "hits": self.hits,
            "more": bool(limit),
            "limit": limit,
            "next": self._line if limit else 0,
            "offset": self._place if limit else 0,
            "size": size,
        }

    def _take(self, at: int, chunk: bytes) -> bytes:
        """Look at the whole lines of what ends at `at`; gives the begun one back."""
        self._place = at - len(chunk)
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._look(line)
            self._line += 1
            self._place += len(line) + 1
            if len(self.hits) >= self.limits.hits:
                return b""
        if len(rest) < BLOCK:
            return rest
        self._look(rest)  # a line without an end is looked at in pieces
        return rest[-_OVERLAP:]

    def _look(self, line: bytes) -> None:
        number = self._line + 1
        if number <= self.after or (self.hits and self.hits[-1]["line"] == number):
            return
        text = line.decode(errors="replace")
        at = text.lower().find(self.needle.lower())
        if at >= 0:
            begin = max(0, at + len(self.needle) - LONGEST_TEXT)
            self.hits.append({"line": number, "text": text[begin : begin + LONGEST_TEXT]})
