"""Nodes as the cluster knows them, brought into `ecs_node`: new ones are added, known ones keep their record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..core.model import Node, NodeStatus
from ..ports import Store
from .errors import translated

if TYPE_CHECKING:
    from mypy_boto3_ecs import ECSClient
    from mypy_boto3_ssm import SSMClient

#: A node's own attributes on the cluster, if the operator set them.
NAME_ATTRIBUTE, IP_ATTRIBUTE, IB_ATTRIBUTE = "node_name", "ip", "ibdev"


def instances(ecs: ECSClient, cluster: str) -> Iterator[Mapping[str, Any]]:
    """Every container instance of the cluster, a hundred a call."""
    token = ""
    while True:
        with translated(f"listing the instances of {cluster}"):
            more: dict[str, Any] = {"nextToken": token} if token else {}
            page = ecs.list_container_instances(cluster=cluster, maxResults=100, **more)
        if page["containerInstanceArns"]:
            with translated(f"describing the instances of {cluster}"):
                found = ecs.describe_container_instances(
                    cluster=cluster, containerInstances=page["containerInstanceArns"]
                )
            yield from (dict(instance) for instance in found["containerInstances"])
        token = page.get("nextToken", "")
        if not token:
            return


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
        ip=said.get(IP_ATTRIBUTE, ""),
        ibdev=said.get(IB_ATTRIBUTE, ""),
        gpus=gpus,
        gpus_seen=gpus,
        connected=connected,
        away_since=None if connected else at,
        seen_version=int(instance.get("version", 0)),
        status=NodeStatus.AVAILABLE if usable else NodeStatus.UNKNOWN,
        created_at=at,
        updated_at=at,
    )


def registered_gpus(instance: Mapping[str, Any]) -> int:
    """How many GPUs the agent has told ECS of."""
    rows = instance.get("registeredResources", [])
    return next((len(row.get("stringSetValue", [])) for row in rows if row.get("name") == "GPU"), 0)


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


def discover(ecs: ECSClient, ssm: SSMClient, store: Store, cluster: str, at: datetime) -> int:
    """Add every node the store does not know; how many the cluster has."""
    known = {node.instance for node in store.nodes()}
    seen = [node_from(instance, cluster, at) for instance in instances(ecs, cluster)]
    new = [node for node in seen if node.instance not in known]
    where = addresses(ssm, [node.host for node in new if node.host and not node.ip])
    for node in new:
        store.add_node(replace(node, ip=node.ip or where.get(node.host, "")))
    return len(seen)
