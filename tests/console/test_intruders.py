"""Who pretends to be somebody, or does what is not theirs to do. Each of these was tried, and is refused."""

from __future__ import annotations

import base64
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx

from ecs_gpu_recovery.console.access.auth import Attempts, Proxy, new_token
from ecs_gpu_recovery.console.access.sessions import COOKIE
from tests.console.helpers import (
    PASSWORD,
    USERS,
    console,
    operations,
    sessions_end,
    sign_in,
    still_state,
    training,
)

DRAIN = "/api/nodes/node-1/drain"


# -- who it is --------------------------------------------------------------------------------------------


def test_a_cookie_ends_with_its_time(guarded: httpx.Client, tmp_path: Path) -> None:
    sign_in(guarded, "olga")
    assert guarded.get("/api/jobs").status_code == 200
    sessions_end(tmp_path, "2020-01-01T00:00:00+00:00")
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
    found = [path for method, path in operations(client) if method == "post"]
    pages = ["/jobs/new", "/jobs/new/preview", "/jobs/j1/stop", "/jobs/j1/retry", "/nodes/node-1/ask"]
    return [*found, *pages, "/orders/again", "/alerts/acknowledge", "/letters/again", "/letters/discard"]


def test_a_viewer_can_do_nothing_at_all(guarded: httpx.Client) -> None:
    token = sign_in(guarded, "vic")
    assert guarded.get("/api/nodes").status_code == 200, "but look"
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
