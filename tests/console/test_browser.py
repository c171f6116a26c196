"""The console in a real browser: what a person does, from the first job to a healed one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.console.browsing import AXE, MARKS, WAIT_MS, barriers, closed, opened
from tests.console.helpers import Plane, console, still_state, submitted

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect
pytestmark = MARKS
TRAIN = f"{sys.executable} -m ecs_gpu_recovery.examples.train --steps 120 --step-seconds 0.1"


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Records that do not move, with something of everything in them."""
    with console(still_state(tmp_path_factory.mktemp("still"))) as client:
        submitted(client)
        client.post("/api/nodes/node-4/drain", json={"why": "new cable"})
        yield client


def test_a_job_is_submitted_breaks_and_heals_before_ones_eyes(browser: Browser, plane: Plane) -> None:
    controller, client = plane
    page = opened(browser, client, "/jobs/new")
    page.get_by_label("A short name").fill("seen")
    page.get_by_label("These nodes").check()
    for name in ("node-1", "node-2"):
        page.get_by_role("checkbox", name=re.compile(name)).check()
    page.wait_for_timeout(1000)  # the grid is alive; what was picked stays picked
    page.get_by_label("Automatic restarts").fill("many")
    page.get_by_label("Checkpoint folder").click()
    expect(page.locator("#p-max_retries")).to_contain_text("whole number", timeout=WAIT_MS)
    page.get_by_label("Automatic restarts").fill("1")
    page.get_by_label("Checkpoint folder").click()
    expect(page.locator("#p-max_retries")).to_be_hidden(timeout=WAIT_MS)
    expect(page.get_by_role("checkbox", name=re.compile("node-2"))).to_be_checked()
    page.get_by_label("Command", exact=True).fill(TRAIN)
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#preview")).to_contain_text("NNODES=2", timeout=WAIT_MS)
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile(r"/jobs/seen-"))
    expect(page.locator("#story")).to_contain_text("passed the check before the first start", timeout=WAIT_MS)
    expect(page.locator(".state.now")).to_have_attribute("data-state", "IN_PROGRESS", timeout=WAIT_MS)
    expect(page.locator("#log")).to_contain_text(re.compile(r"step \d+"), timeout=WAIT_MS)
    controller.parts.cluster.inject("node-2", "off-bus")
    expect(page.locator("#story")).to_contain_text("fallen off the bus", timeout=WAIT_MS)
    expect(page.locator("#head")).to_contain_text("Complete", timeout=WAIT_MS)
    expect(page.locator(".edge.taken")).to_have_count(7)
    expect(page.locator("#attempts span.lane")).to_have_count(2)
    expect(page.locator("#attempts .phase.s-REBOOTING")).to_have_count(1)
    expect(page.locator("#story .rule").first).to_contain_text("Rule:")
    expect(page.locator("#facts")).to_contain_text("Resumed at step")
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


def test_a_running_job_is_stopped_after_a_second_look(browser: Browser, plane: Plane) -> None:
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
    assert _background(page) == "rgb(245, 247, 249)"
    page.get_by_role("button", name="Light or dark").click()
    assert _background(page) == "rgb(13, 18, 24)"
    page.get_by_role("link", name="中文").click()
    expect(page.get_by_role("heading", name="节点集群")).to_be_visible()
    assert _background(page) == "rgb(13, 18, 24)"
    page.get_by_role("link", name="English").click()
    expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
    closed(page)


def _background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def _paths(client: httpx.Client) -> list[str]:
    job = client.get("/api/jobs").json()["jobs"][0]["id"]
    return ["/", "/jobs", "/jobs/new", f"/jobs/{job}", "/nodes/node-4", "/alerts", "/nothing"]


def test_nothing_is_wider_than_a_small_phone(browser: Browser, still: httpx.Client) -> None:
    for language in ("en-GB", "zh-CN"):
        page = opened(browser, still, viewport={"width": 360, "height": 740}, locale=language)
        for path in _paths(still)[:-1]:
            page.goto(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        closed(page)


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: npm ci")
@pytest.mark.parametrize("light", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_everybody_can_use_every_page(browser: Browser, still: httpx.Client, light: str) -> None:
    page = opened(browser, still, color_scheme=light)
    for path in _paths(still):
        page.goto(path)
        if path != "/nothing":
            expect(page.locator("#pulse")).not_to_be_empty(timeout=WAIT_MS)
        assert barriers(page) == [], path
    page.context.close()  # the page that is not there is an error to the browser, so its complaints don't count


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: npm ci")
def test_everybody_can_use_the_pages_in_chinese_with_all_parts_open(
    browser: Browser, still: httpx.Client
) -> None:
    page = opened(browser, still, "/jobs/new", locale="zh-CN", color_scheme="dark")
    for group in page.locator("form details").all():
        group.evaluate("part => { part.open = true; }")
    page.get_by_label("指定节点").check()
    page.get_by_role("button", name="预览").click()
    expect(page.locator("#preview")).not_to_be_empty(timeout=WAIT_MS)
    assert barriers(page) == []
    closed(page)


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: npm ci")
def test_everybody_can_use_the_pages_of_a_large_fleet(browser: Browser, tmp_path: Path) -> None:
    with console(still_state(tmp_path, nodes=80)) as client:
        client.post("/api/nodes/node-70/drain", json={"why": "new cable"})
        page = opened(browser, client, viewport={"width": 360, "height": 740})
        assert barriers(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.goto("/jobs/new")
        page.get_by_label("These nodes").check()
        expect(page.get_by_role("list", name="Drained").get_by_role("checkbox")).to_be_disabled()
        page.get_by_role("list", name="Free").get_by_role("checkbox").first.check()
        assert barriers(page) == []
        closed(page)


def test_the_keyboard_is_enough(browser: Browser, still: httpx.Client) -> None:
    page = opened(browser, still)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/jobs/train-"))  # what goes on now comes first
    closed(page)


def test_the_console_comes_back_by_itself_after_a_pause(browser: Browser, tmp_path: Path) -> None:
    state = still_state(tmp_path)
    with console(state) as client:
        page = opened(browser, client)
        expect(page.locator("#pulse")).to_have_text("Live", timeout=WAIT_MS)
        port = client.base_url.port or 0
    expect(page.locator("#pulse")).to_have_text("Reconnecting…", timeout=WAIT_MS)
    expect(page.locator("#fleet")).to_contain_text("node-1")
    with console(state, port=port) as client:
        client.post("/api/nodes/node-1/drain", json={"why": "seen after the pause"})
        expect(page.locator("#pulse")).to_have_text("Live", timeout=WAIT_MS)
        expect(page.locator("#fleet")).to_contain_text("seen after the pause", timeout=WAIT_MS)
        page.context.close()
