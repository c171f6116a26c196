"""A real browser for the tests, and what every page must stand: no error, no breach of its policy, open to all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.console.helpers import link_of
from tools.browser import find

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = find()
AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
#: Generous: the machine may be busy with seven other things.
WAIT_MS = 90_000
MARKS = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium found: python -m tools.browser"),
    # A browser that is closed while a stream is open leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def opened(browser: Browser, client: httpx.Client, path: str = "/", **options: Any) -> Page:
    """A page that complains about every error of its scripts and every breach of its policy."""
    context = browser.new_context(base_url=str(client.base_url), reduced_motion="reduce", **options)
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.complaints = []  # type: ignore[attr-defined]
    page.on("pageerror", lambda error: page.complaints.append(str(error)))  # type: ignore[attr-defined]
    page.on("console", lambda said: page.complaints.append(said.text) if said.type == "error" else None)  # type: ignore[attr-defined]
    page.goto(link_of(client).page(path))
    return page


def closed(page: Page) -> None:
    complaints = page.complaints  # type: ignore[attr-defined]
    page.context.close()
    assert complaints == []


def barriers(page: Page) -> list[Any]:
    """What keeps somebody out, by axe-core's rules; empty for a page that everybody can use."""
    page.evaluate(AXE.read_text())
    found: list[Any] = page.evaluate(
        "axe.run().then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.html.slice(0, 160))]))"
    )
    return found
