"""The DynamoDB store while AWS is busy, silent, or loses an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError

from ecs_gpu_recovery.aws.store import TRIES
from ecs_gpu_recovery.core.errors import NotFound, Refused, Transient, VersionConflict
from ecs_gpu_recovery.core.model import Verdict
from tests.aws.place import Place
from tests.aws.wire import answer, broken, cancelled
from tests.contract.worlds import (
    MINUTE,
    T0,
    a_job,
    a_node,
    after,
    ended,
    running,
    some_nodes,
)

pytestmark = pytest.mark.ministack


BUSY = [
    answer("ThrottlingException"),
    answer("ProvisionedThroughputExceededException"),
    answer("RequestLimitExceeded"),
    answer("InternalServerError", status=500),
    answer("SomethingNobodyHeardOf", status=503),
    broken(EndpointConnectionError(endpoint_url="https://dynamodb")),
    broken(ConnectTimeoutError(endpoint_url="https://dynamodb")),
    broken(ReadTimeoutError(endpoint_url="https://dynamodb")),
]


@pytest.mark.parametrize("fault", BUSY)
def test_a_busy_or_silent_aws_is_transient_whatever_was_asked(place: Place, fault: Any) -> None:
    store, wire = place.store, place.wire
    nodes = some_nodes(store, 2)
    job = a_job("j1", nodes)
    store.create(job)
    owing = store.commit(job, running(job))
    owing = replace(owing, owed=((0, owing.version), (1, owing.version)))
    node = store.node("n000")
    asks: list[Callable[[], object]] = [
        lambda: store.create(a_job("j2", nodes)),
        lambda: store.job("j1"),
        lambda: store.commit(owing, after(owing)),
        lambda: store.commit(running(job), ended(running(job))),
        lambda: store.settle(owing),
        lambda: store.job_of_task("t"),
        store.jobs,
        lambda: store.due_jobs(T0),
        store.live_jobs,
        lambda: store.node("n000"),
        lambda: store.node_of_instance("in000"),
        store.nodes,
        lambda: store.add_node(a_node("new")),
        lambda: store.commit_node(replace(node, version=node.version + 1)),
        lambda: store.due_nodes(T0),
        lambda: store.release_orphan("n000", "j1", T0),
    ]
    for ask in asks:
        wire.plan("*", fault)
        with pytest.raises(Transient):
            ask()


@pytest.mark.parametrize("code", ["ThrottlingError", "ProvisionedThroughputExceeded"])
def test_a_transaction_cancelled_by_a_busy_table_is_transient(place: Place, code: str) -> None:
    nodes = some_nodes(place.store, 1)
    place.wire.plan("TransactWriteItems", cancelled("None", code))
    with pytest.raises(Transient, match=code):
        place.store.create(a_job("j1", nodes))


def test_what_nobody_foresaw_is_raised_as_it_came(place: Place) -> None:
    nodes = some_nodes(place.store, 1)
    place.wire.plan("GetItem", answer("AccessDeniedException"))
    with pytest.raises(ClientError, match="AccessDenied"):
        place.store.job("j1")
    place.wire.plan("TransactWriteItems", cancelled("None", "ValidationError"))
    with pytest.raises(ClientError, match="TransactionCanceled"):
        place.store.create(a_job("j1", nodes))


def test_a_commit_whose_answer_got_lost_is_not_taken_for_somebody_elses(place: Place) -> None:
    """The client sends it again, and the second one finds the version already written: by itself."""
    job = a_job("j1", some_nodes(place.store, 1))
    place.store.create(job)
    patient = place.another(attempts=3)
    patient.wire.plan("UpdateItem", patient.wire.lose_the_answer)
    job = patient.store.commit(job, after(job, outcome="ours"))
    assert patient.wire.sent == 2
    patient.wire.plan("TransactWriteItems", patient.wire.lose_the_answer)
    job = patient.store.commit(job, running(job))
    assert patient.wire.sent == 4
    assert place.store.job("j1") == job
    node = place.store.node("n000")
    patient.wire.plan("UpdateItem", patient.wire.lose_the_answer)
    patient.store.commit_node(replace(node, errands=1, version=node.version + 1))
    assert place.store.node("n000").errands == 1


def test_a_commit_that_was_sent_again_still_loses_to_somebody_else(place: Place) -> None:
    job = a_job("j1", some_nodes(place.store, 1))
    place.store.create(job)
    patient = place.another(attempts=3)
    patient.wire.plan("UpdateItem", answer("InternalServerError", status=500))
    place.store.commit(job, after(job, outcome="theirs"))
    with pytest.raises(VersionConflict):
        patient.store.commit(job, after(job, outcome="ours"))
    assert place.store.job("j1").outcome == "theirs"


def test_a_job_whose_recording_was_not_answered_is_recorded_once(place: Place) -> None:
    nodes = some_nodes(place.store, 2)
    patient = place.another(attempts=3)
    patient.wire.plan("TransactWriteItems", patient.wire.lose_the_answer)
    job = a_job("j1", nodes)
    patient.store.create(job)
    assert place.store.job("j1") == job
    assert [node.version for node in place.store.nodes()] == [2, 2]


def test_another_transaction_in_the_way_of_a_new_job_is_waited_out(place: Place) -> None:
    nodes = some_nodes(place.store, 2)
    conflict = cancelled("None", "TransactionConflict", "None")
    place.wire.plan("TransactWriteItems", conflict, times=2)
    place.store.create(a_job("j1", nodes))
    assert {node.job_id for node in place.store.nodes()} == {"j1"}
    place.wire.plan("TransactWriteItems", conflict, times=100)
    free = some_nodes(place.store, 1, "m")
    with pytest.raises(Transient):
        place.store.create(a_job("j2", free))


def test_another_transaction_in_the_way_of_rows_is_waited_out(place: Place) -> None:
    job = a_job("j1", some_nodes(place.store, 2))
    place.store.create(job)
    job = place.store.commit(job, running(job))
    over = place.store.commit(job, ended(job))
    place.wire.plan("TransactWriteItems", cancelled("TransactionConflict"), times=TRIES)
    with pytest.raises(Transient):
        place.store.settle(over)
    place.wire.plan("TransactWriteItems", cancelled("TransactionConflict", "None", "None", "None"), times=2)
    place.store.settle(over)
    assert all(node.claimable for node in place.store.nodes())


def test_what_a_busy_table_left_unread_is_asked_for_again(place: Place) -> None:
    nodes = some_nodes(place.store, 2)
    left = {
        place.names["node_table"]: {
            "Keys": [{"node_name": {"S": n.name}} for n in nodes],
            "ConsistentRead": True,
        }
    }
    place.wire.plan("BatchGetItem", answer("", status=200, Responses={}, UnprocessedKeys=left), times=2)
    place.store.create(a_job("j1", nodes))
    assert place.store.node("n001").job_id == "j1"


def test_a_large_job_that_died_while_it_claimed_leaves_orphans_that_are_freed(place: Place) -> None:
    nodes = some_nodes(place.store, 150)
    place.wire.plan("TransactWriteItems", broken(ReadTimeoutError(endpoint_url="https://dynamodb")), after=1)
    with pytest.raises(Transient):
        place.store.create(a_job("j1", nodes))
    with pytest.raises(NotFound):
        place.store.job("j1")
    orphans = [node.name for node in place.store.nodes() if node.job_id == "j1"]
    assert len(orphans) == 100
    place.store.release_orphan(orphans[0], "j1", T0 + 9 * MINUTE)
    assert place.store.node(orphans[0]).job_id == "j1"
    for name in orphans:
        place.store.release_orphan(name, "j1", T0 + 10 * MINUTE)
    assert [node.name for node in place.store.nodes() if node.job_id] == []


def test_a_claim_is_not_freed_once_its_job_exists_after_all(place: Place) -> None:
    place.store.create(a_job("j1", some_nodes(place.store, 1)))
    place.store.release_orphan("n000", "j1", T0 + 60 * MINUTE)
    assert place.store.node("n000").job_id == "j1"


def test_a_large_job_refused_at_the_last_moment_gives_everything_back_as_it_was(place: Place) -> None:
    """The last node is taken between the reading and the claiming."""
    nodes = some_nodes(place.store, 150)
    nodes[0] = replace(
        nodes[0], findings="the last check gave no answer", verdict=Verdict.INCONCLUSIVE, version=2
    )
    place.store.commit_node(nodes[0])
    rival = place.another()
    take = a_job("rival", [nodes[149]])
    place.wire.plan("TransactWriteItems", lambda _: rival.store.create(take), after=1)
    with pytest.raises(Refused, match="n149: in use by job rival"):
        place.store.create(a_job("j1", nodes))
    assert [node.name for node in place.store.nodes() if node.job_id] == ["n149"]
    node = place.store.node("n000")
    assert replace(node, version=2) == nodes[0]
