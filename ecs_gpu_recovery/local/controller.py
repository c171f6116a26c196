"""The embedded control plane: one process that watches the nodes and keeps the records moving.

It may be killed at any moment. Nodes and tasks live on without it; the next controller finds them by their
folders, sends what was committed and not yet sent, and goes on.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import NotFound, RecoveryError, Refused, Transient
from ..core.node_record import Node
from ..core.policy import Policy
from ..engine.idle_checks import IdleChecks
from ..engine.sweeper import Report
from ..own_folder import own_folder
from . import wiring
from .bad_files import BadFiles
from .cluster import SHUT_DOWN, Cluster
from .files import DamagedFile, try_lock
from .processes import Unkillable
from .pulses import NodePulses
from .views import NodeView

log = logging.getLogger("ecs_gpu_recovery")
LOCK = "controller.lock"
POLL_S = 0.1
#: How long to rest when something did not answer: the log shall tell it once a second, not all the time.
PAUSE_S = 1.0
#: A command that asks who the controller is touches the lock for an instant. That is no second controller.
LOCK_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWish:
    """A node the controller shall have."""

    name: str
    gpus: int = 2
    kind: str = "simulated"
    boot_seconds: float = 2.0


@dataclass(slots=True)
class Looks:
    """How many looks there were, and how long they took. Written by one thread, read by another."""

    count: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.count, self.seconds = self.count + 1, self.seconds + seconds
        self.slowest_s = max(self.slowest_s, seconds)

    def take_slowest(self) -> float:
        """The slowest since the last call."""
        slowest, self.slowest_s = self.slowest_s, 0.0
        return slowest


class Controller:
    """Use it as a context manager: it holds the state folder's lock from entry to exit."""

    def __init__(
        self,
        state: Path,
        *,
        nodes: Sequence[NodeWish] = (),
        policy: Policy | None = None,
        poll_s: float = POLL_S,
        idle_checks: IdleChecks | None = None,
    ) -> None:
        self._idle_checks = idle_checks
        self._bad_files = BadFiles()
        self._state, self._wishes, self._policy, self._poll_s = Path(state), tuple(nodes), policy, poll_s
        self._lock: int | None = None
        self._pulses: NodePulses | None = None
        self._parts: wiring.Embedded | None = None
        self.looks = Looks()

    @property
    def parts(self) -> wiring.Embedded:
        if self._parts is None:
            raise Refused("the controller is not running")
        return self._parts

    def __enter__(self) -> Controller:
        try:
            self._lock = take_lock(self._state)
            self._parts = wiring.build(self._state, policy=self._policy, controller=True)
            self._parts.clock.keep(self._parts.store.waits, self._parts.store.live_jobs)
            self._bring_up()
            self._sweep(resume=True)
        except OSError as exc:
            self._let_go()
            raise unusable(self._state, exc) from exc
        except BaseException:
            self._let_go()
            raise
        return self

    def _bring_up(self) -> None:
        """The nodes that are there, and those that are wished for. A wish that does not fit refuses all."""
        known = {view.name: view for view in self.parts.cluster.nodes()}
        for wish in self._wishes:
            view = known.get(wish.name)
            if view is None or view.damaged:
                continue
            if (wish.gpus, wish.kind) != (view.gpus_expected, view.kind):
                raise Refused(
                    f"{wish.name} is there already, {view.kind} with {view.gpus_expected} GPUs; you asked for"
                    f" {wish.kind} with {wish.gpus}: leave that option out, or choose another --state"
                )
        for wish in self._wishes:
            if wish.name not in known:
                self.parts.cluster.create(
                    wish.name, wish.gpus, boot_seconds=wish.boot_seconds, kind=wish.kind
                )
        for view in self.parts.cluster.nodes():
            try:
                self._add(view)
            except DamagedFile as exc:
                log.error("a node cannot be powered on", extra={"node": view.name, "why": str(exc)})
        self.parts.cluster.tend()

    def _add(self, view: NodeView) -> None:
        if view.damaged:  # it does not tell what it is; if it was here before, the store does
            return
        at = self.parts.clock.now()
        self.parts.store.add_node(
            Node(
                name=view.name,
                cluster=wiring.CLUSTER,
                instance=view.name,
                gpus=view.gpus_expected,
                ip="127.0.0.1",
                salt=secrets.token_hex(8),
                kind=view.alike,
                fresh=True,
                created_at=at,
                updated_at=at,
            )
        )
        if view.boot_id is None or view.why_off in (None, SHUT_DOWN):  # a lost node stays lost
            self.parts.cluster.power_on(view.name)

    def step(self) -> Report:
        """One look at everything."""
        began = time.monotonic()
        self._bad_files.look(self.parts, self.parts.cluster.tend())
        self.parts.clock.keep(self.parts.store.waits, self.parts.store.live_jobs)
        self._feel_pulses()
        report = self._sweep()
        if self._idle_checks is not None:
            self._idle_checks.look(self.parts.runtime, self.parts.clock.now())
        self.looks.add(time.monotonic() - began)
        return report

    def _feel_pulses(self) -> None:
        """What the GPUs of the nodes do goes into their own records, as it does on AWS."""
        if self._pulses is None:
            self._pulses = NodePulses(self.parts.policy.hang_after)
        for fact in self._pulses.look(self.parts.cluster.nodes, self.parts.clock.now()):
            try:
                self.parts.runtime.handle_node(fact.node, [fact])
            except NotFound:  # a folder that was put there by hand
                continue

    def _sweep(self, *, resume: bool = False) -> Report:
        """A record in trouble is named by the sweeper, and stops nothing."""
        return self.parts.sweeper.sweep(self.parts.clock.now(), resume=resume)

    def run(self, stop: threading.Event) -> None:
        """Look again and again until told to stop. A full disk or a busy database is waited out."""
        said = ""
        while not stop.is_set():
            try:
                report = self.step()
                said = ""
                if report.unanswered:
                    stop.wait(PAUSE_S)
            except (Transient, OSError, Unkillable) as exc:
                if str(exc) != said:
                    log.warning("waiting", extra={"why": str(exc)})
                said = str(exc)
                stop.wait(PAUSE_S)
            stop.wait(self._poll_s)

    def __exit__(self, *exc: object) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if self._pulses is not None:
            self._pulses.close()
            self._pulses = None
        if self._parts is not None:
            self._parts.close()
            self._parts = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def take_lock(state: Path) -> int:
    """Two controllers on one state would both send; the second is told who the first is."""
    own_folder(state)
    path = state / LOCK
    lock = try_lock(str(path), LOCK_PATIENCE_S)
    if lock is None:
        holder = path.read_bytes()[:20].decode(errors="replace") or "unknown"
        raise Refused(
            f"another controller (pid {holder}) already runs on {state}:"
            " use that one, stop it, or choose another --state"
        )
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except BaseException:
        os.close(lock)
        raise
    return lock


def unusable(state: Path, exc: OSError) -> RecoveryError:
    """A full disk may get room again; anything else about the folder is for a person to change."""
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return Transient(f"the disk of {state} is full: free some space and try again")
    return Refused(f"{state} cannot be used as a state folder ({exc}): choose another with --state")


def known_nodes(state: Path) -> list[NodeView]:
    """The nodes below a state folder, without making one."""
    try:
        return Cluster(state).nodes() if (state / "nodes").is_dir() else []
    except OSError as exc:
        raise unusable(state, exc) from exc


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
