"""The table is complete, every move is drawn, and what is drawn can happen."""

from __future__ import annotations

import json
from itertools import product

from ecs_gpu_recovery.core import codec, edges
from ecs_gpu_recovery.core.events import JOB_EVENTS
from ecs_gpu_recovery.core.machine import TABLE
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, TaskStatus, Verdict
from tests.decisions.story import Story


def test_every_status_answers_every_event() -> None:
    assert {(status, event) for status, row in TABLE.items() for event in row} == set(product(JobStatus, JOB_EVENTS))


def test_every_rule_says_why_it_is_there() -> None:
    assert all(rule.__doc__ for row in TABLE.values() for rule in row.values())


def test_every_move_that_is_drawn_is_between_known_states_and_has_a_reason() -> None:
    for table, kind in ((edges.JOB, JobStatus), (edges.TASK, TaskStatus), (edges.NODE, NodeStatus)):
        names = {"", *(member.value for member in kind)}
        assert all(before in names and after in names and edge.why for (before, after), edge in table.items())


def test_no_move_leaves_a_final_state() -> None:
    final = {status.value for status in JobStatus if status.final}
    assert not [edge for edge in edges.JOB if edge[0] in final]


def test_every_state_of_a_job_can_be_reached() -> None:
    reached = {after for _, after in edges.JOB}
    assert reached == {status.value for status in JobStatus}


def test_a_record_survives_being_written_and_read_at_every_step() -> None:
    story = Story(3)

    def same() -> None:
        assert codec.load_job(json.loads(json.dumps(codec.dump(story.job)))) == story.job

    same()
    story.running()
    same()
    story.seen(1, connected=False).ended(0, 1)
    same()
    story.stopped_by_us(1, 2).checked(0, Verdict.REBOOT, "Xid 79").checked(1, Verdict.INCONCLUSIVE)
    same()
    story.later(minutes=31).tick()
    same()
    story.asked_to_stop()
    same()
