"""The three tables, how records lie in them as items, and what other tools wrote there before us."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..core import rows
from ..core.codec import CODEC, Codec
from ..core.errors import NodesTaken, Transient, VersionConflict
from ..core.model import Job, JobStatus
from ..core.node_record import Node
from . import items, tables
from .dynamo import MOST_ACTIONS, Dynamo
from .errors import Cancelled
from .items import Item
from .rate_limit import Writes

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

#: The state in which other tools leave a job: a recovery is begun by its events.
_MOST = JobStatus.IN_PROGRESS.value
#: How often a plan that others overtook is made again before the caller has to wait.
TRIES = 8


class RecordTables:
    """The tables of one cluster, as one release reads and writes them."""

    def __init__(
        self,
        client: DynamoDBClient,
        *,
        cluster: str,
        job_table: str = tables.JOBS.name,
        task_table: str = tables.TASKS.name,
        node_table: str = tables.NODES.name,
        lost_after: timedelta = timedelta(minutes=10),
        codec: Codec = CODEC,
    ) -> None:
        self._jobs, self._tasks, self._nodes = job_table, task_table, node_table
        keys = {job_table: tables.JOBS.key, task_table: tables.TASKS.key, node_table: tables.NODES.key}
        self._db = Dynamo(client, keys)
        self._cluster = cluster
        self._lost_after, self._codec = lost_after, codec
        self.writes = Writes()  #: paces those of large records
        self._recent: dict[str, Job] = {}  #: as this process wrote them last

    def _job_item(self, job: Job) -> Item:
        return items.job_item(job, self._lost_after, self._codec)

    def _node_item(self, node: Node) -> Item:
        return items.node_item(node, self._lost_after, self._codec)

    def _job_in(self, item: Mapping[str, Any]) -> Job:
        return items.read_job(item, self._codec)

    def _node_in(self, item: Mapping[str, Any]) -> Node:
        return items.read_node(item, self._codec)

    def _next_node(self, node: Node) -> Item:
        item = self._node_item(node)
        return self._db.next(self._nodes, item, sparse=items.NODE_SPARSE)

    # -- what another tool wrote -----------------------------------------------------------------------------

    def foreign_jobs(self, *, all_states: bool = True) -> Sequence[str]:
        """Jobs of this cluster that have not ended and have no record of ours: in progress, or in any state."""
        here = {"cluster_name": self._cluster}
        waiting = [status.value for status in JobStatus if not status.final] if all_states else [_MOST]
        listed = (
            self._db.query(self._jobs, tables.BY_STATUS, ("job_status", status), same=here)
            for status in waiting
        )
        return [item["job_id"]["S"] for some in listed for item in some if "version" not in item]

    def task_rows(self, task_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The schema's attributes of those tasks that have a row."""
        found = self._db.read({self._tasks: task_ids})[self._tasks]
        return {task_id: items.plain(item) for task_id, item in found.items()}

    def node_rows(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The schema's attributes of those nodes that have a row, with a record of ours or without."""
        found = self._db.read({self._nodes: names})[self._nodes]
        return {name: items.plain(item) for name, item in found.items()}

    def adopt(self, job: Job, nodes: Sequence[Node]) -> None:
        """Write the first record beside another tool's rows, and hold the nodes for it.

        A node that is known keeps what is known. Raises `VersionConflict` if the job has a record by now, and
        `NodesTaken` if another job holds one of its nodes.
        """
        owing = replace(job, owed=tuple((rank.index, job.version) for rank in job.ranks))
        item = self._job_item(owing)
        record = self._db.first(self._jobs, item, sparse=items.JOB_SPARSE)
        for _ in range(TRIES):
            claims = list(self._adopted(job, nodes))
            while len(claims) >= MOST_ACTIONS and self._db.write_all(
                claims[:MOST_ACTIONS], f"adopt {job.id}"
            ):
                del claims[:MOST_ACTIONS]
            if len(claims) >= MOST_ACTIONS:
                continue
            try:
                self._db.transact([record, *claims], f"adopt job {job.id}")
            except Cancelled as exc:
                if exc.failed(0):
                    raise VersionConflict(f"job {job.id} has a record already") from exc
            else:
                return
        raise Transient(f"job {job.id}: its nodes keep moving")

    def _adopted(self, job: Job, nodes: Sequence[Node]) -> Iterator[Item]:
        found = self._db.read({self._nodes: [node.name for node in nodes]})[self._nodes]
        known = {name: self._node_in(item) for name, item in found.items() if "record" in item}
        taken = {n.name: n.refusal for n in known.values() if n.job_id not in ("", job.id)}
        if taken and not job.status.final:
            raise NodesTaken(taken)
        for node in nodes:
            if node.name not in known:
                item = self._node_item(node)
                yield self._db.first(self._nodes, item, sparse=items.NODE_SPARSE)
            elif not (known[node.name].job_id or job.status.final):
                held = rows.claimed_node(known[node.name], job)
                yield self._next_node(replace(held, status=node.status, updated_at=node.updated_at))
