"""The joint rules: what follows from where *all* ranks stand. Run after every fact, until nothing moves.

No rule here looks at the fact that came in, only at the record, so every order of arrival leads to the same end.
"""

from __future__ import annotations

from collections.abc import Callable

from .. import examination, keys, messages
from ..errors import Bug
from ..events import FAULT, PROGRAM_FAULT
from ..model import Exit, JobStatus, NodeStatus, Rank, TaskStatus, Verdict
from . import budget, causes, claim, leaves
from .draft import Draft, end
from .hang import HANGS

_KEEP = frozenset({NodeStatus.FAILED, NodeStatus.UNKNOWN, NodeStatus.REBOOTING, NodeStatus.AVAILABLE})


def settle(draft: Draft) -> None:
    for _ in range(10):
        before = draft.status
        JOINT[before](draft)
        if draft.status is before:
            return
    raise Bug(f"job {draft.id} does not come to rest")


def running(draft: Draft) -> None:
    """IN_PROGRESS: all done, or somebody failed. The first failure decides, the strongest cause names it."""
    if rank := _first(draft, Exit.STOPPED_BY_PERSON):
        end(
            draft,
            JobStatus.USER_STOPPED,
            f"a person stopped the task of rank {rank.index} on {rank.node}: {rank.exit_reason}",
        )
    if rank := _first(draft, Exit.OUT_OF_MEMORY, Exit.NEVER_STARTED):
        end(draft, JobStatus.FAILED, causes.not_run(rank, draft.spec.memory_mib))
    suspects = [r for r in draft.ranks if r.exit in (Exit.SUSPECT, Exit.LOST, Exit.FROZEN)]
    if draft.ending is None:
        suspects += [r for r in draft.ranks if r.exit is Exit.STOPPED_BY_US]
    if suspects and (draft.ending is None or not draft.ending.firm):
        _examine(draft, suspects)
        return
    if rank := _first(draft, Exit.FAULT):
        end(draft, JobStatus.FAILED, causes.incurable(rank), firm=False)
    if draft.ending is None and draft.planned:
        leaves.depart(draft)
        return
    draft.look_at = leaves.stop_at(draft, draft.policy)
    if draft.ending is not None:
        _close_when_quiet(draft)
    elif all(r.task_status is TaskStatus.COMPLETE for r in draft.ranks):
        _close(draft, JobStatus.COMPLETE, "every rank ended with success")
    else:
        for rank in list(draft.ranks):
            if rank.live and rank.deadline is None:
                draft.set(rank.index, deadline=draft.next_sign(rank))


def _examine(draft: Draft, suspects: list[Rank]) -> None:
    """One dead rank hangs the collective: stop them all, and test every node once its task has ended."""
    draft.ending = None
    budget.attempt_over(draft)
    draft.move(JobStatus.PENDING_HEALTHCHECK, causes.fate(suspects, draft.ranks), causes.last_words(suspects))
    hung = any(rank.hung for rank in suspects)
    for rank in list(draft.ranks):
        if rank.exit is Exit.LOST:
            draft.order_stop(rank.index, "the job is being recovered")
            _call_lost(draft, rank.index, rank.exit_reason)
            continue
        draft.node(rank.index, NodeStatus.PENDING, "its job failed")
        if rank.quiet:
            examination.ask(draft, rank.index)
        else:
            draft.order_stop(rank.index, HANGS if hung else "another rank failed")


def _call_lost(draft: Draft, index: int, why: str) -> None:
    draft.set(index, verdict=Verdict.LOST, findings=why or "lost", deadline=None)
    draft.node(index, NodeStatus.UNKNOWN, "lost", why)


def examined(draft: Draft) -> None:
    """PENDING_HEALTHCHECK: wait for every verdict; never decide on the first that arrives."""
    if rank := _first(draft, Exit.STOPPED_BY_PERSON):
        end(
            draft,
            JobStatus.USER_STOPPED,
            f"a person stopped the task of rank {rank.index} on {rank.node}: {rank.exit_reason}",
        )
    if draft.ending is not None:
        _close_when_quiet(draft)
        return
    for rank in list(draft.ranks):
        if rank.quiet and rank.verdict is None and rank.deadline is None:
            if rank.exit is Exit.LOST:
                _call_lost(draft, rank.index, rank.exit_reason)
            elif not leaves.unexamined(draft, rank):
                examination.ask(draft, rank.index)
    if all(rank.verdict is not None for rank in draft.ranks):
        (_admit if draft.preflight else _conclude)(draft)


def _admit(draft: Draft) -> None:
    """Before the first start: all nodes pass, or the job is refused with each node's reason.

    Where any nodes would do, bad ones are handed over and others taken, for as long as there are some.
    """
    refused = [r for r in draft.ranks if r.verdict is not Verdict.HEALTHY]
    bad = [r for r in refused if r.verdict in (Verdict.REBOOT, Verdict.REPLACE, Verdict.LOST)]
    if bad == refused != [] and claim.may_swap(draft) and not draft.hopeless:
        for rank in bad:
            if not rank.handed:  # else its own record decides, and may have given it up
                _condemn(draft, rank)
            _look_at(draft, draft.ranks[rank.index])
        draft.look_at = draft.look_at or draft.now
        return
    if refused:
        for rank in refused:
            if rank.verdict in (Verdict.REBOOT, Verdict.REPLACE) and not rank.handed:
                draft.node(
                    rank.index, NodeStatus.FAILED, "failed the check before the first start", rank.findings
                )
        _close(
            draft, JobStatus.FAILED, "refused by the check before the first start", causes.verdicts(refused)
        )
        return
    draft.preflight = False
    draft.move(JobStatus.IN_PROGRESS, "every node passed the check before the first start")
    for rank in list(draft.ranks):
        draft.node(rank.index, NodeStatus.ASSIGNED, "passed the check before the first start")
        draft.fresh(rank.index)
        draft.order_start(rank.index)


def _conclude(draft: Draft) -> None:
    """All verdicts are in. Reboot only what is proven bad, and only while a restart is left."""
    if budget.left(draft) or draft.planned:
        _unstick(draft)
    bad = [r for r in draft.ranks if r.verdict is Verdict.REBOOT]
    dead = [r for r in draft.ranks if r.verdict is Verdict.REPLACE]
    lost = [r for r in draft.ranks if r.verdict is Verdict.LOST]
    evidence = causes.verdicts(draft.ranks)
    faulty = bool(bad or lost or dead)
    left = draft.planned or (budget.left(draft) if faulty else budget.left_when_healthy(draft))
    if dead and left and claim.may_move(draft) and draft.hope is None:
        draft.look_at = draft.look_at or draft.now  # until it is known whether there is another node
        return
    if left and (not dead or draft.hope):
        _recover(draft, [*bad, *dead], lost, evidence)
        return
    for rank in (*bad, *dead):
        draft.node(rank.index, NodeStatus.FAILED, "GPU fault", rank.findings)
    if dead:
        why = causes.beyond_repair(dead)
    elif bad or lost:
        why = f"{causes.at_fault(bad, lost)}; {budget.shortage(draft)}"
    else:
        why = causes.no_fault(draft.ranks, _blame(draft)) + budget.why_not_restarted(draft)
    if all(rank.quiet for rank in draft.ranks):
        _close(draft, JobStatus.FAILED, why, evidence)
    else:
        end(draft, JobStatus.FAILED, why)  # a lost node's task may run on: it gets the time of one more stop


def _unstick(draft: Draft) -> None:
    """A process that no signal ends hangs in the driver: only a reboot helps.

    Several at once hang in what they share, most likely their storage: then people are told, and nobody reboots.
    """
    stuck = [r for r in draft.ranks if r.stuck and r.connected and not r.ended]
    if len(stuck) > 1:
        draft.order(messages.gang_stuck(draft.id, stuck))
    elif stuck:
        why = "its task could not be stopped: a process hangs in the driver"
        draft.set(stuck[0].index, verdict=Verdict.REBOOT, findings=why)


def _blame(draft: Draft) -> str:
    """Where the driver complained in this attempt, and about programs only, the program is at fault."""
    programs = draft.reported(PROGRAM_FAULT)
    if not programs or draft.reported(FAULT):
        return ""
    first = programs[0]
    return f"; the program failed on {first.subject}: {first.evidence.partition(' | ')[0][:120]}"


def _recover(draft: Draft, bad: list[Rank], lost: list[Rank], evidence: str) -> None:
    """The restart is spent in the very commit that leaves the check, so nothing can spend it twice."""
    why = causes.at_fault(bad, lost)
    if draft.planned:
        why = "; ".join(filter(None, (why, causes.stopped(draft.marker))))
        budget.spend_nothing(draft)
    else:
        why = why or causes.healthy(draft.ranks, draft.marker)
        budget.spend(draft, repair=bool(bad or lost))
    draft.attempt += 1
    draft.move(JobStatus.PENDING_RESTART, why, evidence)
    for rank in list(draft.ranks):
        draft.set(rank.index, handed_times=0)
        _condemn(draft, rank)
        if rank.verdict not in (Verdict.REBOOT, Verdict.REPLACE, Verdict.LOST):
            draft.node(rank.index, NodeStatus.AVAILABLE, f"verdict {rank.verdict}", rank.findings)


def _condemn(draft: Draft, rank: Rank) -> None:
    if rank.verdict is Verdict.REBOOT:
        why = "its task could not be stopped" if rank.stuck else "GPU fault that a reboot may cure"
        draft.node(rank.index, NodeStatus.REBOOTING, why, rank.findings)
    elif rank.verdict is Verdict.REPLACE:
        draft.node(rank.index, NodeStatus.FAILED, "GPU fault", rank.findings)


def awaited(draft: Draft) -> None:
    """PENDING_RESTART: every node back, connected, with all its GPUs, and nothing of the old attempt alive.

    How a node that was handed over is repaired, and how long that may take, is its own record's business.
    """
    if draft.ending is None:
        claim.admit(draft)
        claim.examine_suspects(draft)
        for rank in list(draft.ranks):
            _look_at(draft, rank)
        failed = [r for r in draft.ranks if r.node_status is NodeStatus.FAILED]
        failed = [r for r in failed if r.index in draft.hopeless or not claim.may_move(draft)]
        if failed:
            end(draft, JobStatus.FAILED, causes.not_brought_back(failed))
        claim.wait(draft)
    if draft.ending is not None:
        _close_when_quiet(draft)
    elif all(
        r.node_status is NodeStatus.AVAILABLE and r.fit and r.quiet for r in draft.ranks
    ) and not claim.must_go(draft):
        draft.move(JobStatus.RESTARTING, "every node of the gang is back")
        budget.attempt_begun(draft)
        for rank in list(draft.ranks):
            draft.fresh(rank.index)
            draft.order_start(rank.index)


def _look_at(draft: Draft, rank: Rank) -> None:
    """A node that is not well is handed over; one that only waits for the others may go away for a while."""
    unfit = (
        NodeStatus.REBOOTING,
        NodeStatus.UNKNOWN,
        *([NodeStatus.FAILED] if claim.may_move(draft) else []),
    )
    if rank.node_status in unfit and not rank.handed:
        key = keys.reboot(draft.id, draft.attempt, rank.index, rank.handed_times)
        draft.set(rank.index, handed=key, handed_times=rank.handed_times + 1, deadline=None)
    if rank.anew and not rank.quiet:  # nobody will report its end, so its node looks for it
        draft.set(rank.index, task_status=TaskStatus.TERMINATED)
    elif rank.node_status is NodeStatus.AVAILABLE and rank.fit is (rank.deadline is not None):
        draft.set(rank.index, deadline=None if rank.fit else draft.now + draft.policy.reboot_timeout)


def restarting(draft: Draft) -> None:
    """RESTARTING: all tasks start, or none stays."""
    if rank := _first(draft, Exit.NEVER_STARTED):
        end(
            draft,
            JobStatus.FAILED,
            f"rank {rank.index} on {rank.node} could not be started again: {rank.exit_reason}",
        )
    if draft.ending is not None:
        _close_when_quiet(draft)
    elif all(r.task_status is not None or r.exit is Exit.LOST for r in draft.ranks):
        lost = [r for r in draft.ranks if r.exit is Exit.LOST and not r.ended]
        draft.move(
            JobStatus.IN_PROGRESS,
            f"lost {causes.names(lost)} while starting again"
            if lost
            else f"every rank has been started again (attempt {draft.attempt})",
        )
        budget.attempt_started(draft)


def over(draft: Draft) -> None:
    """A final state never changes by itself."""


JOINT: dict[JobStatus, Callable[[Draft], None]] = {
    JobStatus.IN_PROGRESS: running,
    JobStatus.PENDING_HEALTHCHECK: examined,
    JobStatus.PENDING_RESTART: awaited,
    JobStatus.RESTARTING: restarting,
    JobStatus.COMPLETE: over,
    JobStatus.FAILED: over,
    JobStatus.USER_STOPPED: over,
}


def _close_when_quiet(draft: Draft) -> None:
    """Nodes are given back only when nothing of the job can be running on them."""
    if draft.ending is not None and all(rank.quiet for rank in draft.ranks):
        _close(
            draft,
            draft.ending.status,
            draft.ending.why,
            causes.say(r.exit_reason for r in draft.ranks if r.exit is not Exit.STOPPED_BY_US),
        )


def _close(draft: Draft, status: JobStatus, why: str, evidence: str = "") -> None:
    """The end: nodes are released, and people are told if one of them is needed."""
    for rank in list(draft.ranks):
        if rank.node_status not in _KEEP:
            draft.node(rank.index, NodeStatus.AVAILABLE, "its job ended")
        draft.set(rank.index, deadline=None)
    draft.ending = None
    draft.outcome = why
    draft.move(status, why, evidence)
    silent = [r for r in draft.ranks if r.exit is Exit.LOST and r.node_status is NodeStatus.UNKNOWN]
    if status is JobStatus.FAILED:
        keeps = draft.policy.keeps_evidence
        draft.order(messages.job_failed(draft.id, draft.attempt, why, draft.ranks, keeps_evidence=keeps))
    elif silent:
        draft.order(messages.node_unresponsive(draft.id, silent))


def _first(draft: Draft, *kinds: Exit) -> Rank | None:
    return next((r for r in draft.ranks if r.exit in kinds), None)
