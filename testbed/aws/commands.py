"""Commands on hosts as SSM Run Command keeps them: one command, one invocation per host, and how each goes.

No shell is run. A script is known by its words: our reboot script by a line that names its key and one that names its
marker, a question for the boot id by the file that it reads. Every other script fails, unless the test wrote down its
result.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from . import events
from .cluster import Cluster
from .documents import Script
from .hosts import Hosts
from .model import Node

#: The lines of a script that make it a reboot order. The host obeys each marker once.
REBOOT_LINE = re.compile(r"^\s*#\s*gpu-recovery reboot key=(?P<key>\S+)\s*$", re.MULTILINE)
EVIDENCE_LINE = re.compile(r"^evidence='(?P<address>[^']+)'$", re.MULTILINE)
MARKER_LINE = re.compile(r"^marker=\$folder/(?P<marker>[0-9a-f]{32})$", re.MULTILINE)
BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
#: The line that makes a script a look, at a task that hangs or at a machine before it is taken away.
LOOK_LINE = re.compile(r"^# gpu-recovery (?P<look>look at task|last look) (?P<of>\S+)$", re.MULTILINE)
#: What a script exits with to ask the SSM agent for a reboot, after which it is run again.
REBOOT_AND_RUN_AGAIN = 194
FINAL = frozenset({"Success", "Failed", "TimedOut", "Cancelled"})


@dataclass(slots=True, kw_only=True, eq=False)
class Invocation:
    """A command on one host."""

    host: str
    created_at: float
    status: str = "Pending"
    details: str = "Pending"
    code: int = -1  #: -1 until the script has ended
    stdout: str = ""
    stderr: str = ""
    started_at: float | None = None
    ended_at: float | None = None

    @property
    def over(self) -> bool:
        return self.status in FINAL


@dataclass(slots=True, kw_only=True, eq=False)
class Command:
    """A command as a whole. `record` is the shape that the API shows."""

    record: dict[str, Any]
    script: Script
    invocations: dict[str, Invocation]


class RunCommand:
    """Carries commands to the hosts and keeps what became of them."""

    def __init__(self, cluster: Cluster, hosts: Hosts) -> None:
        self._world, self._hosts, self._agenda = cluster, hosts, cluster.agenda
        self.commands: dict[str, Command] = {}

    def send(self, record: dict[str, Any], script: Script) -> Command:
        now, hosts = self._agenda.now(), record["InstanceIds"]
        invocations = {host: Invocation(host=host, created_at=now) for host in hosts}
        command = Command(record=record, script=script, invocations=invocations)
        self.commands[record["CommandId"]] = command
        for one in invocations.values():
            self._agenda.after(self._world.knobs.command_s, partial(self._deliver, command, one))
            self._agenda.after(record["TimeoutSeconds"], partial(self._undelivered, command, one))
        return command

    def cancel(self, command: Command, host: str) -> None:
        """What has not begun never will, and a script that runs is ended."""
        one = command.invocations.get(host)
        if one is not None and not one.over:
            self._move(command, one, "Cancelled")

    # -- on the way ----------------------------------------------------------------------------------------

    def _deliver(self, command: Command, one: Invocation) -> None:
        """To the agent, or, while it can't be reached, as soon as it is back."""
        node = self._world.node(one.host)
        if node is None or one.over:
            return
        if not node.ssm_online:
            node.on_boot.append(partial(self._deliver, command, one))
            return
        one.started_at = self._agenda.now()
        self._move(command, one, "InProgress")
        self._agenda.after(command.script.timeout_s, partial(self._overran, command, one))
        self._agenda.after(self._world.knobs.command_s, partial(self._run, command, one, node, node.boots))

    def _undelivered(self, command: Command, one: Invocation) -> None:
        if one.status == "Pending":
            self._move(command, one, "TimedOut", "Delivery Timed Out")

    def _overran(self, command: Command, one: Invocation) -> None:
        if not one.over:
            self._move(command, one, "TimedOut", "Execution Timed Out")

    # -- on the host ---------------------------------------------------------------------------------------

    def _run(self, command: Command, one: Invocation, node: Node, boot: int) -> None:
        if one.over:
            return
        if not node.ssm_online or node.boots != boot:  # it went down under the script, which is run again
            self._again(command, one, node)
            return
        code, stdout, stderr = self._result(command.script.text, node)
        if code == REBOOT_AND_RUN_AGAIN:
            one.stdout += stdout
            node.on_boot.append(partial(self._again, command, one, node))
            self._hosts.reboot(node)
            return
        one.code, one.stdout, one.stderr = code, one.stdout + stdout, stderr
        self._move(command, one, "Success" if code == 0 else "Failed")

    def _again(self, command: Command, one: Invocation, node: Node) -> None:
        if not node.ssm_online:
            node.on_boot.append(partial(self._again, command, one, node))
            return
        self._agenda.after(self._world.knobs.command_s, partial(self._run, command, one, node, node.boots))

    def _result(self, script: str, node: Node) -> tuple[int, str, str]:
        order, marker = REBOOT_LINE.search(script), MARKER_LINE.search(script)
        rerun = marker is not None and node.markers.get(marker["marker"], node.boot_id) != node.boot_id
        if node.script_results and not rerun:
            return node.script_results.popleft()
        if order is not None and marker is not None:
            kept = EVIDENCE_LINE.search(script)
            if kept is not None and marker["marker"] not in node.markers:
                self._world.keep(kept["address"])
            return self._reboot_script(order["key"], marker["marker"], node)
        if (look := LOOK_LINE.search(script)) is not None and marker is not None:
            kept = EVIDENCE_LINE.search(script)
            if kept is not None and marker["marker"] not in node.markers:
                self._world.keep(kept["address"])
            if marker["marker"] in node.markers:
                return 0, "looked at before\n", ""
            node.markers[marker["marker"]] = node.boot_id
            return 0, f"{node.nccl}\n{look['look']} {look['of']}\n", ""
        if BOOT_ID_FILE in script:
            return 0, f"{node.boot_id}\n", ""
        return 127, "", "The simulator runs no shell and does not know this script.\n"

    @staticmethod
    def _reboot_script(key: str, marker: str, node: Node) -> tuple[int, str, str]:
        """As the script does: keep a marker and ask for a reboot; afterwards, compare boot ids."""
        node.reboot_keys.setdefault(marker, key)
        was = node.markers.setdefault(marker, node.boot_id)
        if was == node.boot_id:
            return REBOOT_AND_RUN_AGAIN, f"rebooting from {node.boot_id}\n", ""
        return 0, f"booted as {node.boot_id}\n", ""

    # -- what SSM records ----------------------------------------------------------------------------------

    def _move(self, command: Command, one: Invocation, status: str, details: str = "") -> None:
        one.status, one.details = status, details or ("In Progress" if status == "InProgress" else status)
        if one.over:
            one.ended_at = self._agenda.now()
        self._tell(
            events.invocation_event(
                self._world.uuid(), self._agenda.now(), command.record, one.host, status, self._world.place
            )
        )
        self._summarise(command)

    def _summarise(self, command: Command) -> None:
        """The command's own status follows from those of its invocations."""
        record, all_of_them = command.record, list(command.invocations.values())
        over = [one for one in all_of_them if one.over]
        record["CompletedCount"] = len(over)
        record["ErrorCount"] = sum(one.status in ("Failed", "TimedOut") for one in over)
        record["DeliveryTimedOutCount"] = sum(one.details == "Delivery Timed Out" for one in over)
        status = "InProgress"
        if len(over) == len(all_of_them):
            status = next(
                (s for s in ("Failed", "TimedOut", "Cancelled") if any(o.status == s for o in over)),
                "Success",
            )
        if status == record["Status"]:
            return
        record["Status"], record["StatusDetails"] = (
            status,
            "In Progress" if status == "InProgress" else status,
        )
        hosts = list(command.invocations)
        now, place = self._agenda.now(), self._world.place
        self._tell(events.command_event(self._world.uuid(), now, record, hosts, place))

    def _tell(self, event: events.Event) -> None:
        self._world.send(event)
