"""Planted bugs, each a mistake that such a system invites. The simulation must find every one of them.

A mutant changes one thing for the time of a `with` block. A checker that lets it live is blind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

from ecs_gpu_recovery.core import codec, guard, handover, witness
from ecs_gpu_recovery.core.events import NodeSeen, Origin, Tick
from ecs_gpu_recovery.core.job import budget, claim, hang, joint, rules, sightings
from ecs_gpu_recovery.core.job import table as job_table
from ecs_gpu_recovery.core.job.draft import Draft
from ecs_gpu_recovery.core.model import JobStatus, Leave
from ecs_gpu_recovery.core.node import repair, replacement
from ecs_gpu_recovery.core.node import rules as node_rules
from ecs_gpu_recovery.core.node import table as node_table
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.engine.dispatch import Dispatcher
from ecs_gpu_recovery.engine.hangs import Hangs
from ecs_gpu_recovery.engine.permits import Permits
from ecs_gpu_recovery.engine.runtime import Runtime
from ecs_gpu_recovery.engine.sweeper import Report, Sweeper

from . import bugs
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


MUTANTS: tuple[Mutant, ...] = (
    Mutant("drop the version condition", MemoryStore, "commit", bugs.commit_anyway),
    Mutant(
        "act on the first verdict",
        joint,
        "JOINT",
        {**joint.JOINT, JobStatus.PENDING_HEALTHCHECK: bugs.examined_early},
    ),
    Mutant("trust exit 0 after a reboot", rules, "classify", bugs.believe_zero),
    Mutant("skip a deadline", node_table, "TABLE", bugs.rebooting_with({Tick: bugs.no_reboot_deadline})),
    Mutant("forget the outbox", Sweeper, "_resend", bugs.send_nothing_again),
    Mutant(
        "count a disconnect as a reboot",
        node_table,
        "TABLE",
        bugs.rebooting_with({NodeSeen: bugs.disconnect_is_reboot}),
    ),
    Mutant(
        "restart with a node missing",
        joint,
        "JOINT",
        {**joint.JOINT, JobStatus.PENDING_RESTART: bugs.start_without},
    ),
    Mutant("hand a node over twice", handover, "_taken", bugs.hand_over_again),
    Mutant("reboot without a permit", Permits, "withheld", bugs.ask_nobody),
    Mutant("reboot in a frozen fleet", guard, "waits_for", bugs.as_if_thawed),
    Mutant("let all go after a thaw", guard, "waits_for", bugs.all_after_a_thaw, "storms"),
    Mutant("leave a broken node in a frozen fleet", Permits, "frozen", lambda permits: False, "storms"),
    Mutant("count no fault that nobody repairs", guard, "condemnations", lambda node, since: [], "storms"),
    Mutant("stop a gang without a permit", Permits, "tick", lambda permits, job, now: Tick(at=now)),
    Mutant(
        "reboot beside a stranger's task", SimulatedCluster, "company", lambda cluster, node: (), "shared"
    ),
    Mutant("count a permit twice", guard, "ask", bugs.count_each_time),
    Mutant("use a new node unseen", node_rules, "settle", bugs.as_if_known, "newcomers"),
    Mutant("use a released node unseen", node_rules, "_release", bugs.release_unseen, "leaves"),
    Mutant("start on a new node at once", job_table, "unexamined", lambda nodes, policy: False, "newcomers"),
    Mutant("replace where nobody allowed it", Policy, "may_replace", property(lambda policy: True), "rungs"),
    Mutant(
        "call a machine gone that is only away",
        node_table,
        "TABLE",
        bugs.rebooting_with({NodeSeen: bugs.gone_is_away}),
        "rungs",
    ),
    Mutant("wait for ever for another machine", replacement, "gone", bugs.without_an_end, "rungs"),
    Mutant("replace without a permit", Permits, "sort", bugs.replace_unasked, "rungs"),
    Mutant(
        "replace without a permit what does not come back",
        Permits,
        "sort",
        bugs.replace_the_silent_unasked,
        "rungs",
    ),
    Mutant("give up what does not come back", repair, "not_back", bugs.give_up_the_silent, "rungs"),
    Mutant("replace beside a stranger's task", Dispatcher, "_reboot", bugs.alone_there, "rungs"),
    Mutant("replace what a reboot may cure", repair, "condemn", bugs.top_rung_first, "rungs"),
    Mutant("count one machine for two", replacement, "successors", bugs.for_all_at_once, "rungs"),
    Mutant("skip the gate", node_rules, "settle", bugs.without_a_gate),
    Mutant("repair a node for ever", repair, "TOO_OFTEN", 100),
    Mutant("reboot again when the gate fails", node_rules, "_examined", bugs.round_again),
    Mutant(
        "examine a node for a fault of an earlier boot",
        node_rules,
        "_before_the_boot",
        lambda d, ev: False,
        "late-functions",
    ),
    Mutant("give a released node to two jobs", node_rules, "_release", bugs.release_in_use),
    Mutant("forget what was not told", Runtime, "catch_up", bugs.tell_nobody),
    Mutant("re-send a start without looking", SimulatedCluster, "looks", False),
    Mutant("do not compare the token", Origin, "has_token", lambda origin, token: True),
    Mutant("do not compare the instance", Origin, "is_on", lambda origin, instance: True),
    Mutant("do not compare the family", Origin, "is_of", lambda origin, family: True),
    Mutant("drop the fields of a later release", codec, "_load", bugs.load_known),
    Mutant("stop the sweep at a bad record", Report, "attempt", bugs.end_the_sweep),
    Mutant("count deadlines from the event", Runtime, "_now", lambda runtime: None, "late-functions"),
    Mutant("count progress without any", budget, "_attempt_of", lambda draft, ev: draft.attempt),
    Mutant("charge a restart after progress", budget, "_refill", lambda draft, since: None),
    Mutant("give one node to two jobs", handover, "_exchanged", bugs.claim_anything, "contest"),
    Mutant("lose a claim with its answer", handover, "_exchanged", bugs.claim_nothing, "spares"),
    Mutant("leave a lost node at once", claim, "_may_leave", lambda draft, rank: True, "spares"),
    Mutant("leave a task running behind", claim, "_asleep", lambda rank: True, "spares"),
    Mutant("use a taken node unseen", claim, "_passed", lambda draft, node: True, "spares"),
    Mutant("start on a suspected node", sightings, "_only_waits", lambda draft, rank: False, "spares"),
    Mutant("forget a job that waits", Sweeper, "_offer", bugs.offer_nothing, "spares"),
    Mutant(
        "charge for a planned leave", budget, "spend_nothing", partial(budget.spend, repair=True), "leaves"
    ),
    Mutant("leave a node for what may be", Leave, "moves", property(lambda leave: True), "leaves"),
    Mutant(
        "move before the old task has stopped",
        joint,
        "JOINT",
        {**joint.JOINT, JobStatus.PENDING_HEALTHCHECK: bugs.leave_at_once},
        "leaves",
    ),
    Mutant("believe one witness of a hang", hang, "two_witnesses", bugs.one_witness, "hangs"),
    Mutant("take a silent node for a witness", witness, "gang", bugs.whoever_speaks, "hangs"),
    Mutant("take one watch's word for all ranks", witness, "silence", bugs.first_speaks_for_all, "hangs"),
    Mutant("look for no hang", Hangs, "look", lambda hangs, job, nodes, now: None, "hangs"),
    Mutant("ask nobody whom a gang waits for", Hangs, "_named", lambda hangs, job, stall, now: None, "hangs"),
    Mutant("blame every rank for a hang", hang, "stop", bugs.blame_all, "hangs"),
    Mutant("say that a job trains which hangs", witness, "works", lambda nodes, since: True, "hangs"),
    Mutant("say again and again that a job trains", hang, "heals", bugs.heal_again, "hangs"),
    Mutant("let what was not sent run out", Draft, "never_sent", lambda draft, rank: False),
)


def hunt(mutant: Mutant, *, most: int = 1000) -> Outcome | None:
    """The first night that notices the mutant; none if it lives through them all."""
    with mutant.planted():
        nights = (run(seed, sky=mutant.sky) for seed in range(most))
        return next((outcome for outcome in nights if outcome.violation), None)
