"""The console beside a control plane: there at once, gone with it, and never in its way."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

if not sys.platform.startswith("linux"):
    pytest.skip("the embedded cluster supervises processes through Linux's /proc", allow_module_level=True)
pytest.importorskip("fastapi", reason="the console needs the extra [console]")

from ecs_gpu_recovery.core.errors import Refused
from ecs_gpu_recovery.local import wiring
from ecs_gpu_recovery.serve.beside import ConsoleBeside, linger, person_is_there
from tests.console.helpers import owners_client

ROOT = Path(__file__).parents[2]
CLI = [sys.executable, "-m", "ecs_gpu_recovery.main"]
PATIENCE_S = 60.0


def a_state(folder: Path) -> Path:
    wiring.build(folder).close()
    return folder


def test_whoever_comes_before_it_is_loaded_waits_and_is_served(tmp_path: Path) -> None:
    with ConsoleBeside(a_state(tmp_path), 0) as beside:
        found: list[httpx.Response] = []
        early = threading.Thread(
            target=lambda: found.append(
                httpx.get(f"{beside.link.address}/health", trust_env=False, timeout=PATIENCE_S)
            )
        )
        early.start()
        time.sleep(0.2)  # it knocks while nobody is there yet
        beside.open()
        early.join(PATIENCE_S)
        assert found[0].json() == {"status": "ok"}
        address = beside.link.address
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/health", trust_env=False)


def test_a_taken_port_is_refused_or_replaced(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Refused, match="can't listen"):
            ConsoleBeside(tmp_path, port)
        with ConsoleBeside(tmp_path, port, or_another=True) as other:
            assert not other.link.address.endswith(f":{port}")


def test_where_its_packages_are_missing_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "uvicorn" else real(name, *more)
    )
    with pytest.raises(Refused, match=r"needs uvicorn: .*requirements\.txt"):
        ConsoleBeside(tmp_path, 0)


def test_enter_ends_the_wait_and_so_does_nobody_looking(tmp_path: Path) -> None:
    with ConsoleBeside(tmp_path, 0) as beside:
        read, write = os.pipe()
        try:
            linger(beside, idle_s=0.3, most_s=PATIENCE_S, stdin_fd=read)  # nobody has a page open
            os.write(write, b"\n")
            linger(beside, idle_s=PATIENCE_S, most_s=PATIENCE_S, stdin_fd=read)
            linger(beside, idle_s=PATIENCE_S, most_s=0.3, stdin_fd=read)
        finally:
            os.close(read)
            os.close(write)


def test_an_open_page_keeps_it(tmp_path: Path) -> None:
    with ConsoleBeside(a_state(tmp_path), 0) as beside:
        beside.open()
        read, write = os.pipe()
        with owners_client(beside.link, PATIENCE_S) as page:
            assert page.get("/health").status_code == 200
            with page.stream("GET", "/live/overview") as stream:
                assert stream.status_code == 200
                assert beside.watched
                waiting = threading.Thread(
                    target=linger, args=(beside,), kwargs={"idle_s": 0.2, "most_s": 60, "stdin_fd": read}
                )
                waiting.start()
                waiting.join(1.0)
                assert waiting.is_alive(), "somebody looks"
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
        os.close(read)
        os.close(write)


def test_a_pipe_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    assert not person_is_there(read, write)
    os.close(read)
    os.close(write)
    master, slave = os.openpty()
    monkeypatch.delenv("CI", raising=False)
    assert person_is_there(slave, slave)
    monkeypatch.setenv("CI", "true")
    assert not person_is_there(slave, slave), "automation with a terminal of its own"
    os.close(master)
    os.close(slave)


def test_up_serves_the_console_until_it_ends(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*CLI, "up", "--nodes", "1", "--console", "0", "--state", str(tmp_path / "state")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    while not (lines and lines[-1].startswith("console: ")):
        line = process.stdout.readline()
        assert line, "".join(lines)
        lines.append(line)
    link = lines[-1].split()[1]
    page = httpx.get(link, trust_env=False, timeout=PATIENCE_S, follow_redirects=True)
    assert (page.status_code, "node-1" in page.text) == (200, True)
    assert "token" not in str(page.url)
    (kept,) = (tmp_path / "state" / "console").glob("link-*")
    assert kept.read_text() == f"{link}\n"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, out + err
    assert not err
    assert not kept.exists()
