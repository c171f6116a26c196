"""Taking over a job that another tool wrote into the tables with the schema's attributes alone.

Everything in those rows is text; lists may be lists or comma-separated. What is missing is asked of ECS: each task's
definition, its node, and the overrides it was started with, so that a restart starts the same thing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..config import LambdaSettings
from ..core.errors import NotFound, VersionConflict
from ..core.model import Entry, Exit, Job, JobSpec, JobStatus, Node, NodeStatus, Rank, TaskStatus
from ..core.policy import Policy
from .errors import translated
from .store import DynamoStore

if TYPE_CHECKING:
    from mypy_boto3_ecs import ECSClient

log = logging.getLogger("ecs_gpu_recovery")
Row = Mapping[str, Any]
#: How the node of a job in each state must stand for the job to go on from there.
_NODE_OF = {JobStatus.IN_PROGRESS: NodeStatus.IN_PROGRESS, JobStatus.PENDING_HEALTHCHECK: NodeStatus.PENDING}


class StoreAdopter:
    """Reads the rows, asks ECS for the rest, and writes the record beside them."""

    def __init__(self, store: DynamoStore, ecs: ECSClient, settings: LambdaSettings) -> None:
        self._store, self._ecs, self._settings = store, ecs, settings

    def adopt(self, row: Row, at: datetime) -> Job:
        task_ids = texts(row.get("submitted_ecs_task_ids"))
        tasks = self._store.task_rows(task_ids)
        described = self._describe(task_ids)
        names = texts(row.get("assigned_nodes")) or [str(tasks[t].get("node_name", "")) for t in task_ids if t in tasks]
        nodes = self._store.node_rows([name for name in names if name])
        job = adopted_job(row, task_ids, tasks, described, names, policy=self._settings.policy, cluster=self._settings.cluster, at=at)
        claimed = [adopted_node(job, rank, nodes.get(rank.node), at) for rank in job.ranks]
        try:
            self._store.adopt(job, claimed)
        except VersionConflict:
            return self._store.job(job.id)  # another event was faster
        log.info("adopted", extra={"job": job.id, "nodes": names})
        return job

    def _describe(self, task_ids: Sequence[str]) -> dict[str, Row]:
        """Tasks that ECS still knows; a stopped one is forgotten after an hour."""
        found: dict[str, Row] = {}
        for start in range(0, len(task_ids), 100):
            with translated("describing the tasks of an adopted job"):
                reply = self._ecs.describe_tasks(cluster=self._settings.cluster, tasks=list(task_ids[start : start + 100]))
            found.update({str(task["taskArn"]).rpartition("/")[2]: dict(task) for task in reply.get("tasks", [])})
        return found


def texts(value: object) -> list[str]:
    """A list of strings, whichever way it was written."""
    if isinstance(value, str):
        return [part.strip() for part in value.strip("[]").replace('"', "").replace("'", "").split(",") if part.strip()]
    if isinstance(value, Iterable):
        return [str(part).rpartition("/")[2].strip() if str(part).startswith("arn:") else str(part).strip() for part in value if str(part).strip()]
    return []


def moment(value: object, default: datetime) -> datetime:
    """A time as other tools write it: ISO 8601, or seconds or milliseconds since 1970."""
    text = str(value or "").strip()
    try:
        if text.replace(".", "", 1).isdigit():
            seconds = float(text)
            return datetime.fromtimestamp(seconds / 1000 if seconds > 1e11 else seconds, UTC)
        at = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        return default
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def adopted_job(row: Row, task_ids: Sequence[str], tasks: Mapping[str, Row], described: Mapping[str, Row], names: Sequence[str], *,
                policy: Policy, cluster: str, at: datetime) -> Job:  # fmt: skip
    """The record of such a job, as it would be if it had been ours from the start."""
    job_id = str(row.get("job_id", ""))
    try:
        status = JobStatus(str(row.get("job_status", "")))
    except ValueError:
        raise NotFound(f"job {job_id} has the unknown status {row.get('job_status')!r}") from None
    if not names or not task_ids or len(set(names)) != len(names):
        raise NotFound(f"job {job_id} names no usable nodes and tasks: it cannot be taken over")
    if status in (JobStatus.PENDING_RESTART, JobStatus.RESTARTING):
        status = JobStatus.PENDING_RESTART
    placed = _placed(task_ids, tasks, names)
    instances = texts(row.get("submitted_container_inst_ids"))
    ranks = []
    for index, name in enumerate(names):
        task_id = placed.get(index, "")
        ranks.append(_rank(index, name, task_id, tasks.get(task_id, {}), described.get(task_id, {}), status,
                           instances[index] if index < len(instances) else "", at, policy))  # fmt: skip
    first: Row = next((tasks[t] for t in task_ids if t in tasks), {})
    seen: Row = next(iter(described.values()), {})
    spec = JobSpec(name=job_id, task_def=str(first.get("task_def_arn") or seen.get("taskDefinitionArn") or ""), submitted_by="another tool")
    created = moment(row.get("created_at") or row.get("job_timestamp"), at)
    entry = Entry(at=at, subject="job", before="", after=status.value, why="taken over from another tool", evidence=f"tasks {', '.join(task_ids)}"[:500],
                  attempt=_number(row.get("retry")), policy=policy.version)  # fmt: skip
    return Job(id=job_id, cluster=cluster, spec=spec, status=status, ranks=tuple(ranks), created_at=created, updated_at=at, attempt=_number(row.get("retry")),
               max_retries=max(policy.max_retries, _number(row.get("retry"))), timeline=(entry,), version=1)  # fmt: skip


def _placed(task_ids: Sequence[str], tasks: Mapping[str, Row], names: Sequence[str]) -> dict[int, str]:
    """Which task is which rank: by the task's row, else by its place in the list."""
    placed: dict[int, str] = {}
    for position, task_id in enumerate(task_ids):
        row = tasks.get(task_id, {})
        text = str(row.get("node_index_in_job", "")).strip()
        node = str(row.get("node_name", ""))
        index = int(text) if text.isdigit() else names.index(node) if node in names else position
        if index < len(names) and index not in placed:
            placed[index] = task_id
    return placed


def _rank(index: int, name: str, task_id: str, row: Row, described: Row, status: JobStatus, instance: str, at: datetime, policy: Policy) -> Rank:
    arn = str(described.get("containerInstanceArn") or row.get("container_instance_arn") or row.get("container_inst_id") or instance)
    overrides = described.get("overrides", {}).get("containerOverrides", []) if described else []
    try:
        task_status: TaskStatus | None = TaskStatus(str(row.get("task_status") or "IN_PROGRESS"))
    except ValueError:
        task_status = TaskStatus.TERMINATED
    if not status.final and status is not JobStatus.IN_PROGRESS and task_status is TaskStatus.IN_PROGRESS and described.get("lastStatus") == "STOPPED":
        task_status = TaskStatus.TERMINATED
    ended = {TaskStatus.COMPLETE: Exit.DONE}.get(task_status) if task_status else None
    waiting = status is JobStatus.PENDING_RESTART
    return Rank(index=index, node=name, instance=arn, task_id=task_id, task_status=task_status if task_id else TaskStatus.TERMINATED, start_try=1,
                exit=ended, overrides=json.dumps(overrides, default=str, separators=(",", ":")) if overrides else "",
                node_status=NodeStatus.UNKNOWN if waiting else NodeStatus.AVAILABLE if status.final else _NODE_OF[status],
                deadline=at + policy.reboot_timeout if waiting else None)  # fmt: skip


def adopted_node(job: Job, rank: Rank, row: Row | None, at: datetime) -> Node:
    """The node's record, held by the job from now on."""
    row = row or {}
    instance = rank.instance or str(row.get("container_instance_arn") or row.get("container_instance_id") or "")
    return Node(name=rank.node, cluster=job.cluster, instance=instance, status=rank.node_status, ip=str(row.get("ip", "")),
                ibdev=str(row.get("ibdev", "")), job_id="" if job.status.final else job.id, job_version=job.version, connected=True,
                created_at=moment(row.get("created_at"), at), updated_at=at, version=1)  # fmt: skip


def _number(value: object) -> int:
    text = str(value or "0").strip()
    return int(text) if text.isdigit() else 0
