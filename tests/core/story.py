"""Jobs in a few words: a story hears facts, one after the other, and remembers what was ordered.

After every fact the record must keep all its rules; that is asserted here, once, for every test.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ecs_gpu_recovery.core import handover
from ecs_gpu_recovery.core.effects import Effect, Notify, Order, RebootNode, StopTask
from ecs_gpu_recovery.core.events import (
    CheckRefused,
    CheckStarted,
    Fact,
    NodeChecked,
    NodeSeen,
    NodesOffered,
    OrderFailed,
    OrderSent,
    PermitWithheld,
    ProgressSeen,
    RebootFailed,
    RebootProven,
    StartRefused,
    StopAsked,
    TaskEnded,
    TaskStarted,
    Tick,
)
from ecs_gpu_recovery.core.exits import our_reason
from ecs_gpu_recovery.core.guard import Answer
from ecs_gpu_recovery.core.invariants import broken
from ecs_gpu_recovery.core.job.draft import Step
from ecs_gpu_recovery.core.job.table import decide, submit
from ecs_gpu_recovery.core.model import JobSpec, JobStatus, NodeStatus, Rank, Verdict
from ecs_gpu_recovery.core.node.table import decide_node
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.core.rows import claimed_node, held_node

T0 = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
#: As in the original state graphs: a job ends when no node is at fault, and a node that rebooted is used again at once.
#: `test_budget` has the jobs that go on, `test_repair` and `test_faults` have the gate.
POLICY = Policy(restart_when_healthy="never", post_reboot_check=False)
GATED = replace(POLICY, post_reboot_check=True)
RUNGS = replace(GATED, repair_rungs="reboot,replace")
MINUTE = timedelta(minutes=1)
OOM = "OutOfMemoryError: Container killed due to memory usage"


class Like:
    """Equal to any effect of this kind that has these fields: a test names only what matters."""

    def __init__(self, kind: type[Effect], **wanted: Any) -> None:
        unknown = wanted.keys() - {f.name for f in fields(kind)}
        assert not unknown, f"{kind.__name__} has no {unknown}"
        self.kind, self.wanted = kind, wanted

    def __eq__(self, other: object) -> bool:
        return isinstance(other, self.kind) and all(
            getattr(other, name) == value for name, value in self.wanted.items()
        )

    def __hash__(self) -> int:
        return hash(self.kind)

    def __repr__(self) -> str:
        return f"{self.kind.__name__}({', '.join(f'{k}={v!r}' for k, v in self.wanted.items())})"


like = Like


def some_nodes(count: int, **about: Any) -> list[Node]:
    given = {
        "gpus": 8,
        "gpus_seen": 8,
        "boot_id": "boot-1",
        "connected": True,
        "status": NodeStatus.AVAILABLE,
    } | about
    return [Node(name=f"n{i}", cluster="c", created_at=T0, updated_at=T0, **given) for i in range(count)]


class Story:
    """A job and its clock. Every method is something that happens; `orders` holds what the last one caused."""

    def __init__(
        self,
        *,
        nodes: int = 4,
        check: bool = False,
        policy: Policy = POLICY,
        spec: JobSpec = JobSpec(),  # noqa: B008 - it is frozen
        **about_nodes: Any,
    ) -> None:
        self.policy = policy
        self.now = T0
        self.orders: list[Effect] = []
        self.moves: list[tuple[str, str, str]] = []
        step = submit(
            job_id="j",
            cluster="c",
            spec=spec,
            nodes=some_nodes(nodes, **about_nodes),
            policy=policy,
            at=T0,
            check=check,
        )
        self.job = step.job
        self.nodes: dict[str, Node] = {
            node.name: claimed_node(node, step.job) for node in some_nodes(nodes, **about_nodes)
        }
        self._keep(step)
        assert broken(self.job) == []

    def _keep(self, step: Step) -> None:
        self.orders += [order.effect for order in step.orders]
        self.moves = [(e.subject, e.before, e.after) for e in step.job.timeline]
        self.job = step.job

    # -- how things stand --------------------------------------------------------------------------------------

    @property
    def status(self) -> JobStatus:
        return self.job.status

    def rank(self, index: int) -> Rank:
        return self.job.ranks[index]

    def node(self, index: int) -> Node:
        return self.nodes[f"n{index}"]

    def _check_try(self, index: int) -> int:
        """Of the check that is asked for: the node's own where the job has handed it over."""
        return self.node(index).check_try if self.rank(index).handed else self.rank(index).check_try

    def _of_check(self, rank: int) -> dict[str, Any]:
        tried = self._check_try(rank)
        return {"at": self.now, "node": f"n{rank}", "check_id": f"c{rank}.{tried}", "check_try": tried}

    @property
    def node_statuses(self) -> list[NodeStatus]:
        return [self.nodes[r.node].status if r.handed else r.node_status for r in self.job.ranks]

    @property
    def outbox(self) -> list[Effect]:
        """What is still to be sent: by the job, and by the nodes that it has handed over."""
        return [order.effect for record in (self.job, *self.nodes.values()) for order in record.outbox]

    def order(self, kind: type[Effect], **wanted: Any) -> Order:
        return next(order for order in self.job.outbox if order.effect == Like(kind, **wanted))

    def has_also(self, *nodes: Node) -> Story:
        """The fleet has these nodes too."""
        self.nodes |= {node.name: node for node in nodes}
        return self

    # -- things that happen ------------------------------------------------------------------------------------

    def hears(self, *facts: Fact) -> Story:
        for fact in facts:
            self.orders = []
            node = self.nodes.get(getattr(fact, "node", "")) or self._sender(getattr(fact, "key", ""))
            alone = (
                isinstance(fact, RebootProven | RebootFailed | OrderSent | OrderFailed | PermitWithheld)
                and node is not None
            )
            alone = alone or (
                isinstance(fact, CheckStarted | CheckRefused | NodeChecked | NodeSeen)
                and node is not None
                and node.own
            )
            if not alone:
                self._job_hears(fact)
            if node is not None and (alone or isinstance(fact, NodeSeen)):
                self._node_hears(self.nodes[node.name], fact)
            for node in self.nodes.values() if isinstance(fact, Tick) else ():
                self._node_hears(node, fact)
        return self

    def _sender(self, key: str) -> Node | None:
        """The node that has this order in its outbox."""
        return next((n for n in self.nodes.values() if any(o.key == key for o in n.outbox)), None)

    def _job_hears(self, fact: Fact) -> None:
        before = self.job
        step = decide(before, fact, self.policy)
        assert step.changed is (step.job is not before)
        assert broken(step.job) == []
        assert step.job.attempt >= before.attempt
        if before.status.final:
            assert step.job.status is before.status
        self._keep(step)
        for node in handover.taken(before, step.job, self.nodes.__getitem__, self.policy):
            self.nodes[node.name] = node
            self.orders += [order.effect for order in node.outbox]
            if (news := handover.news_for_job(node)) is not None:
                self._job_hears(news)
        for rank in step.job.ranks:
            news = handover.news_for_node(step.job, rank)
            if news is not None and self.nodes[rank.node].task:
                self._node_hears(self.nodes[rank.node], news)
        if step.job.status.final and not before.status.final:
            self.nodes = {name: held_node(node, step.job) or node for name, node in self.nodes.items()}

    def _node_hears(self, node: Node, fact: Fact) -> None:
        step = decide_node(node, fact, self.policy)
        self.nodes[node.name] = step.node
        self.orders += [order.effect for order in step.orders]
        news = handover.news_for_job(step.node)
        if news is not None and type(handover.news_for_job(node)) is not type(news):
            self._job_hears(news)

    def after(self, wait: timedelta) -> Story:
        """The stops and reboots are sent, time passes, and the sweeper looks."""
        orders = [effect.key for effect in self.outbox if isinstance(effect, StopTask | RebootNode)]
        return self.sent(*orders).sweeps_after(wait)

    def sweeps_after(self, wait: timedelta) -> Story:
        """Time passes, and the sweeper looks; whoever should have sent the orders is dead."""
        self.now += wait
        return self.hears(Tick(at=self.now))

    def task_id(self, rank: int) -> str:
        return f"t{rank}.{self.job.ranks[rank].task_attempt}.{self.job.ranks[rank].start_try}"

    def starts(self, *ranks: int, running: bool = True) -> Story:
        for r in ranks or range(len(self.job.ranks)):
            self.hears(
                TaskStarted(
                    at=self.now,
                    task_id=self.task_id(r),
                    attempt=self.job.ranks[r].task_attempt,
                    rank=r,
                    running=running,
                )
            )
        return self

    def ended(
        self, rank: int, exit_code: int | None, reason: str = "", stop_code: str = "EssentialContainerExited"
    ) -> TaskEnded:
        known = self.job.ranks[rank]
        return TaskEnded(
            at=self.now,
            task_id=known.task_id or self.task_id(rank),
            attempt=known.task_attempt,
            rank=rank,
            exit_code=exit_code,
            reason=reason,
            stop_code=stop_code,
        )

    def ends(
        self, rank: int, exit_code: int | None, reason: str = "", stop_code: str = "EssentialContainerExited"
    ) -> Story:
        return self.hears(self.ended(rank, exit_code, reason, stop_code))

    def fails(self, *ranks: int) -> Story:
        for r in ranks:
            self.ends(r, 1)
        return self

    def finishes(self, *ranks: int) -> Story:
        for r in ranks or range(len(self.job.ranks)):
            self.ends(r, 0)
        return self

    def stops(self, *ranks: int) -> Story:
        """Our own stop has reached these ranks, or all that are still alive."""
        for r in ranks or [rank.index for rank in self.job.ranks if not rank.quiet]:
            why = our_reason("j", self.job.ranks[r].task_attempt, "another rank failed")
            self.ends(r, 143, why, "UserInitiated")
        return self

    def is_stopped_by_a_person(self, rank: int) -> Story:
        return self.ends(rank, 143, "Task stopped by user", "UserInitiated")

    def cannot_start(self, rank: int, reason: str) -> Story:
        return self.hears(
            StartRefused(at=self.now, attempt=self.job.ranks[rank].task_attempt, rank=rank, reason=reason)
        )

    def check_starts(self, *ranks: int) -> Story:
        for r in ranks:
            self.hears(CheckStarted(**self._of_check(r)))
        return self

    def check_is_refused(self, rank: int, reason: str) -> Story:
        return self.hears(
            CheckRefused(at=self.now, node=f"n{rank}", check_try=self._check_try(rank), reason=reason)
        )

    def checked(self, rank: int, verdict: Verdict, findings: str = "") -> NodeChecked:
        return NodeChecked(**self._of_check(rank), verdict=verdict, findings=findings)

    def check_says(self, verdict: Verdict, *ranks: int, findings: str = "") -> Story:
        for r in ranks or [rank.index for rank in self.job.ranks if rank.verdict is None]:
            self.hears(self.checked(r, verdict, findings))
        return self

    def sees_the_fleet(self) -> Story:
        """It is offered what there is."""
        return self.hears(NodesOffered(at=self.now, nodes=tuple(self.nodes.values())))

    def check_of(self, name: str, verdict: Verdict) -> Story:
        """The check of a node that a rank has taken answers."""
        rank = next(rank for rank in self.job.ranks if rank.node == name)
        about: dict[str, Any] = {"at": self.now, "node": name, "check_id": "c", "check_try": rank.check_try}
        return self.hears(CheckStarted(**about), NodeChecked(**about, verdict=verdict))

    def is_seen(self, rank: int, *, connected: bool = True, **about: Any) -> Story:
        return self.hears(NodeSeen(at=self.now, node=f"n{rank}", connected=connected, **about))

    def loses(self, rank: int) -> Story:
        """The agent goes away and stays away for longer than a flap."""
        return self.is_seen(rank, connected=False).after(self.policy.node_lost_after)

    def reboots(self, *ranks: int, boot_id: str = "boot-2") -> Story:
        for r in ranks:
            key = self.node(r).reboot_key or f"j/{self.job.attempt}/{r}/reboot"
            self.hears(RebootProven(at=self.now, node=f"n{r}", key=key, boot_id=boot_id))
            self.is_seen(r, connected=True, boot_id=boot_id, gpus=8)
        return self

    def reboot_fails(self, rank: int, reason: str) -> Story:
        return self.hears(
            RebootFailed(
                at=self.now, node=f"n{rank}", key=f"j/{self.job.attempt}/{rank}/reboot", reason=reason
            )
        )

    def permit_is(
        self, answer: Answer, rank: int = 0, why: str = "frozen", tell: Notify | None = None
    ) -> Story:
        """What the guard of the fleet says to the reboot of a node that was handed over."""
        key = f"j/{self.job.attempt}/{rank}/reboot"
        return self.hears(PermitWithheld(at=self.now, key=key, answer=answer, why=why, tell=tell))

    def person_stops_it(self, by: str = "ann", why: str = "") -> Story:
        return self.hears(StopAsked(at=self.now, by=by, why=why))

    def gets_to(self, step: int = 0, **about: Any) -> Story:
        """The training tells how far it has come."""
        return self.hears(ProgressSeen(at=self.now, step=step, **about))

    def sent(self, *keys: str) -> Story:
        return self.hears(*(OrderSent(at=self.now, key=key) for key in keys))

    def could_not_send(self, key: str, error: str = "no answer") -> Story:
        return self.hears(OrderFailed(at=self.now, key=key, error=error))


# -- stories that many tests begin with --------------------------------------------------------------------------


def a_new_job(nodes: int = 4, **about: Any) -> Story:
    return Story(nodes=nodes, **about)


def a_running_job(nodes: int = 4, **about: Any) -> Story:
    return Story(nodes=nodes, **about).starts()


def a_job_under_test(nodes: int = 4, failed: Iterable[int] = (0,), **about: Any) -> Story:
    """A rank died, the gang has stopped, a check runs on every node."""
    story = a_running_job(nodes, **about).fails(*failed).stops()
    return story.check_starts(*range(nodes))


def a_job_awaiting_reboot(nodes: int = 4, bad: Iterable[int] = (0,), **about: Any) -> Story:
    bad = list(bad)
    story = a_job_under_test(nodes, **about).check_says(Verdict.REBOOT, *bad)
    healthy = [r for r in range(nodes) if r not in bad]
    return story.check_says(Verdict.HEALTHY, *healthy) if healthy else story


def a_restarting_job(nodes: int = 4, bad: Iterable[int] = (0,), **about: Any) -> Story:
    bad = list(bad)
    return a_job_awaiting_reboot(nodes, bad, **about).reboots(*bad)


def a_job_in_its_second_attempt(nodes: int = 4, bad: Iterable[int] = (0,), **about: Any) -> Story:
    return a_restarting_job(nodes, bad, **about).starts()


def with_retries(count: int) -> Policy:
    return replace(POLICY, max_retries=count)


def heard(node: Node, *facts: Fact, policy: Policy = RUNGS, now: datetime = T0) -> Node:
    for fact in facts:
        node = decide_node(node, fact, policy, now).node
    return node
