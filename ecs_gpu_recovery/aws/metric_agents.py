"""One task of a family on every external node: the watch.

ECS keeps a daemon on every EC2 instance by itself. It has no daemons for ECS Anywhere, so this does it: look
which external nodes lack one, start it there. Calling it again changes nothing, so a clock may call it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..core import keys
from .discover import instances
from .errors import translated
from .pages import pages

if TYPE_CHECKING:
    from mypy_boto3_ecs import ECSClient

#: StartTask takes so many instances in one call.
_AT_ONCE = 10
#: How ECS marks an instance of ECS Anywhere.
_EXTERNAL = "ecs.capability.external"
#: Whatever ends sooner than this after its start would end again: the next start waits as long. ECS shows ended tasks
#: for an hour, so nothing has to be written down.
SOON = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """What one call found and did; nodes by the ARN of their container instance."""

    present: tuple[str, ...]
    started: tuple[str, ...]
    stopped: tuple[str, ...]  #: tasks that were one too many on their node, or of an older revision
    refused: tuple[tuple[str, str], ...]  #: node and ECS's reason; the next call tries again
    failing: tuple[tuple[str, str], ...] = ()  #: node and why the last one there ended soon after its start


def ensure_agents(ecs: ECSClient, cluster: str, family: str, at: datetime) -> Agents:
    """Start an agent on each external node that lacks one: the newest revision of the family.

    Two callers at the same moment can both start one, since StartTask has no client token. The next call
    stops the younger; until then a number is reported twice, which harms nobody.
    """
    with translated(f"looking at the task definition {family}"):
        definition = ecs.describe_task_definition(taskDefinition=family)["taskDefinition"]
    newest = str(definition["taskDefinitionArn"])
    name = keys.agents_token(cluster, family)
    nodes = [str(node["containerInstanceArn"]) for node in instances(ecs, cluster) if _usable(node)]
    keep: dict[str, str] = {}
    extra: list[str] = []
    for task in sorted(_running(ecs, cluster, name), key=lambda task: (task["createdAt"], task["taskArn"])):
        node, arn = str(task["containerInstanceArn"]), str(task["taskArn"])
        if task["taskDefinitionArn"] != newest or node in keep:
            extra.append(arn)
        else:
            keep[node] = arn
    for arn in extra:
        with translated(f"stopping {arn}"):
            ecs.stop_task(cluster=cluster, task=arn, reason="gpu-recovery: another metrics agent takes over")
    missing = [node for node in nodes if node not in keep]
    ended = _ended_soon(ecs, cluster, name, newest) if missing else {}
    due = [node for node in missing if node not in ended or at - ended[node]["stoppedAt"] >= SOON]
    started, refused = _start(ecs, cluster, newest, name, due)
    return Agents(
        present=tuple(node for node in nodes if node in keep),
        started=started,
        stopped=tuple(extra),
        refused=refused,
        failing=tuple((node, _why(ended[node])) for node in missing if node in ended),
    )


def _usable(instance: Mapping[str, Any]) -> bool:
    external = any(row.get("name") == _EXTERNAL for row in instance.get("attributes", []))
    external = external or str(instance.get("ec2InstanceId", "")).startswith("mi-")
    return external and bool(instance.get("agentConnected")) and instance.get("status") == "ACTIVE"


def _running(ecs: ECSClient, cluster: str, name: str) -> Iterator[Mapping[str, Any]]:
    """Those that are meant to run. ECS allows no second filter beside `startedBy`."""
    found = _tasks(ecs, cluster, startedBy=name)
    return (task for task in found if task.get("desiredStatus") != "STOPPED")


def _ended_soon(ecs: ECSClient, cluster: str, name: str, newest: str) -> dict[str, Mapping[str, Any]]:
    """By node, the last one of this revision, if it ended by itself soon after its start or never began."""
    last: dict[str, Mapping[str, Any]] = {}
    family = newest.rpartition("/")[2].partition(":")[0]
    for task in _tasks(ecs, cluster, family=family, desiredStatus="STOPPED"):
        node = str(task.get("containerInstanceArn"))
        ours = task.get("startedBy") == name and task["taskDefinitionArn"] == newest and "stoppedAt" in task
        if ours and (node not in last or last[node]["stoppedAt"] < task["stoppedAt"]):
            last[node] = task
    return {
        node: task
        for node, task in last.items()
        if task.get("stopCode") != "UserInitiated"
        and task["stoppedAt"] - task.get("startedAt", task["stoppedAt"]) < SOON
    }


def _why(task: Mapping[str, Any]) -> str:
    exits = [f"exit code {box['exitCode']}" for box in task.get("containers", []) if "exitCode" in box]
    said = [str(box["reason"]) for box in task.get("containers", []) if box.get("reason")]
    return "; ".join(filter(None, (str(task.get("stoppedReason", "")), *exits, *said)))


def _tasks(ecs: ECSClient, cluster: str, **filters: Any) -> Iterator[Mapping[str, Any]]:
    doing = f"listing the agents of {cluster}"
    for page in pages(doing, ecs.list_tasks, cluster=cluster, maxResults=100, **filters):
        if page["taskArns"]:
            with translated(f"describing the agents of {cluster}"):
                found = ecs.describe_tasks(cluster=cluster, tasks=page["taskArns"])
            yield from (dict(task) for task in found["tasks"])


def _start(
    ecs: ECSClient, cluster: str, definition: str, name: str, nodes: Sequence[str]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    started: list[str] = []
    refused: list[tuple[str, str]] = []
    for begin in range(0, len(nodes), _AT_ONCE):
        some = list(nodes[begin : begin + _AT_ONCE])
        with translated(f"starting agents on {cluster}"):
            reply = ecs.start_task(
                cluster=cluster, taskDefinition=definition, containerInstances=some, startedBy=name
            )
        started += [str(task["containerInstanceArn"]) for task in reply["tasks"]]
        refused += [(str(no.get("arn", "")), str(no.get("reason", ""))) for no in reply["failures"]]
    return tuple(started), tuple(refused)
