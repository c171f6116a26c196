"""The time of the modelled world: it goes from one moment at which something is due to the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from ecs_gpu_recovery.core.model import NodeStatus, Rank, TaskStatus

from .bounds import STEP, Bounds
from .state import State


def next_moment(state: State, bounds: Bounds) -> datetime | None:
    """The next time at which something is due; nothing depends on the moments in between."""
    times = [order.due for order in state.orders]
    if state.stalled is not None:
        times.append(state.stalled.until)
    times += [*_of_nodes(state, bounds)]
    times += [*_of_job(state, bounds)]
    reports = [machine.back + STEP for machine in state.machines if machine.back is not None]
    if any(at <= state.now for at in reports):
        return None  # an agent is that late at most
    times += reports
    if not bounds.late_sweeper and any(at <= state.now for at in times):
        return None
    return min((at for at in times if at > state.now), default=None)


def _of_nodes(state: State, bounds: Bounds) -> Iterator[datetime]:
    for node in state.nodes:
        if node.own and node.deadline is not None:
            yield node.deadline
        if node.fresh and node.status is NodeStatus.AVAILABLE and node.away_since is not None:
            yield node.away_since + bounds.policy.node_lost_after


def _of_job(state: State, bounds: Bounds) -> Iterator[datetime]:
    job, policy = state.job, bounds.policy
    if job.status.final:
        return
    if bounds.moves and job.look_at is not None:
        yield job.look_at
    for rank in job.ranks:
        if rank.deadline is not None and not _seen_to_run(state, rank):
            yield rank.deadline
        if rank.away_since is not None and rank.away_since + policy.node_lost_after > state.now:
            yield rank.away_since + policy.node_lost_after
        if rank.doubted and rank.back_at is not None and bounds.slow_reports:
            yield rank.back_at + policy.agent_report


def _seen_to_run(state: State, rank: Rank) -> bool:
    """Of a gang that finishes: every look renews the deadline, so nothing happens at it."""
    machine = state.machines[int(rank.node[1:])]
    alive = machine.connected and any(run.alive and run.id == rank.task_id for run in machine.runs)
    return alive and any(other.task_status is TaskStatus.COMPLETE for other in state.job.ranks)


def advance(state: State, to: datetime) -> State:
    dead = state.stalled is not None and state.stalled.until <= to
    return replace(state, now=to, stalled=None if dead else state.stalled)
