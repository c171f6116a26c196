"""From an EventBridge event to the runtime: whose it is, which record it concerns, and what to ask beside it.

An event that is not ours, or makes no sense, is logged and dropped: it can't become right by being sent again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from ..core import keys
from ..core.errors import NodesTaken, NotFound
from ..core.events import CheckStarted, Fact, NodeChecked, NodeSeen
from ..core.exits import OUR_REASON
from ..core.model import Job, JobStatus, Node, NodeStatus, Rank
from ..core.node.table import decide_node
from ..engine.runtime import Runtime
from ..engine.sweeper import Report, Sweeper
from .errors import ForeignRecord
from .fleet import EcsFleet
from .parse import Kind, Parsed, parse_event
from .reboots import Command, outcome
from .roll import Roll
from .upkeep import Upkeep

log = logging.getLogger("ecs_gpu_recovery")
#: For how long after a registration it is looked for the machine's older one by its host.
YOUNG = timedelta(hours=1)


class Adopter(Protocol):
    """Takes over a job that another tool recorded."""

    def adopt(self, row: Mapping[str, Any], at: datetime) -> Job:
        """Make the job's record from the schema's attributes alone. Raises `NotFound` where they don't suffice."""

    def adopt_strays(self, at: datetime) -> None:
        """Take over the jobs that no event has led to."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was done with an event, for the log and for tests."""

    kind: str
    taken: bool
    why: str
    record: str = ""
    report: Report | None = None  #: of a sweep


class Intake:
    """One method for all four handlers; each is given only the events its rule matches."""

    def __init__(
        self,
        runtime: Runtime,
        fleet: EcsFleet,
        adopter: Adopter,
        *,
        cluster: str,
        check_family: str,
        upkeep: Upkeep | None = None,
    ) -> None:
        self._upkeep = upkeep
        self._runtime, self._fleet, self._adopter = runtime, fleet, adopter
        self._cluster, self._check_family = cluster, check_family
        self._names: dict[str, str] = {}  #: of nodes, by container instance
        self._taken: dict[str, tuple[int, tuple[object, ...]]] = {}  #: the last sighting of each instance
        self._strangers: set[str] = set()  #: young instances whose hosts were looked for
        self._settled: dict[str, str] = {}  #: the last command whose end was taken, and its record
        self._running = Roll()

    def take(self, event: object) -> Answer:
        seen = parse_event(event, cluster=self._cluster, check_family=self._check_family)
        answer = self._route(seen)
        if not answer.taken:
            log.info(
                "dropped",
                extra={
                    "kind": answer.kind,
                    "why": answer.why,
                    "task": seen.task_id,
                    "instance": seen.instance,
                },
            )
        return answer

    def _route(self, seen: Parsed) -> Answer:
        if seen.kind is Kind.TICK and seen.at is not None:
            report = Sweeper(self._runtime).sweep(seen.at)
            self._adopter.adopt_strays(seen.at)
            if self._upkeep is not None:
                self._upkeep.look(self._runtime, seen.at)
            said = f"swept {report.jobs} jobs and {report.nodes} nodes; {report.resent} orders sent again"
            return Answer(seen.kind, True, said, report=report)
        if not (seen.ours or seen.may_be_ours) or seen.at is None:
            return Answer(seen.kind, False, seen.why)
        if seen.kind is Kind.TASK:
            return self._task(seen, seen.at)
        if seen.kind is Kind.CHECK:
            return self._check(seen)
        if seen.kind in (Kind.INSTANCE, Kind.INSTANCE_HEALTH):
            return self._instance(seen)
        if seen.kind is Kind.FAULT:
            return self._sighting(seen)
        if seen.kind is Kind.REBOOT_COMMAND:
            return self._command(seen)
        return Answer(seen.kind, False, seen.why)

    def _task(self, seen: Parsed, at: datetime) -> Answer:
        """By the job the event names, else by the task row; the record must know the task or wait for it."""
        if not seen.facts:
            return Answer(seen.kind, False, seen.why)
        if seen.status != "STOPPED" and seen.end is not None and seen.end.reason.startswith(OUR_REASON):
            return Answer(seen.kind, True, "our own stop is on its way", seen.job)
        job_id = seen.job or self._runtime.store.job_of_task(seen.task_id)
        if not job_id:
            return Answer(seen.kind, False, f"no job knows task {seen.task_id}")
        known = self._runtime.store.last(job_id)
        if seen.status == "RUNNING" and known is not None and self._running.keep(known, seen.facts):
            return Answer(seen.kind, True, "kept until the whole gang runs", job_id)
        try:
            self._handle(job_id, [*self._running.of(job_id), *seen.facts], at)
        except (NotFound, NodesTaken) as exc:
            return Answer(seen.kind, False, str(exc))
        self._running.drop(job_id)
        return Answer(seen.kind, True, seen.why, job_id)

    def _handle(self, job_id: str, facts: Sequence[Fact], at: datetime) -> None:
        try:
            self._runtime.handle(job_id, facts)
        except ForeignRecord as exc:
            self._adopter.adopt(exc.row, at)
            self._runtime.handle(job_id, facts)

    def _check(self, seen: Parsed) -> Answer:
        """A check that our own record names has started: its event says so once more, and costs no read."""
        if not seen.facts:
            return Answer(seen.kind, False, seen.why)
        ours = self._runtime.store.last(seen.job)
        if seen.status != "STOPPED" and ours and any(r.check_id == seen.task_id for r in ours.ranks):
            return Answer(seen.kind, True, "nothing new", seen.job)
        try:
            if seen.job:
                self._runtime.handle(seen.job, seen.facts)
            elif seen.node:
                self._runtime.handle_node(seen.node, seen.facts)
            else:
                return self._unmarked_check(seen)
        except NotFound as exc:
            return Answer(seen.kind, False, str(exc))
        return Answer(seen.kind, True, seen.why, seen.job or seen.node)

    def _unmarked_check(self, seen: Parsed) -> Answer:
        """A check that names nobody counts only where the record of its node, or of the job there, knows its id."""
        node = self._node(seen) if seen.instance else None
        if node is None:
            return Answer(seen.kind, False, f"no node is {seen.instance or 'named'}")
        job = self._runtime.store.job(node.job_id) if node.job_id else None
        records: Sequence[Rank | Node] = [node] if job is None else job.ranks
        known = next((record for record in records if record.check_id == seen.task_id), None)
        if known is None:
            return Answer(seen.kind, False, f"no record knows the check {seen.task_id}")
        facts = [
            replace(fact, check_try=known.check_try)
            for fact in seen.about(node.name)
            if isinstance(fact, CheckStarted | NodeChecked)
        ]
        if job is None:
            self._runtime.handle_node(node.name, facts)
        else:
            self._runtime.handle(job.id, facts)
        return Answer(seen.kind, True, seen.why, node.job_id or node.name)

    def _instance(self, seen: Parsed) -> Answer:
        """ECS sends one for every placement: news is rare, and no news costs one read, or none."""
        if self._taken_before(seen):
            return Answer(seen.kind, True, "nothing new", self._names[seen.instance])
        answer = self._sighting(seen)
        if answer.taken and seen.kind is Kind.INSTANCE and seen.instance in self._names:
            self._taken[seen.instance] = (seen.version, _shown(seen))
        return answer

    def _taken_before(self, seen: Parsed) -> bool:
        """The same version as the last one that this process took, or the next, and nothing in it is different.

        Versions have no gaps, so nobody can have learned anything else in between.
        """
        version, shown = self._taken.get(seen.instance, (0, ()))
        next_one = version > 0 and seen.version in (version, version + 1) and shown == _shown(seen)
        if next_one and seen.kind is Kind.INSTANCE:
            self._taken[seen.instance] = (seen.version, shown)
            return True
        return False

    def _sighting(self, seen: Parsed) -> Answer:
        node = self._node(seen) if seen.instance else self._named(seen.node)
        if node is None:
            return Answer(seen.kind, False, f"no node is {seen.instance or seen.node}")
        facts = list(seen.about(node.name))
        news = [fact for fact in facts if self._is_news(node, fact)]
        if node.status is NodeStatus.REBOOTING and seen.kind is Kind.INSTANCE:
            up = any(isinstance(fact, NodeSeen) and fact.connected for fact in facts)
            news = [*facts, *(self._proof(node) if up else ())]
        if not news:
            return Answer(seen.kind, True, "nothing new", node.name)
        self._runtime.handle_node(node.name, news, node)
        return Answer(seen.kind, True, seen.why, node.name)

    def _is_news(self, node: Node, fact: Fact) -> bool:
        """A job that holds the node decides by itself whether its machine has registered anew."""
        anew = isinstance(fact, NodeSeen) and fact.succeeds(node)
        return anew or decide_node(node, fact, self._runtime.policy).changed

    def _node(self, seen: Parsed) -> Node | None:
        """The node that is this container instance: one read, if it is recorded under the name it goes by.

        If not, the index tells its name, once. Another tool's row is no node of ours.
        """
        instance = seen.instance
        try:
            name = self._names.get(instance) or seen.called
            node = self._named(name) if name else None
            if node is not None and node.instance == instance:
                self._names[instance] = node.name
                return node
            found = self._runtime.store.node_of_instance(instance)
        except NotFound:
            return None
        if found is not None:
            self._names[instance] = found.name
        return found or self._registered_anew(seen, node)

    def _registered_anew(self, seen: Parsed, named: Node | None) -> Node | None:
        """The node whose machine has become this instance: by its name, or, in its first hour, by its host.

        A name that was put on the old instance is gone with it. Strangers register too, and cost one look each.
        """
        fact = next((fact for fact in seen.facts if isinstance(fact, NodeSeen)), None)
        if fact is None or not fact.connected or fact.gone or not fact.host:
            return None
        if named is not None:
            return named if fact.succeeds(named) else None
        young = fact.registered is not None and fact.at - fact.registered < YOUNG
        if not young or seen.instance in self._strangers:
            return None
        self._strangers.add(seen.instance)
        return next((node for node in self._runtime.store.nodes() if fact.succeeds(node)), None)

    def _named(self, name: str) -> Node | None:
        try:
            return self._runtime.store.node(name)
        except NotFound:
            return None

    def _proof(self, node: Node) -> list[Fact]:
        """A rebooting node showed up: ask at once whether its reboot is proven, instead of waiting for the sweeper."""
        if not node.job_id:
            return [fact for _, fact in self._fleet.observe_nodes([node])]
        proof = [*self._fleet.observe_reboots(self._known(node.job_id), node.name)]
        return [*self._now(node.instance, node.name), *proof] if proof else []

    def _now(self, instance: str, name: str) -> Iterator[Fact]:
        """A node whose reboot is over, as it is now: what is heard later of how it went down is old news, by its
        version. An event that led to the proof may itself be from before the reboot."""
        return self._fleet.see_instances({instance: name} if instance else {})

    def _known(self, job_id: str) -> Job:
        """The record as this process wrote it last, or else as it is now: for what does not change, or may be asked
        in vain."""
        return self._runtime.store.last(job_id) or self._runtime.store.job(job_id)

    def _command(self, seen: Parsed) -> Answer:
        """A reboot of ours ended somewhere. Its comment tells for whom."""
        taken = ""
        if seen.command_id in self._settled:
            return Answer(seen.kind, True, "nothing new", self._settled[seen.command_id])
        for command in self._fleet.commands(seen.command_id, seen.status):
            try:
                taken = (self._reboot_over(command, seen.at) if seen.at else "") or taken
            except NotFound as exc:
                return Answer(seen.kind, False, str(exc))
            if taken and command.over:  # two events tell of one end: the command's, and its only host's
                self._settled = {seen.command_id: taken}
        return Answer(
            seen.kind, bool(taken), seen.why if taken else "no order of ours, or nothing new about it", taken
        )

    def _reboot_over(self, command: Command, at: datetime) -> str:
        """The record that waits for this reboot: the one that the key names, if the host is its node's."""
        key = keys.parse(command.key)
        if key is None or key.kind != "reboot":
            return self._waiting_jobs()
        if key.node:
            node = self._runtime.store.node(key.node)
            fact = outcome(command, key.node, command.key, at)
            if fact is None or self._fleet.host_of(node) != command.host:
                return ""
            self._runtime.handle_node(key.node, [fact], node)
            return key.node
        ranks = self._known(key.job).ranks  # a rank keeps its node, so any version of the record will do
        mine = ranks[key.rank] if key.rank < len(ranks) else None
        fact = outcome(command, mine.node, command.key, at) if mine is not None else None
        if mine is None or fact is None or self._fleet.host_of(mine) != command.host:
            return ""
        self._runtime.handle(key.job, [*self._now(mine.instance, mine.node), fact])
        return key.job

    def _waiting_jobs(self) -> str:
        """The comment had no room for the key: look at the few jobs that wait for a reboot."""
        taken = ""
        for line in self._runtime.store.jobs(status=JobStatus.PENDING_RESTART, limit=100).jobs:
            job = self._runtime.store.job(line.id)
            facts = list(self._fleet.observe_reboots(job))
            if facts:
                self._runtime.handle(job.id, facts, job)
                taken = job.id
        return taken


def _shown(seen: Parsed) -> tuple[object, ...]:
    """What a sighting says, but for when."""
    facts = [(f.connected, f.gpus, f.gone, f.boot_id) for f in seen.facts if isinstance(f, NodeSeen)]
    return (seen.kind, seen.status, *facts)
