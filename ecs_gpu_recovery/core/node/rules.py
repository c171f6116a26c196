"""The rules of a node that answers for itself: what a single fact changes, and what then follows.

While a job holds it, the job record is the truth: here only sightings and holds are kept then. Once the job has handed
it over, it is repaired and let back in by these rules, and the job waits to hear what became of it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from .. import examination, keys, sighting
from ..errors import Refused
from ..events import (
    CheckRefused,
    CheckStarted,
    FaultSeen,
    HandedOver,
    NodeAsked,
    NodeChecked,
    NodeLeaving,
    NodePulse,
    NodeReplaced,
    NodeSeen,
    OldTaskEnded,
    PermitWithheld,
    RebootFailed,
    RebootProven,
    Tick,
)
from ..guard import open_fault
from ..model import Leave, NodeStatus, Notice, Verdict
from ..node_record import WHOLE_JOB, WITHIN, Hold, Node, Pulse, Wrote
from . import repair, replacement
from .draft import NodeDraft

#: What its rank wrote and what the whole job did is two; where the rank is not known, some of the last to write.
_MOST_WROTE = 4

#: For so long the record of a machine that is gone is kept. What is held against a node counts no longer either.
FORGOTTEN_AFTER = WITHIN
ASKS = ("drain", "move", "release", "check", "reboot", "spare", "unspare")


def asked(d: NodeDraft, ev: NodeAsked) -> None:
    """A person's word. Each is granted whole or refused with the reason."""
    if ev.ask not in ASKS:
        raise Refused(f"a node can be asked to {', '.join(ASKS)}; not to {ev.ask}")
    if ev.ask in ("spare", "unspare"):
        _spare(d, ev)
    else:
        asks = {"drain": _drain, "move": _move, "release": _release, "check": _check, "reboot": _reboot}
        asks[ev.ask](d, ev)


def _spare(d: NodeDraft, ev: NodeAsked) -> None:
    """Kept for ranks that lose their node, or no longer. A job that runs on it is left alone."""
    d.set(spare=ev.ask == "spare")
    d.say(f"{'kept as a spare' if d.node.spare else 'no longer kept as a spare'}, says {ev.by}", ev.why)


def _drain(d: NodeDraft, ev: NodeAsked) -> None:
    """No new job gets it. A job that runs on it is left alone."""
    d.set(hold=Hold(by=ev.by, why=ev.why, at=ev.at))
    d.say(f"drained by {ev.by}", ev.why)


def _move(d: NodeDraft, ev: NodeAsked) -> None:
    """The same, and a job that runs on it goes to another node, if it may and there is one."""
    _drain(d, ev)
    _leaves(d, Leave(notice=Notice.PERSON, why=f"{ev.by}: {ev.why}", at=ev.at))


def _leaves(d: NodeDraft, leave: Leave | None) -> None:
    old = d.node.leave
    d.set(leave=leave and sighting.after(old, leave))
    sighting.note_leave(d, d.name, d.node.status, old, d.node.leave)


def node_leaving(d: NodeDraft, ev: NodeLeaving) -> None:
    """EC2 will take it away, or may. No job gets it; the one that has it hears so."""
    _leaves(d, ev.leave)


def _release(d: NodeDraft, ev: NodeAsked) -> None:
    """Back into use, on a person's word. It lifts a drain and a failure, and nothing is held against it any more.
    What a person has done to it nobody knows: it is examined like one that is new."""
    given_up = d.node.job_id and d.node.own and d.node.status is NodeStatus.FAILED
    if d.node.job_id and d.node.hold is None and d.node.leave is None and not given_up:
        raise Refused(
            f"{d.node.name} is in use by job {d.node.job_id} and not drained: there is nothing to release"
        )
    out_of_use = d.node.status in (NodeStatus.FAILED, NodeStatus.UNKNOWN)
    given_back = out_of_use or d.node.hold is not None or d.node.leave is not None
    d.set(hold=None, leave=None, condemned=())
    d.say(f"released by {ev.by}", ev.why)
    if given_up:  # its job still waits for a node, and gets this one
        d.well(f"released by {ev.by}", ev.why)
        d.set(verdict=None, findings="")
    elif out_of_use and not d.node.job_id:
        d.move(NodeStatus.AVAILABLE, f"released by {ev.by}", ev.why)
        d.set(verdict=None, findings="", deadline=None, away_since=None)
    if given_back and not d.node.job_id and d.policy.admission_check:
        d.set(fresh=True, passed_at=None)


def _free(d: NodeDraft, ask: str) -> None:
    if d.node.job_id:
        raise Refused(
            f"{d.node.name} is in use by job {d.node.job_id}: stop the job before you {ask} the node"
        )
    if d.node.status in (NodeStatus.PENDING_HEALTHCHECK, NodeStatus.REBOOTING):
        raise Refused(f"{d.node.name} is {d.node.status}: wait until it has finished")


def _check(d: NodeDraft, ev: NodeAsked) -> None:
    _free(d, "check")
    asked = d.node.status is NodeStatus.FAILED
    _examine(d, f"check asked for by {ev.by}", ev.why, ev.level)
    d.set(asked=asked)


def _examine(d: NodeDraft, why: str, evidence: str = "", level: str = "") -> None:
    """A new question: what a reboot of before did or did not cure is not what it asks."""
    d.move(NodeStatus.PENDING_HEALTHCHECK, why, evidence)
    d.set(rebooted=False, suspected="", level=level, asked=False)
    examination.begin(d)


def _reboot(d: NodeDraft, ev: NodeAsked) -> None:
    _free(d, "reboot")
    errand = d.node.errands + 1
    d.move(NodeStatus.REBOOTING, f"reboot asked for by {ev.by}", ev.why)
    d.set(errands=errand)
    repair.order(d, keys.node_reboot(d.name, errand))


def handed_over(d: NodeDraft, ev: HandedOver) -> None:
    """Its job needs it repaired, or misses it. A GPU fault is held against it; a lost node is only waited for."""
    if d.node.job_id != ev.job or d.node.handed == ev.key:
        return
    d.set(
        handed=ev.key,
        verdict=ev.verdict,
        findings=ev.findings,
        task=ev.task,
        anew=ev.anew,
        level=ev.level,
        salt=ev.salt,
        first=ev.first,
        deadline=d.now + d.policy.reboot_timeout,
        passed_at=None,
    )
    if ev.verdict in (Verdict.REBOOT, Verdict.REPLACE):
        repair.condemn(d, ev.key, ev.verdict, ev.findings)


def old_task_ended(d: NodeDraft, ev: OldTaskEnded) -> None:
    """Nothing of the job that handed it over runs there any more."""
    if ev.key == d.node.handed:
        d.set(task="")


def check_started(d: NodeDraft, ev: CheckStarted) -> None:
    """Note the check's id, so that it can be stopped."""
    if examination.awaited(d, 0, ev):
        examination.begun(d, 0, ev)


def check_refused(d: NodeDraft, ev: CheckRefused) -> None:
    """What passes is waited for; anything else is a check without an answer."""
    examination.refused(d, 0, ev)


def node_checked(d: NodeDraft, ev: NodeChecked) -> None:
    """Keep the verdict. Healthy: free again. A fault that a reboot may cure: repaired. A worse one is a person's."""
    if examination.awaited(d, 0, ev):
        examination.answered(d, 0, ev)


def reboot_proven(d: NodeDraft, ev: RebootProven) -> None:
    """The boot id changed for our order. It is used again once it is connected with all its GPUs."""
    repair.proven(d, ev)


def reboot_failed(d: NodeDraft, ev: RebootFailed) -> None:
    """The order was refused or did not work: a person must look at the node."""
    if repair.failed(d, ev):
        reason = f"{d.node.absence}; {ev.reason}" if d.node.missed else ev.reason
        d.fail(repair.said(d, "the reboot could not be carried out"), reason)


def node_replaced(d: NodeDraft, ev: NodeReplaced) -> None:
    """Another machine has come for its own, which was taken away."""
    replacement.succeeded(d, ev)


def permit_withheld(d: NodeDraft, ev: PermitWithheld) -> None:
    """Its reboot waits for a permit, waits for a new look at the node first, or is not to be. Or a fault of it, that
    nobody repairs, has frozen the fleet."""
    repair.withheld(d, ev)


def node_seen(d: NodeDraft, ev: NodeSeen) -> None:
    """Keep what is new. Silence beyond the limit is judged by `tick`."""
    if ev.succeeds(d.node) and d.node.own and _can_be_met(d, ev):  # a job that holds it decides by itself
        d.say(f"registered again as {ev.instance.rpartition('/')[2]}")
        if ev.host != d.node.host:
            replacement.taken_over(d)
        ip = ev.address if ev.host != d.node.host else d.node.ip
        another = bool(d.node.job_id) and ev.host != d.node.host
        anew = d.node.anew or another or bool(d.node.task)
        d.set(**sighting.registered_anew(d.node, ev, d.at), ip=ip, anew=anew)
    changes = sighting.changes(d.node, ev, d.now)
    if changes is None:
        return
    if not d.node.gpus and ev.gpus:
        changes["gpus"] = ev.gpus
    if ev.kind:
        changes["kind"] = ev.kind
    if ev.spare is not None:
        changes["spare"] = ev.spare
    if sighting.says_nothing_new(d.node, ev, d.node.status, changes):
        return
    if changes["boot_id"] != d.node.boot_id:
        changes["booted_at"] = d.now
    sighting.note_leave(d, d.name, d.node.status, d.node.leave, changes["leave"])
    d.set(**changes, seen_version=max(ev.version, d.node.seen_version))
    if ev.gone and d.node.own and d.node.status is NodeStatus.AVAILABLE:
        d.move(NodeStatus.UNKNOWN, ev.why or "the instance is gone")
    if ev.gone:
        replacement.gone(d)


def _can_be_met(d: NodeDraft, ev: NodeSeen) -> bool:
    """The others of a gang meet at the address of its first node, so it must be known where that is now."""
    waited_for = bool(d.node.job_id) and d.node.first
    return not waited_for or ev.host == d.node.host or bool(ev.address) or not d.node.ip


def fault_seen(d: NodeDraft, ev: FaultSeen) -> None:
    """Evidence for whoever reads the timeline. If it is grave and no job holds the node, a check is to judge it."""
    news = sighting.note_fault(d, d.name, d.node.status, ev)
    if news and not ev.application:
        d.set(passed_at=None)
    if news and ev.grave and not _before_the_boot(d, ev):
        missed = d.node.own and d.node.status is NodeStatus.UNKNOWN  # its job, if any, waits for it
        d.set(suspected=ev.evidence if missed or not d.node.job_id else d.node.suspected)


def _before_the_boot(d: NodeDraft, ev: FaultSeen) -> bool:
    """A boot may have cured it. Boots have no order but their time, and a node's own clock may be wrong."""
    this_boot = bool(ev.boot_id) and ev.boot_id == d.node.boot_id
    return not this_boot and d.node.booted_at is not None and ev.at <= d.node.booted_at


def node_pulse(d: NodeDraft, ev: NodePulse) -> None:
    """Keep the newest. Its clock may be wrong: what seems to come from the future is of now. How long it has been so,
    the node measures itself. On shared storage its watch sees the files of all ranks; the record keeps its own."""
    at, node = min(ev.at, d.now), d.node
    if node.pulse is not None and node.pulse.at >= at:
        return

    def own(one: Wrote) -> bool:
        return one.job == node.job_id and (node.rank is None or one.rank in (node.rank, WHOLE_JOB))

    def ours(then: datetime) -> datetime:
        return at - max(ev.at - then, timedelta(0))

    wrote = [replace(one, at=ours(one.at)) for one in ev.wrote if own(one)]
    d.set(
        pulse=Pulse(
            state=ev.state,
            since=ours(ev.since),
            at=at,
            trained=ev.trained,
            what=ev.what[:300],
            wrote=tuple(wrote[:_MOST_WROTE]),
        )
    )


def tick(d: NodeDraft, ev: Tick) -> None:
    """Look at the deadline and the absence."""
    node = d.node
    lost_at = None if node.away_since is None else node.away_since + d.policy.node_lost_after
    if node.status is NodeStatus.AVAILABLE and node.away_since is not None and lost_at and d.now >= lost_at:
        d.move(NodeStatus.UNKNOWN, f"not heard from since {node.away_since.isoformat(timespec='seconds')}")
    if node.deadline is None or d.now < node.deadline:
        return
    if d.unsent(node.reboot_key, d.check_key()):
        d.set(deadline=d.next_look)
        return
    d.set(deadline=None)
    if node.status is NodeStatus.REBOOTING:
        sent = d.pending(node.reboot_key) is None
        d.drop(node.reboot_key)  # one that was never sent must not come later, when the node is in use again
        if node.being_replaced:
            d.fail(replacement.overdue(node))
        else:
            repair.not_back(d, sent=sent)
    elif node.status is NodeStatus.PENDING_HEALTHCHECK:
        examination.ran_out(d)
    elif node.status is NodeStatus.UNKNOWN:
        d.fail(replacement.overdue(node) if node.being_replaced else node.absence)


def forgotten_at(node: Node) -> datetime | None:
    """From when on nobody will ask any more for a node whose machine is gone for good."""
    since = node.away_since if node.retired and not node.outbox else None
    return None if since is None else since + FORGOTTEN_AFTER


def settle(d: NodeDraft) -> None:
    """What follows from where the node stands now. A job that holds it concludes by itself."""
    node = d.node
    if not node.own:
        return
    if node.status is NodeStatus.REBOOTING and node.rebooted and node.fit:
        if d.policy.post_reboot_check:
            d.move(NodeStatus.PENDING_HEALTHCHECK, "rebooted; examined once more")
            examination.begin(d)
        else:
            d.well("rebooted, connected, all GPUs there")
            d.set(verdict=None, findings="")
    elif node.status is NodeStatus.UNKNOWN and node.fit and node.anew:
        _examine(d, "registered again; examined before it is used")
    elif node.status is NodeStatus.UNKNOWN and node.fit and node.job_id and node.suspected and not node.task:
        _examine(d, "a fault was seen on it; examined before its job gets it", node.suspected)
    elif node.status is NodeStatus.UNKNOWN and node.fit and not node.task:
        d.well("heard from for the first time" if _never_met(node) else "heard from again")
    elif node.status is NodeStatus.PENDING_HEALTHCHECK and node.verdict is not None and not repair.held(d):
        _examined(d, node.verdict)
    if d.node.status is not NodeStatus.AVAILABLE or not _may_be_examined(d):
        return
    if d.node.fresh and d.policy.admission_check:
        _examine(d, "new, or back from a person: examined before a job gets it")
    elif d.node.suspected:
        seen = d.node.suspected.partition(" | ")[0]
        _examine(d, "a fault was seen on it; examined before a job gets it", seen)


def _never_met(node: Node) -> bool:
    """Whether nobody has heard from it since it was entered."""
    return node.fresh and all(line.before == line.after for line in node.timeline)


def _may_be_examined(d: NodeDraft) -> bool:
    """Not in a person's hands, nor in a job's. One that is away is examined when it is back."""
    return d.node.connected and d.node.hold is None and not d.node.job_id


def _examined(d: NodeDraft, verdict: Verdict) -> None:
    """Only a healthy node is let back from a repair. Of any other, a check that gave no answer proves nothing, unless
    something may still run there that nobody reports."""
    found = d.node.findings
    if verdict is Verdict.HEALTHY:
        d.set(passed_at=d.now)
        noted = found.removeprefix("no GPU fault found").lstrip("; ")  # and not the same twice
        d.well("the check found no GPU fault", noted)
    elif d.node.rebooted:
        repair.not_cured(d, verdict, found)
    elif repair.examined_again(d):
        return
    elif verdict is not Verdict.INCONCLUSIVE:
        repair.begin(d)
    elif open_fault(d.node) is not None:
        d.fail(repair.said(d, "it could not be examined again before its reboot"), found)
    elif d.node.asked:
        d.fail("the check gave no answer", found)
    elif d.node.anew:
        d.fail("it registered again, and its old task may still run there", found)
    elif d.node.fresh:
        d.well("not tested: the check gave no answer", found)
    else:
        d.well("the check gave no answer: nothing is proven against it", found)
