"""Which task and node rows are behind the record of their job, so that only those have to be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.effects import Order, WriteRows
from ..core.model import Job, NodeStatus, Rank

#: No rank at all, where an empty list would mean every rank.
NOBODY = (-1,)


def rows_behind(old: Job, new: Job) -> tuple[int, ...]:
    """The ranks whose rows are not as the new record says: what changed now, and what was still to be written.

    An empty answer means all of them, looked at one by one: at the end, where a task is forgotten whose row may
    still call it running, and where a node's record has to follow its machine to another registration.
    """
    todo = [order.effect.ranks for order in old.outbox if isinstance(order.effect, WriteRows)]
    if () in todo or new.status.final:
        return ()
    waiting = {index for ranks in todo for index in ranks}
    if any(rank.instance != old.ranks[rank.index].instance for rank in new.ranks):
        return ()
    if any(_forgotten(old.ranks[rank.index], rank, waiting) for rank in new.ranks):
        return ()
    changed = {rank.index for rank in new.ranks if _shown(old.ranks[rank.index]) != _shown(rank)}
    return tuple(sorted((changed | waiting) - set(NOBODY))) or NOBODY


def _forgotten(old: Rank, new: Rank, waiting: set[int]) -> bool:
    gone = bool(old.task_id) and new.task_id != old.task_id
    return gone and (old.live or old.index in waiting)


def _shown(rank: Rank) -> tuple[object, ...]:
    """What other tools see of a rank in the task and node rows."""
    task = (rank.task_id, rank.task_status, rank.task_attempt, rank.exit_code, rank.exit_reason)
    return (*task, rank.instance, rank.node_status)


def rows_order(job: Job) -> Order | None:
    """The order to bring up the rows, if one is pending; a record never holds two."""
    return next((order for order in job.outbox if isinstance(order.effect, WriteRows)), None)


@dataclass(slots=True)
class Trail:
    """One piece of work, from the fact that caused it to its last commit.

    `first` is the record as it was found, `owes` whether an earlier commit of this work left rows to be written, and
    `told` what was said of nodes on the way, before it was certain.
    """

    first: Job | None = None
    owes: bool = False
    told: dict[str, NodeStatus] = field(default_factory=dict)

    def ranks_that_travel(self, old: Job, new: Job, *, alone: bool) -> tuple[int, ...]:
        """Whose rows go along with this commit; nobody's where they are not ours to write, or must be read first.

        `alone`: no other order is sent between this commit and the next.
        """
        self.first = self.first or old
        order = rows_order(new)
        if order is None or not alone or not (self.owes or order not in old.outbox):
            return ()
        return order.effect.ranks if isinstance(order.effect, WriteRows) else ()

    def settle(self, job: Job) -> None:
        """This record is written with its rows, and labels say the same. What follows is others' business, or new."""
        self.first, self.owes = job, False
        self.told.clear()

    def news(self, job: Job, ranks: Sequence[int]) -> list[Rank]:
        """The ranks whose nodes are not yet known to be shown so, and those of which something else was said."""
        return [rank for rank in job.ranks if self._is_news(rank, ranks)]

    def _is_news(self, rank: Rank, ranks: Sequence[int]) -> bool:
        if rank.node in self.told:
            return self.told[rank.node] is not rank.node_status
        if rank.index not in ranks or self.first is None:
            return False
        order = rows_order(self.first)
        late = order.effect.ranks if order is not None and isinstance(order.effect, WriteRows) else NOBODY
        if not late or rank.index in late:
            return True
        return self.first.ranks[rank.index].node_status is not rank.node_status
