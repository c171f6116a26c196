"""A job and what happens to it, in words. Every step goes through the real `decide`, and the record is checked after each."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ecs_gpu_recovery.core.effects import Effect, Order
from ecs_gpu_recovery.core.events import (
    CheckRefused,
    CheckStarted,
    Fact,
    FaultSeen,
    NodeChecked,
    NodeSeen,
    OrderFailed,
    OrderSent,
    RebootFailed,
    RebootProven,
    StartRefused,
    StopAsked,
    TaskEnded,
    TaskStarted,
    Tick,
)
from ecs_gpu_recovery.core.exits import our_reason
from ecs_gpu_recovery.core.invariants import broken
from ecs_gpu_recovery.core.machine import decide, submit
from ecs_gpu_recovery.core.model import Job, JobSpec, Node, NodeStatus, Verdict
from ecs_gpu_recovery.core.policy import Policy

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def a_node(index: int, **changes: Any) -> Node:
    base = Node(name=f"n{index}", cluster="c", instance=f"i{index}", gpus=8, gpus_seen=8, status=NodeStatus.AVAILABLE,
                connected=True, created_at=T0, updated_at=T0)  # fmt: skip
    return replace(base, **changes)


class Story:
    """`orders` are those of the last step; `job` is where it stands now."""

    def __init__(self, nodes: int = 2, *, check: bool = False, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.at = T0
        step = submit(job_id="j", cluster="c", spec=JobSpec(name="j"), nodes=[a_node(i) for i in range(nodes)], policy=self.policy, at=T0, check=check)
        self.job: Job = step.job
        self.orders: list[Effect] = [order.effect for order in step.orders]
        assert broken(self.job) == []

    # -- facts -------------------------------------------------------------------------------------------------

    def tell(self, fact: Fact) -> Story:
        before = self.job
        step = decide(before, fact, self.policy)
        self.job, self.orders = step.job, [order.effect for order in step.orders]
        assert broken(self.job) == [], fact
        assert self.job.attempt >= before.attempt
        if before.status.final:
            assert self.job.status is before.status
        if not isinstance(fact, OrderFailed | StopAsked | CheckRefused | StartRefused):
            again = decide(self.job, fact, self.policy)
            assert again.job == self.job, f"the same fact twice changed something: {fact}"
        return self

    def later(self, **time: float) -> Story:
        self.at += timedelta(**time)
        return self

    def started(self, *ranks: int, running: bool = True) -> Story:
        for rank in ranks or range(len(self.job.ranks)):
            self.tell(TaskStarted(at=self.at, task_id=f"t{self.job.attempt}-{rank}", attempt=self.job.attempt, rank=rank, running=running))
        return self

    def ended(self, rank: int, exit_code: int | None, *, reason: str = "", stop_code: str = "EssentialContainerExited") -> Story:
        task_id = self.job.ranks[rank].task_id or f"t{self.job.attempt}-{rank}"
        return self.tell(TaskEnded(at=self.at, task_id=task_id, attempt=self.job.attempt, rank=rank, exit_code=exit_code,
                                   reason=reason, stop_code=stop_code))  # fmt: skip

    def stopped_by_us(self, *ranks: int) -> Story:
        for rank in ranks:
            self.ended(rank, 143, stop_code="UserInitiated", reason=our_reason("j", self.job.attempt, "another rank failed"))
        return self

    def checked(self, rank: int, verdict: Verdict, findings: str = "") -> Story:
        r = self.job.ranks[rank]
        return self.tell(NodeChecked(at=self.at, node=r.node, check_id=f"c{rank}-{r.check_try}", check_try=r.check_try, verdict=verdict, findings=findings))

    def check_started(self, rank: int) -> Story:
        r = self.job.ranks[rank]
        return self.tell(CheckStarted(at=self.at, node=r.node, check_id=f"c{rank}-{r.check_try}", check_try=r.check_try))

    def check_refused(self, rank: int, reason: str) -> Story:
        r = self.job.ranks[rank]
        return self.tell(CheckRefused(at=self.at, node=r.node, check_try=r.check_try, reason=reason))

    def start_refused(self, rank: int, reason: str) -> Story:
        return self.tell(StartRefused(at=self.at, attempt=self.job.attempt, rank=rank, reason=reason))

    def rebooted(self, rank: int) -> Story:
        return self.tell(RebootProven(at=self.at, node=f"n{rank}", key=f"j/{self.job.attempt}/{rank}/reboot"))

    def reboot_failed(self, rank: int, reason: str = "undeliverable") -> Story:
        return self.tell(RebootFailed(at=self.at, node=f"n{rank}", key=f"j/{self.job.attempt}/{rank}/reboot", reason=reason))

    def seen(self, rank: int, *, connected: bool = True, **more: Any) -> Story:
        return self.tell(NodeSeen(at=self.at, node=f"n{rank}", connected=connected, **more))

    def fault_seen(self, rank: int, evidence: str) -> Story:
        return self.tell(FaultSeen(at=self.at, node=f"n{rank}", evidence=evidence))

    def tick(self) -> Story:
        return self.tell(Tick(at=self.at))

    def asked_to_stop(self) -> Story:
        return self.tell(StopAsked(at=self.at, by="ann", why="enough"))

    def sent(self, key: str) -> Story:
        return self.tell(OrderSent(at=self.at, key=key))

    # -- whole stretches ---------------------------------------------------------------------------------------

    def running(self) -> Story:
        return self.started()

    def failed(self, rank: int = 0, exit_code: int = 1) -> Story:
        """One rank fails and the gang has stopped; every node is under test."""
        self.running().ended(rank, exit_code)
        return self.stopped_by_us(*(r.index for r in self.job.ranks if r.index != rank))

    def waiting_for_reboot(self, bad: int = 0) -> Story:
        self.failed()
        for rank in self.job.ranks:
            self.checked(rank.index, Verdict.REBOOT if rank.index == bad else Verdict.HEALTHY, "Xid 79" if rank.index == bad else "")
        return self

    # -- what can be seen --------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[str]:
        return [rank.node_status.value for rank in self.job.ranks]

    def order_names(self) -> list[str]:
        """The last step's orders with their target, without the rows that always follow."""
        return [f"{type(o).__name__} {getattr(o, 'node', '')}".strip() for o in self.orders if type(o).__name__ != "WriteRows"]

    def pending(self, kind: str) -> list[Order]:
        return [order for order in self.job.outbox if type(order.effect).__name__ == kind]

    def messages(self) -> list[Any]:
        return [order.effect for order in self.pending("Notify")]
