"""Wrong rules, each a mistake that such a system invites, to be planted in place of the right ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from ecs_gpu_recovery.core import codec, edges, exits, guard, handover, rows, witness
from ecs_gpu_recovery.core.effects import Order, RebootNode, ReplaceNode
from ecs_gpu_recovery.core.events import Fact, GangStalled, NodeAsked, NodeSeen, OrderSent, TaskEnded, Tick
from ecs_gpu_recovery.core.guard import Answer, FleetGuard, Request
from ecs_gpu_recovery.core.job import hang, joint
from ecs_gpu_recovery.core.job.draft import Draft
from ecs_gpu_recovery.core.model import Exit, Job, NodeStatus, Rank, TaskStatus, Verdict
from ecs_gpu_recovery.core.node import repair, replacement
from ecs_gpu_recovery.core.node import rules as node_rules
from ecs_gpu_recovery.core.node import table as node_table
from ecs_gpu_recovery.core.node.draft import NodeDraft
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.engine.dispatch import Dispatcher
from ecs_gpu_recovery.engine.permits import Permits
from ecs_gpu_recovery.engine.runtime import Runtime
from ecs_gpu_recovery.engine.sweeper import Report, Sweeper
from ecs_gpu_recovery.engine.troubles import Record

from .memory import MemoryStore


def commit_anyway(store: MemoryStore, old: Job, new: Job, handed: Sequence[Node] = ()) -> Job:
    """No version condition: the last writer wins."""
    return store.put(old, new, handed)


def examined_early(draft: Draft) -> None:
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


def believe_zero(ev: TaskEnded, *, doubted: bool, policy: Policy) -> Exit:
    """Exit code 0 is success, whatever happened to the node."""
    return _classify(ev, doubted=doubted and ev.exit_code != 0, policy=policy)


def no_reboot_deadline(d: NodeDraft, ev: Tick) -> None:
    """A reboot may take for ever."""
    if d.node.status is not NodeStatus.REBOOTING:
        _tick(d, ev)


def send_nothing_again(sweeper: Sweeper, record: Job | Node, *args: object) -> Job | Node:
    """What is still in the outbox stays there."""
    return record


def disconnect_is_reboot(d: NodeDraft, ev: NodeSeen) -> None:
    """A node that went away and came back must have rebooted."""
    away = not d.node.connected
    _node_seen(d, ev)
    if away and ev.connected:
        d.drop(d.node.reboot_key)
        d.set(rebooted=True)


def start_without(draft: Draft) -> None:
    """A lost node is as good as any other."""
    for rank in list(draft.ranks):
        if rank.node_status is NodeStatus.UNKNOWN and rank.quiet and not rank.connected:
            draft.node(rank.index, NodeStatus.AVAILABLE, "as good as any other")
            draft.set(rank.index, connected=True, handed="")
    joint.awaited(draft)


def hand_over_again(job: Job, rank: Rank, node: Node, policy: Policy, now: datetime | None) -> Iterator[Node]:
    """Each try to hand a node over has a name of its own, so a second one is another cause to reboot."""
    name = f"{job.id}/{job.attempt + job.version}/{rank.index}/reboot"
    for taken in _taken(job, replace(rank, handed=name), node, policy, now):
        yield replace(taken, handed=rank.handed)


def ask_nobody(permits: Permits, node: Node, key: str, at: datetime, now: datetime) -> Fact | None:
    """A reboot is urgent: whoever sends it asks nobody."""
    return None


def as_if_thawed(record: FleetGuard, request: Request, policy: Policy, now: datetime) -> str:
    """A person's yes is still waited for, but no thaw."""
    return _waits_for(replace(record, frozen=None), request, policy, now)


def all_after_a_thaw(record: FleetGuard, request: Request, policy: Policy, now: datetime) -> str:
    """What has waited for a thaw has waited long enough."""
    return _waits_for(record, replace(request, thawed=False), policy, now)


def count_each_time(
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


def without_a_gate(d: NodeDraft) -> None:
    """A node that has rebooted is as good as new."""
    if d.node.own and d.node.status is NodeStatus.REBOOTING and d.node.rebooted and d.node.fit:
        d.well("rebooted")
    _settle(d)


def as_if_known(d: NodeDraft) -> None:
    """A machine that joins is as good as the others."""
    d.set(fresh=False)
    _settle(d)


def gone_is_away(d: NodeDraft, ev: NodeSeen) -> None:
    """Whoever is not heard from is not there."""
    _node_seen(d, ev)
    if not ev.connected:
        replacement.gone(d)


def without_an_end(d: NodeDraft) -> None:
    """Groups always start another machine."""
    _gone(d)
    if d.node.status is NodeStatus.UNKNOWN:
        d.set(deadline=None)


def replace_unasked(
    permits: Permits, node: Node, orders: Sequence[Order], at: datetime, now: datetime
) -> tuple[list[Order], list[Fact]]:
    """A machine that is beyond repair is in nobody's way."""
    free = [order for order in orders if isinstance(order.effect, ReplaceNode)]
    sent, facts = _sort(permits, node, [order for order in orders if order not in free], at, now)
    return [*free, *sent], facts


def replace_the_silent_unasked(
    permits: Permits, node: Node, orders: Sequence[Order], at: datetime, now: datetime
) -> tuple[list[Order], list[Fact]]:
    """Whoever does not come back is missed by nobody."""
    return (
        replace_unasked(permits, node, orders, at, now)
        if node.missed
        else _sort(permits, node, orders, at, now)
    )


def give_up_the_silent(d: NodeDraft, *, sent: bool) -> None:
    """Whoever did not come back from one repair needs no other."""
    d.fail(d.node.absence)


def alone_there(
    dispatcher: Dispatcher, node: Node, effect: RebootNode, at: datetime, again: bool
) -> list[Fact]:
    """On a broken machine nobody's task gets anywhere."""
    if not isinstance(effect, ReplaceNode):
        return _dispatch_reboot(dispatcher, node, effect, at, again)
    gone = dispatcher._fleet.replace_node(node, effect, again=again)
    return [*gone, OrderSent(at=at, key=effect.key)]


def for_all_at_once(nodes: Iterable[Node]) -> list[tuple[Node, Node]]:
    """Whoever comes has come for each."""
    nodes = list(nodes)
    bare = [replace(node, condemned=()) for node in nodes]
    alone = ([*bare[:at], old, *bare[at + 1 :]] for at, old in enumerate(nodes))
    return [pair for some in alone for pair in _successors(some)]


def top_rung_first(d: NodeDraft, key: str, verdict: Verdict, findings: str, **about: bool) -> None:
    """A new machine cures everything."""
    _condemn(d, key, Verdict.REPLACE if d.policy.may_replace else verdict, findings, **about)


def round_again(d: NodeDraft, verdict: Verdict) -> None:
    """What the first reboot did not cure, the next one may."""
    d.set(rebooted=d.node.rebooted and verdict is not Verdict.REBOOT)
    _node_examined(d, verdict)


def release_in_use(d: NodeDraft, ev: NodeAsked) -> None:
    """Whoever releases a node means that it is free."""
    if d.node.job_id and (d.node.status.value, NodeStatus.AVAILABLE.value) in edges.NODE:
        d.set(job_id="", hold=None)
        d.move(NodeStatus.AVAILABLE, f"released by {ev.by}")
    else:
        _release(d, ev)


def release_unseen(d: NodeDraft, ev: NodeAsked) -> None:
    """Who gives a node back has looked at it."""
    _release(d, ev)
    d.set(fresh=False)


def tell_nobody(runtime: Runtime, job: Job, nodes: Mapping[str, Node]) -> None:
    """What a job and its node have not told each other at once is never told."""


def claim_anything(
    old: Job, job: Job, before: Rank, rank: Rank, read: Callable[[str], Node]
) -> Iterator[Node]:
    """What was picked a moment ago is still free."""
    yield rows.claimed_node(read(rank.node), job, rank.node_status, job.updated_at)
    yield rows.left_node(read(before.node), job, "moved")


def claim_nothing(
    old: Job, job: Job, before: Rank, rank: Rank, read: Callable[[str], Node]
) -> Iterator[Node]:
    """The job is written, and the claim follows when its answer has come, which is never."""
    yield rows.left_node(read(before.node), job, "moved")


def leave_at_once(draft: Draft) -> None:
    """Whoever leaves need not wait for what it started."""
    if draft.planned:
        for rank in list(draft.ranks):
            draft.set(rank.index, verdict=Verdict.INCONCLUSIVE, deadline=None)
            if rank.live:
                draft.set(rank.index, task_status=TaskStatus.TERMINATED)
    _examined(draft)


def offer_nothing(sweeper: Sweeper, *args: object) -> None:
    """Who waits for a node has been offered what there was when the wait began."""


def rebooting_with(
    rules: dict[type[Fact], node_table.Rule],
) -> dict[NodeStatus, dict[type[Fact], node_table.Rule]]:
    """The table of nodes with other rules for one that reboots."""
    reboots = {**node_table.TABLE[NodeStatus.REBOOTING], **rules}
    return {**node_table.TABLE, NodeStatus.REBOOTING: reboots}


def load_known(kind: type[Any], data: Mapping[str, Any]) -> Any:
    """What this release does not know is not kept."""
    readers = codec._readers(kind)  # type: ignore[arg-type]
    return kind(**{name: readers[name](value) for name, value in data.items() if name in readers})


def end_the_sweep(report: Report, record: Record, act: Callable[[], object]) -> None:
    """Whatever is wrong with one record ends the look at all of them."""
    act()


def one_witness(draft: Draft, ev: GangStalled) -> bool:
    """GPUs that stand still are enough."""
    return ev.still_since is not None and draft.now - ev.still_since >= draft.policy.hang_after


_gang = witness.gang


def whoever_speaks(nodes: Sequence[Node], now: datetime, policy: Policy) -> witness.Stall | None:
    """Nodes that say nothing have nothing to say."""
    return _gang([node for node in nodes if witness.fresh(node.pulse, now, policy)], now, policy)


_silence = witness.silence


def first_speaks_for_all(
    job: Job, ranks: Sequence[Rank], nodes: Mapping[str, Node], now: datetime, policy: Policy
) -> witness.Silence | None:
    """What one watch sees of its rank is what all ranks do."""
    return _silence(job, ranks[:1], nodes, now, policy)


def blame_all(draft: Draft, ev: GangStalled) -> None:
    """Whoever was named."""
    _stop(draft, replace(ev, odd=()))


_stop = hang.stop


def heal_again(draft: Draft, evidence: str) -> None:
    """Each time that it is seen to train."""
    if draft.reported(hang.NOTED):
        draft.note("job", draft.status, draft.status, hang.HEALED, evidence)
