"""What is said of the end of a job: the cause first."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.core.job import causes
from ecs_gpu_recovery.core.model import Exit, Rank, Verdict

OOM, EMBEDDED = causes.OUT_OF_MEMORY


def rank(index: int = 1, **about: object) -> Rank:
    given = {"exit": Exit.SUSPECT, "exit_code": 1, "verdict": Verdict.HEALTHY} | about
    return Rank(index=index, node=f"node-{index + 1}", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1, "died with exit code 1"),
        (137, "was killed (SIGKILL)"),
        (139, "was killed (SIGSEGV)"),
        (143, "was killed (SIGTERM)"),
        (255, "died with exit code 255"),
        (None, "ended without an exit code"),
    ],
)
def test_a_signal_is_called_by_its_name(code: int | None, words: str) -> None:
    assert causes.exit_words(code) == words


def test_the_cause_comes_before_what_the_gpus_say() -> None:
    assert causes.no_fault([rank(exit_code=137), rank(0, exit=Exit.STOPPED_BY_US)], "") == (
        "rank 1 on node-2 was killed (SIGKILL); no GPU fault found"
    )


def test_the_last_words_of_the_rank_are_part_of_the_cause() -> None:
    said = rank(last_words="ValueError: batch of size 0")
    assert causes.no_fault([said], "").startswith(
        "rank 1 on node-2 died with exit code 1 (ValueError: batch of size 0); no GPU"
    )
    assert causes.incurable(said).endswith(", which no reboot cures: ValueError: batch of size 0")
    assert len(causes.told(rank(last_words="x" * 4000))) < 250


def test_a_rank_that_fell_over_another_is_not_named() -> None:
    fell = rank(0, last_words="connection reset by peer", echo=True)
    assert causes.culprit([fell, rank(1)]).index == 1
    assert causes.culprit([fell]).index == 0, "unless nobody else is known to have failed"


@pytest.mark.parametrize(
    ("reason", "limit", "words"),
    [
        (
            f"{EMBEDDED}: it used 812 MiB, its limit is 512 MiB",
            512,
            ": it used 812 MiB, its limit is 512 MiB",
        ),
        (f"{OOM}; Essential container in task exited", 4096, ": its limit is 4096 MiB"),
        (OOM, 0, ""),
        ("oom-kill by the node", 0, ": oom-kill by the node"),
    ],
)
def test_out_of_memory_names_the_limit_and_what_was_used(reason: str, limit: int, words: str) -> None:
    starved = rank(exit=Exit.OUT_OF_MEMORY, exit_reason=reason)
    assert causes.not_run(starved, limit) == f"rank 1 on node-2 ran out of memory{words}"


def test_the_evidence_of_each_node_is_its_own() -> None:
    cold = "DCGM: all tests passed"
    found = [
        rank(0, findings=cold),
        rank(1, findings="Xid 79: fallen off the bus", verdict=Verdict.REBOOT),
        rank(2, findings="persistence mode is off"),
        rank(3, findings=cold),
        rank(4, verdict=Verdict.INCONCLUSIVE),
    ]
    assert causes.verdicts(found) == (
        "node-2: reboot (Xid 79: fallen off the bus); node-5: inconclusive; "
        f"node-1, node-4: healthy ({cold}); node-3: healthy (persistence mode is off)"
    )
    assert causes.not_brought_back([rank(0, findings="too late"), rank(1, findings="no GPU")]) == (
        "node-1 could not be brought back: too late; node-2 could not be brought back: no GPU"
    )


def test_what_each_rank_said_last_is_told_by_its_node_where_they_differ() -> None:
    oom, peer = rank(0, last_words="CUDA out of memory"), rank(1, last_words="connection reset")
    assert causes.last_words([oom, rank(2, last_words="CUDA out of memory")]) == "CUDA out of memory"
    assert causes.last_words([oom, peer, rank(3)]) == "node-1: CUDA out of memory; node-2: connection reset"
