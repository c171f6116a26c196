"""Releases that don't exist yet, to be run beside this one on the same records."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ecs_gpu_recovery.core.codec import FORMAT, Codec
from ecs_gpu_recovery.core.model import Job, Rank
from ecs_gpu_recovery.core.node_record import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterRank(Rank):
    """With a field that this release does not have."""

    mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterJob(Job):
    ranks: tuple[LaterRank, ...]
    mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterNode(Node):
    mark: str = ""


#: Has fields that an older release may leave as they are.
NEXT = Codec(LaterJob, LaterNode)
#: Writes records that an older release must not touch.
BREAKING = Codec(LaterJob, LaterNode, FORMAT + 1)


def marked_job(job: Job) -> Job:
    """The later release uses its fields."""
    if not isinstance(job, LaterJob):
        return job
    ranks = tuple(replace(rank, mark=f"rank {rank.index}") for rank in job.ranks)
    return replace(job, mark="job", ranks=ranks)


def marked_node(node: Node) -> Node:
    return replace(node, mark="node") if isinstance(node, LaterNode) else node
