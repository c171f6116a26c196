"""A job while it is being decided on: the one place where a record changes.

`decide` opens a draft, a rule and the joint rules write on it, and `finish` closes it into a new, frozen record and
the orders that were added. Every move is checked against `edges` and leaves a line in the timeline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from .. import edges, keys
from ..effects import CheckNode, Effect, LabelNodes, Order, RebootNode, StartTask, StopTask
from ..errors import Bug
from ..exits import our_reason
from ..model import Ending, Entry, Job, JobStatus, NodeStatus, Rank, TaskStatus
from ..policy import Policy
from ..timeline import archive


@dataclass(frozen=True, slots=True)
class Step:
    """What was decided: the record as it shall be, and the orders that are new in it."""

    job: Job
    orders: tuple[Order, ...] = ()
    changed: bool = False


#: How many earlier tasks a record remembers over all ranks, each rank at least two and at most sixteen: of 1,024 ranks
#: and a hundred attempts it could not hold them all.
PAST_TASKS = 2048


class Draft:
    """Mutable only between the opening and `finish`; nobody outside `decide` ever holds one."""

    def __init__(self, job: Job, at: datetime, policy: Policy) -> None:
        self.at = at
        self.policy = policy
        self.status = job.status
        self.attempt = job.attempt
        self.ending = job.ending
        self.outcome = job.outcome
        self.preflight = job.preflight
        self.ranks = list(job.ranks)
        self._job = job
        self._outbox = {order.key: order for order in job.outbox}
        self._added: dict[str, None] = {}
        self._lines: list[Entry] = []

    @property
    def id(self) -> str:
        return self._job.id

    @property
    def spec_level(self) -> str:
        return self._job.spec.check_level

    @property
    def retries_left(self) -> bool:
        return self.attempt < self._job.max_retries

    @property
    def max_retries(self) -> int:
        return self._job.max_retries

    def cut(self, text: str) -> str:
        """As much of a text as a record of so many ranks can keep: a job of 256 nodes must fit into 400 KB."""
        return text[: max(100, min(1000, 32_000 // len(self.ranks)))]

    # -- ranks -------------------------------------------------------------------------------------------------

    def set(self, index: int, **changes: Any) -> Rank:
        """Change a rank."""
        old = self.ranks[index]
        if all(getattr(old, name) == value for name, value in changes.items()):
            return old
        new = replace(old, **changes)
        if (
            new.task_status is not old.task_status
            and (str(old.task_status or ""), str(new.task_status or "")) not in edges.TASK
        ):
            raise Bug(
                f"job {self.id} rank {index}: task {old.task_status} -> {new.task_status} is no move that exists"
            )
        self.ranks[index] = new
        return new

    def fresh(self, index: int, **changes: Any) -> None:
        """Forget the task and the examination of the last attempt."""
        blank: dict[str, Any] = {
            "task_id": "",
            "task_status": None,
            "start_try": 0,
            "spent": (),
            "exit": None,
            "exit_code": None,
            "exit_reason": "",
            "checks_spent": 0,
            "check_id": "",
            "verdict": None,
            "findings": "",
            "doubted": False,
            "rebooted": False,
            "anew": False,
            "deadline": None,
        }
        old = self.ranks[index]
        if old.task_id:
            most = max(2, min(16, PAST_TASKS // len(self.ranks)))
            blank["past_tasks"] = (*old.past_tasks, f"{old.task_attempt}/{old.task_id}")[-most:]
        self.ranks[index] = replace(old, **(blank | changes))

    def node(self, index: int, status: NodeStatus, why: str, evidence: str = "") -> None:
        """Move a node and say why."""
        rank = self.ranks[index]
        if rank.node_status is status:
            return
        if (rank.node_status.value, status.value) not in edges.NODE:
            raise Bug(
                f"job {self.id} node {rank.node}: {rank.node_status} -> {status} is no move that exists"
            )
        self.note(rank.node, rank.node_status.value, status.value, why, evidence)
        self.set(index, node_status=status)

    @property
    def finishing(self) -> bool:
        return any(rank.task_status is TaskStatus.COMPLETE for rank in self.ranks)

    def next_sign(self, rank: Rank) -> datetime | None:
        """By when a rank that was just seen to run must be seen again, or have ended.

        A gang ends together. So once a rank has finished, the others may not sink into silence. One look a minute
        must not be one write a minute: the time is renewed when half of it is over.
        """
        if not self.finishing:
            return None
        wait = self.policy.start_timeout
        renew = rank.deadline is None or rank.deadline - self.at < wait / 2
        return self.at + wait if renew else rank.deadline

    # -- the job -----------------------------------------------------------------------------------------------

    def move(self, status: JobStatus, why: str, evidence: str = "") -> None:
        if (self.status.value, status.value) not in edges.JOB:
            raise Bug(f"job {self.id}: {self.status} -> {status} is no move that exists")
        self.note("job", self.status.value, status.value, why, evidence)
        self.status = status

    def note(
        self,
        subject: str,
        before: str,
        after: str,
        why: str,
        evidence: str = "",
        at: datetime | None = None,
    ) -> None:
        """`at`: under another clock than the job's."""
        self._lines.append(
            Entry(
                at=at or self.at,
                subject=subject,
                before=before,
                after=after,
                why=why,
                evidence=evidence,
                attempt=self.attempt,
                policy=self.policy.version,
            )
        )

    def noted(self, at: datetime, subject: str, why: str, evidence: str) -> bool:
        """Whether the timeline says so already, for this very moment."""
        return any(
            (e.at, e.subject, e.why, e.evidence) == (at, subject, why, evidence) for e in self._job.timeline
        )

    def reported(self, why: str) -> list[Entry]:
        """What was noted for this reason in this attempt, as far as the timeline still holds it."""
        lines = (*self._job.timeline, *self._lines)
        return [entry for entry in lines if entry.why == why and entry.attempt == self.attempt]

    # -- orders ------------------------------------------------------------------------------------------------

    def order(self, effect: Effect, *, after: timedelta | None = None) -> None:
        """Put an order into the outbox. The process that commits it sends it at once, unless it shall wait."""
        if effect.key in self._outbox:
            return
        wait = self.policy.lease if after is None else after
        self._outbox[effect.key] = Order(effect=effect, due=self.at + wait, own=after is None and bool(wait))
        if after is None:
            self._added[effect.key] = None

    def pending(self, key: str) -> Order | None:
        return self._outbox.get(key)

    def drop(self, key: str) -> bool:
        self._added.pop(key, None)
        return self._outbox.pop(key, None) is not None

    def claim(self, key: str) -> None:
        """Whoever claims an order has a lease on it from now on, whatever time it was committed under."""
        order = self._outbox[key]
        wait = self.policy.lease or self.policy.backoff_first
        self._outbox[key] = replace(order, due=self.at + wait, tries=max(1, order.tries))

    def postpone(self, key: str, error: str) -> None:
        """Send it later; the wait grows with every try."""
        order = self._outbox[key]
        self._outbox[key] = replace(
            order, due=self.at + self.policy.backoff(order.tries), tries=order.tries + 1, error=error
        )
        self._added.pop(key, None)

    def start_key(self, rank: Rank) -> str:
        return keys.start(self.id, rank)

    def order_start(self, index: int, *, after: timedelta | None = None, keep_deadline: bool = False) -> None:
        rank = self.set(index, start_try=self.ranks[index].start_try + 1, task_attempt=self.attempt)
        if not keep_deadline or rank.deadline is None:
            self.set(index, deadline=self.at + self.policy.start_timeout)
        self.order(
            StartTask(
                key=self.start_key(rank),
                token=keys.start_token(self.id, rank),
                rank=index,
                attempt=self.attempt,
                node=rank.node,
            ),
            after=after,
        )

    def order_stop(self, index: int, why: str) -> None:
        """Stop a rank. A start that is still under way is withdrawn and, in case it got through, stopped by token."""
        rank = self.ranks[index]
        if rank.quiet:
            return
        self.drop(self.start_key(rank))
        self.set(index, deadline=self.at + self.policy.stop_timeout)
        run = rank.task_attempt
        self.order(
            StopTask(
                key=keys.stop(self.id, rank),
                node=rank.node,
                task_id=rank.task_id,
                token=keys.start_token(self.id, rank),
                reason=our_reason(self.id, run, why),
                rank=index,
                attempt=run,
            )
        )

    def order_ghost_stop(self, node: str, task_id: str) -> None:
        """A task that says it is ours, and that we don't want."""
        self.order(
            StopTask(
                key=keys.ghost_stop(self.id, task_id),
                node=node,
                task_id=task_id,
                token="",
                reason=our_reason(self.id, self.attempt, "not the task of this attempt"),
            )
        )

    def check_key(self, rank: Rank) -> str:
        return keys.check(self.id, rank)

    def order_check(self, index: int) -> None:
        """Examine a node. It has until its deadline to answer."""
        rank = self.set(
            index,
            check_try=self.ranks[index].check_try + 1,
            check_id="",
            deadline=self.at + self.policy.check_timeout,
        )
        self.order(
            CheckNode(
                key=self.check_key(rank),
                token=keys.token(self.check_key(rank)),
                node=rank.node,
                level=self.spec_level,
                rank=index,
                attempt=self.attempt,
                check_try=rank.check_try,
                idle=rank.anew,
            )
        )

    def withdraw_check(self, index: int, why: str) -> None:
        """The answer is not wanted any more: stop the check, whether or not it has begun."""
        rank = self.ranks[index]
        self.drop(self.check_key(rank))
        self.order(
            StopTask(
                key=keys.check_stop(self.check_key(rank)),
                node=rank.node,
                task_id=rank.check_id,
                token=keys.token(self.check_key(rank)),
                reason=our_reason(self.id, self.attempt, why),
            )
        )

    def reboot_key(self, rank: Rank) -> str:
        return keys.reboot(self.id, self.attempt, rank.index)

    def order_reboot(self, index: int) -> None:
        rank = self.set(index, rebooted=False, deadline=self.at + self.policy.reboot_timeout)
        self.order(RebootNode(key=self.reboot_key(rank), node=rank.node, attempt=self.attempt))

    # -- closing -----------------------------------------------------------------------------------------------

    def finish(self) -> Step:
        """Freeze. A draft that changed nothing gives back the very record it was opened with."""
        job = self._job
        version = job.version + 1
        self._label(version)
        timeline = self._trim((*job.timeline, *self._lines), version)
        changes: dict[str, Any] = {
            "status": self.status,
            "attempt": self.attempt,
            "ending": self.ending,
            "outcome": self.outcome,
            "preflight": self.preflight,
            "ranks": tuple(self.ranks),
            "outbox": tuple(self._outbox.values()),
            "timeline": timeline,
        }
        if all(getattr(job, name) == value for name, value in changes.items()):
            return Step(job)
        new = replace(job, **changes, updated_at=max(self.at, job.updated_at), version=version)
        return Step(new, tuple(self._outbox[key] for key in self._added), changed=True)

    def _label(self, version: int) -> None:
        """One order shows all that is not known to be shown yet, as the record says it when the order is sent."""
        moved = [
            new.node
            for old, new in zip(self._job.ranks, self.ranks, strict=True)
            if (old.node_status, old.instance) != (new.node_status, new.instance)
        ]
        if not moved or not self.policy.labels:
            return
        waiting = [o.effect for o in self._outbox.values() if isinstance(o.effect, LabelNodes)]
        for effect in waiting:
            self.drop(effect.key)
        names = dict.fromkeys([*(name for effect in waiting for name in effect.nodes), *moved])
        self.order(LabelNodes(key=keys.labels(self.id, version), nodes=tuple(names)))

    def _trim(self, timeline: tuple[Entry, ...], version: int) -> tuple[Entry, ...]:
        """Half of it goes at once, so that a busy job archives now and then, not with every step.

        The job's own moves stay longest: where its time went is read from them, and a job of many nodes
        would push them out with its first start.
        """
        limit = self.policy.timeline_limit
        if len(timeline) <= limit:
            return timeline
        extra = len(timeline) - limit // 2
        moves = [i for i, e in enumerate(timeline[:extra]) if e.subject == "job" and e.before != e.after]
        kept = set(moves[max(0, len(moves) - limit // 4) :])
        gone = [e for i, e in enumerate(timeline[:extra]) if i not in kept]
        self.order(archive(keys.archive(self.id, version), gone))
        return tuple(e for i, e in enumerate(timeline) if i >= extra or i in kept)


def end(draft: Draft, status: JobStatus, why: str, *, by: str = "", firm: bool = True) -> None:
    """The job is going to end so, once its tasks have stopped. What was decided first stands, if it was firm."""
    if draft.ending is not None and (draft.ending.firm or not firm):
        return
    draft.ending = Ending(status=status, why=why, by=by, firm=firm)
    for rank in list(draft.ranks):
        draft.order_stop(rank.index, why)
        if (
            rank.check_try
            and rank.verdict is None
            and rank.deadline is not None
            and (rank.ended or draft.preflight)
        ):
            draft.withdraw_check(rank.index, why)
