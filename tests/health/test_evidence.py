"""Embedded: what a node's kernel log says is in the job's timeline before its task has died of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from ecs_gpu_recovery.core.events import FAULT, PROGRAM_FAULT
from ecs_gpu_recovery.core.model import Entry, Job, JobStatus, NodeStatus
from ecs_gpu_recovery.local import gpus
from ecs_gpu_recovery.local.fault_log import FaultLog
from tests.embedded.helpers import LiveController, eventually, live_controller

#: It waits to be hit by a fault; started again, it is done at once.
WAITS = ("sh", "-c", '[ "$JOB_ATTEMPT" != 0 ] || exec sleep 3600')
#: The other way round: it fails by itself, and started again it waits.
FAILS_THEN_WAITS = ("sh", "-c", '[ "$JOB_ATTEMPT" != 0 ] || exit 1; exec sleep 3600')


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveController]:
    """A control plane with one node."""
    with live_controller(tmp_path, 1) as made:
        yield made


def begin(live: LiveController) -> Job:
    live.submit("job", WAITS, any_nodes=1)
    return live.started("job")


def told(job: Job, why: str) -> list[Entry]:
    return [entry for entry in job.timeline if entry.why == why]


def place(job: Job, why: str) -> int:
    """Where in the timeline it is first said."""
    return next(index for index, entry in enumerate(job.timeline) if why in entry.why)


def boots(live: LiveController) -> int:
    return sum(len(list(view.folder.glob("kmsg.*"))) for view in live.cluster.nodes())


@pytest.mark.parametrize("code", [31, 45])
def test_an_exit_with_only_a_programs_xids_is_the_programs_fault(live: LiveController, code: int) -> None:
    """A job that fails on nodes that are well is restarted once. Then it ends, and the program is named."""
    live.submit("job", FAILS_THEN_WAITS, any_nodes=1)
    eventually(lambda: live.job("job").attempt == 1, "restarted")
    live.started("job")
    live.cluster.inject("node-1", "xid", xid=code)
    job = live.ends("job", JobStatus.FAILED)
    assert job.attempt == 1, "no third time"
    (entry,) = told(job, PROGRAM_FAULT)
    assert f"Xid {code} on GPU 0000:01:00" in entry.evidence
    assert "NVRM: Xid" in entry.evidence, "the line itself is kept"
    assert "; no GPU fault found; " in job.outcome
    assert f"; the program failed on node-1: Xid {code} on GPU" in job.outcome
    assert "|" not in job.outcome
    assert boots(live) == 0, "nothing was rebooted"
    assert live.side.node("node-1").status is NodeStatus.AVAILABLE


def test_a_programs_fault_is_told_and_restarted_from_without_a_reboot(live: LiveController) -> None:
    begin(live)
    live.cluster.inject("node-1", "xid", xid=31)
    job = live.ends("job", JobStatus.COMPLETE)
    assert len(told(job, PROGRAM_FAULT)) == 1
    assert place(job, PROGRAM_FAULT) < place(job, "GPUs healthy; restarted")
    assert (job.attempt, boots(live)) == (1, 0)


def test_a_dying_gpu_is_in_the_timeline_before_the_exit_it_causes(live: LiveController) -> None:
    begin(live)
    live.cluster.inject("node-1", "xid", xid=79)
    job = live.ends("job", JobStatus.COMPLETE)
    (entry,) = told(job, FAULT)
    assert "Xid 79 on GPU 0000:01:00 (fallen off the bus)" in entry.evidence
    assert place(job, FAULT) < place(job, "died with exit code")
    assert entry.at < next(e.at for e in job.timeline if "died with exit code" in e.why)
    assert (job.attempt, boots(live)) == (1, 1)
    assert "fallen off the bus" not in job.outcome


def test_a_gpu_that_hangs_is_told_while_its_task_still_lives(live: LiveController) -> None:
    """Nothing exits, so no check is due. The evidence is what a person has to go by."""
    begin(live)
    live.cluster.inject("node-1", "hang")
    eventually(lambda: told(live.job("job"), FAULT), "the fault is told")
    assert live.job("job").status is JobStatus.IN_PROGRESS
    live.side.stop("job", why="it hangs")
    live.ends("job", JobStatus.USER_STOPPED)


def test_a_programs_fault_beside_a_gpus_blames_nobody_too_early(live: LiveController) -> None:
    """Xid 94 and a row that waits to be remapped: the driver says both, and the check decides."""
    begin(live)
    live.cluster.inject("node-1", "xid", xid=94)
    job = live.ends("job", JobStatus.COMPLETE)
    assert told(job, PROGRAM_FAULT)
    assert "the program failed" not in job.outcome
    assert boots(live) == 1


def test_a_free_node_keeps_its_faults_in_its_own_timeline(live: LiveController) -> None:
    live.cluster.inject("node-1", "xid", xid=92)
    entries = eventually(
        lambda: [e for e in live.side.node("node-1").timeline if e.why == FAULT], "the fault is told"
    )
    assert "Xid 92" in entries[0].evidence
    assert live.side.node("node-1").status is NodeStatus.AVAILABLE, "evidence is no verdict"


def test_a_fault_from_before_the_last_reboot_is_not_told_again_of_the_node_that_its_job_gives_back(
    live: LiveController,
) -> None:
    """The job's timeline has it. The node that comes back was rebooted for it."""
    begin(live)
    live.cluster.inject("node-1", "off-bus")
    job = live.ends("job", JobStatus.COMPLETE)
    assert told(job, FAULT)
    assert boots(live) == 1
    eventually(lambda: live.side.node("node-1").status is NodeStatus.AVAILABLE, "the node is given back")
    live.cluster.inject("node-1", "xid", xid=92)
    news = eventually(
        lambda: [e.evidence for e in live.side.node("node-1").timeline if e.why == FAULT and not e.job],
        "a new fault is told of the node itself",
    )
    assert all("Xid 92" in line for line in news), news


def test_a_controller_that_starts_again_tells_nothing_twice_and_misses_nothing(live: LiveController) -> None:
    started = begin(live)
    folder = str(live.cluster.node("node-1").folder)
    for number, code in enumerate((63, 92), start=1):
        gpus.log_kernel(folder, f"NVRM: Xid (PCI:0000:01:00): {code}, pid=7, name=python, Ch 00000008")
        eventually(lambda n=number: len(told(live.job("job"), FAULT)) == n, "the fault is told")  # type: ignore[misc]
    job, view = live.job("job"), live.cluster.node("node-1")
    anew = FaultLog()  # as a new process: it has read nothing yet
    assert list(anew.news(view, job.timeline, job.created_at)) == []
    missed = list(anew.news(view, started.timeline, job.created_at))
    assert [(f.at, f.evidence) for f in missed] == [(e.at, e.evidence) for e in told(job, FAULT)]
    assert list(anew.news(view, (), job.updated_at + timedelta(seconds=1))) == [], (
        "what was before the job is not the job's"
    )
    anew.close()
    live.side.stop("job", why="enough")
    live.ends("job", JobStatus.USER_STOPPED)
