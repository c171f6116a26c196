"""What the time went into, and what a training says about itself, whoever wrote that training."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ecs_gpu_recovery.cli.render import print_job
from ecs_gpu_recovery.control.logs import progress_points
from ecs_gpu_recovery.core.guard import Answer
from ecs_gpu_recovery.core.model import Entry, Job, JobSpec, JobStatus
from ecs_gpu_recovery.metrics.records import ProgressTail
from ecs_gpu_recovery.progress import (
    LARGEST_WHOLE,
    Progress,
    Share,
    Steps,
    effective_ratio,
    progress,
    progress_of,
)
from ecs_gpu_recovery.report import archived, phases, runs
from tests.core.story import a_job_awaiting_reboot

T0 = datetime(2026, 11, 15, 2, 0, tzinfo=UTC)


def line(step: int, attempt: int = 0, second: float = 0, loss: object = 0.5) -> str:
    at = T0 + timedelta(seconds=second)
    return json.dumps({"at": at.isoformat(), "attempt": attempt, "step": step, "loss": loss})


def a_job(moves: list[tuple[int, str, str, int]], status: JobStatus) -> Job:
    timeline = tuple(
        Entry(
            at=T0 + timedelta(seconds=s), subject="job", before=before, after=after, why="", attempt=attempt
        )
        for s, before, after, attempt in moves
    )
    last = timeline[-1].at
    return Job(
        id="j",
        cluster="c",
        spec=JobSpec(),
        status=status,
        ranks=(),
        created_at=T0,
        updated_at=last,
        timeline=timeline,
    )


@pytest.mark.parametrize(
    ("attempt", "left", "how", "said"),
    [
        (0, 1, {}, "first run, 1 restart left"),
        (1, 0, {}, "restarted once, no restart left"),
        (2, 3, {}, "restarted 2 times, 3 restarts left"),
        (2, 0, {}, "restarted 2 times, no restart left"),
        (0, 1, {"ended": True}, "first run"),
        (1, 0, {"waits": True}, "first run, a restart waits for its nodes"),
    ],
)
def test_a_job_says_which_run_it_is_and_how_many_may_follow(
    attempt: int, left: int, how: dict[str, bool], said: str
) -> None:
    told = runs(attempt, left, **{"ended": False, **how})
    assert ", ".join(text.format(count=count) for text, count in told) == said


def test_a_job_whose_repair_waits_for_a_permit_says_so_and_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    waits = "waits for a thaw (frozen by ann: new driver)"
    story = a_job_awaiting_reboot(nodes=2).permit_is(Answer.HELD, why=waits)
    print_job(story.job, story.now, (), [story.node(0)])
    said = " ".join(capsys.readouterr().out.split())
    assert f"The repair of n0 {waits}. To see and answer it: gpu-recovery permits." in said
    assert "0 n0 waits for a permit" in said
    assert "PENDING_RESTART first run, a restart waits for its nodes" in said


def test_steps_trained_twice_are_lost_and_the_resumed_step_is_told() -> None:
    lines = [
        *(line(step, 0, step) for step in range(1, 26)),
        *(line(step, 1, 30 + step) for step in range(21, 41)),
    ]
    assert progress(Steps.of(lines)) == Progress(
        steps=40, loss=0.5, lost_steps=5, resumed_at=(21,), step_s=1.0
    )


@pytest.mark.parametrize(
    "torn",
    [
        "",
        '{"at": "2026',
        "null",
        "[]",
        "7",
        '"x"',
        '{"step": 3}',
        "[" * 5000,
        line(3).replace("0.5", '"much"'),
        '{"at": "never", "attempt": 0, "step": 3, "loss": 1}',
        '{"at": 5, "attempt": 0, "step": 3, "loss": 1}',
        '{"at": "2026-11-15T02:00:00", "attempt": 0, "step": 1e999, "loss": 1}',
    ],
)
def test_a_line_that_makes_no_sense_is_passed_over(torn: str) -> None:
    done = progress(Steps.of([line(1), torn, line(2, second=1)]))
    assert (done.steps >= 2, done.loss) == (True, 0.5)


def test_a_loss_that_is_no_number_is_none() -> None:
    for loss in (float("nan"), float("inf")):
        assert progress(Steps.of([line(1, loss=loss)])).loss is None


def a_job_in(folder: Path | str) -> Job:
    job = a_job([(0, "", "IN_PROGRESS", 0)], JobStatus.IN_PROGRESS)
    return replace(job, spec=replace(job.spec, checkpoint_dir=str(folder)))


def test_a_retry_and_the_job_that_it_repeats_tell_their_own_steps(tmp_path: Path) -> None:
    lines = [
        *(line(step, 0, step) for step in range(1, 29)),
        *(line(step, 0, 70 + step) for step in range(21, 41)),
    ]
    (tmp_path / "progress.jsonl").write_text("\n".join(lines) + "\n")
    first, begin = a_job_in(tmp_path), T0 + timedelta(seconds=80)
    old = replace(first, status=JobStatus.FAILED, updated_at=T0 + timedelta(seconds=40))
    new = replace(first, created_at=begin, spec=replace(first.spec, retry_of="j"))
    assert (progress_of(old).steps, progress_of(new).steps) == (28, 40)
    assert (progress_of(old).lost_steps, progress_of(new).lost_steps) == (0, 0)
    assert progress_points(old)["step"] + progress_points(new)["step"] == [*range(1, 29), *range(21, 41)]
    after = begin + timedelta(seconds=40)
    assert effective_ratio(new, progress_of(new), after) == 0.5, "twenty steps of its own, a second each"
    tail = ProgressTail(tmp_path / "progress.jsonl").read(Share.of(new))
    assert (tail.steps, tail.base, tail.lost_steps) == (40, 20, 0)
    elsewhere = replace(new, created_at=begin + timedelta(hours=8))
    assert progress_of(elsewhere).steps == 40, "a program with another clock is not called idle"


def test_the_curve_leaves_out_what_is_no_number(tmp_path: Path) -> None:
    text = "\n".join([line(1), line(2, loss=float("nan")), line(3)])
    (tmp_path / "progress.jsonl").write_text(text)
    found = progress_points(a_job_in(tmp_path))
    assert (found["count"], found["step"], found["loss"]) == (2, [1, 3], [0.5, 0.5])


def test_a_long_file_is_read_here_and_there_and_tells_the_same(tmp_path: Path) -> None:
    """Three attempts, told every ten steps, that go back to where the last checkpoint was."""
    parts = ((0, 1, 200_001), (1, 150_001, 150_101), (2, 150_001, 300_001))
    lines = [
        line(step, attempt, step + attempt * 900, loss=1 / step)
        for attempt, begin, end in parts
        for step in range(begin, end, 10)
    ]
    path = tmp_path / "progress.jsonl"
    path.write_text("\n".join(lines) + "\n")
    assert path.stat().st_size > LARGEST_WHOLE
    told = progress_of(a_job_in(tmp_path))
    assert told == progress(Steps.of(lines))
    assert (told.steps, told.lost_steps, told.resumed_at) == (299_991, 5_010, (150_001, 150_001))
    shown = progress_points(a_job_in(tmp_path))
    assert shown["count"] == pytest.approx(len(lines), rel=0.01)
    assert (shown["step"][0], shown["step"][-1]) == (1, 299_991)
    assert set(shown["attempt"]) >= {0, 2}


def test_a_file_that_nobody_could_read_whole_shows_its_end(tmp_path: Path) -> None:
    with open(tmp_path / "progress.jsonl", "w") as file:
        file.write(line(1) + "\n")
        file.truncate(100 << 30)  # a hole: it takes no room
        file.seek(0, 2)
        file.write("\n" + "\n".join(line(step, second=step) for step in (900, 901)) + "\n")
    told = progress_of(a_job_in(tmp_path))
    assert (told.steps, told.step_s) == (901, 1.0)
    assert progress_points(a_job_in(tmp_path))["step"] == [1, 900, 901]


def test_times_with_and_without_a_zone_do_not_quarrel() -> None:
    naive = line(2, second=2).replace("+00:00", "")
    assert progress(Steps.of([line(1), naive, line(3, second=4)])).step_s == 2.0


def test_a_folder_that_cannot_be_read_shows_no_progress(tmp_path: Path) -> None:
    (tmp_path / "progress.jsonl").mkdir()
    for folder in ("", str(tmp_path), str(tmp_path / "nothing"), "/dev/null"):
        assert progress_of(a_job_in(folder)) == Progress()


def test_every_stretch_of_a_life_has_a_name() -> None:
    job = a_job(
        [
            (0, "", "PENDING_HEALTHCHECK", 0),
            (2, "PENDING_HEALTHCHECK", "IN_PROGRESS", 0),
            (10, "IN_PROGRESS", "PENDING_HEALTHCHECK", 0),
            (13, "PENDING_HEALTHCHECK", "PENDING_RESTART", 1),
            (20, "PENDING_RESTART", "RESTARTING", 1),
            (21, "RESTARTING", "IN_PROGRESS", 1),
            (30, "IN_PROGRESS", "COMPLETE", 1),
        ],
        JobStatus.COMPLETE,
    )
    assert [(phase.name, phase.seconds, phase.attempt) for phase in phases(job, T0)] == [
        ("checking before the start", 2, 0),
        ("running", 8, 0),
        ("stopping and checking", 3, 0),
        ("waiting for nodes", 7, 1),
        ("restarting", 1, 1),
        ("running", 9, 1),
    ]


def test_what_has_not_ended_goes_on_until_now() -> None:
    job = a_job([(0, "", "IN_PROGRESS", 0)], JobStatus.IN_PROGRESS)
    now = T0 + timedelta(seconds=50)
    assert [phase.seconds for phase in phases(job, now)] == [50]
    assert effective_ratio(job, Progress(steps=20, step_s=1.0), now) == 0.4
    assert effective_ratio(job, Progress(), now) is None
    assert effective_ratio(job, Progress(steps=20, step_s=100.0), now) == 1.0


def test_phases_that_left_the_record_are_read_back_from_the_archive() -> None:
    kept = [(21, "RESTARTING", "IN_PROGRESS", 1), (30, "IN_PROGRESS", "COMPLETE", 1)]
    job = a_job(kept, JobStatus.COMPLETE)
    lines = [
        f"{T0 + timedelta(seconds=second):%Y-%m-%dT%H:%M:%S+00:00} {subject} {before}->{after} {why}"
        for second, subject, before, after, why in (
            (0, "job", "", "IN_PROGRESS", "submitted by someone"),
            (1, "node-1", "ASSIGNED", "IN_PROGRESS", "its rank has started"),
            (10, "job", "IN_PROGRESS", "PENDING_HEALTHCHECK", "rank 1 died: exit 1 -> why"),
            (13, "job", "PENDING_HEALTHCHECK", "PENDING_RESTART", "GPU fault"),
            (20, "job", "PENDING_RESTART", "RESTARTING", "every node is back"),
        )
    ]
    earlier = archived([*lines[1:], "torn", "never job A->B x", lines[0]])
    assert [(entry.subject, entry.attempt) for entry in earlier] == [
        *(("job", 0), ("node-1", 0), ("job", 0), ("job", 1), ("job", 1))
    ]
    assert [(phase.name, phase.seconds, phase.attempt) for phase in phases(job, T0, earlier)] == [
        ("running", 10, 0),
        ("stopping and checking", 3, 0),
        ("waiting for nodes", 7, 1),
        ("restarting", 1, 1),
        ("running", 9, 1),
    ]


def test_without_the_archive_what_is_not_known_is_one_stretch() -> None:
    job = a_job([(13, "PENDING_HEALTHCHECK", "PENDING_RESTART", 3)], JobStatus.PENDING_RESTART)
    found = phases(job, T0 + timedelta(seconds=20))
    assert [(phase.name, phase.seconds, phase.attempt) for phase in found] == [
        ("earlier", 13, 2),
        ("waiting for nodes", 7, 3),
    ]
