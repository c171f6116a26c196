"""Runs when the local AWS starts, because its folder is first on the path.

It teaches MiniStack what AWS documents about the resource that a call to ECS or SSM is checked against.
MiniStack takes the cluster for all of them and knows no `ecs:cluster`: right policies would be refused, and
wrong ones pass.
"""

from __future__ import annotations

import contextvars
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
from types import ModuleType
from typing import Any

CLUSTER: contextvars.ContextVar[str] = contextvars.ContextVar("cluster", default="")


def _id(reference: str) -> str:
    return reference.rpartition("/")[2]


def _resource(action: str, asked: dict[str, Any], cluster: str) -> str | None:
    """The part of an ARN behind the account; None where the action has no resource."""
    if action in ("StartTask", "RunTask"):
        return f"task-definition/{_id(asked['taskDefinition'])}"
    if action in ("StopTask", "DescribeTasks"):
        return f"task/{cluster}/{_id(asked['task'] if action == 'StopTask' else asked['tasks'][0])}"
    if action == "DescribeContainerInstances":
        return f"container-instance/{cluster}/{_id(asked['containerInstances'][0])}"
    if action == "PutAttributes":
        return f"container-instance/{cluster}/{_id(asked['attributes'][0]['targetId'])}"
    return None


def _name_resources(actions: ModuleType) -> None:
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
        action = headers.get("x-amz-target", "").rpartition(".")[2]
        place = f"{region}:{account_id}"
        if service == "ssm" and action == "SendCommand":
            host = json.loads(body)["InstanceIds"][0]
            return (
                f"arn:aws:ec2:{place}:instance/{host}"
                if host[0] == "i"
                else f"arn:aws:ssm:{place}:managed-instance/{host}"
            )
        if service != "ecs" or action in ("CreateCluster", "RegisterTaskDefinition"):
            return theirs(service, method, path, headers, body, query_params, region, account_id)
        asked = json.loads(body or b"{}")
        cluster = _id(asked.get("cluster", ""))
        CLUSTER.set(f"arn:aws:ecs:{place}:cluster/{cluster}" if cluster else "")
        found = _resource(action, asked, cluster)
        return "*" if found is None else f"arn:aws:ecs:{place}:{found}"

    actions.extract_resource_arn = extract_resource_arn  # type: ignore[attr-defined]


def _name_cluster(evaluator: ModuleType) -> None:
    theirs = evaluator.enforce

    def enforce(access_key: str, action: str, service: str, *rest: Any, **options: Any) -> Any:
        if service == "ecs" and CLUSTER.get():
            told = {**(options.get("service_context") or {}), "ecs:cluster": CLUSTER.get()}
            options["service_context"] = told
        return theirs(access_key, action, service, *rest, **options)

    evaluator.enforce = enforce  # type: ignore[attr-defined]


class _AfterImport(importlib.abc.MetaPathFinder):
    """MiniStack reads its settings when it is imported, so nothing may import it before its launcher does."""

    def __init__(self) -> None:
        self._changes = {
            "ministack.core.iam_actions": _name_resources,
            "ministack.core.iam_evaluator": _name_cluster,
        }

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        change = self._changes.pop(name, None)
        spec = importlib.util.find_spec(name) if change else None
        if change is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _AfterImport())
