"""What a newcomer sees first: help, version, completion, and clear words for a wrong command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import typer

from ecs_gpu_recovery import __version__
from ecs_gpu_recovery.console import forms
from ecs_gpu_recovery.console.api.bodies import JobBody
from ecs_gpu_recovery.core.model import JobSpec
from ecs_gpu_recovery.jobfile import ContainerRequest, JobRequest
from ecs_gpu_recovery.jobkeys import KEYS
from ecs_gpu_recovery.main import EXIT_CODES, app
from tests.cli.conftest import Command
from tests.programs import python

CLI = [sys.executable, "-m", "ecs_gpu_recovery.main"]


def every_command() -> Iterator[tuple[str, ...]]:
    root = typer.main.get_command(app)
    for name, found in sorted(root.commands.items()):  # type: ignore[attr-defined]
        yield (name,)
        for below in sorted(getattr(found, "commands", {})):
            yield (name, below)


def test_the_documented_commands_are_there() -> None:
    assert {" ".join(path) for path in every_command()} >= {
        *("demo", "doctor", "explain-event", "job", "jobs", "logs", "node", "nodes", "notices", "retry"),
        *("stop", "submit", "up"),
        *("node check", "node drain", "node inject", "node reboot", "node release", "node show"),
    }


@pytest.mark.parametrize("path", list(every_command()), ids=" ".join)
def test_every_command_explains_itself(command: Command, path: tuple[str, ...]) -> None:
    told = command(*path, "--help")
    told.tells(f"gpu-recovery {' '.join(path)}")
    assert not told.err
    lines = [line for line in told.out.splitlines() if line.strip().startswith("-")]
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines), "an option without a word about it"


def test_the_first_page_says_where_to_start(command: Command) -> None:
    told = command("--help")
    told.tells("gpu-recovery demo")
    assert all(f"{code}: " in told.out for code in EXIT_CODES), "a script finds its exit codes here"
    assert command().code == 2
    assert "Usage" in command().out + command().err


def test_every_key_of_a_job_is_a_row_that_has_its_place_everywhere(command: Command) -> None:
    """In the request, the command, the form, the API and the documentation; and nothing is there without a row."""
    told = command("submit", "--help").out
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    for key in KEYS.values():
        assert re.search(rf"\b{key.name}\b", told), "the help names it"
        assert all(flag in told for flag in key.option.split())
        assert f"`{key.name}`" in page.partition("## Job files")[2]
        assert key.name in forms.EMPTY or key.name in {"id", "script", "nodes"}, "the form asks for it"
        assert set(key.replaces) <= set(KEYS)
    assert set(JobBody.model_fields) == set(KEYS)
    placed = {key.goes_to for key in KEYS.values() if key.goes_to}
    owners = {"spec": JobSpec, "container": ContainerRequest, "request": JobRequest}
    attributes = {f"{part}.{each.name}" for part, owner in owners.items() for each in fields(owner)}
    by_hand = {
        "spec.check_level",
        "request.check",
        "spec.submitted_by",
        "spec.retry_of",
        "spec.unknown_fields",
    }
    assert placed == attributes - by_hand - {"request.spec", "request.container"}


def test_the_version_is_told(command: Command) -> None:
    assert command("--version").out.strip() == f"gpu-recovery {__version__}"


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("frobnicate",), "No such command"),
        (("jobs", "--colour"), "No such option"),
        (("job",), "Missing argument"),
        (("jobs", "--limit", "0"), "--limit"),
        (("jobs", "--status", "RUNNING"), "use one of IN_PROGRESS"),
        (("demo", "--fault", "fire"), "use one of none, app, freeze, gpu"),
        (("demo", "--fault", "fire"), "\n  gpu-permanent  a GPU breaks for good\n"),
        (("demo", "--nodes", "1"), "--nodes"),
        (("submit", "--any", "1", "--env", "X", "--", "true"), "use NAME=VALUE"),
        (("node", "check", "n", "--level", "9"), "use quick, 1, 2, 3 or 4"),
        (("node", "drain", "n"), "--why"),
        (("node", "drain", "n", "--why", " "), "give a reason"),
        (("node", "inject", "n", "ecc", "--xid", "48"), "--xid belongs to the fault 'xid'"),
        (("nodes", "--backend", "aws", "check", "--all-idle"), "nodes check --backend"),
        (("nodes", "--json", "check", "--all-idle"), "nodes check --json"),
    ],
)
def test_wrong_usage_is_code_2_and_says_what_is_wrong(
    command: Command, args: tuple[str, ...], word: str
) -> None:
    command(*args).refused(word, code=2)


@pytest.mark.parametrize("name", ["jobs", "doctor"])
def test_a_backend_that_is_not_there_is_refused(command: Command, name: str) -> None:
    command(name, "--backend", "moon").refused("no backend 'moon'")


def asked_by_a_shell(what: str, **words: str) -> str:
    program = "import sys; sys.argv[0] = 'gpu-recovery'; from ecs_gpu_recovery.main import run; run()"
    made = python("-c", program, env={**os.environ, "_GPU_RECOVERY_COMPLETE": what, **words}, check=True)
    assert not made.stderr
    return made.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_made(shell: str) -> None:
    made = asked_by_a_shell(f"source_{shell}")
    assert "complete" in made
    assert "_GPU_RECOVERY_COMPLETE" in made


def test_completion_knows_the_commands() -> None:
    found = asked_by_a_shell("complete_bash", COMP_WORDS="gpu-recovery no", COMP_CWORD="1")
    assert set(found.split()) == {"nodes", "node", "notices"}


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    """As in: gpu-recovery --help | head -1"""
    process = subprocess.Popen(
        [*CLI, "node", "inject", "any"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.wait()
    process.stderr.close()
    assert "Traceback" not in said
