"""The task definition of a training job, made from what a person asked for.

Pure: the console shows it before anything is sent.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..core.errors import Refused
from ..own_script import VARIABLE, packed

if TYPE_CHECKING:
    from ..jobfile import JobRequest  # no function reads job files

CONTAINER = "train"
#: A rank needs most of its node; what is left is for the agent and the host.
DEFAULT_MEMORY_MIB = 4096


def family_of(name: str) -> str:
    """A family for the jobs of this name: letters, digits, '-' and '_'."""
    return "gpu-training-" + (re.sub(r"[^A-Za-z0-9_-]", "-", name) or "job")[:200]


def template(
    request: JobRequest, *, gpus: int, region: str, compatibility: tuple[str, ...] = ("EC2", "EXTERNAL")
) -> dict[str, Any]:
    """The arguments of RegisterTaskDefinition. Host networking: ranks reach each other without a port map."""
    asked = request.container
    if not asked.image:
        raise Refused(
            "the job was not submitted: name an image (--image), or a task definition that exists"
            " (--task-definition)"
        )
    volumes, points = _mounts(asked.mounts)
    linux: dict[str, Any] = {"initProcessEnabled": True}
    if asked.shared_memory_mib:
        linux["sharedMemorySize"] = asked.shared_memory_mib
    if asked.infiniband:
        linux["devices"] = [
            {
                "hostPath": "/dev/infiniband",
                "containerPath": "/dev/infiniband",
                "permissions": ["read", "write", "mknod"],
            }
        ]
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": asked.image,
        "essential": True,
        "environment": [{"name": key, "value": value} for key, value in sorted(request.spec.env.items())],
        "linuxParameters": linux,
        # Registered memory of RDMA and large batches need these; the defaults of containers are for web servers.
        "ulimits": [
            {"name": "memlock", "softLimit": -1, "hardLimit": -1},
            {"name": "stack", "softLimit": 67108864, "hardLimit": 67108864},
            {"name": "nofile", "softLimit": 1048576, "hardLimit": 1048576},
        ],
        "mountPoints": points,
        "stopTimeout": 60,
    }
    if request.spec.memory_mib:
        container["memory"] = request.spec.memory_mib
    else:
        container["memoryReservation"] = DEFAULT_MEMORY_MIB
    if request.spec.command:
        container["command"] = list(request.spec.command)
    if asked.script_text:
        container["environment"].append({"name": VARIABLE, "value": packed(asked.script_text)})
    if request.spec.workdir:
        container["workingDirectory"] = request.spec.workdir
    if gpus:
        container["resourceRequirements"] = [{"type": "GPU", "value": str(gpus)}]
    if asked.log_group:
        container["logConfiguration"] = {
            "logDriver": "awslogs",
            "options": {
                "awslogs-group": asked.log_group,
                "awslogs-region": region,
                "awslogs-stream-prefix": CONTAINER,
            },
        }
    made: dict[str, Any] = {
        "family": family_of(request.spec.name),
        "networkMode": "host",
        "requiresCompatibilities": list(compatibility),
        "containerDefinitions": [container],
        "volumes": volumes,
    }
    if asked.task_role:
        made["taskRoleArn"] = asked.task_role
    if asked.execution_role:
        made["executionRoleArn"] = asked.execution_role
    return made


def _mounts(mounts: tuple[str, ...]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    volumes, points = [], []
    for number, mount in enumerate(mounts):
        host, container, *mode = mount.split(":")
        volumes.append({"name": f"mount-{number}", "host": {"sourcePath": host}})
        points.append(
            {"sourceVolume": f"mount-{number}", "containerPath": container, "readOnly": mode == ["ro"]}
        )
    return volumes, points


def training_container(definition: Mapping[str, Any], name: str = "") -> Mapping[str, Any]:
    """The container that does the work: the named one, else the one with GPUs, else the first essential one."""
    found = definition.get("containerDefinitions", [])
    if name:
        named = [c for c in found if c.get("name") == name]
        if not named:
            known = ", ".join(str(c.get("name")) for c in found)
            raise Refused(
                f"the job was not submitted: its task definition has no container {name!r}; it has {known}"
            )
        return dict(named[0])
    with_gpu = [c for c in found if gpus_of(c)]
    essential = [c for c in found if c.get("essential", True)]
    return dict((with_gpu or essential or found)[0])


def gpus_of(container: Mapping[str, Any]) -> int:
    """How many GPUs a container asks for."""
    return sum(
        int(need.get("value", 0))
        for need in container.get("resourceRequirements", [])
        if need.get("type") == "GPU"
    )


def is_mounted(container: Mapping[str, Any], folder: str) -> bool:
    """Whether a folder of the container is in a volume, and so outlives the task."""
    return _mount_of(container, folder) is not None


def place_of(definition: Mapping[str, Any], container: Mapping[str, Any], folder: str) -> str:
    """Where a folder of the container really is: on the node, or in a file system. Empty where nobody can tell."""
    if (found := _mount_of(container, folder)) is None:
        return ""
    name, rest = found
    volume: Mapping[str, Any] = next((v for v in definition.get("volumes", []) if v.get("name") == name), {})
    if host := str(volume.get("host", {}).get("sourcePath", "")):
        return posixpath.normpath(f"{host}/{rest}")
    if efs := volume.get("efsVolumeConfiguration"):
        root = efs.get("authorizationConfig", {}).get("accessPointId") or efs.get("rootDirectory", "/")
        return f"{efs.get('fileSystemId')}:{posixpath.normpath(f'{root}/{rest}')}"
    return ""


def _mount_of(container: Mapping[str, Any], folder: str) -> tuple[str, str] | None:
    """The volume that holds a folder of the container, and where in it; the deepest mount counts."""
    folder = posixpath.normpath(folder)
    found: tuple[str, str] | None = None
    longest = ""
    for point in container.get("mountPoints", []):
        path = str(point.get("containerPath", "")).rstrip("/")
        if path and f"{folder}/".startswith(f"{path}/") and len(path) > len(longest):
            longest, found = path, (str(point.get("sourceVolume", "")), folder[len(path) :].lstrip("/"))
    return found


def log_stream(definition: Mapping[str, Any], container: str, task_id: str) -> tuple[str, str] | None:
    """Where a task's container writes: log group and stream, if it writes to CloudWatch."""
    for found in definition.get("containerDefinitions", []):
        options = found.get("logConfiguration", {}).get("options", {})
        if found.get("name") == container and "awslogs-group" in options:
            return str(
                options["awslogs-group"]
            ), f"{options.get('awslogs-stream-prefix', container)}/{container}/{task_id}"
    return None
