"""A search through a log ends at its limits, says so, goes on from there, and stops when no one waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ecs_gpu_recovery.console.backend_pool import SEARCHES
from ecs_gpu_recovery.control import logs
from ecs_gpu_recovery.control.log_search import BLOCK, Search, SearchLimits
from tests.console.helpers import console, control_plane, eventually, submitted

ENDLESS = SearchLimits(most_bytes=1 << 50, seconds=3600)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Path]:
    """The records of a job that ran, the address of its log, and the file."""
    state = tmp_path_factory.mktemp("searched")
    with control_plane(state, nodes=1), console(state) as client:
        made = submitted(client, any_nodes=1, steps=2, check="none")["id"]
        eventually(lambda: client.get(f"/api/jobs/{made}").json()["final"], "the job ended")
        (log,) = client.get(f"/api/jobs/{made}/logs").json()["logs"]
    file = state / "nodes" / log["node"] / "tasks" / log["task"] / "log"
    return state, f"/api/jobs/{made}/logs/{log['task']}/search", file


def _found(text: bytes, search: Search) -> dict[str, Any]:
    return search.run(len(text), lambda at, count: text[at : at + count])


def test_a_search_over_a_huge_log_ends_at_its_limit_says_so_and_goes_on(job: tuple[Path, str, Path]) -> None:
    state, path, file = job
    with open(file, "wb") as log:
        log.write(b"first needle\n")
        log.seek(160 << 20)
        log.write(b"\nlast NEEDLE\nrest\n")
    told, parts, place = [], [], {"after": 0, "offset": 0}
    with console(state) as client:
        while not parts or parts[-1]["more"]:
            parts.append(client.get(path, params={"q": "Needle", **place}).json())
            told += [(hit["line"], hit["text"]) for hit in parts[-1]["hits"]]
            place = {"after": parts[-1]["next"], "offset": parts[-1]["offset"]}
    assert [part["limit"] for part in parts] == ["bytes", "bytes", ""]
    assert [part["offset"] >> 20 for part in parts] == [63, 127, 0]
    assert told == [(1, "first needle"), (3, "last NEEDLE")]


@pytest.mark.parametrize("most_bytes", [1 << 30, 1000, 40])
def test_whatever_the_limit_all_lines_are_found_once_with_their_numbers(most_bytes: int) -> None:
    text = "\n".join(f"line {number}" for number in range(1, 200)).encode()
    told, after, offset, more = list[int](), 0, 0, True
    while more:
        limits = SearchLimits(most_bytes=most_bytes, hits=5)
        part = _found(text, Search("line 1", after, offset, limits))
        told += [hit["line"] for hit in part["hits"]]
        after, offset, more = part["next"], part["offset"], part["more"]
    assert told == [n for n in range(1, 200) if str(n).startswith("1")]


def test_a_search_ends_when_its_time_is_over() -> None:
    part = _found(b"needle\n" + b"x\n" * BLOCK, Search("needle", limits=SearchLimits(seconds=0)))
    assert (part["limit"], part["more"], len(part["hits"])) == ("time", True, 1)
    assert 0 < part["offset"] <= BLOCK


def test_a_line_without_an_end_is_searched_whole_and_in_little_memory() -> None:
    text = b"x" * BLOCK + b"needle" + b"x" * (3 * BLOCK) + b"needle\nneedle"
    hits = _found(text, Search("NEEDLE"))["hits"]
    assert [hit["line"] for hit in hits] == [1, 2]
    assert all(hit["text"].endswith("needle") and len(hit["text"]) <= 1000 for hit in hits)


class _Slow:
    """Reads of a log that has no end, each of which takes a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.at_once, self.most_at_once = 0, 0, 0
        self._lock = threading.Lock()
        monkeypatch.setattr(logs, "_read", self._read)
        monkeypatch.setattr(logs, "_size", lambda source: 1 << 50)

    def _read(self, path: Path, start: int, count: int) -> bytes:
        with self._lock:
            self.count, self.at_once = self.count + 1, self.at_once + 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(0.02)
        with self._lock:
            self.at_once -= 1
        return b"nothing\n" * 100

    def over(self) -> bool:
        """Whether nothing is read any more."""
        before = self.count
        time.sleep(0.5)
        return self.count == before


@contextmanager
def _searching(client: httpx.Client, path: str) -> Iterator[None]:
    """A search whose asker leaves at the end, without an answer."""

    def ask() -> None:
        timeout = httpx.Timeout(30, read=2)
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(
                client.base_url.join(path),
                params={"q": "x"},
                headers=client.headers,
                timeout=timeout,
                trust_env=False,
            )

    thread = threading.Thread(target=ask)
    thread.start()
    yield
    thread.join()


def test_a_search_stops_when_its_asker_leaves(
    job: tuple[Path, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, path, _ = job
    slow = _Slow(monkeypatch)
    with console(state, search=ENDLESS, patience_s=3600) as client:
        with _searching(client, path):
            eventually(lambda: slow.count > 3, "it searches")
        eventually(slow.over, "it has stopped")


def test_many_searches_take_few_threads_and_no_page_waits_for_them(
    job: tuple[Path, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, path, _ = job
    slow = _Slow(monkeypatch)
    with console(state, search=ENDLESS, patience_s=60) as client:
        with ExitStack() as searches:
            for _ in range(8):
                searches.enter_context(_searching(client, path))
            eventually(lambda: slow.count > 20, "they search")
            assert client.get("/api/nodes").status_code == 200
        assert slow.most_at_once <= SEARCHES
        eventually(slow.over, "they have stopped")


def test_a_search_that_finds_no_thread_in_time_says_so(
    job: tuple[Path, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, path, _ = job
    slow = _Slow(monkeypatch)
    with console(state, search=ENDLESS, patience_s=0.5) as client:
        reply = client.get(path, params={"q": "x"})
        assert reply.status_code == 503
        assert "too many searches" in reply.json()["detail"]
        eventually(slow.over, "it has stopped")
