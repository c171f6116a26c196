"""Nodes as the cluster knows them, brought into `ecs_node`: new ones are added, known ones keep their record.

A node is known by its container instance. A machine that registers anew, because its agent lost its memory or because
it was replaced under the same name, gets another one; its record then follows it, or the job does that holds the node.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..core.errors import BadRecord, VersionConflict
from ..core.model import Entry, NodeStatus
from ..core.node_record import Node
from ..engine.ports import Store
from .errors import ForeignRecord, translated
from .node_kind import devices, is_spare, kind_of
from .pages import pages

if TYPE_CHECKING:
    from mypy_boto3_ecs import ECSClient
    from mypy_boto3_ssm import SSMClient

#: A node's own attributes on the cluster, if the operator set them.
NAME_ATTRIBUTE, IP_ATTRIBUTE = "node_name", "ip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A node as the cluster shows it now; `trouble` says why nothing can be started on it at the moment."""

    node: Node
    trouble: str = ""


def instances(ecs: ECSClient, cluster: str) -> Iterator[Mapping[str, Any]]:
    """Every container instance of the cluster."""
    return described(ecs, cluster, listed(ecs, cluster))


def listed(ecs: ECSClient, cluster: str) -> list[str]:
    """The ARN of each, a hundred a call."""
    doing, ask = f"listing the instances of {cluster}", ecs.list_container_instances
    answer = pages(doing, ask, cluster=cluster, maxResults=100)
    return [arn for page in answer for arn in page["containerInstanceArns"]]


def described(ecs: ECSClient, cluster: str, arns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """What ECS knows of these, a hundred a call."""
    for start in range(0, len(arns), 100):
        with translated(f"describing the instances of {cluster}"):
            some = list(arns[start : start + 100])
            found = ecs.describe_container_instances(cluster=cluster, containerInstances=some)
        yield from (dict(instance) for instance in found["containerInstances"])


def node_from(instance: Mapping[str, Any], cluster: str, at: datetime) -> Node:
    """A node of this container instance. Its name: the operator's attribute, else the host's id."""
    said = {str(a["name"]): str(a.get("value", "")) for a in instance.get("attributes", [])}
    gpus = registered_gpus(instance)
    host = str(instance.get("ec2InstanceId", ""))
    connected = bool(instance.get("agentConnected"))
    usable = connected and instance.get("status") == "ACTIVE"
    return Node(
        name=said.get(NAME_ATTRIBUTE) or host or str(instance["containerInstanceArn"]).rpartition("/")[2],
        cluster=cluster,
        instance=str(instance["containerInstanceArn"]),
        host=host,
        registered_at=registered_at(instance),
        ip=said.get(IP_ATTRIBUTE, ""),
        ibdev=devices(said),
        kind=kind_of(said, host),
        spare=bool(is_spare(said)),
        gpus=gpus,
        gpus_seen=gpus,
        fresh=True,
        connected=connected,
        away_since=None if connected else at,
        seen_version=int(instance.get("version", 0)),
        status=NodeStatus.AVAILABLE if usable else NodeStatus.UNKNOWN,
        salt=secrets.token_hex(8),
        created_at=at,
        updated_at=at,
    )


def registered_gpus(instance: Mapping[str, Any]) -> int:
    """How many GPUs the agent has told ECS of."""
    rows = instance.get("registeredResources", [])
    return next((len(row.get("stringSetValue", [])) for row in rows if row.get("name") == "GPU"), 0)


def registered_at(instance: Mapping[str, Any]) -> datetime | None:
    """When the machine became this container instance, as far as ECS tells."""
    at = instance.get("registeredAt")
    return at if isinstance(at, datetime) else None


def sighting(instance: Mapping[str, Any], cluster: str, at: datetime) -> Sighting:
    """The node, and what stands against a start on it."""
    status = str(instance.get("status", ""))
    trouble = ""
    if status != "ACTIVE":
        trouble = f"the cluster says {status}"
    elif not instance.get("agentConnected"):
        trouble = "its ECS agent is not connected; agents come back within minutes, so try again then"
    return Sighting(node=node_from(instance, cluster, at), trouble=trouble)


def addresses(ssm: SSMClient, hosts: Sequence[str]) -> dict[str, str]:
    """Where SSM says the hosts are; it knows EC2 and managed instances alike."""
    found: dict[str, str] = {}
    for start in range(0, len(hosts), 50):
        with translated("asking SSM for addresses"):
            reply = ssm.describe_instance_information(
                Filters=[{"Key": "InstanceIds", "Values": list(hosts[start : start + 50])}], MaxResults=50
            )
        found.update(
            {
                str(i["InstanceId"]): str(i.get("IPAddress", ""))
                for i in reply.get("InstanceInformationList", [])
            }
        )
    return found


def discover(ecs: ECSClient, ssm: SSMClient, store: Store, cluster: str, at: datetime) -> list[Sighting]:
    """Add every node the store does not know; all nodes as the cluster shows them now, under their names here."""
    seen = [sighting(instance, cluster, at) for instance in instances(ecs, cluster)]
    return record(store, seen, lambda hosts: addresses(ssm, hosts), at)


def record(
    store: Store, seen: Iterable[Sighting], ask: Callable[[Sequence[str]], Mapping[str, str]], at: datetime
) -> list[Sighting]:
    """Add those that the store does not know; all of them under their names here. `ask` tells hosts' addresses."""
    known = {node.instance: node for node in store.nodes()}
    named = [replace(s, node=replace(s.node, name=_known_as(s.node, known))) for s in seen]
    new = [s for s in _one_each(named) if s.node.instance not in known]
    where = ask([s.node.host for s in new if s.node.host and not s.node.ip])
    by_name = {node.name: node for node in known.values()}
    shown = {s.node.name: s for s in _one_each(named) if s.node.instance in known}
    for s in new:
        node = replace(s.node, ip=s.node.ip or where.get(s.node.host, ""))
        if node.name in by_name:
            s = replace(s, node=_moved(store, by_name[node.name], node, at))
        else:
            s = _added(store, replace(s, node=node))
        shown[s.node.name] = s
    return list(shown.values())


def _known_as(seen: Node, known: Mapping[str, Node]) -> str:
    """Its name here. One that has lost its name with its old registration is still known by its host."""
    if seen.instance in known:
        return known[seen.instance].name
    if seen.name != seen.host:
        return seen.name
    return next((node.name for node in known.values() if node.host == seen.host), seen.name)


def _one_each(seen: Iterable[Sighting]) -> list[Sighting]:
    """One host may have two registrations: the one whose agent is connected is real."""
    chosen: dict[str, Sighting] = {}
    for s in seen:
        other = chosen.get(s.node.name)
        if other is None or (other.trouble and not s.trouble):
            chosen[s.node.name] = s
    return list(chosen.values())


def _added(store: Store, s: Sighting) -> Sighting:
    """A node of another tool keeps its name and address, and is taken into use only where that tool calls it free."""
    try:
        store.node_of_instance(s.node.instance)
    except ForeignRecord as exc:
        row = exc.row
        status = str(row.get("node_status", ""))
        mine = replace(
            s.node,
            name=str(row["node_name"]),
            ip=str(row.get("ip", "")) or s.node.ip,
            ibdev=str(row.get("ibdev", "")) or s.node.ibdev,
        )
        s = replace(s, node=mine)
        if status not in ("", NodeStatus.AVAILABLE.value):
            return replace(s, trouble=f"another tool has recorded it as {status}")
    except BadRecord as exc:
        return replace(s, node=replace(s.node, name=exc.name), trouble=str(exc))
    store.add_node(s.node)
    return s


def _moved(store: Store, old: Node, new: Node, at: datetime) -> Node:
    """The same machine, or another one in its place, has registered again."""
    if old.job_id or old.status not in (NodeStatus.AVAILABLE, NodeStatus.UNKNOWN, NodeStatus.FAILED):
        return new
    why = f"registered again as {new.instance.rpartition('/')[2]}"
    status = old.status if old.status is NodeStatus.FAILED else new.status
    entry = Entry(at=at, subject=old.name, before=old.status.value, after=status.value, why=why)
    moved = replace(
        new,
        status=status,
        hold=old.hold,
        spare=old.spare or new.spare,
        verdict=old.verdict,
        findings=old.findings,
        errands=old.errands,
        check_try=old.check_try,
        salt=old.salt or new.salt,
        condemned=old.condemned,
        created_at=old.created_at,
        timeline=(*old.timeline, entry),
        version=old.version + 1,
        unknown_fields=old.unknown_fields,
    )
    try:
        store.commit_node(moved)
    except VersionConflict:
        return new  # somebody else is at work on it; the next look will find it
    return moved
