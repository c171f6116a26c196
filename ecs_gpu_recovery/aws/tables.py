"""The three tables and their indexes. Tests make them from here, and so does the deployment.

The keys and attributes are the published schema's. Each index answers one question, said in `why`; there is
none for a question nobody asks, because an index is written again with the records in it. Some are sparse: an
item without the sort key is not in them, so a question about few records reads few, however long the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Of a node whose machine is gone: DynamoDB deletes its row after this time, in seconds of the epoch.
FORGET_AT = "forget_at"
#: An index that carries these answers a list without opening a record.
_JOB_LINE = (
    "cluster_name",
    "job_name",
    "job_status",
    "retry",
    "num_nodes",
    "created_at",
    "updated_at",
    "version",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A global secondary index. Every key attribute is a string."""

    name: str
    partition: str
    sort: str = ""
    carries: tuple[str, ...] = ()  #: beside the keys; "*" means everything
    why: str

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.partition, self.sort) if self.sort else (self.partition,)

    @property
    def projection(self) -> dict[str, Any]:
        if self.carries == ("*",):
            return {"ProjectionType": "ALL"}
        extra = [name for name in self.carries if name not in self.keys]
        if extra:
            return {"ProjectionType": "INCLUDE", "NonKeyAttributes": extra}
        return {"ProjectionType": "KEYS_ONLY"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table, by the name the schema gives it; a deployment may choose another name."""

    name: str
    key: str
    indexes: tuple[Index, ...] = ()

    @property
    def key_attributes(self) -> tuple[str, ...]:
        """Every attribute that a key is made of, in a stable order."""
        return tuple(dict.fromkeys([self.key, *(name for index in self.indexes for name in index.keys)]))

    def definition(self, name: str = "") -> dict[str, Any]:
        """The arguments of `CreateTable`."""
        made: dict[str, Any] = {
            "TableName": name or self.name,
            "BillingMode": "PAY_PER_REQUEST",
            "KeySchema": _key_schema(self.key),
            "AttributeDefinitions": [{"AttributeName": a, "AttributeType": "S"} for a in self.key_attributes],
        }
        if self.indexes:
            made["GlobalSecondaryIndexes"] = [
                {"IndexName": i.name, "KeySchema": _key_schema(*i.keys), "Projection": i.projection}
                for i in self.indexes
            ]
        return made


def _key_schema(partition: str, sort: str = "") -> list[dict[str, str]]:
    schema = [{"AttributeName": partition, "KeyType": "HASH"}]
    return [*schema, {"AttributeName": sort, "KeyType": "RANGE"}] if sort else schema


BY_CLUSTER = "by_cluster"
BY_STATUS = "by_status"
BY_INSTANCE = "by_instance"
DUE = "due"
LIVE = "live"

JOBS = Table(
    name="ecs_job",
    key="job_id",
    indexes=(
        Index(
            name=BY_CLUSTER,
            partition="cluster_name",
            sort="created_at",
            carries=_JOB_LINE,
            why="people list the jobs of a cluster, newest first",
        ),
        Index(
            name=BY_STATUS,
            partition="job_status",
            sort="created_at",
            carries=_JOB_LINE,
            why="people list the jobs in one status, newest first",
        ),
        Index(
            name=DUE,
            partition="cluster_name",
            sort="wake_at",
            why="the sweeper asks which jobs have a deadline or an unsent order by now; others are not in it",
        ),
        Index(
            name=LIVE,
            partition="cluster_name",
            sort="live",
            why="the sweeper compares every job that has not ended with the cluster; others are not in it",
        ),
    ),
)

#: Every question about a task starts with its id, so the key alone answers it.
TASKS = Table(name="ecs_task", key="ecs_task_id")

NODES = Table(
    name="ecs_node",
    key="node_name",
    indexes=(
        Index(
            name=BY_CLUSTER,
            partition="cluster_name",
            sort="node_name",
            carries=("*",),
            why="people and the sweeper list the nodes of a cluster, whole: they are few and small",
        ),
        Index(
            name=BY_INSTANCE,
            partition="container_instance_id",
            why="an event names a container instance, not a node",
        ),
        Index(
            name=DUE,
            partition="cluster_name",
            sort="wake_at",
            why="the sweeper asks which nodes have an errand due by now; others are not in it",
        ),
    ),
)

#: No record, but until when the turns of the functions' calls are taken. It has a table of its own: whoever reads the
#: others finds nothing in them that the schema does not know.
CALLS = Table(name="calls", key="name")
#: The record of the fleet's guard, one for each cluster.
GUARD = Table(name="guard", key="cluster_name")
TABLES = (JOBS, TASKS, NODES)
