"""Finding a job by what people remember of it, its logs by their end, its retries, and letting go of old ones."""

from __future__ import annotations

import json
import sys
from datetime import timedelta

import pytest

from ecs_gpu_recovery.cli import complete
from ecs_gpu_recovery.control.job_names import next_id
from ecs_gpu_recovery.core.errors import NotFound
from tests.cli.conftest import Command
from tests.embedded.helpers import LiveController

QUICK = ("--any", 1, "--check", "none", "--wait", "--", sys.executable, "-c")
COUNTS = "for i in range(5): print('line', i)"


@pytest.fixture
def job(here: Command, live: LiveController) -> str:
    """One for all tests here."""
    if there := [line.id for line in live.side.jobs(None, 50, "").jobs if line.name == "counting"]:
        return there[-1]
    told = here("submit", "--name", "counting", *QUICK, COUNTS)
    assert told.code == 0, told
    return str(told.out.split()[1])


def test_a_job_is_found_by_its_id_its_beginning_and_its_name(here: Command, job: str) -> None:
    for called in (job, job[:-3], "counting"):
        assert here("job", called).out.split()[0] == job
    missing = here("job", "nothing-like-it")
    assert missing.code == 3


def test_a_beginning_that_fits_two_jobs_is_refused_with_their_ids(here: Command, job: str) -> None:
    other = here("submit", "--name", "counts-too", *QUICK, "pass").out.split()[1]
    here("stop", "count").refused(job, other)


def test_only_the_last_lines_of_a_log(here: Command, job: str) -> None:
    assert here("logs", job, "--tail", 2).out == "[0] line 3\n[0] line 4\n"
    assert here("logs", job, "--tail", 0).out == ""


def test_only_what_was_written_since(here: Command, job: str) -> None:
    assert here("logs", job, "--since", "1h").out.count("line") == 5
    assert "line" not in here("logs", job, "--since", "2100-01-01T00:00:00Z").out
    assert here("logs", job, "--since", "soon").code == 2


def test_a_retry_keeps_the_stem_and_both_name_each_other(here: Command, job: str) -> None:
    first = here("retry", "counting").out.split()[1].rstrip(":")
    assert first == f"{job}-r2"
    assert here("job", first, "--watch").code == 0
    second = here("retry", first).out.split()[1].rstrip(":")
    assert second == f"{job}-r3"
    assert here("job", second, "--watch").code == 0
    assert f"repeated by  {first}" in here("job", job).out
    here("job", first).tells(f"repeats      {job}", f"repeated by  {second}")
    assert here("job", job, "--json").data["retried_as"] == [first]


def test_the_id_of_a_retry_is_never_too_long() -> None:
    class Nobody:
        def job(self, job_id: str) -> None:
            raise NotFound(job_id)

    made = next_id(Nobody(), "x" * 63)  # type: ignore[arg-type]
    assert (len(made), made[-3:]) == (63, "-r2")


def test_a_job_comes_from_standard_input(here: Command) -> None:
    toml = f'command = ["{sys.executable}", "-c", "pass"]\nany_nodes = 1\ncheck = "none"\n'
    as_json = json.dumps({"command": [sys.executable, "-c", "pass"], "any_nodes": 1, "check": "none"})
    for text in (toml, as_json):
        told = here("submit", "-f", "-", "--memory", 500, "--json", stdin=text)
        assert told.code == 0, told
        assert told.data["spec"]["memory_mib"] == 500
        assert here("job", told.data["id"], "--watch").code == 0


class Typed:
    """What the shell knows of a line that is being typed."""

    def __init__(self, **params: object) -> None:
        self.params = params


def test_a_shell_offers_jobs_nodes_and_faults(live: LiveController, job: str) -> None:
    there = Typed(state=live.state)
    assert job in complete.jobs(there, "count")  # type: ignore[arg-type]
    assert complete.nodes(there, "node-3") == ["node-3"]  # type: ignore[arg-type]
    assert complete.faults("off") == ["off-bus"]
    assert complete.jobs(Typed(state=live.state / "nowhere"), "") == []  # type: ignore[arg-type]
    assert complete.nodes(Typed(backend="aws"), "") == []  # type: ignore[arg-type]


def test_old_jobs_are_let_go_of_and_young_ones_stay(here: Command, live: LiveController) -> None:
    old = here("submit", "--name", "ancient", *QUICK, COUNTS).out.split()[1]
    folder = live.state / "checkpoints" / old
    (folder / "model").write_bytes(bytes(1000))
    young = here("submit", "--name", "recent", *QUICK, "pass").out.split()[1]
    assert here("prune", "--older-than", "1h", "--yes", "--json").data["jobs"] == 0
    assert here("prune", "--older-than", "soon").code == 2
    side = live.side
    before = side.job(young).updated_at - timedelta(microseconds=1)
    counted = side.prune(before, checkpoints=True, really=False)
    assert here("job", old).code == 0, "it was only counted"
    done = side.prune(before, checkpoints=True, really=True)
    assert done == counted
    assert done.bytes >= 1000
    assert here("job", old).code == 3
    assert here("job", young).code == 0
    assert not folder.exists()
