"""A job's life through the commands: submit, watch, logs, stop, retry, lists."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ecs_gpu_recovery.control.local_backend import free_port
from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.masks import HIDDEN
from tests.cli.conftest import WHAT_THERE_IS, Command, run_command
from tests.embedded.helpers import ROOT, LiveController, eventually

SLEEP = (sys.executable, "-c", "import time; print('here', flush=True); time.sleep(3600)")
pytestmark = pytest.mark.usefixtures("free_nodes")
CLI = (sys.executable, "-m", "ecs_gpu_recovery.main")


def test_a_job_by_options_runs_here_with_what_it_was_given(
    here: Command, tmp_path: Path, script: Path
) -> None:
    kept, port = tmp_path / "kept", free_port()
    told = here(
        *("submit", "--any", 2, "--name", "mine", "--env", "MINE=a=b", "--check", "none", "--port", port),
        *("--env", "API_TOKEN=do-not-show"),
        *("--workdir", tmp_path, "--checkpoint-dir", kept, "--wait", "--", sys.executable, "train.py", "--x"),
    )
    assert told.code == 0, told
    job_id = told.out.split()[1]
    assert job_id.startswith("mine-")
    assert "IN_PROGRESS -> COMPLETE" in told.out
    lines = here("logs", job_id).out.splitlines()
    assert sorted(line for line in lines if "rank" in line) == [
        f"[{rank}] rank {rank} of 2 ['--x'] {tmp_path}" for rank in (0, 1)
    ]
    assert f"[0] port {port} kept in {kept}" in lines
    assert "[1] mine a=b" in lines
    shown = here("job", job_id, "--json")
    assert shown.data["spec"]["env"] == {"MINE": "a=b", "API_TOKEN": HIDDEN}
    assert "do-not-show" not in shown.out


def test_a_job_starts_where_it_was_submitted(
    here: Command, tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-- python train.py`, as in the help: the script lies in the folder of whoever typed it."""
    monkeypatch.chdir(tmp_path)
    told = here("submit", "--any", 1, "--check", "none", "--wait", "--", sys.executable, script.name)
    assert told.code == 0, told


@pytest.mark.parametrize("kind", ["toml", "json"])
def test_a_job_by_file_is_the_same_job(here: Command, tmp_path: Path, script: Path, kind: str) -> None:
    job = {
        "name": "filed",
        "script": str(script),
        "args": ["1", "2"],
        "nodes": ["node-2", "node-3"],
        "check": "quick",
        "env": {"MINE": "x"},
        "max_retries": 0,
        "gpus_per_node": 1,
        "memory_mib": 4000,
    }
    path = tmp_path / f"job.{kind}"
    if kind == "json":
        path.write_text(json.dumps(job))
    else:
        path.write_text(
            "\n".join(f"{key} = {json.dumps(value)}" for key, value in job.items() if key != "env")
        )
        path.write_text(path.read_text() + '\n[env]\nMINE = "x"\n')
    told = here("submit", "-f", path, "--wait", "--json")
    assert told.code == 0, told
    data = told.data
    assert data["status"] == "COMPLETE"
    assert [rank["node"] for rank in data["ranks"]] == ["node-2", "node-3"]
    assert (data["max_retries"], data["spec"]["memory_mib"], data["spec"]["gpus_per_node"]) == (0, 4000, 1)
    assert data["spec"]["command"] == [sys.executable, str(script), "1", "2"]
    assert "submitted" in told.err, "people read the other stream"


def test_options_win_over_the_file(here: Command, tmp_path: Path, script: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(
        f'script = "{script}"\nargs = ["from the file"]\nnodes = ["node-1", "node-2"]\nmax_retries = 3\n'
        'check = "4"\n[env]\nMINE = "file"\n'
    )
    told = here(
        *(
            "submit",
            "-f",
            path,
            "--any",
            1,
            "--check",
            "none",
            "--max-retries",
            0,
            "-e",
            "MINE=option",
            "--json",
        ),
        *("--wait", "--", sys.executable, "-c", "import os; print('mine', os.environ['MINE'])"),
    )
    assert told.code == 0, told
    data = told.data
    assert (len(data["ranks"]), data["max_retries"]) == (1, 0)
    assert here("logs", data["id"]).out == "[0] mine option\n"


def test_the_exit_code_of_wait_tells_how_the_job_ended(here: Command) -> None:
    failing = here("submit", "--any", 1, "--check", "none", "--wait", "--", sys.executable, "-c", "exit(2)")
    failing.tells("exit code 2, which no reboot cures", code=1)
    job_id = failing.out.split()[1]
    here("job", job_id, "--watch").tells("FAILED", code=1)
    assert here("job", job_id).code == 0, "looking is no failure"


def test_a_job_is_shown_in_words_and_as_json(here: Command, live: LiveController) -> None:
    job_id = here("submit", "--any", 2, "--check", "none", "--", *SLEEP).out.split()[1]
    live.started(job_id)
    here("job", job_id).tells(
        job_id, "IN_PROGRESS", "node-1", "node-2", "submitted by", "checkpoints", "time.sleep(3600)"
    )
    data = here("job", job_id, "--json").data
    keys = "id status attempt max_retries ranks timeline outbox outcome phases progress created_at updated_at"
    assert {*keys.split(), "version", "spec", "ending", "preflight"} <= set(data)
    keys = "index node node_status task_id task_status exit exit_code verdict findings"
    assert all(set(rank) >= set(keys.split()) for rank in data["ranks"])
    assert data["phases"][0]["name"] == "running"
    assert data["progress"]["steps"] == 0
    why = "seen [/bold] enough [of it]"  # brackets are text, not style
    assert here("stop", job_id, "--why", why).code == 0
    here("job", job_id, "--watch").tells("USER_STOPPED", code=1)  # only COMPLETE is a success
    here("job", job_id).tells("stopped by", why)
    here("stop", job_id).refused("already ended (USER_STOPPED)")


def test_logs_are_followed_to_the_end_of_the_job(here: Command, live: LiveController, tmp_path: Path) -> None:
    go = tmp_path / "go"
    program = (
        "import os, sys, time\n"
        "print('first'); print('half a', end='', flush=True)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
        "print(' line'); sys.stdout.write('no end')\n"
    )
    command = (sys.executable, "-c", program)
    job_id = here("submit", "--any", 1, "--check", "none", "--", *command).out.split()[1]
    live.started(job_id)
    eventually(lambda: "first" in here("logs", job_id).out, "the first line")
    assert here("logs", job_id).out == "[0] first\n", "half a line is not shown"
    cli = [*CLI, "logs", job_id, "-f"]
    follower = subprocess.Popen(cli, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert follower.stdout is not None
    assert follower.stdout.readline() == "[0] first\n"
    go.touch()
    rest, _ = follower.communicate(timeout=60)
    assert rest == "[0] half a line\n[0] no end\n"
    assert follower.returncode == 0
    live.ends(job_id, JobStatus.COMPLETE)


def test_logs_of_one_rank_and_of_earlier_attempts(here: Command, live: LiveController) -> None:
    program = (
        "import os, sys, time\n"
        "print('attempt', os.environ['JOB_ATTEMPT'], flush=True)\n"
        "time.sleep(3600 if os.environ['JOB_ATTEMPT'] == '0' else 0)\n"
    )
    args = ("submit", "--nodes", "node-1,node-2", "--check", "none", "--", sys.executable, "-c", program)
    job_id = here(*args).out.split()[1]
    live.started(job_id)
    eventually(lambda: here("logs", job_id).out.count("attempt 0") == 2, "both ranks wrote")
    live.cluster.inject("node-2", "ecc")
    live.ends(job_id, JobStatus.COMPLETE)
    assert here("logs", job_id, "--rank", 1).out == "[1 attempt 1] attempt 1\n"
    assert "[1 attempt 0] attempt 0\n" in here("logs", job_id, "--attempt", 0).out
    every = here("logs", job_id, "--all", "--rank", 0).out
    assert every == "[0 attempt 0] attempt 0\n[0 attempt 1] attempt 1\n"
    for wrong, words in ((("--rank", 2), "its ranks are 0 to 1"), (("--attempt", 2), "the last one is 1")):
        here("logs", job_id, *wrong).refused(words)


def test_lists_of_jobs_come_page_by_page(here: Command, live: LiveController) -> None:
    for number in range(3):
        told = here("submit", "--any", 1, "--check", "none", "--id", f"page-{number}", "--wait", "--", "true")
        assert told.code == 0, told
    listed = here("jobs").out
    assert [f"page-{n}" in listed for n in range(3)] == [True] * 3
    found: list[str] = []
    after = ""
    while not found or after:
        data = here("jobs", "--limit", 1, "--json", *(["--after", after] if after else [])).data
        assert " ".join(sorted(data["jobs"][0])) == "attempt created_at id name nodes status updated_at"
        found += [job["id"] for job in data["jobs"]]
        after = data["next"]
    assert found[:3] == ["page-2", "page-1", "page-0"]
    assert len(set(found)) == len(found)
    assert f"--after '{here('jobs', '--limit', 1, '--json').data['next']}'" in here("jobs", "--limit", 1).out
    complete = here("jobs", "--status", "complete", "--json").data["jobs"]
    assert {job["status"] for job in complete} == {"COMPLETE"}
    assert here("jobs", "--status", "RESTARTING").out == "No job is RESTARTING.\n"


def test_an_ended_job_can_be_run_again(here: Command, live: LiveController, tmp_path: Path) -> None:
    flag = tmp_path / "fixed"
    program = f"import os, sys; sys.exit(0 if os.path.exists({str(flag)!r}) else 3)"
    args = ("--any", 2, "--check", "none", "--id", "flaky", "--max-retries", 0)
    assert here("submit", *args, "--wait", "--", sys.executable, "-c", program).code == 1
    flag.touch()
    again = here("retry", "flaky", "--json").data
    assert again["spec"]["retry_of"] == "flaky"
    old = live.job("flaky")
    assert again["spec"]["checkpoint_dir"] == old.spec.checkpoint_dir
    assert again["spec"]["workdir"] == old.spec.workdir
    live.ends(again["id"], JobStatus.COMPLETE)
    elsewhere = here("retry", "flaky", "--nodes", "node-3,node-2")
    elsewhere.tells("from its last checkpoint")
    job = live.ends(elsewhere.out.split()[1].rstrip(":"), JobStatus.COMPLETE)
    assert [rank.node for rank in job.ranks] == ["node-3", "node-2"]


def test_a_running_job_is_not_run_again(here: Command, live: LiveController) -> None:
    job_id = here("submit", "--any", 1, "--check", "none", "--", *SLEEP).out.split()[1]
    here("retry", job_id).refused(f"gpu-recovery stop {job_id}")
    here("stop", job_id, "--why", "seen", "--wait").tells("USER_STOPPED: stopped by", "seen")


@pytest.mark.parametrize("what", [("job", "nope"), ("logs", "nope"), ("stop", "nope"), ("retry", "nope")])
def test_a_job_that_is_not_there_is_code_3(here: Command, what: tuple[str, str]) -> None:
    told = here(*what)
    assert (told.code, told.err) == (3, f"gpu-recovery: no job nope{WHAT_THERE_IS}")


def test_a_place_that_is_in_no_list_is_refused(here: Command) -> None:
    here("jobs", "--after", "junk").refused("'junk' is not a place in a list of jobs")


def test_what_only_a_container_knows_is_said_to_do_nothing_here(here: Command, live: LiveController) -> None:
    told = here("submit", "--any", 1, "--check", "none", "--image", "train:1", "--", "true")
    assert (told.code, "there are no containers here" in told.err) == (0, True)
    job_id = told.out.split()[1]
    live.ends(job_id, JobStatus.COMPLETE)
    assert here("logs", job_id).err == "nothing was written\n"


@pytest.mark.slow
def test_many_commands_at_once_claim_each_node_once(here: Command, live: LiveController) -> None:
    """Six people want one node each of three: three get one, three are told that none is free."""
    cli = [*CLI, "submit", "--any", "1", "--check", "none", "--", *SLEEP]
    racers = [
        subprocess.Popen(cli, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    said = [racer.communicate(timeout=120) for racer in racers]
    codes = [racer.returncode for racer in racers]
    assert sorted(codes) == [0, 0, 0, 4, 4, 4], said
    assert all(
        "wants 1 free nodes, and there are 0" in err
        for (_, err), code in zip(said, codes, strict=True)
        if code
    )
    jobs = [out.split()[1] for (out, _), code in zip(said, codes, strict=True) if code == 0]
    assert {live.job(job_id).ranks[0].node for job_id in jobs} == {"node-1", "node-2", "node-3"}
    for job_id in jobs:
        run_command("stop", job_id)
    for job_id in jobs:
        live.ends(job_id, JobStatus.USER_STOPPED)
