"""Planted bugs, each a mistake that such a system invites. The simulation must find every one of them.

A mutant changes one thing for the time of a `with` block. A checker that lets it live is blind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any
from unittest.mock import patch

from ecs_gpu_recovery.core import codec, edges, exits, guard, handover, rows, witness
from ecs_gpu_recovery.core.effects import Order, RebootNode, ReplaceNode
from ecs_gpu_recovery.core.events import (
    Fact,
    GangStalled,
    NodeAsked,
    NodeSeen,
    OrderSent,
    Origin,
    TaskEnded,
    Tick,
)
from ecs_gpu_recovery.core.guard import Answer, FleetGuard, Request
from ecs_gpu_recovery.core.job import budget, claim, hang, joint, rules
from ecs_gpu_recovery.core.job import table as job_table
from ecs_gpu_recovery.core.job.draft import Draft
from ecs_gpu_recovery.core.model import Exit, Job, JobStatus, Leave, NodeStatus, Rank, TaskStatus, Verdict
from ecs_gpu_recovery.core.node import repair, replacement
from ecs_gpu_recovery.core.node import rules as node_rules
from ecs_gpu_recovery.core.node import table as node_table
from ecs_gpu_recovery.core.node.draft import NodeDraft
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.engine.dispatch import Dispatcher
from ecs_gpu_recovery.engine.hangs import Hangs
from ecs_gpu_recovery.engine.permits import Permits
from ecs_gpu_recovery.engine.runtime import Runtime
from ecs_gpu_recovery.engine.sweeper import Report, Sweeper
from ecs_gpu_recovery.engine.troubles import Record

from .cluster import SimulatedCluster
from .memory import MemoryStore
from .night import Outcome, run


@dataclass(frozen=True, slots=True)
class Mutant:
    """`where.name` is replaced by `by`. It is looked for under a sky that shows it."""

    title: str
    where: Any
    name: str
    by: Any
    sky: str = "any"

    @contextmanager
    def planted(self) -> Iterator[None]:
        with patch.object(self.where, self.name, self.by):
            yield


def _commit_anyway(store: MemoryStore, old: Job, new: Job, handed: Sequence[Node] = ()) -> Job:
    """No version condition: the last writer wins."""
    return store.put(old, new, handed)


def _examined_early(draft: Draft) -> None:
    """The first verdict that says bad decides; the others count as healthy."""
    if draft.ending is None and not draft.preflight and any(r.verdict is Verdict.REBOOT for r in draft.ranks):
        for rank in draft.ranks:
            if rank.verdict is None and rank.quiet and rank.node_status is not NodeStatus.UNKNOWN:
                draft.set(rank.index, verdict=Verdict.HEALTHY, deadline=None)
    _examined(draft)


_examined = joint.examined
_classify = exits.classify
_tick = node_rules.tick
_node_seen = node_rules.node_seen
_taken = handover._taken
_settle = node_rules.settle
_ask = guard.ask
_waits_for = guard.waits_for
_release = node_rules._release
_node_examined = node_rules._examined
_gone, _successors = replacement.gone, replacement.successors
_condemn, _sort, _dispatch_reboot = repair.condemn, Permits.sort, Dispatcher._reboot


def _believe_zero(ev: TaskEnded, *, doubted: bool, policy: Policy) -> Exit:
    """Exit code 0 is success, whatever happened to the node."""
    return _classify(ev, doubted=doubted and ev.exit_code != 0, policy=policy)


def _no_reboot_deadline(d: NodeDraft, ev: Tick) -> None:
    """A reboot may take for ever."""
    if d.node.status is not NodeStatus.REBOOTING:
        _tick(d, ev)


def _send_nothing_again(sweeper: Sweeper, record: Job | Node, *args: object) -> Job | Node:
    """What is still in the outbox stays there."""
    return record


def _disconnect_is_reboot(d: NodeDraft, ev: NodeSeen) -> None:
    """A node that went away and came back must have rebooted."""
    away = not d.node.connected
    _node_seen(d, ev)
    if away and ev.connected:
        d.drop(d.node.reboot_key)
        d.set(rebooted=True)


def _start_without(draft: Draft) -> None:
    """A lost node is as good as any other."""
    for rank in list(draft.ranks):
        if rank.node_status is NodeStatus.UNKNOWN and rank.quiet and not rank.connected:
            draft.node(rank.index, NodeStatus.AVAILABLE, "as good as any other")
            draft.set(rank.index, connected=True, handed="")
    joint.awaited(draft)


def _hand_over_again(
    job: Job, rank: Rank, node: Node, policy: Policy, now: datetime | None
) -> Iterator[Node]:
    """Each try to hand a node over has a name of its own, so a second one is another cause to reboot."""
    name = f"{job.id}/{job.attempt + job.version}/{rank.index}/reboot"
    for taken in _taken(job, replace(rank, handed=name), node, policy, now):
        yield replace(taken, handed=rank.handed)


def _ask_nobody(permits: Permits, node: Node, key: str, at: datetime, now: datetime) -> Fact | None:
    """A reboot is urgent: whoever sends it asks nobody."""
    return None


def _as_if_thawed(record: FleetGuard, request: Request, policy: Policy, now: datetime) -> str:
    """A person's yes is still waited for, but no thaw."""
    return _waits_for(replace(record, frozen=None), request, policy, now)


def _all_after_a_thaw(record: FleetGuard, request: Request, policy: Policy, now: datetime) -> str:
    """What has waited for a thaw has waited long enough."""
    return _waits_for(record, replace(request, thawed=False), policy, now)


def _count_each_time(
    record: FleetGuard, asked: Sequence[Request], policy: Policy, now: datetime
) -> tuple[FleetGuard, dict[str, Answer]]:
    """Whoever asks again, because nobody knows whether it was sent, counts again."""
    known = {each.key for each in record.requests}
    again = [
        replace(each, key=f"{each.key}#{record.version}", node=f"{each.node}#{record.version}")
        for each in asked
        if each.key in known
    ]
    after, answers = _ask(record, [*asked, *again], policy, now)
    return after, {each.key: answers[each.key] for each in asked}


def _without_a_gate(d: NodeDraft) -> None:
    """A node that has rebooted is as good as new."""
    if d.node.own and d.node.status is NodeStatus.REBOOTING and d.node.rebooted and d.node.fit:
        d.well("rebooted")
    _settle(d)


def _as_if_known(d: NodeDraft) -> None:
    """A machine that joins is as good as the others."""
    d.set(fresh=False)
    _settle(d)


def _gone_is_away(d: NodeDraft, ev: NodeSeen) -> None:
    """Whoever is not heard from is not there."""
    _node_seen(d, ev)
    if not ev.connected:
        replacement.gone(d)


def _without_an_end(d: NodeDraft) -> None:
    """Groups always start another machine."""
    _gone(d)
    if d.node.status is NodeStatus.UNKNOWN:
        d.set(deadline=None)


def _replace_unasked(
    permits: Permits, node: Node, orders: Sequence[Order], at: datetime, now: datetime
) -> tuple[list[Order], list[Fact]]:
    """A machine that is beyond repair is in nobody's way."""
    free = [order for order in orders if isinstance(order.effect, ReplaceNode)]
    sent, facts = _sort(permits, node, [order for order in orders if order not in free], at, now)
    return [*free, *sent], facts


def _alone_there(
    dispatcher: Dispatcher, node: Node, effect: RebootNode, at: datetime, again: bool
) -> list[Fact]:
    """On a broken machine nobody's task gets anywhere."""
    if not isinstance(effect, ReplaceNode):
        return _dispatch_reboot(dispatcher, node, effect, at, again)
    gone = dispatcher._fleet.replace_node(node, effect, again=again)
    return [*gone, OrderSent(at=at, key=effect.key)]


def _for_all_at_once(nodes: Iterable[Node]) -> list[tuple[Node, Node]]:
    """Whoever comes has come for each."""
    nodes = list(nodes)
    bare = [replace(node, condemned=()) for node in nodes]
    alone = ([*bare[:at], old, *bare[at + 1 :]] for at, old in enumerate(nodes))
    return [pair for some in alone for pair in _successors(some)]


def _top_rung_first(d: NodeDraft, key: str, verdict: Verdict, findings: str) -> None:
    """A new machine cures everything."""
    _condemn(d, key, Verdict.REPLACE if d.policy.may_replace else verdict, findings)


def _round_again(d: NodeDraft, verdict: Verdict) -> None:
    """What the first reboot did not cure, the next one may."""
    d.set(rebooted=d.node.rebooted and verdict is not Verdict.REBOOT)
    _node_examined(d, verdict)


def _release_in_use(d: NodeDraft, ev: NodeAsked) -> None:
    """Whoever releases a node means that it is free."""
    if d.node.job_id and (d.node.status.value, NodeStatus.AVAILABLE.value) in edges.NODE:
        d.set(job_id="", hold=None)
        d.move(NodeStatus.AVAILABLE, f"released by {ev.by}")
    else:
        _release(d, ev)


def _release_unseen(d: NodeDraft, ev: NodeAsked) -> None:
    """Who gives a node back has looked at it."""
    _release(d, ev)
    d.set(fresh=False)


def _tell_nobody(runtime: Runtime, job: Job, nodes: Mapping[str, Node]) -> None:
    """What a job and its node have not told each other at once is never told."""


def _claim_anything(
    old: Job, job: Job, before: Rank, rank: Rank, read: Callable[[str], Node]
) -> Iterator[Node]:
    """What was picked a moment ago is still free."""
    yield rows.claimed_node(read(rank.node), job, rank.node_status, job.updated_at)
    yield rows.left_node(read(before.node), job, "moved")


def _claim_nothing(
    old: Job, job: Job, before: Rank, rank: Rank, read: Callable[[str], Node]
) -> Iterator[Node]:
    """The job is written, and the claim follows when its answer has come, which is never."""
    yield rows.left_node(read(before.node), job, "moved")


def _leave_at_once(draft: Draft) -> None:
    """Whoever leaves need not wait for what it started."""
    if draft.planned:
        for rank in list(draft.ranks):
            draft.set(rank.index, verdict=Verdict.INCONCLUSIVE, deadline=None)
            if rank.live:
                draft.set(rank.index, task_status=TaskStatus.TERMINATED)
    _examined(draft)


def _offer_nothing(sweeper: Sweeper, *args: object) -> None:
    """Who waits for a node has been offered what there was when the wait began."""


def _with(rules: dict[type[Fact], node_table.Rule]) -> dict[NodeStatus, dict[type[Fact], node_table.Rule]]:
    """The table of nodes with other rules for one that reboots."""
    reboots = {**node_table.TABLE[NodeStatus.REBOOTING], **rules}
    return {**node_table.TABLE, NodeStatus.REBOOTING: reboots}


def _load_known(kind: type[Any], data: Mapping[str, Any]) -> Any:
    """What this release does not know is not kept."""
    readers = codec._readers(kind)  # type: ignore[arg-type]
    return kind(**{name: readers[name](value) for name, value in data.items() if name in readers})


def _end_the_sweep(report: Report, record: Record, act: Callable[[], object]) -> None:
    """Whatever is wrong with one record ends the look at all of them."""
    act()


def _one_witness(draft: Draft, ev: GangStalled) -> bool:
    """GPUs that stand still are enough."""
    return ev.still_since is not None and draft.now - ev.still_since >= draft.policy.hang_after


_gang = witness.gang


def _whoever_speaks(nodes: Sequence[Node], now: datetime, policy: Policy) -> witness.Stall | None:
    """Nodes that say nothing have nothing to say."""
    return _gang([node for node in nodes if witness.fresh(node.pulse, now, policy)], now, policy)


_silence = witness.silence


def _first_speaks_for_all(
    job: Job, ranks: Sequence[Rank], nodes: Mapping[str, Node], now: datetime, policy: Policy
) -> witness.Silence | None:
    """What one watch sees of its rank is what all ranks do."""
    return _silence(job, ranks[:1], nodes, now, policy)


def _blame_all(draft: Draft, ev: GangStalled) -> None:
    """Whoever was named."""
    _stop(draft, replace(ev, odd=()))


_stop = hang.stop


def _heal_again(draft: Draft, evidence: str) -> None:
    """Each time that it is seen to train."""
    if draft.reported(hang.NOTED):
        draft.note("job", draft.status, draft.status, hang.HEALED, evidence)


MUTANTS: tuple[Mutant, ...] = (
    Mutant("drop the version condition", MemoryStore, "commit", _commit_anyway),
    Mutant(
        "act on the first verdict",
        joint,
        "JOINT",
        {**joint.JOINT, JobStatus.PENDING_HEALTHCHECK: _examined_early},
    ),
    Mutant("trust exit 0 after a reboot", rules, "classify", _believe_zero),
    Mutant("skip a deadline", node_table, "TABLE", _with({Tick: _no_reboot_deadline})),
    Mutant("forget the outbox", Sweeper, "_resend", _send_nothing_again),
    Mutant("count a disconnect as a reboot", node_table, "TABLE", _with({NodeSeen: _disconnect_is_reboot})),
    Mutant(
        "restart with a node missing",
        joint,
        "JOINT",
        {**joint.JOINT, JobStatus.PENDING_RESTART: _start_without},
    ),
    Mutant("hand a node over twice", handover, "_taken", _hand_over_again),
    Mutant("reboot without a permit", Permits, "withheld", _ask_nobody),
    Mutant("reboot in a frozen fleet", guard, "waits_for", _as_if_thawed),
    Mutant("let all go after a thaw", guard, "waits_for", _all_after_a_thaw, "storms"),
    Mutant("leave a broken node in a frozen fleet", Permits, "frozen", lambda permits: False, "storms"),
    Mutant("count no fault that nobody repairs", guard, "condemnations", lambda node, since: [], "storms"),
    Mutant("stop a gang without a permit", Permits, "tick", lambda permits, job, now: Tick(at=now)),
    Mutant(
        "reboot beside a stranger's task", SimulatedCluster, "company", lambda cluster, node: (), "shared"
    ),
    Mutant("count a permit twice", guard, "ask", _count_each_time),
    Mutant("use a new node unseen", node_rules, "settle", _as_if_known, "newcomers"),
    Mutant("use a released node unseen", node_rules, "_release", _release_unseen, "leaves"),
    Mutant("start on a new node at once", job_table, "unexamined", lambda nodes, policy: False, "newcomers"),
    Mutant("replace where nobody allowed it", Policy, "may_replace", property(lambda policy: True), "rungs"),
    Mutant(
        "call a machine gone that is only away",
        node_table,
        "TABLE",
        _with({NodeSeen: _gone_is_away}),
        "rungs",
    ),
    Mutant("wait for ever for another machine", replacement, "gone", _without_an_end, "rungs"),
    Mutant("replace without a permit", Permits, "sort", _replace_unasked, "rungs"),
    Mutant("replace beside a stranger's task", Dispatcher, "_reboot", _alone_there, "rungs"),
    Mutant("replace what a reboot may cure", repair, "condemn", _top_rung_first, "rungs"),
    Mutant("count one machine for two", replacement, "successors", _for_all_at_once, "rungs"),
    Mutant("skip the gate", node_rules, "settle", _without_a_gate),
    Mutant("repair a node for ever", repair, "TOO_OFTEN", 100),
    Mutant("reboot again when the gate fails", node_rules, "_examined", _round_again),
    Mutant(
        "examine a node for a fault of an earlier boot",
        node_rules,
        "_before_the_boot",
        lambda d, ev: False,
        "late-functions",
    ),
    Mutant("give a released node to two jobs", node_rules, "_release", _release_in_use),
    Mutant("forget what was not told", Runtime, "catch_up", _tell_nobody),
    Mutant("re-send a start without looking", SimulatedCluster, "looks", False),
    Mutant("do not compare the token", Origin, "has_token", lambda origin, token: True),
    Mutant("do not compare the instance", Origin, "is_on", lambda origin, instance: True),
    Mutant("do not compare the family", Origin, "is_of", lambda origin, family: True),
    Mutant("drop the fields of a later release", codec, "_load", _load_known),
    Mutant("stop the sweep at a bad record", Report, "attempt", _end_the_sweep),
    Mutant("count deadlines from the event", Runtime, "_now", lambda runtime: None, "late-functions"),
    Mutant("count progress without any", budget, "_attempt_of", lambda draft, ev: draft.attempt),
    Mutant("charge a restart after progress", budget, "_refill", lambda draft, since: None),
    Mutant("give one node to two jobs", handover, "_exchanged", _claim_anything, "contest"),
    Mutant("lose a claim with its answer", handover, "_exchanged", _claim_nothing, "spares"),
    Mutant("leave a lost node at once", claim, "_may_leave", lambda draft, rank: True, "spares"),
    Mutant("leave a task running behind", claim, "_asleep", lambda rank: True, "spares"),
    Mutant("use a taken node unseen", claim, "_passed", lambda draft, node: True, "spares"),
    Mutant("forget a job that waits", Sweeper, "_offer", _offer_nothing, "spares"),
    Mutant(
        "charge for a planned leave", budget, "spend_nothing", partial(budget.spend, repair=True), "leaves"
    ),
    Mutant("leave a node for what may be", Leave, "moves", property(lambda leave: True), "leaves"),
    Mutant(
        "move before the old task has stopped",
        joint,
        "JOINT",
        {**joint.JOINT, JobStatus.PENDING_HEALTHCHECK: _leave_at_once},
        "leaves",
    ),
    Mutant("believe one witness of a hang", hang, "two_witnesses", _one_witness, "hangs"),
    Mutant("take a silent node for a witness", witness, "gang", _whoever_speaks, "hangs"),
    Mutant("take one watch's word for all ranks", witness, "silence", _first_speaks_for_all, "hangs"),
    Mutant("look for no hang", Hangs, "look", lambda hangs, job, nodes, now: None, "hangs"),
    Mutant("ask nobody whom a gang waits for", Hangs, "_named", lambda hangs, job, stall, now: None, "hangs"),
    Mutant("blame every rank for a hang", hang, "stop", _blame_all, "hangs"),
    Mutant("say that a job trains which hangs", witness, "works", lambda nodes, since: True, "hangs"),
    Mutant("say again and again that a job trains", hang, "heals", _heal_again, "hangs"),
    Mutant("let what was not sent run out", Draft, "never_sent", lambda draft, rank: False),
)


def hunt(mutant: Mutant, *, most: int = 1000) -> Outcome | None:
    """The first night that notices the mutant; none if it lives through them all."""
    with mutant.planted():
        nights = (run(seed, sky=mutant.sky) for seed in range(most))
        return next((outcome for outcome in nights if outcome.violation), None)
