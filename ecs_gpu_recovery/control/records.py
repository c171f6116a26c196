"""What the two sides do alike that have the records themselves: the embedded one and AWS. A console is served from it.

What people ask for is an event to the runtime, with their name. A person on AWS may have fewer rights than the
functions; then a question is asked another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import resolutions
from ..core.errors import BadRecord, NotFound, Refused
from ..core.events import NodeAsked, OrderFailed
from ..core.model import Entry, Job, JobStatus, Rank
from ..core.node.rules import ASKS
from ..core.node_record import Node
from ..core.policy import Policy
from ..engine.ports import Page, Store, each
from ..engine.reads import NodeChanges, Notice, Reads, TaskLine, stand_in
from ..engine.runtime import Runtime
from ..environment import training_environment
from ..slow_nodes import Hours, Slow, judge, ran
from . import permits
from .backend import Backend, LogSource, NotAllowed

if TYPE_CHECKING:
    from ..health.policy import Limits

LIVE = tuple(status for status in JobStatus if not status.final)
#: Of a state, so many jobs are looked at where all live ones can't be asked for at once.
MOST_BY_STATE = 200
#: Orders of so many records are looked at.
MOST_DUE = 300
#: With so many nodes of its gang one is compared on its page, where each costs a question.
MOST_COMPARED = 32
#: A record with an order to send waits for a moment before this.
SOME_DAY = timedelta(days=3650)


class RecordsBackend(Backend):
    """Safe for many threads."""

    remark = ""

    def __init__(self, store: Store, reads: Reads, runtime: Runtime) -> None:
        self._store, self._reads, self._runtime = store, reads, runtime

    # -- what each side does in its own way --------------------------------------------------------------------

    def warning(self) -> str:
        return ""

    def environment(self, job: Job, rank: Rank) -> dict[str, str]:
        """The variables that this side gives to a rank."""
        return training_environment(job, rank)

    def numbers(
        self, metrics: Sequence[str], nodes: Mapping[str, str], since: datetime, until: datetime
    ) -> Mapping[str, Mapping[str, Mapping[float, float]]] | None:
        """By metric and node, what a service beside the records keeps of nodes over time; None where there is none.

        `nodes` has the container instance of each.
        """
        return None

    def hours(self, nodes: Mapping[str, str], since: datetime, until: datetime) -> Hours:
        """What the GPUs of nodes did in each hour; `nodes` has the container instance of each."""
        return {}

    def plainly(self) -> AbstractContextManager[None]:
        """Errors inside leave as ours, in words that a person can act on."""
        return nullcontext()

    def _unknown(self, exc: NotFound, what: str, name: str) -> NotFound:
        return exc

    def _act(self, act: Callable[[], object], recorded: Callable[[], bool]) -> None:
        """Record it and send what follows."""
        act()

    @contextmanager
    def _about(self, what: str, name: str) -> Iterator[None]:
        with self.plainly():
            try:
                yield
            except NotFound as exc:
                told = self._unknown(exc, what, name)
                raise told from (None if told is exc else exc)

    # -- jobs --------------------------------------------------------------------------------------------------

    def job(self, job_id: str) -> Job:
        with self._about("job", job_id):
            return self._store.job(job_id)

    def jobs(self, status: JobStatus | None, limit: int, after: str) -> Page:
        with self.plainly():
            return self._store.jobs(status=status, limit=limit, after=after)

    def some_jobs(self, job_ids: Sequence[str]) -> Sequence[Job]:
        """Records by id; those that are gone, or can't be read, are left out: their own page says so."""
        if not job_ids:
            return []
        try:
            with self.plainly():
                return self._reads.some_jobs(job_ids)
        except NotAllowed:
            return self._one_by_one(job_ids)

    def _one_by_one(self, job_ids: Sequence[str]) -> Sequence[Job]:
        found = []
        for job_id in job_ids:
            try:
                found.append(self.job(job_id))
            except (NotFound, BadRecord):
                continue
        return found

    def live_jobs(self) -> Sequence[str]:
        """Jobs that have not ended. Who may not ask for them at once asks state by state."""
        try:
            with self.plainly():
                return self._store.live_jobs()
        except NotAllowed:
            return [line.id for status in LIVE for line in self.jobs(status, MOST_BY_STATE, "").jobs]

    def count_live(self) -> Mapping[JobStatus, int]:
        """How many jobs are in each state that is not final."""
        with self.plainly():
            return self._reads.job_counts(LIVE)

    def stop(self, job_id: str, *, why: str, by: str = "") -> Job:
        by, at = by or self.who(), self.now()
        with self._about("job", job_id):
            self._act(
                lambda: self._runtime.stop(job_id, by=by, why=why, at=at),
                lambda: (found := self._store.job(job_id)).status.final or found.ending is not None,
            )
            return self._store.job(job_id)

    # -- nodes -------------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        """All of them: one whose record can't be read says so in its place."""
        with self.plainly():
            found = self._store.nodes()
        shown = [*found, *(stand_in(exc, self.now()) for exc in found.bad)]
        return sorted(shown, key=lambda node: node.name) if found.bad else shown

    def node(self, name: str) -> Node:
        with self._about("node", name):
            return self._store.node(name)

    def changed_nodes(self, known: Mapping[str, int]) -> NodeChanges:
        """What differs from these versions, by name. One that can't be read says so in its place."""
        with self.plainly():
            found = self._reads.changed_nodes(known)
        shown = (*found.changed, *(stand_in(exc, self.now()) for exc in found.bad))
        return replace(found, changed=shown, bad=())

    def ask_node(self, name: str, ask: str, *, why: str, level: str = "quick", by: str = "") -> Node:
        if ask not in ASKS:
            raise NotFound(f"nodes can be asked to {', '.join(ASKS)}, not to {ask}")
        if lacks_reason(ask, why):
            raise Refused(f"give a reason: the next person who looks at {name} will ask for it")
        fact = NodeAsked(at=self.now(), node=name, ask=ask, by=by or self.who(), why=why, level=level)
        with self._about("node", name):
            self._act(
                lambda: self._runtime.handle_node(name, [fact]),
                lambda: self._store.node(name).updated_at >= fact.at,
            )
            return self._store.node(name)

    def slow_nodes(
        self, jobs: Sequence[Job], since: datetime, until: datetime, near: str = ""
    ) -> Sequence[Slow]:
        """One question for all gangs that are large enough to tell."""
        gangs = {job.id: ran(job, until, near, MOST_COMPARED if near else 0) for job in jobs}
        gangs = {name: gang for name, gang in gangs.items() if len(gang) >= self.limits.slow_gang}
        places = {
            rank.node: rank.instance
            for job in jobs
            for rank in job.ranks
            if any(last > since.timestamp() for _, last in gangs.get(job.id, {}).get(rank.node, ()))
        }
        hours = self.hours(places, since, until) if places else {}
        return [each for name, gang in gangs.items() for each in judge(name, gang, hours, self.limits)]

    @cached_property
    def limits(self) -> Limits:
        """By which nodes are compared."""
        from ..health import policy

        return policy.load().limits

    @property
    def policy(self) -> Policy:
        """How patient the control plane is."""
        return self._runtime.policy

    # -- permits -----------------------------------------------------------------------------------------------

    def fleet(self) -> permits.FleetView:
        with self.plainly():
            guard = permits.granted(self._runtime.permits).look()
        return permits.view(guard, self._runtime.policy, self.now())

    def ask_fleet(self, ask: str, *, name: str = "", why: str, by: str = "") -> permits.FleetView:
        by, at = by or self.who(), self.now()
        with self.plainly():
            old, guard = permits.ask(permits.granted(self._runtime.permits), ask, name, by=by, why=why, at=at)
        self._runtime.resolve(resolutions.answered(old, guard, asked=self.policy.repairs == "ask"))
        return permits.view(guard, self._runtime.policy, at)

    # -- reports -----------------------------------------------------------------------------------------------

    def reports(self, node: Node, most: int) -> Sequence[Mapping[str, Any]]:
        """The reports of the node's last checks, newest first, where they can be read."""
        return []

    # -- what was written and told -----------------------------------------------------------------------------

    def log_sources(self, job: Job) -> Sequence[LogSource]:
        return [LogSource(**asdict(task), path=self._log_path(task)) for task in self._reads.tasks(job)]

    def _log_path(self, task: TaskLine) -> Path | None:
        return None

    def earlier_entries(self, record: str) -> Sequence[Entry]:
        """Entries that no longer fit into the record, oldest first, where they are kept."""
        with self.plainly():
            return self._reads.earlier_entries(record)

    def notices(self, limit: int, after: str = "") -> Sequence[Notice]:
        with self.plainly():
            return self._reads.notices(limit, after)

    # -- orders ------------------------------------------------------------------------------------------------

    def waiting(self) -> tuple[Sequence[Node], Sequence[Job]]:
        """Nodes and jobs that may have orders which are not known to be carried out.

        They are in the index of what is due some day; so this costs a few reads, however many jobs there are.
        """
        some_day = self.now() + SOME_DAY
        try:
            with self.plainly():
                names = list(self._store.due_nodes(some_day))[:MOST_DUE]
                ids = self._store.due_jobs(some_day, MOST_DUE)
            nodes = each(self.node, names)[0] if len(names) <= 3 else self.nodes()
        except NotAllowed:
            nodes, ids = self.nodes(), self.live_jobs()[:MOST_DUE]
        return nodes, self.some_jobs(ids)

    def send_again(self, record: str, key: str, *, by: str) -> None:
        """Make a pending order due now, whatever its back-off. Orders are safe to send twice."""
        kind, _, name = record.partition("/")
        holder = self.job(name) if kind == "job" else self.node(name)
        if all(order.key != key for order in holder.outbox):
            raise NotFound(f"no such order is pending in {record}: it has been carried out meanwhile")
        past = self.now() - self._runtime.policy.backoff_most
        fact = OrderFailed(at=past, key=key, error=f"{by} asked to send it again")
        with self.plainly():
            if kind == "job":
                self._runtime.handle(name, [fact])
            else:
                self._runtime.handle_node(name, [fact])


def lacks_reason(ask: str, why: str) -> bool:
    """All that changes what a node does needs a reason; to examine it does not."""
    return ask != "check" and not why.strip()
