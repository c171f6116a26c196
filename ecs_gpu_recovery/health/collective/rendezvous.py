"""How the nodes of a test find each other: rank 0 listens, every node reports there and waits for orders.

Orders and answers are lines of JSON. Rank 0 waits for no node longer than a deadline: one that does not come, hangs
up or falls silent is written down and left out of what follows.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

Message = dict[str, object]

_LONGEST_LINE = 1 << 22
_RETRY_S = 0.2
_HELLO_S = 10.0

ABSENT, DIED, SILENT, HERE = "absent", "died", "silent", "here"


class HungUp(ConnectionError):
    """The other side is gone."""


class Line:
    """One connection that carries JSON, a line at a time."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self._data = bytearray()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def fileno(self) -> int:
        return self.link.fileno()

    def send(self, message: Message, timeout_s: float = 10.0) -> None:
        self.link.settimeout(timeout_s)
        self.link.sendall(json.dumps(message).encode() + b"\n")

    def take(self) -> Message | None:
        """The next whole message that has already arrived, if any."""
        end = self._data.find(b"\n")
        if end < 0:
            return None
        line = bytes(self._data[:end])
        del self._data[: end + 1]
        try:
            message = json.loads(line)
        except ValueError as error:
            raise HungUp("something other than this program answers there") from error
        if not isinstance(message, dict):
            raise HungUp("something other than this program answers there")
        return message

    def read(self) -> None:
        """Once, whatever is there."""
        got = self.link.recv(1 << 16)
        if not got:
            raise HungUp("the connection was closed")
        self._data += got
        if len(self._data) > _LONGEST_LINE:
            raise HungUp("something other than this program answers there")

    def receive(self, timeout_s: float) -> Message:
        """Wait for one message; TimeoutError when none comes."""
        until = time.monotonic() + timeout_s
        while (message := self.take()) is None:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("no answer before the deadline")
            self.link.settimeout(left)
            self.read()
        return message

    def close(self) -> None:
        self.link.close()


@dataclass(slots=True, kw_only=True)
class Guest:
    """A node as rank 0 knows it."""

    rank: int
    name: str = ""
    address: str = ""
    port: int = 0
    gpus: int = 0
    nccl: bool = False
    state: str = ABSENT
    """absent, here, died (hung up) or silent (no answer in time)."""
    line: Line | None = None

    def to_json(self) -> Message:
        return {
            "rank": self.rank,
            "name": self.name or None,
            "address": self.address or None,
            "state": self.state,
            "gpus": self.gpus,
        }


@dataclass(slots=True)
class Hall:
    """Rank 0's view of all nodes."""

    listener: socket.socket
    guests: list[Guest]
    key: str
    master: str
    strangers: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    def welcome(self, timeout_s: float) -> None:
        """Until all are here, or the time is up."""
        until = time.monotonic() + timeout_s
        while any(guest.state == ABSENT for guest in self.guests) and time.monotonic() < until:
            self.listener.settimeout(max(0.01, until - time.monotonic()))
            try:
                link, peer = self.listener.accept()
            except TimeoutError:
                break
            self._meet(Line(link), str(peer[0]).removeprefix("::ffff:"))

    def _meet(self, line: Line, address: str) -> None:
        try:
            hello = line.receive(_HELLO_S)
            refusal = self._refusal(hello)
            if refusal:
                self.strangers.append(f"{address}: {refusal}")
                line.send({"do": "refused", "why": refusal})
                line.close()
                return
            guest = self.guests[int(str(hello["rank"]))]
            line.send({"do": "welcome"})
        except (OSError, ValueError) as error:
            self.strangers.append(f"{address}: {error}")
            line.close()
            return
        guest.name = str(hello.get("node") or address)
        guest.address = str(hello.get("address") or (self.master if guest.rank == 0 else address))
        guest.port = int(str(hello.get("port") or 0))
        guest.gpus, guest.nccl = int(str(hello.get("gpus") or 0)), bool(hello.get("nccl"))
        guest.line, guest.state = line, HERE
        self.lines.append(line)

    def _refusal(self, hello: Message) -> str:
        rank = hello.get("rank")
        if hello.get("key") != self.key:
            return f"it belongs to another job ({hello.get('key')!r}, not {self.key!r})"
        if not isinstance(rank, int) or not 0 <= rank < len(self.guests):
            return f"rank {rank!r} is none of 0 to {len(self.guests) - 1}"
        if self.guests[rank].state != ABSENT:
            return f"rank {rank} is here already"
        return ""

    def close(self) -> None:
        self.listener.close()
        for line in self.lines:
            line.close()

    def here(self) -> list[int]:
        return [guest.rank for guest in self.guests if guest.state == HERE]

    def order(self, orders: dict[int, Message], timeout_s: float) -> dict[int, Message]:
        """Send each its order and collect the answers. Who gives none is marked and missing in the result."""
        for rank, order in orders.items():
            self._tell(self.guests[rank], order)
        answers: dict[int, Message] = {}
        until = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as ready:
            for rank in orders:
                line = self.guests[rank].line
                if line is not None:
                    ready.register(line, selectors.EVENT_READ, self.guests[rank])
            while ready.get_map() and (left := until - time.monotonic()) > 0:
                for key, _ in ready.select(left):
                    guest: Guest = key.data
                    answer = self._heard(guest)
                    if answer is not None:
                        answers[guest.rank] = answer
                    if answer is not None or guest.line is None:
                        ready.unregister(key.fileobj)
            for key in list(ready.get_map().values()):
                self._lose(key.data, SILENT)
        return answers

    def tell(self, ranks: Iterable[int], message: Message) -> None:
        """No answer is expected."""
        for rank in ranks:
            self._tell(self.guests[rank], message)

    def _tell(self, guest: Guest, message: Message) -> None:
        if guest.line is not None:
            try:
                guest.line.send(message)
            except OSError:
                self._lose(guest, DIED)

    def _heard(self, guest: Guest) -> Message | None:
        if guest.line is None:
            return None
        try:
            guest.line.link.settimeout(1.0)
            guest.line.read()
            return guest.line.take()
        except TimeoutError:
            return None
        except OSError:
            self._lose(guest, DIED)
            return None

    def _lose(self, guest: Guest, state: str) -> None:
        """The connection stays open for the selector's sake until the end of the test."""
        guest.state, guest.line = state, None


def report_to(master: str, port: int, hello: Message, timeout_s: float) -> Line:
    """Knock until rank 0 opens. It may start later than the others; raises OSError when it never comes."""
    until = time.monotonic() + timeout_s
    while True:
        left = until - time.monotonic()
        line = None
        try:
            line = Line(socket.create_connection((master, port), timeout=max(0.1, min(5.0, left))))
            line.send(hello)
            answer = line.receive(max(1.0, min(left, _HELLO_S * 2)))
        except OSError:
            if line is not None:
                line.close()
            if left <= 0:
                raise
            time.sleep(_RETRY_S)
            continue
        if answer.get("do") == "welcome":
            return line
        line.close()
        raise HungUp(f"rank 0 refused us: {answer.get('why')}")
