"""A console on a real port, before a real embedded control plane."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from ecs_gpu_recovery.console.access.auth import hash_password
from ecs_gpu_recovery.console.app import serve
from ecs_gpu_recovery.control.console_link import ConsoleLink
from ecs_gpu_recovery.control.local_backend import LocalBackend
from ecs_gpu_recovery.control.records import RecordsBackend
from ecs_gpu_recovery.local import wiring
from ecs_gpu_recovery.local.controller import Controller, NodeWish
from tests.contract.worlds import a_node
from tests.programs import eventually

Plane = tuple[Controller, httpx.Client]
PASSWORD = "correct horse battery"
USERS = f"olga:operator:{hash_password(PASSWORD)}\nvic:viewer:{hash_password(PASSWORD)}\n"


def still_state(folder: Path, nodes: int = 4) -> Path:
    """A control plane's records without a controller: what is asked for is recorded, and nothing moves."""
    parts = wiring.build(folder)
    at = wiring.now()
    for number in range(1, nodes + 1):
        name = f"node-{number}"
        about = {"cluster": "embedded", "instance": name, "gpus": 2, "ip": "127.0.0.1", "boot_id": ""}
        parts.store.add_node(a_node(name, created_at=at, updated_at=at, **about))
    parts.close()
    return folder


@contextmanager
def control_plane(folder: Path, nodes: int = 2) -> Iterator[Controller]:
    """A running controller with simulated nodes."""
    wishes = [NodeWish(name=f"node-{i + 1}", gpus=2, boot_seconds=0.5) for i in range(nodes)]
    policy = replace(wiring.LOCAL_POLICY, node_lost_after=timedelta(seconds=5))
    with Controller(folder, nodes=wishes, policy=policy) as controller:
        stop = threading.Event()
        loop = threading.Thread(target=controller.run, args=(stop,))
        loop.start()
        try:
            store = controller.parts.store
            eventually(lambda: all(node.claimable for node in store.nodes()), "every node is up")
            yield controller
        finally:
            stop.set()
            loop.join()
            controller.parts.cluster.shutdown()


@contextmanager
def served(
    backend: Callable[[], RecordsBackend], data: Path, *, users: str = "", port: int = 0, **more: Any
) -> Iterator[httpx.Client]:
    """A client of a console that serves what this backend shows."""
    users_file = None
    if users:
        users_file = data.with_name("users")
        users_file.write_text(users)
        users_file.chmod(0o600)
    made = serve(backend, port=port, data=data, users_file=users_file, **more)
    try:
        with owners_client(made.link, timeout=60) as client:
            eventually(lambda: made.server.started, "the console listens")
            yield client
    finally:
        made.stop()


def console(state: Path, **more: Any) -> AbstractContextManager[httpx.Client]:
    """A client of a console that serves this state."""
    return served(lambda: LocalBackend(state), state / "console", state=state, **{"tick_s": 0.2, **more})


def owners_client(link: ConsoleLink, timeout: float = 30) -> httpx.Client:
    """A program of the console's owner; a stranger where people sign in."""
    headers = {"authorization": f"Bearer {link.token}"} if link.token else {}
    return httpx.Client(base_url=link.address, headers=headers, timeout=timeout, trust_env=False)


def link_of(client: httpx.Client) -> ConsoleLink:
    """What such a program was told."""
    token = client.headers.get("authorization", "").removeprefix("Bearer ")
    return ConsoleLink(str(client.base_url).rstrip("/"), token)


def sign_in(client: httpx.Client, name: str, password: str = PASSWORD) -> str:
    """Sign in; gives the CSRF token back."""
    reply = client.post("/signin", data={"name": name, "password": password, "next": "/"})
    assert reply.status_code == 303, reply.text
    return csrf_of(client)


def csrf_of(client: httpx.Client, **headers: str) -> str:
    page = client.get("/jobs", headers=headers).text
    return page.split('name="csrf" content="')[1].split('"')[0]


def sessions_end(state: Path, at: str) -> None:
    """Everyone who is signed in is so until then."""
    with closing(sqlite3.connect(state / "console" / "console.db")) as memory:
        memory.execute("UPDATE session SET ends=?", (at,))
        memory.commit()


def operations(client: httpx.Client) -> list[tuple[str, str]]:
    """Every method and address of the API, by its own description, with something in place of each blank."""
    names = {"{job_id}": "j1", "{name}": "node-1", "{ask}": "drain", "{task}": "t"}
    found = []
    for path, methods in client.get("/api/openapi.json").json()["paths"].items():
        for blank, value in names.items():
            path = path.replace(blank, value)
        found += [(method, path) for method in methods]
    return found


def training(steps: int = 40, **more: Any) -> dict[str, Any]:
    command = [sys.executable, "-m", "ecs_gpu_recovery.examples.train", "--step-seconds", "0.03"]
    command += ["--steps", str(steps), "--checkpoint-every", "10"]
    return {"name": "train", "any_nodes": 2, "command": command, **more}


def submitted(client: httpx.Client, **more: Any) -> dict[str, Any]:
    reply = client.post("/api/jobs", json=training(**more))
    assert reply.status_code == 201, reply.text
    found: dict[str, Any] = reply.json()
    return found


def events(
    client: httpx.Client, count: int, *, last: str = "", before: Callable[[], None] | None = None
) -> list[dict[str, str]]:
    """The first messages of the live stream; `before` is called once it is open."""
    found: list[dict[str, str]] = []
    with client.stream("GET", "/api/live", headers={"last-event-id": last} if last else {}) as stream:
        message: dict[str, str] = {}
        if before is not None and last:
            before()
        for line in stream.iter_lines():
            if line and not line.startswith(":"):
                key, _, value = line.partition(": ")
                message[key] = message.get(key, "") + value
            elif message:
                found.append(message)
                message = {}
                if before is not None and len(found) == 1 and not last:
                    before()
                if len(found) == count:
                    return found
    return found
