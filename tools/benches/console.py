"""The web console under load: 1,000 nodes, 10,000 jobs, 50 live viewers. How long an answer takes, what the viewers
cost in memory, and whether a recovery notices them.

The console is a process of its own, as it is in use. The recovery is the runtime on the same store, event by event.
Viewers come and go all the time; half of them watch the overview, the rest the lists, jobs and nodes.
"""

from __future__ import annotations

import asyncio
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil

from ecs_gpu_recovery.control.console_link import ConsoleLink, token_of
from ecs_gpu_recovery.core.job.table import decide, submit
from ecs_gpu_recovery.core.model import JobSpec, NodeStatus
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.engine.runtime import Runtime
from ecs_gpu_recovery.local import wiring
from ecs_gpu_recovery.local.store import SqliteStore
from tools.benches._story import RANKS, T0, SilentFleet, SilentNotifier, facts, nodes

ROOT = Path(__file__).resolve().parents[2]
NODES, JOBS, VIEWERS = 1000, 10_000, 50
#: Each recovery is played with and without viewers, one after the other.
PAIRS = 8
#: How long viewers come and go while the memory is watched.
SOAK_S = 25.0
PAGES = (
    "/",
    "/jobs",
    "/api/nodes?limit=200",
    "/api/jobs?limit=100",
    "/api/metrics",
    "/jobs/old-00042",
    "/alerts",
)
STREAMS = ("/live/overview", "/live/overview", "/api/live", "/live/jobs", "/live/job?job_id=old-00007")


def fill(state: Path) -> None:
    """A store as a year leaves it: a fleet, ended jobs with whole stories, and a few that run."""
    store = SqliteStore(state / wiring.DATABASE)
    template = submit(
        job_id="t",
        cluster="bench",
        spec=JobSpec(name="old"),
        nodes=nodes(0),
        policy=Policy(),
        at=T0,
        check=False,
    ).job
    for fact in facts("t", 0):
        template = decide(template, fact, Policy()).job
    template = replace(template, outbox=())
    fleet = [
        Node(
            name=f"node-{n:04}",
            cluster="bench",
            instance=f"i-{n:04}",
            gpus=8,
            ip=f"10.0.{n // 250}.{n % 250}",
            status=NodeStatus.FAILED if n % 97 == 0 else NodeStatus.AVAILABLE,
            findings="Xid 79 on GPU 3" if n % 97 == 0 else "",
            connected=True,
            created_at=T0,
            updated_at=T0,
            timeline=template.timeline[:6],
        )
        for n in range(NODES)
    ]
    store._writer.execute("BEGIN IMMEDIATE")
    for node in fleet:
        store._put_node(store._writer, node)
    for n in range(JOBS):
        at = T0 + timedelta(minutes=n)
        job = replace(template, id=f"old-{n:05}", created_at=at, updated_at=at)
        store._put_job(store._writer, job)
    store._writer.execute("COMMIT")
    store.close()


@contextmanager
def served(state: Path) -> Iterator[tuple[psutil.Process, ConsoleLink]]:
    """The console as `gpu-recovery console` runs it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "ecs_gpu_recovery.main", "console", "--state", str(state)]
    process = subprocess.Popen([*command, "--port", str(port)], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if time.monotonic() > deadline:
                raise RuntimeError("the console did not start")
            time.sleep(0.1)
        yield psutil.Process(process.pid), link_to(state, port)
    finally:
        process.terminate()
        process.wait(20)


def link_to(state: Path, port: int) -> ConsoleLink:
    """As the console's owner finds it."""
    address = f"http://127.0.0.1:{port}"
    return ConsoleLink(address, token_of(state, address))


def opened(link: ConsoleLink, path: str, accept: str) -> bytes:
    head = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {link.token}\r\naccept: {accept}\r\n"
    return head.encode()


async def get(link: ConsoleLink, path: str) -> tuple[int, float]:
    """Status and seconds of one request, to its last byte."""
    began = time.perf_counter()
    port = link.address.rpartition(":")[2]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        writer.write(opened(link, path, "text/html") + b"connection: close\r\n\r\n")
        answer = await reader.read(-1)
        return int(answer.split(b" ", 2)[1]), time.perf_counter() - began
    finally:
        writer.close()


async def view(link: ConsoleLink, path: str, lasts_s: float, counted: list[int]) -> None:
    """One viewer, until it leaves."""
    port = link.address.rpartition(":")[2]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        writer.write(opened(link, path, "text/event-stream") + b"\r\n")
        with suppress(TimeoutError):
            async with asyncio.timeout(lasts_s):
                while part := await reader.read(1 << 16):
                    counted.append(len(part))
    finally:
        writer.close()


class Crowd:
    """Viewers who come and go, in a process of their own, so that they take no time from whoever is measured."""

    def __init__(self, state: Path, link: ConsoleLink, viewers: int) -> None:
        port = link.address.rpartition(":")[2]
        code = f"from tools.benches.console import crowd; crowd({str(state)!r}, {port}, {viewers})"
        command = [sys.executable, "-c", code]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(word, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline().strip() == word

    def come(self) -> None:
        self._say("come")

    def go(self) -> None:
        self._say("go")

    def end(self) -> None:
        self._process.communicate()
        self._process.wait(20)


def crowd(state: str, port: int, viewers: int) -> None:
    """After `come` every seat is taken, and again as soon as it is free; after `go` all are empty."""
    link = link_to(Path(state), port)

    async def seat(number: int) -> None:
        luck = random.Random(number)
        while True:
            await view(link, STREAMS[number % len(STREAMS)], luck.uniform(3, 9), [])

    async def run() -> None:
        seats: list[asyncio.Task[None]] = []
        while word := (await asyncio.to_thread(sys.stdin.readline)).strip():
            if word == "come":
                seats = [asyncio.create_task(seat(number)) for number in range(viewers)]
            for task in seats if word == "go" else []:
                task.cancel()
            if word == "go":
                await asyncio.gather(*seats, return_exceptions=True)
            print(word, flush=True)

    asyncio.run(run())


def recovery(runtime: Runtime, store: SqliteStore, number: int) -> tuple[list[float], float]:
    """Seconds on the clock of each event, and of this processor for all, from submission to success."""
    for node in nodes(number):
        store.add_node(node)
    job_id, story = f"live-{number}", facts(f"live-{number}", number)
    names = [f"j{number}-n{rank}" for rank in range(RANKS)]
    spent = time.thread_time()
    runtime.submit(job_id=job_id, cluster="bench", spec=JobSpec(name="live"), nodes=names, at=T0, check=False)
    took = []
    for fact in story:
        began = time.perf_counter()
        runtime.handle(job_id, [fact])
        took.append(time.perf_counter() - began)
    return took, time.thread_time() - spent


def slowdown(state: Path, people: Crowd) -> dict[str, float]:
    """The same recovery with fifty viewers and with none, in turns.

    Of the time of an event the median counts, so that a machine that is busy with other things tells more of us than
    of them.
    """
    store = SqliteStore(state / wiring.DATABASE)
    runtime = Runtime(
        store=store, fleet=SilentFleet(), notifier=SilentNotifier(), policy=Policy(), dispatch=False
    )
    wall: dict[bool, list[float]] = {True: [], False: []}
    cpu: dict[bool, float] = {True: 0.0, False: 0.0}
    for number in range(PAIRS):
        for watched in (True, False):
            people.come() if watched else people.go()
            time.sleep(1.5 if watched else 0.5)
            for _ in range(3):
                took, spent = recovery(runtime, store, len(wall[True]) + len(wall[False]) + 1 + number)
                wall[watched] += took
                cpu[watched] += spent
    store.close()
    return {
        "recovery_slowdown_with_viewers": statistics.median(wall[True]) / statistics.median(wall[False]),
        "recovery_cpu_with_viewers": cpu[True] / cpu[False],
    }


def answers(link: ConsoleLink) -> dict[str, float]:
    """Pages and lists, asked for while fifty watch."""

    async def ask() -> list[float]:
        found = []
        for number in range(20 * len(PAGES)):
            status, seconds = await get(link, PAGES[number % len(PAGES)])
            assert status == 200, (PAGES[number % len(PAGES)], status)
            found.append(seconds)
            await asyncio.sleep(0.05)
        return sorted(found[len(PAGES) :])

    seconds = asyncio.run(ask())
    return {
        "console_p50_ms": 1000 * statistics.median(seconds),
        "console_p95_ms": 1000 * seconds[int(0.95 * len(seconds))],
    }


def measure() -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=ROOT / "build") as folder:
        state = Path(folder)
        fill(state)
        with served(state) as (process, link):
            for path in PAGES:
                status, _ = asyncio.run(get(link, path))
                assert status == 200, path
            people = Crowd(state, link, VIEWERS)
            people.come()
            time.sleep(10.0)
            before, began, busy = process.memory_info().rss, time.monotonic(), sum(process.cpu_times()[:2])
            numbers = answers(link)
            time.sleep(max(0.0, SOAK_S - (time.monotonic() - began)))
            spent = sum(process.cpu_times()[:2]) - busy
            numbers["console_cpu_share"] = spent / (time.monotonic() - began)
            numbers["console_rss_mb"] = process.memory_info().rss / 2**20
            numbers["console_rss_growth"] = process.memory_info().rss / before
            people.go()
            numbers |= slowdown(state, people)
            people.end()
            return numbers
