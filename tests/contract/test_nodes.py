"""Nodes: added once, moved by version, found by name and by instance, freed from claims that lead nowhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecs_gpu_recovery.core.effects import Order, RebootNode
from ecs_gpu_recovery.core.errors import NotFound, VersionConflict
from ecs_gpu_recovery.core.model import NodeStatus
from ecs_gpu_recovery.engine.ports import Store
from tests.contract.worlds import ARN, MINUTE, T0, World, a_job, a_node, committed, ended, some_nodes


def test_a_node_comes_back_as_it_was_added(store: Store) -> None:
    node = a_node("n1", ip="10.0.0.7", ibdev="mlx5_0")
    store.add_node(node)
    assert store.node("n1") == node


def test_adding_a_known_node_changes_nothing(store: Store) -> None:
    store.add_node(a_node("n1"))
    store.add_node(a_node("n1", status=NodeStatus.FAILED, version=7))
    assert store.node("n1") == a_node("n1")


def test_nodes_are_listed_by_name(store: Store) -> None:
    for name in ("c", "a", "b"):
        store.add_node(a_node(name))
    assert list(store.nodes()) == [a_node("a"), a_node("b"), a_node("c")]


def test_a_node_without_an_instance_can_be_kept(store: Store) -> None:
    node = a_node("n1", instance="")
    store.add_node(node)
    assert store.node("n1") == node
    found = replace(node, instance=ARN + "late", version=2)
    store.commit_node(found)
    assert store.node_of_instance("late") == found
    store.commit_node(replace(node, version=3))
    assert store.node_of_instance("late") is None


def test_a_node_is_found_by_its_instance_id_or_arn(store: Store) -> None:
    nodes = some_nodes(store, 3)
    assert store.node_of_instance("in001") == nodes[1]
    assert store.node_of_instance(ARN + "in001") == nodes[1]
    assert store.node_of_instance(ARN + "other") is None


def test_a_node_moves_by_version(store: Store) -> None:
    (node,) = some_nodes(store, 1)
    moved = replace(node, status=NodeStatus.UNKNOWN, version=2)
    store.commit_node(moved)
    assert store.node(node.name) == moved
    for wrong in (1, 2, 4):
        with pytest.raises(VersionConflict):
            store.commit_node(replace(node, status=NodeStatus.FAILED, version=wrong))
    assert store.node(node.name) == moved


def test_a_claim_and_a_sighting_can_not_both_win(store: Store) -> None:
    """Who read the node before it was claimed must read it again."""
    nodes = some_nodes(store, 2)
    store.create(a_job("j1", nodes))
    with pytest.raises(VersionConflict):
        store.commit_node(replace(nodes[0], connected=False, version=nodes[0].version + 1))


def test_a_node_is_due_while_it_has_an_errand(store: Store) -> None:
    nodes = some_nodes(store, 3)
    order = Order(effect=RebootNode(key="node/n000/reboot/1", node="n000"), due=T0 + 2 * MINUTE)
    store.commit_node(replace(nodes[0], outbox=(order,), version=2))
    store.commit_node(replace(nodes[1], deadline=T0 + MINUTE, version=2))
    assert list(store.due_nodes(T0)) == []
    assert list(store.due_nodes(T0 + MINUTE)) == ["n001"]
    assert list(store.due_nodes(T0 + 2 * MINUTE)) == ["n001", "n000"]
    store.commit_node(replace(nodes[0], version=3))
    assert list(store.due_nodes(T0 + 2 * MINUTE)) == ["n001"]


def test_a_claim_of_a_job_that_was_never_recorded_is_freed_once_it_is_old(world: World) -> None:
    store = world.store
    store.add_node(a_node("n1", job_id="never", job_version=1, status=NodeStatus.ASSIGNED, version=4))
    store.release_orphan("n1", "never", T0 + 9 * MINUTE)
    assert store.node("n1").job_id == "never"
    store.release_orphan("n1", "another", T0 + 60 * MINUTE)
    assert store.node("n1").job_id == "never"
    store.release_orphan("n1", "never", T0 + 10 * MINUTE)
    node = store.node("n1")
    assert (node.job_id, node.status, node.version) == ("", NodeStatus.UNKNOWN, 5)
    assert "job_id" not in world.node_row("n1")


def test_an_orphan_heard_from_again_can_be_claimed(store: Store) -> None:
    store.add_node(a_node("n1", job_id="never", status=NodeStatus.ASSIGNED))
    store.release_orphan("n1", "never", T0 + 10 * MINUTE)
    node = replace(store.node("n1"), status=NodeStatus.AVAILABLE, version=3)
    store.commit_node(node)
    store.create(a_job("j1", [node]))
    assert store.node("n1").job_id == "j1"


def test_an_orphan_that_does_not_exist_is_not_found_or_left_alone(store: Store) -> None:
    some_nodes(store, 1)
    store.release_orphan("n000", "never", T0 + 60 * MINUTE)
    assert store.node("n000") == a_node("n000")


def test_a_node_given_back_can_be_claimed_by_the_next_job(store: Store) -> None:
    nodes = some_nodes(store, 2)
    job = a_job("j1", nodes)
    store.create(job)
    committed(store, job, ended(job))
    store.create(a_job("j2", [store.node(n.name) for n in nodes]))
    assert {n.job_id for n in store.nodes()} == {"j2"}
    with pytest.raises(NotFound):
        store.job("j3")
