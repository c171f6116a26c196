"""Which incidents are over after a step of a record: what was told under a key is then told to be over, under it too.

People are not called for that, so it is no order of the record. Pagers and chats close what they had opened.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import keys
from .effects import Notify
from .guard import FleetGuard
from .job.hang import NOTED
from .messages import headline
from .model import Job, JobSpec, JobStatus, NodeStatus
from .node_record import Node


def over(old: Job | Node, new: Job | Node) -> list[Notify]:
    """In the order in which they were told."""
    if isinstance(old, Node) and isinstance(new, Node):
        return list(_of_node(old, new))
    if isinstance(old, Job) and isinstance(new, Job):
        return list(_of_job(old, new))
    return []


def _of_node(old: Node, new: Node) -> Iterator[Notify]:
    if old.status is NodeStatus.FAILED and new.status is not NodeStatus.FAILED:
        why = new.timeline[-1].why if new.timeline else ""
        yield _said(
            keys.node_failed(old.name, old.errands), f"Node {old.name} is in use again", why, old.name
        )


def _of_job(old: Job, new: Job) -> Iterator[Notify]:
    if old.wait_told and not (new.wait_told and new.status is JobStatus.PENDING_RESTART):
        how = f"ended {new.status}" if new.status.final else "has its nodes"
        yield _said(keys.job_waits(old.id, old.attempt), f"Job {old.id} {how}", new.outcome)
    suspected = any(entry.why == NOTED and entry.attempt == old.attempt for entry in old.timeline)
    if suspected and old.status is JobStatus.IN_PROGRESS and new.status is not JobStatus.IN_PROGRESS:
        why = new.timeline[-1].why if new.timeline else ""
        what = f"Attempt {old.attempt} of job {old.id}, which may have hung, is over"
        yield _said(keys.job_may_hang(old.id, old.attempt), what, why)


def answered(old: FleetGuard, new: FleetGuard, *, asked: bool) -> list[Notify]:
    """By a person: a fleet that had frozen by itself, and, where each order is `asked` for, a yes or a no to one."""
    told = []
    if old.frozen is not None and new.frozen is None and not old.frozen.by:
        why = f"{new.thawed_by}: {new.thawed_why}"
        told = [_said(keys.frozen(new.cluster, new.trips), f"The fleet {new.cluster} was thawed", why)]
    before = {each.key: each for each in old.requests}
    for each in new.requests if asked and old.frozen is None else ():
        was = before.get(each.key)
        if was is not None and (was.allowed, was.refused) != (each.allowed, each.refused) and not each.person:
            why = each.refused or f"allowed by {each.allowed}"
            what = f"The {each.what} of {each.node or each.job} waits for nobody's yes"
            told.append(_said(keys.permit_wanted(each.key), what, why, each.node))
    return told


def run_again(job_id: str, spec: JobSpec) -> list[Notify]:
    """A job that failed is dealt with once it is run again."""
    if not spec.retry_of:
        return []
    again = f"Job {spec.retry_of} was run again as {job_id}"
    return [_said(keys.job_failed(spec.retry_of), again, f"by {spec.submitted_by}")]


def _said(key: str, subject: str, why: str, node: str = "") -> Notify:
    return Notify(
        key=key,
        subject=headline(f"Resolved: {subject}"),
        happened=f"{subject}{f': {why}' if why else ''}.",
        evidence="",
        done="",
        next="",
        node=node,
        resolved=True,
    )
