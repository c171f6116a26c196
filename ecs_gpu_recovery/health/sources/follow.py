"""Logs that grow, followed without missing a line or telling one twice.

A follower hands out the lines that are new and can say in a few words where it stands; given those words
after a restart, it goes on from there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

Position = dict[str, object]
KMSG = Path("/dev/kmsg")

_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 14
_RECORD = 8192
_HEAD = 256
"""Bytes by which a file is recognised. A number of an inode is soon given to another file."""


class FileFollower:
    """A log file that may be rotated, cut, or not there yet."""

    def __init__(self, path: Path, start: Mapping[str, object] | None, *, from_start: bool = False) -> None:
        """`start` is an earlier position. Without one, what is there already counts only if asked for."""
        self.name = str(path)
        self._path = path
        self._file = -1
        self._inode = 0
        self._offset = 0
        self._rest = b""
        self._head = b""
        self._open()
        if self._file >= 0 and not self._go_on(start) and not from_start and start is None:
            self._offset = os.fstat(self._file).st_size
        if self._file >= 0:
            self._head = os.pread(self._file, min(_HEAD, self._offset), 0)

    def _go_on(self, start: Mapping[str, object] | None) -> bool:
        """Where we left off, if it is still the same file. Another file is read from its beginning."""
        offset = (start or {}).get("offset")
        if start is None or start.get("inode") != self._inode or not isinstance(offset, int):
            return False
        head = os.pread(self._file, min(_HEAD, max(0, offset)), 0)
        same = 0 <= offset <= os.fstat(self._file).st_size and start.get("head") == _digest(head)
        self._offset = offset if same else 0
        return True

    def _open(self) -> None:
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        self._inode, self._offset, self._rest = os.fstat(self._file).st_ino, 0, b""
        self._head = b""

    def lines(self) -> Iterator[str]:
        """All whole lines that are new. After a rotation the old file's end comes first."""
        while True:
            if self._file < 0:
                self._open()
                if self._file < 0:
                    return
            yield from self._new_lines()
            if not self._rotated():
                return
            if self._rest:  # the writer will never finish this line
                yield self._rest.decode(errors="replace")
            self.close()

    def _new_lines(self) -> Iterator[str]:
        size = os.fstat(self._file).st_size
        if size < self._offset + len(self._rest) or os.pread(self._file, len(self._head), 0) != self._head:
            self._offset, self._rest, self._head = 0, b"", b""  # cut or written anew: all of it is new
        while chunk := os.pread(self._file, _CHUNK, self._offset + len(self._rest)):
            data = self._rest + chunk
            self._rest = b""
            *whole, rest = data.split(b"\n")
            for line in whole:
                self._offset += len(line) + 1
                yield line.decode(errors="replace")
            if len(rest) > _LONGEST_LINE:
                self._offset += len(rest)  # no line of a kernel log is that long
                rest = b""
            self._rest = rest
        if len(self._head) < _HEAD:
            self._head = os.pread(self._file, min(_HEAD, self._offset), 0)

    def _rotated(self) -> bool:
        try:
            return os.stat(self._path).st_ino != self._inode
        except FileNotFoundError:
            return False

    def position(self) -> Position:
        return {"inode": self._inode, "offset": self._offset, "head": _digest(self._head)}

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _digest(head: bytes) -> str:
    return hashlib.sha256(head).hexdigest()[:16]


class KernelFollower:
    """/dev/kmsg: one record per read, each with a number that counts up from boot."""

    def __init__(
        self,
        boot_id: str | None,
        start: Mapping[str, object] | None,
        *,
        from_start: bool = False,
        path: Path = KMSG,
    ) -> None:
        self.name = str(path)
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._boot_id = boot_id
        self._last = -1
        number = (start or {}).get("number")
        if start is not None and start.get("boot_id") == boot_id and isinstance(number, int):
            self._last = number
        elif start is None and not from_start:
            for _ in self.lines():
                continue  # what was there before us is for a check to find

    def lines(self) -> Iterator[str]:
        while True:
            try:
                record = os.read(self._file, _RECORD)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # records were overwritten before we came; the next read goes on behind them
            if not record:
                return
            line = record.decode(errors="replace").split("\n", 1)[0]
            number = line.split(",", 2)[1:2]
            if number and number[0].isdecimal():
                if int(number[0]) <= self._last:
                    continue
                self._last = int(number[0])
            yield line

    def position(self) -> Position:
        return {"boot_id": self._boot_id, "number": self._last}

    def close(self) -> None:
        os.close(self._file)
