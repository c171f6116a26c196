"""A disk that fills up: commands say so and change nothing; with room again the control plane goes on."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ecs_gpu_recovery.core.errors import Refused, Transient
from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.local.cluster import Cluster
from ecs_gpu_recovery.local.controller import unusable
from ecs_gpu_recovery.local.files import read_json
from ecs_gpu_recovery.local.shim import FULL_DISK_PAUSE_S
from ecs_gpu_recovery.local.store import SqliteStore
from ecs_gpu_recovery.local.views import TaskSpec, TaskState, TaskView
from tests.cli.conftest import run_command
from tests.console.helpers import PASSWORD, USERS, console, control_plane, csrf_of, sign_in, still_state
from tests.console.helpers import training as a_training
from tests.embedded.helpers import FOREVER, eventually, live_controller, living, training
from tests.embedded.writer_program import a_node
from tests.local.helpers import a_cluster, power_on

SIZE = "4m"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of a few megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def write_for_ever(fd: int, data: bytes) -> None:
    while True:
        os.write(fd, data)


def fill(disk: Path) -> Path:
    """Take every last byte."""
    ballast = disk / "ballast"
    fd = os.open(ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for size in (1 << 16, 1 << 12, 1):
            with pytest.raises(OSError, match="No space left"):
                write_for_ever(fd, b"x" * size)
    finally:
        os.close(fd)
    return ballast


def add_nodes(store: SqliteStore, count: int) -> None:
    for number in range(count):
        store.add_node(a_node(f"more-{number}"))


def test_a_full_disk_refuses_a_write_whole_and_the_next_one_works(small_disk: Path) -> None:
    store = SqliteStore(small_disk / "recovery.db")
    store.add_node(a_node("n1"))
    ballast = fill(small_disk)
    with pytest.raises(Transient, match=f"the disk of {small_disk} is full: nothing was changed"):
        add_nodes(store, 1000)
    there = {node.name for node in store.nodes()}
    ballast.unlink()
    store.add_node(a_node("n2"))
    assert {node.name for node in store.nodes()} == there | {"n2"}
    assert store.read("PRAGMA integrity_check") == [("ok",)]
    store.close()


def test_commands_on_a_full_disk_say_so_and_change_nothing(small_disk: Path) -> None:
    with live_controller(small_disk / "state", nodes=2) as live:
        state = ("--state", str(live.state))
        live.submit("sleeper", FOREVER, nodes=["node-1"])
        live.started("sleeper")
        eventually(lambda: live.job("sleeper").ranks[0].deadline is None, "it is known to run")
        before = live.job("sleeper")
        ballast = fill(small_disk)
        big = f"BIG={'x' * 200_000}"
        run_command("submit", *state, "--id", "late", "--any", 1, "--env", big, "--", sys.executable).refused(
            "is full: nothing was changed", code=5
        )
        told = run_command("stop", "sleeper", *state, "--why", "x" * 200_000)
        assert told.code == 5, told
        assert live.job("sleeper") == before
        assert not (live.state / "checkpoints" / "late").exists()
        assert live.side.node("node-2").claimable
        ballast.unlink()
        assert run_command("stop", "sleeper", *state, "--why", "room again").code == 0
        live.ends("sleeper", JobStatus.USER_STOPPED)
        live.submit("after", training(5, 0), nodes=["node-1", "node-2"])
        live.ends("after", JobStatus.COMPLETE)


def test_the_console_on_a_full_disk_is_as_clear_as_the_commands(small_disk: Path) -> None:
    with (
        control_plane(small_disk / "state") as controller,
        console(controller.parts.state, users=USERS) as client,
    ):
        sign_in(client, "olga")
        ballast = fill(small_disk)
        page = client.get("/", headers={"accept": "text/html"})
        assert page.status_code == 200
        assert f"the disk of {small_disk}/state is full" in page.text
        assert "All is well" not in page.text
        csrf = {"x-csrf-token": csrf_of(client)}
        big = {f"BIG_{number}": "x" * 30_000 for number in range(10)}
        told = client.post("/api/jobs", json=a_training(env=big), headers=csrf)
        assert told.status_code == 503, told.text
        assert "is full" in told.json()["detail"]
        script = {**a_training(), "script_text": "#" * 100_000}
        del script["command"]
        told = client.post("/api/jobs", json=script, headers=csrf)
        assert (told.status_code, "is full" in told.json()["detail"]) == (503, True), told.text
        ballast.unlink()
        assert "is full" not in client.get("/").text
        assert client.post("/api/jobs", json=a_training(), headers=csrf).status_code == 201


def test_signing_in_on_a_full_disk_says_what_is_wrong(small_disk: Path) -> None:
    with console(still_state(small_disk / "state"), users=USERS) as client:
        ballast = fill(small_disk)
        form = {"name": "olga", "password": PASSWORD, "next": "/"}
        replies = [client.post("/signin", data=form, headers={"accept": "text/html"}) for _ in range(5)]
        assert {reply.status_code for reply in replies} <= {303, 503}
        assert f"the disk of {small_disk}/state/console is full" in replies[-1].text
        ballast.unlink()
        sign_in(client, "olga")


def test_a_control_plane_that_finds_its_disk_full_says_so(small_disk: Path) -> None:
    fill(small_disk)
    run_command("up", "--state", small_disk / "state", "--nodes", 1).refused("is full", code=5)


def test_an_order_that_finds_the_disk_full_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refusals = Cluster.start_task, iter(range(3))

    def no_room_at_first(self: Cluster, name: str, spec: TaskSpec) -> None:
        if next(refusals, None) is not None:
            raise OSError(errno.ENOSPC, "No space left on device")
        start(self, name, spec)

    with live_controller(tmp_path) as live:
        monkeypatch.setattr(Cluster, "start_task", no_room_at_first)
        live.submit("job", training(5, 0))
        live.ends("job", JobStatus.COMPLETE)
    assert next(refusals, None) is None


@contextmanager
def a_node_on(disk: Path) -> Iterator[Cluster]:
    """Even a full disk keeps nothing alive."""
    with a_cluster(disk / "state") as cluster:
        power_on(cluster, "n1")
        yield cluster


def wait_for(sign: Path, code: int) -> tuple[str, ...]:
    """A program that ends with that code when a file appears, and notes that it ran."""
    line = f"echo ran >> {sign}.ran; until test -e {sign}; do sleep 0.05; done; exit {code}"
    return ("/bin/sh", "-c", line)


def test_a_task_that_ends_on_a_full_disk_keeps_its_exit_code(small_disk: Path, tmp_path: Path) -> None:
    """Nobody but its supervisor knows the code, so the room for it was taken before the start."""
    with a_node_on(small_disk) as cluster:
        for number in range(3):
            cluster.start_task(
                "n1", TaskSpec(task_id=f"t{number}", argv=wait_for(tmp_path / "go", 40 + number))
            )
        eventually(lambda: len(cluster.tasks("n1")) == 3 and all(map(runs, cluster.tasks("n1"))), "they run")
        fill(small_disk)
        (tmp_path / "go").touch()
        eventually(lambda: not cluster.tasks("n1", live_only=True), "they ended, on a full disk")
        assert [task.exit_code for task in cluster.tasks("n1")] == [40, 41, 42]
        assert not list(small_disk.rglob("*.room"))


def runs(task: TaskView) -> bool:
    return task.state is TaskState.RUNNING


def test_a_supervisor_killed_on_a_full_disk_leaves_its_room_to_the_agent(
    small_disk: Path, tmp_path: Path
) -> None:
    with a_node_on(small_disk) as cluster:
        cluster.start_task("n1", TaskSpec(task_id="t", argv=wait_for(tmp_path / "go", 4)))
        eventually(lambda: runs(cluster.task("n1", "t")), "it runs")
        fill(small_disk)
        os.kill(int((read_json(str(cluster.task("n1", "t").folder / "claim")) or {})["pid"]), signal.SIGKILL)
        eventually(lambda: cluster.task("n1", "t").state is TaskState.ENDED, "its end is told")
        assert "nobody knows" in (cluster.task("n1", "t").reason or "")


def test_a_task_without_room_to_tell_its_end_waits_for_it_and_runs_once(
    small_disk: Path, tmp_path: Path
) -> None:
    with a_node_on(small_disk) as cluster:
        agent = cluster.node("n1").pid
        assert agent is not None
        os.kill(agent, signal.SIGSTOP)
        cluster.start_task("n1", TaskSpec(task_id="t", argv=wait_for(tmp_path / "go", 6)))
        (tmp_path / "go").touch()
        ballast = fill(small_disk)
        os.kill(agent, signal.SIGCONT)
        eventually(lambda: len(living(cluster)) > 1, "its supervisor is there")
        time.sleep(2 * FULL_DISK_PAUSE_S)
        assert not (tmp_path / "go.ran").exists(), "it was started though nobody could tell its end"
        ballast.unlink()
        eventually(lambda: cluster.task("n1", "t").state is TaskState.ENDED, "it ended")
        assert cluster.task("n1", "t").exit_code == 6
        assert (tmp_path / "go.ran").read_text() == "ran\n"
        assert cluster.node("n1").pid == agent, "the agent lived through it"


def test_only_a_full_disk_is_worth_waiting_for(tmp_path: Path) -> None:
    assert isinstance(unusable(tmp_path, OSError(errno.ENOSPC, "No space left on device")), Transient)
    assert isinstance(unusable(tmp_path, OSError(errno.EACCES, "Permission denied")), Refused)
