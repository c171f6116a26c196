"""What people with bad intentions try. Each of these was tried, and is refused."""

from __future__ import annotations

import base64
import json
import re
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlencode

import httpx
import pytest

from ecs_gpu_recovery.cli.backend import LocalBackend
from ecs_gpu_recovery.console.auth import Attempts, Proxy, new_token
from ecs_gpu_recovery.console.guard import COOKIE, METHODS
from ecs_gpu_recovery.console.pages import _inside
from ecs_gpu_recovery.console.views import HIDDEN, masked_text
from ecs_gpu_recovery.local import wiring
from tests.console.helpers import (
    PASSWORD,
    USERS,
    console,
    control_plane,
    csrf_of,
    eventually,
    sign_in,
    still_state,
    submitted,
    training,
)

HTML = {"accept": "text/html"}
EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>"
DRAIN = "/api/nodes/node-1/drain"


def raw(client: httpx.Client, request: bytes) -> bytes:
    """Bytes as no client library would send them; what comes back until the console closes."""
    url = client.base_url
    with socket.create_connection((url.host, url.port or 80), timeout=20) as conn:
        conn.sendall(request)
        found = b""
        while part := conn.recv(65536):
            found += part
        return found


# -- paths ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/static/../../pyproject.toml",
        "/static/%2e%2e/%2e%2e/auth.py",
        "/static/..%5c..%5cauth.py",
        "/static//etc/passwd",
        "/static/lib/../../auth.py",
        "/api/jobs/j/logs/..%2f..%2f..%2fetc%2fpasswd/download",
        "/api/jobs/j/logs/%2e%2e/search?q=root",
        "/api/nodes/..%2f..%2fusers",
        "/api/nodes/node-1%00",
        "/jobs/..%2f..%2fetc%2fpasswd",
    ],
)
def test_no_path_leads_out_of_the_console(shared: httpx.Client, path: str) -> None:
    answer = raw(shared, f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
    assert answer.split(b" ")[1] in (b"400", b"404", b"405"), answer[:200]
    assert b"root:" not in answer
    assert b"scrypt" not in answer


def test_a_log_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    """A training program owns its folder, and may put a link where its log was."""
    with control_plane(tmp_path, nodes=1), console(tmp_path) as client:
        job = submitted(client, any_nodes=1, steps=5, check="none")["id"]
        eventually(lambda: client.get(f"/api/jobs/{job}").json()["final"], "the job ended")
        (log,) = client.get(f"/api/jobs/{job}/logs").json()["logs"]
        path = tmp_path / "nodes" / log["node"] / "tasks" / log["task"] / "log"
        path.unlink()
        path.symlink_to("/etc/passwd")
        base = f"/api/jobs/{job}/logs/{log['task']}"
        assert client.get(base).status_code == 409
        assert client.get(f"{base}/search", params={"q": "root"}).status_code == 409
        assert client.get(f"{base}/download").status_code == 409


def test_a_script_is_kept_under_a_name_of_ours(client: httpx.Client, tmp_path: Path) -> None:
    body = {**training(script_text="print(1)", name="x"), "any_nodes": 1}
    del body["command"]
    made = client.post("/api/jobs", json=body).json()
    kept = Path(made["spec"]["command"][1])
    assert kept.parent.parent == tmp_path / "scripts"
    assert kept.parent.stat().st_mode & 0o077 == 0
    assert client.post("/api/jobs", json={**body, "filename": "../../evil.py"}).status_code == 422


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
    for page in pages:
        text = poisoned.get(page, headers=HTML).text
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


# -- who it is --------------------------------------------------------------------------------------------


def test_a_cookie_ends_with_its_time(guarded: httpx.Client, tmp_path: Path) -> None:
    sign_in(guarded, "olga")
    assert guarded.get("/api/jobs").status_code == 200
    with closing(sqlite3.connect(tmp_path / "console" / "console.db")) as memory:
        memory.execute("UPDATE session SET ends='2020-01-01T00:00:00+00:00'")
        memory.commit()
    assert guarded.get("/api/jobs").status_code == 401


def test_the_file_of_sessions_lets_nobody_in(guarded: httpx.Client, tmp_path: Path) -> None:
    """Whoever reads the database finds digests; a digest is no cookie."""
    sign_in(guarded, "olga")
    with closing(sqlite3.connect(tmp_path / "console" / "console.db")) as memory:
        ((digest,),) = memory.execute("SELECT digest FROM session")
    guarded.cookies.clear()
    assert guarded.get("/api/jobs", headers={"cookie": f"{COOKIE}={digest}"}).status_code == 401


def test_the_token_of_another_person_is_no_token(guarded: httpx.Client) -> None:
    """Also in the parts of pages that all viewers share: each gets their own."""
    first = sign_in(guarded, "olga")
    sent = {"x-csrf-token": first}
    assert guarded.post("/api/nodes/node-3/reboot", json={"why": "x"}, headers=sent).status_code == 200
    mine = guarded.get("/alerts").text
    assert f'value="{first}"' in mine
    with httpx.Client(base_url=guarded.base_url, trust_env=False) as other:
        second = sign_in(other, "olga")
        assert second != first
        theirs = other.get("/alerts").text
        assert first not in theirs
        assert theirs.count(second) == mine.count(first) >= 2
        with other.stream("GET", "/live/alerts") as stream:
            seen = ""
            for line in stream.iter_lines():
                seen += line
                if "/orders/again" in seen and line == "":
                    break
            assert second in seen
            assert first not in seen
        assert other.post(DRAIN, json={"why": "x"}, headers={"x-csrf-token": first}).status_code == 403


def test_guessing_is_slowed_over_many_names_and_a_made_up_address_does_not_help(
    guarded: httpx.Client,
) -> None:
    for number in range(5):
        spoof = {"x-forwarded-for": f"10.0.0.{number}", "forwarded": f"for=10.0.0.{number}"}
        reply = guarded.post("/signin", data={"name": f"user{number}", "password": "x"}, headers=spoof)
        assert reply.status_code == 401
    reply = guarded.post(
        "/signin", data={"name": "someone", "password": "x"}, headers={"x-forwarded-for": "1.2.3.4"}
    )
    assert reply.status_code == 429
    word = base64.b64encode(f"olga:{PASSWORD}".encode()).decode()
    for header in (f"Basic {word}", "Bearer gpurec_x"):
        assert guarded.get("/api/jobs", headers={"authorization": header}).status_code == 429


def test_nobody_locks_others_out_by_writing_their_address(tmp_path: Path) -> None:
    """Behind a load balancer the last address is the one it saw; the others were written by the client."""
    proxy = Proxy.parse("x-nobody", ["127.0.0.1"], [])
    with console(still_state(tmp_path), users=USERS, proxy=proxy) as client:

        def guess(forwarded: str, password: str = "x") -> int:
            form = {"name": "vic", "password": password}
            return client.post("/signin", data=form, headers={"x-forwarded-for": forwarded}).status_code

        for number in range(5):
            assert guess(f"9.9.9.{number}, 203.0.113.7") == 401
        assert guess("203.0.113.8, 203.0.113.7") == 429  # the guesser is slowed, whatever stands first
        assert guess("203.0.113.7, 198.51.100.1", PASSWORD) == 303  # the one whose address was written is not
        assert guess("nonsense", PASSWORD) == 303


def test_a_name_is_slowed_from_everywhere_but_not_by_one_address() -> None:
    attempts = Attempts(most=5, most_at_name=25)
    for _ in range(5):
        attempts.failed("address 1", "name olga")
    assert attempts.wait_s("address 1") > 0
    assert attempts.wait_s("address 2", "name olga") == 0
    for number in range(20):
        attempts.failed(f"address b{number}", "name olga")
    assert attempts.wait_s("address 2", "name olga") > 0


def test_a_program_signs_in_with_a_token_and_its_name_is_kept(tmp_path: Path) -> None:
    token, kept = new_token()
    with console(still_state(tmp_path), users=f"{USERS}ci:operator:{kept}\n") as client:
        sent = {"authorization": f"Bearer {token}"}
        assert client.get("/api/whoami", headers=sent).json()["name"] == "ci"
        assert client.post(DRAIN, json={"why": "fan"}, headers=sent).json()["hold"]["by"] == "ci"
        assert client.get("/api/jobs", headers={"authorization": f"Bearer {kept}"}).status_code == 401
        assert client.get("/api/jobs", headers={"authorization": "Bearer"}).status_code == 401
        form = {"name": "ci", "password": token}
        assert client.post("/signin", data=form).status_code == 401  # a token is not a password
        assert token not in (tmp_path / "users").read_text()


# -- what may be done -------------------------------------------------------------------------------------


def _changes(client: httpx.Client) -> list[str]:
    """Every address that changes something: those of the API from its description, and the pages' own."""
    described = client.get("/api/openapi.json").json()["paths"]
    found = [path for path, operations in described.items() if "post" in operations]
    names = {"{job_id}": "j1", "{name}": "node-1", "{ask}": "drain", "{task}": "t"}
    for name, value in names.items():
        found = [path.replace(name, value) for path in found]
    pages = ["/jobs/new", "/jobs/new/preview", "/jobs/j1/stop", "/jobs/j1/retry", "/nodes/node-1/ask"]
    return [*found, *pages, "/orders/again", "/letters/again"]


def test_a_viewer_can_do_nothing_at_all(guarded: httpx.Client) -> None:
    token = sign_in(guarded, "vic")
    asked = _changes(guarded)
    assert len(asked) >= 12
    for path in asked:
        assert guarded.post(path, json={}, headers={"x-csrf-token": token}).status_code == 403, path
        assert guarded.post(path, data={"csrf": token}).status_code == 403, path
    deeds = guarded.get("/api/audit").json()["audit"]
    refused = {deed["subject"] for deed in deeds if deed["outcome"].startswith("refused: a viewer")}
    assert refused == set(asked)
    assert {deed["who"] for deed in deeds} == {"vic"}


def test_every_action_is_written_down_with_who_what_why_and_how_it_ended(guarded: httpx.Client) -> None:
    sent = {"x-csrf-token": sign_in(guarded, "olga")}

    def post(path: str, body: dict[str, object]) -> httpx.Response:
        return guarded.post(path, json=body, headers=sent)

    job = post("/api/jobs", {**training(), "any_nodes": 1}).json()["id"]
    post(f"/api/jobs/{job}/retry", {})
    post(f"/api/jobs/{job}/stop", {"why": "wrong data"})
    for ask in ("drain", "release", "check"):
        post(f"/api/nodes/node-3/{ask}", {"why": f"to {ask}"})
    post("/api/nodes/node-4/reboot", {"why": "to reboot"})
    (order,) = [o for o in guarded.get("/api/orders").json()["orders"] if o["record"] == "node/node-4"]
    post("/api/orders/again", {"record": order["record"], "key": order["key"]})
    post("/api/jobs", {**training(), "any_nodes": 64})
    found = guarded.get("/api/audit").json()["audit"][::-1]
    assert [(d["action"], d["subject"], d["why"]) for d in found[1:]] == [
        ("submit", f"job/{job}", ""),
        ("retry", f"job/{job}", ""),
        ("stop", f"job/{job}", "wrong data"),
        ("drain", "node/node-3", "to drain"),
        ("release", "node/node-3", "to release"),
        ("check", "node/node-3", "to check"),
        ("reboot", "node/node-4", "to reboot"),
        ("send again", "node/node-4", order["key"]),
        ("submit", "", ""),
    ]
    outcomes = [deed["outcome"] for deed in found]
    assert outcomes[2].startswith("refused: ")
    assert outcomes[-1].startswith("refused: ")
    assert all(outcome == "done" for outcome in [*outcomes[:2], *outcomes[3:-1]])
    assert {(d["who"], d["role"], d["address"]) for d in found} == {("olga", "operator", "127.0.0.1")}
    assert all(deed["at"] for deed in found)


# -- strange requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "post", "PROPFIND", "GET\tPOST"])
def test_a_method_of_no_meaning_is_refused(shared: httpx.Client, method: str) -> None:
    request = (
        f"{method} {DRAIN} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    )
    status = raw(shared, request.encode()).split(b" ")[1]
    assert status in (b"400", b"404", b"405")


@pytest.mark.parametrize("header", ["x-http-method-override", "x-method-override", "x-http-method"])
def test_a_method_is_what_it_says(client: httpx.Client, header: str) -> None:
    """Looking never changes anything, whatever else a request claims to be."""
    for method in sorted(METHODS - {"POST"}):
        reply = client.request(method, f"{DRAIN}?_method=POST&why=x", headers={header: "POST"})
        assert reply.status_code in (403, 404, 405), method
    for path in ("/jobs/new/preview", "/orders/again", "/signout", "/nodes/node-1/ask?ask=drain&why=x"):
        assert client.get(path).status_code in (404, 405)
    assert client.get("/api/nodes/node-1").json()["free"]


def test_no_header_is_written_by_a_visitor(shared: httpx.Client, tmp_path: Path) -> None:
    evil = quote("/jobs\r\nset-cookie: a=b\r\n\r\n<html>", safe="")
    for path in (f"/lang/en?next={evil}", f"/signin?next={evil}", f"/lang/{evil}"):
        reply = shared.get(path)
        assert "a" not in reply.cookies
        assert "<html>" not in reply.headers.get("location", "")
    assert shared.get(f"/lang/en?next={evil}").headers["location"] == "/"
    job = submitted(shared, any_nodes=1)["id"]
    assert shared.get(f"/api/jobs/{job}/logs/{evil}/download").status_code == 404


@pytest.mark.parametrize(
    "where", ["//evil.example", "/\\evil", "/a\rb", "/a\tb", "http:/x", "", "evil", "/\x00"]
)
def test_nobody_is_sent_elsewhere(where: str) -> None:
    assert _inside(where) == "/"


@pytest.mark.parametrize(
    "request_head",
    [
        b"x-large: " + b"a" * 200_000,
        b"\r\n".join(b"x-%d: y" % n for n in range(20_000)),
        b"cookie: " + b"; ".join(b"c%d=1" % n for n in range(20_000)),
        b"transfer-encoding: chunked\r\ncontent-length: 5",
        b"content-length: -1",
        b"content-length: 5\r\ncontent-length: 6",
        b"host: other",
    ],
)
def test_strange_headers_do_no_harm(shared: httpx.Client, request_head: bytes) -> None:
    request = (
        b"POST /api/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\n" + request_head + b"\r\nconnection: close\r\n\r\n"
    )
    try:
        answer = raw(shared, request)
        assert not answer or answer.split(b" ")[1][:1] == b"4", answer[:100]
    except (ConnectionResetError, BrokenPipeError):
        """It hung up on us, which is an answer too."""
    assert shared.get("/health").status_code == 200


def test_a_body_that_never_comes_is_not_waited_for(
    shared: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ecs_gpu_recovery.console.guard.BODY_S", 0.2)
    head = b"POST /api/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 500\r\nconnection: close\r\n\r\n"
    assert raw(shared, head + b'{"name": ').split(b" ")[1] == b"408"


def test_a_form_of_countless_fields_is_refused_as_a_form_without_a_token(shared: httpx.Client) -> None:
    body = urlencode([(f"f{n}", "x") for n in range(20_000)])
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert shared.post("/jobs/new", content=body, headers=kind).status_code == 403
    assert shared.post("/signin", content=body, headers=kind).status_code in (401, 429)


@pytest.mark.parametrize(
    "body", ["[" * 100_000, '{"name": NaN}', '{"any_nodes": 1e400}', '"\\ud800"', "null", "[]"]
)
def test_json_that_is_meant_to_hurt_is_a_problem(shared: httpx.Client, body: str) -> None:
    kind = {"content-type": "application/json"}
    reply = shared.post("/api/jobs", content=body, headers=kind)
    assert reply.status_code in (400, 422)
    assert reply.headers["content-type"] == "application/problem+json"


def test_a_form_from_another_site_cannot_even_sign_in(guarded: httpx.Client) -> None:
    form = {"name": "olga", "password": PASSWORD}
    for header in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "same-site"}):
        assert guarded.post("/signin", data=form, headers=header).status_code == 403
    plain = guarded.post("/signin", content=urlencode(form), headers={"content-type": "text/plain"})
    assert plain.status_code in (303, 401)


def test_another_protocol_is_not_spoken(shared: httpx.Client) -> None:
    answer = raw(
        shared,
        b"GET /api/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade, close\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n",
    )
    assert b" 101 " not in answer.split(b"\r\n")[0]


# -- secrets ----------------------------------------------------------------------------------------------


SECRETS = {
    "DB_PASSWORD": "hush-one",
    "SETTINGS": '{"api_key": "hush-two"}',
    "URL": "https://me:hush-three@host/x",
    "NOTE": "ghp_hushhushhushhushhushhush",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJodXNoIjoiaHVzaCJ9.aHVzaGh1c2g",
    "PEM": "-----BEGIN RSA PRIVATE KEY-----\nhush-four\n-----END RSA PRIVATE KEY-----",
}


def test_no_secret_leaves_by_any_door(client: httpx.Client) -> None:
    body = {**training(), "any_nodes": 1, "env": SECRETS, "id": "j1"}
    body["command"] = [*body["command"], "--token=hush-five", "--password", "hush-six"]
    made = client.post("/api/jobs", json=body)
    assert made.status_code == 201, made.text
    wrong = client.post("/api/jobs", json={**body, "id": "j2", "check": "hush"})
    assert wrong.status_code == 422
    refused = client.post("/api/jobs", json={**body, "id": "j3", "any_nodes": 64})
    preview = client.post("/api/jobs/preview", json={**body, "image": "x:1"})
    client.post("/api/jobs/j1/stop", json={"why": "password=hush-seven in the log"})
    paths = [
        "/api/jobs/j1",
        "/api/jobs/j1/timeline",
        "/api/audit",
        "/api/openapi.json",
        "/api/orders",
        "/api/jobs",
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
    from ecs_gpu_recovery.console.app import serve

    served = serve(lambda: Broken(state), port=0, data=tmp_path / "console", state=state)
    try:
        eventually(lambda: served.server.started, "the console listens")
        reply = httpx.get(f"{served.address}/api/jobs/x", trust_env=False)
        assert reply.status_code == 500
        assert "hush" not in reply.text
        assert reply.headers["content-type"] == "application/problem+json"
    finally:
        served.stop()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("token: abc, next", f"token: {HIDDEN}, next"),
        ("AWS_SECRET_ACCESS_KEY=abc/def", f"AWS_SECRET_ACCESS_KEY={HIDDEN}"),
        ("hf_abcdefghijklmnopqrstuvwx", HIDDEN),
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
