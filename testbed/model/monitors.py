"""What must hold, judged from outside: each monitor looks at the modelled world, not at the rules' own reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.effects import Notify, RebootNode, ReplaceNode, StartTask, StopTask
from ecs_gpu_recovery.core.invariants import broken
from ecs_gpu_recovery.core.model import Exit, Job, JobStatus, NodeStatus, Verdict
from ecs_gpu_recovery.core.node_record import Node

from .world import FORGED, Machine

if TYPE_CHECKING:
    from .bounds import Bounds
    from .state import State


_FOUND = frozenset({Verdict.HEALTHY, Verdict.REBOOT, Verdict.REPLACE})


class Violation(Exception):
    """Something that must never happen has happened."""


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)


def after_decision(old: Job, new: Job, machines: Sequence[Machine]) -> None:
    """Judge one commit."""
    named = {name for rank in new.ranks for name in (rank.task_id, rank.check_id)}
    _demand(FORGED not in named, "a task of a neighbour counts as ours")
    said = broken(new)
    _demand(not said, "; ".join(said))
    _demand(new.attempt >= old.attempt, "the attempt went backwards")
    _demand(new.attempt <= old.attempt + 1, "two retries were spent at once")
    _demand(new.max_retries == old.max_retries, "the budget changed")
    if old.status.final:
        _demand(
            (new.status, new.outcome) == (old.status, old.outcome), f"final {old.status} became {new.status}"
        )
        return
    _verdicts_are_fresh(old, new, machines)
    if old.status is JobStatus.PENDING_HEALTHCHECK and new.status is not old.status and old.ending is None:
        _all_examined(old, new, machines)
    if new.status is JobStatus.RESTARTING and old.status is not new.status:
        _all_back(new, machines)
    if new.status is JobStatus.COMPLETE:
        _truly_complete(new, machines)
    if new.status is JobStatus.FAILED:
        _demand(
            any(order.key == keys.job_failed(new.id) for order in new.outbox),
            "FAILED, and nobody will be told",
        )


def _verdicts_are_fresh(old: Job, new: Job, machines: Sequence[Machine]) -> None:
    """A verdict comes from a check of this very attempt."""
    for before, after, machine in zip(old.ranks, new.ranks, machines, strict=True):
        if after.verdict is not before.verdict and after.verdict in _FOUND and not after.stuck:
            checks = [c for c in machine.checks if c.attempt == old.attempt and not c.own]
            real = any(c.verdict == after.verdict for c in checks)
            _demand(
                real,
                f"{after.node} got the verdict {after.verdict}, which no check of attempt {old.attempt} gave",
            )


def fairly_charged(old: Job, new: Job, steps: tuple[int, ...]) -> None:
    """What is charged are the restarts since the last step that was new, as far as it was told."""
    last = steps[-1] if steps else 0
    since = new.attempt - last - sum(attempt > last for attempt in new.spent.uncharged)
    free = len(new.spent.uncharged) > len(old.spent.uncharged)
    _demand(not free or old.planned, "a restart was not charged, though no leave was planned")
    _demand(not old.planned or new.spent.charged <= old.spent.charged, "a planned leave was charged")
    charged = new.spent.charged
    _demand(charged >= since, f"{charged} restarts are charged, and {since} brought no progress")
    heard = new.marker is not None and new.marker.step == len(steps)
    _demand(
        not heard or charged == since,
        f"{charged} restarts are charged, though all but {since} brought progress",
    )
    over = (
        old.status is JobStatus.PENDING_HEALTHCHECK and new.status is JobStatus.FAILED and old.ending is None
    )
    if over and heard and steps[-1] == old.attempt and old.max_retries and not old.preflight:
        beyond = any(rank.verdict is Verdict.REPLACE for rank in new.ranks)
        ends = new.restart_when_healthy == "never" and not any(
            rank.verdict in (Verdict.REBOOT, Verdict.LOST) for rank in new.ranks
        )
        _demand(beyond or ends, "FAILED, though it came further than ever before")


def truly_frozen(old: Job, new: Job, machines: Sequence[Machine], now: datetime, grace: timedelta) -> None:
    """A gang is stopped under a living rank only after a fatal fault, and the time that it had to end."""
    for before, after, machine in zip(old.ranks, new.ranks, machines, strict=True):
        if after.exit is Exit.FROZEN and before.exit is not after.exit:
            waited = machine.faulty is not None and now - machine.faulty >= grace
            _demand(waited, f"{after.node} counts as frozen without a fatal fault, or too soon after it")


def truly_lost(old: Job, new: Job, state: State, stop_timeout: timedelta) -> None:
    """A node that was never away is lost only if it kept its task for as long as a stop may take.

    A task that was never started, or has ended, can't be asked to stop; not every cluster tells that it is so.
    """
    for before, after, machine in zip(old.ranks, new.ranks, state.of(new), strict=True):
        bad = after.verdict is Verdict.LOST or (after.verdict is Verdict.REBOOT and after.stuck)
        called = bad and before.verdict is not after.verdict
        if not called or after.exit is Exit.LOST or machine.version > 1:
            continue
        token = keys.start_token(new.id, after, new.salt)
        alive = (run for run in machine.runs if run.alive)
        own = [run for run in alive if (run.id == after.task_id if after.task_id else run.token == token)]
        _demand(
            all(run.asked is not None and state.now - run.asked >= stop_timeout for run in own),
            f"{after.node} counts as lost, and its task was not asked to stop for long enough",
        )


def _all_examined(old: Job, new: Job, machines: Sequence[Machine]) -> None:
    """Every node has its verdict before anything is concluded."""
    if new.status is JobStatus.USER_STOPPED:
        return
    withdrawn = {order.effect.token for order in new.outbox if isinstance(order.effect, StopTask)}
    for rank, machine in zip(new.ranks, machines, strict=True):
        open_checks = [
            c.id
            for c in machine.checks
            if c.alive and not (c.stopping or c.own) and c.check_try == rank.check_try
            if c.token not in withdrawn
        ]
        _demand(
            not open_checks or rank.verdict in _FOUND,
            f"{old.status} -> {new.status} while {open_checks} had not answered",
        )
        fresh = new.status in (JobStatus.RESTARTING, JobStatus.IN_PROGRESS)
        _demand(
            fresh or rank.verdict is not None,
            f"{old.status} -> {new.status} without a verdict about {rank.node}",
        )


def _all_back(job: Job, machines: Sequence[Machine]) -> None:
    for rank, machine in zip(job.ranks, machines, strict=True):
        here = rank.node_status is NodeStatus.AVAILABLE and rank.connected and rank.all_gpus_back
        _demand(here, f"restarted while {rank.node} was not back")
        _demand(not machine.suspect, f"restarted on {rank.node}, where a fault was seen while the job waited")
        ordered = [r for r in machine.reboots if _attempt_of(r.key) == job.attempt]
        _demand(all(r.done for r in ordered), f"restarted before {rank.node} had really rebooted")
        _demand(not rank.handed, f"restarted before {rank.node} was given back")


def _truly_complete(job: Job, machines: Sequence[Machine]) -> None:
    for rank, machine in zip(job.ranks, machines, strict=True):
        run = next((run for run in machine.runs if run.id == rank.task_id), None)
        _demand(
            run is not None and run.end == "done" and run.attempt == job.attempt,
            f"COMPLETE, but rank {rank.index} did not finish its work",
        )


def before_start(order: StartTask, machines: Sequence[Machine]) -> None:
    """No second life: neither of this rank nor of another attempt."""
    alive = [run for machine in machines for run in machine.runs if run.alive]
    others = [run.id for run in alive if run.rank == order.rank]
    _demand(not others, f"a second task for rank {order.rank} while {others} lives")
    old = [run.id for run in alive if run.attempt != order.attempt]
    _demand(not old, f"attempt {order.attempt} starts while {old} of another attempt lives")


def after_node_decision(old: Node, node: Node, job: Job | None = None) -> None:
    """Judge one commit of a node that decides for itself, or that a job which ended gives back."""
    waits = node.own and (
        node.status in (NodeStatus.REBOOTING, NodeStatus.PENDING_HEALTHCHECK)
        or (node.status is NodeStatus.UNKNOWN and bool(node.job_id))
        or node.being_replaced
    )
    _demand(
        not waits or node.deadline is not None or _held(node),
        f"{node.name} is {node.status}, and has nothing to wait for",
    )
    retired = node.gone and not old.being_replaced  # somebody else has terminated it: nobody misses it
    fails = node.status is NodeStatus.FAILED and not (node.job_id or node.hold or retired)
    news = fails and (old.status is not NodeStatus.FAILED or bool(old.job_id))
    told = any(isinstance(order.effect, Notify) for order in node.outbox)
    by_job = job is not None and job.status is JobStatus.FAILED  # its message names its bad nodes
    _demand(not news or told or by_job, f"{node.name} FAILED, and nobody will be told")


def truly_gone(old: Node, node: Node, machine: Machine) -> None:
    """Another machine is waited for only if this one is no more."""
    waits = node.being_replaced and node.status is NodeStatus.UNKNOWN and old.status is not node.status
    gone = machine.sight.gone or machine.sight.life > 0
    _demand(not waits or gone, f"{node.name} counts as taken away, and its machine is still there")


def not_given_up(old: Node, node: Node, machine: Machine) -> None:
    """A machine whose reboot got through and had its time is replaced, and not left to a person."""
    over = old.status is NodeStatus.REBOOTING and node.status is NodeStatus.FAILED
    sent = any(reboot.key == old.reboot_key for reboot in machine.reboots) and not old.gone
    _demand(not (over and sent), f"{node.name} is given up after its reboot, and may be replaced")


def _held(node: Node) -> bool:
    """Its reboot waits for a permit."""
    return node.status is NodeStatus.PENDING_HEALTHCHECK and any(
        order.key == node.reboot_key for order in node.outbox
    )


def before_reboot(node: Node, order: RebootNode, machine: Machine, now: datetime | None) -> str:
    """Only on a verdict of the attempt that failed, once per verdict, and over no task that is meant to run. The token
    of the check that asks for it."""
    if any(reboot.key == order.key for reboot in machine.reboots):
        return ""
    attempt = _attempt_of(order.key)
    ours = (attempt - 1, attempt)  # a node that a rank has moved to is examined for the attempt that comes
    asked = [c for c in machine.checks if c.verdict == "reboot" and c.attempt in ours and not c.own]
    again = [c for c in machine.checks if c.verdict == "reboot" and c.own]  # it waited long for its permit
    proof = asked or again
    stuck = any(run.asked is not None and run.attempt == attempt - 1 for run in machine.runs)
    _demand(
        bool(proof) or (stuck and "could not be stopped" in node.findings),
        f"{order.node} is rebooted without a verdict of the failed attempt",
    )
    before = [r.proof for r in machine.reboots if _attempt_of(r.key) == attempt]
    anew = [
        c for c in asked if c.attempt == attempt
    ] or again  # its job waited, and has handed it over once more
    told = order.key.endswith("/1") and any(c.token not in before for c in anew)
    _demand(not before or told, f"{order.node} is rebooted twice for one verdict")
    running = [run.id for run in machine.runs if run.alive and not run.stopping]
    _demand(not running, f"{order.node} is rebooted under {running}")
    _demand(
        node.deadline is None or now is None or now < node.deadline,
        f"{order.node} is rebooted after the time for it is over",
    )
    _demand(
        node.own and (node.status is NodeStatus.REBOOTING or _held(node)),
        f"{order.node} is rebooted while the record calls it {node.status}",
    )
    return proof[-1].token if proof else ""


def before_replacement(
    node: Node, order: ReplaceNode, machine: Machine, now: datetime, patience: timedelta
) -> None:
    """Only on a check that no reboot answers, or after a reboot that had its time; once for each machine, and over no
    task that is meant to run."""
    if machine.taken == order.key:
        return
    _demand(not machine.taken, f"{order.node} is replaced twice")
    running = [run.id for run in machine.runs if run.alive and not run.stopping]
    _demand(not running, f"{order.node} is taken away under {running}")
    over = any(each.at is not None and now - each.at >= patience for each in machine.reboots)
    _demand(machine.proof == "replace" or over, f"{order.node} is replaced, and no check asks for it")
    _demand(
        node.deadline is None or now < node.deadline,
        f"{order.node} is replaced after the time for it is over",
    )
    due = node.being_replaced and (node.status is NodeStatus.REBOOTING or _held(node))
    _demand(due, f"{order.node} is replaced while the record calls it {node.status}")


def at_rest(state: State, bounds: Bounds) -> None:
    """The job has ended and nothing is left to send: what does the world look like?"""
    job = state.job
    told = state.told.count(keys.job_failed(job.id))
    if job.status is JobStatus.FAILED:
        _demand(told > 0, "FAILED, and nobody was told")
    _demand(told <= 1 + bounds.stalls - state.left.stalls, "told twice, though no process died")
    ranks = {rank.node: rank for rank in job.ranks}
    for node, machine in zip(state.nodes, state.machines, strict=True):
        alive = [run.id for run in machine.runs if run.alive and not run.stopping]
        if alive:
            here = {node.status, *(rank.node_status for rank in (ranks.get(node.name),) if rank)}
            watched = bool(here & {NodeStatus.UNKNOWN, NodeStatus.FAILED}) and bool(state.told)
            _demand(watched, f"the job is over, {alive} still lives, and nobody was told")
    came = [node.replaced_by for node in state.nodes if node.replaced_by]
    _demand(len(set(came)) == len(came), f"one machine came for two: {came}")
    if state.rows is not None:
        _demand(
            row_view(state.rows) == row_view(job),
            f"the rows were left behind: {row_view(state.rows)} instead of {row_view(job)}",
        )


def _attempt_of(key: str) -> int:
    said = keys.parse(key)
    assert said is not None, key
    return said.attempt


def row_view(job: Job) -> list[tuple[str, str, str]]:
    """What other tools read in the rows, in short."""
    return [(str(r.node_status), r.task_id, str(r.task_status)) for r in job.ranks]
