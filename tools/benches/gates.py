"""Does the gate let back in what it should, and nothing else? A node's whole repair through its rules, in virtual time.

Every way into a repair, with everything that may come after the reboot, in every order that news may arrive in. What
each must lead to is written here by hand: a node is used again after a proven reboot, with all its GPUs, when a check
that was asked for since has found it healthy, and in no other case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import permutations

from ecs_gpu_recovery.core.effects import CheckNode
from ecs_gpu_recovery.core.events import (
    CheckStarted,
    Fact,
    FaultSeen,
    HandedOver,
    NodeAsked,
    NodeChecked,
    NodeSeen,
    OrderSent,
    RebootFailed,
    RebootProven,
    Tick,
)
from ecs_gpu_recovery.core.model import NodeStatus, Verdict
from ecs_gpu_recovery.core.node.table import decide_node
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.core.policy import Policy

T0 = datetime(2026, 3, 1, 2, tzinfo=UTC)
GPUS = 8
POLICY = Policy(admission_check=False)
HEALTHY, REBOOT, REPLACE, UNSURE = Verdict.HEALTHY, Verdict.REBOOT, Verdict.REPLACE, Verdict.INCONCLUSIVE
#: What the checks at the gate answer, one after the other; None: nothing at all. Then whether the node is let in.
ANSWERS: tuple[tuple[tuple[Verdict | None, ...], bool], ...] = (
    ((HEALTHY,), True),
    ((UNSURE, HEALTHY), True),
    ((None, HEALTHY), True),
    ((REBOOT,), False),
    ((REPLACE,), False),
    ((UNSURE, UNSURE), False),
    ((UNSURE, REBOOT), False),
    ((UNSURE, REPLACE), False),
    ((UNSURE, None), False),
    ((None, UNSURE), False),
    ((None, REBOOT), False),
    ((None, None), False),
)
#: How the node comes back: with so many GPUs, proven or not, its order failed or not.
RETURNS = ("whole", "a GPU is missing", "not proven", "the order failed", "not at all")
ENTRANCES = (
    "a fault on a free node",
    "a check that a person asked for",
    "a reboot that a person asked for",
    "a job",
)


@dataclass(frozen=True, slots=True)
class Case:
    entrance: str
    returns: str
    order: tuple[str, ...]  #: of what is told of the return
    answers: tuple[Verdict | None, ...]
    opens: bool


def cases() -> Iterator[Case]:
    for entrance in ENTRANCES:
        for order in permutations(("away", "proof", "back", "old answer")):
            for answers, healthy in ANSWERS:
                yield Case(entrance, "whole", order, answers, healthy)
        for returns in RETURNS[1:]:
            yield Case(entrance, returns, ("away", "proof", "back"), (HEALTHY,), False)


class Repair:
    """One node, its clock, and what is told of it."""

    def __init__(self, case: Case) -> None:
        self.case, self.now = case, T0
        held = {"job_id": "j", "status": NodeStatus.PENDING_HEALTHCHECK} if case.entrance == "a job" else {}
        self.node = Node(
            name="n",
            cluster="c",
            created_at=T0,
            updated_at=T0,
            connected=True,
            gpus=GPUS,
            gpus_seen=GPUS,
            **{"status": NodeStatus.AVAILABLE, **held},  # type: ignore[arg-type]
        )

    def hears(self, *facts: Fact) -> None:
        for fact in facts:
            self.node = decide_node(self.node, replace(fact, at=self.now), POLICY, self.now).node

    def passes(self, wait: timedelta) -> None:
        self.now += wait
        self.hears(Tick(at=self.now))

    def checked(self, verdict: Verdict | None, check_try: int | None = None) -> None:
        """What was ordered is sent; the check answers, or its time runs out."""
        for order in self.node.outbox:
            if isinstance(order.effect, CheckNode):
                mine = order.effect.check_try
                self.hears(CheckStarted(at=self.now, node="n", check_id=f"c{mine}", check_try=mine))
        if verdict is None:
            self.passes(POLICY.check_wait("2") + timedelta(minutes=1))
            return
        number = self.node.check_try if check_try is None else check_try
        self.hears(
            NodeChecked(at=self.now, node="n", check_id=f"c{number}", check_try=number, verdict=verdict)
        )

    def begins(self) -> None:
        way = self.case.entrance
        if way == "a fault on a free node":
            self.hears(FaultSeen(at=self.now, node="n", evidence="Xid 79", grave=True))
        elif way == "a job":
            over = HandedOver(
                at=self.now, node="n", job="j", key="j/1/0/reboot", verdict=REBOOT, findings="Xid 79"
            )
            self.hears(over)
        else:
            ask = "reboot" if "reboot" in way else "check"
            self.hears(NodeAsked(at=self.now, node="n", ask=ask, by="ann", why="bench"))
        if self.node.status is NodeStatus.PENDING_HEALTHCHECK:
            self.checked(REBOOT)
        assert self.node.status is NodeStatus.REBOOTING, self.node
        self.hears(OrderSent(at=self.now, key=self.node.reboot_key))

    def returns(self) -> None:
        key, how, old = self.node.reboot_key, self.case.returns, self.node.check_try
        for told in self.case.order:
            self.now += timedelta(seconds=30)
            if told == "away":
                self.hears(NodeSeen(at=self.now, node="n", connected=False))
            elif told == "old answer":  # healthy, says a check of before the reboot
                self.checked(HEALTHY, old)
            elif told == "proof" and how in ("whole", "a GPU is missing"):
                self.hears(RebootProven(at=self.now, node="n", key=key, boot_id="b2"))
            elif told == "proof" and how == "the order failed":
                self.hears(RebootFailed(at=self.now, node="n", key=key, reason="Failed"))
            elif told == "back" and how != "not at all":
                gpus = GPUS - 1 if how == "a GPU is missing" else GPUS
                self.hears(NodeSeen(at=self.now, node="n", connected=True, gpus=gpus))

    def plays(self) -> bool:
        """Whether the node is used again at the end."""
        self.begins()
        self.returns()
        if self.case.returns == "whole":  # whatever came late: the next look shows that it is there
            self.hears(NodeSeen(at=self.now, node="n", connected=True, gpus=GPUS))
        for verdict in self.case.answers:
            if self.node.status is NodeStatus.PENDING_HEALTHCHECK:
                self.checked(verdict)
        for _ in range(4):
            self.passes(POLICY.reboot_timeout + timedelta(minutes=1))
        return self.node.status is NodeStatus.AVAILABLE


def wrong(every: Sequence[Case]) -> list[Case]:
    return [case for case in every if Repair(case).plays() is not case.opens]


def measure() -> dict[str, float]:
    every = list(cases())
    found = wrong(every)
    for case in found:
        print(f"  wrong: {case}")
    return {"gate_cases": len(every), "gate_wrong": len(found)}
