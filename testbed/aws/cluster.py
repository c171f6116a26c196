"""The pure world: nodes, tasks, who holds which GPU, and the life of a task from placement to STOPPED.

No clock and no chance of its own, no I/O: time is the agenda's, ids come from the seed, events go to `send`.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from . import events, logs, shapes
from .agenda import Agenda
from .definitions import Needs
from .events import Event
from .model import BY_USER, EXITED, Container, Knobs, Node, Resources, Task
from .scripts import Script
from .shapes import Place


class Cluster:
    """All clusters of one account in one Region."""

    def __init__(
        self, *, agenda: Agenda, place: Place, knobs: Knobs, chance: Random, send: Callable[[Event], None]
    ) -> None:
        self.agenda, self.place, self.knobs = agenda, place, knobs
        self.script = Script(knobs)
        self.names: set[str] = set()
        self.nodes: dict[str, Node] = {}
        self.tasks: dict[str, Task] = {}
        self._chance, self._send = chance, send
        self.write_log: logs.Write = logs.Streams(agenda.now).write
        self.kept: list[str] = []  #: addresses that hosts sent to what a reboot would wipe
        self.keep: Callable[[str], None] = self.kept.append
        self._live: dict[str, list[Task]] = {}
        self._ended: deque[tuple[float, str]] = deque()

    # -- ids and look-ups ----------------------------------------------------------------------------------

    def hex(self, digits: int) -> str:
        return f"{self._chance.getrandbits(4 * digits):0{digits}x}"

    def coin(self) -> bool:
        return self._chance.random() < 0.5

    def uuid(self) -> str:
        raw = self.hex(32)
        return "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))

    def node(self, reference: str, cluster: str | None = None) -> Node | None:
        """By ARN, by the last part of the ARN, by host id or by the name that the test gave it.

        A host that has registered again is its newest registration.
        """
        found = self.nodes.get(reference)
        if found is None:
            for node in reversed(self.nodes.values()):
                if reference in (node.name, node.host_id, node.arn.rpartition("/")[2]):
                    found = node
                    break
        return found if found and cluster in (None, found.cluster) else None

    def task(self, reference: str, cluster: str | None = None) -> Task | None:
        """By ARN or by id. A task that stopped long ago is forgotten."""
        self._forget()
        found = self.tasks.get(reference)
        if found is None and cluster is not None:
            found = self.tasks.get(self.place.arn("task", cluster, reference))
        elif found is None:
            found = next((task for task in self.tasks.values() if task.id == reference), None)
        return found if found and cluster in (None, found.node.cluster) else None

    def all_tasks(self) -> Iterable[Task]:
        self._forget()
        return self.tasks.values()

    def live_on(self, node: Node) -> list[Task]:
        return self._live.setdefault(node.arn, [])

    def _forget(self) -> None:
        horizon = self.agenda.now() - self.knobs.stopped_visible_s
        while self._ended and self._ended[0][0] < horizon:
            self.tasks.pop(self._ended.popleft()[1], None)

    # -- what is told --------------------------------------------------------------------------------------

    def send(self, event: Event) -> None:
        self._send(event)

    def task_changed(self, task: Task) -> None:
        """A new version of the task, told to the world. The first one is version 1."""
        if task.views:
            task.version += 1
        now, shape = self.agenda.now(), shapes.task_shape(task, self.place)
        task.views.append((now, shape))
        self._send(events.task_event(self.uuid(), now, shape))

    def node_changed(self, node: Node) -> None:
        """Every placement, end and connection is a new version of the instance."""
        if node.views:
            node.version += 1
        now, shape = self.agenda.now(), shapes.node_shape(node, self.live_on(node), self.place)
        node.views.append((now, shape))
        self._send(events.instance_event(self.uuid(), now, shape))

    # -- registration --------------------------------------------------------------------------------------

    def add_node(
        self,
        *,
        name: str = "",
        cluster: str = "default",
        host_id: str = "",
        external: bool = False,
        gpus: int | Sequence[str] = 8,
        cpu: int = 196_608,
        memory: int = 2_000_000,
        attributes: dict[str, str] | None = None,
    ) -> Node:
        """An agent registers for the first time. `gpus` is how many it finds, or their UUIDs."""
        host_id = host_id or ("mi-" if external else "i-") + self.hex(17)
        node = Node(
            name=name or host_id,
            cluster=cluster,
            host_id=host_id,
            cpu=cpu,
            memory=memory,
            arn=self.place.arn("container-instance", cluster, self.hex(32)),
            gpus=tuple(f"GPU-{self.uuid()}" for _ in range(gpus)) if isinstance(gpus, int) else tuple(gpus),
            registered_at=self.agenda.now(),
            boot_id=self.uuid(),
            zone=f"{self.place.region}a",
            attributes=dict(attributes or {}),
        )
        self.names.add(cluster)
        self.nodes[node.arn] = node
        self.node_changed(node)
        return node

    # -- placement -----------------------------------------------------------------------------------------

    def refusal(self, node: Node, needs: Needs) -> str:
        """Why a task can't be placed there, the first reason that is found; empty if it can."""
        if node.status == "INACTIVE" or (node.status != "ACTIVE" and not self.knobs.start_on_draining):
            return "INACTIVE"
        if not node.connected:
            return "AGENT"
        if needs.awsvpc and node.external:
            return "ATTRIBUTE"
        live = self.live_on(node)
        if needs.cpu > node.cpu - sum(task.holds.cpu for task in live):
            return "RESOURCE:CPU"
        if needs.memory > node.memory - sum(task.holds.memory for task in live):
            return "RESOURCE:MEMORY"
        if any(needs.ports & task.holds.ports for task in live):
            return "RESOURCE:PORTS"
        return "RESOURCE:GPU" if needs.gpus > len(self._free_gpus(node)) else ""

    def _free_gpus(self, node: Node) -> list[str]:
        taken = {gpu for task in self.live_on(node) for gpu in task.holds.gpus}
        return [gpu for gpu in node.gpus if gpu not in taken]

    def start(
        self,
        node: Node,
        definition: dict[str, Any],
        needs: Needs,
        *,
        overrides: dict[str, Any],
        started_by: str = "",
        group: str = "",
        tags: Iterable[dict[str, str]] = (),
    ) -> Task:
        """Place a task that fits. It runs a little later, unless its node can't be reached."""
        task_id, free = self.hex(32), self._free_gpus(node)
        containers, used = [], 0
        for row, count in zip(definition["containerDefinitions"], needs.per_container, strict=True):
            own = tuple(free[used : used + count])
            used += count
            containers.append(self._container(row, own, node.cluster, task_id))
        overrides = copy.deepcopy(overrides)
        pairs = [
            pair for one in overrides.get("containerOverrides", ()) for pair in one.get("environment", ())
        ]
        long_life = needs.awsvpc or self.knobs.all_states
        task = Task(
            id=task_id,
            arn=self.place.arn("task", node.cluster, task_id),
            node=node,
            definition=definition,
            containers=containers,
            overrides=overrides,
            created_at=self.agenda.now(),
            started_by=started_by,
            env={pair["name"]: pair["value"] for pair in pairs},
            long_life=long_life,
            holds=Resources(
                cpu=needs.cpu, memory=needs.memory, ports=needs.ports, gpus=tuple(free[: needs.gpus])
            ),
            group=group or f"family:{definition['family']}",
            tags=[dict(tag) for tag in tags],
            status="PROVISIONING" if long_life else "PENDING",
        )
        self.tasks[task.arn] = task
        self.live_on(node).append(task)
        self.task_changed(task)
        self.node_changed(node)
        if long_life:
            self.agenda.after(self.knobs.start_s / 3, lambda: self._pass_through(task, "PENDING"))
        self.agenda.after(self.knobs.start_s, lambda: self.to_agent(node, lambda: self._begin(task)))
        return task

    def _container(self, row: dict[str, Any], gpus: tuple[str, ...], cluster: str, task_id: str) -> Container:
        return Container(
            name=row["name"],
            image=row.get("image", ""),
            cpu=int(row.get("cpu") or 0),
            memory=row.get("memory"),
            reservation=row.get("memoryReservation"),
            essential=row.get("essential", True),
            gpu_ids=gpus,
            arn=self.place.arn("container", cluster, task_id, self.uuid()),
        )

    # -- between ECS and the agent -------------------------------------------------------------------------

    def to_agent(self, node: Node, order: Callable[[], None]) -> None:
        """An order arrives now, or when the agent is back."""
        if node.reachable:
            order()
        else:
            node.inbox.append(order)

    def report(self, node: Node, tell: Callable[[], None]) -> None:
        """The agent tells ECS now, or when it is back."""
        if node.reachable:
            tell()
        else:
            node.reports.append(tell)

    def _begin(self, task: Task) -> None:
        """The agent pulls the image."""
        if task.over or task.process:
            return
        if task.desired == "STOPPED":
            self.report(task.node, lambda: self.ended(task, None))
            return
        task.outcome = self.script.outcome(task)
        if task.outcome.pull_s:
            self.agenda.after(
                task.outcome.pull_s, lambda: self.to_agent(task.node, lambda: self._launch(task))
            )
        else:
            self._launch(task)

    def _launch(self, task: Task) -> None:
        """The agent starts the containers, unless the task was stopped meanwhile."""
        outcome = task.outcome
        if task.over or task.process or task.desired == "STOPPED":
            return
        if outcome.start_error:
            self.report(task.node, lambda: self._failed_to_start(task, outcome.start_error))
            return
        task.process = "alive"
        if task.long_life:
            self.report(task.node, lambda: self._pass_through(task, "ACTIVATING"))
        self.report(task.node, lambda: self._running(task))
        if outcome.after_s is not None:
            self.agenda.after(
                outcome.after_s, lambda: self._ends(task, outcome.exit_code or 0, outcome.reason)
            )

    def exit(self, task: Task, code: int, reason: str = "") -> bool:
        """The main process ends. False if there is none."""
        if task.process != "alive":
            return False
        task.process = "dead"
        place = logs.place_of(task)
        if place is not None and task.outcome.lines:
            self.write_log(*place, list(task.outcome.lines))
        self.report(task.node, lambda: self.ended(task, code, reason))
        return True

    def _ends(self, task: Task, code: int, reason: str) -> None:
        self.exit(task, code, reason)

    def stop(self, task: Task, reason: str = "", code: str = "UserInitiated") -> None:
        """Somebody wants the task to end. It ends later; whoever asked first is remembered."""
        if task.over or task.desired == "STOPPED":
            return
        self._give_up(task, code, reason or BY_USER)
        self.task_changed(task)
        self.agenda.after(0.0, lambda: self.to_agent(task.node, lambda: self._terminate(task)))

    def _terminate(self, task: Task) -> None:
        """The agent sends SIGTERM, and SIGKILL to who ignores it."""
        if task.over or task.process == "dead":
            return
        if not task.process:
            self.report(task.node, lambda: self.ended(task, None))
            return
        if task.long_life:
            self._pass_through(task, "DEACTIVATING")
            self.agenda.after(self.knobs.stop_s / 3, lambda: self._pass_through(task, "STOPPING"))
        asked = task.outcome.on_term
        after_s, code = (self.knobs.kill_s, 137) if asked is None else (self.knobs.stop_s, asked)
        self.agenda.after(after_s, lambda: self._ends(task, code, ""))

    # -- what ECS records ----------------------------------------------------------------------------------

    def _pass_through(self, task: Task, status: str) -> None:
        """A state on the way, unless the task is past it already."""
        order = (
            "PROVISIONING",
            "PENDING",
            "ACTIVATING",
            "RUNNING",
            "DEACTIVATING",
            "STOPPING",
            "DEPROVISIONING",
            "STOPPED",
        )
        if order.index(task.status) < order.index(status):
            task.status = status
            self.task_changed(task)

    def _running(self, task: Task) -> None:
        if task.status not in ("PROVISIONING", "PENDING", "ACTIVATING"):
            return
        now = self.agenda.now()
        task.times |= {"connectivityAt": now, "pullStartedAt": now, "pullStoppedAt": now, "startedAt": now}
        for container in task.containers:
            container.status = "RUNNING"
            container.runtime_id, container.digest = self.hex(64), f"sha256:{self.hex(64)}"
        task.status = "RUNNING"
        self.task_changed(task)

    def _failed_to_start(self, task: Task, error: str) -> None:
        whole = error if error.startswith("ResourceInitializationError") else "Task failed to start"
        self.ended(task, None, error, stop_code="TaskFailedToStart", why=whole)

    def ended(
        self,
        task: Task,
        code: int | None,
        reason: str = "",
        *,
        stop_code: str = "EssentialContainerExited",
        why: str = EXITED,
    ) -> None:
        """ECS learns of the end. With `code` None no container has an exit code."""
        if task.over or task.status == "DEPROVISIONING":
            return
        main, now = task.main, self.agenda.now()
        for container in task.containers:
            container.status = "STOPPED"
            if code is not None:
                container.exit_code = code if container is main else 143
        main.reason = reason[:1024]
        self._give_up(task, stop_code, why)
        task.times.setdefault("executionStoppedAt", now)
        if task.long_life:
            self._pass_through(task, "DEPROVISIONING")
            self.agenda.after(self.knobs.stop_s / 3, lambda: self._stopped(task))
        else:
            self._stopped(task)

    def _give_up(self, task: Task, stop_code: str, why: str) -> None:
        task.desired = "STOPPED"
        if not task.stop_code:
            task.stop_code, task.reason = stop_code, why
        task.times.setdefault("stoppingAt", self.agenda.now())

    def _stopped(self, task: Task) -> None:
        if task.over:
            return
        task.status, task.process = "STOPPED", "dead"
        task.times["stoppedAt"] = self.agenda.now()
        self.live_on(task.node).remove(task)
        self._ended.append((self.agenda.now(), task.arn))
        self.task_changed(task)
        self.node_changed(task.node)
