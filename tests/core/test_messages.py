"""What people are told when a job has failed."""

from __future__ import annotations

from ecs_gpu_recovery.core.messages import job_failed
from ecs_gpu_recovery.core.model import Exit, Rank, Verdict


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


def test_a_stopped_rank_on_a_bad_node_is_no_innocent() -> None:
    fine = Rank(index=0, node="n0", exit=Exit.STOPPED_BY_US, exit_reason="x", verdict=Verdict.HEALTHY)
    bad = Rank(index=1, node="n1", exit=Exit.STOPPED_BY_US, exit_reason="x", verdict=Verdict.REPLACE)
    assert job_failed("j", 0, "why", [fine, bad]).evidence.startswith("n1: verdict replace")
