"""A node that no job holds, for tests of its rules."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ecs_gpu_recovery.core.effects import CheckNode, Effect
from ecs_gpu_recovery.core.events import (
    CheckStarted,
    Fact,
    NodeAsked,
    NodeChecked,
    NodeSeen,
    OrderSent,
    RebootProven,
    Tick,
)
from ecs_gpu_recovery.core.model import NodeStatus, Verdict
from ecs_gpu_recovery.core.node.table import decide_node
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.core.policy import Policy
from tests.core.story import POLICY, T0, some_nodes

AVAILABLE, UNKNOWN, FAILED = NodeStatus.AVAILABLE, NodeStatus.UNKNOWN, NodeStatus.FAILED
UNDER_TEST, REBOOTING = NodeStatus.PENDING_HEALTHCHECK, NodeStatus.REBOOTING


class Machine:
    """A node and its clock; `orders` holds what the last fact caused."""

    def __init__(self, policy: Policy = POLICY, **about: Any) -> None:
        self.node: Node = some_nodes(1, **about)[0]
        self.policy, self.now = policy, T0
        self.orders: list[Effect] = []

    def hears(self, *facts: Fact) -> Machine:
        for fact in facts:
            step = decide_node(self.node, fact, self.policy)
            assert step.changed is (step.node is not self.node)
            self.node, self.orders = step.node, [order.effect for order in step.orders]
        return self

    def asked(self, ask: str, why: str = "because") -> Machine:
        return self.hears(NodeAsked(at=self.now, node="n0", ask=ask, by="ann", why=why))

    def after(self, wait: timedelta) -> Machine:
        """What was ordered is sent, time passes, and the sweeper looks."""
        for order in self.node.outbox:
            self.hears(
                CheckStarted(at=self.now, node="n0", check_id="c", check_try=order.effect.check_try)
                if isinstance(order.effect, CheckNode)
                else OrderSent(at=self.now, key=order.key)
            )
        return self.sweeps_after(wait)

    def sweeps_after(self, wait: timedelta) -> Machine:
        self.now += wait
        return self.hears(Tick(at=self.now))

    def seen(self, *, connected: bool = True, **about: Any) -> Machine:
        return self.hears(NodeSeen(at=self.now, node="n0", connected=connected, **about))

    def check_says(self, verdict: Verdict, findings: str = "") -> Machine:
        return self.hears(
            NodeChecked(
                at=self.now,
                node="n0",
                check_id=self.node.check_id,
                check_try=self.node.check_try,
                verdict=verdict,
                findings=findings,
            )
        )

    def reboots(self) -> Machine:
        return self.hears(RebootProven(at=self.now, node="n0", key=self.node.reboot_key))

    @property
    def status(self) -> NodeStatus:
        return self.node.status

    @property
    def outbox(self) -> list[Effect]:
        return [order.effect for order in self.node.outbox]
