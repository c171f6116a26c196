"""Planned leaves: a job goes elsewhere before its node is taken away, and nobody is charged for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ecs_gpu_recovery.core.effects import CheckNode, StopTask
from ecs_gpu_recovery.core.errors import Refused
from ecs_gpu_recovery.core.events import NodeAsked, NodeLeaving, NodeSeen, Tick
from ecs_gpu_recovery.core.handover import leave_missed
from ecs_gpu_recovery.core.job.leaves import due
from ecs_gpu_recovery.core.model import JobSpec, JobStatus, Leave, NodeStatus, Notice, Verdict
from ecs_gpu_recovery.core.node.table import decide_node
from ecs_gpu_recovery.core.node_record import Node
from tests.core.story import MINUTE, POLICY, T0, Story, like, some_nodes
from tests.core.test_moves import KIND, spare

SECOND = timedelta(seconds=1)


def leave(notice: Notice = Notice.TOLD, *, until: timedelta | None = 2 * MINUTE, **about: Any) -> Leave:
    end = None if until is None else T0 + until
    return Leave(**({"notice": notice, "why": "spot", "at": T0, "until": end} | about))


def a_job_that_hears(news: Leave | None, *others: Node, failover: str = "spares", **about: Any) -> Story:
    """Two ranks train; what is said of n1, the job hears."""
    job = Story(nodes=2, spec=JobSpec(failover=failover), kind=KIND, **about).has_also(*others).starts()
    return job.hears(NodeLeaving(at=job.now, node="n1", leave=news)).sees_the_fleet()


FREE = spare(passed_at=T0)  # found healthy of late, so it is not examined again


def test_a_job_goes_to_another_node_before_its_own_is_taken_away_and_is_not_charged() -> None:
    job = a_job_that_hears(leave(), FREE).sweeps_after(SECOND)
    assert job.status is JobStatus.PENDING_HEALTHCHECK
    assert job.orders == [like(StopTask, rank=0), like(StopTask, rank=1)], "the gang is stopped, both of it"
    assert job.job.timeline[-3].why == "n1 is to be taken away"
    job.stops()
    assert not [order for order in job.outbox if isinstance(order, CheckNode)], "nothing failed"
    assert (job.status, job.job.attempt, job.job.spent.charged) == (JobStatus.PENDING_RESTART, 1, 0)
    job.sees_the_fleet()
    assert (job.status, job.rank(1).node, job.rank(1).leave) == (JobStatus.RESTARTING, "s0", None)
    said = [entry for entry in job.job.timeline if entry.why == "rank 1 moved from n1 to s0"]
    assert [entry.evidence for entry in said] == ["spot"]
    left = job.node(1)
    assert (left.job_id, left.status, left.leave is None) == ("", NodeStatus.AVAILABLE, False)
    assert left.refusal == "is to be taken away: spot"
    job.starts().finishes()
    assert job.status is JobStatus.COMPLETE


@pytest.mark.parametrize(
    ("news", "others", "failover", "stops_after"),
    [
        # Another node is there: at once, as nobody tells of a better moment.
        (leave(), (FREE,), "spares", 0),
        (leave(Notice.SEEN, until=None), (FREE,), "spares", 0),
        (leave(Notice.PERSON, until=None), (FREE,), "spares", 0),
        (leave(), (replace(FREE, spare=False),), "any", 0),
        # None is: it runs for as long as it can.
        (leave(), (), "spares", 45),
        (leave(), (replace(FREE, spare=False),), "spares", 45),
        (leave(), (replace(FREE, leave=leave()),), "spares", 45),
        (leave(Notice.SEEN, until=None), (), "spares", None),
        (leave(Notice.PERSON, until=None), (), "spares", None),
        # It may not move, or nothing is sure.
        (leave(), (FREE,), "none", None),
        (leave(), (FREE,), "", None),
        (leave(Notice.MAYBE), (FREE,), "spares", None),
        (None, (FREE,), "spares", None),
    ],
)
def test_the_gang_is_stopped_when_another_node_is_in_sight_or_shortly_before_the_end(
    news: Leave | None, others: tuple[Node, ...], failover: str, stops_after: int | None
) -> None:
    job = a_job_that_hears(news, *others, failover=failover)
    stopped = []
    for second in range(200):
        job.hears(Tick(at=T0 + second * SECOND))
        stopped += [second] if job.status is not JobStatus.IN_PROGRESS else []
    assert stopped[:1] == ([] if stops_after is None else [stops_after])


def test_a_job_that_tells_its_steps_is_stopped_after_the_next_or_in_good_time() -> None:
    job = a_job_that_hears(None, FREE).gets_to(10)
    job.now += MINUTE
    job.hears(NodeLeaving(at=job.now, node="n1", leave=leave(Notice.PERSON, until=None, at=job.now)))
    job.sees_the_fleet().sweeps_after(SECOND)
    assert job.status is JobStatus.IN_PROGRESS
    late = replace(job.job, room=True)
    assert due(late, POLICY, job.now + POLICY.leave_within)
    job.gets_to(11).sweeps_after(SECOND)
    assert job.status is JobStatus.PENDING_HEALTHCHECK
    assert "stopped after step 11" in job.stops().job.timeline[-3].why


def test_without_a_permit_the_gang_runs_on() -> None:
    job = a_job_that_hears(leave(), FREE)
    assert job.hears(Tick(at=T0 + SECOND, may_stop=False)).status is JobStatus.IN_PROGRESS
    assert job.hears(Tick(at=T0 + SECOND)).status is JobStatus.PENDING_HEALTHCHECK


def test_the_last_attempt_is_not_given_away_for_a_leave() -> None:
    job = a_job_that_hears(leave(), FREE, policy=replace(POLICY, max_attempts=0))
    assert job.sweeps_after(3 * MINUTE).status is JobStatus.IN_PROGRESS


def test_a_node_that_dies_before_it_was_left_costs_nothing_either() -> None:
    job = a_job_that_hears(leave(), FREE, policy=replace(POLICY, max_retries=0)).sweeps_after(SECOND)
    job.stops(0).is_seen(1, connected=False, gone=True).ends(1, None, "Host EC2 (i-1) terminated.")
    job.sees_the_fleet()
    assert (job.status, job.rank(1).node, job.job.spent.charged) == (JobStatus.RESTARTING, "s0", 0)


def test_a_leave_during_a_recovery_moves_the_rank_too() -> None:
    job = a_job_that_hears(None, FREE).fails(0).stops()
    job.hears(NodeLeaving(at=job.now, node="n1", leave=leave(Notice.SEEN, until=None)))
    job.check_says(Verdict.REBOOT, 0).check_says(Verdict.HEALTHY, 1).reboots(0).check_of(
        "n0", Verdict.HEALTHY
    )
    assert (job.status, job.rank(1).node) == (JobStatus.PENDING_RESTART, "n1"), "it is not started there"
    assert job.sees_the_fleet().status is JobStatus.RESTARTING
    assert (job.rank(1).node, job.job.spent.charged) == ("s0", 1), "what failed is charged"


@pytest.mark.parametrize(
    ("news", "then"),
    [
        (leave(Notice.PERSON, until=None), JobStatus.RESTARTING),  # a person can wait
        (leave(Notice.SEEN, until=None), JobStatus.PENDING_RESTART),
    ],
)
def test_a_job_whose_other_node_was_taken_meanwhile_stays_where_it_can(news: Leave, then: JobStatus) -> None:
    job = a_job_that_hears(news, FREE).sweeps_after(SECOND).stops()
    job.has_also(replace(FREE, job_id="other")).sees_the_fleet()
    assert (job.status, job.rank(1).node) == (then, "n1")


def test_a_job_goes_on_where_it_was_if_its_node_is_not_taken_away_after_all() -> None:
    seen = leave(Notice.SEEN, until=None)
    job = a_job_that_hears(seen, FREE).sweeps_after(SECOND).stops()
    assert job.is_seen(1).status is JobStatus.RESTARTING
    assert job.job.timeline[-2].why == "is not taken away after all"


NODE = replace(some_nodes(1)[0], boot_id="boot-1")


def seen_at(minutes: int, **about: Any) -> NodeSeen:
    known = {"connected": True, "gpus": 8, "boot_id": "boot-1"}
    return NodeSeen(at=T0 + minutes * MINUTE, node="n0", **(known | about))


@pytest.mark.parametrize(
    ("known", "fact", "then"),
    [
        (None, seen_at(0, leave=leave(Notice.SEEN)), Notice.SEEN),
        (leave(Notice.SEEN, until=None), seen_at(0), None),
        (leave(Notice.SEEN, until=None), seen_at(0, connected=False), Notice.SEEN),
        (leave(Notice.PERSON, until=None), seen_at(1000), Notice.PERSON),
        (leave(Notice.TOLD), seen_at(11), Notice.TOLD),
        (leave(Notice.TOLD), seen_at(12), None),  # it is there, ten minutes after the end
        (leave(Notice.TOLD), seen_at(1, leave=leave(Notice.SEEN, until=None)), Notice.TOLD),
        (leave(Notice.MAYBE), NodeLeaving(at=T0, node="n0", leave=leave()), Notice.TOLD),
        (leave(), NodeLeaving(at=T0, node="n0", leave=leave(Notice.MAYBE)), Notice.TOLD),
        (leave(), NodeAsked(at=T0, node="n0", ask="release", by="ann", why="x"), None),
        (None, NodeAsked(at=T0, node="n0", ask="move", by="ann", why="x"), Notice.PERSON),
        (None, NodeAsked(at=T0, node="n0", ask="drain", by="ann", why="x"), None),
    ],
)
def test_a_node_knows_of_its_leave_for_as_long_as_it_holds(
    known: Leave | None, fact: Any, then: Notice | None
) -> None:
    step = decide_node(replace(NODE, leave=known), fact, POLICY)
    assert (step.node.leave and step.node.leave.notice) == then
    again = decide_node(step.node, fact, POLICY)
    assert again.node.leave == step.node.leave


def test_nothing_is_released_of_a_node_in_use_unless_it_was_to_be_left() -> None:
    ask, held = NodeAsked(at=T0, node="n0", ask="release", by="ann", why="x"), replace(NODE, job_id="j")
    with pytest.raises(Refused, match="nothing to release"):
        decide_node(held, ask, POLICY)
    assert decide_node(replace(held, leave=leave()), ask, POLICY).node.leave is None


@pytest.mark.parametrize(
    ("of_node", "of_rank", "told"),
    [
        (leave(), None, True),
        (leave(), leave(), False),
        (None, leave(), True),
        (None, leave(Notice.SEEN, until=None), False),  # what the job saw itself
        (leave(Notice.MAYBE), leave(), False),
        (None, None, False),
    ],
)
def test_the_sweeper_tells_a_job_of_a_leave_that_it_has_not_heard_of(
    of_node: Leave | None, of_rank: Leave | None, told: bool
) -> None:
    rank = replace(a_job_that_hears(None).rank(1), leave=of_rank)
    fact = leave_missed(rank, replace(NODE, leave=of_node), T0)
    assert (fact is not None) is told
    assert leave_missed(rank, replace(NODE, leave=leave()), T0 + 12 * MINUTE) is None, "that is long over"
