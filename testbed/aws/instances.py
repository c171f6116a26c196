"""The ECS actions on container instances and their attributes."""

from __future__ import annotations

import json
import re
from typing import Any

from . import shapes
from .cluster import Cluster
from .ecs import Action, TaskActions, find_instance, seen
from .hosts import Hosts
from .model import Node
from .requests import ApiError, invalid, listed, page, page_size, short

_CLAUSE = re.compile(
    r"\s*(?P<subject>ec2InstanceId|agentConnected|attribute:[\w./-]+)\s*"
    r"(?:(?P<op>==|!=|equals|not_equals)\s*(?P<value>[\w./:-]+)|in\s*\[(?P<values>[^\]]*)\]|(?P<exists>exists))\s*"
)


class InstanceActions:
    """ListContainerInstances, DescribeContainerInstances, the state, registration and attributes."""

    def __init__(self, cluster: Cluster, hosts: Hosts, tasks: TaskActions) -> None:
        self._world, self._hosts, self._cluster_of = cluster, hosts, tasks.cluster_of
        self.actions: dict[str, Action] = {
            "ListContainerInstances": self.list_instances,
            "DescribeContainerInstances": self.describe,
            "UpdateContainerInstancesState": self.update_state,
            "RegisterContainerInstance": self.register,
            "DeregisterContainerInstance": self.deregister,
            "PutAttributes": self.put_attributes,
            "DeleteAttributes": self.delete_attributes,
            "ListAttributes": self.list_attributes,
        }

    # -- looking -------------------------------------------------------------------------------------------

    def list_instances(self, data: dict[str, Any]) -> dict[str, Any]:
        """All that are not INACTIVE, or those of one status."""
        cluster, status = self._cluster_of(data), data.get("status")
        nodes = [node for node in self._world.nodes.values() if node.cluster == cluster]
        nodes = [n for n in nodes if (n.status == status if status else n.status != "INACTIVE")]
        if data.get("filter"):
            nodes = [node for node in nodes if _matches(node, data["filter"])]
        arns, more = page(
            [node.arn for node in nodes], data.get("nextToken"), page_size(data, "maxResults", 100)
        )
        return {"containerInstanceArns": arns, **({"nextToken": more} if more else {})}

    def describe(self, data: dict[str, Any]) -> dict[str, Any]:
        cluster, include = self._cluster_of(data), data.get("include") or ()
        found, failures = self._resolve(listed(data, "containerInstances", most=100), cluster)
        answers = []
        for node in found:
            shape = self._seen(node)
            if shape is None:
                failures.append({"arn": node.arn, "reason": "MISSING"})
            else:
                answers.append(
                    _answer(shape, tags="TAGS" in include, health="CONTAINER_INSTANCE_HEALTH" in include)
                )
        return {"containerInstances": answers, "failures": failures}

    def _seen(self, node: Node) -> dict[str, Any] | None:
        return seen(node.views, self._world) if self._world.knobs.read_lag_s else self._shape(node)

    def _shape(self, node: Node) -> dict[str, Any]:
        return shapes.node_shape(node, self._world.live_on(node), self._world.place)

    def _resolve(self, references: list[str], cluster: str) -> tuple[list[Node], list[dict[str, str]]]:
        found, failures = [], []
        for reference in references:
            node = find_instance(self._world, reference, cluster)
            if node is None:
                known = reference.startswith("arn:")
                arn = reference if known else self._world.place.arn("container-instance", cluster, reference)
                failures.append({"arn": arn, "reason": "MISSING"})
            else:
                found.append(node)
        return found, failures

    # -- changing ------------------------------------------------------------------------------------------

    def update_state(self, data: dict[str, Any]) -> dict[str, Any]:
        cluster, status = self._cluster_of(data), data.get("status")
        if status not in ("ACTIVE", "DRAINING"):
            raise invalid("Container instances status should be one of [ACTIVE, DRAINING].")
        found, failures = self._resolve(listed(data, "containerInstances", most=10), cluster)
        changed = []
        for node in found:
            if node.status == "INACTIVE":
                failures.append({"arn": node.arn, "reason": "INACTIVE"})
                continue
            if node.status != status:
                node.status = status
                self._world.node_changed(node)
            changed.append(_answer(self._shape(node), tags=True, health=False))
        return {"containerInstances": changed, "failures": failures}

    def register(self, data: dict[str, Any]) -> dict[str, Any]:
        """What an agent calls when it starts. The identity document need not be signed here."""
        document = json.loads(data.get("instanceIdentityDocument") or "{}")
        rows = {row["name"]: row for row in data.get("totalResources", ())}
        given = {row["name"]: row.get("value", "") for row in data.get("attributes", ())}
        node = self._world.add_node(
            cluster=short(data.get("cluster") or "default"),
            host_id=document.get("instanceId", ""),
            gpus=rows.get("GPU", {}).get("stringSetValue", ()),
            attributes=given,
            cpu=rows.get("CPU", {}).get("integerValue", 2048),
            memory=rows.get("MEMORY", {}).get("integerValue", 3767),
        )
        return {"containerInstance": _answer(self._shape(node), tags=True, health=False)}

    def deregister(self, data: dict[str, Any]) -> dict[str, Any]:
        node = find_instance(self._world, data.get("containerInstance", ""), self._cluster_of(data))
        if node is None:
            raise invalid("The referenced container instance was not found.")
        if self._world.live_on(node) and not data.get("force"):
            raise invalid("Found running tasks on the instance.")
        self._hosts.deregister(node)
        return {"containerInstance": _answer(self._shape(node), tags=True, health=False)}

    # -- attributes ----------------------------------------------------------------------------------------

    def put_attributes(self, data: dict[str, Any]) -> dict[str, Any]:
        """At most 10 in a call, and 10 of one's own on an instance. All or none."""
        cluster, rows = self._cluster_of(data), listed(data, "attributes", most=10)
        after: dict[str, dict[str, str]] = {}
        for row in rows:
            name, value = row.get("name", ""), row.get("value", "")
            if not 1 <= len(name) <= 128 or len(value) > 128:
                raise invalid("Attribute names have 1 to 128 characters, values at most 128.")
            node = self._target(row, cluster)
            after.setdefault(node.arn, dict(node.attributes))[name] = value
        for arn, attributes in after.items():
            if len(attributes) > 10:
                raise ApiError(
                    "AttributeLimitExceededException", f"{arn} can have at most 10 custom attributes."
                )
        for arn, attributes in after.items():
            self._world.nodes[arn].attributes = attributes
        return {"attributes": rows}

    def delete_attributes(self, data: dict[str, Any]) -> dict[str, Any]:
        cluster, rows = self._cluster_of(data), listed(data, "attributes", most=10)
        for row in rows:
            self._target(row, cluster).attributes.pop(row.get("name", ""), None)
        return {"attributes": rows}

    def list_attributes(self, data: dict[str, Any]) -> dict[str, Any]:
        cluster, name, value = self._cluster_of(data), data.get("attributeName"), data.get("attributeValue")
        rows = [
            {"name": key, "value": text, "targetType": "container-instance", "targetId": node.arn}
            for node in self._world.nodes.values()
            if node.cluster == cluster and node.status != "INACTIVE"
            for key, text in sorted(shapes.attribute_values(node).items())
            if name in (None, key) and value in (None, text)
        ]
        some, more = page(rows, data.get("nextToken"), page_size(data, "maxResults", 100))
        return {"attributes": some, **({"nextToken": more} if more else {})}

    def _target(self, row: dict[str, Any], cluster: str) -> Node:
        reference = row.get("targetId", "")
        if not reference.startswith("arn:") and row.get("targetType") != "container-instance":
            raise invalid("A short targetId needs a targetType.")
        node = find_instance(self._world, reference, cluster)
        if node is None or node.status == "INACTIVE":
            raise ApiError("TargetNotFoundException", f"The specified target wasn't found: {reference}")
        return node


def _answer(shape: dict[str, Any], *, tags: bool, health: bool) -> dict[str, Any]:
    """An instance as the API shows it: without the cluster, and with health only where it was asked for."""
    hidden = {"clusterArn"} if health else {"clusterArn", "healthStatus"}
    answer = {name: value for name, value in shape.items() if name not in hidden}
    return answer if tags else {**answer, "tags": []}


def _matches(node: Node, expression: str) -> bool:
    """The part of the cluster query language that fleets use: clauses joined by `and`."""
    return all(_clause(node, part) for part in re.split(r"\s+(?:and|&&)\s+", expression))


def _clause(node: Node, text: str) -> bool:
    match = _CLAUSE.fullmatch(text)
    if match is None:
        raise invalid(f"The simulator does not understand the filter {text!r}.")
    subject = match["subject"]
    attributes = shapes.attribute_values(node)
    actual: str | None
    if subject == "ec2InstanceId":
        actual = node.host_id
    elif subject == "agentConnected":
        actual = str(node.connected).lower()
    else:
        actual = attributes.get(subject.partition(":")[2])
    if match["exists"]:
        return actual is not None
    if match["values"] is not None:
        return actual in [part.strip(" '\"") for part in match["values"].split(",")]
    return (actual == match["value"]) == (match["op"] in ("==", "equals"))
