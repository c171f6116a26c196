"""A commit takes the rows of some ranks along, in one call and without reading them; what it can't take it owes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ecs_gpu_recovery.core.errors import VersionConflict
from ecs_gpu_recovery.core.model import Job, JobStatus, NodeStatus, Rank, TaskStatus
from ecs_gpu_recovery.core.node_record import Node
from tests.aws.place import Place
from tests.aws.wire import answer, cancelled
from tests.contract.worlds import MINUTE, T0, a_job, after, ended, running, some_nodes, task_of, with_ranks

pytestmark = pytest.mark.ministack


def started(place: Place, nodes: int = 2) -> Job:
    """A job that runs, its rows written."""
    job = a_job("j1", some_nodes(place.store, nodes))
    place.store.create(job)
    job = place.store.commit(job, running(job))
    assert job.owed == ()
    return job


def failing(job: Job) -> Job:
    """Rank 0 died."""

    def change(rank: Rank) -> Rank:
        if rank.index:
            return rank
        return replace(
            rank, task_status=TaskStatus.TERMINATED, exit_code=1, node_status=NodeStatus.PENDING_HEALTHCHECK
        )

    return with_ranks(job, change, status=JobStatus.PENDING_HEALTHCHECK)


def task_row(place: Place, task_id: str) -> dict[str, dict[str, str]]:
    key = {"ecs_task_id": {"S": task_id}}
    return place.client.get_item(TableName=place.names["task_table"], Key=key).get("Item", {})  # type: ignore[return-value]


def test_record_and_rows_are_one_call(place: Place) -> None:
    job = started(place)
    place.wire.taken()
    failed = place.store.commit(job, failing(job))
    assert place.wire.taken() == ["TransactWriteItems"]
    assert place.store.job("j1") == failed
    row = task_row(place, task_of(job, 0))
    assert (row["task_status"], row["exit_code"]) == ({"S": "TERMINATED"}, {"S": "1"})
    assert row["created_at"] == {"S": (T0 + MINUTE).isoformat()}
    node = place.store.node("n000")
    assert (node.status, node.job_id, node.job_version) == (
        NodeStatus.PENDING_HEALTHCHECK,
        "j1",
        failed.version,
    )
    assert node.updated_at == failed.updated_at
    assert [n.status for n in place.store.nodes()] == [NodeStatus.PENDING_HEALTHCHECK, NodeStatus.IN_PROGRESS]


def test_of_a_stale_record_nothing_is_written(place: Place) -> None:
    job = started(place)
    before = list(place.store.nodes())
    place.store.commit(job, after(job, outcome="theirs"))
    with pytest.raises(VersionConflict):
        place.store.commit(job, failing(job))
    assert place.store.job("j1").outcome == "theirs"
    assert list(place.store.nodes()) == before
    assert task_row(place, task_of(job, 0))["task_status"] == {"S": "IN_PROGRESS"}


def test_a_node_that_is_not_the_job_s_any_more_makes_the_rows_wait(place: Place) -> None:
    job = started(place)
    held = place.store.node("n000")
    place.store.commit_node(replace(held, job_id="", job_version=0, version=held.version + 1))
    before = place.store.node("n000")
    failed = place.store.commit(job, failing(job))
    assert failed.owed == ((0, failed.version),)
    assert task_row(place, task_of(job, 0))["task_status"] == {"S": "IN_PROGRESS"}
    assert place.store.settle(failed).owed == ()
    assert task_row(place, task_of(job, 0))["task_status"] == {"S": "TERMINATED"}
    assert place.store.node("n000") == before


def test_more_rows_than_a_transaction_takes_are_owed(place: Place) -> None:
    job = a_job("j1", some_nodes(place.store, 50))
    place.store.create(job)
    place.wire.taken()
    assert [index for index, _ in place.store.commit(job, running(job)).owed] == list(range(50))
    assert place.wire.taken() == ["UpdateItem"]


def test_a_rank_whose_rows_are_owed_is_not_written_out_of_turn(place: Place) -> None:
    """What was said of its node before would be left out of the node's story."""
    job = a_job("j1", some_nodes(place.store, 50))
    place.store.create(job)
    job = place.store.commit(job, running(job))
    job = place.store.commit(job, failing(job))
    assert [index for index, _ in job.owed] == list(range(50))
    place.store.settle(job)
    assert place.store.node("n000").status is NodeStatus.PENDING_HEALTHCHECK


def large(place: Place) -> Job:
    """A job that runs, with a record so large that a transaction would cost too much."""
    job = started(place)
    chance = Random(1)
    long = "".join(chance.choice("0123456789abcdef") for _ in range(40_000))
    return place.store.commit(job, after(job, outcome=long))


def test_a_large_record_travels_alone_and_its_rows_follow_unread(place: Place) -> None:
    """In a transaction each write counts twice, and a record of many nodes weighs more than all its rows."""
    job = large(place)
    place.wire.taken()
    failed = place.store.commit(job, failing(job))
    assert failed.owed == ((0, failed.version),)
    paid = place.store.settle(failed, job)
    assert place.wire.taken() == ["UpdateItem", "TransactWriteItems", "UpdateItem"]
    assert (paid.owed, place.store.job("j1").owed) == ((), ())
    assert task_row(place, task_of(job, 0))["task_status"] == {"S": "TERMINATED"}
    assert place.store.node("n000").status is NodeStatus.PENDING_HEALTHCHECK


def test_the_next_commit_notes_for_nothing_that_rows_are_written(place: Place) -> None:
    job = large(place)
    failed = place.store.commit(job, failing(job))
    place.wire.taken()
    paid = place.store.settle(failed, job, soon=True)
    assert place.wire.taken() == ["TransactWriteItems"]
    assert (paid.owed, place.store.job("j1").owed) == ((), failed.owed)
    place.store.commit(paid, after(paid))
    assert place.store.job("j1").owed == ()


def test_rows_that_were_written_but_not_noted_are_not_written_again(place: Place) -> None:
    job = large(place)
    failed = place.store.commit(job, failing(job))
    place.store.settle(failed, job, soon=True)
    place.wire.taken()
    assert place.store.settle(place.store.job("j1")).owed == ()
    assert place.wire.taken() == ["GetItem", "BatchGetItem", "UpdateItem"]


def test_what_a_record_owes_is_kept_as_older_releases_read_and_wrote_it(place: Place) -> None:
    """In the middle of a rollback they pay it: a set of ranks, and no word about versions."""
    job = large(place)
    failed = place.store.commit(job, failing(job))
    item = place.client.get_item(TableName=place.names["job_table"], Key={"job_id": {"S": "j1"}})["Item"]
    assert item["rows_owed"] == {"NS": ["0"]}
    assert place.store.job("j1").owed == ((0, failed.version),)


def test_another_transaction_in_the_way_counts_as_somebody_faster(place: Place) -> None:
    """Whoever meets it reads again and decides again; nothing is lost, and no handler fails."""
    job = started(place)
    place.wire.plan("TransactWriteItems", cancelled("TransactionConflict", "None", "None"))
    with pytest.raises(VersionConflict):
        place.store.commit(job, failing(job))
    place.wire.plan("UpdateItem", answer("TransactionConflictException"))
    with pytest.raises(VersionConflict):
        place.store.commit(job, after(job))
    assert place.store.job("j1") == job


def test_what_a_node_itself_knows_survives(place: Place) -> None:
    """A drain that was decided on an older look is refused, and gets the node as it is now."""
    job = started(place)
    seen = place.store.node("n000")
    place.store.commit(job, failing(job))
    with pytest.raises(VersionConflict) as refused:
        place.store.commit_node(replace(seen, boot_id="new", version=seen.version + 1))
    newest = refused.value.newest
    assert isinstance(newest, Node)
    assert newest == place.store.node("n000")
    place.store.commit_node(replace(newest, boot_id="new", version=newest.version + 1))
    node = place.store.node("n000")
    assert (node.status, node.boot_id) == (NodeStatus.PENDING_HEALTHCHECK, "new")


def test_an_older_record_never_overwrites_what_came_along(place: Place) -> None:
    job = started(place)
    place.store.commit(job, failing(job))
    before = list(place.store.nodes()), task_row(place, task_of(job, 0))
    place.store.settle(replace(job, owed=((0, job.version), (1, job.version))))
    assert (list(place.store.nodes()), task_row(place, task_of(job, 0))) == before


def test_a_job_that_ends_gives_back_nodes_whose_rows_came_along(place: Place) -> None:
    job = started(place)
    job = place.store.commit(job, failing(job))
    place.store.settle(place.store.commit(job, ended(job, JobStatus.FAILED)))
    assert all(node.claimable for node in place.store.nodes())


def test_a_status_that_makes_no_sense_is_not_taken_from_a_row(place: Place) -> None:
    """A row that came along is newer than the node's own record, but anybody can write into it."""
    job = started(place)
    place.client.update_item(
        TableName=place.names["node_table"],
        Key={"node_name": {"S": "n000"}},
        UpdateExpression="SET node_status = :s",
        ExpressionAttributeValues={":s": {"S": "WORN OUT"}},
    )
    assert place.store.node("n000").status is NodeStatus.ASSIGNED
    place.store.commit(job, failing(job))
    assert place.store.node("n000").status is NodeStatus.PENDING_HEALTHCHECK
