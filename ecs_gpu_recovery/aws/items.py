"""Records as DynamoDB items and back: the schema's attributes for everyone, beside them the record for us."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ..core import codec, rows
from ..core.codec import CODEC, Codec
from ..core.errors import BadRecord, Unreadable
from ..core.model import Entry, Job, JobStatus, NodeStatus, Rank
from ..core.node_record import Node
from ..engine.ports import JobLine
from . import tables
from .errors import ForeignRecord

Item = dict[str, Any]

#: A record up to this many bytes is kept as text that people can read. A larger one is compressed: every
#: write is paid for by size, and one item takes only so many kilobytes a second.
READABLE = 16_000
#: Attributes an item has only while they mean something. Absent, they keep it out of the sparse indexes.
JOB_SPARSE = ("wake_at", "live", "rows_owed")
NODE_SPARSE = ("wake_at", "job_id", "container_instance_id", "story", "handed", tables.FORGET_AT)
#: Whoever owes rows pays them at once. If it died, the sweeper finds the job due after this time.
PAY_WITHIN = timedelta(minutes=1)
_STATUSES = {status.value: status for status in NodeStatus}


def text(value: str) -> Item:
    return {"S": value}


def number(value: int) -> Item:
    return {"N": str(value)}


def stamp(at: datetime) -> str:
    """Text that sorts as time does."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def job_item(job: Job, lost_after: timedelta, writer: Codec = CODEC) -> Item:
    item = _attributes(rows.job_row(job)) | _packed(replace(job, owed=(), stop_written=False), writer)
    item |= {"job_name": text(job.spec.name)}
    if not job.status.final:
        item["live"] = text("1")
    return item | owed(job) | wake_up(job, lost_after)


def unless_stopped(old: Job, new: Job) -> Item:
    """What the row must not say when a job is moved: what another tool wrote there is not written over unheard."""
    heard = old.stop_written or old.status.final or new.stopping
    return {} if heard else {"job_status": text(JobStatus.USER_STOPPED.value)}


def units(item: Item) -> int:
    """About what it costs to write a job's item: one for each kilobyte. The rest of it is small."""
    listed = sum(len(one["S"]) + 1 for value in item.values() for one in value.get("L", ()))
    return 1 + (len(next(iter(item["record"].values()))) + listed) // 1024


def wake_up(job: Job, lost_after: timedelta) -> Item:
    """When the sweeper must look at a job: for what it waits for, or for rows that are owed."""
    times = [job.wake_at(lost_after), job.updated_at + PAY_WITHIN if job.owed else None]
    soonest = min((at for at in times if at is not None), default=None)
    return {"wake_at": text(stamp(soonest))} if soonest is not None else {}


def node_item(node: Node, lost_after: timedelta, writer: Codec = CODEC) -> Item:
    wake_at = node.wake_at(lost_after)
    item = _attributes(rows.node_row(node)) | _packed(node, writer)
    item |= {"job_version": number(node.job_version)}
    if wake_at is not None:
        item["wake_at"] = text(stamp(wake_at))
    if node.job_id:
        item["job_id"] = text(node.job_id)
        if node.own:  # what its job would show of it is not the truth now
            item["handed"] = text(node.handed)
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


def story(lines: Iterable[Entry]) -> Item:
    """Lines of a node's timeline that are put beside its record, without opening it."""
    return {"L": [text(codec.to_text(line)) for line in lines]}


def task_item(row: Mapping[str, str], version: int) -> Item:
    """A task's row, with the version of the job that wrote it."""
    return _attributes(row) | {"job_version": number(version)}


def read_job(item: Mapping[str, Any], reader: Codec = CODEC) -> Job:
    name = item["job_id"]["S"]
    if "record" not in item:
        raise ForeignRecord(f"job {name}", plain(item))
    with _readable("job", name, item):
        job = reader.job(name, _unpacked(item["record"]), _read_owed(item))
        written = item.get("job_status") == text(JobStatus.USER_STOPPED.value)
        return replace(job, stop_written=True) if written and not (job.status.final or job.stopping) else job


def owed(job: Job) -> Item:
    return {"rows_owed": {"NS": [str(index) for index, _ in job.owed]}} if job.owed else {}


def _read_owed(item: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Which version changed the rows is not kept: at the latest it was this one."""
    kept = item.get("rows_owed", {}).get("NS", ())
    return tuple(sorted((int(index), version_of(item)) for index in kept))


def read_node(item: Mapping[str, Any], reader: Codec = CODEC) -> Node:
    name = item["node_name"]["S"]
    if "record" not in item:
        raise ForeignRecord(f"node {name}", plain(item))
    with _readable("node", name, item):
        node = reader.node(name, _unpacked(item["record"]))
        if version_of(item) <= node.version:
            return node
        # The job that holds it has moved it without opening the record: see `shown_node`.
        status = str(item.get("node_status", {}).get("S", ""))
        more = [codec.load_entry(json.loads(line["S"])) for line in item.get("story", {}).get("L", ())]
        return replace(
            node,
            timeline=(*node.timeline, *more),
            status=_STATUSES.get(status, node.status),
            job_version=version_of(item, "job_version"),
            updated_at=datetime.fromisoformat(item["updated_at"]["S"]),
            version=version_of(item),
        )


def read_line(item: Mapping[str, Any]) -> JobLine:
    name = item["job_id"]["S"]
    with _readable("job", name, item):
        rest = ("job_name", "job_status", "retry", "num_nodes", "created_at", "updated_at")
        return JobLine.read(name, *(item[key]["S"] for key in rest))


@contextmanager
def _readable(kind: str, name: str, item: Mapping[str, Any]) -> Iterator[None]:
    """What stands beside a record may be damaged too."""
    try:
        yield
    except BadRecord as exc:
        exc.version = version_of(item)
        raise
    except (ValueError, TypeError, KeyError, AttributeError, zlib.error) as exc:
        raise Unreadable(kind, name, f"{type(exc).__name__}: {exc}") from exc


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
    parts = [("SET", sets), ("REMOVE", [f"#{name}" for name in gone])]
    return {
        "Key": {key: item[key]},
        "UpdateExpression": " ".join(f"{verb} {', '.join(some)}" for verb, some in parts if some),
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


def _packed(record: Job | Node, writer: Codec) -> Item:
    """The record, and its version and format, so that conditions can be put on them."""
    packed = writer.text(record)
    small = len(packed) <= READABLE
    return {
        "record": text(packed) if small else {"B": zlib.compress(packed.encode())},
        "version": number(record.version),
        "format": number(writer.format),
    }


def _unpacked(value: Mapping[str, Any]) -> str | bytes:
    return str(value["S"]) if "S" in value else zlib.decompress(value["B"])
