"""Who may do what, and what never gets through or out."""

from __future__ import annotations

import base64
from pathlib import Path

import httpx
import pytest

from ecs_gpu_recovery.console.access.auth import Attempts, Proxy, Users, hash_password
from ecs_gpu_recovery.console.access.sessions import COOKIE
from ecs_gpu_recovery.console.app import Settings, prepare
from ecs_gpu_recovery.control.local_backend import LocalBackend
from ecs_gpu_recovery.core.errors import Refused
from ecs_gpu_recovery.masks import HIDDEN, masked_command, masked_env
from tests.console.helpers import PASSWORD, console, csrf_of, sign_in, still_state, training

DRAIN = "/api/nodes/node-1/drain"


def test_it_does_not_listen_beyond_this_machine_without_authentication(tmp_path: Path) -> None:
    state = still_state(tmp_path)
    with pytest.raises(Refused, match="without authentication"):
        prepare(lambda: LocalBackend(state), Settings(data=tmp_path / "c", host="0.0.0.0", port=0))


def test_nobody_sees_anything_before_signing_in(guarded: httpx.Client) -> None:
    assert guarded.get("/api/jobs").status_code == 401
    assert guarded.get("/live/overview", headers={"accept": "text/event-stream"}).status_code == 401
    reply = guarded.get("/jobs")
    assert (reply.status_code, reply.headers["location"]) == (303, "/signin?next=/jobs")
    assert guarded.get("/signin").status_code == 200


def test_a_wrong_password_is_refused_and_guessing_is_slowed(guarded: httpx.Client) -> None:
    guess = {"name": "olga", "password": "guess"}
    assert [guarded.post("/signin", data=guess).status_code for _ in range(6)] == [401] * 5 + [429]
    right = guarded.post("/signin", data={"name": "olga", "password": PASSWORD})
    assert right.status_code == 429
    assert int(right.headers["retry-after"]) > 0


def test_guesses_are_forgotten_after_a_while() -> None:
    now = [0.0]
    attempts = Attempts(most=2, window_s=10, now=lambda: now[0])
    attempts.failed("a")
    attempts.failed("a")
    assert attempts.wait_s("a") == 10
    assert attempts.wait_s("b") == 0
    now[0] = 10.0
    assert attempts.wait_s("a") == 0


@pytest.mark.parametrize("token", ["", "forged", "Ω"])
def test_no_change_without_the_token_of_the_session(guarded: httpx.Client, token: str) -> None:
    sign_in(guarded, "olga")
    headers = {"x-csrf-token": token.encode()} if token else {}
    assert guarded.post(DRAIN, json={"why": "fan"}, headers=headers).status_code == 403
    form = guarded.post("/nodes/node-1/ask", data={"csrf": token, "ask": "drain", "why": "x"})
    assert form.status_code == 403


def test_another_site_is_refused_even_with_the_cookie_and_the_token(guarded: httpx.Client) -> None:
    token = sign_in(guarded, "olga")
    for header in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
        reply = guarded.post(DRAIN, json={"why": "fan"}, headers={"x-csrf-token": token, **header})
        assert reply.status_code == 403


@pytest.mark.parametrize("cookie", ["forged", "a" * 43, "' OR 1=1 --", "../../etc/passwd"])
def test_a_forged_cookie_is_nobody(guarded: httpx.Client, cookie: str) -> None:
    assert guarded.get("/api/jobs", headers={"cookie": f'{COOKIE}="{cookie}"'}).status_code == 401


def test_a_session_ends_with_the_sign_out_and_with_the_user(guarded: httpx.Client, tmp_path: Path) -> None:
    token = sign_in(guarded, "olga")
    cookie = guarded.cookies[COOKIE]
    assert guarded.post("/signout", data={"csrf": token}).status_code == 303
    assert guarded.get("/api/jobs", headers={"cookie": f"{COOKIE}={cookie}"}).status_code == 401
    sign_in(guarded, "vic")
    (tmp_path / "users").write_text(f"olga:operator:{hash_password(PASSWORD)}\n")
    assert guarded.get("/api/jobs").status_code == 401


def test_a_session_cookie_is_for_this_site_only_and_not_for_scripts(guarded: httpx.Client) -> None:
    reply = guarded.post("/signin", data={"name": "vic", "password": PASSWORD})
    cookie = reply.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


def test_scripts_may_send_name_and_password(guarded: httpx.Client) -> None:
    def basic(password: str) -> dict[str, str]:
        return {"authorization": "Basic " + base64.b64encode(f"olga:{password}".encode()).decode()}

    assert guarded.post(DRAIN, json={"why": "fan"}, headers=basic(PASSWORD)).status_code == 200
    assert guarded.get("/api/jobs", headers=basic("wrong")).status_code == 401
    assert guarded.get("/api/jobs", headers={"authorization": "Basic %%%"}).status_code == 400


@pytest.mark.parametrize(
    "path", ["/", "/jobs", "/jobs/new", "/alerts", "/nodes/node-1", "/nothing", "/api/jobs", "/static/app.js"]
)
def test_every_reply_carries_the_strict_headers(shared: httpx.Client, path: str) -> None:
    reply = shared.get(path, headers={"accept": "text/html"})
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    if "html" in reply.headers["content-type"]:
        assert " style=" not in reply.text
        assert "onclick" not in reply.text
        assert "<style" not in reply.text


def test_without_authentication_only_this_machine_is_answered(shared: httpx.Client) -> None:
    assert shared.get("/api/jobs", headers={"host": "rebound.example"}).status_code == 421
    form = shared.post("/nodes/node-1/ask", data={"ask": "drain", "why": "x"})
    assert form.status_code == 403


def test_a_body_that_is_too_large_is_refused(shared: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    assert shared.post("/api/jobs", content=b"x" * (2 << 20), headers=headers).status_code == 413

    def pieces() -> list[bytes]:
        return [b"x" * 65536] * 40

    assert shared.post("/api/jobs", content=iter(pieces()), headers=headers).status_code == 413
    body = training(script_text="x" * (300 * 1024))
    del body["command"]
    assert shared.post("/api/jobs", json=body).status_code == 422


def test_what_looks_like_a_secret_is_hidden() -> None:
    shown = masked_command(["run", "--api-key", "x", "--token=y", "-n", "3"])
    assert shown == ["run", "--api-key", HIDDEN, f"--token={HIDDEN}", "-n", "3"]
    assert masked_env({"PATH_KEYS": "a", "MONKEY": "b"}) == {"PATH_KEYS": "a", "MONKEY": "b"}


def test_a_load_balancer_is_believed_from_its_own_address_only(tmp_path: Path) -> None:
    state = still_state(tmp_path)
    here = Proxy.parse("x-amzn-oidc-identity", ["127.0.0.1/32"], ["olga"])
    with console(state, proxy=here) as client:
        assert client.get("/api/jobs").status_code == 401
        assert client.get("/api/jobs", headers={"x-amzn-oidc-identity": "vic"}).status_code == 200
        token = csrf_of(client, **{"x-amzn-oidc-identity": "olga"})
        for name, status in (("vic", 403), ("olga", 200)):
            headers = {"x-amzn-oidc-identity": name, "x-csrf-token": token}
            assert client.post(DRAIN, json={"why": "x"}, headers=headers).status_code == status
    elsewhere = Proxy.parse("x-amzn-oidc-identity", ["10.0.0.0/8"], ["olga"])
    with console(state, proxy=elsewhere) as client:
        assert client.get("/api/jobs", headers={"x-amzn-oidc-identity": "olga"}).status_code == 401


def test_a_users_file_is_strict(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="line 2"):
        Users.parse(f"olga:operator:{hash_password(PASSWORD)}\nvic:admin:x")
    with pytest.raises(Refused, match="at least"):
        hash_password("short")
    path = tmp_path / "users"
    path.write_text("")
    path.chmod(0o644)
    with pytest.raises(Refused, match="chmod 600"):
        Users.load(path)
