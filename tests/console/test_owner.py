"""A console without users is for the person who started it. Everyone on the machine reaches it; the link opens it."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest

from ecs_gpu_recovery.console.access.sessions import COOKIE
from ecs_gpu_recovery.control.backend import open_backend
from ecs_gpu_recovery.control.console_link import ConsoleLink, token_of
from ecs_gpu_recovery.control.remote_backend import RemoteBackend
from ecs_gpu_recovery.core.errors import Refused
from tests.cli.conftest import run_command
from tests.console.helpers import USERS, console, csrf_of, link_of, operations, sign_in, still_state

PAGES = ["/", "/jobs", "/jobs/new", "/jobs/j1", "/nodes/node-1", "/alerts", "/nothing"]
STREAMS = ["/live/overview", "/live/jobs", "/api/live"]


def stranger(client: httpx.Client) -> httpx.Client:
    """Another user of the machine, or a browser that has not been given the link yet."""
    return httpx.Client(base_url=client.base_url, timeout=30, trust_env=False)


def test_another_user_of_the_machine_gets_nothing_but_the_page_that_says_how(shared: httpx.Client) -> None:
    asked = operations(shared)
    assert len(asked) > 20
    with stranger(shared) as other:
        for method, path in [*asked, ("get", "/api/openapi.json"), ("post", "/jobs/new")]:
            reply = other.request(method, path, json={"why": "x"} if method == "post" else None)
            assert reply.status_code == 401, (method, path)
            assert "node-1" not in reply.text
        for path in STREAMS:
            assert other.get(path, headers={"accept": "text/event-stream"}).status_code == 401
        for path in PAGES:
            reply = other.get(path)
            assert (reply.status_code, reply.headers["location"]) == (303, f"/signin?next={path}")
        page = other.get("/signin")
        assert "It is also kept in a file that only that person can read" in page.text
        assert "<form method" not in page.text
        assert other.post("/signin", data={"name": "root", "password": "x"}).status_code == 401
        assert other.get("/health").status_code == 200
        assert other.get("/static/app.js").status_code == 200


def test_the_link_opens_it_with_one_click_and_leaves_no_token_behind(client: httpx.Client) -> None:
    link = link_of(client)
    with stranger(client) as browser:
        reply = browser.get(link.page("/jobs") + "&status=FAILED")
        assert (reply.status_code, reply.headers["location"]) == (303, "/jobs?status=FAILED")
        cookie = reply.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        assert link.token not in reply.text + cookie
        assert reply.headers["referrer-policy"] == "same-origin"
        assert browser.get("/jobs").status_code == 200
        assert browser.get("/api/whoami").json()["role"] == "operator"
        token = csrf_of(browser)
        assert browser.post("/api/nodes/node-1/drain", json={"why": "x"}).status_code == 403
        drained = browser.post("/nodes/node-1/ask", data={"csrf": token, "ask": "drain", "why": "x"})
        assert drained.status_code == 303
        assert browser.post("/signout", data={"csrf": token}).headers["location"] == "/signin"
        assert browser.get("/api/whoami").status_code == 401


@pytest.mark.parametrize("token", ["", "wrong", "gpurec_", "Ω%ff", "x" * 5000])
def test_a_token_that_is_not_its_own_opens_nothing(shared: httpx.Client, token: str) -> None:
    with stranger(shared) as other:
        reply = other.get("/jobs", params={"token": token})
        assert (reply.status_code, reply.headers["location"]) == (303, "/jobs")
        assert "set-cookie" not in reply.headers
        sent = {"authorization": f"Bearer {token or '-'}".encode()}
        assert other.get("/api/jobs", headers=sent).status_code == 401
        assert other.get("/api/jobs", params={"token": link_of(shared).token}).status_code == 401


def test_the_link_leads_nowhere_else(shared: httpx.Client) -> None:
    with stranger(shared) as other:
        for path in ("//evil.example/", "///evil.example/", "/%5cevil.example/", "/%0d%0aset-cookie:x"):
            where = other.get(str(shared.base_url).rstrip("/") + path, params={"token": "x"}).headers[
                "location"
            ]
            assert where[0] == "/"
            assert where[1] not in "/\\"
            assert "\r" not in where


def test_wrong_tokens_do_not_shut_the_owner_out(shared: httpx.Client) -> None:
    with stranger(shared) as other:
        for _ in range(10):
            assert other.get("/api/jobs", headers={"authorization": "Bearer gpurec_x"}).status_code == 401
    assert shared.get("/api/jobs").status_code == 200


def test_the_token_is_new_with_every_start_and_its_file_is_the_owners_alone(tmp_path: Path) -> None:
    os.umask(0o022)
    state = still_state(tmp_path)
    with console(state) as first, stranger(first) as browser:
        link, port = link_of(first), first.base_url.port or 0
        file = state / "console" / f"link-{port}"
        assert file.read_text() == f"{link.page()}\n"
        assert file.stat().st_mode & 0o777 == 0o600
        assert browser.get(link.page()).status_code == 303
        cookies = browser.cookies
    assert not file.exists()
    with console(state, port=port) as second, stranger(second) as other:
        assert link_of(second).token != link.token
        assert other.get("/api/jobs", headers=first.headers).status_code == 401
        assert "set-cookie" not in other.get(link.page()).headers
        other.cookies = cookies
        assert other.get("/api/jobs").status_code == 200, "a page that was open goes on"


def test_a_page_that_asked_another_program_on_its_port_has_given_nothing_away(tmp_path: Path) -> None:
    """Its cookie is worth nothing to the one who listened there: the console is on another port by then."""
    state = still_state(tmp_path)
    with console(state) as first, console(state) as second:
        with stranger(first) as browser:
            assert browser.get(link_of(first).page()).status_code == 303
            ((name, value),) = browser.cookies.items()
        there = name.replace(str(first.base_url.port), str(second.base_url.port))
        with stranger(second) as other:
            sent = {"cookie": f"{there}={value}; {name}={value}"}
            assert other.get("/api/jobs", headers=sent).status_code == 401


def test_a_user_of_a_console_with_users_is_not_the_owner_of_one_without(tmp_path: Path) -> None:
    state = still_state(tmp_path)
    with console(state, users=USERS) as guarded:
        sign_in(guarded, "vic")
        value, port = guarded.cookies[COOKIE], guarded.base_url.port or 0
    with console(state, port=port) as own, stranger(own) as other:
        sent = {"cookie": f"{COOKIE}={value}; {COOKIE}_{port}={value}"}
        assert other.get("/api/jobs", headers=sent).status_code == 401


def test_the_file_of_a_later_console_is_not_taken_away(tmp_path: Path) -> None:
    old, new = (ConsoleLink("http://127.0.0.1:8080", word) for word in ("old", "new"))
    old.keep(tmp_path)
    new.keep(tmp_path)
    old.forget(tmp_path)
    assert (tmp_path / "link-8080").exists()
    new.forget(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_consoles_of_one_machine_are_open_in_one_browser(tmp_path: Path) -> None:
    states = [still_state(tmp_path / name) for name in ("one", "two")]
    with console(states[0]) as one, console(states[1]) as two, httpx.Client(trust_env=False) as browser:
        for link in (link_of(one), link_of(two)):
            assert browser.get(link.page()).status_code == 303
        for client in (one, two):
            assert browser.get(client.base_url.join("/api/jobs")).status_code == 200


def test_a_command_of_the_owner_finds_the_token_by_itself(tmp_path: Path) -> None:
    with console(still_state(tmp_path)) as client:
        address = str(client.base_url).rstrip("/")
        told = run_command("nodes", "--backend", address, "--state", tmp_path)
        assert (told.code, "node-1" in told.out) == (0, True), told.err
        assert run_command("doctor", "--backend", address, "--state", tmp_path).code == 0
        assert len(open_backend(address, tmp_path).nodes()) == 4
        with pytest.raises(Refused, match="send the token of the link it printed"):
            RemoteBackend(address, {}, state=tmp_path / "another").nodes()
        assert token_of(tmp_path, address) == link_of(client).token
        assert token_of(tmp_path, address.replace("127.0.0.1", "localhost")) == "", (
            "that may be another program"
        )
        assert token_of(tmp_path, "http://127.0.0.1:1") == ""


def test_with_users_there_is_no_link(tmp_path: Path) -> None:
    with console(still_state(tmp_path), users=USERS) as guarded:
        assert list((tmp_path / "console").glob("link-*")) == []
        assert "authorization" not in guarded.headers
        reply = guarded.get("/jobs", params={"token": "x"})
        assert reply.headers["location"] == "/signin?next=/jobs"
