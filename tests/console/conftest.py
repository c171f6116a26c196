"""These tests talk to a console over HTTP; what they start, they end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

if not sys.platform.startswith("linux"):
    pytest.skip("the embedded cluster supervises processes through Linux's /proc", allow_module_level=True)
pytest.importorskip("fastapi", reason="the console needs the extra [console]")

from tests.console.browsing import CHROMIUM, WAIT_MS
from tests.console.helpers import USERS, Plane, console, control_plane, still_state
from tools.browser import FLAGS

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    """A console without authentication, on records that do not move."""
    with console(still_state(tmp_path)) as found:
        yield found


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[httpx.Client]:
    """A console that asks who is there."""
    with console(still_state(tmp_path), users=USERS) as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """The same for tests that leave nothing behind that another would notice."""
    with console(still_state(tmp_path_factory.mktemp("shared"))) as found:
        yield found


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A control plane that runs, with two nodes, and a console of it."""
    state = tmp_path_factory.mktemp("state")
    with control_plane(state) as controller, console(state) as client:
        yield controller, client


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for each file: as long as it runs, nothing else of its thread can use asyncio."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    sync_api.expect.set_options(timeout=WAIT_MS)
    with sync_api.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        yield found
        found.close()
