"""Permits on the pages and in the API: what waits with its evidence, yes and no, freeze and thaw."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from ecs_gpu_recovery.core.effects import Order, RebootNode
from ecs_gpu_recovery.core.guard import Request
from ecs_gpu_recovery.core.model import NodeStatus
from ecs_gpu_recovery.local import wiring
from tests.console.helpers import PASSWORD, console, csrf_of, still_state

HTML = {"accept": "text/html"}
KEY = "j/1/0/reboot"


def a_storm(folder: Path) -> Path:
    """Records of a fleet that four requests have frozen."""
    state = still_state(folder)
    parts = wiring.build(state)
    permits = parts.runtime.permits
    assert permits is not None
    at = wiring.now()
    permits.ask(
        [
            Request(key=f"j/1/{i}/reboot", node=f"node-{i + 1}", at=at, since=at, why="Xid 79 <b>")
            for i in range(4)
        ],
        at,
    )
    parts.close()
    return state


def test_the_fleet_is_frozen_and_thawed_with_a_reason(client: httpx.Client) -> None:
    assert client.get("/api/fleet").json() == {
        "repairs": "auto",
        "frozen": None,
        "thawed": None,
        "waiting": [],
    }
    assert client.post("/api/fleet/freeze", json={}).status_code == 409
    assert client.post("/api/fleet/explode", json={"why": "x"}).status_code == 422
    assert client.post("/api/fleet/allow", json={"name": "node-1"}).status_code == 404
    assert (
        client.post("/api/fleet/freeze", json={"why": "new driver"}).json()["frozen"]["why"] == "new driver"
    )
    thawed = client.post("/api/fleet/thaw", json={"why": "it works"}).json()
    assert thawed["frozen"] is None
    assert thawed["thawed"]["why"] == "it works"
    assert [d["action"] for d in client.get("/api/audit").json()["audit"]][:2] == ["thaw", "freeze"]


def test_the_first_page_shows_what_waits_with_its_evidence_and_takes_the_answer(tmp_path: Path) -> None:
    with console(a_storm(tmp_path)) as client:
        page = client.get("/", headers=HTML).text
        assert "Frozen" in page
        assert "4 nodes to repair within 10 minutes" in page
        assert "Xid 79 &lt;b&gt;" in page
        assert "冻结" in client.get("/", headers=HTML | {"accept-language": "zh"}).text
        said = {"csrf": csrf_of(client)}
        assert client.post("/fleet/allow", data=said | {"name": KEY}).status_code == 303
        client.post("/fleet/refuse", data=said | {"name": "j/1/1/reboot", "why": "its owner works on it"})
        client.post("/fleet/thaw", data=said | {"why": "each by itself"})
        fleet = client.get("/api/fleet").json()
        assert fleet["frozen"] is None
        assert [one["node"] for one in fleet["waiting"]] == ["node-1", "node-3", "node-4"]
        assert fleet["waiting"][0]["waits_for"] == "the next look at it"


def test_a_nodes_own_page_takes_the_answer_to_what_waits_there(tmp_path: Path) -> None:
    state, at = a_storm(tmp_path), wiring.now()
    parts = wiring.build(state)
    reboot = Order(effect=RebootNode(key=KEY, node="node-1"), due=at)
    held = {"status": NodeStatus.PENDING_HEALTHCHECK, "reboot_key": KEY, "outbox": (reboot,)}
    node = parts.store.node("node-1")
    parts.store.commit_node(replace(node, version=node.version + 1, **held))
    parts.close()
    with console(state) as client:
        assert f'name="name" value="{KEY}"' in client.get("/nodes/node-1", headers=HTML).text
        assert "/fleet/allow" not in client.get("/nodes/node-2", headers=HTML).text


@pytest.mark.parametrize("ask", ["freeze", "thaw", "allow", "refuse"])
def test_a_viewer_sees_it_and_changes_nothing(tmp_path: Path, guarded: httpx.Client, ask: str) -> None:
    guarded.auth = ("vic", PASSWORD)
    assert guarded.get("/api/fleet").status_code == 200
    assert guarded.post(f"/api/fleet/{ask}", json={"why": "x", "name": "node-1"}).status_code == 403
    assert "Freeze the fleet" not in guarded.get("/", headers=HTML).text
