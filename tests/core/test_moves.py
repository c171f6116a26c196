"""Ranks that move: to a spare, to any free node of the same kind, or nowhere; and jobs that wait for a node."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ecs_gpu_recovery.core import handover
from ecs_gpu_recovery.core.effects import CheckNode, Notify, StartTask
from ecs_gpu_recovery.core.errors import NodesTaken
from ecs_gpu_recovery.core.events import FaultSeen, NodeAsked, NodesOffered
from ecs_gpu_recovery.core.job.table import decide
from ecs_gpu_recovery.core.model import JobSpec, JobStatus, NodeStatus, TaskStatus, Verdict
from ecs_gpu_recovery.core.node.table import decide_node
from ecs_gpu_recovery.core.node_record import Hold, Node
from ecs_gpu_recovery.core.rows import task_row
from tests.core.story import MINUTE, POLICY, T0, Story, like, some_nodes

KIND = "EC2 p5.48xlarge use1-az1"


def spare(name: str = "s0", **about: Any) -> Node:
    given = {"kind": KIND, "spare": True, "ip": "10.0.0.9", "host": "i-9", "instance": "arn/9"} | about
    return replace(some_nodes(1, **given)[0], name=name)


def a_job_whose_node(
    verdict: Verdict, *spares: Node, nodes: int = 2, failover: str = "spares", **spec: Any
) -> Story:
    """Rank 1, or the only one, died, and its node got this verdict; the others are healthy."""
    last = nodes - 1
    job = Story(nodes=nodes, spec=JobSpec(failover=failover, **spec), kind=KIND).has_also(*spares)
    job.starts().fails(last).stops()
    for rank in range(nodes):
        job.check_says(
            verdict if rank == last else Verdict.HEALTHY, rank, findings="Xid 79" if rank == last else ""
        )
    return job.sees_the_fleet()


@pytest.mark.parametrize("verdict", [Verdict.REBOOT, Verdict.REPLACE])
def test_a_rank_whose_node_is_bad_moves_to_a_spare_which_is_examined_first(verdict: Verdict) -> None:
    job = a_job_whose_node(verdict, spare()).sees_the_fleet()
    rank = job.rank(1)
    assert (job.status, rank.node, rank.index, rank.address, rank.host) == (
        JobStatus.PENDING_RESTART, "s0", 1, "10.0.0.9", "i-9",
    )  # fmt: skip
    assert like(CheckNode, node="s0", rank=1) in job.outbox
    assert job.job.timeline[-2].why == "rank 1 moved from n1 to s0"
    assert (job.nodes["s0"].job_id, job.nodes["s0"].status) == ("j", NodeStatus.ASSIGNED)
    job.check_of("s0", Verdict.HEALTHY)
    assert (job.status, job.job.attempt) == (JobStatus.RESTARTING, 1)
    assert [order for order in job.orders if isinstance(order, StartTask)] == [
        like(StartTask, rank=0, node="n0"),
        like(StartTask, rank=1, node="s0"),
    ]


def a_new_job(*free: Node, failover: str = "any") -> Story:
    """It is examined before its first start; n1 is bad."""
    job = Story(nodes=2, check=True, spec=JobSpec(failover=failover), kind=KIND).has_also(*free)
    return job.check_says(Verdict.HEALTHY, 0).check_says(Verdict.REBOOT, 1, findings="Xid 79")


def test_before_the_first_start_a_bad_node_is_handed_over_and_another_taken() -> None:
    job = a_new_job(spare(spare=False, passed_at=T0))
    assert (job.status, job.node(1).status) == (JobStatus.PENDING_HEALTHCHECK, NodeStatus.REBOOTING)
    job.sees_the_fleet()
    assert (job.rank(1).node, job.node(1).job_id, job.nodes["s0"].job_id) == ("s0", "", "j")
    assert like(CheckNode, node="s0", rank=1) in job.outbox, "whatever was found on it of late"
    assert job.check_of("s0", Verdict.HEALTHY).status is JobStatus.IN_PROGRESS
    assert (job.job.attempt, job.job.spent.charged) == (0, 0)


@pytest.mark.parametrize(
    ("free", "failover"),
    [((), "any"), ((spare(),), "any"), ((spare(spare=False, kind="other"),), "any"),
     ((spare(spare=False),), "spares"), ((spare(spare=False),), "none")],
)  # fmt: skip
def test_it_is_refused_where_no_other_node_is_left_or_it_named_its_own(
    free: tuple[Node, ...], failover: str
) -> None:
    job = a_new_job(*free, failover=failover).sees_the_fleet()
    assert job.status is JobStatus.FAILED
    assert job.job.outcome == "refused by the check before the first start"
    assert job.rank(0).node_status is NodeStatus.AVAILABLE


def test_the_next_node_may_be_bad_too_and_the_repaired_one_wins_if_it_is_back_first() -> None:
    job = a_new_job(spare(spare=False)).sees_the_fleet().check_of("s0", Verdict.REPLACE)
    assert job.nodes["s0"].status is NodeStatus.FAILED
    assert job.sees_the_fleet().status is JobStatus.FAILED
    back = a_new_job()
    assert back.reboots(1).rank(1).verdict is None
    assert back.check_of("n1", Verdict.HEALTHY).status is JobStatus.IN_PROGRESS


def test_a_person_stops_a_new_job_that_looks_for_another_node() -> None:
    assert a_new_job().person_stops_it().status is JobStatus.USER_STOPPED


def test_a_node_that_is_left_behind_is_nobodys_and_its_repair_goes_on() -> None:
    job = a_job_whose_node(Verdict.REBOOT, spare())
    reboot = job.node(1).outbox
    job.sees_the_fleet()
    left = job.node(1)
    assert (left.job_id, left.own, left.status, left.outbox) == ("", True, NodeStatus.REBOOTING, reboot)
    assert left.timeline[-1].why == "rank 1 of job j moved to s0"
    assert left.deadline is not None


def test_a_broken_node_that_is_left_behind_tells_people_itself() -> None:
    job = a_job_whose_node(Verdict.REPLACE, spare()).sees_the_fleet()
    assert job.node(1).status is NodeStatus.FAILED
    assert [order.effect for order in job.node(1).outbox] == [like(Notify, node="n1")]


def test_without_a_spare_a_job_whose_node_must_be_replaced_ends_as_ever() -> None:
    job = a_job_whose_node(Verdict.REPLACE)
    assert (job.status, job.job.attempt) == (JobStatus.FAILED, 0)
    assert "n1 must be replaced" in job.job.outcome


def test_without_a_spare_a_job_waits_for_its_own_node() -> None:
    job = a_job_whose_node(Verdict.REBOOT).sees_the_fleet()
    assert (job.status, job.rank(1).node) == (JobStatus.PENDING_RESTART, "n1")
    assert job.reboots(1).status is JobStatus.RESTARTING


def test_the_jobs_own_node_wins_if_it_is_back_first() -> None:
    job = a_job_whose_node(Verdict.REBOOT)
    fleet = tuple(job.nodes.values())
    job.has_also(spare()).reboots(1)
    assert job.status is JobStatus.RESTARTING
    assert decide(job.job, NodesOffered(at=T0, nodes=fleet), POLICY).job is job.job


@pytest.mark.parametrize(
    ("failover", "node", "moves"),
    [
        ("spares", {}, True),
        ("spares", {"spare": False}, False),
        ("any", {"spare": False}, True),
        ("none", {}, False),
        ("", {}, False),
        ("any", {"kind": ""}, False),
        ("any", {"kind": "EC2 p4d.24xlarge use1-az1"}, False),
        ("any", {"gpus": 4, "gpus_seen": 4}, False),
        ("any", {"ibdev": "mlx5_0"}, False),
        ("any", {"gpus_seen": 7}, False),
        ("any", {"connected": False}, False),
        ("any", {"status": NodeStatus.UNKNOWN}, False),
        ("any", {"hold": Hold(by="ann", why="fan", at=T0)}, False),
        ("any", {"job_id": "other"}, False),
    ],
)
def test_a_rank_moves_only_to_a_free_node_that_is_like_its_own(
    failover: str, node: dict[str, Any], moves: bool
) -> None:
    job = a_job_whose_node(Verdict.REBOOT, spare(**node), failover=failover).sees_the_fleet()
    assert (job.rank(1).node == "s0") is moves


def in_a_frozen_fleet(job: Story) -> Story:
    return job.hears(NodesOffered(at=job.now, nodes=tuple(job.nodes.values()), frozen=True))


@pytest.mark.parametrize("verdict", [Verdict.REBOOT, Verdict.REPLACE])
def test_in_a_frozen_fleet_no_free_node_replaces_a_condemned_one(verdict: Verdict) -> None:
    job = a_job_whose_node(verdict, spare(job_id="other")).has_also(spare())
    in_a_frozen_fleet(job)
    assert (job.status, job.rank(1).node) == (JobStatus.PENDING_RESTART, "n1")
    assert job.sees_the_fleet().rank(1).node == "s0", "after the thaw it moves"


def test_in_a_frozen_fleet_a_new_job_whose_node_is_bad_is_refused() -> None:
    job = in_a_frozen_fleet(a_new_job(spare(spare=False, passed_at=T0)))
    assert (job.status, job.nodes["s0"].job_id) == (JobStatus.FAILED, "")


def test_spares_come_first_and_then_the_cleanest_record() -> None:
    job = a_job_whose_node(
        Verdict.REBOOT, spare("a", spare=False), spare("b"), failover="any"
    ).sees_the_fleet()
    assert job.rank(1).node == "b"


def test_a_node_that_passed_a_check_lately_is_not_examined_again() -> None:
    job = a_job_whose_node(Verdict.REBOOT, spare(passed_at=T0 - timedelta(hours=5))).sees_the_fleet()
    assert (job.status, job.nodes["s0"].status) == (JobStatus.RESTARTING, NodeStatus.AVAILABLE)
    stale = a_job_whose_node(Verdict.REBOOT, spare(passed_at=T0 - timedelta(hours=7))).sees_the_fleet()
    assert like(CheckNode, node="s0") in stale.outbox


def test_a_taken_node_that_is_bad_is_handed_over_too_and_the_next_is_taken() -> None:
    job = a_job_whose_node(Verdict.REBOOT, spare(), spare("s1")).sees_the_fleet()
    job.check_of("s0", Verdict.REBOOT)
    assert (job.nodes["s0"].status, job.rank(1).handed) == (NodeStatus.REBOOTING, "j/1/1/reboot/1")
    assert job.sees_the_fleet().rank(1).node == "s1"
    assert job.nodes["s0"].job_id == ""


def test_what_was_picked_and_is_gone_meanwhile_is_not_claimed() -> None:
    job = a_job_whose_node(Verdict.REBOOT)
    step = decide(job.job, NodesOffered(at=T0, nodes=(*job.nodes.values(), spare())), POLICY)
    job.has_also(spare(job_id="other"))
    with pytest.raises(NodesTaken, match="in use by job other"):
        handover.taken(job.job, step.job, job.nodes.__getitem__, POLICY)


def test_the_row_of_the_old_task_stays_as_it_was() -> None:
    job = a_job_whose_node(Verdict.REBOOT)
    before = task_row(job.job, job.rank(1))
    job.has_also(spare()).sees_the_fleet()
    assert before is not None
    assert before["node_name"] == "n1"
    assert task_row(job.job, job.rank(1)) is None
    assert job.rank(1).past_tasks == (f"0/{before['ecs_task_id']}",)


# -- lost nodes ----------------------------------------------------------------------------------------------------


def a_job_that_lost_a_node(*spares: Node, nodes: int = 2, **spec: Any) -> Story:
    job = Story(nodes=nodes, spec=JobSpec(failover="spares", **spec), kind=KIND).has_also(*spares).starts()
    job.loses(nodes - 1)
    if nodes > 1:
        job.stops(0).check_says(Verdict.HEALTHY, 0)
    return job.sees_the_fleet()


def test_a_rank_leaves_a_lost_node_only_when_its_task_has_had_time_to_end() -> None:
    job = a_job_that_lost_a_node(spare())
    assert (job.status, job.rank(1).node) == (JobStatus.PENDING_RESTART, "n1")
    assert job.job.look_at == T0 + POLICY.failover_lost_after
    job.after(POLICY.failover_lost_after - POLICY.node_lost_after).sees_the_fleet()
    assert (job.rank(1).node, job.node(1).anew) == ("s0", True)


def test_a_rank_leaves_a_lost_node_in_a_frozen_fleet_too_as_nothing_was_found_on_it() -> None:
    job = a_job_that_lost_a_node(spare()).after(POLICY.failover_lost_after)
    assert in_a_frozen_fleet(job).rank(1).node == "s0"


def test_a_rank_leaves_a_lost_node_at_once_when_its_task_is_known_to_have_ended() -> None:
    job = a_job_that_lost_a_node(spare())
    job.ends(1, None, "Host EC2 (instance i-1) terminated.", "TerminationNotice").sees_the_fleet()
    assert job.rank(1).node == "s0"


@pytest.mark.parametrize("fenced", [True, False])
def test_a_job_of_one_node_leaves_a_lost_one_only_behind_a_fence(fenced: bool) -> None:
    job = a_job_that_lost_a_node(spare(), nodes=1, fenced=fenced)
    job.after(POLICY.failover_lost_after).sees_the_fleet()
    assert (job.rank(0).node == "s0") is fenced


def test_a_lost_node_that_was_left_is_examined_before_it_is_used_again() -> None:
    job = a_job_that_lost_a_node(spare()).after(POLICY.failover_lost_after).sees_the_fleet()
    job.is_seen(1)
    assert job.node(1).status is NodeStatus.PENDING_HEALTHCHECK
    assert job.node(1).outbox[-1].effect == like(CheckNode, idle=True)


def test_the_row_of_a_task_on_a_lost_node_says_that_its_rank_left() -> None:
    from ecs_gpu_recovery.core.rows import LEFT, changes

    job = a_job_that_lost_a_node(spare())
    before = job.job
    job.after(POLICY.failover_lost_after).sees_the_fleet()
    (row,) = [row for row in changes(before, job.job).tasks if row["node_index_in_job"] == "1"]
    assert (row["node_name"], row["task_status"], row["exit_reason"]) == ("n1", TaskStatus.TERMINATED, LEFT)


# -- waiting -------------------------------------------------------------------------------------------------------


def a_waiting_job() -> Story:
    """Its node is broken for good, and the only spare is in other hands."""
    return a_job_whose_node(Verdict.REPLACE, spare(job_id="other")).sees_the_fleet()


def test_a_job_waits_for_a_spare_that_another_job_has() -> None:
    job = a_waiting_job()
    assert (job.status, job.job.waiting_since) == (JobStatus.PENDING_RESTART, T0)
    assert job.has_also(spare()).sees_the_fleet().rank(1).node == "s0"
    assert job.job.waiting_since is None


def test_people_are_told_once_that_a_job_waits() -> None:
    job = a_waiting_job().sweeps_after(14 * MINUTE)
    assert job.orders == []
    assert job.sweeps_after(MINUTE).orders == [like(Notify, key="j/notify/waits.1")]
    assert job.job.timeline[-1].why == f"waits for 1 of 2 nodes since {T0:%Y-%m-%d %H:%M} UTC"
    assert job.sweeps_after(MINUTE).orders == []


def test_a_wait_has_an_end() -> None:
    job = a_waiting_job().sweeps_after(POLICY.wait_for_nodes)
    assert job.status is JobStatus.FAILED
    assert job.job.outcome == "no node was found for rank 1 within 12 hours"


def test_a_person_stops_a_job_that_waits() -> None:
    assert a_waiting_job().person_stops_it().status is JobStatus.USER_STOPPED


def test_a_job_that_waits_in_vain_ends() -> None:
    """The only spare has failed too."""
    job = a_waiting_job().has_also(spare(status=NodeStatus.FAILED)).sees_the_fleet()
    assert job.status is JobStatus.FAILED


def test_a_node_that_a_person_repairs_and_releases_is_the_jobs_again_once_it_passed_a_check() -> None:
    job = a_waiting_job()
    job._node_hears(job.node(1), NodeAsked(at=T0, node="n1", ask="release", by="ann", why="new GPU"))
    assert like(CheckNode, node="n1") in job.outbox
    assert job.check_of("n1", Verdict.HEALTHY).status is JobStatus.RESTARTING


def test_of_two_bad_nodes_the_one_that_is_dead_gets_the_only_spare() -> None:
    job = Story(nodes=2, spec=JobSpec(failover="spares"), kind=KIND).has_also(spare()).starts().fails(0, 1)
    job.check_says(Verdict.REBOOT, 0).check_says(Verdict.REPLACE, 1).sees_the_fleet().sees_the_fleet()
    assert [rank.node for rank in job.job.ranks] == ["n0", "s0"]
    assert job.check_of("s0", Verdict.HEALTHY).status is JobStatus.PENDING_RESTART
    assert job.reboots(0).status is JobStatus.RESTARTING


def test_a_job_with_more_dead_nodes_than_spares_takes_none() -> None:
    job = Story(nodes=2, spec=JobSpec(failover="spares"), kind=KIND).has_also(spare()).starts().fails(0, 1)
    job.check_says(Verdict.REPLACE, 0, 1).sees_the_fleet()
    assert (job.status, job.nodes["s0"].job_id) == (JobStatus.FAILED, "")


def test_a_fault_puts_out_what_a_check_found_before_and_old_news_of_it_does_not() -> None:
    seen = FaultSeen(at=T0, node="s0", evidence="Xid 63")
    node = decide_node(spare(passed_at=T0), seen, POLICY).node
    assert node.passed_at is None
    passed = replace(node, passed_at=T0 + MINUTE)
    assert decide_node(passed, seen, POLICY).node is passed
