"""The task definition of a job: found, or made from an image, and looked at before anything starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from ..aws.errors import translated
from ..aws.task_definition import gpus_of, is_mounted, place_of, template, training_container
from ..core.errors import Refused
from ..core.model import JobSpec
from ..environment import telling
from ..jobfile import ContainerRequest, JobRequest

#: ECS takes 8,192 characters of overrides; what every rank is told beside needs some of them.
_MOST_OVERRIDES = 6800
_TMP = "/tmp"  # noqa: S108 (of a container, and not written to here)


class Definitions:
    """Asks ECS once for each."""

    def __init__(self, client: Callable[[str], Any], region: str) -> None:
        self._client, self._region = client, region
        self._known: dict[str, dict[str, Any]] = {}

    def get(self, name: str) -> dict[str, Any]:
        from botocore.exceptions import ClientError

        if name not in self._known:
            try:
                with translated(f"reading task definition {name}"):
                    reply = self._client("ecs").describe_task_definition(taskDefinition=name)
            except ClientError as exc:
                if exc.response.get("Error", {}).get("Code") != "ClientException":
                    raise
                raise Refused(
                    f"there is no task definition {name} in {self._region}:"
                    "  aws ecs list-task-definition-families --status ACTIVE"
                ) from exc
            self._known[name] = dict(reply["taskDefinition"])
        return self._known[name]

    def container(self, name: str, chosen: str) -> str:
        return str(training_container(self.get(name), chosen)["name"])

    def variables(self, name: str, chosen: str) -> set[str]:
        """What the definition itself sets: whoever wrote it has decided on those."""
        container = training_container(self.get(name), chosen)
        return {pair["name"] for key in ("environment", "secrets") for pair in container.get(key, [])}

    def own_tmp(self, name: str, chosen: str) -> str:
        """The /tmp of its training container, if that can write to it and shares it with no other; else nothing."""
        container = training_container(self.get(name), chosen)
        memory = container.get("linuxParameters", {}).get("tmpfs", [])
        mounted = {point.get("containerPath") for point in container.get("mountPoints", [])}
        if any(one.get("containerPath") == _TMP for one in memory):
            return _TMP
        shared = mounted & {"/", _TMP, f"{_TMP}/"} or container.get("volumesFrom")
        root = container.get("user", "").partition(":")[0] in ("", "0", "root")
        return _TMP if root and not shared and not container.get("readonlyRootFilesystem") else ""

    def completed(self, request: JobRequest) -> JobRequest:
        """The request with what its task definition decides. Raises `Refused` where the two disagree."""
        _must_fit(request.spec)
        if not request.spec.task_def:
            template(request, gpus=0, region=self._region)  # refuses what can't be made
            self._must_have_log_group(request.container.log_group)
            return request
        problems = [
            f"{name}: the task definition decides that; leave it out, or name an image instead"
            for name in _not_beside_a_definition(request)
        ]
        found = self.get(request.spec.task_def)
        if found.get("status", "ACTIVE") != "ACTIVE":
            problems.append(f"task_definition: {request.spec.task_def} is {found['status']}")
        gpus = gpus_of(training_container(found, request.spec.container))
        if request.spec.gpus_per_node not in (0, gpus):
            problems.append(
                f"gpus_per_node: the task definition takes {gpus}, the job asks for {request.spec.gpus_per_node}"
            )
        if problems:
            raise Refused("the job was not submitted:\n  " + "\n  ".join(problems))
        # A revision is pinned: every attempt runs the same, whatever is registered meanwhile.
        pinned = str(found.get("taskDefinitionArn", request.spec.task_def))
        self._known[pinned] = found
        return replace(request, spec=replace(request.spec, task_def=pinned, gpus_per_node=gpus))

    def _must_have_log_group(self, name: str) -> None:
        """A task whose log group is not there never starts, and says so only after minutes."""
        if not name:
            return
        with translated(f"looking for log group {name}"):
            reply = self._client("logs").describe_log_groups(logGroupNamePrefix=name)
        if all(group.get("logGroupName") != name for group in reply.get("logGroups", [])):
            raise Refused(
                f"the job was not submitted: there is no log group {name} in {self._region}. To make it:"
                f"  aws logs create-log-group --log-group-name {name}"
            )

    def register(self, request: JobRequest, gpus: int) -> str:
        made = template(request, gpus=gpus, region=self._region)
        with translated("registering the task definition"):
            reply = self._client("ecs").register_task_definition(**made)["taskDefinition"]
        self._known[str(reply["taskDefinitionArn"])] = dict(reply)
        return str(reply["taskDefinitionArn"])

    def drop(self, definition: str) -> None:
        """Nothing was started from it. If it can't be taken back, an unused revision stays, which costs nothing."""
        from botocore.exceptions import ClientError

        try:
            self._client("ecs").deregister_task_definition(taskDefinition=definition)
        except ClientError:
            return

    def checkpoints(self, request: JobRequest) -> str:
        """Where a job really keeps its checkpoints, whatever its container calls the place."""
        spec = request.spec
        found = self.get(spec.task_def) if spec.task_def else template(request, gpus=0, region=self._region)
        return place_of(found, training_container(found, spec.container), spec.checkpoint_dir)

    def doubt(self, definition: str, spec: JobSpec) -> str:
        """What will hurt later, though nothing refuses it now."""
        container = training_container(self.get(definition), spec.container)
        if spec.checkpoint_dir and not is_mounted(container, spec.checkpoint_dir):
            return (
                f"checkpoint_dir {spec.checkpoint_dir} is in no mount of the container: what is kept there ends"
                " with the task, and a restart begins at zero. Mount shared storage with --mount HOST:CONTAINER"
            )
        return ""


def _not_beside_a_definition(request: JobRequest) -> list[str]:
    if request.spec.retry_of:  # they are part of the definition that was made for the first run
        return []
    given = [f.name for f in fields(ContainerRequest) if getattr(request.container, f.name) != f.default]
    spec = [("workdir", request.spec.workdir), ("memory_mib", request.spec.memory_mib)]
    return [*given, *(name for name, value in spec if value)]


def _must_fit(spec: JobSpec) -> None:
    """What a retry brings along of what we have set ourselves does not count: there is room for it."""
    ours = telling((), folder=_TMP)
    env = {name: value for name, value in spec.env.items() if ours.get(name) != value}
    size = len(json.dumps([spec.command, env]))
    if size > _MOST_OVERRIDES:
        raise Refused(
            f"the job was not submitted: its command and env have {size} characters, ECS takes about"
            f" {_MOST_OVERRIDES}. Put long values into a script or a file on shared storage"
        )
