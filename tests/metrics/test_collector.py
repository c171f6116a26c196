from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ecs_gpu_recovery.health.sources import probe
from ecs_gpu_recovery.health.sources.probe import Probe
from ecs_gpu_recovery.local.controller import Controller, Looks
from ecs_gpu_recovery.local.processes import python_module
from ecs_gpu_recovery.metrics.collector import Collector
from ecs_gpu_recovery.metrics.gpus import RealGpus, XidCount
from ecs_gpu_recovery.metrics.records import ProgressTail
from ecs_gpu_recovery.metrics.sample import Sample
from ecs_gpu_recovery.metrics.series import read_series
from ecs_gpu_recovery.progress import Steps, progress
from tests.local.helpers import eventually

PATIENCE_S = 60.0


def ready(controller: Controller) -> None:
    def connected() -> bool:
        controller.step()
        return all(view.connected for view in controller.parts.cluster.nodes())

    eventually(connected, "the nodes are ready")
    controller.step()


def value(sample: Sample, name: str, **labels: str) -> float:
    found = sample.get(name, **labels)
    assert found is not None, (name, labels)
    return found


def test_a_sample_tells_of_the_machine_the_nodes_and_the_control_plane(controller: Controller) -> None:
    ready(controller)
    collector = Collector(controller.parts, controller.looks)
    collector.sample()
    sample = collector.sample()
    names = {name for name, _ in sample.values}
    assert not collector._failures
    assert value(sample, "nodes", status="AVAILABLE") == 2
    assert value(sample, "node_connected", node="node-1") == 1
    assert value(sample, "node_memory_bytes", node="node-2") > 1e6
    assert value(sample, "node_cpu_cores", node="node-2") >= 0
    assert value(sample, "gpu_memory_total_bytes", node="node-1", gpu="1") > 1e9
    assert value(sample, "sweeps_total") == controller.looks.count > 0
    assert {"gpu_recovery_host_cpu_ratio", "gpu_recovery_host_network_sent_bytes_total"} <= names


def test_a_broken_gpu_shows(controller: Controller) -> None:
    ready(controller)
    collector = Collector(controller.parts, controller.looks)
    assert value(collector.sample(), "gpu_action_wanted", node="node-1", gpu="1") == 0
    controller.parts.cluster.inject("node-1", "off-bus", gpu=1)
    controller.parts.cluster.inject("node-2", "app-xid", gpu=0)
    controller.parts.cluster.inject("node-2", "app-xid", gpu=0)
    sample = collector.sample()
    eventually(lambda: collector.sample().get("gpu_present", node="node-1", gpu="1") == 0, "it is gone")
    assert value(sample, "gpu_action_wanted", node="node-1", gpu="1") == 1
    assert value(sample, "gpu_xid_errors_total", node="node-1", gpu="1", xid="79") == 1
    assert value(sample, "gpu_xid_errors_total", node="node-2", gpu="0", xid="31") == 2
    assert value(sample, "gpu_present", node="node-2", gpu="0") == 1


def test_the_thread_keeps_a_history_and_ends_when_told(controller: Controller) -> None:
    with Collector(controller.parts, controller.looks, interval_s=0.1) as collector:
        eventually(lambda: read_series(collector.path, "gpu_recovery_nodes"), "a sample is kept")
        assert collector.latest is not None
    assert not collector._thread.is_alive()


def test_a_disk_that_fails_is_told_once_and_stops_nothing(
    controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    (controller.parts.state / "metrics.db").mkdir()  # no file can be there
    with (
        caplog.at_level(logging.WARNING, "ecs_gpu_recovery"),
        Collector(controller.parts, controller.looks, interval_s=0.1) as collector,
    ):
        eventually(lambda: collector._failures.get("store", 0) > 3, "it has tried again and again")
        assert collector.latest is not None
        assert value(collector.latest, "nodes", status="REBOOTING") == 0
        controller.step()
    told = [record for record in caplog.records if record.getMessage() == "metrics left out"]
    assert len(told) == 1


def test_one_part_that_fails_leaves_the_others_alone(controller: Controller) -> None:
    ready(controller)
    folder = controller.parts.state / "nodes" / "node-1"
    (folder / "gpus.json").write_text("{broken")
    sample = Collector(controller.parts, controller.looks).sample()
    assert value(sample, "sample_failures_total", part="gpus") == 1
    assert value(sample, "nodes", status="AVAILABLE") == 2


def test_the_slowest_look_is_told_once() -> None:
    looks = Looks()
    looks.add(0.5)
    looks.add(0.1)
    assert (looks.count, looks.seconds) == (2, 0.6)
    assert [looks.take_slowest(), looks.take_slowest()] == [0.5, 0.0]


def test_progress_is_read_on_as_it_grows_with_the_numbers_of_the_report(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    start = datetime(2026, 11, 15, tzinfo=UTC)
    lines = []
    for at, (attempt, step) in enumerate([(0, n) for n in range(1, 41)] + [(1, n) for n in range(31, 81)]):
        moment = (start + timedelta(seconds=2 * at)).isoformat()
        lines.append(json.dumps({"attempt": attempt, "step": step, "at": moment, "loss": 1 / step}))
    lines.insert(20, '{"torn": ')
    tail = ProgressTail(path)
    assert tail.read().steps == 0
    text = "\n".join(lines) + "\n"
    for cut in (100, 1000, len(text) // 2, len(text)):
        path.write_text(text[:cut])
        done = tail.read()
    whole = progress(Steps.of(lines))
    assert (done.steps, done.loss, done.lost_steps, done.step_s) == (
        whole.steps,
        whole.loss,
        whole.lost_steps,
        whole.step_s,
    )
    path.write_text(lines[0] + "\n")
    assert tail.read().steps == 1, "a file that was begun anew is read anew"


def test_xids_are_counted_once_each_however_the_log_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    line = "2026-11-15T02:00:00+00:00 kernel: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n"
    text = line * 5 + "kernel: something else\n"
    log = XidCount(tmp_path)
    log.read()
    for cut in range(0, len(text) + 40, 37):
        path.write_text(text[:cut])
        log.read()
    assert log.counts == {("0000:01:00", 79): 5}
    path.write_text(text + line)
    path.rename(tmp_path / "kmsg.an-old-boot")
    path.write_text(line)
    log.read()
    assert log.counts == {("0000:01:00", 79): 7}, "what came just before a reboot counts too"
    inode = (tmp_path / "kmsg.an-old-boot").stat().st_ino
    (tmp_path / "kmsg.an-old-boot").unlink()
    log.read()
    assert inode not in log._read_to, "a log that takes over its inode is read from the beginning"


#: One round, as the reader prints it.
SPEAK = (
    "print(json.dumps({'sample': {'gpus': [], 'xids': []}}), json.dumps({'round': 1}), sep='\\n', flush=True)"
)


def _child(body: str) -> list[str]:
    return [sys.executable, "-c", f"import sys, time, json\n{body}"]


def test_real_gpus_are_told_by_a_child() -> None:
    reader = RealGpus(_child(f"{SPEAK}; time.sleep(600)"))
    try:
        eventually(lambda: reader.newest() is not None, "the child has spoken")
        assert reader.newest() == {"gpus": [], "xids": []}
        assert reader.answers
    finally:
        reader.close()


def test_a_driver_that_hangs_is_news_and_the_reader_is_started_anew(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    body = f"open({str(starts)!r}, 'a').write('x'); {SPEAK}; time.sleep(600)"
    reader = RealGpus(_child(body), silent_s=1.0)
    try:
        eventually(lambda: reader.newest() is not None, "it spoke")
        eventually(lambda: reader.newest() is None, "it fell silent")
        eventually(lambda: (reader.newest(), starts.read_text() == "xx")[1], "another was started")
    finally:
        reader.close()


def test_the_reader_of_the_driver_ends_when_nobody_listens() -> None:
    argv = python_module("ecs_gpu_recovery.metrics.driver", "0.05", packages=True)
    child = probe.start(Probe(name="driver", deadline_s=PATIENCE_S, work=argv))
    try:
        eventually(lambda: "round" in str(probe.take(child)[0]), "it speaks")
    finally:
        os.close(child.pipe)
    eventually(lambda: probe.ended(child), "it has ended")
