"""What was told is told to be over once it is, and not before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecs_gpu_recovery.core import guard, keys
from ecs_gpu_recovery.core.guard import FleetGuard, Freeze, Request
from ecs_gpu_recovery.core.job.hang import NOTED
from ecs_gpu_recovery.core.model import Entry, Job, JobSpec, JobStatus, NodeStatus
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.core.resolutions import answered, over, run_again
from tests.contract.worlds import a_node
from tests.core.story import T0, a_running_job

NODE = replace(a_node("n1"), status=NodeStatus.FAILED, errands=3)
JOB = a_running_job(nodes=2).job
WAITS = replace(JOB, status=JobStatus.PENDING_RESTART, attempt=1, wait_told=True)
SUSPECT = replace(
    JOB, timeline=(Entry(at=T0, subject="job", before="IN_PROGRESS", after="IN_PROGRESS", why=NOTED),)
)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        (NODE, replace(NODE, status=NodeStatus.AVAILABLE), keys.node_failed("n1", 3)),
        (NODE, replace(NODE, status=NodeStatus.PENDING_HEALTHCHECK), keys.node_failed("n1", 3)),
        (NODE, replace(NODE, findings="seen again"), ""),
        (replace(NODE, status=NodeStatus.REBOOTING), replace(NODE, status=NodeStatus.AVAILABLE), ""),
        (WAITS, replace(WAITS, status=JobStatus.RESTARTING, wait_told=False), keys.job_waits(JOB.id, 1)),
        (WAITS, replace(WAITS, status=JobStatus.FAILED), keys.job_waits(JOB.id, 1)),
        (WAITS, replace(WAITS, version=9), ""),
        (replace(WAITS, wait_told=False), replace(WAITS, status=JobStatus.RESTARTING, wait_told=False), ""),
        (SUSPECT, replace(SUSPECT, status=JobStatus.COMPLETE), keys.job_may_hang(JOB.id, 0)),
        (SUSPECT, replace(SUSPECT, status=JobStatus.PENDING_HEALTHCHECK), keys.job_may_hang(JOB.id, 0)),
        (SUSPECT, replace(SUSPECT, version=9), ""),
        (JOB, replace(JOB, status=JobStatus.COMPLETE), ""),
    ],
)
def test_an_incident_is_over_when_its_cause_is(old: Job | Node, new: Job | Node, key: str) -> None:
    told = over(old, new)
    assert [message.key for message in told] == [key] * bool(key)
    assert all(message.resolved and message.subject.startswith("Resolved: ") for message in told)


def test_a_job_that_failed_is_dealt_with_when_it_is_run_again() -> None:
    assert run_again("j", JobSpec()) == []
    (told,) = run_again("j-2", JobSpec(retry_of="j", submitted_by="ann"))
    assert (told.key, told.happened) == (keys.job_failed("j"), "Job j was run again as j-2: by ann.")


WAITING = Request(key="node/n1/reboot/1", node="n1", at=T0, since=T0, why="Xid 79")
FLEET = FleetGuard(cluster="c", requests=(WAITING,), trips=2)
FROZEN = replace(FLEET, frozen=Freeze(at=T0, why="four faults within an hour", first=WAITING.key))


@pytest.mark.parametrize(
    ("old", "new", "asked", "key"),
    [
        (FROZEN, guard.thaw(FROZEN, by="ann", why="one bad rack", at=T0), False, keys.frozen("c", 2)),
        (FROZEN, guard.allow(FROZEN, "n1", by="ann"), False, ""),
        (FLEET, guard.allow(FLEET, "n1", by="ann"), True, keys.permit_wanted(WAITING.key)),
        (FLEET, guard.refuse(FLEET, "n1", by="ann", why="in use"), True, keys.permit_wanted(WAITING.key)),
        (FLEET, guard.allow(FLEET, "n1", by="ann"), False, ""),
        (FLEET, guard.freeze(FLEET, by="ann", why="works on the power", at=T0), True, ""),
    ],
)
def test_a_question_to_people_is_over_with_their_answer(
    old: FleetGuard, new: FleetGuard, asked: bool, key: str
) -> None:
    told = answered(old, new, asked=asked)
    assert [message.key for message in told] == [key] * bool(key)
    assert all(message.resolved and "ann" in message.happened for message in told)


def test_a_freeze_by_a_person_was_told_to_nobody() -> None:
    theirs = guard.freeze(FLEET, by="ann", why="works on the power", at=T0)
    assert answered(theirs, guard.thaw(theirs, by="ann", why="done", at=T0), asked=True) == []
