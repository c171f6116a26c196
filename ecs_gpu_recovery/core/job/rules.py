"""The rules, one screen each: what a single fact changes about a job. `joint` then draws the consequences.

A rule records; it never concludes. So the order in which facts arrive does not matter.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from .. import examination, keys, sighting
from ..errors import Refused
from ..events import (
    CheckRefused,
    CheckStarted,
    NodeChecked,
    NodeGivenUp,
    NodeRepaired,
    StartRefused,
    StopAsked,
    TaskEnded,
    TaskStarted,
    Tick,
)
from ..exits import classify, host_gone, is_gone, is_passing, was_killed
from ..model import Exit, JobStatus, NodeStatus, Rank, TaskStatus, Verdict
from ..timeline import kept_in
from . import leaves
from .budget import progress_seen
from .claim import examine, may_move, under_test
from .draft import SPEAKERS, Draft, end
from .sightings import frozen, lose, may_freeze, rank_on

#: How a timeline tells that a gang which shows no sign of life is not stopped yet.
HELD = "the stop of the gang waits for a permit"


def _rank_of(draft: Draft, ev: TaskStarted | TaskEnded) -> Rank | None:
    """The rank a task belongs to: known by id, or awaited and what was ordered. An event's own word is not trusted."""
    for rank in draft.ranks:
        if ev.task_id and rank.task_id == ev.task_id:
            return rank
    if not 0 <= ev.rank < len(draft.ranks) or ev.attempt != draft.ranks[ev.rank].task_attempt:
        return None
    rank = draft.ranks[ev.rank]
    awaited = rank.task_status is None and rank.start_try > 0 and not _is_past(rank, ev.task_id)
    return rank if awaited and not rank.task_id and draft.expects(rank, ev.origin) else None


def _is_past(rank: Rank, task_id: str) -> bool:
    """An earlier task of this rank. A rank forgets a task only when it has ended."""
    return task_id in rank.spent or any(past.partition("/")[2] == task_id for past in rank.past_tasks)


def _not_awaited(draft: Draft, ev: TaskStarted | TaskEnded) -> None:
    """A task that nobody waits for is stopped if it is ours. Late news of one that has ended needs no stop."""
    if not 0 <= ev.rank < len(draft.ranks) or _is_past(draft.ranks[ev.rank], ev.task_id):
        return
    rank = draft.ranks[ev.rank]
    if ev.origin is not None and not keys.is_start_token(
        ev.origin.token, draft.id, ev.attempt, ev.rank, draft.salt
    ):
        if not draft.status.final:
            draft.stranger(rank.node, rank.node_status, ev.task_id)
    elif isinstance(ev, TaskStarted):
        draft.order_ghost_stop(rank.node, ev.task_id)


def _answered(draft: Draft, ev: TaskStarted) -> bool:
    """Whether the answer to a start names another task than an event did: then the answer is right."""
    rank = draft.ranks[ev.rank] if 0 <= ev.rank < len(draft.ranks) else None
    if ev.origin is not None or rank is None or not (rank.overheard and rank.live):
        return False
    if ev.attempt != rank.task_attempt or ev.task_id == rank.task_id:
        return False
    draft.stranger(rank.node, rank.node_status, rank.task_id)
    draft.order_ghost_stop(rank.node, rank.task_id)
    draft.set(rank.index, task_id=ev.task_id, overheard=False)
    return True


def task_started(draft: Draft, ev: TaskStarted) -> None:
    """Note the task's id. A task we neither know nor wait for is a ghost, and is stopped."""
    rank = _rank_of(draft, ev)
    if rank is None:
        if not _answered(draft, ev):
            _not_awaited(draft, ev)
        return
    if rank.ended:
        return
    draft.set(rank.index, overheard=(rank.overheard or not rank.task_id) and ev.origin is not None)
    if rank.task_status is None:
        wanted = draft.drop(draft.start_key(rank))
        draft.set(
            rank.index, task_id=ev.task_id, task_status=TaskStatus.IN_PROGRESS, exit=None, exit_reason=""
        )
        if not wanted:  # the stop that withdrew it may have come before the cluster knew the task
            draft.order_ghost_stop(rank.node, ev.task_id)
            return
        draft.node(rank.index, NodeStatus.IN_PROGRESS, "its rank has started")
        if rank.start_try == 1:  # one that is tried again keeps its deadline
            draft.wait_longer(rank.index, draft.policy.start_timeout)
        rank = draft.ranks[rank.index]
    if ev.running and draft.ending is None and draft.status in (JobStatus.IN_PROGRESS, JobStatus.RESTARTING):
        doubted = rank.doubted and not _ran_for_sure(draft, rank, ev.at)
        draft.set(rank.index, deadline=draft.next_sign(rank), doubted=doubted)


def _ran_for_sure(draft: Draft, rank: Rank, at: datetime | None) -> bool:
    """Whether a task that the cluster called running at that moment has outlived the last absence of its node.

    An agent that is back needs a while to report its tasks, and until then the cluster calls even those running that
    a restart of the host has killed. Where boot ids are told, they alone tell of restarts.
    """
    told = at is not None and rank.back_at is not None and at >= rank.back_at + draft.policy.agent_report
    return told and rank.connected and not rank.boot_id


def task_started_too_late(draft: Draft, ev: TaskStarted) -> None:
    """Nothing of this job should be starting now: note whose it is if it was being withdrawn, and stop it."""
    rank = _rank_of(draft, ev)
    if (
        rank is not None
        and rank.task_id == ev.task_id
        and not (draft.status.final and rank.exit is Exit.LOST)
    ):
        return
    if rank is not None and not rank.task_id:
        draft.set(rank.index, task_id=ev.task_id, task_status=TaskStatus.IN_PROGRESS)
    if rank is not None:
        draft.order_ghost_stop(rank.node, ev.task_id)
    else:
        _not_awaited(draft, ev)


def task_ended(draft: Draft, ev: TaskEnded) -> None:
    """Record how a rank ended, once. What it means for the job is concluded jointly."""
    rank = _rank_of(draft, ev)
    if rank is None:
        _not_awaited(draft, ev)
    if rank is None or rank.ended:
        return
    doubted = rank.doubted and not _ran_for_sure(draft, rank, ev.stopped_at)
    end_kind = classify(ev, doubted=doubted, policy=draft.policy)
    if end_kind is Exit.FAULT and draft.restarts_when_healthy and was_killed(ev.exit_code):
        end_kind = Exit.SUSPECT  # it may go on, so its nodes are examined
    retry = (
        end_kind is Exit.NEVER_STARTED
        and is_passing(ev.reason)
        and draft.ending is None
        and rank.exit is None
        and draft.status in (JobStatus.IN_PROGRESS, JobStatus.RESTARTING)
        and (rank.deadline is None or draft.now < rank.deadline)
    )
    draft.drop(draft.start_key(rank))
    if retry:
        draft.fresh(
            rank.index, start_try=rank.start_try, deadline=rank.deadline, spent=(*rank.spent, ev.task_id)[-3:]
        )
        draft.order_start(rank.index, after=draft.policy.backoff(rank.start_try), keep_deadline=True)
        return
    if rank.task_status is None:
        if ev.task_id:
            draft.set(rank.index, task_id=ev.task_id, task_status=TaskStatus.IN_PROGRESS)
        if rank.node_status in (NodeStatus.ASSIGNED, NodeStatus.AVAILABLE) and draft.ending is None:
            draft.node(rank.index, NodeStatus.IN_PROGRESS, "its rank had started")
    done = end_kind is Exit.DONE
    draft.set(
        rank.index,
        task_status=TaskStatus.COMPLETE if done else TaskStatus.TERMINATED,
        exit=rank.exit or end_kind,
        exit_code=ev.exit_code,
        exit_reason=draft.cut(ev.reason or ev.stop_code),
    )
    if sum(bool(other.last_words) for other in draft.ranks) < SPEAKERS:
        draft.set(rank.index, last_words=draft.cut(ev.last_words), echo=ev.echo)
    if not (draft.status is JobStatus.PENDING_RESTART or rank.verdict is not None):
        draft.set(rank.index, deadline=None)
    if host_gone(ev):  # it must be seen again before it counts as back
        draft.set(rank.index, connected=False, gone=True, away_since=rank.away_since or draft.now)


def start_refused(draft: Draft, ev: StartRefused) -> None:
    """AGENT and RESOURCE pass: try again later, until the deadline. Anything else is final."""
    if not 0 <= ev.rank < len(draft.ranks) or ev.attempt != draft.ranks[ev.rank].task_attempt:
        return
    rank = draft.ranks[ev.rank]
    key = draft.start_key(rank)
    if draft.pending(key) is None:
        return
    if is_passing(ev.reason) and (rank.deadline is None or draft.now < rank.deadline):
        draft.postpone(key, ev.reason)
        draft.set(rank.index, doubted=False)  # nothing runs there yet that a restart could have hit
        return
    draft.drop(key)
    draft.set(
        rank.index,
        task_status=TaskStatus.TERMINATED,
        exit=Exit.NEVER_STARTED,
        exit_reason=draft.cut(ev.reason),
        deadline=None,
    )


def check_started(draft: Draft, ev: CheckStarted) -> None:
    """Note the check's id, so that it can be stopped."""
    rank = rank_on(draft, ev.node)
    if rank is None or not examination.awaited(draft, rank.index, ev):
        return
    examination.begun(draft, rank.index, ev)
    if rank.node_status is not NodeStatus.UNKNOWN:
        draft.node(rank.index, NodeStatus.PENDING_HEALTHCHECK, "the health check runs")


def check_refused(draft: Draft, ev: CheckRefused) -> None:
    """The GPUs may still be held by the old task: wait for the stop, don't give up. A machine that the cluster does not
    know any more is lost: that it could not be examined says nothing for it."""
    rank = rank_on(draft, ev.node)
    if rank is None:
        return
    awaited = ev.check_try == rank.check_try and draft.pending(draft.check_key(rank.index)) is not None
    if awaited and is_gone(ev.reason):  # it must be seen again before it counts as back
        draft.set(rank.index, connected=False, gone=True, away_since=rank.away_since or draft.now)
        lose(draft, rank, f"the cluster does not know it any more ({ev.reason})")
    else:
        examination.refused(draft, rank.index, ev)


def node_checked(draft: Draft, ev: NodeChecked) -> None:
    """Keep the verdict. An inconclusive one is asked for once more: a test that did not run proves nothing."""
    rank = rank_on(draft, ev.node)
    if rank is None or not examination.awaited(draft, rank.index, ev):
        return
    if rank.node_status in (NodeStatus.PENDING, NodeStatus.ASSIGNED, NodeStatus.REBOOTING):
        draft.node(rank.index, NodeStatus.PENDING_HEALTHCHECK, "the health check ran")
    if ev.progress is not None:
        progress_seen(draft, ev.progress)
    examination.answered(draft, rank.index, ev)


def node_repaired(draft: Draft, ev: NodeRepaired) -> None:
    """The node is the job's again. If its old task was not known to have ended, its own check has found it idle."""
    rank = rank_on(draft, ev.node)
    if rank is None or rank.handed != ev.key:
        return
    if rank.node_status is NodeStatus.FAILED and not may_move(draft):
        return
    why = "heard from again" if rank.verdict is Verdict.LOST else "repaired, connected, all GPUs there"
    draft.node(rank.index, NodeStatus.AVAILABLE, why, kept_in(ev.node, ev.kept))
    newer = ev.machine.instance != rank.instance or ev.machine.seen_version >= rank.seen_version
    if newer and ev.machine.host != rank.host:
        draft.set(rank.index, address=ev.address)
    draft.set(rank.index, handed="", deadline=None, **(sighting.known(ev.machine) if newer else {}))
    if not rank.quiet:
        draft.set(rank.index, task_status=TaskStatus.TERMINATED)
    # It was taken, and lost before its check had answered; or a person has released it.
    lost = rank.verdict is Verdict.LOST
    unseen = lost and not rank.start_try
    draft.set(rank.index, suspect=rank.suspect and lost)
    if draft.ending is None and (unseen or draft.preflight or rank.node_status is NodeStatus.FAILED):
        examine(draft, rank.index)


def node_given_up(draft: Draft, ev: NodeGivenUp) -> None:
    """The node needs a person. It stays with its own record."""
    rank = rank_on(draft, ev.node)
    if rank is not None and rank.handed == ev.key and rank.node_status is not NodeStatus.FAILED:
        told = "; ".join(filter(None, (ev.reason, kept_in(ev.node, ev.kept))))
        draft.node(rank.index, NodeStatus.FAILED, "could not be brought back", told)
        draft.set(rank.index, findings=draft.cut(ev.reason))


def tick(draft: Draft, ev: Tick) -> None:
    """Look at every deadline and every absence. What ran out is a fact like any other."""
    for rank in list(draft.ranks):
        if rank.away_since is not None and draft.now >= rank.away_since + draft.policy.node_lost_after:
            lose(draft, rank, f"not heard from since {rank.away_since.isoformat(timespec='seconds')}")
        rank = draft.ranks[rank.index]
        if rank.frozen_at is not None and draft.now >= rank.frozen_at:
            _freeze(draft, rank, ev)
        rank = draft.ranks[rank.index]
        if rank.deadline is None or draft.now < rank.deadline:
            continue
        if draft.never_sent(rank):
            draft.set(rank.index, deadline=draft.next_look)
        else:
            draft.set(rank.index, deadline=None)
            _ran_out(draft, draft.ranks[rank.index])
    leaves.stop(draft, ev)


def _freeze(draft: Draft, rank: Rank, ev: Tick) -> None:
    """To stop a gang that has not ended takes a permit. Without one, or while somebody starts, it runs on, and is
    looked at again. One that is stopped already needs none."""
    if not may_freeze(draft, rank):
        draft.set(rank.index, frozen_at=None)
        return
    if not ev.may_stop or rank not in frozen(draft, draft.now):
        draft.set(rank.index, frozen_at=draft.next_look)
        if ev.why and not draft.reported(HELD):
            draft.note("job", draft.status, draft.status, HELD, ev.why)
            if ev.tell is not None:
                draft.order(ev.tell)
        return
    why = "a fatal GPU fault was seen, and no sign of life since"
    draft.set(rank.index, frozen_at=None, exit=Exit.FROZEN, exit_reason=why)


def _ran_out(draft: Draft, rank: Rank) -> None:
    """One wait has taken too long. Which one follows from where the rank stands."""
    status = draft.status
    if draft.ending is not None:
        draft.ending = replace(
            draft.ending, firm=True
        )  # its task may run on, so nothing of this job may be started again
        if not rank.ended:
            draft.set(
                rank.index,
                task_status=TaskStatus.TERMINATED,
                exit=Exit.LOST,
                exit_reason="never confirmed to have stopped",
            )
            if rank.node_status is not NodeStatus.FAILED and not rank.handed:
                draft.node(rank.index, NodeStatus.UNKNOWN, "its task did not stop in time")
    elif status is JobStatus.IN_PROGRESS and rank.live and draft.finishing:
        why = "others of its gang have finished, and it was not seen to run since"
        draft.set(rank.index, exit=Exit.LOST, exit_reason=why)
    elif status in (JobStatus.IN_PROGRESS, JobStatus.RESTARTING):
        waiting = draft.pending(draft.start_key(rank))
        why = (
            f"did not start in time ({waiting.error})"
            if waiting and waiting.error
            else "did not start in time"
        )
        draft.set(rank.index, exit=rank.exit or Exit.NEVER_STARTED, exit_reason=rank.exit_reason or why)
    elif status is JobStatus.PENDING_HEALTHCHECK and not rank.ended and not draft.preflight:
        stuck = (
            bool(rank.task_id) and rank.connected and not rank.gone and not rank.anew
        )  # else nobody saw it run
        draft.set(rank.index, verdict=Verdict.LOST, findings="its task did not stop in time", stuck=stuck)
        draft.node(rank.index, NodeStatus.UNKNOWN, "its task did not stop in time")
    elif status is JobStatus.PENDING_RESTART and under_test(rank):
        examination.ran_out(draft, rank.index)
    elif status is JobStatus.PENDING_RESTART and may_move(draft):
        draft.set(rank.index, verdict=Verdict.LOST, findings=rank.absence)
        draft.node(rank.index, NodeStatus.UNKNOWN, "went away while the gang waited")
    elif status is JobStatus.PENDING_RESTART:
        draft.set(rank.index, findings=rank.absence)
        draft.node(rank.index, NodeStatus.UNKNOWN, "went away while the gang waited")
        draft.node(rank.index, NodeStatus.FAILED, rank.absence)
    else:
        examination.ran_out(draft, rank.index)


def stop_asked(draft: Draft, ev: StopAsked) -> None:
    """A person may end a job in any state that is not final."""
    end(draft, JobStatus.USER_STOPPED, f"stopped by {ev.by}" + (f": {ev.why}" if ev.why else ""), by=ev.by)


def already_over(draft: Draft, ev: StopAsked) -> None:
    """Final states never change."""
    raise Refused(f"job {draft.id} has already ended ({draft.status}); nothing was changed")
