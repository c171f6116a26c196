"""Bytes between nodes with plain TCP: once around a ring, and an exchange between two. Standard library only.

Around the ring goes every node's part, as in the second half of an all-reduce; nothing is added up, because
Python would measure its own arithmetic then. Every node's bytes are known beforehand, so what arrives altered
is noticed. Every send, receive, connect and accept has the step's deadline; a node that fails closes its
connections, so the others fail at once instead of waiting for theirs.
"""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

_BLOCK = 4096
_PIECE = 1 << 18
_HELLO = 64

Data = bytes | bytearray


class LinkError(Exception):
    """A transfer that did not come to its end; the text says with whom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this node stands: its listener, and where the others listen."""

    rank: int
    listener: socket.socket
    addresses: Mapping[int, tuple[str, int]]
    bytes_per_s: float | None = None
    """A simulated node with a slow network sends no faster than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One transfer: its name (so that latecomers of another step are sent away), its size, its deadline."""

    name: str
    size: int
    repeats: int
    until: float
    """On the monotonic clock."""


def listen(port: int = 0) -> socket.socket:
    """On every address, IPv6 too where the machine has it."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # a machine with IPv6 switched off; a port in use is refused once more below
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
    return socket.create_server(("", port), backlog=512)


def ring(place: Place, ranks: Sequence[int], step: Step) -> float:
    """Everybody's part to everybody; the seconds of the best repeat."""
    here, count = ranks.index(place.rank), len(ranks)
    after, before = ranks[(here + 1) % count], ranks[here - 1]
    wanted = [_part(rank, count, step.size) for rank in ranks]
    with ExitStack() as stack:
        out = stack.enter_context(_connect(place, after, step))
        came = stack.enter_context(_accept(place, before, step))
        best = float("inf")
        for _ in range(step.repeats):
            parts: list[Data] = [wanted[here]]
            began = time.monotonic()
            for _ in range(count - 1):
                parts.append(_both(place, (out, came), parts[-1], (before, after), step))
            best = min(best, time.monotonic() - began)
            if any(part != wanted[here - turn] for turn, part in enumerate(parts)):
                raise LinkError("data was altered on its way around")
        return best


def ring_bytes(nodes: int, size: int) -> int:
    """What each link of the ring carries."""
    return (nodes - 1) * len(_part(0, nodes, size))


def exchange(place: Place, other: int, step: Step) -> float:
    """Both send to each other at the same time; the seconds of the best repeat."""
    first = place.rank < other
    with _accept(place, other, step) if first else _connect(place, other, step) as link:
        mine, theirs = (_pattern(rank) * (step.size // _BLOCK) for rank in (place.rank, other))
        best = float("inf")
        for _ in range(step.repeats):
            began = time.monotonic()
            got = _both(place, (link, link), mine, (other, other), step)
            best = min(best, time.monotonic() - began)
            if got != theirs:
                raise LinkError(f"what rank {other} sent arrived altered")
        return best


def _both(
    place: Place, links: tuple[socket.socket, socket.socket], data: Data, names: tuple[int, int], step: Step
) -> bytearray:
    """Send and receive the same amount at once, so that neither waits for the other."""
    failed: list[Exception] = []

    def send() -> None:
        try:
            _send(links[0], data, step, place.bytes_per_s)
        except OSError as error:
            failed.append(error)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        got = _receive(links[1], len(data), step)
    except OSError as error:
        raise LinkError(f"nothing more from rank {names[0]}: {_said(error)}") from error
    finally:
        sender.join(max(0.0, step.until - time.monotonic()) + 1)
    if failed:
        raise LinkError(f"rank {names[1]} takes nothing more: {_said(failed[0])}") from failed[0]
    return got


def _send(link: socket.socket, data: Data, step: Step, bytes_per_s: float | None) -> None:
    view = memoryview(data)
    while view:
        link.settimeout(_left(step))
        count = link.send(view[:_PIECE])
        view = view[count:]
        if bytes_per_s:
            time.sleep(min(count / bytes_per_s, _left(step)))


def _receive(link: socket.socket, count: int, step: Step) -> bytearray:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        link.settimeout(_left(step))
        got = link.recv_into(view)
        if not got:
            raise ConnectionResetError("the connection was closed")
        view = view[got:]
    return data


def _connect(place: Place, other: int, step: Step) -> socket.socket:
    try:
        link = socket.create_connection(place.addresses[other], timeout=_left(step))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.sendall(f"{step.name} {place.rank}".encode().ljust(_HELLO))
    except OSError as error:
        raise LinkError(f"rank {other} cannot be reached: {_said(error)}") from error
    return link


def _accept(place: Place, other: int, step: Step) -> socket.socket:
    """The connection of that rank for that step. Others are left over from an earlier step, or strangers."""
    wanted = f"{step.name} {other}".encode().ljust(_HELLO)
    while True:
        try:
            place.listener.settimeout(_left(step))
            link, _ = place.listener.accept()
        except OSError as error:
            raise LinkError(f"rank {other} did not connect: {_said(error)}") from error
        try:
            link.settimeout(min(5.0, _left(step)))
            hello = link.recv(_HELLO, socket.MSG_WAITALL)
        except OSError:
            hello = b""
        if hello == wanted:
            return link
        link.close()


def _left(step: Step) -> float:
    """Never zero: that would mean "don't wait", which is another error than "too late"."""
    left = step.until - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    return left


def _said(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer before the deadline"
    return str(getattr(error, "strerror", None) or error)


def _pattern(rank: int) -> bytes:
    return hashlib.shake_128(b"rank %d" % rank).digest(_BLOCK)


def _part(rank: int, count: int, size: int) -> bytes:
    """A node's part of the data, in whole blocks."""
    return _pattern(rank) * max(1, size // count // _BLOCK)
