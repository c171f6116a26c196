"""What people do that is the same on every side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..core.errors import Refused
from ..core.model import Job
from ..jobfile import JobRequest
from .backend import Backend
from .submission import new_job_id


def retry(
    side: Backend,
    job_id: str,
    *,
    by: str,
    nodes: Sequence[str] = (),
    not_ended: str = ", so it can't be run again",
) -> Job:
    """The same work as a new job, from its last checkpoint; on the same nodes if none are named."""
    old = side.job(job_id)
    if not old.status.final:
        raise Refused(f"{job_id} is {old.status}: it has not ended{not_ended}")
    spec = replace(old.spec, retry_of=old.id, submitted_by=by)
    chosen = tuple(nodes) or tuple(rank.node for rank in old.ranks)
    return side.submit(
        JobRequest(spec=spec, nodes=chosen, max_retries=old.max_retries, job_id=new_job_id(spec.name))
    )
