"""The SQLite store under kill -9, many threads and many processes: nothing acknowledged is ever lost."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ecs_gpu_recovery.core.errors import NodesTaken, Refused, Transient, VersionConflict
from ecs_gpu_recovery.core.job.table import submit
from ecs_gpu_recovery.core.model import Job, JobSpec
from ecs_gpu_recovery.local import database
from ecs_gpu_recovery.local import store as store_module
from ecs_gpu_recovery.local.schema import SCHEMA_VERSION
from ecs_gpu_recovery.local.store import SqliteStore
from ecs_gpu_recovery.local.wiring import LOCAL_POLICY, now
from tests.embedded.helpers import ROOT, eventually
from tests.embedded.writer_program import a_node, count

PROGRAM = [sys.executable, "-m", "tests.embedded.writer_program"]
THREADS = 3


def start(database: Path, notes: Path, *what: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*PROGRAM, str(database), str(notes), *what], cwd=ROOT, stderr=subprocess.PIPE)


def acknowledged(notes: Path) -> dict[str, int]:
    """The newest version of each job that its writer was told is safe."""
    found: dict[str, int] = {}
    for line in notes.read_text().splitlines():
        job_id, version, _ = line.split()
        found[job_id] = max(found.get(job_id, 0), int(version))
    return found


def check_the_records(store: SqliteStore, acked: dict[str, int]) -> None:
    """Every acknowledged commit is there, and the node rows say what the job records say."""
    assert store.read("PRAGMA integrity_check") == [("ok",)]
    versions = dict(store.read("SELECT job_id, version FROM ecs_job"))
    lost = {job_id: version for job_id, version in acked.items() if versions.get(job_id, 0) < version}
    assert not lost, f"acknowledged and lost: {lost}"
    held = {node.name: node for node in store.nodes()}
    live = [store.job(job_id) for job_id in store.live_jobs()]
    for job in live:
        for rank in job.ranks:
            assert (held[rank.node].job_id, held[rank.node].status) == (job.id, rank.node_status)
    holders = {node.job_id for node in held.values() if node.job_id}
    assert holders == {job.id for job in live}
    tasks = Counter(row[0] for row in store.read("SELECT job_id FROM ecs_task"))
    for job in live:
        assert tasks[job.id] == sum(1 for rank in job.ranks if rank.task_id)


@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_a_writer_killed_at_random_loses_no_acknowledged_commit(
    tmp_path: Path, kills: int, record_property: Callable[[str, object], None]
) -> None:
    record_property("kills", kills)
    chance = random.Random(kills)
    database, notes = tmp_path / "recovery.db", tmp_path / "acknowledged"
    notes.touch()
    store = SqliteStore(database)
    try:
        for _ in range(kills):
            before = notes.stat().st_size
            writer = start(database, notes, "jobs", str(THREADS))
            try:
                eventually(lambda size=before: notes.stat().st_size > size, "the writer writes")
                threading.Event().wait(chance.uniform(0, 0.05))
            finally:
                writer.kill()
                writer.communicate()
            check_the_records(store, acknowledged(notes))
        assert len(notes.read_text().splitlines()) >= kills, "some only end another's job"
    finally:
        store.close()


def test_writers_of_two_processes_lose_no_change_of_each_other(tmp_path: Path) -> None:
    database = tmp_path / "recovery.db"
    store = SqliteStore(database)
    store.add_node(a_node("shared"))
    writers = [start(database, tmp_path / f"notes-{i}", "count", "60") for i in range(2)]

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: count(store, "shared", 20), range(3)))
    for writer in writers:
        _, said = writer.communicate(timeout=60)
        assert writer.returncode == 0, said.decode()
    assert store.node("shared").errands == 2 * 60 + 3 * 20
    store.close()


def test_processes_that_open_a_new_database_at_once_all_succeed(tmp_path: Path) -> None:
    for turn in range(3):
        database = tmp_path / f"turn-{turn}" / "recovery.db"
        database.parent.mkdir()
        openers = [start(database, tmp_path / "notes", "open") for _ in range(5)]
        for opener in openers:
            _, said = opener.communicate(timeout=60)
            assert opener.returncode == 0, said.decode()
        store = SqliteStore(database)
        assert store.read("PRAGMA user_version") == [(SCHEMA_VERSION,)]
        store.close()


def test_a_controller_and_a_command_may_make_the_database_at_the_same_moment(tmp_path: Path) -> None:
    """The command finds a file that is still empty: both make the tables, and one of them has to give way."""
    path = tmp_path / "recovery.db"
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda _: SqliteStore(path), range(8)))
    for store in stores:
        assert store.nodes() == []
        store.close()


def a_job(store: SqliteStore, number: int) -> Job:
    node = a_node(f"n{number}")
    store.add_node(node)
    spec = JobSpec(command=("true",))
    step = submit(
        job_id=f"j{number}", cluster="c", spec=spec, nodes=[node], policy=LOCAL_POLICY, at=now(), check=False
    )
    store.create(step.job)
    return step.job


def at_once(acts: list[Callable[[], object]]) -> list[BaseException]:
    """Errors of what was done on many threads together."""

    def act(one: Callable[[], object]) -> BaseException | None:
        try:
            one()
        except BaseException as exc:  # noqa: BLE001 (they are counted)
            return exc
        return None

    with ThreadPoolExecutor(len(acts)) as pool:
        return [error for error in pool.map(act, acts) if error is not None]


def test_the_memory_of_records_is_safe_for_many_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_CACHE", 2)
    store = SqliteStore(tmp_path / "recovery.db")
    jobs = [a_job(store, number) for number in range(6)]

    def read() -> None:
        for turn in range(300):
            job = jobs[turn % len(jobs)]
            assert store.job(job.id) == job

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert at_once([read] * 6) == []
    finally:
        sys.setswitchinterval(interval)
    store.close()


def test_a_refused_write_does_not_disturb_its_neighbours_in_the_same_commit(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "recovery.db")
    job = a_job(store, 0)
    good = [a_node(f"m{i}") for i in range(20)]
    acts: list[Callable[[], object]] = [lambda node=node: store.add_node(node) for node in good]
    acts[5:5] = [
        lambda: store.create(replace(job, id="other")),
        lambda: store.commit(job, replace(job, version=9)),
    ]
    errors = at_once(acts)
    assert sorted(type(error).__name__ for error in errors) == [NodesTaken.__name__, VersionConflict.__name__]
    assert len(store.nodes()) == 21
    assert store.job(job.id) == job
    store.close()


def test_a_write_that_crashes_takes_its_batch_back_whole(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "recovery.db")

    def half_done(conn: sqlite3.Connection) -> None:
        conn.execute("INSERT INTO archived VALUES ('half')")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.write(half_done)
    assert store.read("SELECT * FROM archived") == []
    store.add_node(a_node("n1"))
    assert len(store.nodes()) == 1
    store.close()


def test_another_process_that_holds_the_lock_too_long_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_BUSY_S", 0.2)
    store = SqliteStore(tmp_path / "recovery.db")
    other = sqlite3.connect(tmp_path / "recovery.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Transient, match="locked by another process"):
        store.add_node(a_node("n1"))
    other.execute("ROLLBACK")
    other.close()
    store.add_node(a_node("n1"))
    assert [node.name for node in store.nodes()] == ["n1"]
    store.close()


def test_an_orphaned_claim_is_freed_only_when_it_is_old(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "recovery.db")
    node = a_node("n1")
    store.add_node(node)
    store.commit_node(replace(node, job_id="never-recorded", version=node.version + 1))
    store.release_orphan("n1", "never-recorded", node.updated_at + timedelta(minutes=9))
    assert store.node("n1").job_id == "never-recorded"
    store.release_orphan("n1", "never-recorded", node.updated_at + timedelta(minutes=10))
    assert store.node("n1").job_id == ""
    store.close()


@pytest.mark.parametrize("damage", ["garbage", "cut in half", "newer schema"])
def test_a_database_that_cannot_be_used_is_refused_and_left_as_it_is(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "recovery.db"
    store = SqliteStore(path)
    for number in range(30):
        store.add_node(a_node(f"n{number}"))
    store.close()
    if damage == "garbage":
        path.write_bytes(random.Random(1).randbytes(20_000))
    elif damage == "cut in half":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        conn = sqlite3.connect(path)
        conn.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
        conn.close()
    before = path.read_bytes()
    with pytest.raises(Refused, match="newer release" if damage == "newer schema" else "is damaged"):
        SqliteStore(path).nodes()
    assert path.read_bytes() == before
