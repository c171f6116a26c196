"""The page about states is made from the tables alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ecs_gpu_recovery.core import edges
from ecs_gpu_recovery.core.events import JOB_EVENTS
from ecs_gpu_recovery.core.job.table import TABLE
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, TaskStatus
from ecs_gpu_recovery.core.node.table import HELD
from tools import state_docs


def test_the_page_is_always_the_same() -> None:
    assert state_docs.page() == state_docs.page()


def test_every_state_and_every_answer_is_on_it() -> None:
    page = state_docs.page()
    assert all(
        f"| `{status.value}` |" in page for kind in (JobStatus, TaskStatus, NodeStatus) for status in kind
    )
    answers = [line.removeprefix("- ").split(": ")[0] for line in page.splitlines() if line.startswith("- ")]
    assert {event.__name__ for event in JOB_EVENTS} <= {
        fact for facts in answers for fact in facts.split(", ")
    }
    rules = [rule for row in TABLE.values() for rule in row.values() if rule.__name__ != "ignore"]
    assert all(f": {state_docs.sentence(rule)}\n" in page for rule in rules)


CURELESS = "an end that no reboot can cure, or a gang that could not start"


def test_edges_of_ours_are_marked() -> None:
    drawn = state_docs.diagram("job", edges.JOB, JobStatus)
    assert "    IN_PROGRESS -.-> FAILED\n" in drawn
    assert "    IN_PROGRESS --> COMPLETE & PENDING_HEALTHCHECK & USER_STOPPED\n" in drawn
    assert f"| `IN_PROGRESS` ⇢ `FAILED` | {CURELESS} |" in state_docs.page()


def test_a_node_answers_facts_about_orders_as_a_job_does() -> None:
    job, node = TABLE[JobStatus.IN_PROGRESS], HELD
    assert all(
        state_docs.sentence(job[fact]) == state_docs.sentence(node[fact]) for fact in state_docs.ORDERS
    )


def test_every_state_has_its_sentence() -> None:
    for kind in (JobStatus, TaskStatus, NodeStatus):
        assert all(state_docs.comments(kind)[status.name] for status in kind)


def test_a_stale_page_is_noticed_and_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "states.md"
    page.write_text("old")
    assert state_docs.main(["--check"], page) == 1
    assert "Run: python -m tools.state_docs" in capsys.readouterr().err
    assert page.read_text() == "old", "a check changes nothing"
    assert state_docs.main([], page) == 0
    assert state_docs.main(["--check"], page) == 0
