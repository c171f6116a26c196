"""Planted bugs, each a mistake that such a system invites. The simulation must find every one of them.

A mutant changes one thing for the time of a `with` block. A checker that lets it live is blind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from ecs_gpu_recovery.core import codec, exits
from ecs_gpu_recovery.core.events import NodeSeen, Origin, TaskEnded
from ecs_gpu_recovery.core.job import joint, rules, sightings
from ecs_gpu_recovery.core.job import table as machine
from ecs_gpu_recovery.core.job.draft import Draft
from ecs_gpu_recovery.core.model import Exit, Job, JobStatus, Node, NodeStatus, Rank, Verdict
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.engine.runtime import Runtime
from ecs_gpu_recovery.engine.sweeper import Report, Sweeper
from ecs_gpu_recovery.engine.troubles import Record

from .cluster import SimulatedCluster
from .memory import MemoryStore
from .night import Outcome, run


@dataclass(frozen=True, slots=True)
class Mutant:
    """`where.name` is replaced by `by`."""

    title: str
    where: Any
    name: str
    by: Any

    @contextmanager
    def planted(self) -> Iterator[None]:
        with patch.object(self.where, self.name, self.by):
            yield


def _commit_anyway(store: MemoryStore, old: Job, new: Job) -> Job:
    """No version condition: the last writer wins."""
    return store.put(old, new)


def _examined_early(draft: Draft) -> None:
    """The first verdict that says bad decides; the others count as healthy."""
    if draft.ending is None and not draft.preflight and any(r.verdict is Verdict.REBOOT for r in draft.ranks):
        for rank in draft.ranks:
            if rank.verdict is None and rank.quiet and rank.node_status is not NodeStatus.UNKNOWN:
                draft.set(rank.index, verdict=Verdict.HEALTHY, deadline=None)
    _examined(draft)


_examined = joint.examined
_classify = exits.classify
_ran_out = rules._ran_out
_node_seen = sightings.node_seen
_look_at = joint._look_at


def _believe_zero(ev: TaskEnded, *, doubted: bool, policy: Policy) -> Exit:
    """Exit code 0 is success, whatever happened to the node."""
    return _classify(ev, doubted=doubted and ev.exit_code != 0, policy=policy)


def _no_reboot_deadline(draft: Draft, rank: Rank) -> None:
    """A reboot may take for ever."""
    if draft.status is not JobStatus.PENDING_RESTART:
        _ran_out(draft, rank)


def _send_nothing_again(sweeper: Sweeper, record: Job | Node, *args: object) -> Job | Node:
    """What is still in the outbox stays there."""
    return record


def _disconnect_is_reboot(draft: Draft, ev: NodeSeen) -> None:
    """A node that went away and came back must have rebooted."""
    away = {rank.node for rank in draft.ranks if not rank.connected}
    _node_seen(draft, ev)
    for rank in list(draft.ranks):
        if (
            rank.node == ev.node
            and rank.node in away
            and ev.connected
            and rank.node_status is NodeStatus.REBOOTING
        ):
            draft.drop(draft.reboot_key(rank.index))
            draft.set(rank.index, rebooted=True)


def _start_without(draft: Draft, rank: Rank) -> None:
    """A lost node is as good as any other."""
    if rank.node_status is NodeStatus.UNKNOWN and rank.quiet and not rank.connected:
        draft.set(rank.index, connected=True)
    _look_at(draft, draft.ranks[rank.index])


def _load_known(kind: type[Any], data: Mapping[str, Any]) -> Any:
    """What this release does not know is not kept."""
    readers = codec._readers(kind)  # type: ignore[arg-type]
    return kind(**{name: readers[name](value) for name, value in data.items() if name in readers})


def _end_the_sweep(report: Report, record: Record, act: Callable[[], object]) -> None:
    """Whatever is wrong with one record ends the look at all of them."""
    act()


MUTANTS: tuple[Mutant, ...] = (
    Mutant("drop the version condition", MemoryStore, "commit", _commit_anyway),
    Mutant(
        "act on the first verdict",
        joint,
        "JOINT",
        {**joint.JOINT, JobStatus.PENDING_HEALTHCHECK: _examined_early},
    ),
    Mutant("trust exit 0 after a reboot", rules, "classify", _believe_zero),
    Mutant("skip a deadline", rules, "_ran_out", _no_reboot_deadline),
    Mutant("forget the outbox", Sweeper, "_resend", _send_nothing_again),
    Mutant(
        "count a disconnect as a reboot",
        machine,
        "TABLE",
        {
            **machine.TABLE,
            JobStatus.PENDING_RESTART: {
                **machine.TABLE[JobStatus.PENDING_RESTART],
                NodeSeen: _disconnect_is_reboot,
            },
        },
    ),
    Mutant("restart with a node missing", joint, "_look_at", _start_without),
    Mutant("re-send a start without looking", SimulatedCluster, "looks", False),
    Mutant("do not compare the token", Origin, "has_token", lambda origin, token: True),
    Mutant("do not compare the instance", Origin, "is_on", lambda origin, instance: True),
    Mutant("do not compare the family", Origin, "is_of", lambda origin, family: True),
    Mutant("drop the fields of a later release", codec, "_load", _load_known),
    Mutant("stop the sweep at a bad record", Report, "attempt", _end_the_sweep),
    Mutant("count deadlines from the event", Runtime, "_now", lambda runtime: None),
    Mutant("let what was not sent run out", Draft, "never_sent", lambda draft, rank: False),
)


def hunt(
    mutant: Mutant, *, first: int = 0, most: int = 1000, nights: Callable[[int], Outcome] = run
) -> Outcome | None:
    """The first night that notices the mutant; none if it lives through them all."""
    with mutant.planted():
        return next(
            (outcome for seed in range(first, first + most) if (outcome := nights(seed)).violation), None
        )
