"""What the nodes' kernel logs say about GPUs, told while it happens and not first after a task has died.

The control plane reads along in every node's log, by the rules of `gpu-health watch`. What it finds is evidence for
the timeline of the job that uses the node, and a reason to examine a free one. The verdict is the health check's.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from ..core.events import FAULT, GRAVE, PROGRAM_FAULT, FaultSeen
from ..core.model import Entry
from ..health import policy
from ..health.sources.follow import FileFollower, KernelFollower
from ..health.sources.machine import booted_at
from ..health.watch.sinks import Event
from ..health.watch.watcher import Watch
from .views import NodeView

log = logging.getLogger("ecs_gpu_recovery")
#: So many faults of a node are kept; older ones are in its log.
_KEPT = 100
#: A real kernel counts seconds since its start, and when that was is known a little differently each time.
_JITTER = timedelta(seconds=2)


class FaultLog:
    """The faults of every node since its last boot. Kept in memory: the logs themselves are the record."""

    def __init__(self) -> None:
        self._rules = policy.load()
        self._nodes: dict[str, _Followed] = {}

    def news(
        self, view: NodeView, timeline: Sequence[Entry], since: datetime, *, this_boot: bool = False
    ) -> Iterator[FaultSeen]:
        """The faults of a node that a timeline does not tell yet; `since` is when its record began.

        A log is told in its order, so what is older than the last that was told is known, or was moved to the
        archive since. `this_boot`: what was before the last boot is settled, and not told any more.
        """
        followed = self._followed(view)
        if followed is None or not followed.read():
            return
        told = [e for e in timeline if e.subject == view.name and e.why in (FAULT, PROGRAM_FAULT)]
        known = {e.evidence for e in told}  # with the raw line, so no two faults have the same
        last = max((e.at for e in told), default=since + _JITTER) - _JITTER
        for event in followed.faults if not this_boot else followed.faults_of_this_boot:
            fact = _fact(view.name, event)
            if fact.at >= last and fact.evidence not in known:
                yield fact

    def _followed(self, view: NodeView) -> _Followed | None:
        """The log of this boot. What the last boot wrote before it ended is still taken."""
        known = self._nodes.get(view.name)
        if known is not None and known.boot_id == view.boot_id:
            return known
        if known is not None:
            known.read()
            known.close()
            del self._nodes[view.name]
        if view.boot_id is None:
            return None
        made = _Followed(view, self._rules, known.faults if known else [])
        self._nodes[view.name] = made
        return made

    def close(self) -> None:
        for followed in self._nodes.values():
            followed.close()
        self._nodes.clear()


class _Followed:
    """One node's log during one boot."""

    def __init__(self, view: NodeView, rules: policy.Policy, earlier: list[Event]) -> None:
        self.boot_id = view.boot_id
        self._earlier: deque[Event] = deque(earlier, maxlen=_KEPT)
        self.faults_of_this_boot: deque[Event] = deque(maxlen=_KEPT)
        real = view.kind == "real"
        self._watch = Watch(rules, view.name, view.boot_id, booted_at() if real else None)
        self._log: FileFollower | KernelFollower | None = None
        try:
            if real:
                self._log = KernelFollower(view.boot_id, None, from_start=True)
            else:
                self._log = FileFollower(view.folder / "kmsg", None, from_start=True)
        except OSError as exc:  # usually a right that this user lacks; the checks say so too
            log.info("kernel log not followed", extra={"node": view.name, "why": str(exc)})

    @property
    def faults(self) -> list[Event]:
        """With those that the last boots left behind: a job wants to know what its task died of."""
        return [*self._earlier, *self.faults_of_this_boot][-_KEPT:]

    def read(self) -> bool:
        """Take what is new; whether there is anything to tell."""
        if self._log is not None:
            for line in self._log.lines():
                self.faults_of_this_boot.extend(self._watch.take(line, self._log.name))
        return bool(self._earlier or self.faults_of_this_boot)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def _fact(node: str, event: Event) -> FaultSeen:
    line = str(event["evidence"])
    return FaultSeen(
        at=datetime.fromisoformat(str(event["at"])),
        node=node,
        evidence=f"{event['what']} | {line[:200]}",
        application=event["application"] is True,
        fatal=event["fatal"] is True,
        grave=event["action"] in GRAVE,
        boot_id=str(event["boot_id"] or ""),
    )
