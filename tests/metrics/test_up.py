"""`gpu-recovery up --metrics-port`: a real control plane, scraped while it heals a job."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ecs_gpu_recovery.local.cluster import Cluster
from ecs_gpu_recovery.metrics.series import read_series
from tests.metrics.exposition import Family, parse

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "ecs_gpu_recovery.main", *words]


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """The state folder and the address of the page."""
    state = tmp_path / "state"
    words = command(
        "up", "--state", str(state), "--nodes", "2", "--boot-seconds", "0.2", "--metrics-port", "0"
    )
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        told = (re.search(r"http://127\.0\.0\.1:\d+/metrics", line) for line in process.stdout)
        address = next((found[0] for found in told if found), "")
        assert address, "it ended without telling where its metrics are"
        yield state, address
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        Cluster(state).shutdown()  # its nodes and their tasks are meant to outlive it


def scrape(url: str) -> dict[str, Family]:
    with urllib.request.urlopen(url, timeout=30) as reply:
        return parse(reply.read().decode())


def wait_for(url: str, name: str, labels: dict[str, str], least: float) -> dict[str, Family]:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        page = scrape(url)
        family = page.get(f"gpu_recovery_{name}")
        for have, value in (family.samples if family else {}).items():
            if labels.items() <= dict(have).items() and value >= least:
                return page
        assert time.monotonic() < deadline, f"never came true: {name} {labels} >= {least}"
        time.sleep(0.5)


@pytest.mark.slow
def test_a_scraper_watches_a_job_lose_a_gpu_and_heal(plane: tuple[Path, str], tmp_path: Path) -> None:
    state, url = plane
    wait_for(url, "nodes", {"status": "AVAILABLE"}, 2)
    train = ["python", "-m", "ecs_gpu_recovery.examples.train", "--steps", "100000", "--step-seconds", "0.05"]
    submit = command(
        "submit", "--state", str(state), "--any", "2", "--workdir", str(ROOT), "--checkpoint-dir"
    )
    subprocess.run([*submit, str(tmp_path / "checkpoints"), "--", *train], cwd=ROOT, check=True, timeout=60)
    wait_for(url, "job_step", {}, 10)
    Cluster(state).inject("node-2", "ecc", gpu=1)
    page = wait_for(url, "job_attempt", {}, 1)
    assert page["gpu_recovery_job_restarts_total"].samples == {(): 1}
    page = wait_for(url, "node_reboots_total", {"node": "node-2"}, 1)
    xids = page["gpu_recovery_gpu_xid_errors_total"].samples
    assert xids == {(("node", "node-2"), ("gpu", "1"), ("xid", "48")): 1}
    page = wait_for(url, "jobs", {"status": "IN_PROGRESS"}, 1)
    assert page["gpu_recovery_sweeps_total"].samples[()] > 0
    assert "gpu_recovery_sample_failures_total" not in page
    assert read_series(state / "metrics.db", "gpu_recovery_job_step")
