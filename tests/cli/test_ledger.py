"""Where the time went, as the records tell it."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ecs_gpu_recovery.core.events import GangStalled
from ecs_gpu_recovery.core.exits import our_reason
from ecs_gpu_recovery.core.model import Job, JobStatus, Verdict
from ecs_gpu_recovery.ledger import (
    CHECKING,
    REPAIRING,
    STANDING,
    STARTING,
    STOPPING,
    TRAINING,
    Ledger,
    account,
    poisson_interval,
)
from tests.cli.conftest import Command
from tests.core.story import POLICY, Story, a_new_job

UUID = "GPU-12efe996-9211-55fc-9cd5-3c98602fe824"
FOUND = f"1 of 2 GPUs found; Xid 79 on GPU 0000:01:00 (fallen off the bus) [{UUID}]"
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def later(story: Story, wait: timedelta) -> Story:
    story.now += wait
    return story


def a_recovered_job(hours: int = 10) -> Story:
    """Two nodes of eight GPUs: a fault after so many hours, and the whole recovery in known steps."""
    story = later(a_new_job(2).starts(), hours * HOUR).fails(1)
    later(story, 3 * MINUTE).stops().check_starts(0, 1)
    later(story, 2 * MINUTE).check_says(Verdict.HEALTHY, 0).check_says(Verdict.REBOOT, 1, findings=FOUND)
    later(story, 10 * MINUTE).reboots(1)
    later(story, 1 * MINUTE).starts()
    return story


def in_minutes(ledger: Ledger) -> dict[str, float]:
    """Of a gang with sixteen GPUs."""
    return {kind: round(hours * 60 / 16, 6) for kind, hours in ledger.hours.items() if hours}


def test_every_minute_of_a_recovery_has_its_place() -> None:
    story = later(a_recovered_job(), 5 * HOUR).finishes()
    assert story.status is JobStatus.COMPLETE
    ledger = account([story.job], story.now)
    assert in_minutes(ledger) == {TRAINING: 900, STOPPING: 3, CHECKING: 2, REPAIRING: 10, STARTING: 1}
    assert ledger.effective == pytest.approx(900 / 916)


def test_what_was_lost_is_told_by_cause_and_node() -> None:
    story = later(a_recovered_job(), HOUR)
    (row,) = account([story.job], story.now).causes
    assert (row.cause, row.node, row.rule, row.gpu, row.times) == ("GPU fault", "n1", "Xid 79", UUID, 1)
    assert row.gpu_hours * 60 / 16 == pytest.approx(16)


@pytest.mark.parametrize("code", [143, 137])
@pytest.mark.parametrize("words", ["", "Received SIGTERM"])
@pytest.mark.parametrize(("odd", "node"), [(("n1",), "n1"), ((), "")])
def test_a_gang_that_hung_stood_still_since_its_last_witness_did(
    odd: tuple[str, ...], node: str, words: str, code: int
) -> None:
    again = replace(POLICY, restart_when_healthy="progress")
    story = later(a_new_job(2, policy=again).starts().gets_to(5), 22 * HOUR)
    last = story.now - 12 * MINUTE
    seen = {"still_since": last, "silent_since": last - MINUTE, "still_until": story.now, "odd": odd}
    story.hears(GangStalled(at=story.now, attempt=0, spinning=True, **seen))
    later(story, 3 * MINUTE)
    for rank in (0, 1):
        ended = story.ended(rank, code, our_reason("j", 0, "the gang hangs"), "UserInitiated")
        story.hears(replace(ended, last_words=words))
    story.check_starts(0, 1)
    later(story, 2 * MINUTE).check_says(Verdict.HEALTHY, 0).check_says(Verdict.HEALTHY, 1)
    later(story, MINUTE).starts()
    ledger = account([story.job], story.now)
    spent = {TRAINING: 22 * 60 - 12, STANDING: 12, STOPPING: 3, CHECKING: 2, STARTING: 1}
    assert in_minutes(ledger) == spent
    (row,) = ledger.causes
    assert (row.cause, row.node, row.gpu_hours * 60 / 16) == ("hang", node, pytest.approx(18))


@pytest.mark.parametrize(
    ("since", "training", "failures"),
    [(timedelta(hours=2), 120, 0), (timedelta(hours=5, minutes=16), 300, 1), (timedelta(days=9), 900, 1)],
)
def test_only_the_stretch_that_was_asked_for_counts(since: timedelta, training: float, failures: int) -> None:
    story = later(a_recovered_job(), 5 * HOUR)
    ledger = account([story.job], story.now, story.now - since)
    assert (in_minutes(ledger)[TRAINING], len(ledger.failures)) == (training, failures)


def test_jobs_add_up() -> None:
    one, other = later(a_recovered_job(), HOUR), later(a_recovered_job(3), 8 * HOUR)
    both = account([one.job, other.job], one.now)
    assert both.total == pytest.approx(
        account([one.job], one.now).total + account([other.job], one.now).total
    )
    assert [row.times for row in both.causes] == [2]


def test_the_time_between_failures_has_its_uncertainty() -> None:
    story = later(a_recovered_job(), 10 * HOUR)
    mean, low, high = account([story.job], story.now).mean_time_to_failure()
    assert mean == pytest.approx(40), "two nodes for twenty hours, one failure"
    assert high is not None
    assert (low, high) == (pytest.approx(40 / 5.5716, rel=1e-4), pytest.approx(40 / 0.025318, rel=1e-4))


@pytest.mark.parametrize(
    ("count", "low", "high"), [(0, 0.0, 3.68888), (1, 0.025318, 5.571643), (10, 4.795389, 18.390356)]
)
def test_the_interval_is_the_exact_one(count: int, low: float, high: float) -> None:
    assert poisson_interval(count) == (pytest.approx(low, rel=1e-5), pytest.approx(high, rel=1e-5))


def test_advice_follows_from_what_was_seen() -> None:
    story = later(a_recovered_job(), 10 * HOUR)
    ledger = account([story.job], story.now)
    assert ledger.checkpoint_interval(60.0) == pytest.approx((2 * 60 * 20 * 3600) ** 0.5)
    assert Ledger(down_h=50, window_h=100).spares() == 3, "half a node on average: 99.8 % of the time"
    assert Ledger().checkpoint_interval(60.0) is None
    assert Ledger().spares() == 0
    assert [Ledger(node_h=hours).telling for hours in (3, 4)] == [False, True], "95 %: at least an hour"


def test_the_command_tells_it_of_one_job_of_all_and_to_scripts(here: Command, script: Path) -> None:
    done = here(
        "submit", "--any", 1, "--id", "counted", "--check", "none", "--wait", "--", sys.executable, script
    )
    assert done.code == 0, done
    here("report", "counted").tells(
        "1 job, ", "stopped 0 times\nhow often a node fails: too little data yet\n"
    )
    told = here("report", "--since", "1h", "--json").data
    assert told["jobs"] >= 1
    assert told["effective"] > 0, "not by gpu_hours: what took a tenth of a second is 0.0000 of them"
    here("report", "--since", "soon").refused("use 12h, 7d or 4w", code=2)


def test_a_job_that_was_never_started_has_no_training() -> None:
    job: Job = a_new_job(2, check=True).job
    ledger = account([job], job.created_at + MINUTE)
    assert in_minutes(ledger) == {"checking before the start": 1}
