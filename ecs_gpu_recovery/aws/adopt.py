"""Taking over a job that another tool wrote into the tables with the schema's attributes alone.

Everything in those rows is text; lists may be lists or comma-separated. What is missing is asked of ECS: each task's
definition, its node, and the overrides it was started with, so that a restart starts the same thing.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core import keys
from ..core.effects import Order, StopTask
from ..core.errors import NodesTaken, NotFound, VersionConflict
from ..core.exits import our_reason
from ..core.model import ANOTHER_TOOL, Entry, Exit, Job, JobSpec, JobStatus, NodeStatus, Rank, TaskStatus
from ..core.node_record import Node
from ..core.policy import Policy
from ..engine.troubles import Attempt
from ..settings import LambdaSettings
from .discover import registered_at, registered_gpus
from .errors import ForeignRecord, translated
from .event_fields import id_of
from .store import DynamoStore

if TYPE_CHECKING:
    from mypy_boto3_ecs import ECSClient

log = logging.getLogger("ecs_gpu_recovery")
Row = Mapping[str, Any]
#: How many minutes lie between two looks for another tool's jobs in any state.
ALL_STATES_EVERY = 5
#: How the node of a job in each state must stand for the job to go on from there.
_NODE_OF = {
    JobStatus.IN_PROGRESS: NodeStatus.IN_PROGRESS,
    JobStatus.PENDING_HEALTHCHECK: NodeStatus.PENDING,
    JobStatus.PENDING_RESTART: NodeStatus.UNKNOWN,
}


class StoreAdopter:
    """Reads the rows, asks ECS for the rest, and writes the record beside them."""

    def __init__(self, store: DynamoStore, ecs: ECSClient, settings: LambdaSettings) -> None:
        self._store, self._ecs, self._settings = store, ecs, settings
        self._refused: set[str] = set()

    def adopt(self, row: Row, at: datetime) -> Job:
        task_ids = texts(row.get("submitted_ecs_task_ids"))
        tasks = self._store.task_rows(task_ids)
        names = texts(row.get("assigned_nodes")) or [
            str(tasks[t].get("node_name", "")) for t in task_ids if t in tasks
        ]
        status = _status(row, task_ids, names)
        described = self._describe(task_ids)
        ranks = _ranks(row, task_ids, tasks, described, names)
        nodes = self._store.node_rows(names)
        seen = self._instances([rank.instance for rank in ranks])
        ranks = [
            _known_node(rank, nodes.get(rank.node, {}), seen.get(id_of(rank.instance), {})) for rank in ranks
        ]
        job = adopted_job(
            row,
            status,
            ranks,
            _definition(tasks, described),
            policy=self._settings.policy,
            cluster=self._settings.ECS_CLUSTER_NAME,
            at=at,
        )
        claimed = [adopted_node(job, rank, nodes.get(rank.node, {}), at) for rank in job.ranks]
        try:
            self._store.adopt(job, claimed)
        except VersionConflict:
            return self._store.job(job.id)  # another event was faster
        log.info("adopted", extra={"job": job.id, "nodes": names})
        return job

    def adopt_strays(self, at: datetime, attempt: Attempt) -> None:
        """Jobs whose events were lost, each by itself. One that cannot be taken over is logged once, not every minute.

        Those in progress are looked for every minute. A job in the middle of a recovery has had events before, so
        the other states are looked at every few minutes only.
        """
        for job_id in self._store.foreign_jobs(all_states=at.minute % ALL_STATES_EVERY == 0):
            attempt(("job", job_id), partial(self._adopt_stray, job_id, at))

    def _adopt_stray(self, job_id: str, at: datetime) -> None:
        try:
            self._store.job(job_id)
        except ForeignRecord as exc:
            try:
                self.adopt(exc.row, at)
            except (NotFound, NodesTaken) as why:
                if job_id not in self._refused:
                    log.warning("not taken over", extra={"job": job_id, "why": str(why)})
                self._refused.add(job_id)

    def _describe(self, task_ids: Sequence[str]) -> dict[str, Row]:
        """Tasks that ECS still knows; a stopped one is forgotten after an hour."""
        found: dict[str, Row] = {}
        for start in range(0, len(task_ids), 100):
            with translated("describing the tasks of an adopted job"):
                reply = self._ecs.describe_tasks(
                    cluster=self._settings.ECS_CLUSTER_NAME, tasks=list(task_ids[start : start + 100])
                )
            found.update({id_of(task["taskArn"]): dict(task) for task in reply.get("tasks", [])})
        return found

    def _instances(self, references: Sequence[str]) -> dict[str, Row]:
        """The nodes as ECS knows them: their full names, hosts and GPUs, which the rows don't tell."""
        known = [reference for reference in references if reference]
        found: dict[str, Row] = {}
        for start in range(0, len(known), 100):
            with translated("describing the nodes of an adopted job"):
                reply = self._ecs.describe_container_instances(
                    cluster=self._settings.ECS_CLUSTER_NAME, containerInstances=known[start : start + 100]
                )
            found.update(
                {
                    id_of(instance["containerInstanceArn"]): dict(instance)
                    for instance in reply.get("containerInstances", [])
                }
            )
        return found


def texts(value: object) -> list[str]:
    """A list of strings, whichever way it was written: names, ids, or ARNs of which the id counts."""
    if isinstance(value, str):
        value = value.strip().strip("[]").replace('"', "").replace("'", "").split(",")
    if not isinstance(value, Iterable):
        return []
    found = [str(part).strip() for part in value]
    return [id_of(part) if part.startswith("arn:") else part for part in found if part]


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


def _status(row: Row, task_ids: Sequence[str], names: Sequence[str]) -> JobStatus:
    """The job's status, if the row can be made sense of. Raises `NotFound` where there is nothing to take over."""
    job_id = str(row.get("job_id", ""))
    try:
        status = JobStatus(str(row.get("job_status", "")))
    except ValueError:
        raise NotFound(
            f"job {job_id} has the unknown status {row.get('job_status')!r}: it cannot be taken over"
        ) from None
    if status.final:
        raise NotFound(f"job {job_id} has ended as {status}: there is nothing to take over")
    if (
        not names
        or len(set(names)) != len(names)
        or len(set(task_ids)) != len(names)
        or len(task_ids) != len(names)
    ):
        raise NotFound(
            f"job {job_id} names {len(names)} nodes and {len(task_ids)} tasks, not one task for each node:"
            " it cannot be taken over"
        )
    return status


def adopted_job(
    row: Row,
    status: JobStatus,
    ranks: Sequence[Rank],
    task_def: str,
    *,
    policy: Policy,
    cluster: str,
    at: datetime,
) -> Job:
    """The record of such a job, as it would be if it had been ours from the start.

    Outside IN_PROGRESS nothing of it may run any more: what does is stopped. A restart that was begun is begun
    again, and has spent a retry whether or not the row says so.
    """
    job_id, retry = str(row.get("job_id", "")), _number(row.get("retry"))
    restarts = status in (JobStatus.PENDING_RESTART, JobStatus.RESTARTING)
    attempt = max(retry, 1) if restarts else retry
    status = JobStatus.PENDING_RESTART if restarts else status
    orders: list[Order] = []
    placed = []
    for rank in ranks:
        rank = replace(
            rank, node_status=_NODE_OF[status], deadline=at + policy.reboot_timeout if restarts else None
        )
        if rank.live and status is not JobStatus.IN_PROGRESS:
            rank = replace(rank, deadline=rank.deadline or at + policy.stop_timeout)
            reason = our_reason(job_id, attempt, "its job was taken over while it failed")
            orders.append(
                Order(
                    due=at,
                    effect=StopTask(
                        key=keys.stop(job_id, rank),
                        node=rank.node,
                        token="",
                        task_id=rank.task_id,
                        reason=reason,
                        rank=rank.index,
                        attempt=rank.task_attempt,
                    ),
                )
            )
        placed.append(rank)
    told = f"tasks {', '.join(rank.task_id for rank in ranks)}"[:500]
    entry = Entry(
        at=at,
        subject="job",
        before="",
        after=status.value,
        why="taken over from another tool",
        evidence=told,
        attempt=attempt,
        policy=policy.version,
    )
    return Job(
        id=job_id,
        cluster=cluster,
        spec=JobSpec(name=job_id, task_def=task_def, submitted_by=ANOTHER_TOOL),
        status=status,
        ranks=tuple(placed),
        created_at=moment(row.get("created_at") or row.get("job_timestamp"), at),
        updated_at=at,
        attempt=attempt,
        max_retries=max(policy.max_retries, attempt),
        salt=secrets.token_hex(8),
        outbox=tuple(orders),
        timeline=(entry,),
        version=1,
    )


def _ranks(
    row: Row,
    task_ids: Sequence[str],
    tasks: Mapping[str, Row],
    described: Mapping[str, Row],
    names: Sequence[str],
) -> list[Rank]:
    """Which task is which rank: by the task's row, else by its place in the list."""
    placed: dict[int, str] = {}
    for position, task_id in enumerate(task_ids):
        number, node = (
            str(tasks.get(task_id, {}).get("node_index_in_job", "")).strip(),
            str(tasks.get(task_id, {}).get("node_name", "")),
        )
        index = names.index(node) if node in names else int(number) if number.isdecimal() else position
        placed[index] = task_id
    if set(placed) != set(range(len(names))):
        raise NotFound(
            f"job {row.get('job_id')}: its task rows don't give each node one task: it cannot be taken over"
        )
    instances = texts(row.get("submitted_container_inst_ids"))
    return [
        _rank(
            index,
            name,
            placed[index],
            tasks.get(placed[index], {}),
            described.get(placed[index], {}),
            instances[index] if index < len(instances) else "",
            _number(row.get("retry")),
        )
        for index, name in enumerate(names)
    ]


def _rank(index: int, name: str, task_id: str, row: Row, described: Row, instance: str, retry: int) -> Rank:
    instance = str(
        described.get("containerInstanceArn")
        or row.get("container_instance_arn")
        or row.get("container_inst_id")
        or instance
    )
    try:
        status = TaskStatus(str(row.get("task_status") or TaskStatus.IN_PROGRESS))
    except ValueError:
        status = TaskStatus.TERMINATED
    return Rank(
        index=index,
        node=name,
        instance=instance,
        task_id=task_id,
        task_status=status,
        start_try=1,
        overrides=_first_overrides(described),
        exit=Exit.DONE if status is TaskStatus.COMPLETE else None,
        task_attempt=_number(row.get("retry") or retry),
    )


def _first_overrides(described: Row) -> str:
    """What its task was started with, to be used again. Empty parts are left out."""
    overrides = {name: value for name, value in described.get("overrides", {}).items() if value}
    return json.dumps(overrides, default=str, separators=(",", ":")) if overrides else ""


def _known_node(rank: Rank, row: Row, seen: Row) -> Rank:
    """What the node's row and ECS tell of the node."""
    gpus = registered_gpus(seen)
    instance = str(
        seen.get("containerInstanceArn")
        or rank.instance
        or row.get("container_instance_arn")
        or row.get("container_instance_id")
        or ""
    )
    return replace(
        rank,
        instance=instance,
        host=str(seen.get("ec2InstanceId", "")),
        registered_at=registered_at(seen),
        address=str(row.get("ip", "")),
        ibdev=str(row.get("ibdev", "")),
        gpus=gpus,
        gpus_seen=gpus or None,
        connected=bool(seen.get("agentConnected", True)),
        seen_version=int(seen.get("version", 0)),
    )


def adopted_node(job: Job, rank: Rank, row: Row, at: datetime) -> Node:
    """The node's record, held by the job from now on."""
    return Node(
        name=rank.node,
        cluster=job.cluster,
        instance=rank.instance,
        status=rank.node_status,
        ip=rank.address,
        ibdev=rank.ibdev,
        host=rank.host,
        registered_at=rank.registered_at,
        gpus=rank.gpus,
        gpus_seen=rank.gpus_seen,
        seen_version=rank.seen_version,
        job_id=job.id,
        rank=rank.index,
        job_version=job.version,
        salt=job.salt,
        connected=rank.connected,
        away_since=None if rank.connected else at,
        created_at=moment(row.get("created_at"), at),
        updated_at=at,
        version=1,
    )


def _definition(tasks: Mapping[str, Row], described: Mapping[str, Row]) -> str:
    """What ECS really runs; what a row says only where ECS has forgotten every task of the job."""
    told = [str(task.get("taskDefinitionArn", "")) for task in described.values()]
    said = [str(row.get("task_def_arn", "")) for row in tasks.values()]
    return next((name for name in (*told, *said) if name), "")


def _number(value: object) -> int:
    text = str(value or "0").strip()
    return int(text) if text.isdecimal() and len(text) < 10 else 0
