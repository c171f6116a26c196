"""What the pages say about a job: one sentence for now, one picture for the past, one line per deed."""

from __future__ import annotations

import string
from datetime import timedelta
from itertools import pairwise

import pytest

from ecs_gpu_recovery.console import doing, drawings, texts, views
from ecs_gpu_recovery.console.doing import grouped, now_doing
from ecs_gpu_recovery.core.model import Job, Verdict
from ecs_gpu_recovery.report import lanes, phases
from tests.core.story import (
    MINUTE,
    T0,
    a_job_awaiting_reboot,
    a_job_in_its_second_attempt,
    a_job_under_test,
    a_new_job,
    a_restarting_job,
    a_running_job,
)


def said(job: Job) -> str:
    sentence = now_doing(job)
    return sentence.key.format(**sentence.values)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (a_new_job(nodes=4), "Starting: 0 of 4 ranks run."),
        (a_running_job(nodes=4), "Training on 4 nodes."),
        (a_running_job(nodes=1), "Training on one node."),
        (a_running_job(nodes=4).fails(0), "Stopping the gang: 3 of 4 tasks still run."),
        (a_job_under_test(nodes=4), "Examining 4 nodes: 0 have answered."),
        (
            a_job_under_test(nodes=4).check_says(Verdict.HEALTHY, 1, 2),
            "Examining 4 nodes: 2 have answered.",
        ),
        (
            a_job_awaiting_reboot(nodes=4, bad=[2]),
            "Waiting for n2. Then all 4 ranks start again from the last checkpoint.",
        ),
        (
            a_job_awaiting_reboot(nodes=8, bad=range(6)),
            "Waiting for n0, n1, n2, n3 +2. Then all 8 ranks start again from the last checkpoint.",
        ),
        (a_restarting_job(nodes=4), "Starting all ranks again: 0 of 4 run."),
        (a_job_in_its_second_attempt(nodes=4), "Training on 4 nodes."),
    ],
)
def test_one_sentence_tells_what_is_done_now(job: object, words: str) -> None:
    assert said(job.job) == words  # type: ignore[attr-defined]


def test_a_wait_has_an_end_and_a_training_has_none() -> None:
    assert views.doing(a_job_awaiting_reboot(nodes=2).job)["deadline"]
    assert views.doing(a_running_job(nodes=2).job)["deadline"] == ""


def test_every_sentence_has_its_chinese_with_the_same_blanks() -> None:
    for key in doing.SENTENCES:
        names = {name for _, name, _, _ in string.Formatter().parse(key) if name}
        assert {name for _, name, _, _ in string.Formatter().parse(texts.ZH[key]) if name} == names


def test_nodes_that_did_the_same_share_a_line_and_a_move_names_its_rule() -> None:
    job = a_job_under_test(nodes=3).job
    lines = grouped([views.entry_view(entry) for entry in job.timeline])
    assert len(lines) < len(job.timeline)
    assert ["n0", "n1", "n2"] in [line["subjects"] for line in lines]
    rules = [line["rule"] for line in lines if line["subject"] == "job" and line["before"]]
    assert rules == ["a rank died in a way a GPU fault can cause, or its node was lost"]
    assert sum(len(line["subjects"]) for line in lines) == len(job.timeline), "nothing is left out"


def test_the_picture_shows_what_each_node_did_while_the_job_recovered() -> None:
    job = a_job_in_its_second_attempt(nodes=3, bad=[1]).job
    found = lanes(job, T0 + MINUTE)
    assert list(found) == ["n0", "n1", "n2"]
    assert "REBOOTING" in [stretch.status for stretch in found["n1"]]
    assert "REBOOTING" not in [stretch.status for stretch in found["n0"]]
    for stretches in found.values():
        assert all(a.end == b.start for a, b in pairwise(stretches)), "no gaps"
    svg = drawings.attempts_picture(phases(job, T0 + MINUTE), found, str, "title")
    assert svg.count('class="lane"') == 3
    assert svg.count('<line class="attempt"') == 1, "one mark, where the second attempt begins"


def test_of_a_large_job_the_nodes_that_something_happened_to_are_drawn() -> None:
    job = a_job_awaiting_reboot(nodes=64, bad=[60]).job
    found = lanes(job, T0 + timedelta(minutes=1))
    chosen = drawings.chosen_lanes(found)
    assert "n60" in chosen
    assert len(chosen) <= drawings.MOST_LANES


def test_a_record_without_a_timeline_has_an_empty_picture() -> None:
    from dataclasses import replace

    bare = replace(a_running_job(nodes=2).job, timeline=())
    assert phases(bare, T0) == []
    assert drawings.attempts_picture([], lanes(bare, T0), str, "title") == ""
