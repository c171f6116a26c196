"""What people are told when a job has failed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from ecs_gpu_recovery.core.messages import NO_NEWS, headline, job_failed, node_failed
from ecs_gpu_recovery.core.model import Exit, NodeStatus, Rank, Verdict
from ecs_gpu_recovery.core.node_record import Condemnation
from tests.core.story import T0, some_nodes


def test_the_rank_at_fault_comes_first_however_large_the_gang() -> None:
    stopped = [
        Rank(
            index=i,
            node=f"n{i}",
            exit=Exit.STOPPED_BY_US,
            exit_code=143,
            exit_reason="gpu-recovery j/0: another",
        )
        for i in range(256)
    ]
    culprit = Rank(index=200, node="n200", exit=Exit.FAULT, exit_code=9, exit_reason="it fell over")
    message = job_failed("j", 0, "rank 200 fell", [*stopped[:200], culprit, *stopped[201:]])
    assert message.evidence.startswith(
        "n200: rank 200 fault with exit code 9 (it fell over); n0: rank 0 stopped by us"
    )
    assert "another" not in message.evidence


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        *((said, "") for said in NO_NEWS),
        *(
            (f"CannotPullContainerError: no such image; {said}", " (CannotPullContainerError: no such image)")
            for said in NO_NEWS
        ),
    ],
)
def test_what_is_said_of_every_end_is_no_evidence(reason: str, words: str) -> None:
    died = Rank(index=0, node="n0", exit=Exit.SUSPECT, exit_code=1, exit_reason=reason)
    assert job_failed("j", 0, "why", [died]).evidence == f"n0: rank 0 suspect with exit code 1{words}"


def test_a_stopped_rank_on_a_bad_node_is_no_innocent() -> None:
    fine = Rank(index=0, node="n0", exit=Exit.STOPPED_BY_US, exit_reason="x", verdict=Verdict.HEALTHY)
    bad = Rank(index=1, node="n1", exit=Exit.STOPPED_BY_US, exit_reason="x", verdict=Verdict.REPLACE)
    assert job_failed("j", 0, "why", [fine, bad]).evidence.startswith("n1: verdict replace")


@pytest.mark.parametrize(
    ("verdict", "attempt", "steps"),
    [
        (Verdict.REBOOT, 1, ["node reboot n0", "node check n0 --wait", "have it replaced", "retry j"]),
        # its reboot was tried, in vain
        (
            Verdict.REBOOT,
            2,
            ["Look at n0", "node check n0", "give it back", "node release n0", "retry j"],
        ),
        (
            Verdict.REPLACE,
            1,
            ["Look at n0", "node check n0", "give it back", "node release n0", "retry j"],
        ),
    ],
)
def test_a_node_is_given_back_only_after_what_cures_it(
    verdict: Verdict, attempt: int, steps: list[str]
) -> None:
    bad = Rank(index=0, node="n0", node_status=NodeStatus.FAILED, verdict=verdict, task_attempt=1)
    told = job_failed("j", attempt, "why", [bad]).next
    assert [step for step in sorted(steps, key=told.find) if step in told] == steps
    assert ("node release" in told) is ("node release n0" in steps)


def test_a_free_node_that_needs_a_reboot_is_not_to_be_released() -> None:
    node = replace(some_nodes(1)[0], verdict=Verdict.REBOOT)
    curable = node_failed(node, "the check says reboot: Xid 79").next
    assert "gpu-recovery node reboot n0" in curable
    assert "release" not in curable
    cured = Condemnation(at=T0, verdict=Verdict.REBOOT, repair="reboot", outcome="cured")
    again = replace(cured, at=T0 + timedelta(hours=1))
    often = replace(cured, at=T0 + timedelta(hours=2), repair="")
    for broken in (
        replace(node, verdict=Verdict.REPLACE),
        replace(node, condemned=(replace(cured, outcome="the reboot did not cure it"),)),
        replace(node, condemned=(cured, again, often)),  # the third within a week
    ):
        advice = node_failed(broken, "broken").next
        assert "node reboot" not in advice
        assert 0 < advice.find("gpu-recovery node check n0") < advice.find("gpu-recovery node release n0")
    assert (
        "node reboot"
        in node_failed(replace(node, condemned=(cured, replace(often, outcome="its job ended"))), "").next
    )


def test_who_is_told_of_a_reboot_in_vain_is_told_where_its_evidence_is() -> None:
    (node,) = some_nodes(1)
    assert "gpu-recovery evidence" not in node_failed(node, "broken").next
    assert "gpu-recovery evidence n0" in node_failed(replace(node, kept="k.tar.gz"), "not cured").next
    bad = Rank(index=0, node="n0", node_status=NodeStatus.FAILED, verdict=Verdict.REPLACE, task_attempt=1)
    assert "gpu-recovery evidence j" in job_failed("j", 1, "why", [bad]).next
    assert "gpu-recovery evidence" not in job_failed("j", 0, "why", [bad]).next
    hung = replace(bad, node_status=NodeStatus.AVAILABLE, verdict=Verdict.HEALTHY, hung=True)
    assert "gpu-recovery evidence j" in job_failed("j", 0, "why", [hung]).next
    for rank in (bad, hung):
        assert "evidence" not in job_failed("j", 1, "why", [rank], keeps_evidence=False).next


def test_a_job_whose_node_was_replaced_under_another_name_is_to_be_run_with_the_new_one() -> None:
    old = Rank(
        index=0,
        node="n0",
        node_status=NodeStatus.FAILED,
        verdict=Verdict.REPLACE,
        findings="replaced by i-2: Xid 48",
        task_attempt=1,
    )
    fine = Rank(index=1, node="n1", node_status=NodeStatus.AVAILABLE)
    told = job_failed("j", 2, "why", [old, fine])
    assert (told.node, told.done) == ("i-2", "All tasks were stopped; n0 was replaced by i-2; n1 released.")
    assert told.next == (
        "Wait until i-2 is examined: gpu-recovery node show i-2. What nodes kept before a repair:"
        " gpu-recovery evidence j. Then run the job again: gpu-recovery retry j --nodes i-2,n1."
        " More: docs/runbooks/job-failed.md"
    )


def test_a_subject_is_cut_between_two_words() -> None:
    assert headline("Job j failed: out of memory") == "Job j failed: out of memory"
    assert headline("four " * 18 + "end, overlong last word") == "four " * 18 + "end…"
    assert headline("x" * 200) == "x" * 97 + "…"  # with three dots instead it still fits
