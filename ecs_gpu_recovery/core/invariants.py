"""What must always hold about a job record. Checked after every step of the model checker, by the simulation, and
by the sweeper in production. What needs the outside world to be judged is checked by the tests' own observers.
"""

from __future__ import annotations

from .effects import CheckNode, RebootNode, StartTask
from .model import Exit, Job, JobStatus, NodeStatus, TaskStatus, Verdict

_RELEASED = frozenset({NodeStatus.AVAILABLE, NodeStatus.FAILED, NodeStatus.UNKNOWN, NodeStatus.REBOOTING})


def broken(job: Job) -> list[str]:
    """Every rule this record breaks, in words. Empty when all is well."""
    return [
        *(*_structure(job), *_retries(job), *_ending(job)),
        *(*_waiting(job), *_orders(job), *_handed(job)),
    ]


def _structure(job: Job) -> list[str]:
    said = []
    if [r.index for r in job.ranks] != list(range(len(job.ranks))):
        said.append("ranks are not numbered from 0")
    if len({r.node for r in job.ranks}) != len(job.ranks):
        said.append("two ranks on one node")
    ids = [r.task_id for r in job.ranks if r.task_id]
    if len(set(ids)) != len(ids):
        said.append("one task serves two ranks")
    return said


def _retries(job: Job) -> list[str]:
    charged = job.spent.charged
    said = [f"{charged} restarts are charged, of {job.max_retries}"] if charged > job.max_retries else []
    if charged > job.attempt:
        said.append(f"{charged} restarts are charged, and there were {job.attempt}")
    return said


def _ending(job: Job) -> list[str]:
    """A job that ended holds no node and waits for nothing."""
    if not job.status.final:
        return []
    said = [
        f"ended, yet holds {r.node} as {r.node_status}" for r in job.ranks if r.node_status not in _RELEASED
    ]
    said += [f"ended, yet rank {r.index} has a deadline" for r in job.ranks if r.deadline is not None]
    said += [f"ended, yet rank {r.index} may still run" for r in job.ranks if not r.quiet]
    if job.ending is not None:
        said.append("ended, yet still ending")
    return said


def _waiting(job: Job) -> list[str]:
    """Every job that is not final has an event to wait for or a deadline to run into."""
    if job.status.final:
        return []
    if job.status is JobStatus.IN_PROGRESS and any(r.task_status is TaskStatus.COMPLETE for r in job.ranks):
        idle = [r for r in job.ranks if r.live and r.deadline is None]
        if idle and job.ending is None:
            return [f"rank {r.index} may run on for ever though others have finished" for r in idle]
    if job.spec.moves and job.ending is None and any(r.handed for r in job.ranks) and job.look_at is None:
        return ["waits for other nodes, and may do so for ever"]
    if any(r.deadline is not None or r.away_since is not None or r.handed for r in job.ranks) or job.outbox:
        return []
    if job.look_at is not None:
        return []
    if job.status is JobStatus.IN_PROGRESS and any(r.live for r in job.ranks):
        return []
    return [f"{job.status} with nothing to wait for"]


def _handed(job: Job) -> list[str]:
    """A node is repaired only while its job waits for it, and for a reason that the record names."""
    said = []
    for rank in job.ranks:
        waits = job.status in (JobStatus.PENDING_RESTART, JobStatus.FAILED, JobStatus.USER_STOPPED)
        if rank.handed and not (waits or job.preflight):
            said.append(f"{rank.node} is handed over while the job is {job.status}")
        if rank.handed and rank.verdict is Verdict.REBOOT and not (rank.quiet or rank.stuck):
            said.append(f"{rank.node} is handed over for a reboot, over a running task")
    return said


def _orders(job: Job) -> list[str]:
    said = []
    for order in job.outbox:
        effect = order.effect
        if isinstance(effect, StartTask):
            if effect.attempt != job.attempt:
                said.append(f"a start of attempt {effect.attempt} is pending in attempt {job.attempt}")
            if job.status.final or job.ending is not None:
                said.append("a start is pending though the job ends")
        if isinstance(effect, CheckNode) and (job.status.final or job.ending is not None):
            said.append("a check is pending though the job ends")
        if isinstance(effect, RebootNode):
            said.append(f"a reboot of {effect.node} is ordered by a job")
    if job.status is JobStatus.COMPLETE and any(r.exit is not Exit.DONE for r in job.ranks):
        said.append("COMPLETE, yet a rank did not end with success")
    return said
