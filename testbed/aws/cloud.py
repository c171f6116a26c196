"""One simulated account: the world, its services, its events, and the gate that every call passes.

In process, a test lets time pass itself and every run of a seed is the same:

    cloud = Cloud(seed=7)
    ecs, ssm = cloud.client("ecs"), cloud.client("ssm")
    cloud.subscribe(lambda event: ...)          # EventBridge envelopes, as a Lambda would get them
    cloud.run(until=lambda: ...)                # or cloud.advance(seconds)

Inside a local AWS the clock is real and a thread lets time pass (`keep_time`).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from .agenda import Agenda, Clock, VirtualClock
from .clients import Client
from .cluster import Cluster
from .commands import RunCommand
from .control import Control
from .definitions import Definitions, OwnDefinitions
from .documents import Documents
from .ecs import Action, TaskActions
from .events import Event
from .faults import Courier, Gate
from .groups import GroupActions
from .hosts import Hosts
from .instances import InstanceActions
from .logs import Streams, Write
from .model import Knobs
from .requests import ApiError
from .rights import Ledger
from .shapes import Place
from .ssm import SsmActions

Subscriber = Callable[[dict[str, Any]], None]
#: How long the thread that keeps time sleeps when nothing is due.
_NAP_S = 0.5


class Cloud:
    """Everything a caller sees. Calls may come from many threads; the world sees one at a time."""

    def __init__(
        self,
        *,
        seed: int = 0,
        clock: Clock | None = None,
        place: Place | None = None,
        knobs: Knobs | None = None,
        definitions: Definitions | None = None,
    ) -> None:
        self.place, self.knobs = place or Place(), knobs or Knobs()
        self._first_knobs = asdict(self.knobs)
        self.agenda = Agenda(clock or VirtualClock())
        self.lock = threading.RLock()
        self._woken = threading.Event()
        self._ended = threading.Event()
        self._subscribers: list[Subscriber] = []
        self.ledger = Ledger()
        self._own = OwnDefinitions(self.place, self.agenda.now)
        self._definitions = definitions or self._own
        self.keep: Callable[[str], None] | None = (
            None  #: sends what a host keeps, where there is a place for it
        )
        self.write_log: Write | None = None  #: where logs go that are not kept here
        self.reset(seed)

    def reset(self, seed: int = 0) -> None:
        """An empty world, behaving as at first. Subscribers stay."""
        with self.lock:
            for name, value in self._first_knobs.items():
                setattr(self.knobs, name, value)
            chance = random.Random(seed)  # noqa: S311 - nothing here is secret; a run must be repeatable
            self.agenda.clear()
            self.ledger.clear()
            self.events: list[Event] = []  #: as they happened, whatever became of them on the way
            self.delivered: list[Event] = []
            self.gate, self.courier = Gate(), Courier(random.Random(chance.random()))  # noqa: S311
            self.cluster = Cluster(
                agenda=self.agenda, place=self.place, knobs=self.knobs, chance=chance, send=self._send
            )
            streams = Streams(self.agenda.now)
            self.cluster.write_log = self.write_log or streams.write
            self.cluster.keep = self.keep or self.cluster.keep
            self.hosts = Hosts(self.cluster)
            self.commands = RunCommand(self.cluster, self.hosts)
            self.documents = Documents()
            tasks = TaskActions(self.cluster, self._definitions)
            instances = InstanceActions(self.cluster, self.hosts, tasks)
            self.actions: dict[str, dict[str, Action]] = {
                "ecs": tasks.actions | instances.actions,
                "ssm": SsmActions(self.cluster, self.commands, self.documents).actions,
                "logs": streams.actions,
                "ec2": {"DescribeInstances": self._describe_machines},
                "autoscaling": GroupActions(self.cluster, self.hosts).actions,
            }
            if self._definitions is self._own:
                self.actions["ecs"] |= {
                    "CreateCluster": self._own.create_cluster,
                    "RegisterTaskDefinition": self._own.register,
                    "DescribeTaskDefinition": self._own.describe,
                    "DeregisterTaskDefinition": self._own.deregister,
                }
            self.control = Control(self)

    # -- calls ---------------------------------------------------------------------------------------------

    def call(self, service: str, action: str, data: dict[str, Any]) -> dict[str, Any]:
        """One request. Raises `ApiError` where AWS would answer with an error."""
        with self.lock:
            self.settle()
            handler = self.actions[service].get(action)
            if handler is None:
                raise ApiError(
                    "UnknownOperationException", f"The simulator has no {service} action {action}."
                )
            self.gate.enter(action, self.agenda.now(), throttle=self.knobs.throttle)
            answer = handler(data)
        self._woken.set()
        return answer

    def _describe_machines(self, data: dict[str, Any]) -> dict[str, Any]:
        """EC2's list of machines; of its filters only that by id."""
        by_id = [each["Values"] for each in data.get("Filters", ()) if each["Name"] == "instance-id"]
        found = [
            {"InstanceId": node.host_id, "State": {"Name": node.ec2_state}}
            for node in self.cluster.nodes.values()
            if not (node.external or node.forgotten) and all(node.host_id in ids for ids in by_id)
        ]
        return {"Reservations": [{"Instances": [one]} for one in found]}

    def tags_of_host(self, host: str) -> dict[str, str]:
        """Of a machine, by its id; none for one that nobody knows."""
        with self.lock:
            node = self.cluster.node(host)
            return dict(node.host_tags) if node is not None else {}

    def group_of_host(self, host: str) -> str:
        """The Auto Scaling group of a machine, which has the same tags; empty where it is in none."""
        with self.lock:
            node = self.cluster.node(host)
            return node.group if node is not None else ""

    def client(self, service: str) -> Client:
        """What `boto3.client(service)` would be, without the wire."""
        return Client(self, service)

    # -- time ----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Do what is due by now, where time passes by itself; a virtual clock waits for its test."""
        if not isinstance(self.agenda.clock, VirtualClock):
            self.agenda.settle()

    def advance(self, seconds: float) -> None:
        with self.lock:
            self.agenda.advance(seconds)
        self._woken.set()

    def run(self, until: Callable[[], bool], *, limit_s: float = 3600.0) -> None:
        """Let virtual time pass until something holds. Raises if it never does, or not within the limit."""
        end = self.agenda.now() + limit_s
        while not until():
            due = self.agenda.due()
            if due is None or due > end:
                raise TimeoutError(f"nothing within {limit_s:g} s made it so")
            with self.lock:
                self.agenda.step()

    def keep_time(self) -> None:
        """Do things as they come due, until `end`. For a thread of its own, with the real clock."""
        while not self._ended.is_set():
            with self.lock:
                self.agenda.settle()
                due = self.agenda.due()
            wait = _NAP_S if due is None else min(_NAP_S, due - self.agenda.now())
            if wait > 0:
                self._woken.wait(wait)
            self._woken.clear()

    def end(self) -> None:
        self._ended.set()
        self._woken.set()

    # -- events --------------------------------------------------------------------------------------------

    def subscribe(self, subscriber: Subscriber) -> None:
        """Called with every envelope that arrives, in a moment at which it may call back."""
        self._subscribers.append(subscriber)

    def _send(self, event: Event) -> None:
        self.events.append(event)
        for seconds in self.courier.copies():
            self.agenda.after(seconds, lambda: self._deliver(event))

    def _deliver(self, event: Event) -> None:
        self.delivered.append(event)
        for subscriber in self._subscribers:
            subscriber(event.envelope(self.place))
