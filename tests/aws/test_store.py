"""What only the DynamoDB store has: late writers of rows, shared tables, and other tools' records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse

from ecs_gpu_recovery.aws.errors import ForeignRecord
from ecs_gpu_recovery.core.errors import Refused
from ecs_gpu_recovery.core.model import Job, JobStatus, NodeStatus
from tests.aws.place import Place
from tests.aws.wire import cancelled
from tests.contract.worlds import (
    CLUSTER,
    MINUTE,
    T0,
    a_job,
    a_node,
    ended,
    running,
    some_nodes,
    task_of,
    with_ranks,
)

pytestmark = pytest.mark.ministack


def test_a_writer_overtaken_between_its_look_and_its_write_puts_right_what_it_wrote(place: Place) -> None:
    """Meanwhile the record went back to what the row said, so the faster writer had nothing to write."""

    def to(status: NodeStatus) -> Callable[[Job], Job]:
        return lambda job: with_ranks(job, lambda r: replace(r, node_status=status))

    first = running(a_job("j1", some_nodes(place.store, 1)))
    place.store.create(replace(first, version=1))
    place.store.commit(first)
    place.store.write_rows(first)
    slow = to(NodeStatus.PENDING)(first)
    fast = to(NodeStatus.IN_PROGRESS)(slow)
    place.store.commit(slow)
    rival = place.another()

    def overtake(_: object) -> None:
        rival.store.commit(fast)
        rival.store.write_rows(fast)

    place.wire.plan("TransactWriteItems", overtake)
    place.store.write_rows(slow)
    assert place.store.node("n000").status is NodeStatus.IN_PROGRESS


def test_a_task_row_written_meanwhile_by_a_newer_record_stands(place: Place) -> None:
    first = running(a_job("j1", some_nodes(place.store, 1)))
    place.store.create(replace(first, version=1))
    place.store.commit(first)
    second = ended(first)
    rival = place.another()

    def overtake(_: object) -> None:
        rival.store.commit(second)
        rival.store.write_rows(second)

    place.wire.plan("TransactWriteItems", overtake)
    place.store.write_rows(first)
    key = {"ecs_task_id": {"S": task_of(first, 0)}}
    row = place.client.get_item(TableName=place.names["task_table"], Key=key)["Item"]
    assert (row["task_status"], row["exit_code"], row["job_version"]) == (
        {"S": "COMPLETE"},
        {"S": "0"},
        {"N": "3"},
    )
    assert place.store.node("n000").claimable


def test_a_task_that_was_forgotten_meanwhile_still_gets_its_row(place: Place) -> None:
    first = running(a_job("j1", some_nodes(place.store, 1)))
    place.store.create(replace(first, version=1))
    place.store.commit(first)

    def overtake(request: AWSPreparedRequest) -> AWSResponse | None:
        place.another().store.commit(
            with_ranks(first, lambda r: replace(r, task_id="", task_status=None), attempt=1)
        )
        return cancelled("TransactionConflict", "None")(request)

    place.wire.plan("TransactWriteItems", overtake)
    place.store.write_rows(first)
    assert place.store.job_of_task(task_of(first, 0)) == "j1"


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
    job = running(job)
    place.store.commit(job)
    place.store.write_rows(job)
    for role, key in keys.items():
        assert place.client.get_item(TableName=place.names[role], Key=key)["Item"]["team"] == {"S": "vision"}
