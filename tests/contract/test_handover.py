"""A hand-over is one write, in every store: the job and its nodes move together, or nothing does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecs_gpu_recovery.core import handover
from ecs_gpu_recovery.core.effects import RebootNode
from ecs_gpu_recovery.core.errors import VersionConflict
from ecs_gpu_recovery.core.model import Job, JobStatus, NodeStatus, Rank, TaskStatus, Verdict
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.engine.ports import Store
from tests.contract.worlds import World, a_job, after, committed, ended, running, some_nodes, with_ranks


def a_running_job(store: Store, nodes: int) -> Job:
    job = a_job("j1", some_nodes(store, nodes))
    store.create(job)
    return committed(store, job, running(job))


def condemned(job: Job) -> Job:
    """Every node of it has a GPU fault, and is handed over."""

    def change(rank: Rank) -> Rank:
        return replace(
            rank,
            task_status=TaskStatus.TERMINATED,
            verdict=Verdict.REBOOT,
            findings="Xid 79",
            node_status=NodeStatus.REBOOTING,
            handed=f"j1/1/{rank.index}/reboot",
        )

    return with_ranks(job, change, status=JobStatus.PENDING_RESTART, attempt=1)


def hand_over(store: Store, old: Job, new: Job) -> tuple[Job, tuple[Node, ...]]:
    nodes = handover.taken(old, new, store.node, Policy())
    return store.settle(store.commit(old, new, nodes)), nodes


def test_the_job_and_its_nodes_are_written_together(store: Store) -> None:
    job = a_running_job(store, 2)
    handed, nodes = hand_over(store, job, condemned(job))
    assert store.job("j1") == handed
    assert [store.node(node.name) for node in nodes] == list(nodes)
    for node in nodes:
        assert (node.own, node.job_id, node.status) == (True, "j1", NodeStatus.REBOOTING)
        assert [type(order.effect) for order in node.outbox] == [RebootNode]
    assert {node.name for node in nodes} <= set(store.due_nodes(nodes[0].outbox[0].due))


def test_if_a_node_has_moved_nothing_is_written(store: Store, world: World) -> None:
    job = a_running_job(store, 2)
    new = condemned(job)
    nodes = handover.taken(job, new, store.node, Policy())
    moved = replace(nodes[1], handed="", connected=False, outbox=())
    world.another().commit_node(moved)
    with pytest.raises(VersionConflict):
        store.commit(job, new, nodes)
    assert store.job("j1") == job
    assert (store.node("n000").own, store.node("n001")) == (False, moved)
    assert hand_over(store, job, new)[0] == store.job("j1")


def test_if_the_job_has_moved_no_node_is_handed_over(store: Store, world: World) -> None:
    job = a_running_job(store, 2)
    world.another().commit(job, after(job, outcome="theirs"))
    with pytest.raises(VersionConflict):
        hand_over(store, job, condemned(job))
    assert not any(store.node(f"n{i:03}").own for i in range(2))


def test_what_the_job_shows_of_a_node_that_it_handed_over_is_not_written(store: Store) -> None:
    job = a_running_job(store, 2)
    handed, nodes = hand_over(store, job, condemned(job))
    shown = with_ranks(handed, lambda rank: replace(rank, node_status=NodeStatus.FAILED))
    committed(store, handed, shown)
    assert [store.node(node.name) for node in nodes] == list(nodes)


def test_a_job_that_ends_lets_go_of_the_nodes_and_their_repair_goes_on(store: Store) -> None:
    job = a_running_job(store, 2)
    handed, nodes = hand_over(store, job, condemned(job))
    committed(store, handed, ended(handed, JobStatus.USER_STOPPED))
    for before in nodes:
        node = store.node(before.name)
        assert (node.job_id, node.status, node.outbox) == ("", NodeStatus.REBOOTING, before.outbox)
        assert (node.reboot_key, node.deadline) == (before.reboot_key, before.deadline)


def test_a_hand_over_of_many_nodes_can_be_begun_again(store: Store) -> None:
    """More nodes than fit into one write: some may be written though the job is not."""
    job = a_running_job(store, 120)
    new = condemned(job)
    first = handover.taken(job, new, store.node, Policy())[:70]
    for node in first:
        store.commit_node(node)
    committed(store, job, after(job, outcome="somebody else was faster"))
    assert [store.node(node.name) for node in first] == list(first), "the job shows nothing of them any more"
    job = store.job("j1")
    _, rest = hand_over(store, job, condemned(job))
    assert len(rest) == 50
    assert all(store.node(rank.node).handed == rank.handed for rank in store.job("j1").ranks)
    assert [store.node(node.name) for node in first] == list(first), "each is ordered to reboot once"
