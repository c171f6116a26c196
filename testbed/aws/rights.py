"""Permissions in the local AWS, as AWS documents them for what the functions call.

MiniStack checks a call to ECS, SSM, a bus or a log against one resource that it guesses, knows no
`ecs:cluster`, and never asks for `iam:PassRole`: right policies would be refused and wrong ones pass. Here
every resource of such a call is named, and each is checked by MiniStack's own evaluation. What was asked for
is remembered, with the answer.
"""

from __future__ import annotations

import contextvars
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl

#: Who asked, for which action, on what, and whether it was allowed.
Asked = tuple[str, str, str, bool]
#: Roles that a task definition passes on when it is started, by its family or ARN.
RolesOf = Callable[[str], tuple[str, ...]]
#: Tags of a machine, by its id.
TagsOf = Callable[[str], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Check:
    """One right that a call needs."""

    action: str
    resource: str
    service: str
    told: tuple[tuple[str, str], ...] = ()  #: what conditions may look at


#: The Auto Scaling group of a machine, by the machine's id. Its tags are those of its machines.
GroupOf = Callable[[str], str]
#: Services of whose calls the resources are named here.
_NAMED = ("autoscaling", "ecs", "events", "logs", "ssm")
#: These are checked against the stream; MiniStack takes the group.
_ON_A_STREAM = ("CreateLogStream", "GetLogEvents", "PutLogEvents")
_NEEDED: contextvars.ContextVar[tuple[Check, ...]] = contextvars.ContextVar("needed", default=())


class Ledger:
    """Every right that was asked for, however often."""

    def __init__(self) -> None:
        self._lock, self._times = threading.Lock(), Counter[Asked]()

    def add(self, asked: Asked) -> None:
        with self._lock:
            self._times[asked] += 1

    def rows(self) -> list[dict[str, Any]]:
        with self._lock:
            names = ("who", "action", "resource", "allowed")
            return [dict(zip(names, one, strict=True)) | {"times": n} for one, n in self._times.items()]

    def clear(self) -> None:
        with self._lock:
            self._times.clear()


def needed(
    service: str,
    action: str,
    asked: Mapping[str, Any],
    place: str,
    roles: RolesOf,
    tags: TagsOf,
    group: GroupOf = lambda host: "",
) -> tuple[Check, ...]:
    """The rights for a call. `place` is region and account; none where MiniStack's guess will do."""
    if service == "autoscaling" and action == "TerminateInstanceInAutoScalingGroup":
        host = asked["InstanceId"]
        arn = f"arn:aws:autoscaling:{place}:autoScalingGroup:1:autoScalingGroupName/{group(host)}"
        told = tuple((f"autoscaling:ResourceTag/{key}", value) for key, value in tags(host).items())
        return (Check(f"autoscaling:{action}", arn, "autoscaling", told),)
    if service == "ssm" and action == "SendCommand":
        name = asked["DocumentName"]
        whose = f"{place.partition(':')[0]}:" if name.startswith("AWS-") else place
        return (
            Check("ssm:SendCommand", f"arn:aws:ssm:{whose}:document/{name}", "ssm"),
            *(_to_host(host, place, tags(host)) for host in asked.get("InstanceIds", ())),
        )
    if service == "logs" and action in _ON_A_STREAM:
        stream = f"log-group:{asked['logGroupName']}:log-stream:{asked['logStreamName']}"
        return (Check(f"logs:{action}", f"arn:aws:logs:{place}:{stream}", "logs"),)
    if service == "events" and action == "PutEvents":
        return tuple(_to_bus(entry, place) for entry in asked["Entries"])
    if service != "ecs" or not asked.get("cluster"):
        return ()
    cluster = _id(asked["cluster"])
    here = (("ecs:cluster", f"arn:aws:ecs:{place}:cluster/{cluster}"),)
    found = _resources(action, asked, cluster)
    checks = [Check(f"ecs:{action}", f"arn:aws:ecs:{place}:{one}", "ecs", here) for one in found]
    if not found:
        checks = [Check(f"ecs:{action}", "*", "ecs", here)]
    if action in ("StartTask", "RunTask"):
        told = (("iam:PassedToService", "ecs-tasks.amazonaws.com"),)
        checks += [Check("iam:PassRole", role, "iam", told) for role in roles(asked["taskDefinition"])]
    return tuple(checks)


def _to_bus(entry: Mapping[str, Any], place: str) -> Check:
    bus = f"arn:aws:events:{place}:event-bus/{_id(entry.get('EventBusName', 'default'))}"
    told = (("events:source", entry["Source"]), ("events:detail-type", entry["DetailType"]))
    return Check("events:PutEvents", bus, "events", told)


def _to_host(host: str, place: str, tags: Mapping[str, str]) -> Check:
    external = host.startswith("mi-")
    arn = (
        f"arn:aws:ssm:{place}:managed-instance/{host}" if external else f"arn:aws:ec2:{place}:instance/{host}"
    )
    told = tuple((f"ssm:resourceTag/{key}", value) for key, value in tags.items())
    return Check("ssm:SendCommand", arn, "ssm", told)


def _resources(action: str, asked: Mapping[str, Any], cluster: str) -> list[str]:
    """The parts of ARNs behind the account; none where the action has no resource of its own."""
    match action:
        case "StartTask" | "RunTask":
            name = _id(asked["taskDefinition"])
            return [f"task-definition/{name if ':' in name else f'{name}:latest'}"]
        case "StopTask":
            return [f"task/{cluster}/{_id(asked['task'])}"]
        case "DescribeTasks":
            return [f"task/{cluster}/{_id(task)}" for task in asked["tasks"]]
        case "DescribeContainerInstances":
            return [f"container-instance/{cluster}/{_id(one)}" for one in asked["containerInstances"]]
        case "PutAttributes":
            return [f"container-instance/{cluster}/{_id(one['targetId'])}" for one in asked["attributes"]]
        case "ListContainerInstances":
            return [f"cluster/{cluster}"]
    return []


def _id(reference: str) -> str:
    return reference.rpartition("/")[2]


def install(
    actions: ModuleType,
    evaluator: ModuleType,
    app: ModuleType,
    ledger: Ledger,
    roles: RolesOf,
    tags: TagsOf,
    group: GroupOf,
) -> None:
    """Into MiniStack's modules, which look these names up at every call."""
    _name_resources(actions, roles, tags, group)
    _check_all(evaluator, ledger)
    theirs = app.pin_request_origin

    def pin(source_ip: str, secure_transport: bool) -> None:
        """Policies that insist on TLS mean the network. Here there is none: the loopback has no certificate."""
        theirs(source_ip, True)

    app.pin_request_origin = pin  # type: ignore[attr-defined]


def _read(service: str, headers: Mapping[str, str], body: bytes) -> tuple[str, dict[str, Any]]:
    """The action of a call and what it asks; Auto Scaling takes a form, the others JSON."""
    if service == "autoscaling":
        form = dict(parse_qsl(body.decode()))
        return form.get("Action", ""), form
    return headers.get("x-amz-target", "").rpartition(".")[2], json.loads(body or b"{}")


def _name_resources(actions: ModuleType, roles: RolesOf, tags: TagsOf, group: GroupOf) -> None:
    theirs = actions.extract_resource_arn

    def extract_resource_arn(
        service: str,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes,
        query_params: dict[str, Any],
        region: str,
        account_id: str,
    ) -> Any:
        _NEEDED.set(())
        if service in _NAMED:
            action, asked = _read(service, headers, body)
            checks = needed(service, action, asked, f"{region}:{account_id}", roles, tags, group)
            _NEEDED.set(checks)
            if checks:
                return checks[0].resource
        return theirs(service, method, path, headers, body, query_params, region, account_id)

    actions.extract_resource_arn = extract_resource_arn  # type: ignore[attr-defined]


def _check_all(evaluator: ModuleType, ledger: Ledger) -> None:
    theirs = evaluator.enforce

    def enforce(
        access_key_id: str,
        iam_action: str,
        service: str,
        region: str,
        resource_arn: str = "*",
        service_context: dict[str, Any] | None = None,
    ) -> Any:
        who = evaluator.caller_arn()
        checks = _NEEDED.get() if service in _NAMED else ()
        for check in checks or (Check(iam_action, resource_arn, service),):
            told = {**(service_context or {}), **dict(check.told)}
            denied = theirs(access_key_id, check.action, check.service, region, check.resource, told)
            ledger.add((who, check.action, check.resource, denied is None))
            if denied:
                return denied
        return None

    evaluator.enforce = enforce  # type: ignore[attr-defined]
