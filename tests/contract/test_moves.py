"""A rank that moves is one write, in every store: the job, the node that it takes and the one that it leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecs_gpu_recovery.core import handover
from ecs_gpu_recovery.core.errors import NodesTaken, VersionConflict
from ecs_gpu_recovery.core.model import Job, NodeStatus
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.engine.ports import Store
from tests.contract.test_handover import a_running_job, condemned, hand_over
from tests.contract.worlds import World, a_job, after, some_nodes, with_ranks


def waiting(store: Store) -> Job:
    """A job of two nodes has handed both over; the third of the fleet is free."""
    some_nodes(store, 3)
    job = a_running_job(store, 2)
    return hand_over(store, job, condemned(job))[0]


def moved(job: Job, to: str = "n002") -> Job:
    """Rank 1 takes that node."""
    taken = {"task_id": "", "task_status": None, "handed": "", "node_status": NodeStatus.ASSIGNED}
    return with_ranks(job, lambda rank: replace(rank, node=to, **taken) if rank.index else rank)


def test_the_job_the_taken_node_and_the_one_that_is_left_are_written_together(store: Store) -> None:
    job = waiting(store)
    new, _ = hand_over(store, job, moved(job))
    taken, left = store.node("n002"), store.node("n001")
    assert [rank.node for rank in store.job("j1").ranks] == ["n000", "n002"]
    assert (taken.job_id, taken.status, taken.own) == ("j1", NodeStatus.ASSIGNED, False)
    assert (left.job_id, left.status, left.own, left.task) == ("", NodeStatus.REBOOTING, True, "")
    assert [order.key for order in left.outbox] == ["j1/1/1/reboot"]
    final = with_ranks(new, lambda rank: replace(rank, node_status=NodeStatus.AVAILABLE))
    assert store.settle(store.commit(new, final)).version == store.job("j1").version
    assert store.node("n002").status is NodeStatus.AVAILABLE


def test_a_node_that_another_job_has_taken_is_not_taken_again(store: Store) -> None:
    job = waiting(store)
    store.create(a_job("j2", [store.node("n002")]))
    with pytest.raises(NodesTaken, match="in use by job j2"):
        handover.taken(job, moved(job), store.node, Policy())


def test_if_another_job_takes_the_node_in_this_very_moment_nothing_is_written(
    store: Store, world: World
) -> None:
    job = waiting(store)
    new = moved(job)
    nodes = handover.taken(job, new, store.node, Policy())
    world.another().create(a_job("j2", [store.node("n002")]))
    with pytest.raises(VersionConflict):
        store.commit(job, new, nodes)
    assert store.job("j1") == job
    assert (store.node("n001").job_id, store.node("n002").job_id) == ("j1", "j2")


def test_if_the_job_has_moved_on_no_node_is_taken(store: Store, world: World) -> None:
    job = waiting(store)
    world.another().commit(job, after(job, outcome="theirs"))
    with pytest.raises(VersionConflict):
        hand_over(store, job, moved(job))
    assert (store.node("n001").job_id, store.node("n002").job_id) == ("j1", "")
