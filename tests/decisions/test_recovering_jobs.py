"""From PENDING_RESTART and RESTARTING."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.core.errors import Refused
from ecs_gpu_recovery.core.model import JobStatus, Verdict
from ecs_gpu_recovery.core.policy import Policy
from tests.decisions.story import Story

S, V = JobStatus, Verdict


def test_the_gang_restarts_when_the_reboot_is_proven() -> None:
    story = Story().waiting_for_reboot().rebooted(0)
    assert story.job.status is S.RESTARTING
    assert story.order_names() == ["StartTask n0", "StartTask n1"]
    assert story.nodes == ["AVAILABLE", "AVAILABLE"]


def test_an_active_instance_alone_is_no_proof_of_a_reboot() -> None:
    story = Story().waiting_for_reboot().seen(0, gpus=8, version=9)
    assert story.job.status is S.PENDING_RESTART


def test_a_disconnect_and_a_connect_alone_are_no_proof_of_a_reboot() -> None:
    story = Story().waiting_for_reboot().seen(0, connected=False).seen(0, connected=True)
    assert story.job.status is S.PENDING_RESTART


def test_a_rebooted_node_must_be_connected() -> None:
    story = Story().waiting_for_reboot().seen(0, connected=False).rebooted(0)
    assert story.job.status is S.PENDING_RESTART
    assert story.seen(0, connected=True).job.status is S.RESTARTING


def test_a_rebooted_node_must_have_all_its_gpus() -> None:
    story = Story().waiting_for_reboot().seen(0, gpus=7).rebooted(0)
    assert story.job.status is S.PENDING_RESTART
    assert story.seen(0, gpus=8).job.status is S.RESTARTING


def test_a_node_that_comes_back_with_fewer_gpus_fails_at_the_deadline() -> None:
    story = Story().waiting_for_reboot().seen(0, gpus=7).rebooted(0).later(minutes=31).tick()
    assert story.job.status is S.FAILED
    assert "7 of 8 GPUs" in story.job.outcome
    assert story.nodes == ["FAILED", "AVAILABLE"]


def test_a_reboot_that_does_not_return_fails_node_and_job_and_tells_someone() -> None:
    story = Story().waiting_for_reboot().seen(0, connected=False).later(minutes=31).tick()
    assert story.job.status is S.FAILED
    assert story.nodes == ["FAILED", "AVAILABLE"]
    assert len(story.messages()) == 1


def test_a_reboot_that_cannot_be_ordered_fails_node_and_job() -> None:
    story = Story().waiting_for_reboot().reboot_failed(0)
    assert story.job.status is S.FAILED
    assert story.nodes == ["FAILED", "AVAILABLE"]


def test_the_gang_waits_for_a_healthy_node_that_went_away_meanwhile() -> None:
    story = Story().waiting_for_reboot().seen(1, connected=False).rebooted(0)
    assert story.job.status is S.PENDING_RESTART
    assert story.seen(1, connected=True).job.status is S.RESTARTING


def test_a_lost_node_is_back_when_it_is_connected_and_its_old_task_has_ended() -> None:
    story = Story().running().seen(0, connected=False).later(minutes=11).tick().stopped_by_us(1).checked(1, V.HEALTHY)
    assert story.job.status is S.PENDING_RESTART
    story.seen(0, connected=True)
    assert story.job.status is S.PENDING_RESTART
    story.ended(0, 255)
    assert story.job.status is S.RESTARTING


def test_with_a_check_after_the_reboot_a_cured_node_goes_back_to_work() -> None:
    story = Story(policy=Policy(post_reboot_check=True)).waiting_for_reboot().rebooted(0)
    assert story.nodes[0] == "PENDING_HEALTHCHECK"
    assert story.order_names() == ["CheckNode n0"]
    assert story.checked(0, V.HEALTHY).job.status is S.RESTARTING


def test_with_a_check_after_the_reboot_an_uncured_node_fails() -> None:
    story = Story(policy=Policy(post_reboot_check=True)).waiting_for_reboot().rebooted(0).checked(0, V.REBOOT)
    assert story.job.status is S.FAILED
    assert story.nodes == ["FAILED", "AVAILABLE"]


def test_a_person_may_stop_a_job_that_waits_and_the_reboot_goes_on_as_the_nodes_own_errand() -> None:
    story = Story().waiting_for_reboot().asked_to_stop()
    assert story.job.status is S.USER_STOPPED
    assert story.nodes == ["REBOOTING", "AVAILABLE"]


def test_the_job_runs_again_when_every_rank_has_started() -> None:
    story = Story().waiting_for_reboot().rebooted(0).started(0)
    assert story.job.status is S.RESTARTING
    assert story.started(1).job.status is S.IN_PROGRESS
    assert story.job.attempt == 1


def test_a_rank_that_dies_while_others_still_start_is_dealt_with_once_they_have() -> None:
    story = Story().waiting_for_reboot().rebooted(0).started(0).ended(0, 1)
    assert story.job.status is S.RESTARTING
    assert story.started(1).job.status is S.PENDING_HEALTHCHECK


def test_all_ranks_start_or_none_stays() -> None:
    story = Story().waiting_for_reboot().rebooted(0).started(0).start_refused(1, "ATTRIBUTE")
    assert story.order_names() == ["StopTask n0"]
    assert story.stopped_by_us(0).job.status is S.FAILED


def test_a_person_may_stop_a_job_that_is_restarting() -> None:
    story = Story().waiting_for_reboot().rebooted(0).started(0).asked_to_stop()
    story.stopped_by_us(0)
    story.ended(1, None, stop_code="UserInitiated", reason="gpu-recovery j/1: withdrawn")
    assert story.job.status is S.USER_STOPPED


def test_a_full_recovery_ends_complete() -> None:
    story = Story().waiting_for_reboot().rebooted(0).started().ended(0, 0).ended(1, 0)
    assert (story.job.status, story.job.attempt) == (S.COMPLETE, 1)
    assert story.nodes == ["AVAILABLE", "AVAILABLE"]


@pytest.mark.parametrize("make", [lambda s: s.ended(0, 0).ended(1, 0), lambda s: s.asked_to_stop().stopped_by_us(0, 1)])
def test_a_final_state_never_changes_and_stopping_it_is_refused(make: object) -> None:
    story = Story().running()
    make(story)  # type: ignore[operator]
    final = story.job.status
    story.seen(0, connected=False).later(days=1).tick().ended(0, 1)
    assert story.job.status is final
    with pytest.raises(Refused, match="already ended"):
        story.asked_to_stop()


def test_every_transition_is_written_down_with_its_reason_and_policy() -> None:
    story = Story().waiting_for_reboot().rebooted(0).started().ended(0, 0).ended(1, 0)
    moves = [(e.before, e.after) for e in story.job.timeline if e.subject == "job"]
    assert moves == [("", "IN_PROGRESS"), ("IN_PROGRESS", "PENDING_HEALTHCHECK"), ("PENDING_HEALTHCHECK", "PENDING_RESTART"),
                     ("PENDING_RESTART", "RESTARTING"), ("RESTARTING", "IN_PROGRESS"), ("IN_PROGRESS", "COMPLETE")]  # fmt: skip
    assert all(e.why and e.policy == story.policy.version for e in story.job.timeline)


def test_the_timeline_is_bounded_and_what_leaves_it_is_archived() -> None:
    story = Story(4, policy=Policy(timeline_limit=10)).waiting_for_reboot().rebooted(0).started()
    assert len(story.job.timeline) <= 10
    archived = [line for order in story.pending("Archive") for line in order.effect.lines]  # type: ignore[union-attr]
    assert any("submitted" in line for line in archived)
