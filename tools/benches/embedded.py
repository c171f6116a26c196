"""The embedded store under the runtime: events per second, beside bare SQLite doing the same durable writes."""

from __future__ import annotations

import cProfile
import json
import sqlite3
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ecs_gpu_recovery.core import codec
from ecs_gpu_recovery.core.events import Fact
from ecs_gpu_recovery.core.job.table import decide, submit
from ecs_gpu_recovery.core.model import Job, JobSpec
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.engine.runtime import Runtime
from ecs_gpu_recovery.local.schema import SCHEMA
from ecs_gpu_recovery.local.store import SqliteStore
from tools.benches._story import T0, SilentFleet, SilentNotifier, facts, nodes

JOBS = 48
AT_ONCE = 8
Statements = list[tuple[str, tuple[Any, ...]]]


class RecordingConnection:
    """The writer's connection, with a note of every statement, so that the same writes can be replayed bare."""

    def __init__(self, conn: sqlite3.Connection, log: Statements) -> None:
        self._conn, self._log = conn, log

    def execute(self, sql: str, args: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        if not sql.startswith("SELECT"):
            self._log.append((sql, args))
        return self._conn.execute(sql, args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)


def runtime_on(store: SqliteStore) -> Runtime:
    return Runtime(
        store=store, fleet=SilentFleet(), notifier=SilentNotifier(), policy=Policy(), dispatch=False
    )


def begin(runtime: Runtime, store: SqliteStore, number: int) -> tuple[str, list[Fact]]:
    for node in nodes(number):
        store.add_node(node)
    job_id = f"bench-{number}"
    runtime.submit(
        job_id=job_id,
        cluster="bench",
        spec=JobSpec(name="bench"),
        nodes=[n.name for n in nodes(number)],
        at=T0,
        check=False,
    )
    return job_id, facts(job_id, number)


def beside_raw(folder: Path) -> dict[str, float]:
    """Rounds of several jobs at once through the runtime, each followed by the same statements on a bare connection.

    The bare side commits once per event, in a plain loop. The runtime decides, encodes and checks versions for the same
    writes; events of different jobs that arrive together may share one fsync.
    """
    store = SqliteStore(folder / "ours.db")
    log: Statements = []
    store._writer = RecordingConnection(store._writer, log)  # type: ignore[assignment]
    runtime = runtime_on(store)
    raw = sqlite3.connect(folder / "raw.db", isolation_level=None)
    raw.execute("PRAGMA journal_mode=WAL")
    raw.execute("PRAGMA synchronous=FULL")
    for statement in SCHEMA:
        raw.execute(statement)
    ours = bare = 0.0
    events = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, JOBS, AT_ONCE):
            stories = [begin(runtime, store, number) for number in range(start, start + AT_ONCE)]
            for sql, args in log:
                raw.execute(sql, args)
            log.clear()
            began = time.perf_counter()
            list(pool.map(lambda story: [runtime.handle(story[0], [fact]) for fact in story[1]], stories))
            ours += time.perf_counter() - began
            writes = [(sql, args) for sql, args in log if sql not in ("BEGIN IMMEDIATE", "COMMIT")]
            log.clear()
            began = time.perf_counter()
            replay(raw, writes)
            bare += time.perf_counter() - began
            events += sum(sql.startswith("INSERT INTO ecs_job") for sql, _ in writes)
    raw.close()
    store.close()
    return {
        "sqlite_events_per_s": events / ours,
        "sqlite_raw_events_per_s": events / bare,
        "sqlite_ratio_to_raw": bare / ours,
    }


def profile(folder: Path) -> dict[str, float]:
    """Where an event's time goes on one thread: the reason for the ratio to bare SQLite, which only writes.

    A function's own time counts for the part that it serves: those of the core decide, those of the codec, the rows and
    JSON encode, those of SQLite write. What is left finds records, sends nothing, and hands facts on.
    """
    store = SqliteStore(folder / "profile.db")
    runtime = runtime_on(store)
    stories = [begin(runtime, store, number) for number in range(JOBS)]
    watch = cProfile.Profile()
    for job_id, story in stories:
        watch.enable()
        for fact in story:
            runtime.handle(job_id, [fact])
        watch.disable()
    store.close()
    spent = dict.fromkeys(("deciding", "encoding", "writing", "rest"), 0.0)
    for entry in watch.getstats():
        spent[_part_of(entry.code)] += entry.inlinetime
    events = sum(len(story) for _, story in stories)
    return {f"sqlite_ms_{part}": 1000 * seconds / events for part, seconds in spent.items()}


def _part_of(code: Any) -> str:
    """`code` is the name of a built-in function, or the code of one in a file."""
    if isinstance(code, str):
        return (
            "writing"
            if "sqlite3" in code
            else "encoding"
            if "json" in code or "isoformat" in code
            else "rest"
        )
    path = Path(code.co_filename)
    if path.name in ("codec.py", "rows.py", "stored.py") or path.parent.name == "json":
        return "encoding"
    return "deciding" if "core" in path.parts or path.name == "dataclasses.py" else "rest"


def replay(raw: sqlite3.Connection, writes: Statements) -> None:
    """Each event's writes begin with its job's row."""
    for sql, args in writes:
        if sql.startswith("INSERT INTO ecs_job"):
            if raw.in_transaction:
                raw.execute("COMMIT")
            raw.execute("BEGIN IMMEDIATE")
        raw.execute(sql, args)
    raw.execute("COMMIT")


def fill(store: SqliteStore, template: Job, count: int) -> None:
    """Finished jobs as they would lie in an old store."""
    record = codec.dump(template)
    store._writer.execute("BEGIN IMMEDIATE")
    for number in range(count):
        job_id = f"old-{number:06}"
        store._writer.execute(
            "INSERT INTO ecs_job VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (
                job_id,
                T0.isoformat(),
                "bench",
                "4",
                "[]",
                "[]",
                "[]",
                T0.isoformat(),
                T0.isoformat(),
                "1",
                "COMPLETE",
                "old",
                None,
                None,
                template.version,
                json.dumps({**record, "id": job_id}),
            ),
        )
    store._writer.execute("COMMIT")


def growth(folder: Path) -> dict[str, float]:
    """The cost of an event with 100,000 finished jobs in the store, over the cost with 10: paired, interleaved."""
    template = submit(
        job_id="t", cluster="bench", spec=JobSpec(), nodes=nodes(0), policy=Policy(), at=T0, check=False
    ).job
    for fact in facts("t", 0):
        template = decide(template, fact, Policy()).job
    pair = []
    for name, count in (("small", 10), ("large", 100_000)):
        store = SqliteStore(folder / f"{name}.db")
        fill(store, template, count)
        pair.append((store, runtime_on(store)))
    ratios = []
    for number in range(30):
        spent = []
        for store, runtime in pair:
            job_id, story = begin(runtime, store, number)
            began = time.perf_counter()
            for fact in story:
                runtime.handle(job_id, [fact])
            spent.append(time.perf_counter() - began)
        ratios.append(spent[1] / spent[0])
    for store, _ in pair:
        store.close()
    return {"sqlite_cost_growth_100k": statistics.median(ratios)}


def decisions() -> dict[str, float]:
    """The pure function alone."""
    policy = Policy()
    story = facts("j", 0)
    rounds = 60
    began = time.process_time()
    for _ in range(rounds):
        job = submit(
            job_id="j", cluster="bench", spec=JobSpec(), nodes=nodes(0), policy=policy, at=T0, check=False
        ).job
        for fact in story:
            job = decide(job, fact, policy).job
    return {"decide_per_s": rounds * len(story) / (time.process_time() - began)}


def measure() -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
        return {
            **decisions(),
            **beside_raw(Path(folder)),
            **profile(Path(folder)),
            **growth(Path(folder)),
        }
