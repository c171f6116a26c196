"""From PENDING_HEALTHCHECK, before the first start and after a failure."""

from __future__ import annotations

from itertools import permutations

import pytest

from ecs_gpu_recovery.core.model import JobStatus, Verdict
from ecs_gpu_recovery.core.policy import Policy
from tests.decisions.story import Story

S, V = JobStatus, Verdict


def test_a_checked_job_examines_every_node_before_anything_starts() -> None:
    story = Story(check=True)
    assert story.job.status is S.PENDING_HEALTHCHECK
    assert story.order_names() == ["CheckNode n0", "CheckNode n1"]


def test_the_job_starts_when_every_node_passes() -> None:
    story = Story(check=True).check_started(0).checked(0, V.HEALTHY)
    assert story.job.status is S.PENDING_HEALTHCHECK
    story.checked(1, V.HEALTHY)
    assert story.job.status is S.IN_PROGRESS
    assert story.order_names() == ["StartTask n0", "StartTask n1"]


@pytest.mark.parametrize(("verdict", "node"), [(V.REBOOT, "FAILED"), (V.REPLACE, "FAILED")])
def test_a_job_is_refused_when_a_node_fails_the_first_check_and_the_bad_node_is_marked(verdict: Verdict, node: str) -> None:
    story = Story(check=True).checked(0, V.HEALTHY).checked(1, verdict, "Xid 48")
    assert story.job.status is S.FAILED
    assert story.nodes == ["AVAILABLE", node]
    assert "Xid 48" in story.messages()[0].evidence
    assert story.pending("RebootNode") == []


def test_a_first_check_that_cannot_run_refuses_the_job_and_blames_no_node() -> None:
    story = Story(check=True).checked(0, V.HEALTHY).checked(1, V.INCONCLUSIVE).checked(1, V.INCONCLUSIVE)
    assert story.job.status is S.FAILED
    assert story.nodes == ["AVAILABLE", "AVAILABLE"]


def test_the_job_waits_for_all_verdicts() -> None:
    story = Story(3).failed().checked(0, V.REBOOT)
    assert story.job.status is S.PENDING_HEALTHCHECK
    assert story.pending("RebootNode") == []


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_whatever_the_order_of_the_verdicts_only_the_bad_node_reboots(order: tuple[int, ...]) -> None:
    story = Story(3).failed()
    for rank in order:
        story.checked(rank, V.REBOOT if rank == 1 else V.HEALTHY)
    assert story.job.status is S.PENDING_RESTART
    assert story.nodes == ["AVAILABLE", "REBOOTING", "AVAILABLE"]
    assert [o.effect.node for o in story.pending("RebootNode")] == ["n1"]  # type: ignore[union-attr]


def test_the_retry_is_spent_in_the_commit_that_leaves_the_check() -> None:
    story = Story().waiting_for_reboot()
    assert (story.job.status, story.job.attempt) == (S.PENDING_RESTART, 1)


def test_all_healthy_means_the_program_is_at_fault() -> None:
    story = Story().failed().checked(0, V.HEALTHY).checked(1, V.HEALTHY)
    assert story.job.status is S.FAILED
    assert story.job.outcome == "no GPU fault found"
    assert story.nodes == ["AVAILABLE", "AVAILABLE"]
    assert len(story.messages()) == 1


def test_a_second_failure_spends_no_retry_that_is_not_there() -> None:
    story = Story().waiting_for_reboot().rebooted(0)
    story.failed(1)
    story.checked(0, V.HEALTHY).checked(1, V.REBOOT, "Xid 79")
    assert story.job.status is S.FAILED
    assert story.job.attempt == 1
    assert "retry budget spent" in story.job.outcome
    assert story.nodes == ["AVAILABLE", "FAILED"]
    assert story.pending("RebootNode") == []


def test_no_retries_at_all_means_no_reboot() -> None:
    story = Story(policy=Policy(max_retries=0)).waiting_for_reboot()
    assert story.job.status is S.FAILED
    assert story.pending("RebootNode") == []


def test_a_gpu_to_replace_fails_its_node_without_a_reboot() -> None:
    story = Story().failed().checked(0, V.REPLACE, "SRAM threshold").checked(1, V.HEALTHY)
    assert story.job.status is S.FAILED
    assert story.nodes == ["FAILED", "AVAILABLE"]
    assert story.pending("RebootNode") == []


def test_an_inconclusive_check_is_tried_once_more() -> None:
    story = Story().failed().checked(0, V.INCONCLUSIVE, "DCGM can't be reached")
    assert story.order_names() == ["CheckNode n0"]
    story.checked(0, V.HEALTHY).checked(1, V.HEALTHY)
    assert story.job.status is S.FAILED


def test_a_node_is_never_rebooted_on_a_test_that_did_not_run() -> None:
    story = Story().failed().checked(0, V.INCONCLUSIVE).checked(0, V.INCONCLUSIVE).checked(1, V.HEALTHY)
    assert story.job.status is S.FAILED
    assert "could not be tested" in story.job.outcome
    assert story.nodes == ["AVAILABLE", "AVAILABLE"]
    assert story.pending("RebootNode") == []


def test_a_check_waits_for_the_gpus_that_the_old_task_still_holds() -> None:
    story = Story().failed().check_refused(0, "RESOURCE:GPU")
    (order,) = [o for o in story.pending("CheckNode") if o.effect.node == "n0"]  # type: ignore[union-attr]
    assert order.tries == 1
    assert story.job.ranks[0].verdict is None


def test_a_check_that_can_never_start_counts_as_inconclusive() -> None:
    story = Story().failed().check_refused(0, "MISSING").check_refused(0, "MISSING")
    assert story.job.ranks[0].verdict is V.INCONCLUSIVE


def test_a_check_that_never_answers_runs_into_its_deadline_and_is_stopped() -> None:
    story = Story().failed().check_started(0).check_started(1)
    story.later(minutes=31).tick()
    assert "StopTask n0" in story.order_names()
    story.later(minutes=31).tick()
    assert story.job.status is S.FAILED


def test_a_bad_verdict_counts_even_if_another_check_never_answers() -> None:
    story = Story().failed().check_started(0).checked(1, V.REBOOT)
    story.later(minutes=31).tick().later(minutes=31).tick()
    assert story.job.status is S.PENDING_RESTART
    assert story.nodes == ["AVAILABLE", "REBOOTING"]


def test_a_task_that_never_ends_makes_its_node_lost_not_rebooted() -> None:
    story = Story().running().ended(0, 1).checked(0, V.HEALTHY).later(minutes=6).tick()
    assert story.job.ranks[1].verdict is V.LOST
    assert story.job.status is S.PENDING_RESTART
    assert story.pending("RebootNode") == []


def test_a_lost_node_is_waited_for_and_the_healthy_ones_with_it() -> None:
    story = Story().running().ended(0, None, stop_code="TerminationNotice").stopped_by_us(1).checked(1, V.HEALTHY)
    assert story.job.status is S.PENDING_RESTART
    assert story.nodes == ["UNKNOWN", "AVAILABLE"]


def test_an_answer_of_an_earlier_check_changes_nothing() -> None:
    from ecs_gpu_recovery.core.events import NodeChecked

    story = Story(check=True).checked(0, V.HEALTHY).checked(1, V.HEALTHY).failed()
    before = story.job
    story.tell(NodeChecked(at=story.at, node="n0", check_id="c0-1", check_try=1, verdict=V.REBOOT))
    assert story.job is before


def test_a_person_may_stop_a_job_whose_nodes_are_under_test() -> None:
    story = Story().failed().check_started(0).asked_to_stop()
    assert story.job.status is S.USER_STOPPED
    assert story.nodes == ["AVAILABLE", "AVAILABLE"]
    assert "StopTask n0" in story.order_names()
