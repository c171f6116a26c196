"""Records that two releases work on, and records that nobody can read: on every store."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ecs_gpu_recovery.core.codec import FORMAT
from ecs_gpu_recovery.core.errors import BadRecord, NewerRecord, NodesTaken, Unreadable, VersionConflict
from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.engine.ports import Store
from testbed.releases import BREAKING, NEXT, LaterJob, LaterNode, marked_job, marked_node
from tests.contract.worlds import (
    MINUTE,
    T0,
    World,
    a_job,
    a_node,
    after,
    committed,
    ended,
    running,
    some_nodes,
)

RUBBISH = ("", "nonsense", "[]", "{}", '{"format": "two"}', '{"id": 5}')


def marked(store: Store, job_id: str) -> LaterJob:
    """The later release uses its own field."""
    job = store.job(job_id)
    assert isinstance(job, LaterJob)
    new = committed(store, job, after(marked_job(job)))
    assert isinstance(new, LaterJob)
    return new


def marks_of(job: object) -> tuple[str, list[str]]:
    assert isinstance(job, LaterJob)
    return job.mark, [rank.mark for rank in job.ranks]


def test_every_record_says_its_format(world: World) -> None:
    world.store.create(a_job("j1", some_nodes(world.store, 2)))
    for table, key in (("ecs_job", "j1"), ("ecs_node", "n000"), ("ecs_node", "n001")):
        assert json.loads(world.text(table, key))["format"] == FORMAT


def test_a_record_without_a_number_is_of_the_first_format(world: World) -> None:
    nodes = some_nodes(world.store, 1)
    job = a_job("j1", nodes)
    world.store.create(job)
    held = world.store.node("n000")
    for table, key in (("ecs_job", "j1"), ("ecs_node", "n000")):
        written = json.loads(world.text(table, key))
        del written["format"]
        world.overwrite(table, key, json.dumps(written))
    store = world.another()
    assert (store.job("j1"), store.node("n000")) == (job, held)


def test_an_older_release_keeps_what_a_later_one_wrote(world: World) -> None:
    """Through a whole job: the older release starts it, ends it, and gives its nodes back."""
    later, older = world.another(NEXT), world.store
    older.create(a_job("j1", some_nodes(older, 2)))
    marked(later, "j1")
    node = later.node("n000")
    assert isinstance(node, LaterNode)
    later.commit_node(replace(marked_node(node), version=node.version + 1))
    job = older.job("j1")
    assert not isinstance(job, LaterJob)
    job = committed(older, job, running(job))
    committed(older, job, ended(job))
    assert marks_of(later.job("j1")) == ("job", ["rank 0", "rank 1"])
    node = later.node("n000")
    assert isinstance(node, LaterNode)
    assert (node.mark, node.job_id) == ("node", "")


def test_a_later_release_reads_what_an_older_one_wrote(world: World) -> None:
    later, older = world.another(NEXT), world.store
    older.create(a_job("j1", some_nodes(older, 2)))
    assert marks_of(later.job("j1")) == ("", ["", ""])
    assert later.nodes().bad == ()


def test_an_older_release_leaves_a_newer_record_as_it_is(world: World) -> None:
    newer, older = world.another(BREAKING), world.store
    older.create(a_job("j1", some_nodes(older, 2)))
    before = older.job("j1")
    marked(newer, "j1")
    node = newer.node("n001")
    newer.commit_node(replace(node, version=node.version + 1))
    written = world.text("ecs_job", "j1"), world.text("ecs_node", "n001")
    with pytest.raises(NewerRecord, match=f"its format is {FORMAT + 1}"):
        older.job("j1")
    with pytest.raises((NewerRecord, VersionConflict)):
        older.commit(before, running(before))
    with pytest.raises((NewerRecord, VersionConflict)):
        older.commit_node(replace(node, version=node.version + 1))
    assert [exc.name for exc in older.nodes().bad] == ["n001"]
    assert (world.text("ecs_job", "j1"), world.text("ecs_node", "n001")) == written
    assert marks_of(newer.job("j1"))[0] == "job"


def test_a_job_waits_for_the_release_that_can_write_its_node(world: World) -> None:
    """Either nothing is committed, or the row is owed: no commit passes over a newer node."""
    newer, older = world.another(BREAKING), world.store
    older.create(a_job("j1", some_nodes(older, 2)))
    node = newer.node("n001")
    newer.commit_node(replace(node, version=node.version + 1))
    written = world.text("ecs_node", "n001")
    job = older.job("j1")
    with pytest.raises(NewerRecord, match="node n001"):
        committed(older, job, running(job))
    assert world.text("ecs_node", "n001") == written
    job = newer.job("j1")
    job = newer.settle(job) if job.owed else committed(newer, job, running(job))
    assert (job.owed, newer.node("n001").status) == ((), job.ranks[1].node_status)


@pytest.mark.parametrize("rubbish", RUBBISH)
def test_a_node_that_can_not_be_read_hides_no_other(world: World, rubbish: str) -> None:
    some_nodes(world.store, 3)
    world.overwrite("ecs_node", "n001", rubbish)
    store = world.another()
    assert [node.name for node in store.nodes()] == ["n000", "n002"]
    assert [(exc.kind, exc.name, exc.version) for exc in store.nodes().bad] == [("node", "n001", 1)]
    with pytest.raises(Unreadable, match="the record of node n001 cannot be read"):
        store.node("n001")
    with pytest.raises(NodesTaken, match="n001: the record of node n001 cannot be read"):
        store.create(a_job("j1", [a_node("n000"), a_node("n001")]))
    store.create(a_job("j2", [a_node("n000"), a_node("n002")]))


@pytest.mark.parametrize("rubbish", RUBBISH)
def test_a_job_that_can_not_be_read_is_still_listed(world: World, rubbish: str) -> None:
    nodes = some_nodes(world.store, 2)
    for index, name in enumerate(("bad", "good")):
        world.store.create(a_job(name, nodes[index : index + 1]))
    world.overwrite("ecs_job", "bad", rubbish)
    store = world.another()
    assert {line.id for line in store.jobs(status=JobStatus.IN_PROGRESS).jobs} == {"bad", "good"}
    assert set(store.live_jobs()) == {"bad", "good"}
    assert set(store.due_jobs(T0 + 60 * MINUTE)) == {"bad", "good"}
    with pytest.raises(Unreadable, match="the record of job bad cannot be read"):
        store.job("bad")
    assert store.job("good").id == "good"


def test_a_job_goes_on_without_the_record_of_its_node(world: World) -> None:
    """And a record that comes back in its place is given what it missed."""
    world.store.create(a_job("j1", some_nodes(world.store, 2)))
    whole = world.text("ecs_node", "n001")
    world.overwrite("ecs_node", "n001", "nonsense")
    store = world.another()
    job = committed(store, store.job("j1"), running(store.job("j1")))
    assert (job.owed, store.node("n000").status) == ((), job.ranks[0].node_status)
    over = committed(store, job, ended(job))
    assert (over.owed, store.node("n000").job_id) == ((), "")
    world.overwrite("ecs_node", "n001", whole)
    store = world.another()
    store.release_orphan("n001", "j1", T0 + 60 * MINUTE)
    assert store.node("n001").claimable


def test_people_are_told_once_of_a_bad_record(world: World) -> None:
    some_nodes(world.store, 2)
    world.overwrite("ecs_node", "n001", "nonsense")
    told: list[str] = []

    def tell(store: Store, why: str) -> bool:
        return store.tell_once("node", "n001", why, lambda: told.append(why))

    assert [tell(world.store, "a"), tell(world.store, "a"), tell(world.another(), "a")] == [
        True,
        False,
        False,
    ]
    assert tell(world.another(), "b")
    assert told == ["a", "b"]


def test_who_could_not_be_told_is_told_later(world: World) -> None:
    some_nodes(world.store, 1)

    def down() -> None:
        raise BadRecord("node", "n000", "nobody listens")

    with pytest.raises(BadRecord):
        world.store.tell_once("node", "n000", "a", down)
    assert world.store.tell_once("node", "n000", "a", lambda: None)


def test_a_node_keeps_its_mark_when_another_release_claims_it(world: World) -> None:
    later = world.another(NEXT)
    node = LaterNode(**{f: getattr(a_node("n000"), f) for f in Node.__dataclass_fields__}, mark="node")
    later.add_node(node)
    world.store.create(a_job("j1", [world.store.node("n000")]))
    found = later.node("n000")
    assert isinstance(found, LaterNode)
    assert (found.mark, found.job_id) == ("node", "j1")
