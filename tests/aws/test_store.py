"""What only the DynamoDB store has: late writers of rows, shared tables, and other tools' records."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from ecs_gpu_recovery.aws import items
from ecs_gpu_recovery.aws.errors import ForeignRecord
from ecs_gpu_recovery.aws.store import PAGE
from ecs_gpu_recovery.core.errors import NodesTaken, Refused, VersionConflict
from ecs_gpu_recovery.core.model import Job, JobStatus, NodeStatus, TaskStatus
from ecs_gpu_recovery.core.node_record import Hold, Node
from tests.aws.place import Place
from tests.contract.worlds import (
    CLUSTER,
    MINUTE,
    T0,
    a_job,
    a_node,
    after,
    committed,
    ended,
    running,
    some_nodes,
    task_of,
    with_ranks,
)

pytestmark = pytest.mark.ministack


def owing(job: Job) -> Job:
    return replace(job, owed=tuple((rank.index, job.version) for rank in job.ranks))


def to(status: NodeStatus) -> Callable[[Job], Job]:
    return lambda job: with_ranks(job, lambda r: replace(r, node_status=status))


def a_running_job(place: Place) -> Job:
    first = running(a_job("j1", some_nodes(place.store, 1)))
    place.store.create(replace(first, version=1))
    return place.store.commit(a_job("j1", [a_node("n000")]), first)


def test_a_writer_overtaken_between_its_look_and_its_write_does_not_bring_back_the_past(place: Place) -> None:
    first = a_running_job(place)
    slow = place.store.commit(first, to(NodeStatus.PENDING)(first))
    rival = place.another()

    def overtake(_: object) -> None:
        rival.store.settle(owing(rival.store.commit(slow, to(NodeStatus.IN_PROGRESS)(slow))))

    place.wire.plan("TransactWriteItems", overtake)
    place.store.settle(owing(slow))
    assert place.store.node("n000").status is NodeStatus.IN_PROGRESS


def test_a_task_row_written_meanwhile_by_a_newer_record_stands(place: Place) -> None:
    def ending(job: Job, reason: str) -> Job:
        return with_ranks(job, lambda r: replace(r, task_status=TaskStatus.TERMINATED, exit_reason=reason))

    first = a_running_job(place)
    slow = place.store.commit(first, ending(first, "not known yet"))
    rival = place.another()
    place.wire.plan(
        "TransactWriteItems", lambda _: rival.store.commit(slow, ending(slow, "CUDA error")) and None
    )
    place.store.settle(owing(slow))
    key = {"ecs_task_id": {"S": task_of(first, 0)}}
    row = place.client.get_item(TableName=place.names["task_table"], Key=key)["Item"]
    assert (row["exit_reason"], row["job_version"]) == ({"S": "CUDA error"}, {"N": str(slow.version + 1)})


def test_a_record_of_an_older_release_owes_the_rows_that_it_has_in_its_outbox(place: Place) -> None:
    """There the rows were an order like any other, and the order said whose, or nothing. Labels were orders too."""
    job = a_running_job(place)
    item = items.job_item(job, MINUTE)
    record = json.loads(item["record"]["S"])
    effects = (
        {"do": "WriteRows", "key": "j1/rows/2", "version": 2},
        {"do": "LabelNodes", "key": "j1/labels/2", "nodes": ["n000"]},
    )
    orders = [{"effect": effect, "due": T0.isoformat()} for effect in effects]
    old = item | {"record": {"S": json.dumps(record | {"outbox": orders})}}
    place.client.put_item(TableName=place.names["job_table"], Item=old)
    read = place.store.job("j1")
    assert (read.outbox, read.owed) == ((), ((0, read.version),))
    paid = place.store.settle(read)
    assert place.store.commit(paid, after(paid)).owed == ()
    assert place.store.job("j1") == replace(after(job), owed=())


def test_a_list_goes_on_where_a_page_of_the_index_holds_others_only(place: Place) -> None:
    place.store.create(a_job("ours", some_nodes(place.store, 1)))
    for i in range(PAGE + 10):
        job = replace(a_job(f"theirs-{i}", [a_node("t")], at=T0 + MINUTE), cluster="other")
        place.client.put_item(TableName=place.names["job_table"], Item=items.job_item(job, MINUTE))
    place.wire.taken()
    assert [line.id for line in place.store.jobs(status=JobStatus.IN_PROGRESS, limit=1).jobs] == ["ours"]
    assert place.wire.taken() == ["Query", "Query"]


def test_a_line_that_makes_no_sense_hides_no_other(place: Place) -> None:
    nodes = some_nodes(place.store, 2)
    for index, name in enumerate(("good", "bad")):
        place.store.create(a_job(name, nodes[index : index + 1], at=T0 + index * MINUTE))
    item = items.job_item(place.store.job("bad"), MINUTE) | {"job_status": {"S": "PAUSED"}}
    place.client.put_item(TableName=place.names["job_table"], Item=item)
    page = place.store.jobs()
    assert ([line.id for line in page.jobs], [exc.name for exc in page.bad]) == (["good"], ["bad"])


def test_two_clusters_share_the_tables_and_not_the_lists(place: Place) -> None:
    ours, theirs = place.store, place.another(cluster="other").store
    for i in range(3):
        ours.create(a_job(f"ours-{i}", some_nodes(ours, 1, f"o{i}-"), at=T0 + i * MINUTE))
        foreign = a_node(f"t{i}", cluster="other", instance="")
        theirs.add_node(foreign)
        theirs.create(replace(a_job(f"theirs-{i}", [foreign], at=T0 + i * MINUTE), cluster="other"))
    for store, name in ((ours, "ours"), (theirs, "theirs")):
        wanted = [f"{name}-{i}" for i in (2, 1, 0)]
        assert [line.id for line in store.jobs().jobs] == wanted
        page = store.jobs(status=JobStatus.IN_PROGRESS, limit=2)
        rest = store.jobs(status=JobStatus.IN_PROGRESS, limit=2, after=page.next)
        assert [line.id for line in (*page.jobs, *rest.jobs)] == wanted
        assert store.live_jobs() == sorted(wanted) == sorted(store.due_jobs(T0 + 90 * MINUTE))
        assert len(store.nodes()) == 3


def test_a_place_that_no_list_gave_out_is_refused(place: Place) -> None:
    with pytest.raises(Refused, match="not a place in a list"):
        place.store.jobs(after="nonsense")


def test_a_job_that_another_tool_wrote_is_not_ours_until_it_is_taken_over(place: Place) -> None:
    row = {
        "job_id": "theirs",
        "cluster_name": CLUSTER,
        "num_nodes": "1",
        "retry": "0",
        "created_at": "last tuesday",
        "job_status": "SOME_STATUS",
    }
    item = {name: {"S": value} for name, value in row.items()} | {"assigned_nodes": {"L": [{"S": "n1"}]}}
    place.client.put_item(TableName=place.names["job_table"], Item=item)
    with pytest.raises(ForeignRecord, match="job theirs was recorded by another tool") as told:
        place.store.job("theirs")
    assert told.value.row == {**row, "assigned_nodes": ["n1"]}
    assert place.store.jobs().jobs == ()
    assert place.store.live_jobs() == []


def test_a_node_that_another_tool_wrote_is_not_ours_until_it_is_taken_over(place: Place) -> None:
    item = {"node_name": {"S": "n1"}, "cluster_name": {"S": CLUSTER}, "node_status": {"S": "AVAILABLE"}}
    place.client.put_item(TableName=place.names["node_table"], Item=item)
    with pytest.raises(ForeignRecord, match="node n1 was recorded by another tool"):
        place.store.node("n1")
    assert place.store.nodes() == []


def test_attributes_that_other_tools_add_are_left_alone(place: Place) -> None:
    job = a_job("j1", some_nodes(place.store, 1))
    place.store.create(job)
    keys = {"job_table": {"job_id": {"S": "j1"}}, "node_table": {"node_name": {"S": "n000"}}}
    for role, key in keys.items():
        place.client.update_item(
            TableName=place.names[role],
            Key=key,
            UpdateExpression="SET team = :t",
            ExpressionAttributeValues={":t": {"S": "vision"}},
        )
    job = committed(place.store, job, running(job))
    committed(place.store, job, ended(job))
    for role, key in keys.items():
        assert place.client.get_item(TableName=place.names[role], Key=key)["Item"]["team"] == {"S": "vision"}


def theirs(place: Place, count: int) -> Job:
    """A job that another tool wrote and started, and the record that shall be put beside it."""
    job = running(a_job("theirs", [a_node(f"n{i:03}") for i in range(count)]))
    row = {"job_id": {"S": "theirs"}, "retry": {"N": "1"}, "team": {"S": "vision"}}
    place.client.put_item(TableName=place.names["job_table"], Item=row)
    return replace(job, version=1)


def held_nodes(job: Job) -> list[Node]:
    return [
        a_node(rank.node, job_id=job.id, job_version=1, status=rank.node_status, version=1)
        for rank in job.ranks
    ]


def test_a_job_of_another_tool_is_taken_over_with_its_nodes(place: Place) -> None:
    """One node has no row, one has another tool's, one is known and drained."""
    job = theirs(place, 3)
    row = {"node_name": {"S": "n001"}, "ip": {"S": "10.0.0.1"}, "rack": {"S": "r7"}}
    place.client.put_item(TableName=place.names["node_table"], Item=row)
    known = a_node("n002", hold=Hold(by="ann", why="new fans", at=T0), boot_id="known", version=5)
    place.store.add_node(known)
    place.store.adopt(job, held_nodes(job))
    assert place.store.job("theirs") == owing(job)
    assert [(n.name, n.job_id, n.status.value, n.version) for n in place.store.nodes()] == [
        ("n000", "theirs", "IN_PROGRESS", 1),
        ("n001", "theirs", "IN_PROGRESS", 1),
        ("n002", "theirs", "IN_PROGRESS", 6),
    ]
    assert (place.store.node("n002").hold, place.store.node("n002").boot_id) == (known.hold, "known")
    assert place.store.node_rows(["n001", "nowhere"])["n001"]["rack"] == "r7"
    assert list(place.store.live_jobs()) == ["theirs"]
    place.store.commit(job, after(job))


def test_a_job_is_taken_over_once(place: Place) -> None:
    job = theirs(place, 2)
    place.store.adopt(job, held_nodes(job))
    with pytest.raises(VersionConflict):
        place.store.adopt(job, held_nodes(job))
    assert [node.version for node in place.store.nodes()] == [1, 1]


def test_a_large_job_is_taken_over_too(place: Place) -> None:
    job = theirs(place, 150)
    place.store.adopt(job, held_nodes(job))
    assert place.store.job("theirs") == owing(job)
    assert {node.job_id for node in place.store.nodes()} == {"theirs"}


def test_a_job_on_a_node_that_another_job_holds_is_not_taken_over(place: Place) -> None:
    place.store.create(a_job("ours", some_nodes(place.store, 1)))
    job = theirs(place, 2)
    with pytest.raises(NodesTaken, match="n000: in use by job ours"):
        place.store.adopt(job, held_nodes(job))
    with pytest.raises(ForeignRecord):
        place.store.job("theirs")
    assert place.store.node_rows(["n001"]) == {}


def test_a_job_that_ended_takes_nothing_from_the_nodes_we_know(place: Place) -> None:
    place.store.create(a_job("ours", some_nodes(place.store, 1)))
    job = replace(ended(theirs(place, 1)), version=1)
    place.store.adopt(job, [a_node("n000", version=1)])
    assert place.store.job("theirs").status is JobStatus.COMPLETE
    assert place.store.node("n000").job_id == "ours"


def test_the_rows_of_other_tools_are_read_whichever_types_they_chose(place: Place) -> None:
    row = {
        "ecs_task_id": {"S": "t1"},
        "retry": {"N": "0"},
        "tags": {"SS": ["b", "a"]},
        "mixed": {"L": [{"S": "x"}, {"N": "1"}]},
        "flag": {"BOOL": True},
    }
    place.client.put_item(TableName=place.names["task_table"], Item=row)
    assert place.store.task_rows(["t1", "t2"]) == {
        "t1": {"ecs_task_id": "t1", "retry": "0", "tags": ["a", "b"], "mixed": ["x", "1"]}
    }
