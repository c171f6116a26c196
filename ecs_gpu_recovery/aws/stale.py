"""Which task and node rows are not as the record of their job says."""

from __future__ import annotations

from collections.abc import Iterator

from ..core import rows
from ..core.model import Job, Node, TaskStatus
from . import items
from .items import Item, text


def left_open(past: dict[str, Item], current: dict[str, Item], found: dict[str, Item]) -> Iterator[Item]:
    """Tasks whose record was forgotten in the very moment of their end, and whose rows still call them running."""
    for task_id, item in past.items():
        there = found.get(task_id, {}).get("task_status")
        if task_id not in current and there == text(TaskStatus.IN_PROGRESS.value):
            yield item


def stale_tasks(wanted: dict[str, Item], found: dict[str, Item]) -> Iterator[Item]:
    """The rows that are missing, or were written by an older record and say something else."""
    for task_id, item in wanted.items():
        there = found.get(task_id, {})
        older = items.version_of(there, "job_version") < items.version_of(item, "job_version")
        if older and any(
            there.get(a) != value for a, value in item.items() if a not in ("job_version", "updated_at")
        ):
            yield item


def stale_nodes(job: Job, found: dict[str, Item]) -> list[Node]:
    """The nodes that this job holds and of which it now says something else."""
    pairs = [(node, rows.held_node(node, job)) for node in map(items.read_node, found.values())]
    return [held for node, held in pairs if held and _shown(held) != _shown(node)]


def _shown(node: Node) -> tuple[object, ...]:
    return node.status, node.job_id, node.instance


def says(job: Job, name: str) -> tuple[object, ...]:
    """What a record says of a node, as far as the node's row shows it."""
    return (job.status.final, *(rank.node_status for rank in job.ranks if rank.node == name))
