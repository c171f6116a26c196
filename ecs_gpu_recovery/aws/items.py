"""Records as DynamoDB items and back: the schema's attributes for everyone, beside them the record for us."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ..core import codec, rows
from ..core.model import Job, JobStatus, Node, NodeStatus, Rank, TaskStatus
from ..engine.ports import JobLine
from .errors import ForeignRecord

Item = dict[str, Any]

#: A record up to this many bytes is kept as text that people can read. A larger one is compressed: every
#: write is paid for by size, and one item takes only so many kilobytes a second.
READABLE = 16_000
#: Attributes an item has only while they mean something. Absent, they keep it out of the sparse indexes.
JOB_SPARSE = ("wake_at", "live")
NODE_SPARSE = ("wake_at", "job_id", "container_instance_id")
_STATUSES = {status.value: status for status in NodeStatus}


def text(value: str) -> Item:
    return {"S": value}


def number(value: int) -> Item:
    return {"N": str(value)}


def stamp(at: datetime) -> str:
    """Text that sorts as time does."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def job_item(job: Job, lost_after: timedelta) -> Item:
    wake_at = job.wake_at(lost_after)
    item = _attributes(rows.job_row(job))
    item |= {"job_name": text(job.spec.name), "version": number(job.version), "record": _pack(job)}
    if wake_at is not None:
        item["wake_at"] = text(stamp(wake_at))
    if not job.status.final:
        item["live"] = text("1")
    return item


def node_item(node: Node, lost_after: timedelta) -> Item:
    wake_at = node.wake_at(lost_after)
    item = _attributes(rows.node_row(node))
    item |= {"job_version": number(node.job_version), "version": number(node.version), "record": _pack(node)}
    if wake_at is not None:
        item["wake_at"] = text(stamp(wake_at))
    if node.job_id:
        item["job_id"] = text(node.job_id)
    # An index refuses an empty key.
    if not node.instance:
        del item["container_instance_id"]
    return item


def shown_node(job: Job, rank: Rank) -> Item:
    """What a job says of a node that it holds, as far as other tools see it."""
    return {
        "node_name": text(rank.node),
        "node_status": text(rank.node_status.value),
        "updated_at": text(job.updated_at.isoformat()),
        "job_version": number(job.version),
    }


def task_items(job: Job, ranks: Iterable[Rank]) -> dict[str, Item]:
    """The rows of the tasks that these ranks have, by task id, each with the version that wrote it."""
    found = {}
    for rank in ranks:
        row = rows.task_row(job, rank)
        if row is not None:
            found[rank.task_id] = _attributes(row) | {"job_version": number(job.version)}
    return found


def past_task_items(job: Job, ranks: Iterable[Rank]) -> dict[str, Item]:
    """How the row of each rank's task before this one ends, if nothing else was written of it."""
    ended = {
        "task_status": text(TaskStatus.TERMINATED.value),
        "updated_at": text(job.updated_at.isoformat()),
        "job_version": number(job.version),
    }
    past = [rank.past_tasks[-1].partition("/")[2] for rank in ranks if rank.past_tasks]
    return {task_id: {"ecs_task_id": text(task_id), **ended} for task_id in past}


def read_job(item: Mapping[str, Any]) -> Job:
    if "record" not in item:
        raise ForeignRecord(f"job {item['job_id']['S']}", plain(item))
    return codec.load_job(_unpack(item["record"]))


def read_node(item: Mapping[str, Any]) -> Node:
    if "record" not in item:
        raise ForeignRecord(f"node {item['node_name']['S']}", plain(item))
    node = codec.load_node(_unpack(item["record"]))
    if version_of(item) <= node.version:
        return node
    # The job that holds it has moved it without opening the record: see `shown_node`.
    status = str(item.get("node_status", {}).get("S", ""))
    return replace(
        node,
        status=_STATUSES.get(status, node.status),
        job_version=version_of(item, "job_version"),
        updated_at=datetime.fromisoformat(item["updated_at"]["S"]),
        version=version_of(item),
    )


def read_line(item: Mapping[str, Any]) -> JobLine:
    return JobLine(
        id=item["job_id"]["S"],
        name=item["job_name"]["S"],
        status=JobStatus(item["job_status"]["S"]),
        attempt=int(item["retry"]["S"]),
        nodes=int(item["num_nodes"]["S"]),
        created_at=datetime.fromisoformat(item["created_at"]["S"]),
        updated_at=datetime.fromisoformat(item["updated_at"]["S"]),
    )


def version_of(item: Mapping[str, Any], name: str = "version") -> int:
    return int(item[name]["N"]) if name in item else 0


def assignment(
    item: Item, *, key: str, sparse: Iterable[str] = (), once: Iterable[str] = ()
) -> dict[str, Any]:
    """The arguments of an update that gives an item these attributes and leaves those of other tools alone.

    Attributes in `sparse` that it does not have are removed; those in `once` are kept if they are there.
    """
    once = set(once)
    names = {f"#{name}": name for name in item if name != key}
    sets = [f"#{a} = if_not_exists(#{a}, :{a})" if a in once else f"#{a} = :{a}" for a in names.values()]
    gone = [name for name in sparse if name not in item]
    names |= {f"#{name}": name for name in gone}
    return {
        "Key": {key: item[key]},
        "UpdateExpression": f"SET {', '.join(sets)}"
        + (f" REMOVE {', '.join(f'#{a}' for a in gone)}" if gone else ""),
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": {f":{name}": value for name, value in item.items() if name != key},
    }


def _attributes(row: Mapping[str, str | list[str]]) -> Item:
    return {
        name: text(value) if isinstance(value, str) else {"L": [text(one) for one in value]}
        for name, value in row.items()
    }


def plain(item: Mapping[str, Any]) -> dict[str, str | list[str]]:
    """An item as text and lists of text, whichever types another tool chose for them."""
    row: dict[str, str | list[str]] = {}
    for name, value in item.items():
        ((kind, inner),) = value.items()
        if kind in ("S", "N"):
            row[name] = str(inner)
        elif kind in ("SS", "NS"):
            row[name] = sorted(map(str, inner))
        elif kind == "L":
            row[name] = [str(value) for one in inner for kind, value in one.items() if kind in ("S", "N")]
    return row


def _pack(record: Job | Node) -> Item:
    packed = json.dumps(codec.dump(record), separators=(",", ":"))
    return text(packed) if len(packed) <= READABLE else {"B": zlib.compress(packed.encode())}


def _unpack(value: Mapping[str, Any]) -> Any:
    return json.loads(value["S"] if "S" in value else zlib.decompress(value["B"]))
