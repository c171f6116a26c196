"""The repair of a node: a fault is held against it, and a reboot is ordered once, and believed when it is proven."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from .. import examination, keys, messages
from ..effects import RebootNode
from ..events import PermitWithheld, RebootFailed, RebootProven
from ..guard import REBOOT, REPLACE, Answer, open_fault
from ..model import NodeStatus, Verdict
from ..node_record import TOO_OFTEN, WITHIN, Condemnation, Node
from . import replacement
from .draft import NodeDraft

#: How the timeline tells of a reboot that waits for a permit, or for others to leave; of these a person is told.
PERMIT = "its reboot waits for a permit"
COMPANY, TOLD = "its reboot waits: somebody else's task runs there", "a person is told that its reboot waits"
COMPANY_LEAVES = timedelta(hours=1)
#: The same of a machine that is to be replaced.
REPLACES = {said: said.replace("reboot", "replacement") for said in (PERMIT, COMPANY, TOLD)}
#: And of a fault that was one too many, though no reboot waits for it.
FROZEN = "one fault too many: the fleet is frozen"


def begin(d: NodeDraft) -> None:
    """An errand of its own: no job waits for the node, whose check found a fault."""
    d.repair_ends("a worse fault was found")
    errand, node = d.node.errands + 1, d.node
    d.set(errands=errand)
    key = keys.node_reboot(d.name, errand)
    condemn(d, key, node.verdict or Verdict.REBOOT, node.findings, asked=node.asked)


def condemn(d: NodeDraft, key: str, verdict: Verdict, findings: str, *, asked: bool = False) -> None:
    """A fault was found. Whether a reboot may cure it, and whether that was tried in vain before, is remembered."""
    times = d.node.faults(d.now) + (not asked)
    often = times >= TOO_OFTEN
    curable = verdict is Verdict.REBOOT
    rung = "" if often else REBOOT if curable else REPLACE if d.policy.may_replace else ""
    entry = Condemnation(at=d.now, verdict=verdict, findings=findings[:300], repair=rung, asked=asked)
    d.set(condemned=d.node.with_fault(entry))
    if rung == REPLACE:
        replacement.begin(d, "the check found a GPU fault that no reboot cures", findings)
    elif not curable and not often:
        d.fail("GPU fault" if d.node.job_id else f"the check says {verdict}", findings)
    elif often:
        d.fail(f"condemned {times} times within {WITHIN.days} days", findings)
    else:
        d.move(NodeStatus.REBOOTING, "the check found a GPU fault that a reboot may cure", findings)
        order(d, key)


def order(d: NodeDraft, key: str) -> None:
    d.set(reboot_key=key, kept="", rebooted=False, deadline=d.now + d.policy.reboot_timeout)
    d.order(RebootNode(key=key, node=d.name))


def held(d: NodeDraft) -> bool:
    """Whether its reboot waits for a permit. Meanwhile nothing else is decided on the node."""
    return d.node.status is NodeStatus.PENDING_HEALTHCHECK and d.pending(d.node.reboot_key) is not None


def said(d: NodeDraft, of_a_reboot: str) -> str:
    """What is told of a node's reboot, or the same of its replacement."""
    return of_a_reboot.replace("reboot", "replacement") if d.node.being_replaced else of_a_reboot


def withheld(d: NodeDraft, ev: PermitWithheld) -> None:
    """It stays where it was examined until there is a permit, however long that takes; people are told once."""
    order, node = d.pending(ev.key), d.node
    if keys.is_condemned(ev.key, node.name):
        _one_too_many(d, ev)
    if order is None or ev.key != node.reboot_key:
        return
    if ev.answer is Answer.REFUSED:
        d.drop(ev.key)
        d.fail(said(d, "its reboot was refused"), ev.why)
    elif ev.answer is Answer.EXAMINE and not d.node.missed:
        d.drop(ev.key)
        d.move(NodeStatus.PENDING_HEALTHCHECK, "waited long for its permit; examined again first", ev.why)
        examination.begin(d)
    else:
        why = COMPANY if ev.answer is Answer.BUSY else PERMIT
        if not held(d):
            d.move(NodeStatus.PENDING_HEALTHCHECK, said(d, why), ev.why)
            d.set(deadline=None)
        _tell_once(d, ev)
        if ev.answer is Answer.EXAMINE:  # no check can tell: held against it is that it was not back in time
            _same_fault(d, renewed=d.now)
        if ev.answer is Answer.BUSY:
            _in_company(d, ev.why)
        d.amend(replace(order, due=d.now + d.policy.backoff_first, tries=max(1, order.tries), error=ev.why))


def unheard(node: Node, ev: PermitWithheld) -> bool:
    """Whether people are to be told of what it waits for, and were not: perhaps nobody could tell when it began."""
    return ev.tell is not None and ev.tell.key != node.told


def _tell_once(d: NodeDraft, ev: PermitWithheld) -> None:
    if ev.tell is not None and unheard(d.node, ev):
        d.set(told=ev.tell.key)
        d.order(ev.tell)


def _one_too_many(d: NodeDraft, ev: PermitWithheld) -> None:
    """Nobody repairs it, so it waits for nothing; but it was the one that froze the fleet, and people are told once."""
    if unheard(d.node, ev):
        d.say(FROZEN, ev.why)
        _tell_once(d, ev)


def _in_company(d: NodeDraft, who: str) -> None:
    """A cluster is shared: what others run there is not ended. If it does not end by itself, a person is told once."""
    booted, waits, told = d.node.booted_at, said(d, COMPANY), said(d, TOLD)
    lines = [entry for entry in d.reported(waits) if booted is None or entry.at > booted]
    if not lines:
        d.say(waits, who)
    elif d.now - lines[0].at >= COMPANY_LEAVES and all(e.at < lines[0].at for e in d.reported(told)):
        d.say(told, who)
        d.set(errands=d.node.errands + 1)
        d.order(messages.node_in_company(d.name, who, said(d, "reboot"), d.node.errands))


def examined_again(d: NodeDraft) -> bool:
    """A fault that waited long is still there: the same order once more. Whether it was that."""
    fault = open_fault(d.node)
    cures = {REBOOT: (Verdict.REBOOT,), REPLACE: (Verdict.REBOOT, Verdict.REPLACE)}
    if fault is None or d.node.rebooted or d.node.verdict not in cures.get(fault.repair, ()):
        return False
    _same_fault(d, at=d.now, findings=d.node.findings[:300])
    d.move(NodeStatus.REBOOTING, "the fault is still there", d.node.findings)
    (replacement.order if fault.repair == REPLACE else order)(d, d.node.reboot_key)
    return True


def _same_fault(d: NodeDraft, **changes: Any) -> None:
    """What is new about the fault that is being repaired. It counts once, whatever is done about it."""
    *before, fault = d.node.condemned
    d.set(condemned=(*before, replace(fault, **changes)))


def not_cured(d: NodeDraft, verdict: Verdict, found: str) -> None:
    """The gate stays closed. One rung up, where there is one; never the same again."""
    if verdict is Verdict.INCONCLUSIVE:
        d.fail("it could not be tested after its reboot", found)
    elif d.policy.may_replace and open_fault(d.node) is not None:
        _same_fault(d, repair=REPLACE)
        replacement.begin(d, "the reboot did not cure it", found)
    else:
        d.fail("the reboot did not cure it", found)


def not_back(d: NodeDraft, *, sent: bool) -> None:
    """The time of its reboot is over: the machine is silent, was not seen to boot, or lacks a GPU. One rung up, too.

    Not for a reboot that was never sent: nobody knows whether it would have cured the fault. Nor for one that a person
    asked for, nor where nobody brings another machine, or the machine is gone already.

    A machine that is back after that is replaced all the same, however long the order waits for its permit. A reboot
    that was not proven in time may yet begin, under the next task; no check can rule that out. Who wants to keep the
    machine refuses the order, and releases the node.
    """
    node, fault = d.node, open_fault(d.node)
    if fault is None or not (sent and node.replaceable and d.policy.may_replace):
        d.fail(node.absence)
        return
    _same_fault(d, repair=REPLACE)
    d.set(verdict=Verdict.LOST)
    replacement.begin(d, node.absence, fault.findings)


def awaited(d: NodeDraft, ev: RebootProven | RebootFailed) -> bool:
    """Whether this tells of the reboot that is waited for."""
    waits = d.node.status is NodeStatus.REBOOTING or held(d)
    return waits and ev.key == d.node.reboot_key


def proven(d: NodeDraft, ev: RebootProven) -> None:
    """The boot id belongs to our order: seen again later, it is no restart under the next task."""
    if awaited(d, ev):
        if (order := d.pending(ev.key)) is not None:
            d.wait_for(order.effect)
        d.drop(ev.key)
        if not d.node.rebooted:
            d.set(rebooted=True, boot_id=ev.boot_id or d.node.boot_id, booted_at=d.now, suspected="")


def failed(d: NodeDraft, ev: RebootFailed) -> bool:
    """Whether it has; a reboot that is proven has not. Its order is withdrawn."""
    if not awaited(d, ev) or d.node.rebooted:
        return False
    d.drop(ev.key)
    return True
