"""When two states are the same: times count from now, texts and versions don't count, nodes are interchangeable.

The nodes of a gang differ by number only, and no rule prefers one, so states that differ by a renaming of nodes are
one. (Orders are sent in the order of ranks; a stall after the k-th of them is therefore seen for k of them, not for
every subset.)
"""

from __future__ import annotations

import hashlib
import marshal
from datetime import datetime
from functools import cache
from typing import Any, cast

from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.effects import Order, RebootNode, StopTask
from ecs_gpu_recovery.core.events import Fact
from ecs_gpu_recovery.core.guard import open_fault
from ecs_gpu_recovery.core.model import Exit, JobStatus, Rank

from .bounds import STEP, Bounds
from .monitors import row_view
from .state import State, may_have_a_sender
from .world import instance_name

#: No wait of the policy is longer than this many steps.
FAR = 9


def digest(state: State, bounds: Bounds) -> bytes:
    """A name for the state. 16 bytes: two different states share one only in theory."""
    return hashlib.blake2b(marshal.dumps(cast(Any, key(state, bounds)), 2), digest_size=16).digest()


def key(state: State, bounds: Bounds) -> tuple[object, ...]:
    job, now = state.job, state.now
    running = job.status in (JobStatus.IN_PROGRESS, JobStatus.RESTARTING)
    parts: list[list[object]] = [[] for _ in state.machines]
    at = [int(rank.node[1:]) for rank in job.ranks]
    for i, rank in zip(at, job.ranks, strict=True):
        parts[i].append(_rank(rank, now, bounds, running=running))
    here = dict(zip(at, job.ranks, strict=True))
    for i, part in enumerate(parts):
        part += [*_of_node(state, i, here.get(i)), *_machine(state, i, here.get(i), bounds)]
        part += _of_replacement(state, i, bounds) if bounds.policy.may_replace else ()
    common: list[object] = [job.status.value, job.attempt, job.preflight, tuple(state.left)]
    common.append((job.planned, job.room, job.spent.uncharged))
    spent, marker = job.spent, job.marker
    common.append(
        (spent.charged, spent.blind, spent.repaired, state.steps, marker and (marker.step, marker.attempt))
    )
    if bounds.moves:
        common.append((_steps(job.look_at, now), _ago(job.waiting_since, now), job.wait_told))
    if job.ending is not None:
        common.append((job.ending.status.value, job.ending.firm))
    common.append(tuple(sorted((name, min(state.told.count(name), 2)) for name in set(state.told))))
    _sort_orders(state.orders, now, parts, common, "", at)
    if state.stalled is not None:
        common.append(_steps(state.stalled.until, now))
        _sort_orders(state.stalled.orders, now, parts, common, "stalled", at)
        for each in state.stalled.facts:
            where, what = _fact(each.fact, at)
            (common if where is None else parts[where]).append((each.node is None, *what))
    if state.rows is not None:
        _add_rows(state, parts, common)
    return (*common, *sorted((tuple(part) for part in parts), key=repr))


def _sort_orders(
    orders: tuple[Order, ...],
    now: datetime,
    parts: list[list[object]],
    common: list[object],
    tag: str,
    at: list[int],
) -> None:
    for order in orders:
        where, what = _order(order.key, *at)
        if isinstance(order.effect, RebootNode):  # its rank may have another node by now
            where = int(order.effect.node[1:])
        known = isinstance(order.effect, StopTask) and bool(order.effect.task_id)
        entry = (tag, what, known, may_have_a_sender(order), 0 if tag else _steps(order.due, now))
        (common if where is None else parts[where]).append(entry)


def _add_rows(state: State, parts: list[list[object]], common: list[object]) -> None:
    """What the rows say, what a stalled process would write, and what is owed."""
    assert state.rows is not None
    records = [state.rows]
    common.append(bool(state.job.owed))
    if state.stalled is not None:
        common.append((bool(state.stalled.job.owed), state.stalled.job.version > state.rows.version))
        records.append(state.stalled.job)
    for record in records:
        for part, (node, task, status) in zip(parts, row_view(record), strict=True):
            part.append((node, _own_id(task), status))


def _steps(at: datetime | None, now: datetime) -> int:
    """How far ahead; what is due is due."""
    return -1 if at is None else max(0, (at - now) // STEP)


def _ago(at: datetime | None, now: datetime) -> int:
    return -1 if at is None else min(FAR, (now - at) // STEP)


def _rank(rank: Rank, now: datetime, bounds: Bounds, *, running: bool) -> tuple[object, ...]:
    return (
        rank.node_status.value,
        _own_id(rank.task_id),
        rank.task_status and rank.task_status.value,
        rank.start_try,
        rank.task_attempt,
        tuple(map(_own_id, rank.spent)),
        _exit(rank.exit, running=running),
        bool(rank.check_try),
        rank.checks_spent,
        bool(rank.check_id),
        rank.verdict and rank.verdict.value,
        rank.connected,
        _ago(rank.away_since, now),
        rank.gpus_seen,
        rank.doubted,
        rank.leave is not None,
        bounds.blind and _ago(rank.back_at, now),
        bool(rank.handed),
        _steps(rank.deadline, now),
        _steps(rank.frozen_at, now),
    )


def _of_node(state: State, i: int, rank: Rank | None) -> tuple[object, ...]:
    """What its own record says of it, once that is of account."""
    node, now = state.nodes[i], state.now
    if not node.own:
        return ("held", rank is not None and bool(rank.handed) and node.returned == rank.handed)
    machine = state.machines[i]
    return (
        node.status.value,
        bool(node.job_id),
        node.verdict and node.verdict.value,
        node.rebooted,
        node.connected,
        _ago(node.away_since, now),
        node.gpus_seen,
        bool(node.task),
        node.checks_spent,
        bool(node.check_id),
        open_fault(node) is not None,
        f"boot{machine.sight.boot}" == node.boot_id,
        machine.version > 1 and min(2, machine.version - node.seen_version),
        _steps(node.deadline, now),
    )


def _of_replacement(state: State, i: int, bounds: Bounds) -> tuple[object, ...]:
    """The rungs that were climbed, and which machine has the name."""
    node, machine = state.nodes[i], state.machines[i]
    fault = node.condemned[-1] if node.condemned else None
    return (
        len(node.condemned),
        fault and (fault.repair, bool(fault.outcome), node.replaced_by),
        node.fresh,
        node.gone,
        _order(node.reboot_key)[1] if node.reboot_key else "",
        node.instance == instance_name(i, machine.sight.life),
        [rank.instance == node.instance for rank in state.job.ranks if rank.node == node.name],
        bool(node.passed_at),
        machine.sight.life,
        bool(machine.taken),
        machine.proof,
        machine.followed,
        [min(_ago(reboot.at, state.now), bounds.policy.reboot_timeout // STEP) for reboot in machine.reboots],
    )


def _exit(kind: Exit | None, *, running: bool) -> str:
    """Once the gang is being examined, only these still make a difference."""
    if kind is None or running or kind in (Exit.LOST, Exit.STOPPED_BY_PERSON):
        return "" if kind is None else kind.value
    return "over"


def _machine(state: State, i: int, rank: Rank | None, bounds: Bounds) -> tuple[object, ...]:
    """A task whose end is on record is just over: what it would say once more stands for every way to end."""
    machine, node, now = state.machines[i], state.nodes[i], state.now
    over = rank.task_id if rank is not None and rank.ended else None
    known = node if rank is None else rank
    last = {False: 0 if rank is None else rank.check_try, True: node.check_try}
    boot, late = machine.sight.boot, bounds.late_stamps
    return (
        bounds.stale_sights and machine.version > 1 and min(2, machine.version - known.seen_version),
        f"boot{boot}" == known.boot_id,
        tuple(
            (s.connected, boot - s.boot, s.gpus, s.gone)
            for s in (machine.sights if bounds.stale_sights else machine.sights[-1:])
        ),
        (machine.down, machine.stranded, machine.suspect),
        _ago(machine.faulty, now),
        _ago(machine.back, now),
        tuple(
            (
                -1 if rank is not None and rank.index == r.rank else r.rank,
                r.attempt,
                r.start_try,
                r.copy,
                r.alive,
                r.alive and r.stopping and _ago(r.asked, now),
                "over" if r.id == over else r.end,
                r.told,
                late and (_ago(r.born, now), _ago(r.at, now)),
            )
            for r in machine.runs
        ),
        tuple(
            (
                c.own,
                c.attempt,
                last[c.own] - c.check_try,
                c.copy,
                c.alive,
                c.alive and c.stopping,
                c.verdict,
                late and _ago(c.at, now),
            )
            for c in machine.checks
        ),
        tuple(
            (_order(r.key)[1], r.done, any(c.token == r.proof for c in machine.checks))
            for r in machine.reboots
        ),
    )


@cache
def _own_id(task_id: str) -> str:
    """A task's id without its rank."""
    return task_id.partition(".")[2]


@cache
def _order(name: str, *at: int) -> tuple[int | None, str]:
    """Which order this is, without naming the rank, and the node it belongs to: that of the rank, or its own."""
    key = keys.parse(name)
    assert key is not None, name
    if key.kind == "ghost":
        rank, of_ours, own = key.last.partition(".")
        return at[int(rank[1:])] if of_ours and at else None, f"ghost/{own or rank}"
    if key.node:
        return int(key.node[1:]), f"own/{key.kind}/{key.then}"
    if key.kind == "notify":
        return None, name
    return at[key.rank] if at else None, f"{key.attempt}/{key.kind}/{key.last}/{key.then}"


def _fact(fact: Fact, at: list[int]) -> tuple[int | None, tuple[object, ...]]:
    """A fact that a stalled process has gathered, without its time and its texts."""
    kind = type(fact).__name__
    rank, node, order = (getattr(fact, name, None) for name in ("rank", "node", "key"))
    where = int(node[1:]) if node is not None else None if rank is None else at[rank]
    if order is not None:
        where, what = _order(order, *at)
        return where, ("learned", kind, what, str(getattr(fact, "answer", "")))
    details = tuple(
        getattr(fact, name)
        for name in ("attempt", "check_try", "running", "exit_code")
        if hasattr(fact, name)
    )
    return where, (
        "learned",
        kind,
        _own_id(getattr(fact, "task_id", "")),
        *details,
        str(getattr(fact, "verdict", "")),
        str(getattr(fact, "reason", "")),
    )
