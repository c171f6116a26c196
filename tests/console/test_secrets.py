"""What is written into records is shown and never run, and what is secret is not shown at all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from ecs_gpu_recovery.console.access.sessions import COOKIE
from ecs_gpu_recovery.console.views import job_view
from ecs_gpu_recovery.control.local_backend import LocalBackend
from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.job.table import submit
from ecs_gpu_recovery.core.model import JobSpec
from ecs_gpu_recovery.local import wiring
from ecs_gpu_recovery.masks import HIDDEN, masked_text
from tests.console.helpers import (
    console,
    control_plane,
    csrf_of,
    eventually,
    served,
    sign_in,
    still_state,
    submitted,
    training,
)
from tests.core.story import POLICY, T0, some_nodes

HTML = {"accept": "text/html"}
EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>{{ 7*7 }}"


# -- what is written is shown, never run ------------------------------------------------------------------


@pytest.fixture
def poisoned(tmp_path: Path) -> Iterator[httpx.Client]:
    """Records that another tool, a node or a person has filled with markup."""
    state = still_state(tmp_path)
    with closing(wiring.build(state)) as parts:
        node = parts.store.node("node-1")
        parts.store.add_node(
            replace(node, name=f"n{EVIL}", findings=EVIL, verdict=None, ip=EVIL, instance="other", version=0)
        )
    with console(state) as client:
        job = submitted(client, any_nodes=1, id="j1", env={"LABEL": EVIL, "OTHER": f"'\"{EVIL}"}, args=None)
        client.post(f"/api/jobs/{job['id']}/stop", json={"why": EVIL})
        client.post("/api/nodes/node-2/drain", json={"why": EVIL})
        yield client


def test_markup_in_names_labels_reasons_and_errors_is_escaped(poisoned: httpx.Client) -> None:
    pages = [
        "/",
        "/jobs",
        "/jobs/j1",
        "/jobs/new",
        "/nodes/node-2",
        "/alerts",
        f"/nodes/{quote('n' + EVIL, safe='')}",
    ]
    pages += [f"/jobs/{quote(EVIL, safe='')}", f"/jobs?status={quote(EVIL)}&after={quote(EVIL)}"]
    said = {page: poisoned.get(page, headers=HTML).text for page in pages}
    form = {"csrf": csrf_of(poisoned), "name": EVIL, "where": "any", "any_nodes": "1", "command": "true"}
    said["a form"] = poisoned.post("/jobs/new", data=form).text
    assert "{{ 7*7 }}" in said["/nodes/node-2"], "a template in it is text too"
    for page, text in said.items():
        assert "<script>alert" not in text, page
        assert "<img src=x" not in text, page
        assert not re.search(r"\son\w+\s*=", re.sub(r"&lt;.*?&gt;", "", text)), page
    with poisoned.stream("GET", "/live/overview") as stream:
        for line in stream.iter_lines():
            assert "<script>alert" not in line
            if "node-4" in line:
                break


def test_problem_documents_cannot_be_taken_for_pages(poisoned: httpx.Client) -> None:
    reply = poisoned.get(f"/api/jobs/{quote(EVIL, safe='')}", headers=HTML)
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_a_log_is_downloaded_as_a_file_and_as_text(tmp_path: Path) -> None:
    with control_plane(tmp_path, nodes=1), console(tmp_path) as client:
        body = {"any_nodes": 1, "check": "none", "command": ["echo", EVIL]}
        job = client.post("/api/jobs", json=body).json()["id"]
        eventually(lambda: client.get(f"/api/jobs/{job}").json()["final"], "the job ended")
        (log,) = client.get(f"/api/jobs/{job}/logs").json()["logs"]
        reply = client.get(f"/api/jobs/{job}/logs/{log['task']}/download")
        assert EVIL in reply.text
        assert reply.headers["content-type"].startswith("text/plain")
        assert reply.headers["content-disposition"].startswith("attachment")
        assert client.get(f"/api/jobs/{job}/logs/{log['task']}").headers["content-type"] == "application/json"


# -- secrets ----------------------------------------------------------------------------------------------


SECRETS = {
    "SEED": "7",
    "DB_PASSWORD": "hush-one",
    "SETTINGS": '{"api_key": "hush-two"}',
    "URL": "https://me:hush-three@host/x",
    "NOTE": "ghp_hushhushhushhushhushhush",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJodXNoIjoiaHVzaCJ9.aHVzaGh1c2g",
    "PEM": "-----BEGIN RSA PRIVATE KEY-----\nhush-four\n-----END RSA PRIVATE KEY-----",
}


def test_nobody_who_looks_at_a_job_can_make_the_tokens_of_its_tasks() -> None:
    job = submit(
        job_id="j",
        cluster="c",
        spec=JobSpec(),
        nodes=some_nodes(2),
        policy=POLICY,
        at=T0,
        check=False,
        salt="hush",
    ).job
    text = json.dumps(job_view(job, T0))
    assert "hush" not in text
    assert keys.start_token("j", job.ranks[0], "hush") not in text


def test_no_secret_leaves_by_any_door(client: httpx.Client) -> None:
    body = {**training(), "any_nodes": 1, "env": SECRETS, "id": "j1"}
    body["command"] = [*body["command"], "--token=hush-five", "--password", "hush-six"]
    made = client.post("/api/jobs", json=body)
    assert made.status_code == 201, made.text
    assert (made.json()["spec"]["env"]["DB_PASSWORD"], made.json()["spec"]["env"]["SEED"]) == (HIDDEN, "7")
    wrong = client.post("/api/jobs", json={**body, "id": "j2", "check": "hush"})
    assert wrong.status_code == 422
    refused = client.post("/api/jobs", json={**body, "id": "j3", "any_nodes": 64})
    preview = client.post("/api/jobs/preview", json={**body, "image": "x:1"})
    client.post("/api/jobs/j1/stop", json={"why": "password=hush-seven in the log"})
    paths = [
        f"/api/{path}" for path in ("jobs/j1", "jobs/j1/timeline", "audit", "openapi.json", "orders", "jobs")
    ]
    paths += ["/", "/jobs", "/jobs/j1", "/alerts", "/api/nodes", "/api/metrics"]
    said = {path: client.get(path).text for path in paths}
    said |= {"made": made.text, "refused": refused.text, "preview": preview.text}
    with client.stream("GET", "/api/live") as stream:
        said["/api/live"] = "".join(line for _, line in zip(range(3), stream.iter_lines(), strict=False))
    for path, text in said.items():
        found = re.findall(r"hush-(?:one|two|three|four|five|six)|ghp_hush\w+|aHVzaGh1c2g", text)
        assert found == [], path
    assert "hush-seven" not in said["/api/audit"]


def test_an_error_of_the_console_tells_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(LocalBackend):
        def job(self, job_id: str) -> object:  # type: ignore[override]
            raise KeyError("/secret/path password=hush")

    state = still_state(tmp_path)
    with served(lambda: Broken(state), tmp_path / "console", state=state) as client:
        reply = client.get("/api/jobs/x")
    assert reply.status_code == 500
    assert "hush" not in reply.text
    assert reply.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("token: abc, next", f"token: {HIDDEN}, next"),
        ("AWS_SECRET_ACCESS_KEY=abc/def", f"AWS_SECRET_ACCESS_KEY={HIDDEN}"),
        ("hf_abcdefghijklmnopqrstuvwx", HIDDEN),
        ("AKIAABCDEFGHIJKLMNOP", HIDDEN),
        ("postgres://me:pw@db/x", f"postgres://me:{HIDDEN}@db/x"),
        ("the token is missing", "the token is missing"),
        ("step 5: loss=0.2", "step 5: loss=0.2"),
    ],
)
def test_what_can_only_be_a_secret_is_hidden_in_any_text(text: str, shown: str) -> None:
    assert masked_text(text) == shown


def test_a_page_holds_only_the_token_of_its_viewer(guarded: httpx.Client) -> None:
    sign_in(guarded, "vic")
    cookie = guarded.cookies[COOKIE]
    for path in ("/", "/alerts", "/api/audit", "/api/whoami"):
        assert cookie not in guarded.get(path).text
    assert json.loads(guarded.get("/api/whoami").text)["role"] == "viewer"
    assert csrf_of(guarded)
