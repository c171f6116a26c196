"""Auto Scaling, as far as one instance of a group is exchanged for another, and groups are listed.

As its documents say: an instance that no group has is a ValidationError; the answer comes at once, the instance is
terminated later, and unless the group is to shrink, it launches another of the same make, with the
group's own tags (here: those of its machines) if it passes them on.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .cluster import Cluster
from .ecs import Action
from .hosts import Hosts
from .model import Node
from .requests import ApiError, page, page_size


class GroupActions:
    """TerminateInstanceInAutoScalingGroup and DescribeAutoScalingGroups."""

    def __init__(self, cluster: Cluster, hosts: Hosts) -> None:
        self._world, self._hosts = cluster, hosts
        self._leaving: set[str] = set()
        self.actions: dict[str, Action] = {
            "TerminateInstanceInAutoScalingGroup": self.terminate,
            "DescribeAutoScalingGroups": self.describe,
        }

    def describe(self, data: dict[str, Any]) -> dict[str, Any]:
        members: dict[str, list[Node]] = {}
        for node in self._world.nodes.values():
            if node.group and not (node.forgotten or node.terminated):
                members.setdefault(node.group, []).append(node)
        some, more = page(
            sorted(members),
            data.get("NextToken"),
            page_size(data, "MaxRecords", 100),
            error="InvalidNextToken",
        )
        found = [
            {
                "AutoScalingGroupName": name,
                "Instances": [{"InstanceId": node.host_id} for node in members[name]],
                "Tags": [
                    {"Key": key, "Value": value, "PropagateAtLaunch": self._world.knobs.passes_tags_on}
                    for key, value in members[name][0].host_tags.items()
                ],
            }
            for name in some
        ]
        return {"AutoScalingGroups": found, **({"NextToken": more} if more else {})}

    def terminate(self, data: dict[str, Any]) -> dict[str, Any]:
        host = data["InstanceId"]
        node = next((n for n in self._world.nodes.values() if n.host_id == host and not n.forgotten), None)
        if node is None or not node.group or node.terminated:
            said = f"Instance Id not found - No managed instance found for instance ID {host}"
            raise ApiError("ValidationError", said, 400)
        if host not in self._leaving:
            self._leaving.add(host)
            self._world.agenda.after(
                self._world.knobs.terminate_s,
                partial(self._ended, node, shrinks=data["ShouldDecrementDesiredCapacity"]),
            )
        return {
            "Activity": {
                "ActivityId": self._world.uuid(),
                "AutoScalingGroupName": node.group,
                "Description": f"Terminating EC2 instance: {host}",
                "Cause": "an instance was taken out of service in response to a user request",
                "StartTime": self._world.agenda.now(),
                "StatusCode": "InProgress",
                "Progress": 0,
            }
        }

    def _ended(self, node: Node, *, shrinks: bool) -> None:
        self._hosts.terminate(node)
        if not shrinks and self._world.knobs.launch_s >= 0:
            self._world.agenda.after(self._world.knobs.launch_s, partial(self._launch, node))

    def _launch(self, old: Node) -> None:
        """The same make; the name that an operator gave to the old one is not in the group's template."""
        made = {name: value for name, value in old.attributes.items() if name != "node_name"}
        new = self._world.add_node(
            cluster=old.cluster,
            gpus=len(old.gpus),
            cpu=old.cpu,
            memory=old.memory,
            attributes=made,
        )
        new.group = old.group
        new.host_tags = dict(old.host_tags) if self._world.knobs.passes_tags_on else {}
