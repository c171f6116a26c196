"""What every submission has to pass, whichever side it goes to: a new id, free nodes, a folder of its own."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.errors import JobExists, NodesTaken, NotFound, Refused, Transient
from ..core.model import Failover, Job, JobSpec
from ..core.node_record import Node
from ..core.policy import Policy
from ..engine.ports import Store
from ..jobfile import JobRequest
from .backend import Backend
from .job_names import next_id

#: Another job may take the nodes that were free a moment ago; then others are chosen.
CLAIM_TRIES = 5


def with_failover(request: JobRequest, policy: Policy) -> JobSpec:
    """The job, and where its ranks may go: as it says itself, else the deployment, else as it has chosen nodes."""
    said = "" if policy.failover == "auto" else policy.failover
    chosen = Failover.ANY if request.any_nodes else Failover.SPARES
    return replace(request.spec, failover=request.spec.failover or said or chosen.value)


def new_job_id(name: str) -> str:
    return f"{name or 'job'}-{secrets.token_hex(3)}"


def _refusal(node: Node, gpus: int, standing: Mapping[str, str]) -> str:
    if why := "; ".join(filter(None, (node.refusal, standing.get(node.name, "")))):
        return why
    return f"has {node.gpus} GPUs, the job wants {gpus} of each node" if gpus > node.gpus else ""


def choose_nodes(
    request: JobRequest, nodes: Sequence[Node], standing: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The named nodes, or any that are free, those with a clean record first; a refusal names every reason.

    `standing` tells what the cluster itself has against a node, which its record may not know yet.
    """
    known = {node.name: node for node in nodes}
    gpus = request.spec.gpus_per_node
    against = standing or {}
    if request.nodes:
        wrong = {
            name: why
            for name in request.nodes
            if (
                why := _refusal(known[name], gpus, against)
                if name in known
                else against.get(name) or "no such node"
            )
        }
        if wrong:
            raise Refused(not_submitted(wrong))
        return request.nodes
    clean_first = sorted(nodes, key=lambda node: len(node.condemned))
    free = [node.name for node in clean_first if not _refusal(node, gpus, against)]
    if len(free) < request.any_nodes:
        with_gpus = f" with {gpus} GPUs each" if gpus else ""
        spares = sum(node.spare and not node.engaged for node in nodes)
        kept = f", not counting {spares} kept as a spare" if spares else ""
        raise Refused(
            f"the job was not submitted: it wants {request.any_nodes} free nodes{with_gpus},"
            f" and there are {len(free)}{kept}. See: gpu-recovery nodes"
        )
    return tuple(free[: request.any_nodes])


def waiting_for(request: JobRequest, nodes: Sequence[Node]) -> str:
    """What a job that takes any nodes lacks now; empty if it lacks none. Refused where waiting can't help."""
    gpus, wanted = request.spec.gpus_per_node, request.any_nodes
    fit = [node for node in nodes if not node.spare and gpus <= node.gpus]
    if len(fit) < wanted:
        raise Refused(
            f"the job was not submitted: it wants {wanted} nodes, and the fleet has {len(fit)} that fit,"
            " so waiting does not help. See: gpu-recovery nodes"
        )
    free = sum(not _refusal(node, gpus, {}) for node in fit)
    return f"waits for {wanted - free} of {wanted} nodes: {free} are free" if free < wanted else ""


def not_submitted(reasons: Mapping[str, str]) -> str:
    lines = [f"  {name}: {why}" for name, why in reasons.items()]
    return "\n".join(["the job was not submitted:", *lines, "See: gpu-recovery nodes"])


def must_be_new(store: Store, job_id: str) -> None:
    """An id is used once: a job that is sent twice by mistake runs once."""
    try:
        found = store.job(job_id)
    except NotFound:
        return
    raise JobExists(
        f"the job was not submitted: job {job_id} exists already ({found.status}), an id is used once."
        f" Look at it: gpu-recovery job {job_id}   |   run it again: gpu-recovery retry {job_id}"
    )


def must_be_unshared(folder: str, live: Mapping[str, str]) -> None:
    """Two jobs that write checkpoints into one folder destroy each other's. `live`: where other jobs keep theirs."""
    for job_id, theirs in live.items():
        if theirs == folder:
            raise Refused(
                f"the job was not submitted: job {job_id} is running and keeps its checkpoints in {folder}."
                " Choose another --checkpoint-dir."
                f" To take over that job's work: gpu-recovery stop {job_id}, then submit again"
            )


def claimed(request: JobRequest, submit: Callable[[], Job]) -> Job:
    """What a submission comes to. Where any nodes will do, others are tried if another job was faster."""
    for _ in range(CLAIM_TRIES):
        try:
            return submit()
        except NodesTaken as exc:
            if request.nodes:
                raise Refused(not_submitted(exc.reasons)) from exc
    raise Transient("the job was not submitted: others took the free nodes each time; try again")


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
        JobRequest(
            spec=spec,
            nodes=chosen,
            max_retries=old.max_retries,
            restart_when_healthy=old.restart_when_healthy if old.budget else None,  # else nobody chose it
            job_id=next_id(side, old.id),
        )
    )


def task_definition(request: JobRequest) -> dict[str, Any] | None:
    """What would be registered on AWS for a job; needs an image."""
    from ..aws.task_definition import template

    if not request.container.image or request.spec.task_def:
        return None
    return template(
        request, gpus=request.spec.gpus_per_node, region=os.environ.get("AWS_DEFAULT_REGION", "REGION")
    )
