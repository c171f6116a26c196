"""The ECS actions on tasks, with the limits and refusals that callers meet in the real service."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from . import shapes
from .cluster import Cluster
from .definitions import Definitions, Needs
from .model import Node, Task
from .requests import ApiError, invalid, listed, page, page_size, short

Action = Callable[[dict[str, Any]], dict[str, Any]]
_STARTED_BY = re.compile(r"[A-Za-z0-9/_-]*")
_ONE_HOST = re.compile(r"\s*ec2InstanceId\s*(?:==\s*'?([\w-]+)'?|in\s*\[([^\]]*)\])\s*")


class TaskActions:
    """StartTask, RunTask, StopTask, DescribeTasks, ListTasks and the tags."""

    def __init__(self, cluster: Cluster, definitions: Definitions) -> None:
        self._world, self._definitions = cluster, definitions
        self._tokens: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}
        self.actions: dict[str, Action] = {
            "StartTask": self.start_task,
            "RunTask": self.run_task,
            "StopTask": self.stop_task,
            "DescribeTasks": self.describe_tasks,
            "ListTasks": self.list_tasks,
            "TagResource": self.tag_resource,
            "UntagResource": self.untag_resource,
            "ListTagsForResource": self.list_tags,
        }

    # -- starting ------------------------------------------------------------------------------------------

    def start_task(self, data: dict[str, Any]) -> dict[str, Any]:
        """One task on each named instance; those that refuse are listed, with HTTP 200 all the same."""
        cluster = self.cluster_of(data)
        references = listed(data, "containerInstances", most=10)
        self._check_started_by(data, 36)
        definition, needs = self._definition(data)
        tasks: list[Task] = []
        failures = []
        for reference in references:
            node = self._instance(reference, cluster)
            reason = "MISSING" if node is None else self._world.refusal(node, needs)
            if node is None or reason:
                arn = node.arn if node else self._missing_arn("container-instance", reference, cluster)
                failures.append({"arn": arn, "reason": reason})
            else:
                tasks.append(self._start(node, definition, needs, data))
        return {"tasks": [self._shape(task) for task in tasks], "failures": failures}

    def run_task(self, data: dict[str, Any]) -> dict[str, Any]:
        """ECS picks the instance: here, the first that has room. A client token makes it happen once."""
        cluster = self.cluster_of(data)
        self._check_started_by(data, 128)
        token = data.get("clientToken", "")
        asked = json.dumps({k: v for k, v in data.items() if k != "clientToken"}, sort_keys=True)
        if token and (cluster, token) in self._tokens:
            before, answer = self._tokens[cluster, token]
            if before != asked:
                raise ApiError("ConflictException", "The client token was used with other parameters.")
            return answer
        definition, needs = self._definition(data)
        count = int(data.get("count") or 1)
        if not 1 <= count <= 10:
            raise invalid("Count must be between 1 and 10.")
        nodes = self._candidates(cluster, data)
        tasks: list[Task] = []
        failures: list[dict[str, str]] = []
        for _ in range(count):
            reasons = {node.arn: self._world.refusal(node, needs) for node in nodes}
            node = next((one for one in nodes if not reasons[one.arn]), None)
            if node is None:
                failures += [{"arn": arn, "reason": reason} for arn, reason in reasons.items()] or [
                    {"reason": "MISSING"}
                ]
                break
            tasks.append(self._start(node, definition, needs, data))
        answer = {"tasks": [self._shape(task) for task in tasks], "failures": failures}
        if token:
            self._tokens[cluster, token] = (asked, answer)
        return answer

    def _start(self, node: Node, definition: dict[str, Any], needs: Needs, data: dict[str, Any]) -> Task:
        return self._world.start(
            node,
            definition,
            needs,
            overrides=data.get("overrides") or {},
            started_by=data.get("startedBy", ""),
            group=data.get("group", ""),
            tags=data.get("tags") or (),
        )

    def _candidates(self, cluster: str, data: dict[str, Any]) -> list[Node]:
        external = data.get("launchType", "EC2") == "EXTERNAL"
        nodes = [n for n in self._world.nodes.values() if n.cluster == cluster and n.external == external]
        for constraint in data.get("placementConstraints") or ():
            match = _ONE_HOST.fullmatch(constraint.get("expression", ""))
            if constraint.get("type") != "memberOf" or match is None:
                raise invalid("The simulator knows no other placement constraint than one on ec2InstanceId.")
            allowed = {part.strip(" '\"") for part in (match[1] or match[2]).split(",")}
            nodes = [node for node in nodes if node.host_id in allowed]
        return nodes

    def _definition(self, data: dict[str, Any]) -> tuple[dict[str, Any], Needs]:
        definition = self._definitions.find(data.get("taskDefinition", ""))
        if definition is None:
            raise ApiError("ClientException", "TaskDefinition not found.")
        if definition.get("status") != "ACTIVE":
            raise ApiError("ClientException", "TaskDefinition is inactive")
        overrides = data.get("overrides") or {}
        if len(json.dumps(overrides, separators=(",", ":"))) > 8192:
            raise invalid("Container Overrides length must be at most 8192")
        if len(data.get("tags") or ()) > 50:
            raise invalid("A resource can have at most 50 tags.")
        names = {row["name"] for row in definition["containerDefinitions"]}
        for one in overrides.get("containerOverrides", ()):
            if one.get("name") not in names:
                which = f"Override for container named {one.get('name')}"
                raise invalid(f"{which} is not a container in the TaskDefinition.")
        return definition, Needs(definition, overrides)

    @staticmethod
    def _check_started_by(data: dict[str, Any], most: int) -> None:
        started_by = data.get("startedBy", "")
        if len(started_by) > most:
            raise invalid(f"startedBy cannot be longer than {most} characters.")
        if not _STARTED_BY.fullmatch(started_by):
            raise invalid("startedBy contains invalid characters.")

    # -- stopping ------------------------------------------------------------------------------------------

    def stop_task(self, data: dict[str, Any]) -> dict[str, Any]:
        """Returns at once; the task ends later. Its tags are gone."""
        cluster = self.cluster_of(data)
        task = self._world.task(data.get("task", ""), cluster)
        if task is None:
            raise invalid("The referenced task was not found.")
        if len(data.get("reason", "")) > 1024:
            raise invalid("reason is too long.")
        task.tags.clear()
        self._world.stop(task, data.get("reason", ""))
        return {"task": self._shape(task)}

    # -- looking -------------------------------------------------------------------------------------------

    def describe_tasks(self, data: dict[str, Any]) -> dict[str, Any]:
        cluster = self.cluster_of(data)
        tasks, failures = [], []
        for reference in listed(data, "tasks", most=100):
            task = self._world.task(reference, cluster)
            shape = None if task is None else self._seen(task)
            if shape is None:
                failures.append({"arn": self._missing_arn("task", reference, cluster), "reason": "MISSING"})
                continue
            if "TAGS" not in (data.get("include") or ()):
                shape = {**shape, "tags": []}
            tasks.append(shape)
        return {"tasks": tasks, "failures": failures}

    def list_tasks(self, data: dict[str, Any]) -> dict[str, Any]:
        """`startedBy` stands alone, and finds only tasks that are meant to run."""
        cluster = self.cluster_of(data)
        filters = ("containerInstance", "family", "serviceName", "desiredStatus", "launchType")
        if data.get("startedBy") and any(data.get(name) for name in filters):
            raise invalid(
                "When you specify startedBy as the filter, it must be the only filter that you use."
            )
        if "maxResults" in data and not 1 <= data["maxResults"] <= 100:
            raise invalid("maxResults must be between 1 and 100.")
        found = [
            task
            for task in self._world.all_tasks()
            if task.node.cluster == cluster and self._wanted(task, data)
        ]
        arns, more = page(
            [task.arn for task in found], data.get("nextToken"), page_size(data, "maxResults", 100)
        )
        return {"taskArns": arns, **({"nextToken": more} if more else {})}

    def _wanted(self, task: Task, data: dict[str, Any]) -> bool:
        shape = self._seen(task)
        if shape is None:
            return False
        instance, family = data.get("containerInstance"), data.get("family")
        return (
            shape["desiredStatus"] == data.get("desiredStatus", "RUNNING")
            and (not data.get("startedBy") or task.started_by == data["startedBy"])
            and (not instance or short(instance) == short(task.node.arn))
            and (not family or task.definition["family"] == family)
            and data.get("launchType") in (None, shape["launchType"])
            and not data.get("serviceName")
        )

    def _seen(self, task: Task) -> dict[str, Any] | None:
        """The task as a read shows it now: with a lag, as it was then, which may be not at all."""
        return seen(task.views, self._world) if self._world.knobs.read_lag_s else self._shape(task)

    def _shape(self, task: Task) -> dict[str, Any]:
        return shapes.task_shape(task, self._world.place)

    # -- tags ----------------------------------------------------------------------------------------------

    def tag_resource(self, data: dict[str, Any]) -> dict[str, Any]:
        thing = self.taggable(data["resourceArn"])
        added = {tag["key"]: tag for tag in data.get("tags", ())}
        thing.tags = [*(tag for tag in thing.tags if tag["key"] not in added), *added.values()]
        return {}

    def untag_resource(self, data: dict[str, Any]) -> dict[str, Any]:
        thing = self.taggable(data["resourceArn"])
        thing.tags = [tag for tag in thing.tags if tag["key"] not in data.get("tagKeys", ())]
        return {}

    def list_tags(self, data: dict[str, Any]) -> dict[str, Any]:
        return {"tags": [dict(tag) for tag in self.taggable(data["resourceArn"]).tags]}

    def taggable(self, arn: str) -> Task | Node:
        """A task or an instance; other things keep their tags elsewhere."""
        found = self._world.tasks.get(arn) or self._world.nodes.get(arn)
        if found is None:
            raise invalid("The specified resource is invalid or does not exist.")
        return found

    # -- names ---------------------------------------------------------------------------------------------

    def cluster_of(self, data: dict[str, Any]) -> str:
        name = short(data.get("cluster") or "default")
        if name not in self._world.names and not self._definitions.has_cluster(name):
            raise ApiError("ClusterNotFoundException", "Cluster not found.")
        return name

    def _instance(self, reference: str, cluster: str) -> Node | None:
        return find_instance(self._world, reference, cluster)

    def _missing_arn(self, sort: str, reference: str, cluster: str) -> str:
        return reference if reference.startswith("arn:") else self._world.place.arn(sort, cluster, reference)


def find_instance(world: Cluster, reference: str, cluster: str) -> Node | None:
    """By ARN or the last part of it, and by nothing else: ECS knows no other name."""
    arn = (
        reference
        if reference.startswith("arn:")
        else world.place.arn("container-instance", cluster, reference)
    )
    node = world.nodes.get(arn)
    return node if node and node.cluster == cluster else None


def seen(views: Sequence[tuple[float, dict[str, Any]]], world: Cluster) -> dict[str, Any] | None:
    """The newest view that is old enough to have arrived everywhere."""
    horizon = world.agenda.now() - world.knobs.read_lag_s
    old = [shape for at, shape in views if at <= horizon]
    return old[-1] if old else None
