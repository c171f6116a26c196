"""The SSM actions that a fleet uses: commands are sent, called back and looked for, hosts are asked how they are."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from . import events
from .cluster import Cluster
from .commands import Command, Invocation, RunCommand
from .documents import Documents
from .ecs import Action
from .model import Node
from .requests import ApiError, page, page_size

_PLUGIN = "aws:runShellScript"
#: How much of a script's output SSM keeps.
STDOUT, STDERR, LISTED = 24_000, 8_000, 2_500


class SsmActions:
    """Keep documents, send a command, cancel it, list commands and their invocations, look at one, list the hosts."""

    def __init__(self, cluster: Cluster, commands: RunCommand, documents: Documents) -> None:
        self._world, self._run, self._documents = cluster, commands, documents
        self.actions: dict[str, Action] = {
            "CreateDocument": documents.create,
            "SendCommand": self.send_command,
            "CancelCommand": self.cancel_command,
            "ListCommands": self.list_commands,
            "ListCommandInvocations": self.list_invocations,
            "GetCommandInvocation": self.get_invocation,
            "DescribeInstanceInformation": self.describe_instances,
        }

    # -- sending -------------------------------------------------------------------------------------------

    def send_command(self, data: dict[str, Any]) -> dict[str, Any]:
        """Answers before anything is delivered. There is no client token: sent twice is sent twice."""
        parameters = data.get("Parameters") or {}
        script = self._documents.script(data["DocumentName"], parameters)
        hosts = self._targets(data)
        timeout = data.get("TimeoutSeconds", 3600)
        comment = data.get("Comment", "")
        if not 30 <= timeout <= 2_592_000:
            raise ApiError("ValidationException", "TimeoutSeconds must be 30 to 2592000.")
        if len(comment) > 100:
            raise ApiError("ValidationException", "Comment must have at most 100 characters.")
        now = self._world.agenda.now()
        record = {
            "CommandId": self._world.uuid(),
            "DocumentName": data["DocumentName"],
            "DocumentVersion": "$DEFAULT",
            "Comment": comment,
            "ExpiresAfter": now + timeout,
            "Parameters": parameters,
            "InstanceIds": hosts,
            "Targets": data.get("Targets", []),
            "RequestedDateTime": now,
            "Status": "Pending",
            "StatusDetails": "Pending",
            "OutputS3BucketName": "",
            "OutputS3KeyPrefix": "",
            "MaxConcurrency": "50",
            "MaxErrors": "0",
            "TargetCount": len(hosts),
            "CompletedCount": 0,
            "ErrorCount": 0,
            "DeliveryTimedOutCount": 0,
            "ServiceRole": "",
            "TimeoutSeconds": timeout,
        }
        command = self._run.send(record, script)
        return {"Command": dict(command.record)}

    def cancel_command(self, data: dict[str, Any]) -> dict[str, Any]:
        """On all its hosts, or on those that are named. What is over stays as it is."""
        command = self._run.commands.get(data["CommandId"])
        if command is None:
            raise ApiError("InvalidCommandId", "The command ID isn't valid.")
        for host in data.get("InstanceIds") or list(command.invocations):
            self._run.cancel(command, host)
        return {}

    def _targets(self, data: dict[str, Any]) -> list[str]:
        hosts = list(data.get("InstanceIds") or ())
        for target in data.get("Targets") or ():
            if target.get("Key") != "InstanceIds":
                raise ApiError("InvalidTarget", "The simulator knows the target key InstanceIds only.")
            hosts += target.get("Values") or []
        if not hosts or len(hosts) > 50:
            raise ApiError("ValidationException", "1 to 50 InstanceIds are required.")
        if len(set(hosts)) < len(hosts):
            raise ApiError(
                "DuplicateInstanceId", "You can't specify a managed node ID in more than one place."
            )
        known = {node.host_id for node in self._world.nodes.values() if not node.terminated}
        wrong = [host for host in hosts if host not in known]
        if wrong:
            whose = f"not in a valid state for account {self._world.place.account}"
            raise ApiError("InvalidInstanceId", f"Instances [[{', '.join(wrong)}]] {whose}")
        return hosts

    # -- looking -------------------------------------------------------------------------------------------

    def list_commands(self, data: dict[str, Any]) -> dict[str, Any]:
        """Newest first."""
        found = [c for c in self._newest_first(data) if _passes(c.record, c.record["Status"], data)]
        some, more = page(
            found, data.get("NextToken"), page_size(data, "MaxResults", 50), error="InvalidNextToken"
        )
        return {"Commands": [dict(c.record) for c in some], **({"NextToken": more} if more else {})}

    def list_invocations(self, data: dict[str, Any]) -> dict[str, Any]:
        found = [
            (command, one)
            for command in self._newest_first(data)
            for one in command.invocations.values()
            if data.get("InstanceId") in (None, one.host)
            and self._visible(one.created_at)
            and _passes(command.record, one.status, data)
        ]
        some, more = page(
            found, data.get("NextToken"), page_size(data, "MaxResults", 50), error="InvalidNextToken"
        )
        rows = [
            self._invocation_shape(command, one, details=bool(data.get("Details"))) for command, one in some
        ]
        return {"CommandInvocations": rows, **({"NextToken": more} if more else {})}

    def get_invocation(self, data: dict[str, Any]) -> dict[str, Any]:
        """Right after SendCommand the invocation may not be there yet: reads lag behind."""
        command = self._run.commands.get(data.get("CommandId", ""))
        one = command.invocations.get(data.get("InstanceId", "")) if command else None
        if command is None or one is None or not self._visible(one.created_at):
            raise ApiError(
                "InvocationDoesNotExist", "The command ID and managed node ID do not match an invocation."
            )
        elapsed = (one.ended_at or self._world.agenda.now()) - (one.started_at or one.created_at)
        return {
            "CommandId": command.record["CommandId"],
            "InstanceId": one.host,
            "Comment": command.record["Comment"],
            "DocumentName": command.record["DocumentName"],
            "DocumentVersion": "$DEFAULT",
            "PluginName": _PLUGIN,
            "ResponseCode": one.code,
            "ExecutionStartDateTime": "" if one.started_at is None else events.moment(one.started_at),
            "ExecutionElapsedTime": "" if one.ended_at is None else f"PT{elapsed:.3f}S",
            "ExecutionEndDateTime": "" if one.ended_at is None else events.moment(one.ended_at),
            "Status": one.status,
            "StatusDetails": one.details,
            "StandardOutputContent": one.stdout[:STDOUT],
            "StandardOutputUrl": "",
            "StandardErrorContent": one.stderr[:STDERR],
            "StandardErrorUrl": "",
            "CloudWatchOutputConfig": {"CloudWatchLogGroupName": "", "CloudWatchOutputEnabled": False},
        }

    def describe_instances(self, data: dict[str, Any]) -> dict[str, Any]:
        """Every host with an SSM agent, and whether the agent was heard lately."""
        filters = [(row.get("Key"), row.get("Values") or []) for row in data.get("Filters") or ()]
        filters += [(row["key"], row["valueSet"]) for row in data.get("InstanceInformationFilterList") or ()]
        nodes = [node for node in self._world.nodes.values() if not node.terminated]
        tags = [(key.removeprefix("tag:"), values) for key, values in filters if key.startswith("tag:")]
        if tags and len(tags) < len(filters):
            raise ApiError("InvalidFilterValue", "Tag filters can't be combined with other filter types.")
        nodes = [n for n in nodes if all(n.host_tags.get(key) in values for key, values in tags)]
        rows = [self._host_shape(node) for node in nodes]
        names = {"InstanceIds": "InstanceId", "PingStatus": "PingStatus", "ResourceType": "ResourceType"}
        for key, values in [] if tags else filters:
            if key not in names:
                raise ApiError("InvalidFilterKey", f"The simulator does not know the filter {key}.")
            rows = [row for row in rows if row[names[key]] in values]
        some, more = page(
            rows, data.get("NextToken"), page_size(data, "MaxResults", 50), error="InvalidNextToken"
        )
        return {"InstanceInformationList": some, **({"NextToken": more} if more else {})}

    # -- shapes --------------------------------------------------------------------------------------------

    def _newest_first(self, data: dict[str, Any]) -> list[Command]:
        host, command_id = data.get("InstanceId"), data.get("CommandId")
        return [
            command
            for command in reversed(self._run.commands.values())
            if command_id in (None, command.record["CommandId"])
            and (host is None or host in command.invocations)
            and self._visible(command.record["RequestedDateTime"])
        ]

    def _visible(self, since: float) -> bool:
        return since <= self._world.agenda.now() - self._world.knobs.read_lag_s

    @staticmethod
    def _invocation_shape(command: Command, one: Invocation, *, details: bool) -> dict[str, Any]:
        plugin: dict[str, Any] = {
            "Name": _PLUGIN,
            "Status": one.status,
            "StatusDetails": one.details,
            "ResponseCode": one.code,
            "Output": (one.stdout + one.stderr)[:LISTED],
            "StandardOutputUrl": "",
            "StandardErrorUrl": "",
        }
        times = (("ResponseStartDateTime", one.started_at), ("ResponseFinishDateTime", one.ended_at))
        plugin |= {name: at for name, at in times if at is not None}
        return {
            "CommandId": command.record["CommandId"],
            "InstanceId": one.host,
            "InstanceName": "",
            "Comment": command.record["Comment"],
            "DocumentName": command.record["DocumentName"],
            "DocumentVersion": "$DEFAULT",
            "RequestedDateTime": command.record["RequestedDateTime"],
            "Status": one.status,
            "StatusDetails": one.details,
            "StandardOutputUrl": "",
            "StandardErrorUrl": "",
            "CommandPlugins": [plugin] if details else [],
            "ServiceRole": "",
        }

    def _host_shape(self, node: Node) -> dict[str, Any]:
        return {
            "InstanceId": node.host_id,
            "PingStatus": "Online" if node.ssm_online else "ConnectionLost",
            "LastPingDateTime": self._world.agenda.now(),
            "AgentVersion": "3.3.2299.0",
            "IsLatestVersion": True,
            "PlatformType": "Linux",
            "PlatformName": "Amazon Linux",
            "PlatformVersion": "2023",
            "ResourceType": "ManagedInstance" if node.external else "EC2Instance",
            "IPAddress": "10.0.0.1",
            "ComputerName": node.name,
        }


def _passes(record: dict[str, Any], status: str, data: dict[str, Any]) -> bool:
    """The filters of both lists."""
    checks: dict[str, Callable[[str], bool]] = {
        "InvokedAfter": lambda value: (
            record["RequestedDateTime"] >= datetime.fromisoformat(value).timestamp()
        ),
        "InvokedBefore": lambda value: (
            record["RequestedDateTime"] <= datetime.fromisoformat(value).timestamp()
        ),
        "Status": lambda value: status == value,
        "DocumentName": lambda value: record["DocumentName"] == value,
    }
    for row in data.get("Filters") or ():
        if row.get("key") not in checks:
            raise ApiError("InvalidFilterKey", f"The simulator does not know the filter {row.get('key')}.")
        if not checks[row["key"]](row["value"]):
            return False
    return True
