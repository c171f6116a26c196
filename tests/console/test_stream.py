"""The live stream: nothing missed, nothing twice, whatever is lost or started again in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from ecs_gpu_recovery.console.backend_pool import BackendPool
from ecs_gpu_recovery.console.live import stream, stream_limits
from ecs_gpu_recovery.console.live.journal import FILE, RING, Event, Journal
from ecs_gpu_recovery.console.live.snapshot import Shared, Snapshots
from ecs_gpu_recovery.console.live.stream import Hub
from ecs_gpu_recovery.console.live.stream_limits import EventStream, StreamLimits, TooManyStreams
from ecs_gpu_recovery.control.local_backend import LocalBackend
from tests.console.helpers import (
    USERS,
    console,
    events,
    eventually,
    sessions_end,
    sign_in,
    still_state,
    submitted,
)


def _drain(client: httpx.Client, name: str, why: str = "test") -> None:
    assert client.post(f"/api/nodes/{name}/drain", json={"why": why}).status_code == 200


def test_a_restarted_console_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """What changed before it went, while it was away, and after it came back is told once, in order."""
    state = still_state(tmp_path)
    with console(state) as client:
        (first,) = events(client, 1)
        _drain(client, "node-1")
        (seen,) = events(client, 1, last=first["id"])
        _drain(client, "node-2")
        events(client, 1, last=seen["id"])  # somebody else hears of it; we have lost the connection
    with closing(LocalBackend(state)) as side:
        side.ask_node("node-3", "drain", why="nobody was looking")
    with console(state) as client:
        missed = events(client, 2, last=seen["id"])
        _drain(client, "node-4")
        (rest,) = events(client, 1, last=missed[-1]["id"])
    names = [json.loads(message["data"])["name"] for message in (seen, *missed, rest)]
    assert names == ["node-1", "node-2", "node-3", "node-4"]
    assert all(message["event"] == "node" for message in missed)
    numbers = [int(message["id"].partition(".")[2]) for message in (seen, *missed, rest)]
    assert numbers == list(range(numbers[0], numbers[0] + 4))


def test_the_moves_of_a_job_are_told_across_a_restart(tmp_path: Path) -> None:
    state = still_state(tmp_path)
    with console(state) as client:
        job = submitted(client, any_nodes=1)["id"]
        (first,) = events(client, 1)
    with closing(LocalBackend(state)) as side:
        side.stop(job, why="enough")
    with console(state) as client:
        told = events(client, 1, last=first["id"])
    assert told[0]["event"] == "job"
    entries = json.loads(told[0]["data"])["entries"]
    assert entries
    assert all("the job was submitted" not in entry["why"] for entry in entries)


def test_a_memory_of_another_boot_is_another_life(tmp_path: Path) -> None:
    journal = Journal(tmp_path / FILE, boot="first")
    epoch = journal.past().epoch
    journal.add([Event(1, "node", "{}")], {("node", "n1"): {"name": "n1"}})
    journal.close()
    again = Journal(tmp_path / FILE, boot="first")
    assert (again.past().epoch, again.past().number, again.past().known) == (
        epoch,
        1,
        {"node": {"n1": {"name": "n1"}}},
    )
    again.close()
    later = Journal(tmp_path / FILE, boot="second")
    past = later.past()
    assert past.epoch != epoch
    assert (past.events, past.known) == ([], {})
    later.close()


def test_the_memory_of_the_stream_does_not_grow(tmp_path: Path) -> None:
    journal = Journal(tmp_path / FILE, boot="b")
    journal.past()
    for start in range(1, 3 * RING, 500):
        journal.add([Event(n, "node", "{}") for n in range(start, start + 500)], {})
    past = journal.past()
    assert len(past.events) == RING
    assert past.number == 3 * RING
    journal.close()


def test_a_damaged_memory_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database" * 1000)
    journal = Journal(tmp_path / FILE)
    assert journal.past().number == 0
    journal.add([Event(1, "node", "{}")], {})
    assert journal.past().number == 1
    journal.close()


def test_only_its_owner_can_read_the_memory(tmp_path: Path) -> None:
    journal = Journal(tmp_path / FILE)
    journal.add([Event(1, "node", "{}")], {})
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    journal.close()
    assert set(modes.values()) == {0o600}, modes


def test_two_consoles_on_one_folder_do_not_share_a_memory(tmp_path: Path) -> None:
    first, second = Journal(tmp_path / FILE), Journal(tmp_path / FILE)
    assert first.past().epoch != second.past().epoch
    second.add([Event(1, "node", "{}")], {})
    assert first.past().number == 0
    first.close()
    second.close()


def test_a_memory_that_fails_does_not_pretend_to_be_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path / FILE, boot="b")
    epoch = journal.past().epoch
    journal.add([Event(1, "node", "{}")], {})
    journal.add([Event(1, "node", "{}")], {})  # the same number twice: something is wrong
    journal.add([Event(2, "node", "{}")], {})
    journal.close()
    again = Journal(tmp_path / FILE, boot="b")
    assert again.past().epoch != epoch
    again.close()


def test_a_viewer_who_is_too_slow_for_the_ring_gets_everything_again(tmp_path: Path) -> None:
    state = still_state(tmp_path)

    async def story() -> list[str]:
        pool = BackendPool(lambda: LocalBackend(state))
        hub = Hub(pool, every_s=60.0)
        stream = hub.stream("")
        kinds = [(await anext(stream)).split("event: ")[1].split("\n")[0]]
        await hub._publish([("node", {"n": i}) for i in range(RING + 5)], {})
        kinds.append((await anext(stream)).split("event: ")[1].split("\n")[0])
        await hub._publish([("node", {"n": "next"})], {})
        kinds.append((await anext(stream)).split("event: ")[1].split("\n")[0])
        await hub.close()
        await stream.aclose()
        pool.close()
        return kinds

    assert asyncio.run(story()) == ["snapshot", "snapshot", "node"]


def test_an_old_job_that_still_runs_is_told_of_although_the_list_has_moved_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "JOBS", 2)
    with console(still_state(tmp_path)) as client:
        old = submitted(client, any_nodes=1)["id"]
        for _ in range(3):
            submitted(client, any_nodes=1)
        (first,) = events(client, 1)
        assert old in [line["id"] for line in json.loads(first["data"])["jobs"]]
        client.post(f"/api/jobs/{old}/stop", json={"why": "enough"})
        (told, *_) = events(client, 1, last=first["id"])
        assert json.loads(told["data"])["id"] == old


@pytest.fixture
def few_streams(tmp_path: Path) -> Iterator[httpx.Client]:
    with console(still_state(tmp_path), streams=StreamLimits(3, 2)) as client:
        yield client


def test_viewers_are_bounded_and_told_so(few_streams: httpx.Client) -> None:
    """Two tabs are open; the third is refused with the reason, and served when one of them is closed."""
    with (
        few_streams.stream("GET", "/api/live") as first,
        few_streams.stream("GET", "/live/overview") as second,
    ):
        assert (first.status_code, second.status_code) == (200, 200)
        for path in ("/api/live", "/live/jobs"):
            refused = few_streams.get(path)
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
            assert "close some" in refused.json()["detail"]
        assert few_streams.get("/api/jobs").status_code == 200  # whoever only asks is served
    eventually(lambda: few_streams.get("/api/metrics").json()["viewers"] == 0, "the streams are free again")
    assert events(few_streams, 1)[0]["event"] == "snapshot"


def test_a_seat_is_given_back_once() -> None:
    streams = StreamLimits(2, 1)
    release = streams.take("a")
    with pytest.raises(TooManyStreams, match="tabs"):
        streams.take("a")
    other = streams.take("b")
    with pytest.raises(TooManyStreams, match="all there may be"):
        streams.take("c")
    release()
    release()
    assert streams.count == 1
    other()
    assert streams.count == 0


def test_a_viewer_who_does_not_read_loses_the_seat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_limits, "SEND_S", 0.05)
    streams = StreamLimits()

    async def story() -> None:
        async def endless() -> Any:
            while True:
                yield "data: x\n\n"

        async def stuck(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        async def receive() -> Any:
            await asyncio.Event().wait()

        response = EventStream(endless(), streams.take("sleeper"))
        await response({"type": "http"}, receive, stuck)

    asyncio.run(asyncio.wait_for(story(), 30))
    assert streams.count == 0


def test_a_stream_ends_when_its_viewer_may_no_longer_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "DOUBT_S", 0.1)
    state = still_state(tmp_path)
    with console(state, users=USERS) as client:
        sign_in(client, "vic")
        for path in ("/api/live", "/live/overview"):
            with client.stream("GET", path) as opened:
                lines = opened.iter_lines()
                next(lines)
                sessions_end(state, "2000-01-01")
                for _ in lines:
                    """until the console ends it"""
                sessions_end(state, "2100-01-01")


def test_one_making_serves_everyone_and_an_error_is_not_kept() -> None:
    made: list[int] = []

    async def make() -> int:
        made.append(1)
        await asyncio.sleep(0.01)
        if len(made) == 1:
            raise ValueError("once")
        return len(made)

    async def story() -> list[Any]:
        shared = Shared(60.0)
        first = await asyncio.gather(*(shared.get(("k",), make) for _ in range(5)), return_exceptions=True)
        second = await asyncio.gather(*(shared.get(("k",), make) for _ in range(5)))
        return [*first, *second]

    found = asyncio.run(story())
    assert [type(one) for one in found[:5]] == [ValueError] * 5
    assert found[5:] == [2] * 5


def test_only_nodes_that_moved_are_read_again(tmp_path: Path) -> None:
    state = still_state(tmp_path)
    with closing(LocalBackend(state)) as side:
        snapshots = Snapshots()
        first = snapshots.fleet(side)
        assert snapshots.fleet(side) is first
        side.ask_node("node-2", "drain", why="why")
        second = snapshots.fleet(side)
        assert second.stamp > first.stamp
        kept = [a is b for a, b in zip(first.nodes, second.nodes, strict=True)]
        assert kept == [True, False, True, True]
        assert second.nodes[1]["hold"]["why"] == "why"
