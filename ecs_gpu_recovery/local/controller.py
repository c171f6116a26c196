"""The embedded control plane: one process that watches the nodes and keeps the records moving.

It may be killed at any moment. Nodes and tasks live on without it; the next controller finds them by their folders,
sends what was committed and not yet sent, and goes on.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from ..core.errors import Refused, Transient
from ..core.model import Node, NodeStatus
from ..core.policy import Policy
from . import wiring
from .cluster import SHUT_DOWN

log = logging.getLogger("ecs_gpu_recovery")
LOCK = "controller.lock"
POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWish:
    """A node the controller shall have."""

    name: str
    gpus: int = 2
    kind: str = "simulated"
    boot_seconds: float = 2.0


class Controller:
    """Use it as a context manager: it holds the state folder's lock from entry to exit."""

    def __init__(self, state: Path, *, nodes: Sequence[NodeWish] = (), policy: Policy | None = None, poll_s: float = POLL_S) -> None:
        self._state, self._wishes, self._policy, self._poll_s = Path(state), tuple(nodes), policy, poll_s
        self._lock: IO[str] | None = None
        self._parts: wiring.Embedded | None = None

    @property
    def parts(self) -> wiring.Embedded:
        if self._parts is None:
            raise Refused("the controller is not running")
        return self._parts

    def __enter__(self) -> Controller:
        self._state.mkdir(parents=True, exist_ok=True)
        self._lock = take_lock(self._state)
        try:
            self._parts = wiring.build(self._state, policy=self._policy, controller=True)
            for wish in self._wishes:
                self._add(wish)
            self.parts.cluster.tend()
            self.parts.sweeper.sweep(wiring.now(), resume=True)
        except BaseException:
            self._let_go()
            raise
        return self

    def _add(self, wish: NodeWish) -> None:
        at = wiring.now()
        self.parts.cluster.create(wish.name, wish.gpus, boot_seconds=wish.boot_seconds, kind=wish.kind)
        self.parts.store.add_node(Node(name=wish.name, cluster=wiring.CLUSTER, instance=wish.name, status=NodeStatus.UNKNOWN,
                                       gpus=wish.gpus, ip="127.0.0.1", created_at=at, updated_at=at))  # fmt: skip
        view = self.parts.cluster.node(wish.name)
        if view.boot_id is None or view.why_off in (None, SHUT_DOWN):  # a lost node stays lost
            self.parts.cluster.power_on(wish.name)

    def step(self) -> None:
        """One look at everything."""
        self.parts.cluster.tend()
        self.parts.sweeper.sweep(wiring.now())

    def run(self, stop: threading.Event) -> None:
        """Look again and again until told to stop. A full disk or a busy database is waited out."""
        while not stop.is_set():
            try:
                self.step()
            except Transient as exc:
                log.warning("waiting", extra={"why": str(exc)})
                stop.wait(1.0)
            stop.wait(self._poll_s)

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if self._parts is not None:
            self._parts.close()
            self._parts = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def take_lock(state: Path) -> IO[str]:
    """Two controllers on one state would both send; the second is told who the first is."""
    lock = open(state / LOCK, "a+")  # noqa: SIM115 (held as long as the controller lives)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise Refused(f"another controller (pid {holder}) already runs on {state}: use that one, stop it, or choose another --state") from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def running_pid(state: Path) -> int | None:
    """The pid of the controller on this state, if one lives."""
    path = state / LOCK
    if not path.exists():
        return None
    with open(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            text = lock.read().strip()
            return int(text) if text.isdigit() else 0
    return None
