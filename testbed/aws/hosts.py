"""What happens to the hosts: agents that come and go, reboots, power cuts, the end of an instance.

A reboot follows what an ECS agent really does: the connection drops (or ECS never notices), the containers
are found dead when the agent is back, they are reported, and the GPUs are free. The ARN stays the same, unless the
agent's memory is lost: then the host registers as a new instance, and nobody reports the dead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from . import events
from .cluster import Cluster
from .model import SPOT, Node, Reboot


class Hosts:
    """Turns the power off and on under a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._agenda, self._knobs = cluster.agenda, cluster.knobs

    # -- the agent's connection ----------------------------------------------------------------------------

    def disconnect(self, node: Node) -> None:
        """ECS loses sight of the agent; the tasks run on."""
        if not node.connected:
            return
        node.connected = False
        self._cluster.node_changed(node)
        if self._knobs.health_events:
            self.impair(
                node, "AGENT_CONNECTIVITY", f"Agent disconnected since {events.second(self._agenda.now())}"
            )

    def connect(self, node: Node) -> None:
        """The agent is back: it tells what it has kept, and takes the orders that waited."""
        if not node.up or node.terminated or node.status == "INACTIVE":
            return
        if not node.connected:
            node.connected = True
            self._cluster.node_changed(node)
            if node.impairment and node.impairment[0] == "AGENT_CONNECTIVITY":
                self.heal(node)
        if self._knobs.report_s:
            self._agenda.after(self._knobs.report_s, partial(self._flush, node.reports))
        else:
            self._flush(node.reports)
        self._flush(node.inbox)

    @staticmethod
    def _flush(waiting: list[Callable[[], None]]) -> None:
        now, waiting[:] = list(waiting), []
        for do in now:
            do()

    def impair(self, node: Node, kind: str, reason: str) -> None:
        """ECS's own opinion of a node's health, as far as it tells one."""
        node.impairment = (kind, reason, self._agenda.now())
        self._tell_health(node)

    def heal(self, node: Node) -> None:
        node.impairment = None
        self._tell_health(node)

    def _tell_health(self, node: Node) -> None:
        cluster = self._cluster
        cluster.send(events.health_event(cluster.uuid(), self._agenda.now(), node, cluster.place))

    # -- power ---------------------------------------------------------------------------------------------

    def reboot(self, node: Node) -> bool:
        """Down, and up again as the next plan says. False if it is down already."""
        if not node.up or node.terminated:
            return False
        plan = node.next_reboots.popleft() if node.next_reboots else Reboot()
        self._down(node, plan)
        if plan.returns:
            seconds = self._knobs.reboot_s if plan.seconds is None else plan.seconds
            self._agenda.after(seconds, partial(self._boot, node, plan, node.boots))
        return True

    def power_off(self, node: Node) -> None:
        """The power goes and stays away. ECS sees no more than a lost agent; its tasks stay RUNNING."""
        if node.up:
            self._down(node, Reboot())

    def power_on(self, node: Node) -> None:
        self._boot(node, Reboot(exit_code=255), node.boots)

    def _down(self, node: Node, plan: Reboot) -> None:
        node.up = False
        for task in node.orphans:
            task.process = "dead"
        for task in self._cluster.live_on(node):
            if task.process == "alive":
                task.process = "dead"
                node.reports.append(partial(self._cluster.ended, task, plan.exit_code))
        if not plan.fast:
            self._agenda.after(self._knobs.disconnect_s, partial(self._lost, node, node.boots))

    def _lost(self, node: Node, boot: int) -> None:
        if not node.up and node.boots == boot:
            self.disconnect(node)

    def _boot(self, node: Node, plan: Reboot, boot: int) -> None:
        """The host comes up with a new boot id. A reboot cures a fault of verdict 1, not of 2."""
        if node.up or node.terminated or node.boots != boot:
            return
        node.up, node.boots, node.boot_id = True, node.boots + 1, self._cluster.uuid()
        if plan.cures and node.health == 1:
            node.health = 0
        if plan.lose_gpus:
            node.gpus = node.gpus[: max(0, len(node.gpus) - plan.lose_gpus)]
        if plan.forgets:
            self.register_again(node)
        deaths_first = self._cluster.coin() if plan.deaths_first is None else plan.deaths_first
        if deaths_first and node.status != "INACTIVE":
            self._flush(node.reports)
        if plan.lose_gpus and node.connected:
            self._cluster.node_changed(node)
        self.connect(node)
        self._flush(node.on_boot)

    def register_again(self, node: Node, *, named: bool = True) -> None:
        """The agent has lost its memory: the host becomes a new instance, and knows nothing of its old tasks.

        The old instance stays as ECS knew it, with tasks that nobody will ever report. `named`: the name comes from
        the agent's own settings. What others had put on the old instance is gone.
        """
        cluster = self._cluster
        old = replace(node, forgotten=True, up=False, inbox=[], reports=[], on_boot=[])
        cluster.nodes[old.arn] = old
        for task in cluster.tasks.values():
            if task.node is node:
                task.node = old
        node.arn = cluster.place.arn("container-instance", node.cluster, cluster.hex(32))
        node.registered_at, node.version, node.views = self._agenda.now(), 2, deque(maxlen=16)
        node.attributes = {k: v for k, v in node.attributes.items() if named and k == "node_name"}
        node.status, node.connected = "ACTIVE", True
        node.orphans += [task for task in cluster.live_on(old) if task.process == "alive"]
        node.inbox.clear()
        node.reports.clear()
        cluster.nodes[node.arn] = node
        cluster.node_changed(node)
        self._agenda.after(self._knobs.disconnect_s, partial(self.disconnect, old))

    # -- the end of an instance ----------------------------------------------------------------------------

    def terminate(self, node: Node) -> None:
        """An EC2 instance is gone for ever. ECS ends its tasks; no container has an exit code."""
        self._must_be_ec2(node)
        self._end(node, "TerminationNotice", f"Host EC2 (instance {node.host_id}) terminated.")

    def interrupt(self, node: Node) -> None:
        """A Spot interruption: the tasks are told, then the host is gone."""
        self._must_be_ec2(node)
        for task in list(self._cluster.live_on(node)):
            self._cluster.stop(task, SPOT, "SpotInterruption")
        self._agenda.after(self._knobs.stop_s / 2, lambda: self._end(node, "SpotInterruption", SPOT))

    @staticmethod
    def _must_be_ec2(node: Node) -> None:
        if node.external:
            raise ValueError(f"{node.name} is no EC2 instance: nobody can terminate it")

    def _end(self, node: Node, stop_code: str, why: str) -> None:
        if node.terminated:
            return
        was_connected = node.connected
        node.terminated, node.up, node.connected = True, False, False
        node.ec2_state = "terminated"
        node.inbox.clear()
        node.reports.clear()
        for task in list(self._cluster.live_on(node)):
            self._cluster.ended(task, None, stop_code=stop_code, why=why)
        if was_connected:  # with its agent gone before, ECS never deregisters it by itself
            node.status = "INACTIVE"
        self._cluster.node_changed(node)

    def deregister(self, node: Node) -> None:
        """ECS forgets the instance. Tasks that still run there are on their own, and count as stopped."""
        for task in list(self._cluster.live_on(node)):
            self._cluster.ended(
                task, None, stop_code="UserInitiated", why="Container instance deregistration forced by user"
            )
        node.status, node.connected = "INACTIVE", False
        self._cluster.node_changed(node)
