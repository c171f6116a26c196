"""The console in a real browser, as different people use it: who may act, who may look, and what they write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.console.browsing import AXE, MARKS, WAIT_MS, barriers, closed, opened
from tests.console.helpers import PASSWORD, USERS, Plane, console, still_state, submitted
from tests.console.test_charts import history

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect
pytestmark = MARKS
COUNTING = """import time
for number in range(200):
    print(f"line {number} of the log", flush=True)
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def guarded_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with console(still_state(tmp_path_factory.mktemp("guarded")), users=USERS) as client:
        yield client


def signed_in(page: Page, name: str) -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()


def test_a_viewer_looks_and_cannot_act(browser: Browser, guarded_state: httpx.Client) -> None:
    page = opened(browser, guarded_state, "/alerts")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    signed_in(page, "vic")
    page.wait_for_url(re.compile("/alerts$"))
    expect(page.get_by_role("link", name="New job")).to_have_count(0)
    page.goto("/jobs/new")
    expect(page.get_by_text("an operator may submit jobs")).to_be_visible()
    expect(page.locator("form#job-form")).to_have_count(0)
    page.complaints.clear()  # type: ignore[attr-defined]  # the browser's own, about the answer 403
    page.goto("/nodes/node-1")
    expect(page.get_by_role("heading", name="node-1")).to_be_visible()
    expect(page.get_by_role("button", name="Do it")).to_have_count(0)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    closed(page)


def test_an_operator_drains_and_releases_under_their_own_name(
    browser: Browser, guarded_state: httpx.Client
) -> None:
    page = opened(browser, guarded_state, "/nodes/node-2")
    signed_in(page, "olga")
    page.wait_for_url(re.compile("/nodes/node-2$"))
    page.locator("input[value='drain']").check()
    page.get_by_label("Reason").fill("new cable")
    page.get_by_role("button", name="Do it").click()
    expect(page.locator("#node")).to_contain_text("olga: new cable", timeout=WAIT_MS)
    expect(page.locator("#title .badge")).to_contain_text("Drained")
    page.get_by_label("Release").check()
    page.get_by_label("Reason").fill("cable changed")
    page.get_by_role("button", name="Do it").click()
    expect(page.locator("#title .badge")).to_contain_text("Free", timeout=WAIT_MS)
    expect(page.locator("#node")).not_to_contain_text("new cable")
    expect(page.locator("#deeds")).to_contain_text("cable changed", timeout=WAIT_MS)
    page.goto("/alerts")
    expect(page.locator("#audit")).to_contain_text("cable changed")
    expect(page.locator("#audit")).to_contain_text("olga")
    closed(page)


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: npm ci")
@pytest.mark.parametrize("light", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_everybody_can_sign_in(browser: Browser, guarded_state: httpx.Client, light: str) -> None:
    page = opened(
        browser, guarded_state, "/signin", color_scheme=light, viewport={"width": 360, "height": 740}
    )
    assert barriers(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_label("Name").fill("vic")
    page.get_by_label("Password").fill("not this one")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("wrong", timeout=WAIT_MS)
    assert barriers(page) == []
    page.context.close()  # a refusal is an error to the browser, so its complaints don't count


def test_a_script_is_written_in_the_browser_and_its_log_followed_to_the_end(
    browser: Browser, plane: Plane
) -> None:
    _, client = plane
    page = opened(browser, client, "/jobs/new")
    page.get_by_label("A short name").fill("written")
    page.get_by_label("How many").fill("1")
    page.get_by_role("radio", name="A script").check()
    page.locator("#template-script").select_option(label="Small training loop, no packages needed")
    assert "CHECKPOINT_DIR" in page.locator("#f-script_text").input_value()
    page.locator("#f-script_text").fill(COUNTING)
    page.locator("#f-check").select_option("none")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile(r"/jobs/written-"))
    log = page.locator("#log")
    expect(log).to_contain_text("line 3 of the log", timeout=WAIT_MS)
    expect(log).to_contain_text("line 40 of the log", timeout=WAIT_MS)
    assert page.evaluate(
        "(l => l.scrollTop + l.clientHeight >= l.scrollHeight - 60)(document.getElementById('log'))"
    )
    page.get_by_label("Follow").uncheck()
    log.evaluate("log => { log.scrollTop = 0; }")
    expect(log).to_contain_text("line 80 of the log", timeout=WAIT_MS)
    assert page.evaluate("document.getElementById('log').scrollTop") == 0, "whoever reads is left alone"
    expect(page.locator("#head")).to_contain_text("Complete", timeout=WAIT_MS)
    expect(log).to_contain_text("line 199 of the log", timeout=WAIT_MS)
    numbers = re.findall(r"line (\d+) of", log.text_content() or "")
    assert numbers == [str(number) for number in range(200)], "every line once, in order"
    with page.expect_download() as fetched:
        page.get_by_role("link", name="Download").click()
    assert Path(fetched.value.path()).read_text().count("of the log") == 200
    closed(page)


def test_the_charts_of_a_node_show_its_gpus(browser: Browser, tmp_path: Path) -> None:
    state = still_state(tmp_path)
    history(state)
    with console(state) as client:
        job = submitted(client)["id"]
        page = opened(browser, client, "/nodes/node-2", color_scheme="dark")
        chart = page.get_by_role("img", name=re.compile(r"GPU utilisation \(%\): GPU 0 20"))
        expect(chart.locator("canvas")).to_be_visible(timeout=WAIT_MS)
        page.goto(f"/jobs/{job}")
        expect(page.get_by_role("img", name=re.compile("GPU utilisation .*node-1"))).to_be_visible()
        closed(page)
