"""The pages as HTML: whole, small, and standing when the backend does not."""

from __future__ import annotations

import asyncio
import re
import shlex
import threading
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from ecs_gpu_recovery import ledger
from ecs_gpu_recovery.console import app
from ecs_gpu_recovery.console.app import serve
from ecs_gpu_recovery.console.forms import EMPTY, TEMPLATES, from_form
from ecs_gpu_recovery.console.live.stream import frame, page_stream
from ecs_gpu_recovery.console.pages import labels, svg
from ecs_gpu_recovery.console.problems import BadField
from ecs_gpu_recovery.control.local_backend import LocalBackend
from ecs_gpu_recovery.core import edges
from ecs_gpu_recovery.core.edges import JOB
from ecs_gpu_recovery.core.effects import Archive
from ecs_gpu_recovery.core.errors import Refused
from ecs_gpu_recovery.core.events import FaultSeen
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, TaskStatus
from ecs_gpu_recovery.local import wiring
from tests.console.helpers import console, csrf_of, served, still_state, submitted

HTML = {"accept": "text/html"}
LARGEST_PAGE = 300 * 1024
PACKAGE = Path(app.__file__).parent


def _weight(client: httpx.Client, path: str) -> int:
    """The page with everything it loads, as stored, not compressed."""
    page = client.get(path, headers=HTML).text
    parts = set(re.findall(r'(?:src|href)="(/static/[^"]+)"', page))
    return len(page.encode()) + sum(len(client.get(part).content) for part in parts)


def test_no_page_is_heavy_and_none_asks_another_site(client: httpx.Client) -> None:
    job = submitted(client)["id"]
    for path in ("/", "/jobs", "/jobs/new", f"/jobs/{job}", "/nodes/node-1", "/alerts"):
        reply = client.get(path, headers=HTML)
        assert reply.status_code == 200, path
        assert _weight(client, path) < LARGEST_PAGE, path
        addresses = re.findall(r'(?:src|href|action)="(https?:[^"]+)"', reply.text)
        assert addresses == [], path


def test_every_state_has_a_word_a_shape_and_a_colour() -> None:
    shapes = (PACKAGE / "templates" / "_glyphs.html").read_text()
    style = (PACKAGE / "static" / "style.css").read_text()
    for status in {*JobStatus, *NodeStatus, *TaskStatus}:
        assert f'id="g-{status}"' in shapes
        assert f".s-{status}" in style
    assert set(JobStatus) <= set(labels.JOB_LABELS)
    assert set(NodeStatus) == set(labels.NODE_LABELS)


def test_the_diagram_draws_every_state_and_every_move(tmp_path: Path) -> None:
    assert {str(place) for place in svg.PLACES} == {"", *map(str, JobStatus)}
    assert set(svg.NODE_PLACES) == set(NodeStatus)
    assert set(svg.NODE_LIFE) <= set(edges.NODE)
    with console(still_state(tmp_path)) as client:
        page = client.get(f"/jobs/{submitted(client)['id']}").text
    assert page.count('class="edge') == len(JOB)
    assert re.search(r'class="state now [^"]*" data-state="PENDING_HEALTHCHECK"', page)
    assert page.count('class="edge taken"') == 1


@pytest.mark.parametrize(("places", "moves"), [(svg.PLACES, JOB), (svg.NODE_PLACES, svg.NODE_LIFE)])
def test_no_head_of_an_arrow_is_hidden_by_a_box(
    places: dict[str, tuple[float, float]], moves: Collection[tuple[str, str]]
) -> None:
    for before, after in moves:
        line = svg._line(before, after, places, moves)
        x, y = places[after]
        aside = max(abs(line.x2 - x) / 75, abs(line.y2 - y) / 23)
        assert aside == pytest.approx(1), f"{before} -> {after} ends on the border of its box"


def test_the_form_keeps_what_was_typed_and_says_what_is_wrong_beside_it(shared: httpx.Client) -> None:
    form = {
        "csrf": csrf_of(shared),
        "name": "my job",
        "where": "any",
        "any_nodes": "x",
        "what": "command",
        "command": "true 'x",
    }
    reply = shared.post("/jobs/new", data=form, headers=HTML)
    assert reply.status_code == 422
    assert 'value="my job"' in reply.text
    for key in ("any_nodes", "command"):
        assert re.search(rf'id="p-{key}">[^<]', reply.text), "beside the field"
        assert re.search(rf'name="{key}"[^>]*aria-invalid="true"', reply.text)
    assert re.search(r'id="p-port" hidden></p>', reply.text)


def test_a_form_that_is_right_leads_to_the_job(client: httpx.Client) -> None:
    form = {
        "csrf": csrf_of(client),
        "name": "mine",
        "where": "named",
        "nodes": ["node-2", "node-3"],
        "what": "command",
        "command": "true",
        "env": "A=1\n# no\nB=x=y",
        "check": "none",
        "once": "abc",
    }
    places = {client.post("/jobs/new", data=form).headers["location"] for _ in range(2)}
    assert len(places) == 1
    job = client.get("/api" + places.pop()).json()
    assert [rank["node"] for rank in job["ranks"]] == ["node-2", "node-3"]
    assert job["spec"]["env"] == {"A": "1", "B": "x=y"}


def test_the_task_definition_is_shown_before_anything_is_sent(shared: httpx.Client) -> None:
    form = {
        "csrf": csrf_of(shared),
        "where": "any",
        "any_nodes": "2",
        "command": "true",
        "image": "registry.example/train:1",
        "mounts": "/fsx:/data\n/opt/tools:/tools:ro",
        "shared_memory_mib": "2048",
        "log_group": "/training",
        "infiniband": "1",
    }
    page = shared.post("/jobs/new/preview", data=form, headers=HTML).text
    for part in ("registry.example/train:1", "/opt/tools", "2048", "awslogs-group", "/dev/infiniband"):
        assert part in page, part
    wrong = shared.post("/jobs/new/preview", data={**form, "mounts": "fsx"}, headers=HTML).text
    assert 'data-problem="mounts"' in wrong
    open_quote = shared.post("/jobs/new/preview", data={**form, "command": "echo 'a"}, headers=HTML).text
    assert '<span data-problem="command">no closing quotation</span>' in open_quote


def test_problems_of_all_kinds_are_told_at_once(shared: httpx.Client) -> None:
    form = {"csrf": csrf_of(shared), "where": "any", "any_nodes": "x", "name": "my job!", "command": "true"}
    page = shared.post("/jobs/new/preview", data=form, headers=HTML).text
    assert {"any_nodes", "name"} == set(re.findall(r'data-problem="(\w+)"', page))


def test_a_fleet_of_hundreds_stays_light_and_its_broken_nodes_come_first(tmp_path: Path) -> None:
    with console(still_state(tmp_path, nodes=300)) as client:
        client.post("/api/nodes/node-250/drain", json={"why": "new cable"})
        page = client.get("/", headers=HTML).text
        assert page.index("node-250") < page.index("node-1")
        assert "new cable" in page
        assert _weight(client, "/") < LARGEST_PAGE
        assert _weight(client, "/jobs/new") < LARGEST_PAGE


def test_every_template_is_a_command_or_a_script_that_can_be_read() -> None:
    for template in TEMPLATES:
        if template.kind == "command":
            assert shlex.split(template.text)
        elif template.text.startswith("#!"):
            assert "torchrun" in template.text
        else:
            compile(template.text, template.key, "exec")
    assert {"torchrun", "accelerate", "deepspeed"} <= {template.key for template in TEMPLATES}


def test_fields_that_cannot_be_read_are_all_named() -> None:
    with pytest.raises(BadField) as told:
        from_form({"where": ["any"], "any_nodes": ["two"], "port": ["high"], "env": ["oops"]})
    assert set(told.value.fields) == {"any_nodes", "port", "env", "command"}


def test_fields_of_the_form_that_are_left_alone_leave_the_deployments_rules() -> None:
    asked = from_form({key: [value] for key, value in EMPTY.items()} | {"command": ["true"]})
    assert asked == {"command": ["true"], "any_nodes": 2}


def test_what_left_the_record_is_still_told_and_drawn(tmp_path: Path) -> None:
    state = still_state(tmp_path)
    with console(state) as client:
        job = submitted(client)
        began = datetime.fromisoformat(job["created_at"])
        parts = wiring.build(state)
        lines = tuple(
            f"{(began - timedelta(seconds=back)).isoformat()} {subject} {before}->{after} {why}"
            for back, subject, before, after, why in (
                (30, "job", "", "IN_PROGRESS", "long ago"),
                (20, "job", "IN_PROGRESS", "PENDING_HEALTHCHECK", "a rank died"),
                (10, "job", "PENDING_HEALTHCHECK", "PENDING_RESTART", "GPU fault"),
                (5, "node-1", "PENDING_HEALTHCHECK", "REBOOTING", "GPU fault that a reboot may cure"),
            )
        )
        parts.notifier.archive(job["id"], Archive(key="a", lines=lines))
        parts.close()
        told = client.get(f"/api/jobs/{job['id']}/timeline").json()["entries"]
        assert [entry["why"] for entry in told][:3] == ["long ago", "a rank died", "GPU fault"]
        page = client.get(f"/jobs/{job['id']}", headers=HTML).text
    assert "long ago" in page
    assert re.search(r'class="phase lane s-REBOOTING"><title>node-1', page)


def test_what_left_a_node_s_record_is_still_on_its_page(tmp_path: Path) -> None:
    state, began = still_state(tmp_path), datetime(2026, 3, 1, tzinfo=UTC)
    with console(state) as client:
        parts = wiring.build(state, controller=True)
        for minute in range(60):
            seen = FaultSeen(
                at=began + timedelta(minutes=minute), node="node-1", evidence=f"Xid 63, line {minute}."
            )
            parts.runtime.handle_node("node-1", [seen])
        kept = parts.store.node("node-1").timeline
        parts.close()
        page = client.get("/nodes/node-1", headers=HTML).text
    assert len(kept) < 50
    assert all(f"line {minute}." in page for minute in range(60))


def test_unknown_things_get_a_page_of_their_own(shared: httpx.Client) -> None:
    for path in ("/nothing", "/jobs/none", "/nodes/none"):
        reply = shared.get(path, headers=HTML)
        assert reply.status_code == 404
        assert "<html" in reply.text


def test_a_node_that_cannot_do_it_says_why_on_its_page(shared: httpx.Client) -> None:
    reply = shared.post("/nodes/node-1/ask", data={"csrf": csrf_of(shared), "ask": "drain", "why": ""})
    assert reply.status_code == 409
    assert "give a reason" in reply.text


def test_the_frame_stands_when_there_is_no_control_plane(tmp_path: Path) -> None:
    state = tmp_path / "none"
    with served(lambda: LocalBackend(state), tmp_path / "console", state=state, tick_s=0.2) as client:
        reply = client.get("/", headers=HTML)
        assert reply.status_code == 503
        assert "The control plane does not answer" in reply.text
        assert "<nav" in reply.text
        assert client.get("/api/nodes").status_code == 503
        still_state(state)
        assert client.get("/", headers=HTML).status_code == 200


class _Slow(LocalBackend):
    answers = threading.Event()

    def changed_nodes(self, known: object) -> object:  # type: ignore[override]
        self.answers.wait(60)
        return []


def test_a_slow_backend_is_not_waited_for(tmp_path: Path) -> None:
    state = still_state(tmp_path)
    with served(lambda: _Slow(state), tmp_path / "console", state=state, patience_s=0.2) as client:
        reply = client.get("/api/nodes")
        _Slow.answers.set()
    assert reply.status_code == 503
    assert "did not answer" in reply.json()["detail"]


def test_a_taken_port_is_told(tmp_path: Path) -> None:
    state = still_state(tmp_path)
    with console(state) as client, pytest.raises(Refused, match="can't listen"):
        serve(lambda: LocalBackend(state), port=client.base_url.port or 0, data=tmp_path / "other")


def test_a_message_of_many_lines_stays_one_message() -> None:
    assert frame("a\nb", event="x", id="1.2") == "id: 1.2\nevent: x\ndata: a\ndata: b\n\n"
    assert frame("") == "data: \n\n"


def test_a_page_that_comes_back_is_sent_only_what_it_does_not_show() -> None:
    shown = {"a": "<p>1</p>", "b": "<p>2</p>"}

    async def build() -> tuple[dict[str, str], dict[str, object]]:
        return dict(shown), {"logs": {"t": 1}}

    async def first(last: str, count: int) -> list[str]:
        closing = asyncio.Event()
        found = []
        async for message in page_stream(
            build, trouble=lambda text: text, last=last, closing=closing, every_s=0.01
        ):
            found.append(message)
            if len(found) == count:
                shown["b"] = "<p>3</p>"
            if len(found) > count:
                closing.set()
        return found

    whole, fact, changed = asyncio.run(first("", 2))
    assert '#a"' in whole
    assert '#b"' in whole
    assert fact.startswith("event: logs")
    assert '#a"' not in changed
    assert "<p>3</p>" in changed
    now = changed.splitlines()[0].removeprefix("id: ")
    (again, *_) = asyncio.run(first(now, 0))
    assert again.startswith("event: logs")


def test_the_report_is_a_page_and_an_answer(tmp_path: Path) -> None:
    with console(still_state(tmp_path)) as client:
        submitted(client)
        told = client.get("/api/report").json()
        assert (told["jobs"], told["failures"], told["causes"]) == (1, 0, [])
        assert set(told["gpu_hours"]) == set(ledger.KINDS)
        page = client.get("/report?since=4w").text
        assert "Where the time went" in page
        assert "Nothing was lost to failures." in page
        assert 'href="/report?since=4w" aria-current="page">4 weeks</a>' in page
        assert "too little data yet" in page
        assert client.get("/api/report?since=soon").status_code == 422
        assert client.get("/api/report?job=nobody").status_code == 404
