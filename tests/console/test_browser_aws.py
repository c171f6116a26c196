"""The console on AWS in a real browser, over the local AWS with the stack deployed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from ecs_gpu_recovery.control.aws_backend import AwsBackend
from ecs_gpu_recovery.health.watch.node_metrics import line
from testbed.aws.deployment import People
from tests.aws.test_node_numbers import OverHttp
from tests.console.browsing import MARKS, WAIT_MS, closed, opened
from tests.console.containers import Containers, containers
from tests.console.helpers import served
from tests.infra.deployed import deployed, strict_aws

if TYPE_CHECKING:
    from playwright.sync_api import Browser

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect
pytestmark = [*MARKS, pytest.mark.ministack, pytest.mark.slow]
NODES, LOG_GROUP = ("rack-1", "rack-2"), "/gpu/train"
#: The second rank of the first attempt dies; the first goes on until it is stopped.
SCRIPT = """import os, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["JOB_ATTEMPT"])
for step in range(20):
    print(f"rank {rank} of attempt {attempt}, step {step}", flush=True)
    if attempt == 0 and rank == 1 and step == 10:
        sys.exit(1)
    time.sleep(600 if attempt == 0 and step == 15 else 0.05)
"""


@pytest.fixture(scope="module")
def people(ministack_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    settings = {"ADMISSION_CHECK": "false", "TRAINING_LOG_GROUPS": LOG_GROUP}
    with strict_aws(ministack_python) as server:
        stack = deployed(server, tmp_path_factory.mktemp("aws"), settings)
        server.client("logs").create_log_group(logGroupName=LOG_GROUP)
        made = People(stack)
        made.add_nodes(NODES)
        yield made


@pytest.fixture(scope="module")
def client(people: People, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A console on a person's own machine, which finds the deployment by itself."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in people.stack.environment.items():
            if name.startswith("AWS_"):
                patch.setenv(name, value)
        with served(AwsBackend, tmp_path_factory.mktemp("console"), tick_s=0.5) as made:
            yield made


@pytest.fixture(scope="module")
def running(people: People, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    with containers(people.stack, tmp_path_factory.mktemp("containers")) as made:
        yield made


def tell_numbers(people: People) -> None:
    """As the watch on each node does; both hosts have one name."""
    told = OverHttp(people.server.client("cloudwatch"))
    for number, name in enumerate(NODES):
        found = people.side.store.node(name)
        place = {"cluster": found.cluster, "containerInstanceArn": found.instance}
        values = {"Memory": 40.0, "GpuUtilization": 70.0 + number, "GpuPower": 300.0, "Cpu": 9.0}
        told.add(line(place, "localhost", [], values, time.time()))


def test_a_script_from_the_form_runs_breaks_and_heals_with_logs_charts_and_evidence(
    browser: Browser, people: People, client: httpx.Client, running: Containers
) -> None:
    tell_numbers(people)
    page = opened(browser, client, "/jobs/new")
    page.get_by_label("A short name").fill("written")
    page.get_by_label("These nodes").check()
    for name in NODES:
        page.get_by_role("checkbox", name=re.compile(name)).check()
    page.get_by_role("radio", name="A script").check()
    page.locator("#f-script_text").fill(SCRIPT)
    page.locator("#f-image").fill("train:1")
    page.locator("#f-log_group").fill(LOG_GROUP)
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile(r"/jobs/written-"))
    expect(page.locator("#story")).to_contain_text("passed the check before the first start", timeout=WAIT_MS)
    people.server.control("health", node=NODES[1], verdict=1)
    tell_numbers(people)
    expect(page.locator("#log")).to_contain_text(re.compile(r"rank \d of attempt 0, step 3"), timeout=WAIT_MS)
    expect(page.locator("#story")).to_contain_text("Xid 79", timeout=WAIT_MS)
    expect(page.locator("#head")).to_contain_text("Complete", timeout=2 * WAIT_MS)
    expect(page.locator("#log-pick option")).to_have_count(4)
    expect(page.locator("#log")).to_contain_text("of attempt 1, step 19", timeout=WAIT_MS)
    chart = page.get_by_role("img", name=re.compile("GPU utilisation .*rack-1"))
    expect(chart.locator("canvas")).to_be_visible(timeout=WAIT_MS)
    page.goto(f"/nodes/{NODES[1]}")
    own = page.get_by_role("img", name=re.compile(r"GPU utilisation \(%\): rack-2 71"))
    expect(own.locator("canvas")).to_be_visible(timeout=WAIT_MS)
    with page.expect_download() as fetched:
        page.locator("#kept a").first.click()
    assert Path(fetched.value.path()).read_bytes() == b"what a host kept"
    closed(page)
