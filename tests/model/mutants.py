"""Planted bugs. Each is a mistake somebody could make in the rules, the runtime or a fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

import pytest

from ecs_gpu_recovery.core import exits, handover, keys
from ecs_gpu_recovery.core.draft import ignore
from ecs_gpu_recovery.core.events import FaultSeen, HandedOver, NodeSeen, Origin, TaskEnded, Tick
from ecs_gpu_recovery.core.job import budget, joint, rules, sightings
from ecs_gpu_recovery.core.job import table as machine
from ecs_gpu_recovery.core.job.draft import Draft
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, Rank, Verdict
from ecs_gpu_recovery.core.node import repair, replacement
from ecs_gpu_recovery.core.node import rules as node_rules
from ecs_gpu_recovery.core.node import table as node_table
from ecs_gpu_recovery.core.node.draft import NodeDraft
from testbed.model.bounds import Bounds, quick_policy
from testbed.model.model import Model
from testbed.model.state import Outcome, Stalled, State
from testbed.model.worlds import EVERY_END, LOSS, QUICK, RECOVERY, REPLACED, STRANDED

Patch = pytest.MonkeyPatch


class Mutant(NamedTuple):
    """A bug, the world that shows it, and a word of what the search must say about it."""

    plant: Callable[[Patch, Model], None]
    world: Bounds
    says: str


def acts_on_the_first_verdict(patch: Patch, model: Model) -> None:
    def examined(draft: Draft) -> None:
        joint.examined(draft)
        if (
            draft.status is JobStatus.PENDING_HEALTHCHECK
            and any(r.verdict for r in draft.ranks)
            and all(r.quiet for r in draft.ranks)
        ):
            joint._conclude(draft)

    patch.setitem(joint.JOINT, JobStatus.PENDING_HEALTHCHECK, examined)


def trusts_an_exit_0_after_a_reboot(patch: Patch, model: Model) -> None:
    patch.setattr(
        rules, "classify", lambda ev, doubted, policy: exits.classify(ev, doubted=False, policy=policy)
    )


def believes_a_look_before_the_agent_has_reported(patch: Patch, model: Model) -> None:
    def sure(draft: Draft, rank: Rank, at: datetime | None) -> bool:
        return rank.connected and at is not None and rank.back_at is not None and at > rank.back_at

    patch.setattr(rules, "_ran_for_sure", sure)


def forgets_the_deadline_of_a_reboot(patch: Patch, model: Model) -> None:
    real = repair.order

    def order(d: NodeDraft, key: str) -> None:
        real(d, key)
        d.set(deadline=None)

    patch.setattr(repair, "order", order)


def loses_the_outbox_in_a_crash(patch: Patch, model: Model) -> None:
    def stall(state: State, stalled: Stalled, label: str) -> Iterator[Outcome]:
        if state.left.stalls and state.stalled is None:
            lost = {order.key for order in stalled.orders}
            job = replace(state.job, outbox=tuple(o for o in state.job.outbox if o.key not in lost))
            yield label, replace(state.spend("stalls"), job=job)

    patch.setattr(model, "_stall", stall)


def takes_a_disconnect_for_a_reboot(patch: Patch, model: Model) -> None:
    def node_seen(d: NodeDraft, ev: NodeSeen) -> None:
        node_rules.node_seen(d, ev)
        if not ev.connected:
            d.set(rebooted=True)

    patch.setitem(node_table.TABLE[NodeStatus.REBOOTING], NodeSeen, node_seen)


def restarts_with_a_node_missing(patch: Patch, model: Model) -> None:
    def awaited(draft: Draft) -> None:
        joint.awaited(draft)
        ready = [r.node_status is NodeStatus.AVAILABLE for r in draft.ranks]
        if draft.status is JobStatus.PENDING_RESTART and any(ready) and all(r.quiet for r in draft.ranks):
            draft.move(JobStatus.RESTARTING, "most of them are back")
            for rank in list(draft.ranks):
                draft.fresh(rank.index)
                draft.order_start(rank.index)

    patch.setitem(joint.JOINT, JobStatus.PENDING_RESTART, awaited)


def sends_a_start_again_without_looking(patch: Patch, model: Model) -> None:
    model.cluster.finds_tokens = False


def believes_a_verdict_of_the_last_attempt(patch: Patch, model: Model) -> None:
    patch.setattr(Draft, "may_be_examined", lambda self, index=0: True)


def spends_two_retries_at_once(patch: Patch, model: Model) -> None:
    real = joint._recover

    def recover(draft: Draft, *rest: Any) -> None:
        draft.attempt += 1
        real(draft, *rest)

    patch.setattr(joint, "_recover", recover)


def starts_over_a_task_that_would_not_stop(patch: Patch, model: Model) -> None:
    """The rank is called lost and ended, although nobody saw it end, so the gang is restarted."""
    real = rules._ran_out

    def ran_out(draft: Draft, rank: Rank) -> None:
        before = draft.ending
        real(draft, rank)
        draft.ending = before

    patch.setattr(rules, "_ran_out", ran_out)


def tells_nobody(patch: Patch, model: Model) -> None:
    real = joint._close

    def close(draft: Draft, *rest: Any) -> None:
        real(draft, *rest)
        draft.drop(keys.job_failed(draft.id))

    patch.setattr(joint, "_close", close)


def reboots_without_waiting_for_the_tasks_to_stop(patch: Patch, model: Model) -> None:
    real = joint._examine

    def examine(draft: Draft, suspects: list[Rank]) -> None:
        real(draft, suspects)
        for rank in list(draft.ranks):
            if rank.exit is not None and rank.verdict is None:
                draft.node(rank.index, NodeStatus.PENDING_HEALTHCHECK, "no need to test")
                draft.node(rank.index, NodeStatus.REBOOTING, "surely its fault")
                draft.set(rank.index, handed=keys.reboot(draft.id, draft.attempt, rank.index))

    patch.setattr(joint, "_examine", examine)


def changes_its_mind_after_the_end(patch: Patch, model: Model) -> None:
    def task_ended(draft: Draft, ev: TaskEnded) -> None:
        draft.status = JobStatus.USER_STOPPED

    patch.setitem(machine.TABLE[JobStatus.FAILED], TaskEnded, task_ended)


def sends_a_reboot_after_its_time(patch: Patch, model: Model) -> None:
    """The time for it is over, and the node may be in other hands, when the sweeper finds the order."""
    patch.setitem(node_table.TABLE[NodeStatus.REBOOTING], Tick, ignore("planted"))


def never_hears_that_a_node_is_back(patch: Patch, model: Model) -> None:
    patch.setattr(handover, "news_for_job", lambda node: None)


def lets_a_lost_node_back_before_its_task_has_ended(patch: Patch, model: Model) -> None:
    real = node_rules.settle

    def settle(d: NodeDraft) -> None:
        d.set(task="")
        real(d)

    patch.setattr(node_rules, "settle", settle)


def lets_what_was_not_sent_run_out(patch: Patch, model: Model) -> None:
    patch.setattr(Draft, "never_sent", lambda draft, rank: False)


def compares_no_token(patch: Patch, model: Model) -> None:
    patch.setattr(Origin, "has_token", lambda origin, token: True)


def compares_no_instance(patch: Patch, model: Model) -> None:
    patch.setattr(Origin, "is_on", lambda origin, instance: True)


def forgets_which_rows_are_owed(patch: Patch, model: Model) -> None:
    model.keeps_what_is_owed = False


def counts_progress_without_any(patch: Patch, model: Model) -> None:
    patch.setattr(budget, "_further", lambda ev, than: ev.step >= than.step)
    patch.setattr(budget, "_attempt_of", lambda draft, ev: draft.attempt)


def takes_any_fault_for_the_end(patch: Patch, model: Model) -> None:
    real = sightings.fault_seen

    def fault_seen(draft: Draft, ev: FaultSeen) -> None:
        real(draft, ev)
        for rank in list(draft.ranks):
            if rank.frozen_at is not None:
                draft.set(rank.index, frozen_at=draft.now)

    patch.setitem(machine.TABLE[JobStatus.IN_PROGRESS], FaultSeen, fault_seen)


def charges_a_restart_after_progress(patch: Patch, model: Model) -> None:
    patch.setattr(budget, "_refill", lambda draft, since: None)


def holds_a_fault_against_the_next_machine(patch: Patch, model: Model) -> None:
    patch.setattr(replacement, "taken_over", lambda d: None)


def takes_a_disconnect_for_the_end_of_a_machine(patch: Patch, model: Model) -> None:
    def node_seen(d: NodeDraft, ev: NodeSeen) -> None:
        node_rules.node_seen(d, ev)
        if not ev.connected:
            replacement.gone(d)

    patch.setitem(node_table.TABLE[NodeStatus.REBOOTING], NodeSeen, node_seen)


def takes_a_machine_away_that_is_only_silent(patch: Patch, model: Model) -> None:
    real = handover.HandedOver

    def handed_over(**about: Any) -> HandedOver:
        lost = about["verdict"] is Verdict.LOST
        return real(**{**about, "verdict": Verdict.REPLACE if lost else about["verdict"]})

    patch.setattr(handover, "HandedOver", handed_over)


def asks_again_for_a_machine_that_does_not_go(patch: Patch, model: Model) -> None:
    def tick(d: NodeDraft, ev: Tick) -> None:
        if d.node.being_replaced and d.node.deadline is not None and d.now >= d.node.deadline:
            d.drop(d.node.reboot_key)
            d.set(errands=d.node.errands + 1)
            replacement.order(d, keys.node_replace(d.name, d.node.errands))
        else:
            node_rules.tick(d, ev)

    patch.setitem(node_table.TABLE[NodeStatus.REBOOTING], Tick, tick)


def gives_up_a_machine_that_does_not_come_back(patch: Patch, model: Model) -> None:
    patch.setattr(repair, "not_back", lambda d, sent: d.fail(d.node.absence))


def replaces_a_machine_that_is_on_its_way_back(patch: Patch, model: Model) -> None:
    def node_seen(d: NodeDraft, ev: NodeSeen) -> None:
        node_rules.node_seen(d, ev)
        if not ev.connected and not d.node.being_replaced:
            repair.not_back(d, sent=True)

    patch.setitem(node_table.TABLE[NodeStatus.REBOOTING], NodeSeen, node_seen)


def starts_on_a_node_that_is_suspected(patch: Patch, model: Model) -> None:
    patch.setattr(sightings, "_only_waits", lambda draft, rank: False)


MUTANTS: dict[str, Mutant] = {
    "gives up a machine that does not come back": Mutant(
        gives_up_a_machine_that_does_not_come_back, STRANDED, "given up after its reboot, and may be replaced"
    ),
    "replaces a machine that is on its way back": Mutant(
        replaces_a_machine_that_is_on_its_way_back, STRANDED, "is replaced, and no check asks for it"
    ),
    "starts on a node that is suspected": Mutant(
        starts_on_a_node_that_is_suspected,
        QUICK["a fault is seen on a node of a waiting job"],
        "where a fault was seen while the job waited",
    ),
    "holds a fault against the next machine": Mutant(
        holds_a_fault_against_the_next_machine, REPLACED, "is replaced, and no check asks for it"
    ),
    "takes a disconnect for the end of a machine": Mutant(
        takes_a_disconnect_for_the_end_of_a_machine, replace(REPLACED, flaps=1), "its machine is still there"
    ),
    "takes a machine away that is only silent": Mutant(
        takes_a_machine_away_that_is_only_silent,
        replace(REPLACED, failures=0, flaps=1, delays=1),
        "is replaced, and no check asks for it",
    ),
    "asks again for a machine that does not go": Mutant(
        asks_again_for_a_machine_that_does_not_go, replace(REPLACED, delays=1), "n0 is replaced twice"
    ),
    "counts progress without any": Mutant(
        counts_progress_without_any, QUICK["progress between two faults"], "brought no progress"
    ),
    "takes any fault for the end": Mutant(
        takes_any_fault_for_the_end, QUICK["a rank freezes after a fatal fault"], "too soon after it"
    ),
    "charges a restart after progress": Mutant(
        charges_a_restart_after_progress, QUICK["progress between two faults"], "brought progress"
    ),
    "acts on the first verdict": Mutant(
        acts_on_the_first_verdict, QUICK["two verdicts and no retry"], "had not answered"
    ),
    "trusts an exit 0 after a reboot": Mutant(
        trusts_an_exit_0_after_a_reboot, replace(LOSS, lies=True), "did not finish its work"
    ),
    "believes a look before the agent has reported": Mutant(
        believes_a_look_before_the_agent_has_reported,
        QUICK["a node dies, and its agent reports later than it is back"],
        "did not finish its work",
    ),
    "forgets the deadline of a reboot": Mutant(
        forgets_the_deadline_of_a_reboot, RECOVERY, "nothing to wait for"
    ),
    "loses the outbox in a crash": Mutant(
        loses_the_outbox_in_a_crash,
        replace(QUICK["two verdicts and no retry"], stalls=1, nodes=1),
        "nobody was told",
    ),
    "takes a disconnect for a reboot": Mutant(
        takes_a_disconnect_for_a_reboot, replace(RECOVERY, flaps=1, nodes=1), "before n0 had really rebooted"
    ),
    "restarts with a node missing": Mutant(
        restarts_with_a_node_missing, RECOVERY, "is handed over while the job is RESTARTING"
    ),
    "sends a start again without looking": Mutant(
        sends_a_start_again_without_looking, replace(RECOVERY, nodes=1, stalls=1), "a second task for rank"
    ),
    "believes a verdict of the last attempt": Mutant(
        believes_a_verdict_of_the_last_attempt,
        replace(RECOVERY, failures=2, policy=quick_policy(max_retries=2), delays=0),
        "no check of attempt 1",
    ),
    "spends two retries at once": Mutant(
        spends_two_retries_at_once, replace(RECOVERY, policy=quick_policy(max_retries=2)), "two retries"
    ),
    "starts over a task that would not stop": Mutant(
        starts_over_a_task_that_would_not_stop, replace(RECOVERY, ends=EVERY_END), "of another attempt lives"
    ),
    "tells nobody": Mutant(tells_nobody, QUICK["two verdicts and no retry"], "nobody will be told"),
    "reboots without waiting for the tasks to stop": Mutant(
        reboots_without_waiting_for_the_tasks_to_stop, RECOVERY, "is handed over while the job is"
    ),
    "changes its mind after the end": Mutant(
        changes_its_mind_after_the_end, QUICK["two verdicts and no retry"], "became USER_STOPPED"
    ),
    "sends a reboot after its time": Mutant(
        sends_a_reboot_after_its_time,
        replace(RECOVERY, nodes=1, asks=1, stalls=1, late_sweeper=True, delays=2),
        "after the time for it is over",
    ),
    "lets what was not sent run out": Mutant(
        lets_what_was_not_sent_run_out,
        replace(RECOVERY, stalls=1, late_sweeper=True, delays=2),
        "not asked to stop for long enough",
    ),
    "compares no token": Mutant(
        compares_no_token, QUICK["a neighbour forges tasks"], "of a neighbour counts as ours"
    ),
    "compares no instance": Mutant(
        compares_no_instance, QUICK["a neighbour forges tasks"], "of a neighbour counts as ours"
    ),
    "never hears that a node is back": Mutant(
        never_hears_that_a_node_is_back, RECOVERY, "nothing more happens here"
    ),
    "lets a lost node back before its task has ended": Mutant(
        lets_a_lost_node_back_before_its_task_has_ended, replace(LOSS, deaths=0, flaps=1), "lives"
    ),
    "forgets which rows are owed": Mutant(
        forgets_which_rows_are_owed,
        replace(QUICK["two verdicts and no retry"], stalls=1, nodes=1, rows=True),
        "rows were left behind",
    ),
}
