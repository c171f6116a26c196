"""Lists in pages, the same submission once, and what programs need beside: everything that must hold at scale."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from ecs_gpu_recovery.console.api.lists import by_name
from ecs_gpu_recovery.console.views import in_order
from ecs_gpu_recovery.core.effects import Notify
from ecs_gpu_recovery.local import wiring
from ecs_gpu_recovery.metrics.sample import Sample
from ecs_gpu_recovery.metrics.series import FILE, SeriesStore
from tests.console.helpers import (
    console,
    link_of,
    owners_client,
    still_state,
    submitted,
    training,
)


def pages(client: httpx.Client, path: str, key: str, limit: int, place: str = "after") -> list[list[Any]]:
    """A list, part by part, as a program asks for it."""
    found: list[list[Any]] = []
    after: object = ""
    while True:
        reply = client.get(path, params={"limit": limit, **({place: after} if after else {})})
        assert reply.status_code == 200, reply.text
        found.append(reply.json()[key])
        after = reply.json()["next"]
        if not after:
            return found
        assert len(found) < 100, "the list has no end"


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Twenty-five of everything."""
    state = still_state(tmp_path_factory.mktemp("full"), nodes=25)
    with closing(wiring.build(state)) as parts:
        for number in range(25):
            parts.notifier.notify(
                Notify(key=f"k{number:02}", subject=f"s{number}", happened="", evidence="", done="", next="")
            )
    with console(state) as client:
        for number in range(1, 25):
            client.post(f"/api/nodes/node-{number}/reboot", json={"why": "to have orders"})
        for _ in range(5):
            submitted(client, nodes=["node-25"], any_nodes=None)
            job = client.get("/api/jobs").json()["jobs"][0]["id"]
            client.post(f"/api/jobs/{job}/stop", json={"why": "next"})
        yield client


@pytest.mark.parametrize(
    ("path", "key", "count", "name", "place"),
    [
        ("/api/jobs", "jobs", 5, "id", "after"),
        ("/api/nodes", "nodes", 25, "name", "after"),
        ("/api/alerts", "alerts", 25, "key", "after"),
        ("/api/orders", "orders", 29, "key", "after"),
        ("/api/audit", "audit", 34, "id", "before"),
    ],
)
@pytest.mark.parametrize("limit", [1, 7, 200])
def test_a_list_in_parts_is_the_whole_list_once(
    full: httpx.Client, path: str, key: str, count: int, name: str, place: str, limit: int
) -> None:
    parts = pages(full, path, key, limit, place)
    names = [item[name] for part in parts for item in part]
    assert len(names) == len(set(names)) == count
    assert all(len(part) <= limit for part in parts)
    assert names == [item[name] for item in full.get(path, params={"limit": 200}).json()[key]]


def test_a_timeline_comes_in_parts_too(full: httpx.Client) -> None:
    job = full.get("/api/jobs").json()["jobs"][0]["id"]
    whole = full.get(f"/api/jobs/{job}/timeline").json()
    assert (len(whole["entries"]) > 2, whole["next"]) == (True, 0)
    parts = pages(full, f"/api/jobs/{job}/timeline", "entries", 2)
    assert [entry for part in parts for entry in part] == whole["entries"]
    assert full.get(f"/api/jobs/{job}/logs", params={"limit": 1}).json()["logs"] == []


def test_a_place_that_is_none_is_no_error(full: httpx.Client) -> None:
    for path in ("/api/nodes", "/api/alerts", "/api/orders"):
        for place in ("~ nothing \x7f", "1²2", "9" * 300, "٣"):
            assert full.get(path, params={"after": place}).status_code == 200
    for path in (
        "/api/audit?before=-1",
        "/api/nodes?limit=0",
        "/api/nodes?limit=100000",
        "/api/jobs?limit=x",
    ):
        assert full.get(path).status_code == 422


def test_names_that_count_the_same_are_not_lost_between_two_parts() -> None:
    names = ["n-1", "n-01", "n-2", "n-002", "n-10"]
    found = sorted(names, key=lambda one: (in_order(one), one))
    seen, after = [], ""
    while True:
        part = by_name("x", found, 1, after, name=str, order=lambda one: (in_order(one), one))
        seen += part["x"]
        after = part["next"]
        if not after:
            break
    assert seen == found
    assert set(seen) == set(names)


def test_nodes_are_chosen_by_state(full: httpx.Client) -> None:
    found = full.get("/api/nodes", params={"status": "REBOOTING", "limit": 10}).json()
    assert {node["status"] for node in found["nodes"]} == {"REBOOTING"}
    assert found["next"]


def test_a_list_that_did_not_change_is_not_sent_again(full: httpx.Client) -> None:
    first = full.get("/api/nodes")
    again = full.get("/api/nodes", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = full.get("/api/nodes?limit=1", headers={"if-none-match": first.headers["etag"]})
    assert other.status_code == 200


def test_the_numbers_of_now_add_up(full: httpx.Client) -> None:
    found = full.get("/api/metrics").json()
    assert sum(found["nodes"].values()) == 25
    assert found["gpus"]["all"] == 50 == sum(found["gpus"][key] for key in ("free", "in_use", "out_of_use"))
    assert set(found["jobs"]) == {"IN_PROGRESS", "PENDING_HEALTHCHECK", "PENDING_RESTART", "RESTARTING"}


def test_the_last_day_of_a_metric_can_be_had(tmp_path: Path) -> None:
    state = still_state(tmp_path)
    store = SeriesStore(state / FILE)
    now = wiring.now().timestamp()
    for age in (60, 40, 20):
        sample = Sample(now - age)
        for node in ("node-1", "node-2"):
            sample.put("node_cpu_cores", 1.5, node=node)
        store.add(sample)
    store.close()
    with console(state) as client:
        ask = {"name": "gpu_recovery_node_cpu_cores"}
        assert len(client.get("/api/metrics/history", params=ask).json()["series"]) == 2
        (line,) = client.get("/api/metrics/history", params={**ask, "node": "node-2"}).json()["series"]
        assert line["labels"] == {"node": "node-2"}
        assert [value for _, value in line["points"]] == [1.5] * 3
        assert client.get("/api/metrics/history", params={"name": "nothing"}).status_code == 404


# -- the same submission, once ----------------------------------------------------------------------------


KEY = {"Idempotency-Key": "night-run-7"}


def test_the_same_key_is_the_same_job_after_a_restart(tmp_path: Path) -> None:
    state = still_state(tmp_path)
    with console(state) as client:
        first = client.post("/api/jobs", json=training(), headers=KEY)
    with console(state) as client:
        second = client.post("/api/jobs", json=training(), headers=KEY)
        assert (first.status_code, second.status_code) == (201, 200)
        assert first.json()["id"] == second.json()["id"]
        assert len(client.get("/api/jobs").json()["jobs"]) == 1


def test_the_same_key_is_the_same_job_even_for_a_console_that_remembers_nothing(tmp_path: Path) -> None:
    """A task on AWS loses its disk when it is replaced; the job's name is made from the key, so the store knows."""
    state = still_state(tmp_path)
    with console(state) as client:
        first = client.post("/api/jobs", json=training(), headers=KEY).json()["id"]
    for path in (state / "console").iterdir():
        path.unlink()
    with console(state) as client:
        second = client.post("/api/jobs", json=training(), headers=KEY)
        assert (second.status_code, second.json()["id"]) == (200, first)


def test_two_requests_that_race_with_one_key_start_one_job(tmp_path: Path) -> None:
    """Eight at once, for nodes that only one of them can have."""
    with console(still_state(tmp_path), patience_s=60.0) as client:
        ready = threading.Barrier(8)

        def send(_: int) -> httpx.Response:
            ready.wait(30)
            with owners_client(link_of(client), timeout=90) as other:
                return other.post("/api/jobs", json={**training(), "any_nodes": 4}, headers=KEY)

        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(send, range(8)))
        assert sorted(reply.status_code for reply in replies) == [200] * 7 + [201], [r.text for r in replies]
        assert len({reply.json()["id"] for reply in replies}) == 1
        assert len(client.get("/api/jobs").json()["jobs"]) == 1
        deeds = [deed["action"] for deed in client.get("/api/audit").json()["audit"]]
        assert deeds == ["submit"]


def test_the_key_of_one_person_says_nothing_to_another(tmp_path: Path) -> None:
    from ecs_gpu_recovery.console.access.auth import new_token

    tokens = {name: new_token() for name in ("ann", "bob")}
    users = "\n".join(f"{name}:operator:{kept}" for name, (_, kept) in tokens.items())
    with console(still_state(tmp_path), users=users) as client:
        made = [
            client.post(
                "/api/jobs",
                json={**training(), "any_nodes": 1},
                headers={**KEY, "authorization": f"Bearer {token}"},
            )
            for token, _ in tokens.values()
        ]
        assert [reply.status_code for reply in made] == [201, 201]
        assert len({reply.json()["id"] for reply in made}) == 2


def test_an_id_that_somebody_else_has_is_refused_with_any_key(client: httpx.Client) -> None:
    body = {**training(), "any_nodes": 1, "id": "mine"}
    assert client.post("/api/jobs", json=body).status_code == 201
    again = client.post("/api/jobs", json=body, headers=KEY)
    assert again.status_code == 409
    assert "exists already" in again.json()["detail"]
