"""The HTTP API on records that do not move: what is asked for, what is refused, and how both are told."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from tests.console.helpers import events, link_of, owners_client, submitted, training


def test_a_job_is_submitted_and_found_again(client: httpx.Client) -> None:
    job = submitted(client)
    assert job["status"] == "PENDING_HEALTHCHECK"
    assert client.get(f"/api/jobs/{job['id']}").json()["id"] == job["id"]
    assert [line["id"] for line in client.get("/api/jobs").json()["jobs"]] == [job["id"]]


def test_an_idempotency_key_is_not_taken_for_another_request(client: httpx.Client) -> None:
    client.post("/api/jobs", json=training(), headers={"Idempotency-Key": "k1"})
    other = client.post("/api/jobs", json=training(any_nodes=1), headers={"Idempotency-Key": "k1"})
    assert other.status_code == 422
    assert other.json()["errors"][0]["field"] == "Idempotency-Key"


def test_a_refused_submission_leaves_its_key_free(client: httpx.Client) -> None:
    wrong = client.post("/api/jobs", json=training(check="deep"), headers={"Idempotency-Key": "k1"})
    assert wrong.status_code == 422
    assert client.post("/api/jobs", json=training(), headers={"Idempotency-Key": "k1"}).status_code == 201


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"port": 80}, "port"),
        ({"check": "deep"}, "check"),
        ({"env": {"RANK": "1"}}, "env"),
        ({"name": "a b"}, "name"),
        ({"any_nodes": True}, "any_nodes"),
        ({"colour": "red"}, "colour"),
        ({"command": ["no-such-program"]}, "command"),
        ({"command": []}, "command"),
    ],
)
def test_every_problem_is_told_beside_its_field(
    shared: httpx.Client, change: dict[str, object], field: str
) -> None:
    reply = shared.post("/api/jobs", json={**training(), **change})
    assert reply.status_code == 422
    assert reply.headers["content-type"].startswith("application/problem+json")
    assert field in {error["field"].partition(".")[0] for error in reply.json()["errors"]}


def test_nodes_that_are_taken_refuse_the_job_and_say_by_whom(client: httpx.Client) -> None:
    holder = submitted(client, any_nodes=4)
    reply = client.post("/api/jobs", json=training())
    assert reply.status_code == 409
    assert "there are 0" in reply.json()["detail"]
    reply = client.post("/api/jobs", json={**training(nodes=["node-1"]), "any_nodes": None})
    assert holder["id"] in reply.json()["detail"]


def test_a_body_that_is_no_json_is_a_problem(shared: httpx.Client) -> None:
    reply = shared.post("/api/jobs", content=b"{", headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["status"]) == (400, 400)


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("PUT", "/api/jobs", 405, "GET, POST"),
        ("POST", "/api/nodes", 405, "GET"),
        ("GET", "/api/nothing", 404, None),
    ],
)
def test_wrong_methods_and_paths_are_problems(
    shared: httpx.Client, method: str, path: str, status: int, allow: str | None
) -> None:
    reply = shared.request(method, path, json={})
    assert reply.status_code == status
    assert reply.headers["content-type"].startswith("application/problem+json")
    assert reply.headers.get("allow") == allow


def test_a_job_that_runs_is_not_run_again(client: httpx.Client) -> None:
    job = submitted(client)
    reply = client.post(f"/api/jobs/{job['id']}/retry", json={})
    assert reply.status_code == 409
    assert "has not ended" in reply.json()["detail"]


def test_a_node_is_drained_and_released_with_a_reason(client: httpx.Client) -> None:
    assert client.post("/api/nodes/node-1/drain", json={}).status_code == 409
    held = client.post("/api/nodes/node-1/drain", json={"why": "new cable"}).json()
    assert held["hold"]["why"] == "new cable"
    assert not held["free"]
    assert client.post("/api/nodes/node-1/release", json={"why": "done"}).json()["free"]
    assert [d["action"] for d in client.get("/api/audit").json()["audit"]] == ["release", "drain", "drain"]


def test_nodes_know_four_wishes(client: httpx.Client) -> None:
    assert client.post("/api/nodes/node-1/explode", json={"why": "x"}).status_code == 422
    assert client.post("/api/nodes/nobody/drain", json={"why": "x"}).status_code == 404
    assert client.post("/api/nodes/node-1/check", json={}).json()["status"] == "PENDING_HEALTHCHECK"
    assert client.post("/api/nodes/node-2/reboot", json={"why": "x"}).json()["status"] == "REBOOTING"


def test_pending_orders_are_listed_and_can_be_sent_again(client: httpx.Client) -> None:
    client.post("/api/nodes/node-2/reboot", json={"why": "x"})
    (order,) = client.get("/api/orders").json()["orders"]
    assert (order["record"], order["do"], order["tries"]) == ("node/node-2", "RebootNode", 0)
    again = client.post("/api/orders/again", json={"record": order["record"], "key": order["key"]})
    assert again.status_code == 202
    (order,) = client.get("/api/orders").json()["orders"]
    assert (order["tries"], "asked to send it again" in order["error"]) == (1, True)
    assert client.post("/api/orders/again", json={"record": "node/node-1", "key": "none"}).status_code == 404


def test_a_preview_shows_everything_and_keeps_nothing(client: httpx.Client) -> None:
    body = training(env={"DB_PASSWORD": "hush", "LEVEL": "3"}, image="example/train:1")
    shown = client.post("/api/jobs/preview", json=body).json()
    assert shown["nodes"] == ["node-1", "node-2"]
    told = shown["environment"]
    assert (told["NNODES"], told["WORLD_SIZE"], told["RANK"], told["LOCAL_RANK"]) == ("2", "2", "0", "0")
    assert shown["task_definition"]["containerDefinitions"][0]["image"] == "example/train:1"
    assert "hush" not in json.dumps(shown)
    assert client.get("/api/jobs").json()["jobs"] == []


def test_a_script_from_the_browser_is_kept_and_run(client: httpx.Client) -> None:
    body = training(script_text="print('hello')\n", args=["--x"])
    del body["command"]
    command = client.post("/api/jobs", json=body).json()["spec"]["command"]
    assert command[1].endswith("script.py")
    assert command[2:] == ["--x"]
    shell = {**body, "script_text": "#!/bin/bash\necho hello\n"}
    command = client.post("/api/jobs", json=shell).json()["spec"]["command"]
    assert command[0].endswith("bash")
    assert command[1].endswith("script.sh")


def test_the_stream_begins_with_everything_and_tells_what_changes(client: httpx.Client) -> None:
    drain = _drain(client, "node-1")
    first, second = events(client, 2, before=drain)
    assert first["event"] == "snapshot"
    assert len(json.loads(first["data"])["nodes"]) == 4
    assert (second["event"], json.loads(second["data"])["name"]) == ("node", "node-1")


def test_whoever_comes_back_misses_nothing_and_hears_nothing_twice(client: httpx.Client) -> None:
    (first,) = events(client, 1)
    _drain(client, "node-1")()
    submitted(client, any_nodes=1)
    missed = events(client, 3, last=first["id"])
    assert [message["event"] for message in missed] == ["job", "node", "node"]
    (rest,) = events(client, 1, last=missed[-1]["id"], before=_drain(client, "node-4"))
    assert json.loads(rest["data"])["name"] == "node-4"


@pytest.mark.parametrize("last", ["0badc0de.7", "nonsense", "."])
def test_an_id_of_another_life_gets_everything_again(shared: httpx.Client, last: str) -> None:
    (first,) = events(shared, 1, last=last)
    assert first["event"] == "snapshot"


def _drain(client: httpx.Client, name: str) -> Callable[[], None]:
    def act() -> None:
        with owners_client(link_of(client)) as other:
            reply = other.post(f"/api/nodes/{name}/drain", json={"why": "test"})
        assert reply.status_code == 200

    return act


def test_every_operation_describes_its_answer_and_its_errors(shared: httpx.Client) -> None:
    """Each names the shape of what it gives, not just `an object`, and every error is a problem document."""
    for path, operations in shared.get("/api/openapi.json").json()["paths"].items():
        assert path.startswith("/api/")
        for operation in operations.values():
            good = next(answer for status, answer in operation["responses"].items() if status < "300")
            ((kind, answer),) = good["content"].items()
            assert kind != "application/json" or "$ref" in answer["schema"], path
            for status in ("400", "405", "422", "503"):
                assert "application/problem+json" in operation["responses"][status]["content"], path
