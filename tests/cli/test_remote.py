"""The commands through a console: `--backend http://...` does what the local one does, as whoever signs in."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi", reason="the console needs the extra [console]")
from ecs_gpu_recovery.console.access.auth import new_token
from ecs_gpu_recovery.console.forms import Desktop, read_request
from ecs_gpu_recovery.control.backend import LogSource
from ecs_gpu_recovery.control.local_backend import LocalBackend
from ecs_gpu_recovery.control.remote_backend import (
    INSECURE_VARIABLE,
    PASSWORD_VARIABLE,
    TOKEN_VARIABLE,
    USER_VARIABLE,
    RemoteBackend,
)
from ecs_gpu_recovery.core.errors import JobExists, NotFound, Refused, Transient
from ecs_gpu_recovery.core.model import JobSpec, JobStatus
from ecs_gpu_recovery.jobfile import ContainerRequest, JobRequest, body_of
from tests.cli.conftest import run_command
from tests.console.helpers import PASSWORD, USERS, console, control_plane, eventually, still_state, training
from tests.programs import python

TOKEN, KEPT = new_token()
SPEC = JobSpec(name="mine", command=(sys.executable, "-c", "print(1)"), env={"HF_TOKEN": "hush", "SEED": "7"})


@pytest.fixture
def served(tmp_path: Path) -> Iterator[httpx.Client]:
    with console(still_state(tmp_path), users=f"{USERS}ci:operator:{KEPT}\n") as client:
        yield client


def _side(served: httpx.Client, **env: str) -> RemoteBackend:
    return RemoteBackend(str(served.base_url), env or {TOKEN_VARIABLE: TOKEN})


def test_a_job_goes_its_whole_way_over_the_api(served: httpx.Client) -> None:
    side = _side(served)
    job = side.submit(JobRequest(spec=SPEC, any_nodes=2, max_retries=3, check=False))
    assert (job.spec.submitted_by, job.max_retries, len(job.ranks)) == ("ci", 3, 2)
    assert job.spec.env == {"HF_TOKEN": "••••••", "SEED": "7"}
    assert side.job(job.id) == job
    assert [line.id for line in side.jobs(None, 500, "").jobs] == [job.id]
    assert side.jobs(JobStatus.COMPLETE, 5, "").jobs == ()
    ending = side.stop(job.id, why="enough").ending
    assert ending is not None
    assert ending.by == "ci"


def test_a_job_is_run_again_with_the_variables_that_only_the_console_knows(
    served: httpx.Client, tmp_path: Path
) -> None:
    side = _side(served)
    made = side.submit(JobRequest(spec=SPEC, any_nodes=1))
    stopped = side.stop(made.id, why="enough")
    assert stopped.status is JobStatus.USER_STOPPED
    spec = JobSpec(name="mine", retry_of=made.id, env=dict(stopped.spec.env))
    again = side.submit(JobRequest(spec=spec, nodes=("node-3",)))
    assert ([rank.node for rank in again.ranks], again.spec.retry_of) == (["node-3"], made.id)
    here = LocalBackend(tmp_path)
    assert here.job(again.id).spec.env["HF_TOKEN"] == "hush"
    here.close()


def test_nodes_are_looked_after(served: httpx.Client) -> None:
    side = _side(served)
    assert [node.name for node in side.nodes()] == ["node-1", "node-2", "node-3", "node-4"]
    held = side.ask_node("node-2", "drain", why="new cable")
    assert held.hold is not None
    assert (held.hold.by, held.hold.why) == ("ci", "new cable")
    assert side.node("node-2") == held


@pytest.mark.parametrize(
    ("env", "what"),
    [
        ({}, "Set GPU_RECOVERY_CONSOLE_TOKEN"),
        ({TOKEN_VARIABLE: "gpurec_wrong"}, "not known"),
        ({USER_VARIABLE: "olga", PASSWORD_VARIABLE: "wrong"}, "wrong"),
        ({TOKEN_VARIABLE: "a\nb"}, "holds no token"),
    ],
)
def test_whoever_is_not_known_is_told_what_to_set(
    served: httpx.Client, env: dict[str, str], what: str
) -> None:
    with pytest.raises(Refused, match=what):
        RemoteBackend(str(served.base_url), env).nodes()


def test_a_name_and_a_password_will_do(served: httpx.Client) -> None:
    side = _side(served, **{USER_VARIABLE: "vic", PASSWORD_VARIABLE: PASSWORD})
    assert len(side.nodes()) == 4
    with pytest.raises(Refused, match="viewer"):
        side.ask_node("node-1", "drain", why="x")


def test_errors_keep_their_kind(served: httpx.Client) -> None:
    side = _side(served)
    with pytest.raises(NotFound):
        side.job("none")
    with pytest.raises(NotFound):
        side.node("../../etc/passwd")
    with pytest.raises(Refused, match="command: no program"):
        side.submit(JobRequest(spec=JobSpec(command=("no-such-program",)), any_nodes=1))
    side.submit(JobRequest(spec=SPEC, any_nodes=1, job_id="mine"))
    with pytest.raises(JobExists):
        side.submit(JobRequest(spec=SPEC, any_nodes=1, job_id="mine"))


def test_the_doctor_says_whom_a_console_takes_one_for(
    served: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = str(served.base_url)
    run_command("doctor", "--backend", address).tells(f"Set {TOKEN_VARIABLE}", code=1)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    told = run_command("doctor", "--backend", address, "--json").data
    assert [check["ok"] for check in told["checks"]] == [True, True]
    assert told["checks"][1]["found"] == "ci, operator"


def test_a_console_that_does_not_answer_is_named_with_what_to_look_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ecs_gpu_recovery.control.remote_backend.WAITS_S", ())
    told = run_command("jobs", "--backend", "http://127.0.0.1:1")
    told.refused("Connection refused. Is the address right, and does it run?", code=5)
    assert "urlopen" not in told.err


@pytest.mark.parametrize("address", ["http://", "https://host?x=1", "http://me:pw@host", "http:///x"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(Refused, match="not the address"):
        RemoteBackend(address, {})


def test_a_password_does_not_travel_without_tls() -> None:
    env = {TOKEN_VARIABLE: TOKEN}
    with pytest.raises(Refused, match="without TLS"):
        RemoteBackend("http://console.example:8080", env)
    RemoteBackend("http://console.example:8080", {})
    RemoteBackend("http://console.example:8080", {**env, INSECURE_VARIABLE: "1"})
    RemoteBackend("https://console.example", env)


class _Canned:
    """A server that gives one raw answer to everything."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.heard: list[bytes] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                conn, _ = self._socket.accept()
            except OSError:
                return
            with conn:
                self.heard.append(conn.recv(65536))
                conn.sendall(self._answer)

    def close(self) -> None:
        self._socket.close()


@pytest.mark.parametrize(
    ("answer", "kind", "what"),
    [
        (
            b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
            Refused,
            "sends you",
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n<htm", Refused, "does not answer as"),
        (b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n", Refused, "answered 500"),
        (b"nonsense\r\n\r\n", Transient, "can't be reached"),
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", Transient, "answered 503"),
    ],
)
def test_whatever_answers_it_ends_in_one_clear_line(
    answer: bytes, kind: type[Exception], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ecs_gpu_recovery.control.remote_backend.WAITS_S", ())
    server = _Canned(answer)
    try:
        with pytest.raises(kind, match=what):
            RemoteBackend(server.address, {}).nodes()
        assert len(server.heard) == 1
    finally:
        server.close()


def test_an_answer_that_gets_lost_does_not_become_a_second_job(served: httpx.Client) -> None:
    side = _side(served)
    sent: list[str] = []
    real = side._ask

    def lossy(method: str, path: str, body: bytes | None = None, **headers: str) -> object:
        found = real(method, path, body, **headers)
        if method == "POST" and not sent:
            sent.append(found["id"])
            raise Transient("the answer was lost")
        return found

    side._ask = lossy  # type: ignore[method-assign]
    job = side.submit(JobRequest(spec=SPEC, any_nodes=1))
    assert sent == [job.id]
    assert len(side.jobs(None, 10, "").jobs) == 1


def test_a_request_says_the_same_on_both_sides(tmp_path: Path) -> None:
    """What is sent is read back as the very request, key by key."""
    state = still_state(tmp_path)
    request = JobRequest(
        spec=JobSpec(
            name="n",
            command=(sys.executable, "x"),
            env={"A": "1"},
            workdir=str(tmp_path),
            checkpoint_dir="/c",
            master_port=2000,
            gpus_per_node=2,
            memory_mib=64,
            task_def="fam:1",
            container="main",
            check_level="2",
        ),
        container=ContainerRequest(
            mounts=("/a:/b",),
            shared_memory_mib=4,
            infiniband=True,
            log_group="g",
            task_role="r",
            execution_role="e",
        ),
        nodes=("node-1",),
        max_retries=0,
        job_id="j",
    )
    here = LocalBackend(state)
    try:
        read, _ = read_request(here, body_of(request), Desktop(None))
    finally:
        here.close()
    assert read == request


def test_logs_and_the_command_itself_work_over_the_api(tmp_path: Path) -> None:
    with control_plane(tmp_path, nodes=2), console(tmp_path) as client:
        env = {
            **os.environ,
            "GPU_RECOVERY_BACKEND": str(client.base_url),
            "GPU_RECOVERY_STATE": str(tmp_path),
        }

        def run(*args: str) -> str:
            done = python("-m", "ecs_gpu_recovery.main", *args, env=env)
            assert done.returncode == 0, done.stderr
            return done.stdout

        command = training(steps=20)["command"]
        made = json.loads(run("submit", "--any", "2", "--check", "none", "--wait", "--json", "--", *command))
        assert made["status"] == "COMPLETE"
        assert "step 20" in run("logs", made["id"])
        assert made["id"] in run("jobs")
        assert "node-1" in run("nodes")
        side = RemoteBackend(str(client.base_url), {}, state=tmp_path)
        job = side.job(made["id"])
        sources = side.log_sources(job)
        assert {source.rank for source in sources} == {0, 1}
        lines, place = side.read_log(job, sources[0], "")
        assert lines
        assert side.read_log(job, sources[0], place) == ([], place)
        gone = LogSource(rank=0, attempt=0, node="node-1", task_id="none")
        with pytest.raises(NotFound):
            side.read_log(job, gone, "")
        eventually(lambda: all(node.claimable for node in side.nodes()), "the nodes are free again")
