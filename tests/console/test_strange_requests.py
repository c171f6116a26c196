"""Requests that nobody with good intentions sends, to other places and in other forms: refused, or without harm."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import quote, urlencode

import httpx
import pytest

from ecs_gpu_recovery.console.access.guard import METHODS
from ecs_gpu_recovery.console.pages.routes import _inside
from tests.console.helpers import PASSWORD, console, control_plane, eventually, submitted, training

DRAIN = "/api/nodes/node-1/drain"


def raw(client: httpx.Client, request: bytes) -> bytes:
    """Bytes as no client library would send them; what comes back until the console closes."""
    url, (line, _, rest) = client.base_url, request.partition(b"\r\n")
    request = line + f"\r\nauthorization: {client.headers.get('authorization', '')}\r\n".encode() + rest
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
        "/api/nodes/%2e%2e%2fcontroller.lock",
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
    "where",
    [
        *("//evil.example", "https://evil.example", "http:/x", "javascript:alert(1)", "evil", "/\\evil"),
        *("/a\rb", "/a\nb", "/a\tb", "", "/\x00"),
    ],
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
    monkeypatch.setattr("ecs_gpu_recovery.console.access.guard.BODY_S", 0.2)
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
