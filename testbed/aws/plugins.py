"""Plugs a simulated account into MiniStack, the local AWS: its ECS and SSM actions become ours, and one of its groups'.

MiniStack keeps clusters, task definitions, permissions, rules and functions; we keep nodes, tasks and
commands. The names that are used for it are private to MiniStack. They are listed here, and `missing` says
what a newer version no longer has, so that an upgrade fails with a sentence and not somewhere in a test.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
import queue
import threading
import urllib.request
from collections.abc import Callable
from typing import Any
from xml.sax.saxutils import escape

from . import rights
from .cloud import Cloud
from .events import moment
from .requests import ApiError

log = logging.getLogger("testbed")
#: Module, name, and the parameters that a function takes first; None for what is no function.
NAMES: tuple[tuple[str, str, tuple[str, ...] | None], ...] = (
    ("app", "main", ()),
    ("app", "pin_request_origin", ("source_ip", "secure_transport")),
    (
        "core.iam_actions",
        "extract_resource_arn",
        ("service", "method", "path", "headers", "body", "query_params", "region", "account_id"),
    ),
    ("core.iam_evaluator", "caller_arn", ()),
    ("core.iam_evaluator", "enforce", ("access_key_id", "iam_action", "service", "region")),
    ("core.responses", "json_response", ("data", "status")),
    ("core.responses", "error_response_json", ("code", "message", "status")),
    ("core.responses", "request_scope", ("account_id", "region")),
    ("services.cloudformation.provisioners", "_RESOURCE_HANDLERS", None),
    ("services.cloudwatch_logs", "_create_log_stream", ("data",)),
    ("services.cloudwatch_logs", "_put_log_events", ("data",)),
    ("services.autoscaling", "_ACTION_MAP", None),
    ("services.autoscaling", "_error", ("code", "message", "status")),
    ("services.autoscaling", "_xml", ("status", "root_tag", "inner")),
    ("services.ecs", "_ACTION_MAP", None),
    ("services.ecs", "_clusters", None),
    ("services.ecs", "_task_defs", None),
    ("services.ecs", "_resolve_td_key", ("ref",)),
    ("services.ecs", "reset", ()),
    ("services.cloudwatch_logs", "_log_groups", None),
    ("services.eventbridge", "_dispatch_event", ("event", "view")),
    ("services.eventbridge", "_dispatch_to_lambda", ("arn", "payload")),
    (
        "services.lambda_svc",
        "_emit_lambda_logs",
        ("func", "request_id", "log_text", "error", "duration_ms"),
    ),
    ("services.lambda_svc", "_execute_function", ("func", "event")),
    ("services.lambda_svc", "_execution_record_for_config", ("func", "config")),
    ("services.lambda_svc", "_get_func_record_for_ref", ("function_ref",)),
    ("services.lambda_svc", "invoke_async_with_retry", ("func", "event")),
    ("services.ssm", "handle_request", ("method", "path", "headers", "body", "query_params")),
)
#: How many calls of functions run beside each other.
AT_ONCE = 6
Handler = Callable[[dict[str, Any]], Any]
_TAGS = ("TagResource", "UntagResource", "ListTagsForResource")


def module(name: str) -> Any:
    return importlib.import_module(f"ministack.{name}")


def missing() -> list[str]:
    """What this MiniStack lacks of the names that we use; each a sentence."""
    problems = []
    for where, name, wanted in NAMES:
        found = getattr(module(where), name, None)
        if found is None:
            problems.append(f"ministack.{where} has no {name}")
        elif wanted is not None:
            takes = inspect.signature(found).parameters
            rest = [one for one in list(takes.values())[len(wanted) :] if one.default is one.empty]
            if tuple(takes)[: len(wanted)] != wanted or rest:
                there, here = ", ".join(takes), ", ".join(wanted)
                problems.append(f"ministack.{where}.{name} takes ({there}), not ({here})")
    return problems


class MiniStackDefinitions:
    """Task definitions and clusters where MiniStack keeps them, whoever made them: a call or a stack."""

    def __init__(self) -> None:
        self._ecs = module("services.ecs")

    def find(self, reference: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._ecs._task_defs.get(self._ecs._resolve_td_key(reference))
        return found

    def has_cluster(self, name: str) -> bool:
        return name in self._ecs._clusters

    def roles(self, reference: str) -> tuple[str, ...]:
        """Those that starting this definition passes on to ECS."""
        found = self.find(reference) or {}
        return tuple(found[name] for name in ("taskRoleArn", "executionRoleArn") if found.get(name))


def plug_in(cloud: Cloud) -> None:
    """Route calls to the account and its events to the bus. MiniStack must not serve yet."""
    _ecs_actions(cloud)
    _ssm_actions(cloud)
    _ssm_documents(cloud)
    _groups(cloud)
    _logs(cloud)
    _evidence(cloud)
    _retries()
    _few_at_once()
    _no_new_log_groups()
    rights.install(
        module("core.iam_actions"),
        module("core.iam_evaluator"),
        module("app"),
        cloud.ledger,
        MiniStackDefinitions().roles,
        cloud.tags_of_host,
        cloud.group_of_host,
    )
    ecs = module("services.ecs")
    its_reset = ecs.reset

    def reset() -> None:
        its_reset()
        cloud.reset()

    ecs.reset = reset


# -- calls ----------------------------------------------------------------------------------------------


def _answer(cloud: Cloud, service: str, action: str, data: dict[str, Any]) -> Any:
    responses = module("core.responses")
    try:
        return responses.json_response(cloud.call(service, action, data))
    except ApiError as exc:
        return responses.error_response_json(exc.code, exc.message, exc.status)


def _ecs_actions(cloud: Cloud) -> None:
    table = module("services.ecs")._ACTION_MAP
    theirs = dict(table)
    for action, handler in theirs.items():
        table[action] = _counted(cloud, action, handler)
    for action in cloud.actions["ecs"]:
        table[action] = _ours(cloud, action, theirs.get(action))
    table["DescribeClusters"] = _with_counts(cloud, table["DescribeClusters"])


def _counted(cloud: Cloud, action: str, handler: Handler) -> Handler:
    """An action that MiniStack answers; it is counted with the others."""

    def handle(data: dict[str, Any]) -> Any:
        cloud.gate.calls[action] += 1
        return handler(data)

    return handle


def _ours(cloud: Cloud, action: str, theirs: Handler | None) -> Handler:
    """An action that the simulated account answers. Tags of what it does not keep stay with MiniStack."""

    def handle(data: dict[str, Any]) -> Any:
        arn = data.get("resourceArn", "")
        if action in _TAGS and theirs and ":task/" not in arn and ":container-instance/" not in arn:
            return theirs(data)
        return _answer(cloud, "ecs", action, data)

    return handle


def _with_counts(cloud: Cloud, theirs: Handler) -> Handler:
    """MiniStack's clusters, with the nodes and tasks that we keep counted in."""

    def handle(data: dict[str, Any]) -> Any:
        status, headers, body = theirs(data)
        if status != 200:
            return status, headers, body
        answer = json.loads(body)
        with cloud.lock:
            nodes, tasks = list(cloud.cluster.nodes.values()), list(cloud.cluster.all_tasks())
        for row in answer.get("clusters", ()):
            own = [task for task in tasks if task.node.cluster == row["clusterName"] and not task.over]
            active = [
                node for node in nodes if node.cluster == row["clusterName"] and node.status != "INACTIVE"
            ]
            row["registeredContainerInstancesCount"] = len(active)
            row["runningTasksCount"] = sum(task.status == "RUNNING" for task in own)
            row["pendingTasksCount"] = len(own) - row["runningTasksCount"]
        return module("core.responses").json_response(answer)

    return handle


def _ssm_actions(cloud: Cloud) -> None:
    """Run Command is ours; parameters and the rest stay with MiniStack."""
    ssm = module("services.ssm")
    theirs = ssm.handle_request

    async def handle(method: str, path: str, headers: dict[str, str], body: bytes, query_params: Any) -> Any:
        action = headers.get("x-amz-target", "").rpartition(".")[2]
        if action not in cloud.actions["ssm"]:
            return await theirs(method, path, headers, body, query_params)
        return await asyncio.to_thread(_answer, cloud, "ssm", action, json.loads(body or b"{}"))

    ssm.handle_request = handle


def _ssm_documents(cloud: Cloud) -> None:
    """MiniStack's stacks know no documents; those of ours are kept where commands look for them."""

    def create(logical_id: str, props: dict[str, Any], stack_name: str) -> tuple[str, dict[str, Any]]:
        cloud.documents.create({"Name": props["Name"], "Content": json.dumps(props["Content"])})
        return props["Name"], {}

    def update(
        physical_id: str, old: dict[str, Any], new: dict[str, Any], stack_name: str
    ) -> tuple[str, dict[str, Any]]:
        cloud.documents.put(physical_id, new["Content"])
        return physical_id, {}

    def delete(physical_id: str, props: dict[str, Any]) -> None:
        cloud.documents.delete(physical_id)

    handlers = {"create": create, "update": update, "delete": delete}
    module("services.cloudformation.provisioners")._RESOURCE_HANDLERS["AWS::SSM::Document"] = handlers


def _groups(cloud: Cloud) -> None:
    """MiniStack has groups, but none of its instances can be exchanged for another. Its words are those of a form."""
    groups, action = module("services.autoscaling"), "TerminateInstanceInAutoScalingGroup"

    def terminate(asked: dict[str, str]) -> Any:
        shrinks = asked["ShouldDecrementDesiredCapacity"] == "true"
        data = {"InstanceId": asked["InstanceId"], "ShouldDecrementDesiredCapacity": shrinks}
        try:
            activity = cloud.call("autoscaling", action, data)["Activity"]
        except ApiError as exc:
            return groups._error(exc.code, exc.message, exc.status)
        activity["StartTime"] = moment(activity["StartTime"])
        told = "".join(f"<{name}>{escape(str(value))}</{name}>" for name, value in activity.items())
        return groups._xml(
            200, f"{action}Response", f"<{action}Result><Activity>{told}</Activity></{action}Result>"
        )

    groups._ACTION_MAP[action] = terminate


def _logs(cloud: Cloud) -> None:
    """What containers write goes to MiniStack's logs, where people and functions read it."""
    logs, place = module("services.cloudwatch_logs"), cloud.place

    def write(group: str, stream: str, lines: list[str]) -> None:
        where = {"logGroupName": group, "logStreamName": stream}
        with module("core.responses").request_scope(place.account, place.region):
            logs._create_log_stream(where)
            logs._put_log_events({**where, "logEvents": [{"message": line} for line in lines]})

    cloud.write_log = write
    cloud.cluster.write_log = write


def _evidence(cloud: Cloud) -> None:
    """Hosts send what they keep to the signed address, beside everything else: it leads back to this very process."""

    def send(address: str) -> None:
        request = urllib.request.Request(address, b"what a host kept", method="PUT")  # noqa: S310 - loopback
        try:
            urllib.request.urlopen(request, timeout=30).close()  # noqa: S310
        except OSError as exc:
            log.warning("a host could not keep its evidence: %s", exc)

    cloud.keep = cloud.cluster.keep = lambda address: threading.Thread(target=send, args=[address]).start()


# -- events ---------------------------------------------------------------------------------------------


def _retries() -> None:
    """A rule's Lambda target is called again when it fails, as AWS does; MiniStack would call it once."""
    functions = module("services.lambda_svc")

    def dispatch(arn: str, payload: str) -> None:
        func, config, name = functions._get_func_record_for_ref(arn)
        if not func or not config:
            log.warning("an event's target, the function %s, is not there", name)
            return
        record = functions._execution_record_for_config(func, config)
        functions.invoke_async_with_retry(record, json.loads(payload))

    module("services.eventbridge")._dispatch_to_lambda = dispatch


def _few_at_once() -> None:
    """A burst would start a process for every event of it, and each takes longer to load than to wait its turn.

    A function that is gone when its turn comes, or its next try, is not called any more.
    """
    functions = module("services.lambda_svc")
    theirs, turn = functions._execute_function, threading.BoundedSemaphore(AT_ONCE)

    def execute(func: dict[str, Any], event: dict[str, Any]) -> Any:
        with turn:
            there, _, name = functions._get_func_record_for_ref((func.get("config") or func)["FunctionArn"])
            if there is None:
                log.warning("the function %s is gone, and an event of it with it", name)
                return {}
            return theirs(func, event)

    functions._execute_function = execute


def _no_new_log_groups() -> None:
    """A function writes into the log group it was given and makes none: no role of the stack may do that.

    Else a call that ends after its stack is gone leaves a group behind, which the next stack finds taken.
    """
    functions, groups = module("services.lambda_svc"), module("services.cloudwatch_logs")._log_groups
    theirs = functions._emit_lambda_logs

    def emit(func: dict[str, Any], *what: Any, **more: Any) -> None:
        config = func.get("config") or func
        given = config.get("LoggingConfig") or {}
        if (given.get("LogGroup") or f"/aws/lambda/{config['FunctionName']}") in groups:
            theirs(func, *what, **more)

    functions._emit_lambda_logs = emit


class Bus:
    """Hands events to MiniStack's default bus, one after the other, in a thread of its own.

    They go past PutEvents, which would give each a new id and the present time: a copy must keep its id, and
    an event that comes late must keep its time. (PutEvents also refuses events that say they come from AWS.)
    """

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def put(self, envelope: dict[str, Any]) -> None:
        self._waiting.put(envelope)

    def serve(self) -> None:
        """For ever. An event that the bus can't take is a mistake of ours, and ends the process."""
        while True:
            self._dispatch(self._waiting.get())

    @staticmethod
    def _dispatch(envelope: dict[str, Any]) -> None:
        record = {
            "EventId": envelope["id"],
            "Source": envelope["source"],
            "DetailType": envelope["detail-type"],
            "Detail": json.dumps(envelope["detail"]),
            "EventBusName": "default",
            "Time": envelope["time"],
            "Resources": envelope["resources"],
            "Account": envelope["account"],
            "Region": envelope["region"],
        }
        with module("core.responses").request_scope(envelope["account"], envelope["region"]):
            module("services.eventbridge")._dispatch_event(record)
