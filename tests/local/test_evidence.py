"""What is kept of an embedded node before its reboot, which would wipe it, and of a hang."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.errors import ClusterRefused
from ecs_gpu_recovery.core.model import Job
from ecs_gpu_recovery.core.witness import Named
from ecs_gpu_recovery.environment import DUMP, PIPE
from ecs_gpu_recovery.local import evidence
from ecs_gpu_recovery.local.cluster import Cluster
from ecs_gpu_recovery.local.files import write_json
from ecs_gpu_recovery.local.fleet import LocalFleet, environment
from tests.core.story import T0, a_running_job
from tests.health.test_ras import Server

KEY = "job/with: odd name/1/0/reboot"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(tmp_path)
    made.create("n1", gpus_expected=2)
    folder = tmp_path / "nodes" / "n1"
    (folder / "kmsg").write_text("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n")
    task = folder / "tasks" / "gr-1"
    task.mkdir()
    (task / "report.json").write_text('{"verdict": "reboot"}')
    (task / "log").write_text("x" * (5 << 20) + "the last line\n")
    return made


def kept(state: Path, key: str = KEY) -> dict[str, bytes]:
    with tarfile.open(state / evidence.FOLDER / "n1" / keys.evidence(key)) as archive:
        return {m.name: found.read() for m in archive if (found := archive.extractfile(m)) is not None}


def test_the_kernel_log_the_gpus_and_the_last_reports_and_logs_are_kept(
    cluster: Cluster, tmp_path: Path
) -> None:
    evidence.keep(cluster.node("n1"), KEY)
    files = kept(tmp_path)
    assert b"Xid" in files["kernel.log"]
    assert {"gpus.json", "tasks/gr-1/report.json"} <= set(files)
    assert files["tasks/gr-1/log"].endswith(b"the last line\n")
    assert len(files["tasks/gr-1/log"]) == 4 << 20, "of each file only the end"


def test_where_a_rank_that_hangs_stands_goes_into_the_archive(cluster: Cluster, tmp_path: Path) -> None:
    task = tmp_path / "nodes" / "n1" / "tasks" / "gr-1"
    evidence.keep_stacks(task)
    assert not (task / evidence.STACKS).exists(), "no process of it is known"
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as rank:
        (task / "running.json").write_text(json.dumps({"pid": rank.pid}))
        evidence.keep_stacks(task)
        rank.kill()
    evidence.keep(cluster.node("n1"), KEY)
    assert str(rank.pid).encode() in kept(tmp_path)["tasks/gr-1/stacks.txt"]


def a_gang(made: Cluster, *names: str, kind: str = "simulated") -> Job:
    """A job that runs on these nodes, with the folders of its tasks."""
    job = a_running_job(nodes=len(names)).job
    job = replace(
        job, ranks=tuple(replace(rank, node=name) for rank, name in zip(job.ranks, names, strict=True))
    )
    for rank in job.ranks:
        made.create(rank.node, gpus_expected=2, kind=kind)
        task = made.node(rank.node).folder / "tasks" / rank.task_id
        task.mkdir()
        write_json(str(task / "spec.json"), {"kind": "train", "task_id": task.name, "job": job.id})
    return job


def of_hang(state: Path, job: Job, *, last: bool) -> dict[str, bytes]:
    """What was kept of it on n1, without the folders of tasks."""
    found = kept(state, keys.hang_look(job.id, job.attempt, "n1", last=last))
    return {Path(name).name: data for name, data in found.items()}


def test_what_the_nccl_of_a_rank_says_is_kept_once_and_names_the_process(tmp_path: Path) -> None:
    """On a machine with GPUs of its own, whose one rank is a launcher of several processes."""
    said = (Path(__file__).parents[1] / "health" / "ras" / "asleep.json").read_text()
    nccl = Server("SERVER PROTOCOL 2", said)
    made = Cluster(tmp_path)
    job = a_gang(made, "n1", kind="real")
    job = replace(job, spec=replace(job.spec, env={"NCCL_RAS_ADDR": nccl.address}))
    fleet = LocalFleet(made, lambda: T0)
    assert fleet.waited_for(job, job.ranks, T0) is None, "nobody was asked yet"
    for _ in range(2):  # it listens once
        fleet.keep_hang(job, job.ranks, last=False)
    assert of_hang(tmp_path, job, last=False)[evidence.RAS].decode() == said, "for who asks for evidence"
    assert fleet.waited_for(job, job.ranks, T0) == Named(
        odd=(), what="NCCL: rank 1 (process 636 on 127.0.0.1) is 8 collectives behind"
    )
    assert fleet.waited_for(job, job.ranks, datetime.now(UTC) + timedelta(hours=1)) is None, "of another hang"
    fleet.keep_hang(job, job.ranks, last=True)
    assert evidence.RAS not in of_hang(tmp_path, job, last=True), "nobody has answered the last time"
    assert fleet.waited_for(job, job.ranks, T0) is None


RANK = """
import os, sys, time
pipe, dump = (os.environ[f"TORCH_NCCL_DEBUG_INFO_{name}_FILE"] for name in ("PIPE", "TEMP"))
os.mkfifo(f"{pipe}0.pipe")
reading = os.open(f"{pipe}0.pipe", os.O_RDONLY | os.O_NONBLOCK)
print("ready", flush=True)
for collectives in ("the last", "newer"):
    while not os.read(reading, 128):
        time.sleep(0.05)
    time.sleep(0.5)  # it takes its time
    with open(f"{dump}0", "w") as file:
        file.write(f"{collectives} collectives")
time.sleep(600)
"""
"""What PyTorch does with the pipe that it is told of."""


def test_the_last_collectives_of_a_rank_are_asked_for_and_kept_with_each_look(tmp_path: Path) -> None:
    """The attempt goes on after the first one, and hangs again."""
    made = Cluster(tmp_path)
    job = a_gang(made, "n1")
    task = made.node("n1").folder / "tasks" / job.ranks[0].task_id
    os.mkfifo(task / f"{PIPE}7.pipe")  # whose process has ended
    os.mkfifo(task / f"{DUMP}7")  # which is no dump
    told = {**os.environ, **environment(job, job.ranks[0], str(task))}
    with subprocess.Popen([sys.executable, "-c", RANK], env=told, stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"ready\n"
        for last in (False, False, True):  # the first is told twice
            LocalFleet(made, lambda: T0).keep_hang(job, job.ranks, last=last)
        rank.kill()
    for last, collectives in ((False, b"the last collectives"), (True, b"newer collectives")):
        recorded = {name: data for name, data in of_hang(tmp_path, job, last=last).items() if DUMP in name}
        assert recorded == {f"{DUMP}0": collectives}


def test_a_node_that_does_not_answer_costs_only_its_own_evidence_of_a_hang(tmp_path: Path) -> None:
    made = Cluster(tmp_path)
    job = a_gang(made, "n0", "n1")
    shutil.rmtree(made.node("n0").folder)
    with pytest.raises(ClusterRefused, match="n0"):
        LocalFleet(made, lambda: T0).keep_hang(job, job.ranks, last=False)
    assert "gpus.json" in of_hang(tmp_path, job, last=False)


def test_a_rank_without_an_nccl_costs_only_its_own_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    evidence.keep_ras(tmp_path, "localhost:1")
    assert not list(tmp_path.iterdir())
    assert "was not heard" in capfd.readouterr().err


def test_an_order_that_is_sent_twice_keeps_the_first_state(cluster: Cluster, tmp_path: Path) -> None:
    evidence.keep(cluster.node("n1"), KEY)
    (tmp_path / "nodes" / "n1" / "kmsg").write_text("a new boot\n")
    evidence.keep(cluster.node("n1"), KEY)
    assert b"Xid" in kept(tmp_path)["kernel.log"]


def test_the_archive_is_the_owners_alone_and_the_oldest_of_its_kind_go(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "KEPT", 3)
    orders = [f"j/{number}/{what}" for what in ("0/reboot", "hang/n1") for number in range(5)]
    for age, key in enumerate(orders):
        evidence.keep(cluster.node("n1"), key)
        os.utime(tmp_path / evidence.FOLDER / "n1" / keys.evidence(key), (age, age))
    files = sorted((tmp_path / evidence.FOLDER / "n1").iterdir())
    assert {file.name for file in files} == {keys.evidence(key) for key in orders[2:5] + orders[7:]}
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_a_folder_that_cannot_be_written_holds_up_no_reboot(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / evidence.FOLDER).write_text("in the way")
    evidence.keep(cluster.node("n1"), KEY)
    assert "the evidence of n1 was not kept" in capfd.readouterr().err


def test_a_driver_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho the first line\nexec sleep 600\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(evidence, "_PATIENCE_S", 0.5)
    said = evidence._driver().decode()
    assert said.startswith("the first line\n")
    assert "no answer" in said
