"""Which task and node rows are behind the record of their job, so that only those have to be looked at."""

from __future__ import annotations

from .core.effects import WriteRows
from .core.model import Job, Rank

#: No rank at all, where an empty list would mean every rank.
NOBODY = (-1,)


def rows_behind(old: Job, new: Job) -> tuple[int, ...]:
    """The ranks whose rows are not as the new record says: what changed now, and what was still to be written."""
    todo = [order.effect.ranks for order in old.outbox if isinstance(order.effect, WriteRows)]
    if () in todo or new.status.final:
        return ()
    changed = {rank.index for rank in new.ranks if _shown(old.ranks[rank.index]) != _shown(rank)}
    return tuple(sorted(changed.union(*todo))) or NOBODY


def _shown(rank: Rank) -> tuple[object, ...]:
    """What other tools see of a rank in the task and node rows."""
    task = (rank.task_id, rank.task_status, rank.task_attempt, rank.exit_code, rank.exit_reason)
    return (*task, rank.instance, rank.node_status)
