"""From an EventBridge event to the runtime: whose it is, which record it concerns, and what to ask beside it.

An event that is not ours, or makes no sense, is logged and dropped: it can't become right by being sent again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from ..core import keys
from ..core.errors import NotFound
from ..core.events import CheckStarted, Fact, NodeChecked, NodeSeen
from ..core.exits import OUR_REASON
from ..core.model import NodeStatus, Rank
from ..core.node_record import Node
from ..engine.runtime import Runtime
from ..engine.sweeper import Report, Sweeper
from ..engine.troubles import ALL
from .errands import Adopter, Answer, Errand, Errands
from .fleet import EcsFleet
from .newcomers import Newcomers
from .parse import parse_event
from .parsed import Kind, Parsed
from .reboots import Command, outcome
from .roll import Roll
from .store import DynamoStore
from .upkeep import Upkeep

log = logging.getLogger("ecs_gpu_recovery")
#: For how long after a registration it is looked for the machine's older one by its host.
YOUNG = timedelta(hours=1)


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
        store: DynamoStore,
        newcomers: Newcomers | None = None,
        upkeep: Upkeep | None = None,
    ) -> None:
        self._upkeep, self._some_nodes, self._newcomers = upkeep, store.some_nodes, newcomers
        self._runtime, self._fleet, self._adopter = runtime, fleet, adopter
        self._errands = Errands(runtime, adopter, lambda: store.writes.wait())
        self._cluster, self._check_family = cluster, check_family
        self._names: dict[str, str] = {}  #: of nodes, by container instance
        self._at_hand: dict[str, Node] = {}  #: nodes that were read for the events in hand
        self._taken: dict[str, tuple[int, tuple[object, ...]]] = {}  #: the last sighting of each instance
        self._strangers: set[str] = set()  #: young instances whose hosts were looked for
        self._asked: set[str] = set()  #: commands that were asked about for the events in hand
        self._settled: dict[str, str] = {}  #: the last command whose end was taken, and its record
        self._running = Roll()
        self._sweeper = Sweeper(runtime)

    def take(self, event: object) -> Answer:
        """One event by itself. What goes wrong is raised."""
        seen = parse_event(event, cluster=self._cluster, check_family=self._check_family)
        if kept := self._kept(seen):
            return kept
        answer = self._take([seen])[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def take_all(self, events: Sequence[object]) -> list[Answer | Exception]:
        """Events that arrived together: one commit per record. Each has its answer, or what went wrong with it."""
        return self._take(
            [parse_event(event, cluster=self._cluster, check_family=self._check_family) for event in events]
        )

    def _take(self, seen: Sequence[Parsed]) -> list[Answer | Exception]:
        answers: dict[int, Answer | Exception] = {}
        asked: list[tuple[int, Errand]] = []
        self._look_up(seen)
        for number, one in enumerate(seen):
            try:
                routed = self._route(one)
            except Exception as exc:  # noqa: BLE001 - whoever handed in the event hears of it
                answers[number] = exc
                continue
            if isinstance(routed, Errand):
                asked.append((number, routed))
            else:
                answers[number] = routed
        self._at_hand.clear()
        self._asked.clear()
        done = self._errands.do([errand for _, errand in asked])
        answers.update((number, answer) for (number, _), answer in zip(asked, done, strict=True))
        for number, one in enumerate(seen):
            _log_dropped(one, answers[number])
        return [answers[number] for number in range(len(seen))]

    def _look_up(self, seen: Sequence[Parsed]) -> None:
        """The nodes that many events name, in a few questions. If that fails, each is read by itself and tells why."""
        named = {self._names.get(one.instance) or one.called or one.node for one in seen if not one.job} - {
            ""
        }
        try:
            found = self._some_nodes(sorted(named)) if len(named) > 1 else ()
        except Exception as exc:  # noqa: BLE001 - one record of many may be at fault
            log.warning("nodes are read one by one", extra={"why": str(exc)})
            found = ()
        self._at_hand = {node.name: node for node in found}

    def _route(self, seen: Parsed) -> Answer | Errand:
        if seen.kind is Kind.TICK and seen.at is not None:
            at = self._runtime.since(seen.at)
            report = self._sweeper.sweep(at, then=partial(self._upkeep_of, at))
            said = f"swept {report.jobs} jobs and {report.nodes} nodes; {report.resent} orders sent again"
            return Answer(seen.kind, True, said, report=report)
        if not (seen.ours or seen.may_be_ours) or seen.at is None:
            return Answer(seen.kind, False, seen.why)
        if seen.kind is Kind.TASK:
            return self._task(seen, seen.at)
        if seen.kind is Kind.CHECK:
            return self._check(seen, seen.at)
        if seen.kind in (Kind.INSTANCE, Kind.INSTANCE_HEALTH):
            return self._instance(seen, seen.at)
        if seen.kind in (Kind.FAULT, Kind.PULSE):
            return self._sighting(seen, seen.at)
        if seen.kind is Kind.LEAVING:
            return self._leaving(seen, seen.at)
        if seen.kind is Kind.REBOOT_COMMAND:
            return self._command(seen, seen.at)
        return Answer(seen.kind, False, seen.why)

    def _upkeep_of(self, at: datetime, report: Report) -> None:
        """What the clock does beside the sweep, each part by itself."""
        report.attempt(ALL, partial(self._adopter.adopt_strays, at, report.attempt))
        if self._upkeep is not None:
            report.attempt(ALL, partial(self._upkeep.look, self._runtime, at))

    def _task(self, seen: Parsed, at: datetime) -> Answer | Errand:
        """By the job the event names, else by the task row; the record must know the task or wait for it."""
        if not seen.facts:
            return Answer(seen.kind, False, seen.why)
        if seen.status != "STOPPED" and seen.end is not None and seen.end.reason.startswith(OUR_REASON):
            return Answer(seen.kind, True, "our own stop is on its way", seen.job)
        job_id = seen.job or self._runtime.store.job_of_task(seen.task_id)
        if not job_id:
            return Answer(seen.kind, False, f"no job knows task {seen.task_id}")
        facts = [*self._running.of(job_id), *seen.facts]
        return replace(self._to_job(seen, at, job_id, facts), done=partial(self._running.drop, job_id))

    def _kept(self, seen: Parsed) -> Answer | None:
        """That a rank runs can wait until all of them do, where events come one by one."""
        known = self._runtime.store.last(seen.job) if seen.kind is Kind.TASK and seen.ours else None
        if seen.status == "RUNNING" and known is not None and self._running.keep(known, seen.facts):
            return Answer(seen.kind, True, "kept until the whole gang runs", seen.job)
        return None

    @staticmethod
    def _to_job(seen: Parsed, at: datetime, job_id: str, facts: Sequence[Fact]) -> Errand:
        return Errand(answer=Answer(seen.kind, True, seen.why, job_id), at=at, facts=facts, job=job_id)

    @staticmethod
    def _to_node(seen: Parsed, at: datetime, node: Node, facts: Sequence[Fact]) -> Errand:
        return Errand(answer=Answer(seen.kind, True, seen.why, node.name), at=at, facts=facts, node=node)

    def _check(self, seen: Parsed, at: datetime) -> Answer | Errand:
        """That a check has started is recorded by who started it, and if that one died, by the sweeper."""
        if not seen.facts:
            return Answer(seen.kind, False, seen.why)
        if seen.status != "STOPPED" and (seen.job or seen.node):
            return Answer(seen.kind, True, "who started it records it", seen.job or seen.node)
        seen = replace(seen, facts=tuple(map(self._fleet.explained, seen.facts)))
        if seen.job:
            return self._to_job(seen, at, seen.job, seen.facts)
        if not seen.node:
            return self._unmarked_check(seen, at)
        node = self._named(seen.node)
        if node is None:
            return Answer(seen.kind, False, f"no node {seen.node}")
        return self._to_node(seen, at, node, seen.facts)

    def _unmarked_check(self, seen: Parsed, at: datetime) -> Answer | Errand:
        """A check that names nobody counts only where the record of its node, or of the job there, knows its id."""
        node = self._node(seen) if seen.instance else None
        if node is None:
            return Answer(seen.kind, False, f"no node is {seen.instance or 'named'}")
        job = None if node.own else self._runtime.store.job(node.job_id)
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
            return self._to_node(seen, at, node, facts)
        return self._to_job(seen, at, job.id, facts)

    def _instance(self, seen: Parsed, at: datetime) -> Answer | Errand:
        """ECS sends one for every placement: news is rare, and no news costs one read, or none."""
        if self._taken_before(seen):
            return Answer(seen.kind, True, "nothing new", self._names[seen.instance])
        asked = self._sighting(seen, at)
        if isinstance(asked, Errand) and seen.kind is Kind.INSTANCE and seen.instance in self._names:
            return replace(asked, done=partial(self._remember, seen))
        return asked

    def _remember(self, seen: Parsed) -> None:
        version, _ = self._taken.get(seen.instance, (0, ()))
        if seen.version >= version:
            self._taken[seen.instance] = (seen.version, _shown(seen))

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

    def _sighting(self, seen: Parsed, at: datetime) -> Answer | Errand:
        node = self._node(seen) if seen.instance else self._named(seen.node)
        if node is None and seen.kind is Kind.INSTANCE and self._first_sight(seen, at):
            return Answer(seen.kind, True, "seen for the first time", self._names[seen.instance])
        if node is None:
            return Answer(seen.kind, False, f"no node is {seen.instance or seen.node}")
        if seen.kind is Kind.PULSE and not node.job_id:
            return Answer(seen.kind, False, "no job holds the node: its GPUs may rest")
        asked = self._to_node(seen, at, node, seen.about(node.name))
        if node.status is NodeStatus.REBOOTING and seen.kind is Kind.INSTANCE:
            up = any(isinstance(fact, NodeSeen) and fact.connected for fact in asked.facts)
            return replace(asked, proof=self._proof if up else _none)
        return asked

    def _leaving(self, seen: Parsed, at: datetime) -> Answer | Errand:
        """EC2 knows hosts only. It tells of all in the account, and seldom."""
        found = (node for node in self._runtime.store.nodes() if node.host == seen.host)
        node = next(found, None)
        if node is None:
            return Answer(seen.kind, False, f"no node is {seen.host}")
        return self._to_node(seen, at, node, seen.about(node.name))

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

    def _first_sight(self, seen: Parsed, at: datetime) -> bool:
        """Whether it is a node of ours that nobody has recorded yet. Now it is."""
        there = any(isinstance(f, NodeSeen) and f.connected and f.gpus and not f.gone for f in seen.facts)
        if self._newcomers is None or not there:
            return False
        for node in self._newcomers.take([seen.instance], self._runtime, self._runtime.since(at)):
            self._names[seen.instance] = node.name
        return seen.instance in self._names

    def _registered_anew(self, seen: Parsed, named: Node | None) -> Node | None:
        """The node whose machine has become this instance: by its name, or, in its first hour, by its host.

        A name that was put on the old instance is gone with it. Strangers register too, and cost one look each.
        """
        fact = next((fact for fact in seen.facts if isinstance(fact, NodeSeen)), None)
        if fact is None or not fact.connected or fact.gone or not fact.host:
            return None
        if named is not None:
            return named if replace(fact, node=named.name).succeeds(named) else None
        young = fact.registered is not None and fact.at - fact.registered < YOUNG
        if not young or seen.instance in self._strangers:
            return None
        self._strangers.add(seen.instance)
        return next((node for node in self._runtime.store.nodes() if fact.succeeds(node)), None)

    def _named(self, name: str) -> Node | None:
        try:
            return self._at_hand.get(name) or self._runtime.store.node(name)
        except NotFound:
            return None

    def _proof(self, node: Node) -> list[Fact]:
        """A rebooting node showed up: ask at once whether its reboot is proven, instead of waiting for the sweeper."""
        proof = list(self._fleet.see_reboot(node))
        return [*self._now(node), *proof] if proof else []

    def _now(self, node: Node) -> Iterable[Fact]:
        """A node whose reboot is over, as it is now: what is heard later of how it went down is old news, by its
        version. An event that led to the proof may itself be from before the reboot."""
        return self._fleet.see_instances({node.instance: node.name} if node.instance else {})

    def _command(self, seen: Parsed, at: datetime) -> Answer | Errand:
        """A reboot of ours ended on its host. Its comment tells for whom."""
        if seen.command_id in self._settled:
            return Answer(seen.kind, True, "nothing new", self._settled[seen.command_id])
        if seen.command_id in self._asked:
            return Answer(seen.kind, True, "another event of the same end came with it")
        self._asked.add(seen.command_id)
        for command in self._fleet.commands(seen.command_id, seen.status):
            try:
                asked = self._reboot_over(seen, command, at)
            except NotFound as exc:
                return Answer(seen.kind, False, str(exc))
            if isinstance(asked, Errand) and command.over:
                return replace(asked, done=partial(self._settle, seen.command_id, asked.answer.record))
            if asked is not None:
                return asked
        return Answer(seen.kind, False, "no order of ours, or nothing new about it")

    def _settle(self, command_id: str, record: str) -> None:
        """Two events tell of one end: the command's, and its only host's."""
        self._settled = {command_id: record}

    def _reboot_over(self, seen: Parsed, command: Command, at: datetime) -> Answer | Errand | None:
        """The record that waits for this reboot: the one that the key names, if the host is its node's."""
        key = keys.parse(command.key)
        if key is None or key.kind != "reboot":
            taken = self._rebooting_nodes()
            return Answer(seen.kind, True, seen.why, taken) if taken else None
        name = key.node or self._node_of_rank(key.job, key.rank)
        node = self._runtime.store.node(name) if name else None
        fact = outcome(command, name, command.key, at)
        if node is None or fact is None or self._fleet.host_of(node) != command.host:
            return None
        return self._to_node(seen, at, node, [*self._now(node), fact])

    def _node_of_rank(self, job_id: str, rank: int) -> str:
        """A rank keeps its node, so any version of the record will do."""
        ranks = (self._runtime.store.last(job_id) or self._runtime.store.job(job_id)).ranks
        return ranks[rank].node if rank < len(ranks) else ""

    def _rebooting_nodes(self) -> str:
        """The comment had no room for the key: look at the few nodes that wait for a reboot."""
        taken = ""
        for node in self._runtime.store.nodes():
            facts = self._proof(node) if node.own and node.status is NodeStatus.REBOOTING else []
            if facts:
                self._runtime.handle_node(node.name, facts, node)
                taken = node.job_id or node.name
        return taken


def _shown(seen: Parsed) -> tuple[object, ...]:
    """What a sighting says, but for when."""
    facts = [(f.connected, f.gpus, f.gone, f.boot_id) for f in seen.facts if isinstance(f, NodeSeen)]
    return (seen.kind, seen.status, *facts)


def _none(_: Node) -> Sequence[Fact]:
    return ()


def _log_dropped(seen: Parsed, answer: Answer | Exception) -> None:
    if isinstance(answer, Answer) and not answer.taken:
        log.info(
            "dropped",
            extra={"kind": answer.kind, "why": answer.why, "task": seen.task_id, "instance": seen.instance},
        )
