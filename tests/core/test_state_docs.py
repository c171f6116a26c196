"""The page about states is made from the tables alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ecs_gpu_recovery.core import edges
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, TaskStatus
from tools import state_docs


def test_the_page_is_always_the_same() -> None:
    assert state_docs.page() == state_docs.page()


def test_every_state_is_on_it_with_every_reason_to_come_there() -> None:
    page = state_docs.page()
    for kind in (JobStatus, TaskStatus, NodeStatus):
        assert all(f"\n**`{status.value}`**: " in page for status in kind)
    for table in (edges.JOB, edges.TASK, edges.NODE):
        assert all(f": {edge.why}\n" in page for edge in table.values())


CURELESS = "an end that no reboot can cure, or a gang that could not start"


def test_edges_of_ours_are_marked() -> None:
    drawn = state_docs.diagram("job", edges.JOB, JobStatus)
    assert "    IN_PROGRESS -.-> FAILED\n" in drawn
    assert "    IN_PROGRESS --> COMPLETE & PENDING_HEALTHCHECK & USER_STOPPED\n" in drawn
    assert f"- `IN_PROGRESS`: {CURELESS}\n" in state_docs.page()


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
