"""What other tools read: the task and node rows, derived from the job record. Names and types are the schema's."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from . import keys
from .model import Job, Node, NodeStatus, Rank


def task_row(job: Job, rank: Rank) -> dict[str, str] | None:
    """The row of a rank's current task, all strings; None while the cluster has not named the task."""
    if not rank.task_id:
        return None
    family, _, revision = job.spec.task_def.rpartition("/")[2].partition(":")
    row = {
        "ecs_task_id": rank.task_id,
        "node_name": rank.node,
        "node_index_in_job": str(rank.index),
        "job_id": job.id,
        "job_timestamp": _text(job.created_at),
        "job_num_nodes": str(len(job.ranks)),
        "task_def_arn": job.spec.task_def,
        "task_def_name": family,
        "task_def_revision": revision,
        "cluster_name": job.cluster,
        "container_inst_id": rank.instance.rpartition("/")[2],
        "container_instance_arn": rank.instance,
        "retry": str(rank.task_attempt),
        "task_status": str(rank.task_status or ""),
        "updated_at": _text(job.updated_at),
    }
    if rank.exit_code is not None:
        row["exit_code"] = str(rank.exit_code)
    if rank.exit_reason:
        row["exit_reason"] = rank.exit_reason[:1000]
    return row


def job_row(job: Job) -> dict[str, str | list[str]]:
    """The schema's attributes of a job, beside which the record itself is kept."""
    return {
        "job_id": job.id,
        "job_timestamp": _text(job.created_at),
        "cluster_name": job.cluster,
        "num_nodes": str(len(job.ranks)),
        "assigned_nodes": [rank.node for rank in job.ranks],
        "submitted_container_inst_ids": [rank.instance.rpartition("/")[2] for rank in job.ranks],
        "submitted_ecs_task_ids": [rank.task_id for rank in job.ranks if rank.task_id],
        "created_at": _text(job.created_at),
        "updated_at": _text(job.updated_at),
        "retry": str(job.attempt),
        "job_status": job.status.value,
    }


def node_row(node: Node) -> dict[str, str]:
    """The schema's attributes of a node."""
    return {
        "node_name": node.name,
        "container_instance_id": node.instance.rpartition("/")[2],
        "container_instance_arn": node.instance,
        "cluster_name": node.cluster,
        "node_status": node.status.value,
        "ip": node.ip,
        "ibdev": node.ibdev,
        "created_at": _text(node.created_at),
        "updated_at": _text(node.updated_at),
    }


def held_node(node: Node, job: Job) -> Node | None:
    """The node as this version of its job says; None when that is old news or none of its business.

    A job that ended gives the node back, with whatever the node still has to do: an unfinished reboot goes on as the
    node's own errand.
    """
    rank = next((r for r in job.ranks if r.node == node.name), None)
    if rank is None or node.job_id != job.id or node.job_version >= job.version:
        return None
    node = replace(
        _as_registered(node, rank),
        status=rank.node_status,
        job_version=job.version,
        updated_at=job.updated_at,
        version=node.version + 1,
    )
    if not job.status.final:
        return node
    rebooting = rank.node_status is NodeStatus.REBOOTING
    return replace(
        node,
        job_id="",
        job_version=0,
        verdict=rank.verdict if rank.node_status is NodeStatus.FAILED else None,
        findings=rank.findings if rank.node_status in (NodeStatus.FAILED, NodeStatus.UNKNOWN) else "",
        reboot_key=keys.reboot(job.id, job.attempt, rank.index) if rebooting else node.reboot_key,
        rebooted=rank.rebooted if rebooting else False,
        deadline=rank.deadline if rebooting else None,
    )


def _as_registered(node: Node, rank: Rank) -> Node:
    """A node whose machine registered anew in the hands of its job follows it; what is older moves nothing."""
    later = rank.registered_at and (node.registered_at is None or rank.registered_at > node.registered_at)
    if not later or rank.instance == node.instance:
        return node
    return replace(
        node,
        instance=rank.instance,
        registered_at=rank.registered_at,
        seen_version=rank.seen_version,
        connected=rank.connected,
        away_since=rank.away_since,
        gpus_seen=rank.gpus_seen,
    )


def claimed_node(node: Node, job: Job) -> Node:
    """The node as a new job takes it. Only for a node whose `refusal` is empty."""
    return replace(
        node,
        job_id=job.id,
        job_version=job.version,
        status=NodeStatus.ASSIGNED,
        updated_at=job.created_at,
        version=node.version + 1,
        verdict=None,
        findings="",
        deadline=None,
    )


def orphaned_node(node: Node, at: datetime) -> Node:
    """The node of a claim whose job was never recorded, free again."""
    return replace(
        node, job_id="", job_version=0, status=NodeStatus.UNKNOWN, updated_at=at, version=node.version + 1
    )


def _text(at: datetime) -> str:
    return at.isoformat()
