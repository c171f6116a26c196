"""A recovery watched through the console, with real processes: states, logs, progress, reports."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest

from tests.console.helpers import Plane, eventually, link_of, owners_client, submitted

#: A console, a job that lost a GPU and came back, and the moves that the stream told of it.
Healed = tuple[httpx.Client, dict[str, Any], list[str]]


@pytest.fixture(scope="module")
def healed(plane: Plane) -> Healed:
    controller, client = plane
    told: list[str] = []
    with (
        owners_client(link_of(client), timeout=60) as listener,
        listener.stream("GET", "/api/live") as stream,
    ):
        reader = threading.Thread(target=_listen, args=(stream, told))
        reader.start()
        job = submitted(client, steps=80)
        path = f"/api/jobs/{job['id']}"
        eventually(lambda: client.get(path).json()["progress"]["steps"] > 25, "it trains")
        controller.parts.cluster.inject("node-2", "off-bus")
        job = eventually(lambda: (found := client.get(path).json())["final"] and found, "it ends")
        eventually(lambda: "COMPLETE" in told or job["status"] != "COMPLETE", "the stream tells the end")
    reader.join(10)
    return client, job, told


def _listen(stream: httpx.Response, told: list[str]) -> None:
    try:
        event = ""
        for line in stream.iter_lines():
            if line.startswith("event: "):
                event = line[7:]
            elif line.startswith("data: ") and event == "job":
                told += [e["after"] for e in json.loads(line[6:])["entries"] if e["subject"] == "job"]
    except (httpx.StreamError, httpx.TransportError):
        return  # the test closes the stream while it is being read


def test_the_stream_tells_every_move_of_a_recovery(healed: Healed) -> None:
    _, job, told = healed
    assert (job["status"], job["attempt"]) == ("COMPLETE", 1)
    assert told == [
        "PENDING_HEALTHCHECK",
        "IN_PROGRESS",
        "PENDING_HEALTHCHECK",
        "PENDING_RESTART",
        "RESTARTING",
        "IN_PROGRESS",
        "COMPLETE",
    ]


def test_the_job_page_shows_the_recovery(healed: Healed) -> None:
    client, job, _ = healed
    page = client.get(f"/jobs/{job['id']}").text
    assert 'data-state="COMPLETE"' in page
    assert page.count('class="edge taken"') == 7
    assert "fallen off the bus" in page
    assert job["effective"] is not None


def test_every_rank_of_every_attempt_has_its_log(healed: Healed) -> None:
    client, job, _ = healed
    path = f"/api/jobs/{job['id']}/logs"
    logs = client.get(path).json()["logs"]
    assert sorted((log["attempt"], log["rank"]) for log in logs) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    last = next(log for log in logs if (log["attempt"], log["rank"]) == (1, 0))
    whole = client.get(f"{path}/{last['task']}/download")
    assert "attachment" in whole.headers["content-disposition"]
    assert "step 80" in whole.text
    read, at = "", 0
    while at < last["size"]:
        part = client.get(f"{path}/{last['task']}", params={"offset": at, "limit": 50}).json()
        assert part["offset"] == at
        read, at = read + part["text"], part["next"]
    assert read == whole.text
    tail = client.get(f"{path}/{last['task']}", params={"tail": 60}).json()["text"]
    assert whole.text.endswith(tail)
    assert len(tail) <= 60
    hits = client.get(f"{path}/{last['task']}/search", params={"q": "STEP 80"}).json()["hits"]
    assert [hit["text"] for hit in hits] == [line for line in whole.text.splitlines() if "step 80" in line]


@pytest.mark.parametrize("task", ["..%2f..%2f..%2frecovery.db", "%2e%2e", "nope", "a" * 300])
def test_a_log_is_found_by_the_records_only(healed: Healed, task: str) -> None:
    client, job, _ = healed
    assert client.get(f"/api/jobs/{job['id']}/logs/{task}").status_code in (404, 422)


def test_progress_and_timeline_can_be_had(healed: Healed) -> None:
    client, job, _ = healed
    points = client.get(f"/api/jobs/{job['id']}/progress").json()
    assert points["step"][-1] == 80
    assert set(points["attempt"]) == {0, 1}
    entries = client.get(f"/api/jobs/{job['id']}/timeline").json()["entries"]
    assert [e["after"] for e in entries if e["subject"] == "job"][-1] == "COMPLETE"


def test_the_node_shows_its_last_report(healed: Healed) -> None:
    client, _, _ = healed
    report = client.get("/api/nodes/node-2").json()["report"]
    assert report["verdict"] == "healthy", "that of the check after its reboot"
    page = client.get("/nodes/node-2").text
    assert "Xid 79" in page, "the one before it, and what followed"


def test_an_ended_job_is_run_again_from_its_checkpoint(healed: Healed) -> None:
    client, job, _ = healed
    again = client.post(f"/api/jobs/{job['id']}/retry", json={}).json()
    assert again["spec"]["retry_of"] == job["id"]
    done = eventually(
        lambda: (found := client.get(f"/api/jobs/{again['id']}").json())["final"] and found, "it ends"
    )
    assert done["status"] == "COMPLETE"


def test_a_repair_that_waits_in_a_frozen_fleet_is_called_so_on_the_page(
    plane: Plane,
) -> None:
    controller, client = plane
    client.post("/api/fleet/freeze", json={"why": "new driver"})
    job = submitted(client, steps=400)
    path = f"/api/jobs/{job['id']}"
    eventually(lambda: client.get(path).json()["progress"]["steps"] > 5, "it trains")
    controller.parts.cluster.inject("node-2", "off-bus")
    eventually(lambda: "Waits for a permit" in client.get(f"/jobs/{job['id']}").text, "its repair waits")
    page = client.get(f"/jobs/{job['id']}").text
    assert "The repair of node-2 waits for a thaw (frozen by" in page
    assert "first run · a restart waits for its nodes" in page
    waiting = client.get("/api/fleet").json()["waiting"]
    assert [(each["what"], each["node"]) for each in waiting] == [("reboot", "node-2")]
    client.post(f"{path}/stop", json={"why": "seen"})
    client.post("/api/fleet/thaw", json={"why": "it works"})
