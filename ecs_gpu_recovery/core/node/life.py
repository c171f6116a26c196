"""A node that no job holds is its own small aggregate: drained, released, checked, rebooted, lost, found.

While a job holds it, the job record is the truth: here only sightings and holds are kept then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from .. import edges, keys, messages
from ..effects import CheckNode, Effect, LabelNodes, Order, RebootNode, StopTask
from ..errors import Bug, Refused
from ..events import (
    CheckRefused,
    CheckStarted,
    Fact,
    FaultSeen,
    NodeAsked,
    NodeChecked,
    NodeSeen,
    OrderFailed,
    OrderSent,
    RebootFailed,
    RebootProven,
    Tick,
)
from ..exits import is_passing, our_reason
from ..model import Entry, Hold, Node, NodeStatus, Verdict
from ..policy import Policy
from ..timeline import archive, shortened

ASKS = ("drain", "release", "check", "reboot")


@dataclass(frozen=True, slots=True)
class NodeStep:
    node: Node
    orders: tuple[Order, ...] = ()
    changed: bool = False


class NodeDraft:
    """A node while it is being decided on; `decide_node` alone holds one."""

    def __init__(self, node: Node, at: datetime, policy: Policy) -> None:
        self.node, self.at, self.policy = node, at, policy
        self._old = node
        self._added: dict[str, None] = {}

    def set(self, **changes: Any) -> None:
        self.node = replace(self.node, **changes)

    def note(self, before: str, after: str, why: str, evidence: str = "", at: datetime | None = None) -> None:
        entry = Entry(
            at=at or self.at,
            subject=self.node.name,
            before=before,
            after=after,
            why=why,
            evidence=evidence,
            policy=self.policy.version,
        )
        self.set(timeline=(*self.node.timeline, entry))

    def move(self, status: NodeStatus, why: str, evidence: str = "") -> None:
        before = self.node.status
        if before is status:
            return
        if (before.value, status.value) not in edges.NODE:
            raise Bug(f"node {self.node.name}: {before} -> {status} is no move that exists")
        self.note(before, status, why, evidence)
        self.set(status=status)

    def fail(self, why: str, evidence: str = "") -> None:
        """Out of use until a person releases it; the person is told."""
        self.move(NodeStatus.FAILED, why, evidence)
        self.set(deadline=None, findings=evidence or why)
        self.order(
            messages.node_failed(
                self.node.name,
                f"{why}: {evidence}" if evidence else why,
                self.node.verdict,
                self.node.errands,
            )
        )

    def order(self, effect: Effect) -> None:
        self._added[effect.key] = None
        self.set(outbox=(*self.node.outbox, Order(effect=effect, due=self.at + self.policy.lease)))

    def pending(self, key: str) -> Order | None:
        return next((order for order in self.node.outbox if order.key == key), None)

    def drop(self, key: str) -> None:
        self.set(outbox=tuple(order for order in self.node.outbox if order.key != key))
        self._added.pop(key, None)

    def postpone(self, key: str, error: str) -> None:
        self.set(
            outbox=tuple(
                replace(o, due=self.at + self.policy.backoff(o.tries), tries=o.tries + 1, error=error)
                if o.key == key
                else o
                for o in self.node.outbox
            )
        )
        self._added.pop(key, None)

    @property
    def check_key(self) -> str:
        return keys.node_check(self.node)

    def order_check(self, level: str) -> None:
        self.set(
            check_try=self.node.check_try + 1,
            check_id="",
            verdict=None,
            deadline=self.at + self.policy.check_timeout,
        )
        self.order(
            CheckNode(
                key=self.check_key,
                token=keys.token(self.check_key),
                node=self.node.name,
                level=level,
                check_try=self.node.check_try,
            )
        )

    def finish(self) -> NodeStep:
        if self.node == self._old:
            return NodeStep(self._old)
        version = self._old.version + 1
        if self.policy.labels and self.node.status is not self._old.status:
            for order in [o for o in self.node.outbox if isinstance(o.effect, LabelNodes)]:
                self.drop(order.key)
            key = keys.labels(keys.record_of_node(self.node.name), version)
            self.order(LabelNodes(key=key, nodes=(self.node.name,)))
        kept, gone = shortened(self.node.timeline)
        if gone:
            self.set(timeline=kept)
            self.order(archive(keys.archive(keys.record_of_node(self.node.name), version), gone))
        new = replace(self.node, updated_at=max(self.at, self._old.updated_at), version=version)
        return NodeStep(new, tuple(o for o in new.outbox if o.key in self._added), changed=True)


def asked(d: NodeDraft, ev: NodeAsked) -> None:
    """A person's word. Each is granted whole or refused with the reason."""
    if ev.ask not in ASKS:
        raise Refused(f"a node can be asked to {', '.join(ASKS)}; not to {ev.ask}")
    {"drain": _drain, "release": _release, "check": _check, "reboot": _reboot}[ev.ask](d, ev)


def _drain(d: NodeDraft, ev: NodeAsked) -> None:
    """No new job gets it. A job that runs on it is left alone."""
    d.set(hold=Hold(by=ev.by, why=ev.why, at=ev.at))
    d.note(d.node.status, d.node.status, f"drained by {ev.by}", ev.why)


def _release(d: NodeDraft, ev: NodeAsked) -> None:
    """Back into use, on a person's word. It lifts a drain and a failure."""
    if d.node.job_id and d.node.hold is None:
        raise Refused(
            f"{d.node.name} is in use by job {d.node.job_id} and not drained: there is nothing to release"
        )
    d.set(hold=None)
    d.note(d.node.status, d.node.status, f"released by {ev.by}", ev.why)
    if not d.node.job_id and d.node.status in (NodeStatus.FAILED, NodeStatus.UNKNOWN):
        d.move(NodeStatus.AVAILABLE, f"released by {ev.by}", ev.why)
        d.set(verdict=None, findings="", deadline=None, away_since=None)


def _free(d: NodeDraft, ask: str) -> None:
    if d.node.job_id:
        raise Refused(
            f"{d.node.name} is in use by job {d.node.job_id}: stop the job before you {ask} the node"
        )
    if d.node.status in (NodeStatus.PENDING_HEALTHCHECK, NodeStatus.REBOOTING):
        raise Refused(f"{d.node.name} is {d.node.status}: wait until it has finished")


def _check(d: NodeDraft, ev: NodeAsked) -> None:
    _free(d, "check")
    d.move(NodeStatus.PENDING_HEALTHCHECK, f"check asked for by {ev.by}", ev.why)
    d.set(checks_spent=0, findings="")
    d.order_check(ev.level)


def _reboot(d: NodeDraft, ev: NodeAsked) -> None:
    _free(d, "reboot")
    errand = d.node.errands + 1
    key = keys.node_reboot(d.node.name, errand)
    d.move(NodeStatus.REBOOTING, f"reboot asked for by {ev.by}", ev.why)
    d.set(errands=errand, reboot_key=key, rebooted=False, deadline=d.at + d.policy.reboot_timeout)
    d.order(RebootNode(key=key, node=d.node.name))


def check_started(d: NodeDraft, ev: CheckStarted) -> None:
    """Note the check's id, so that it can be stopped."""
    if ev.check_try == d.node.check_try and d.pending(d.check_key):
        d.drop(d.check_key)
        d.set(check_id=ev.check_id)


def check_refused(d: NodeDraft, ev: CheckRefused) -> None:
    """What passes is waited for; anything else is a check without an answer."""
    if ev.check_try != d.node.check_try or d.pending(d.check_key) is None:
        return
    if is_passing(ev.reason) and d.node.deadline is not None and d.at < d.node.deadline:
        d.postpone(d.check_key, ev.reason)
        return
    d.drop(d.check_key)
    _no_answer(d, f"the check could not be started: {ev.reason}")


def node_checked(d: NodeDraft, ev: NodeChecked) -> None:
    """Healthy: free again. Bad: out of use until a person has looked; nobody asked for a reboot."""
    if (
        d.node.job_id
        or ev.check_try != d.node.check_try
        or d.node.status is not NodeStatus.PENDING_HEALTHCHECK
    ):
        return
    if d.node.check_id and ev.check_id and d.node.check_id != ev.check_id:
        return  # the same try of a job that held the node
    d.drop(d.check_key)
    if ev.verdict is Verdict.INCONCLUSIVE:
        _no_answer(d, ev.findings or "the check could not tell")
        return
    d.set(verdict=ev.verdict, findings=ev.findings, deadline=None)
    if ev.verdict is Verdict.HEALTHY:
        d.move(NodeStatus.AVAILABLE, "the check found no GPU fault", ev.findings)
    else:
        d.set(errands=d.node.errands + 1)
        d.fail(f"the check says {ev.verdict}", ev.findings)


def _no_answer(d: NodeDraft, why: str) -> None:
    d.set(checks_spent=d.node.checks_spent + 1, findings=why)
    if d.node.checks_spent < d.policy.check_tries:
        d.order_check("quick")
    else:
        d.set(verdict=Verdict.INCONCLUSIVE, deadline=None)
        d.move(NodeStatus.AVAILABLE, "the check gave no answer: nothing is proven against it", why)


def reboot_proven(d: NodeDraft, ev: RebootProven) -> None:
    """The boot id changed for our order. It is used again once it is connected with all its GPUs."""
    if d.node.status is NodeStatus.REBOOTING and ev.key == d.node.reboot_key:
        d.drop(ev.key)
        d.set(rebooted=True)


def reboot_failed(d: NodeDraft, ev: RebootFailed) -> None:
    """The order was refused or did not work: a person must look at the node."""
    if d.node.status is NodeStatus.REBOOTING and not d.node.rebooted and ev.key == d.node.reboot_key:
        d.drop(ev.key)
        d.set(errands=d.node.errands + 1)
        d.fail("the reboot could not be carried out", ev.reason)


def node_seen(d: NodeDraft, ev: NodeSeen) -> None:
    """Keep what is new. Silence beyond the limit is judged by `tick`."""
    node = d.node
    if ev.succeeds(node) and not node.job_id:  # a job that holds it decides by itself
        d.note(node.status, node.status, f"registered again as {ev.instance.rpartition('/')[2]}")
        d.set(instance=ev.instance, registered_at=ev.registered or d.at, seen_version=0)
        node = d.node
    if not ev.concerns(node) or (ev.version and ev.version < node.seen_version):
        return
    there = ev.connected and not ev.gone
    changes = {
        "connected": there,
        "away_since": None if there else node.away_since or d.at,
        "boot_id": ev.boot_id or node.boot_id,
        "gpus_seen": node.gpus_seen if ev.gpus is None else ev.gpus,
    }
    if not node.gpus and ev.gpus:
        changes["gpus"] = ev.gpus
    if all(getattr(node, name) == value for name, value in changes.items()) and not ev.gone:
        return
    d.set(**changes, seen_version=max(ev.version, node.seen_version))
    if ev.gone and not node.job_id and node.status is NodeStatus.AVAILABLE:
        d.move(NodeStatus.UNKNOWN, ev.why or "the instance is gone")


def fault_seen(d: NodeDraft, ev: FaultSeen) -> None:
    """Evidence for whoever reads the timeline; the verdict stays with the check."""
    if not any(e.at == ev.at and e.evidence == ev.evidence for e in d.node.timeline):
        d.note(d.node.status, d.node.status, ev.noted_as, ev.evidence, ev.at)


def tick(d: NodeDraft, ev: Tick) -> None:
    """Look at the deadline and the absence. A job that holds the node looks itself."""
    node = d.node
    if node.job_id:
        return
    if (
        node.status is NodeStatus.AVAILABLE
        and node.away_since is not None
        and d.at >= node.away_since + d.policy.node_lost_after
    ):
        d.move(NodeStatus.UNKNOWN, f"not heard from since {node.away_since.isoformat(timespec='seconds')}")
    if node.deadline is not None and d.at >= node.deadline:
        d.set(deadline=None)
        if node.status is NodeStatus.REBOOTING:
            d.set(errands=node.errands + 1)
            d.drop(
                node.reboot_key
            )  # one that was never sent must not come later, when the node is in use again
            d.fail("did not come back from its reboot in time")
        elif node.status is NodeStatus.PENDING_HEALTHCHECK:
            d.drop(d.check_key)
            d.order(
                StopTask(
                    key=keys.check_stop(d.check_key),
                    node=node.name,
                    task_id=node.check_id,
                    token=keys.token(d.check_key),
                    reason=our_reason(keys.record_of_node(node.name), 0, "the check did not answer in time"),
                )
            )
            _no_answer(d, "the check did not answer in time")


def order_sent(d: NodeDraft, ev: OrderSent) -> None:
    """Take it out of the outbox. A check stays there until it is known."""
    order = d.pending(ev.key)
    if order is not None and not isinstance(order.effect, CheckNode):
        d.drop(ev.key)


def order_failed(d: NodeDraft, ev: OrderFailed) -> None:
    """Try again later. An order that keeps failing is told to a person, once."""
    order = d.pending(ev.key)
    if order is None:
        return
    d.postpone(ev.key, ev.error)
    if order.tries + 1 == d.policy.alarm_tries:
        d.note(d.node.status, d.node.status, "an order keeps failing", f"{ev.key}: {ev.error}")
        d.order(messages.stuck_order(d.node.name, ev.key, ev.error))


def _settle(d: NodeDraft) -> None:
    """What follows from where the node stands now."""
    node = d.node
    fit = node.connected and (not node.gpus or node.gpus_seen is None or node.gpus_seen >= node.gpus)
    if node.job_id or not fit:
        return
    if node.status is NodeStatus.REBOOTING and node.rebooted:
        if d.policy.post_reboot_check:
            d.move(NodeStatus.PENDING_HEALTHCHECK, "rebooted; examined once more")
            d.set(checks_spent=0, findings="")
            d.order_check("quick")
        else:
            d.move(NodeStatus.AVAILABLE, "rebooted, connected, all GPUs there")
            d.set(deadline=None, verdict=None, findings="")
    elif node.status is NodeStatus.UNKNOWN:
        d.move(NodeStatus.AVAILABLE, "heard from again")
        d.set(deadline=None)


NODE_TABLE: dict[type[Fact], Callable[[NodeDraft, Any], None]] = {
    NodeAsked: asked,
    CheckStarted: check_started,
    CheckRefused: check_refused,
    NodeChecked: node_checked,
    RebootProven: reboot_proven,
    RebootFailed: reboot_failed,
    NodeSeen: node_seen,
    FaultSeen: fault_seen,
    Tick: tick,
    OrderSent: order_sent,
    OrderFailed: order_failed,
}


def decide_node(node: Node, ev: Fact, policy: Policy) -> NodeStep:
    """What this fact means for a node."""
    rule = NODE_TABLE.get(type(ev))
    if rule is None:
        raise Bug(f"{type(ev).__name__} is not an event of a node")
    draft = NodeDraft(node, min(ev.at, ev.clock(node.updated_at)), policy)  # a node's own clock is not ours
    rule(draft, ev)
    _settle(draft)
    return draft.finish()
