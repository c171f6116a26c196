"""What the pages say about a job: one sentence for now, one picture for the past, one line per deed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from ecs_gpu_recovery import status_text
from ecs_gpu_recovery.console import incidents, views
from ecs_gpu_recovery.console.pages import job_fragments, svg
from ecs_gpu_recovery.core.codec import whole
from ecs_gpu_recovery.core.model import Job, Verdict
from ecs_gpu_recovery.report import lanes, phases
from ecs_gpu_recovery.status_text import grouped, items_of, now_doing
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
from tests.core.test_moves import a_waiting_job, spare


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
        (
            a_waiting_job(),
            f"Waits for 1 of 2 nodes since {T0:%Y-%m-%d %H:%M} UTC: n1, or others that are free.",
        ),
        (a_restarting_job(nodes=4), "Starting all ranks again: 0 of 4 run."),
        (a_job_in_its_second_attempt(nodes=4), "Training on 4 nodes."),
    ],
)
def test_one_sentence_tells_what_is_done_now(job: object, words: str) -> None:
    assert said(job.job) == words  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("job", "way", "at"),
    [
        (a_new_job(nodes=4), status_text.FIRST_START, "Start"),
        (a_running_job(nodes=4), (), ""),
        (a_running_job(nodes=4).fails(0), status_text.RECOVERY, "Stop all ranks"),
        (a_job_under_test(nodes=4), status_text.RECOVERY, "Check the nodes"),
        (a_job_awaiting_reboot(nodes=4, bad=[2]), status_text.RECOVERY, "Repair"),
        (a_restarting_job(nodes=4), status_text.RECOVERY, "Start again"),
        (a_job_in_its_second_attempt(nodes=4), (), ""),
    ],
)
def test_the_way_back_to_training_is_told_with_where_it_stands(
    job: object, way: tuple[str, ...], at: str
) -> None:
    found, step = status_text.steps(job.job)  # type: ignore[attr-defined]
    assert tuple(found) == way
    assert (found[step] if found else "") == at


def test_recoveries_are_summed_up_with_their_cause_and_how_long_they_took() -> None:
    job = a_job_in_its_second_attempt(nodes=3, bad=[1]).job
    minutes = [replace(entry, at=T0 + number * MINUTE) for number, entry in enumerate(job.timeline)]
    (found,) = status_text.recoveries(minutes)
    own = [entry for entry in minutes if entry.subject == "job"]
    fault, back = (
        next(e for e in own if e.after == state) for state in ("PENDING_HEALTHCHECK", "RESTARTING")
    )
    assert (found.why, found.at) == ("GPU fault on n1", fault.at)
    assert found.seconds >= (back.at - fault.at).total_seconds() > 0
    assert status_text.recoveries(a_job_awaiting_reboot(nodes=3).job.timeline) == [], "not back yet"


def test_a_recovery_tells_which_ranks_moved() -> None:
    job = a_waiting_job().has_also(spare()).sees_the_fleet().check_of("s0", Verdict.HEALTHY).starts()
    (found,) = status_text.recoveries(job.job.timeline)
    assert found.moves == ("rank 1 moved from n1 to s0",)


def test_of_a_job_in_trouble_the_log_of_the_rank_that_broke_comes_first() -> None:
    broken = a_running_job(nodes=3).fails(1).job
    assert job_fragments._blamed(broken) == broken.ranks[1].task_id != ""
    assert job_fragments._blamed(a_running_job(nodes=3).job) == ""
    assert job_fragments._blamed(a_job_in_its_second_attempt(nodes=3).job) == ""


@pytest.mark.parametrize(
    ("key", "job"),
    [("j-1/notify/failed", "j-1"), ("node/n1/notify/3", ""), ("j-1/0/start/stuck", ""), ("", "")],
)
def test_a_message_leads_to_the_job_that_it_is_about(key: str, job: str) -> None:
    assert incidents.job_of(key) == job


def test_what_a_person_does_next_is_said_in_words_of_the_console() -> None:
    def told(job: str, *nodes: str) -> str:
        step = status_text.next_step(job, nodes)
        return step.key.format(**step.values) if step else ""

    assert told("j", "n1") == "Mend n1: its page says how. Then run the job again."
    assert told("", "n1") == "Mend n1: its page says how."
    assert told("j") == "Read the logs, mend the cause, and run the job again."
    assert told("") == ""


def test_evidence_is_told_line_by_line_and_brackets_are_left_whole() -> None:
    text = "n3: reboot (7 of 8 GPUs; Xid 79 (fallen off the bus)); n1, n2: healthy (no GPU fault found)"
    assert items_of(text) == [
        "n3: reboot (7 of 8 GPUs; Xid 79 (fallen off the bus))",
        "n1, n2: healthy (no GPU fault found)",
    ]
    assert items_of("a ) b; c") == ["a ) b", "c"]
    assert items_of("") == []


def test_a_wait_has_an_end_and_a_training_has_none() -> None:
    story = a_job_awaiting_reboot(nodes=2)
    assert views.doing(story.job, story.nodes.values())["deadline"]
    assert views.doing(a_running_job(nodes=2).job)["deadline"] == ""


def test_nodes_that_did_the_same_share_a_line_and_a_move_names_its_rule() -> None:
    job = a_job_under_test(nodes=3).job
    lines = grouped([whole(entry) for entry in job.timeline])
    assert len(lines) < len(job.timeline)
    assert ["n0", "n1", "n2"] in [line["subjects"] for line in lines]
    rules = [line["rule"] for line in lines if line["subject"] == "job" and line["before"]]
    assert rules == [
        "a rank died in a way a GPU fault can cause, its node was lost, or a node is to be taken away"
    ]
    assert sum(len(line["subjects"]) for line in lines) == len(job.timeline), "nothing is left out"


def test_the_picture_shows_what_each_node_did_while_the_job_recovered() -> None:
    job = a_job_in_its_second_attempt(nodes=3, bad=[1]).job
    found = lanes(job, T0 + MINUTE)
    assert list(found) == ["n0", "n1", "n2"]
    assert "REBOOTING" in [stretch.status for stretch in found["n1"]]
    assert "REBOOTING" not in [stretch.status for stretch in found["n0"]]
    for stretches in found.values():
        assert all(a.end == b.start for a, b in pairwise(stretches)), "no gaps"
    picture = svg.attempts_picture(phases(job, T0 + MINUTE), found, str, "title")
    assert picture.count('class="lane"') == 3
    assert picture.count('<line class="attempt"') == 1, "one mark, where the second attempt begins"


def test_after_a_move_each_node_has_its_own_part_of_the_time() -> None:
    job = a_waiting_job().has_also(spare()).sees_the_fleet().check_of("s0", Verdict.HEALTHY).starts().job
    timeline = tuple(replace(entry, at=T0 + number * MINUTE) for number, entry in enumerate(job.timeline))
    move = next(entry.at for entry in timeline if entry.why == "rank 1 moved from n1 to s0")
    found = lanes(replace(job, timeline=timeline), timeline[-1].at + MINUTE)
    assert list(found) == ["n0", "n1", "s0", *list(found)[3:]], (
        "the node that was left, then the one that was taken"
    )
    assert found["n1"][-1].end == move, "what became of it later was not the job's time"
    assert move <= found["s0"][0].start, "nor was what the spare did before"
    assert found["s0"][-1].end == timeline[-1].at + MINUTE


def test_of_a_large_job_the_nodes_that_something_happened_to_are_drawn() -> None:
    job = a_job_awaiting_reboot(nodes=64, bad=[60]).job
    found = lanes(job, T0 + timedelta(minutes=1))
    chosen = svg.chosen_lanes(found)
    assert "n60" in chosen
    assert len(chosen) <= svg.MOST_LANES


def test_a_record_without_a_timeline_has_an_empty_picture() -> None:
    bare = replace(a_running_job(nodes=2).job, timeline=())
    assert phases(bare, T0) == []
    assert svg.attempts_picture([], lanes(bare, T0), str, "title") == ""
