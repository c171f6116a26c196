"""The console in a real browser: what a person does, from the first job to a healed one."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from ecs_gpu_recovery.local.controller import Controller
from tests.console.helpers import PASSWORD, USERS, console, control_plane, eventually, still_state, submitted

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome") or ""
AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
WAIT_MS = 60_000
pytestmark = [
    pytest.mark.browser,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium found: install one, or set CHROMIUM to its path"),
    # A browser that is closed while a stream is open leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TRAIN = f"{sys.executable} -m ecs_gpu_recovery.examples.train --steps 120 --step-seconds 0.03"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_api.sync_playwright() as driver:
        found = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield found
        found.close()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Controller, httpx.Client]]:
    state = tmp_path_factory.mktemp("state")
    with control_plane(state, nodes=3) as controller, console(state) as client:
        yield controller, client


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Records that do not move, with something of everything in them."""
    with console(still_state(tmp_path_factory.mktemp("still"))) as client:
        submitted(client)
        client.post("/api/nodes/node-4/drain", json={"why": "new cable"})
        yield client


def opened(browser: Browser, client: httpx.Client, path: str = "/", **options: Any) -> Page:
    """A page that complains about every error of its scripts and every breach of its policy."""
    context = browser.new_context(base_url=str(client.base_url), reduced_motion="reduce", **options)
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.complaints = []  # type: ignore[attr-defined]
    page.on("pageerror", lambda error: page.complaints.append(str(error)))  # type: ignore[attr-defined]
    page.on("console", lambda said: page.complaints.append(said.text) if said.type == "error" else None)  # type: ignore[attr-defined]
    page.goto(path)
    return page


def closed(page: Page) -> None:
    complaints = page.complaints  # type: ignore[attr-defined]
    page.context.close()
    assert complaints == []


def test_a_job_is_submitted_breaks_and_heals_before_ones_eyes(
    browser: Browser, plane: tuple[Controller, httpx.Client]
) -> None:
    controller, client = plane
    page = opened(browser, client, "/jobs/new")
    page.get_by_label("A short name").fill("seen")
    page.get_by_label("These nodes").check()
    for name in ("node-1", "node-2"):
        page.get_by_role("checkbox", name=re.compile(name)).check()
    page.wait_for_timeout(1000)  # the grid is alive; what was picked stays picked
    expect(page.get_by_role("checkbox", name=re.compile("node-2"))).to_be_checked()
    page.get_by_label("Command", exact=True).fill(TRAIN)
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#preview")).to_contain_text("NNODES=2", timeout=WAIT_MS)
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile(r"/jobs/seen-"))
    expect(page.locator("#preflight")).to_contain_text("node-2", timeout=WAIT_MS)
    expect(page.locator(".state.now")).to_have_attribute("data-state", "IN_PROGRESS", timeout=WAIT_MS)
    expect(page.locator("#log")).to_contain_text(re.compile(r"step \d+"), timeout=WAIT_MS)
    controller.parts.cluster.inject("node-2", "off-bus")
    expect(page.locator("#story")).to_contain_text("fallen off the bus", timeout=WAIT_MS)
    expect(page.locator("#head")).to_contain_text("Complete", timeout=WAIT_MS)
    expect(page.locator(".edge.taken")).to_have_count(7)
    expect(page.locator("#log")).to_contain_text("step 120", timeout=WAIT_MS)
    expect(page.locator("#log-pick option")).to_have_count(4)
    text = page.locator("#log").text_content() or ""
    steps = re.findall(r"step (\d+)/", text)
    assert len(steps) == len(set(steps)), "a line came twice"
    page.get_by_label("Search in this log").fill("step 120")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator("#log-hits mark").first).to_have_text("step 120", timeout=WAIT_MS)
    expect(page.locator("#chart canvas")).to_be_visible()
    expect(page.get_by_role("button", name="Run again")).to_be_visible()
    closed(page)


def test_a_node_is_drained_and_released(browser: Browser, plane: tuple[Controller, httpx.Client]) -> None:
    _, client = plane
    page = opened(browser, client, "/nodes/node-3")
    page.get_by_label("Drain").check()
    page.get_by_label("Reason").fill("new cable")
    page.get_by_role("button", name="Do it").click()
    expect(page.locator("#node")).to_contain_text("new cable", timeout=WAIT_MS)
    page.get_by_label("Release").check()
    page.get_by_label("Reason").fill("cable changed")
    page.get_by_role("button", name="Do it").click()
    expect(page.locator("#node")).not_to_contain_text("new cable", timeout=WAIT_MS)
    expect(page.locator("#deeds")).to_contain_text("cable changed", timeout=WAIT_MS)
    closed(page)


def test_a_running_job_is_stopped_after_a_second_look(
    browser: Browser, plane: tuple[Controller, httpx.Client]
) -> None:
    _, client = plane
    job = submitted(client, steps=2000, any_nodes=1, check="none")
    page = opened(browser, client, f"/jobs/{job['id']}")
    page.get_by_text("Stop the job").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Stop it")).to_be_hidden()
    page.get_by_text("Stop the job").click()
    page.get_by_label("Reason").fill("enough")
    page.get_by_role("button", name="Stop it").click()
    expect(page.locator("#head")).to_contain_text("Stopped", timeout=WAIT_MS)
    closed(page)


def test_a_page_changes_by_itself_and_comes_back_after_a_pause(browser: Browser, still: httpx.Client) -> None:
    page = opened(browser, still)
    expect(page.locator("#pulse")).to_have_text("Live", timeout=WAIT_MS)
    still.post("/api/nodes/node-3/drain", json={"why": "heard live"})
    expect(page.locator("#fleet")).to_contain_text("heard live", timeout=WAIT_MS)
    still.post("/api/nodes/node-3/release", json={"why": "done"})
    expect(page.locator("#fleet")).not_to_contain_text("heard live", timeout=WAIT_MS)
    closed(page)


def test_both_languages_and_both_lights_are_a_click_away(browser: Browser, still: httpx.Client) -> None:
    page = opened(browser, still, color_scheme="light", locale="en-GB")
    assert _background(page) == "rgb(243, 245, 247)"
    page.get_by_role("button", name="Light or dark").click()
    assert _background(page) == "rgb(15, 21, 27)"
    page.get_by_role("link", name="中文").click()
    expect(page.get_by_role("heading", name="节点集群")).to_be_visible()
    assert _background(page) == "rgb(15, 21, 27)"
    page.get_by_role("link", name="English").click()
    expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
    closed(page)


def _background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def _paths(client: httpx.Client) -> list[str]:
    job = client.get("/api/jobs").json()["jobs"][0]["id"]
    return ["/", "/jobs", "/jobs/new", f"/jobs/{job}", "/nodes/node-4", "/alerts"]


def test_nothing_is_wider_than_a_small_phone(browser: Browser, still: httpx.Client) -> None:
    page = opened(browser, still, viewport={"width": 360, "height": 740})
    for path in _paths(still):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
    closed(page)


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: npm ci")
@pytest.mark.parametrize("light", ["light", "dark"])
def test_everybody_can_use_every_page(browser: Browser, still: httpx.Client, light: str) -> None:
    page = opened(browser, still, color_scheme=light)
    axe = AXE.read_text()
    for path in _paths(still):
        page.goto(path)
        expect(page.locator("#pulse")).not_to_be_empty(timeout=WAIT_MS)
        page.evaluate(axe)
        found = page.evaluate(
            "axe.run().then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.html.slice(0, 160))]))"
        )
        assert found == [], path
    closed(page)


def test_the_keyboard_is_enough(browser: Browser, still: httpx.Client) -> None:
    page = opened(browser, still)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/nodes/node-1"))
    closed(page)


def test_one_signs_in_and_out(browser: Browser, tmp_path: Path) -> None:
    with console(still_state(tmp_path), users=USERS) as client:
        page = opened(browser, client, "/alerts")
        page.get_by_label("Name").fill("vic")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(re.compile("/alerts$"))
        expect(page.get_by_role("link", name="New job")).to_have_count(0)
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        eventually(lambda: "/signin" in page.url, "the sign-in page")
        closed(page)
