"""The tables are complete, everything in them can happen, and the documents made from them are current."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from ecs_gpu_recovery.core import edges, events
from ecs_gpu_recovery.core.edges import Edge
from ecs_gpu_recovery.core.errors import Bug
from ecs_gpu_recovery.core.events import NodeAsked
from ecs_gpu_recovery.core.job.joint import JOINT
from ecs_gpu_recovery.core.job.table import TABLE, decide
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, TaskStatus, Verdict
from ecs_gpu_recovery.core.node import table as nodes
from ecs_gpu_recovery.core.rows import claimed_node
from tests.core.machine import Machine
from tests.core.story import (
    POLICY,
    T0,
    Story,
    a_job_awaiting_reboot,
    a_job_in_its_second_attempt,
    a_job_under_test,
    a_new_job,
    a_restarting_job,
    a_running_job,
    some_nodes,
    with_retries,
)
from tools import state_docs

CHECKS_AFTER = replace(POLICY, post_reboot_check=True)


FACTS = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Fact)}
#: What both a job and a node are told.
SHARED = {
    *(events.CheckStarted, events.CheckRefused, events.NodeChecked, events.NodeSeen, events.NodeLeaving),
    *(events.FaultSeen, events.Tick, events.OrderSent, events.OrderFailed, events.OrdersClaimed),
}


def test_every_status_answers_every_fact_and_every_fact_is_for_a_job_or_a_node() -> None:
    assert (set(TABLE), set(nodes.TABLE)) == (set(JobStatus), set(NodeStatus))
    (of_jobs,) = {frozenset(row) for row in TABLE.values()}
    (of_nodes,) = {frozenset(row) for row in (*nodes.TABLE.values(), nodes.HELD)}
    assert of_jobs | of_nodes == FACTS - {events.Fact, events.TaskFact, events.WatchFact}
    assert of_jobs & of_nodes == SHARED


def test_every_status_has_its_joint_rule() -> None:
    assert set(JOINT) == set(JobStatus)


ALL_RULES = [
    *(rule for row in TABLE.values() for rule in row.values()),
    *JOINT.values(),
    *(rule for row in (*nodes.TABLE.values(), nodes.HELD) for rule in row.values()),
]


@pytest.mark.parametrize("rule", dict.fromkeys(ALL_RULES), ids=lambda rule: rule.__name__)
def test_every_rule_says_why(rule: Callable[..., None]) -> None:
    assert rule.__doc__


def test_an_event_of_a_node_is_not_for_a_job() -> None:
    with pytest.raises(Bug, match="not an event of a job"):
        decide(a_new_job(nodes=1).job, NodeAsked(at=T0, node="n0", ask="drain", by="ann", why=""), POLICY)


def test_no_edge_leaves_a_final_state() -> None:
    final = {status.value for status in JobStatus if status.final}
    assert not [edge for edge in edges.JOB if edge[0] in final]
    assert not [edge for edge in edges.TASK if edge[0] in (TaskStatus.COMPLETE, TaskStatus.TERMINATED)]


@pytest.mark.parametrize(
    ("table", "names"), [(edges.JOB, JobStatus), (edges.TASK, TaskStatus), (edges.NODE, NodeStatus)]
)
def test_every_edge_joins_states_that_exist_and_gives_a_reason(
    table: dict[tuple[str, str], Edge], names: type[JobStatus]
) -> None:
    assert {name for edge in table for name in edge} - {edges.NEW} == {status.value for status in names}
    assert all(edge.why for edge in table.values())


#: The edges that the original state graphs draw, with their own words for the cause.
GRAPHS = {
    "JOB": {
        ("IN_PROGRESS", "PENDING_HEALTHCHECK"),
        ("PENDING_HEALTHCHECK", "PENDING_RESTART"),
        ("PENDING_HEALTHCHECK", "FAILED"),
        ("PENDING_RESTART", "RESTARTING"),
        ("RESTARTING", "IN_PROGRESS"),
        ("IN_PROGRESS", "COMPLETE"),
        ("IN_PROGRESS", "USER_STOPPED"),
    },
    "TASK": {("IN_PROGRESS", "COMPLETE"), ("IN_PROGRESS", "TERMINATED")},
    "NODE": {
        ("IN_PROGRESS", "PENDING"),
        ("PENDING", "PENDING_HEALTHCHECK"),
        ("PENDING_HEALTHCHECK", "REBOOTING"),
        ("PENDING_HEALTHCHECK", "AVAILABLE"),
        ("REBOOTING", "AVAILABLE"),
        ("AVAILABLE", "IN_PROGRESS"),
    },
}


@pytest.mark.parametrize("table", GRAPHS)
def test_every_edge_of_the_original_graphs_is_kept_and_not_called_ours(table: str) -> None:
    mine: dict[tuple[str, str], Edge] = getattr(edges, table)
    assert GRAPHS[table] <= mine.keys()
    assert not [edge for edge in GRAPHS[table] if mine[edge].ours]


# -- every edge can be taken ---------------------------------------------------------------------------------------


class Watched(dict[tuple[str, str], Edge]):
    """A table of edges that notes which of them are used."""

    def __init__(self, table: dict[tuple[str, str], Edge]) -> None:
        super().__init__(table)
        self.used: set[tuple[str, str]] = set()

    def __contains__(self, edge: object) -> bool:
        found = super().__contains__(edge)
        if found:
            self.used.add(edge)  # type: ignore[arg-type]
        return found


@contextmanager
def watched() -> Iterator[dict[str, Watched]]:
    tables = {name: Watched(getattr(edges, name)) for name in ("JOB", "TASK", "NODE")}
    with pytest.MonkeyPatch.context() as patch:
        for name, table in tables.items():
            patch.setattr(edges, name, table)
        yield tables


HEALTHY, REBOOT, REPLACE, INCONCLUSIVE = (
    Verdict.HEALTHY,
    Verdict.REBOOT,
    Verdict.REPLACE,
    Verdict.INCONCLUSIVE,
)
REPLACES = replace(POLICY, repair_rungs="reboot,replace")
JOB_STORIES: list[Callable[[], Story]] = [
    lambda: a_running_job(nodes=2).finishes(),
    lambda: a_running_job(nodes=2).ends(0, 139).stops(),
    lambda: a_running_job(nodes=2).person_stops_it().stops(),
    lambda: a_new_job(nodes=2, check=True).check_starts(0, 1).check_says(HEALTHY).starts().finishes(),
    lambda: a_new_job(nodes=1, check=True).check_says(REPLACE),
    lambda: a_new_job(nodes=1, check=True).loses(0),
    lambda: a_new_job(nodes=1).cannot_start(0, "ATTRIBUTE"),
    lambda: a_new_job(nodes=2).starts(0).fails(0),
    lambda: a_new_job(nodes=2).starts(0).loses(1),
    lambda: a_running_job(nodes=2).loses(0),
    lambda: a_running_job(nodes=2).fails(0).after(POLICY.stop_timeout),
    lambda: a_running_job(nodes=2).fails(0).person_stops_it().stops(),
    lambda: a_job_under_test(nodes=2).check_says(HEALTHY),
    lambda: a_job_under_test(nodes=2).check_says(REPLACE, 0).check_says(HEALTHY, 1),
    lambda: a_job_under_test(nodes=2).person_stops_it(),
    lambda: a_job_under_test(nodes=2).check_says(HEALTHY, 0).loses(1),
    lambda: a_job_awaiting_reboot(nodes=2).after(POLICY.reboot_timeout),
    lambda: a_job_awaiting_reboot(nodes=2).person_stops_it(),
    lambda: a_job_awaiting_reboot(nodes=2).is_seen(1, connected=False).after(POLICY.reboot_timeout),
    lambda: a_job_awaiting_reboot(nodes=2, policy=CHECKS_AFTER).reboots(0).check_says(HEALTHY, 0),
    lambda: a_job_in_its_second_attempt(nodes=2).finishes(),
    lambda: a_restarting_job(nodes=2).starts(0).cannot_start(1, "MISSING").stops(0),
    lambda: a_restarting_job(nodes=1).person_stops_it().stops(0),
    lambda: (
        a_running_job(nodes=2, policy=with_retries(1))
        .loses(0)
        .stops(1)
        .check_says(HEALTHY, 1)
        .ends(0, 137)
        .is_seen(0)
    ),
    lambda: (
        a_running_job(nodes=2)
        .fails(0)
        .stops()
        .check_says(REBOOT, 1)
        .check_is_refused(0, "MISSING")
        .check_is_refused(0, "MISSING")
    ),
]
NODE_STORIES: list[Callable[[], Machine]] = [
    lambda: Machine().asked("check").check_says(REPLACE).asked("release"),
    lambda: Machine().asked("check").check_says(HEALTHY).asked("reboot").reboots(),
    lambda: Machine().asked("reboot").after(POLICY.reboot_timeout).asked("reboot"),
    lambda: Machine(status=NodeStatus.FAILED).asked("check"),
    lambda: Machine(CHECKS_AFTER).asked("reboot").reboots(),
    lambda: Machine(REPLACES).asked("check").check_says(REPLACE).seen(connected=False, gone=True),
    lambda: Machine().seen(connected=False).after(POLICY.node_lost_after).seen(),
    lambda: Machine(status=NodeStatus.UNKNOWN, connected=False).asked("reboot"),
    lambda: Machine(status=NodeStatus.UNKNOWN, connected=False).asked("check"),
]


def test_every_edge_can_be_taken() -> None:
    with watched() as tables:
        begun = {("", story().job.timeline[0].after) for story in JOB_STORIES}
        for play in NODE_STORIES:
            play()
    job = a_new_job(nodes=1).job
    free = [
        node for status in (NodeStatus.AVAILABLE, NodeStatus.UNKNOWN) for node in some_nodes(1, status=status)
    ]
    by_stores = {(node.status.value, claimed_node(node, job).status.value) for node in free}
    assert set(edges.JOB) - tables["JOB"].used - begun == set()
    assert set(edges.TASK) - tables["TASK"].used == set()
    assert set(edges.NODE) - tables["NODE"].used - by_stores == set()


def test_a_move_that_is_not_in_the_table_is_a_bug() -> None:
    job = a_running_job(nodes=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edges, "JOB", {})
        with pytest.raises(Bug, match="no move that exists"):
            job.finishes()


def test_the_documents_are_made_from_the_tables_as_they_are() -> None:
    assert state_docs.TARGET.read_text(encoding="utf-8") == state_docs.page(), (
        "run: python -m tools.state_docs"
    )
