"""A job while it is being decided on: the one place where a job's record changes.

Every move is checked against `edges` and leaves a line in the timeline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from .. import edges, examination, keys
from ..draft import RecordDraft
from ..effects import CheckNode, Effect, Order, RebootNode, StartTask, StopTask
from ..errors import Bug
from ..events import Origin
from ..exits import our_reason
from ..model import Ending, Job, JobSpec, JobStatus, NodeStatus, Rank, TaskStatus
from ..policy import PROGRESS, Policy


@dataclass(frozen=True, slots=True)
class Step:
    """What was decided: the record as it shall be, and the orders that are new in it."""

    job: Job
    orders: tuple[Order, ...] = ()
    changed: bool = False


#: How many earlier tasks a record remembers over all ranks, each rank at least two and at most sixteen: of 1,024 ranks
#: and a hundred attempts it could not hold them all.
PAST_TASKS = 2048
#: So many stops of tasks that nobody wants wait to be sent, beside one for each rank.
GHOSTS = 32
#: Of how many ranks the record keeps the last words: the others of a large gang say the same.
SPEAKERS = 8


class Draft(RecordDraft):
    """A job's. Its ranks stand in the order of their numbers."""

    def __init__(self, job: Job, at: datetime, policy: Policy, now: datetime | None = None) -> None:
        super().__init__(job, at, policy, now)
        self.status = job.status
        self.attempt = job.attempt
        self.salt = job.salt
        self.ending = job.ending
        self.outcome = job.outcome
        self.preflight, self.planned, self.room = job.preflight, job.planned, job.room
        self.budget, self.marker = job.spent, job.marker
        self.waiting_since, self.wait_told, self.look_at = job.waiting_since, job.wait_told, job.look_at
        #: Whether a node is left for each rank that must leave its own, and ranks for which none is. Both are said by a
        #: look at the fleet, and hold for this step only.
        self.hope: bool | None = None
        self.hopeless: set[int] = set()
        #: Ranks that could leave their nodes, but have nowhere to go: they may stay.
        self.stays: set[int] = set()
        self.ranks = list(job.ranks)
        self._job = job
        for order in job.outbox:  # of an older release: its node is handed over instead, under the same key
            if isinstance(order.effect, RebootNode):
                self.drop(order.key)

    @property
    def id(self) -> str:
        return self._job.id

    @property
    def standing(self) -> str:
        return self.status

    @property
    def answers_wanted(self) -> bool:
        return self.ending is None

    @property
    def spec(self) -> JobSpec:
        return self._job.spec

    @property
    def max_retries(self) -> int:
        return self._job.max_retries

    @property
    def created_at(self) -> datetime:
        return self._job.created_at

    @property
    def restarts_when_healthy(self) -> bool:
        return self._job.restart_when_healthy == PROGRESS

    @property
    def recovers_hangs(self) -> bool:
        """Where another tool wrote the job, nobody has agreed to have it stopped while it runs."""
        return self.policy.on_hang == "recover" and not self._job.spec.adopted

    def cut(self, text: str) -> str:
        """As much of a text as a record of so many ranks can keep: a job of 256 nodes must fit into 400 KB."""
        return text[: max(100, min(1000, 32_000 // len(self.ranks)))]

    # -- ranks -------------------------------------------------------------------------------------------------

    def machine(self, index: int = 0) -> Rank:
        return self.ranks[index]

    def node_of(self, index: int = 0) -> tuple[str, NodeStatus]:
        return self.ranks[index].node, self.ranks[index].node_status

    def may_be_examined(self, index: int = 0) -> bool:
        return self.ranks[index].quiet

    def set(self, index: int = 0, /, **changes: Any) -> Rank:
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
            "overheard": False,
            "spent": (),
            "exit": None,
            "exit_code": None,
            "exit_reason": "",
            "last_words": "",
            "echo": False,
            "checks_spent": 0,
            "check_id": "",
            "verdict": None,
            "findings": "",
            "doubted": False,
            "frozen_at": None,
            "stuck": False,
            "anew": False,
            "hung": False,
            "suspect": False,
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
        self.note(rank.node, rank.node_status.value, status.value, why, evidence, retold=bool(rank.handed))
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
        renew = rank.deadline is None or rank.deadline - self.now < wait / 2
        return self.now + wait if renew else rank.deadline

    # -- the job -----------------------------------------------------------------------------------------------

    def move(self, status: JobStatus, why: str, evidence: str = "") -> None:
        if (self.status.value, status.value) not in edges.JOB:
            raise Bug(f"job {self.id}: {self.status} -> {status} is no move that exists")
        self.note("job", self.status.value, status.value, why, evidence)
        self.status = status
        self.planned = self.room = False
        self.waiting_since, self.wait_told, self.look_at = None, False, None

    # -- orders ------------------------------------------------------------------------------------------------

    def expects(self, rank: Rank, origin: Origin | None) -> bool:
        """Whether a task of this origin is the one that was ordered for a rank."""
        if origin is None:
            return True
        ours = origin.has_token(keys.start_token(self.id, rank, self.salt))
        return ours and origin.is_on(rank.instance) and origin.is_of(self._job.spec.family)

    def start_key(self, rank: Rank) -> str:
        return keys.start(self.id, rank)

    def order_start(self, index: int, *, after: timedelta | None = None, keep_deadline: bool = False) -> None:
        rank = self.set(index, start_try=self.ranks[index].start_try + 1, task_attempt=self.attempt)
        if not keep_deadline or rank.deadline is None:
            self.set(index, deadline=self.now + self.policy.start_timeout)
        self.order(
            StartTask(
                key=self.start_key(rank),
                token=keys.start_token(self.id, rank, self.salt),
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
        self.set(index, deadline=self.now + self.policy.stop_timeout)
        run = rank.task_attempt
        self.order(
            StopTask(
                key=keys.stop(self.id, rank),
                node=rank.node,
                task_id=rank.task_id,
                token=keys.start_token(self.id, rank, self.salt),
                reason=our_reason(self.id, run, why),
                rank=index,
                attempt=run,
                instance=rank.instance,
            )
        )

    def order_ghost_stop(self, node: str, task_id: str) -> None:
        """A task that says it is ours, and that we don't want.

        A token can be read by others in the account: however many tasks carry one, the record stays small. A stop that
        was sent makes room for the next; those of a gang that is started twice always have it.
        """
        waiting = sum(order.key.startswith(keys.ghost_stop(self.id, "")) for order in self.orders)
        if waiting >= len(self.ranks) + GHOSTS:
            return
        self.order(
            StopTask(
                key=keys.ghost_stop(self.id, task_id),
                node=node,
                task_id=task_id,
                token="",
                reason=our_reason(self.id, self.attempt, "not the task of this attempt"),
            )
        )

    def wait_for(self, effect: Effect) -> None:
        rank = next((rank for rank in self.ranks if rank.node == getattr(effect, "node", "")), None)
        if rank is None:
            return
        if isinstance(effect, StopTask) and effect.key == keys.stop(self.id, rank) and not rank.ended:
            self.wait_longer(rank.index, self.policy.stop_timeout)

    def never_sent(self, rank: Rank) -> bool:
        """Whether what a rank waits for can't have begun, because the order for it was not sent.

        A start that is tried again keeps its deadline: it has been sent before.
        """
        orders = [keys.stop(self.id, rank), self.check_key(rank.index)]
        return self.unsent(*orders, *([] if rank.start_try > 1 else [self.start_key(rank)]))

    def check_key(self, index: int = 0) -> str:
        return keys.check(self.id, self.ranks[index])

    def check_order(self, index: int, level: str) -> CheckNode:
        rank, key = self.ranks[index], self.check_key(index)
        after = (self.status is JobStatus.PENDING_HEALTHCHECK and not self.preflight) or rank.suspect
        usual = self.policy.check_level_after if after else self.policy.check_level_before
        level = level or self._job.spec.check_level or usual
        return CheckNode(
            key=key,
            token=keys.token(key, self.salt),
            node=rank.node,
            level=examination.deeper(level) if rank.hung else level,
            rank=index,
            attempt=self.attempt,
            check_try=rank.check_try,
        )

    # -- closing -----------------------------------------------------------------------------------------------

    def finish(self) -> Step:
        """Freeze. A draft that changed nothing gives back the very record it was opened with."""
        job = self._job
        version = job.version + 1
        timeline = self.told(version)
        changes: dict[str, Any] = {
            "status": self.status,
            "attempt": self.attempt,
            "ending": self.ending,
            "outcome": self.outcome,
            "preflight": self.preflight,
            "planned": self.planned,
            "room": self.room,
            "budget": job.budget if self.budget == job.spent else self.budget,
            "marker": self.marker,
            "waiting_since": self.waiting_since,
            "wait_told": self.wait_told,
            "look_at": self.look_at,
            "ranks": tuple(self.ranks),
            "outbox": self.orders,
            "timeline": timeline,
        }
        if all(getattr(job, name) == value for name, value in changes.items()):
            return Step(job)
        new = replace(job, **changes, updated_at=max(self.at, job.updated_at), version=version)
        return Step(new, self.added, changed=True)


def end(draft: Draft, status: JobStatus, why: str, *, by: str = "", firm: bool = True) -> None:
    """The job is going to end so, once its tasks have stopped. What was decided first stands, if it was firm."""
    if draft.ending is not None and (draft.ending.firm or not firm):
        return
    draft.ending = Ending(status=status, why=why, by=by, firm=firm)
    draft.look_at = None
    for rank in list(draft.ranks):
        draft.order_stop(rank.index, why)
        asked = rank.check_try and rank.verdict is None and rank.deadline is not None
        if asked and rank.quiet:
            examination.withdraw(draft, rank.index, why)
