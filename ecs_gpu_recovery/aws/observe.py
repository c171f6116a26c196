"""Answers of the ECS API as facts: an answer describes a task like an event does, so the same parser reads both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from ..core.events import Fact, NodeChecked, NodeSeen, Origin, TaskEnded
from ..core.model import Job, Rank
from .event_fields import family, id_of
from .parse import parse_event
from .task_end import check_verdict

#: How the ECS API says that it does not know what it was asked about.
MISSING = "MISSING"
#: Shorter than the hour for which ECS remembers a stopped task, longer than its answers ever lag behind.
FORGETS_AFTER = timedelta(minutes=10)


def _as_event(detail_type: str, detail: Mapping[str, Any], at: datetime) -> dict[str, Any]:
    return {
        "version": "0",
        "source": "aws.ecs",
        "detail-type": detail_type,
        "time": at.isoformat(),
        "detail": _plain(detail),
    }


def _plain(value: Any) -> Any:
    """boto3 gives times as datetimes; events carry them as text."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def tasks_as_facts(
    tasks: Iterable[Mapping[str, Any]], known: Mapping[str, Rank], job: Job, at: datetime
) -> Iterator[Fact]:
    """Training tasks. One that ECS has forgotten ended more than an hour ago, nobody knows how.

    Right after a start, an answer may not know the task yet: that is believed only of a job that has been quiet.
    """
    moves = [entry.at for entry in job.timeline if entry.before != entry.after]
    quiet = not moves or at - moves[-1] >= FORGETS_AFTER
    for task in tasks:
        task_id = id_of(task.get("taskArn"))
        rank = known.get(task_id)
        if rank is None:
            continue
        if task.get("lastStatus") == MISSING:
            if quiet:
                yield TaskEnded(
                    at=at,
                    task_id=task_id,
                    attempt=rank.task_attempt,
                    rank=rank.index,
                    exit_code=None,
                    reason="ECS does not know the task any more",
                )
            continue
        yield from parse_event(_as_event("ECS Task State Change", task, at)).facts


def checks_as_facts(
    tasks: Iterable[Mapping[str, Any]], known: Mapping[str, tuple[str, int]], at: datetime
) -> Iterator[NodeChecked]:
    """Health checks that have ended. One that ECS does not know has not answered, and its deadline is near."""
    for task in tasks:
        task_id = id_of(task.get("taskArn"))
        if task_id in known and task.get("lastStatus") == "STOPPED":
            node, check_try = known[task_id]
            seen = parse_event(_as_event("ECS Task State Change", task, at))
            if seen.end is not None:
                yield NodeChecked(
                    at=at,
                    node=node,
                    check_id=task_id,
                    check_try=check_try,
                    verdict=check_verdict(seen.end),
                    findings=seen.end.reason[:500],
                    looked=any(isinstance(fact, NodeChecked) and fact.looked for fact in seen.facts),
                )


def origin_of(task: Mapping[str, Any]) -> Origin:
    return Origin(
        token=str(task.get("startedBy", "")),
        instance=str(task.get("containerInstanceArn", "")),
        family=family(str(task.get("taskDefinitionArn", ""))),
    )


def instances_as_facts(reply: Mapping[str, Any], names: Mapping[str, str], at: datetime) -> Iterator[Fact]:
    """Container instances. One that ECS does not know is gone."""
    by_id = {id_of(instance): node for instance, node in names.items()}
    for instance in reply.get("containerInstances", []):
        arn = str(instance.get("containerInstanceArn", ""))
        node = by_id.get(id_of(arn))
        if node:
            detail = {
                "clusterArn": _cluster_arn(arn),
                **instance,
            }  # an event says it, an answer leaves it to the asker
            yield from parse_event(_as_event("ECS Container Instance State Change", detail, at)).about(node)
    for failure in reply.get("failures", []):
        node = by_id.get(id_of(failure.get("arn")))
        if node and failure.get("reason") == MISSING:
            yield NodeSeen(
                at=at,
                node=node,
                connected=False,
                gone=True,
                why="ECS does not know the instance any more",
                instance=str(failure["arn"]),
            )


def _cluster_arn(instance: str) -> str:
    """The cluster in the ARN of one of its instances."""
    head, _, rest = instance.partition(":container-instance/")
    return f"{head}:cluster/{rest.partition('/')[0]}"
