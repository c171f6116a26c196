"""The same search for a node that no job holds: every order of asks, answers, reboots, flaps and lost orders.

Small enough to be written out in one file. The rules are the real `decide_node`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ecs_gpu_recovery.core.effects import CheckNode, Notify, Order, RebootNode, ReplaceNode
from ecs_gpu_recovery.core.errors import Refused
from ecs_gpu_recovery.core.events import (
    CheckStarted,
    Fact,
    FaultSeen,
    NodeAsked,
    NodeChecked,
    NodeReplaced,
    NodeSeen,
    OrdersClaimed,
    OrderSent,
    PermitWithheld,
    RebootProven,
    Tick,
)
from ecs_gpu_recovery.core.guard import Answer, open_fault
from ecs_gpu_recovery.core.model import NodeStatus, Verdict
from ecs_gpu_recovery.core.node.table import decide_node
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.core.policy import Policy

from .bounds import STEP
from .model import T0
from .monitors import Violation
from .state import may_have_a_sender

BUSY = (NodeStatus.PENDING_HEALTHCHECK, NodeStatus.REBOOTING)
VERDICTS = (Verdict.HEALTHY, Verdict.REBOOT, Verdict.REPLACE, Verdict.INCONCLUSIVE)


@dataclass(frozen=True, slots=True)
class Scene:
    """The node's record, and the node itself."""

    node: Node
    now: datetime = T0
    connected: bool = True
    checks: tuple[tuple[int, str], ...] = ()  #: try and verdict; no verdict while it runs
    reboots: tuple[tuple[str, bool], ...] = ()  #: key, and whether it has happened
    faults: int = 0  #: GPU faults that may still happen
    seen: tuple[tuple[datetime, int], ...] = ()  #: faults that were not told yet: when, and in which boot
    ordered: datetime | None = None  #: when the last reboot got through
    known_boot: int = 0  #: of which the record has had proof
    cause: bool = False  #: somebody or something asked for what follows; a reboot uses it up
    told: int = 0
    asks: int = 0
    flaps: int = 0
    crashes: int = 0  #: a process that dies between a commit and its orders
    holds: int = 0  #: a reboot that gets no permit
    comers: int = 0  #: machines that may still come for one that is gone
    life: int = 0  #: how many machines have had its name before
    taken: str = ""  #: the order by which its group takes the machine away
    gone: bool = False
    proof: str = ""  #: what its checks have found last, as far as a repair goes by it
    came: bool = False  #: another machine has come for it, under its own name


class Errands:
    """All that can happen to one node. `run` gives the number of scenes, or raises `Violation`."""

    def __init__(
        self,
        policy: Policy,
        *,
        asks: int = 1,
        flaps: int = 1,
        crashes: int = 1,
        holds: int = 1,
        faults: int = 0,
        fresh: bool = False,
        verdicts: Sequence[Verdict] = VERDICTS,
    ) -> None:
        self.policy, self._verdicts = policy, verdicts
        node = Node(
            name="n0",
            cluster="c",
            created_at=T0,
            updated_at=T0,
            gpus=8,
            gpus_seen=8,
            connected=True,
            status=NodeStatus.AVAILABLE,
            fresh=fresh,
            instance="i0",
            host="i0",
        )
        self.first = Scene(
            node,
            asks=asks,
            flaps=flaps,
            crashes=crashes,
            holds=holds,
            faults=faults,
            comers=int(policy.may_replace),
            cause=fresh,  # a new node is examined: that may be cause enough
        )
        self._rests: set[object] = set()

    def run(self) -> int:
        first = self.first
        seen, todo = {self._key(first)}, [first]
        while todo:
            scene = todo.pop()
            self._comes_to_rest(scene)
            for after in self._moves(scene):
                if (key := self._key(after)) not in seen:
                    seen.add(key)
                    todo.append(after)
        return len(seen)

    # -- what can happen ---------------------------------------------------------------------------------------

    def _moves(self, s: Scene) -> Iterator[Scene]:
        yield self._sweep(s)
        if (to := self._next(s)) is not None:
            yield replace(s, now=to)
        for fact in self._facts(s):
            yield from self._hear(s, [fact])
        if s.asks:
            for ask in ("drain", "release", "check", "reboot"):
                try:
                    wish = NodeAsked(at=s.now, node="n0", ask=ask, by="ann", why="x")
                    yield from self._hear(replace(s, asks=s.asks - 1, cause=True), [wish])
                except Refused:
                    continue
        pending = {order.key for order in s.node.outbox if isinstance(order.effect, RebootNode)}
        for key in pending - {key for key, _ in s.reboots} if s.holds else ():
            for said in (Answer.HELD, Answer.EXAMINE, Answer.REFUSED):
                fact = PermitWithheld(at=s.now, key=key, answer=said, why="frozen")
                yield from self._hear(replace(s, holds=s.holds - 1), [fact])
        for k, (at, boot) in enumerate(s.seen):
            told = replace(s, seen=(*s.seen[:k], *s.seen[k + 1 :]), cause=s.cause or boot >= s.known_boot)
            evidence, name = f"Xid 79 in boot {boot}", f"boot{boot}"
            fault = FaultSeen(at=at, node="n0", evidence=evidence, grave=True, boot_id=name)
            yield from self._hear(told, [fault])
        yield from self._world(s)

    def _world(self, s: Scene) -> Iterator[Scene]:
        """What the node does by itself."""
        if s.flaps and s.connected:
            yield replace(s, connected=False, flaps=s.flaps - 1)
        if not s.connected and not s.gone:
            yield replace(s, connected=True)
        yield from Errands._group(s)
        if s.faults and not s.gone:
            boot = sum(done for _, done in s.reboots)
            yield replace(s, faults=s.faults - 1, seen=(*s.seen, (s.now, boot)))
        for k, (check_try, verdict) in enumerate(s.checks):
            if not verdict and not s.gone:
                for found in self._verdicts:
                    answered = (*s.checks[:k], (check_try, found.value), *s.checks[k + 1 :])
                    last = k + 1 == len(s.checks)  # nobody waits for an earlier one any more
                    yield replace(s, checks=answered, proof=Errands._proven(s, found) if last else s.proof)
        for k, (key, done) in enumerate(s.reboots):
            if not done and not s.gone:
                yield replace(s, reboots=(*s.reboots[:k], (key, True), *s.reboots[k + 1 :]))

    @staticmethod
    def _group(s: Scene) -> Iterator[Scene]:
        """It takes a machine away, and another one comes, under the old name or its own, or none."""
        if s.taken and not s.gone:
            yield replace(s, gone=True, connected=False)
        if s.gone and s.comers and not s.came:
            left = replace(s, comers=s.comers - 1, seen=())
            new = replace(left, gone=False, connected=True, life=s.life + 1, taken="", proof="", cause=True)
            yield replace(new, checks=(), reboots=(), ordered=None, known_boot=0)
            yield replace(left, came=True)

    @staticmethod
    def _proven(s: Scene, found: Verdict) -> str:
        """A reboot that has happened, and cured nothing, asks for more."""
        if found is Verdict.INCONCLUSIVE:
            return s.proof
        again = s.proof == "replace" or any(done for _, done in s.reboots)
        more = found is Verdict.REPLACE or (found is Verdict.REBOOT and again)
        return "replace" if more else ""

    def _facts(self, s: Scene) -> Iterator[Fact]:
        """What was ever true may be told at any time."""
        if s.life:
            before = f"i{s.life - 1}"
            yield NodeSeen(at=s.now, node="n0", connected=False, gone=True, instance=before, host=before)
        name = f"i{s.life}"
        gpus = 8 if s.connected else None
        yield NodeSeen(
            at=s.now,
            node="n0",
            called="n0",
            connected=s.connected,
            gpus=gpus,
            gone=s.gone,
            instance=name,
            host=name,
        )
        if s.came and s.node.being_replaced:
            yield NodeReplaced(at=s.now, node="n0", by="n1")
        for check_try, verdict in s.checks:
            name = f"c{check_try}"
            yield CheckStarted(at=s.now, node="n0", check_id=name, check_try=check_try)
            if verdict:
                yield NodeChecked(
                    at=s.now, node="n0", check_id=name, check_try=check_try, verdict=Verdict(verdict)
                )
        for key, done in s.reboots:
            if done:
                yield RebootProven(at=s.now, node="n0", key=key)

    def _hear(self, s: Scene, facts: Sequence[Fact]) -> Iterator[Scene]:
        """Decide and commit; then the process sends its orders, or dies before it does."""
        after, orders = self._decide(s, facts)
        if orders and after.crashes:
            yield replace(after, crashes=after.crashes - 1)
        yield self._send(after, orders)

    def _sweep(self, s: Scene) -> Scene:
        after, orders = self._decide(s, [*self._facts(s), Tick(at=s.now)])
        after = self._send(after, orders)
        due = [order for order in after.node.outbox if order.due <= s.now]
        if not due:
            return after
        claim = OrdersClaimed(at=s.now, keys=tuple(order.key for order in due))
        after, _ = self._decide(after, [claim])
        return self._send(after, [order for order in due if not may_have_a_sender(order)])

    def _decide(self, s: Scene, facts: Sequence[Fact]) -> tuple[Scene, list[Order]]:
        node = s.node
        orders: list[Order] = []
        for fact in facts:
            step = decide_node(node, fact, self.policy, s.now)
            self._judge(s, node, step.node)
            if isinstance(fact, RebootProven) and step.changed:
                s = replace(s, known_boot=sum(done for _, done in s.reboots))
            if isinstance(fact, FaultSeen) and int(fact.evidence.rpartition(" ")[2]) < s.known_boot:
                self._leaves_alone(node, step.node)
            node = step.node
            orders += step.orders
        left = {order.key for order in node.outbox}
        return replace(s, node=replace(node, timeline=())), [order for order in orders if order.key in left]

    def _send(self, s: Scene, orders: Sequence[Order]) -> Scene:
        while orders:
            facts: list[Fact] = []
            for order in orders:
                s, learned = self._carry_out(s, order)
                facts += learned
            s, orders = self._decide(s, facts)
        return s

    def _carry_out(self, s: Scene, order: Order) -> tuple[Scene, list[Fact]]:
        effect, sent = order.effect, OrderSent(at=s.now, key=order.key)
        if isinstance(effect, CheckNode):
            if all(effect.check_try != check_try for check_try, _ in s.checks):
                s = replace(s, checks=(*s.checks, (effect.check_try, "")))
            started = CheckStarted(
                at=s.now, node="n0", check_id=f"c{effect.check_try}", check_try=effect.check_try
            )
            return s, [started]
        if isinstance(effect, ReplaceNode):
            return self._take_away(s, effect), [sent]
        if isinstance(effect, RebootNode):
            late = s.node.deadline is None or s.now >= s.node.deadline
            held = s.node.status is NodeStatus.PENDING_HEALTHCHECK and s.node.deadline is None
            if not held and (s.node.status is not NodeStatus.REBOOTING or late):
                raise Violation(f"rebooted while {s.node.status}, or after the time for it")
            if all(effect.key != key for key, _ in s.reboots):
                if not s.cause:
                    raise Violation("rebooted, and nothing asked for it since the last time")
                s = replace(s, reboots=(*s.reboots, (effect.key, False)), ordered=s.now, cause=False)
        if isinstance(effect, Notify):
            s = replace(s, told=s.told + 1)
        return s, [sent]

    def _take_away(self, s: Scene, order: ReplaceNode) -> Scene:
        """The order names the instance that the record knows, and that one goes once."""
        if s.gone or s.taken == order.key or s.node.instance != f"i{s.life}":
            return s
        if s.taken:
            raise Violation("replaced twice")
        over = s.ordered is not None and s.now - s.ordered >= self.policy.reboot_timeout
        if s.proof != "replace" and not over:
            raise Violation("replaced, and no check asks for it")
        if not s.node.being_replaced or s.node.status not in BUSY:
            raise Violation(f"replaced while {s.node.status}")
        return replace(s, taken=order.key)

    # -- what must hold ----------------------------------------------------------------------------------------

    def _judge(self, s: Scene, old: Node, new: Node) -> None:
        came_back = old.status is NodeStatus.REBOOTING and new.status not in (
            NodeStatus.REBOOTING,
            NodeStatus.FAILED,
        )
        waits = new.status is NodeStatus.PENDING_HEALTHCHECK and not new.rebooted  # for its permit
        leaves = new.being_replaced and new.status is NodeStatus.UNKNOWN
        if leaves and old.status is not new.status and not (s.gone or s.life):
            raise Violation("taken away, and its machine is still there")
        if came_back and not waits and not leaves and (old.reboot_key, True) not in s.reboots:
            raise Violation("back from a reboot that never happened")
        failed = new.status is NodeStatus.FAILED and old.status is not new.status
        if failed and not any(isinstance(order.effect, Notify) for order in new.outbox):
            raise Violation("FAILED, and nobody will be told")
        if failed and self.policy.may_replace and self._may_go_up(s, old):
            raise Violation("given up after its reboot, and may be replaced")
        held = any(order.key == new.reboot_key for order in new.outbox)
        if new.status in BUSY and new.deadline is None and not held:
            raise Violation(f"{new.status} without a deadline")
        known = old.fresh and not new.fresh and not new.replaced_by
        if known and old.verdict is None and new.verdict is None:
            raise Violation("a new node counts as known, and no check has answered")

    @staticmethod
    def _may_go_up(s: Scene, node: Node) -> bool:
        """Its reboot for a fault got through, and it is not back."""
        sent = node.status is NodeStatus.REBOOTING and node.reboot_key in dict(s.reboots)
        return sent and open_fault(node) is not None and not node.being_replaced

    @staticmethod
    def _leaves_alone(old: Node, new: Node) -> None:
        if (old.status, old.suspected, old.check_try) != (new.status, new.suspected, new.check_try):
            raise Violation("examined for a fault of an earlier boot")

    def _comes_to_rest(self, s: Scene) -> None:
        """With the sweeper and the clock alone, every errand ends and every order is sent."""
        way: set[object] = set()
        while (key := self._key(s)) not in self._rests:
            swept = self._sweep(s)
            to = self._next(swept)
            unseen = swept.node.fresh and swept.node.status is NodeStatus.AVAILABLE and not swept.node.hold
            busy = swept.node.status in BUSY or swept.node.being_replaced
            resting = not (busy or swept.node.outbox or unseen)
            if key in way or (to is None and not resting):
                raise Violation(
                    f"{s.node.status} for ever, with {[order.key for order in s.node.outbox]} still to send"
                )
            way.add(key)
            if resting:
                break
            s = swept if to is None else replace(swept, now=to)
        self._rests |= way

    def _next(self, s: Scene) -> datetime | None:
        times = [order.due for order in s.node.outbox]
        if s.node.deadline is not None:
            times.append(s.node.deadline)
        if s.node.away_since is not None:
            times.append(s.node.away_since + self.policy.node_lost_after)
        return min((at for at in times if at > s.now), default=None)

    def _key(self, s: Scene) -> object:
        """Times count from now; versions don't count."""

        def ahead(at: datetime | None) -> int:
            return -1 if at is None else max(0, (at - s.now) // STEP)

        n = s.node
        away = -1 if n.away_since is None else min(9, (s.now - n.away_since) // STEP)
        orders = tuple((order.key, ahead(order.due)) for order in n.outbox)
        record = (
            n.status,
            n.hold is None,
            n.check_id,
            n.check_try,
            n.checks_spent,
            n.reboot_key,
            n.rebooted,
            n.connected,
            n.errands,
            bool(n.suspected),
            n.fresh,
            tuple(each.asked for each in n.condemned),
            n.asked,
            n.booted_at is None,
        )
        rest = (s.connected, s.checks, s.reboots, min(s.told, 3), s.asks, s.flaps, s.crashes, s.holds)
        faults = (s.faults, tuple(boot for _, boot in s.seen), s.known_boot, s.cause)
        return (record, ahead(n.deadline), away, orders, rest, faults, self._rungs(s))

    def _rungs(self, s: Scene) -> object:
        """What counts only where a machine may be replaced."""
        if not self.policy.may_replace:
            return ()
        n = s.node
        had = -1 if s.ordered is None else min(self.policy.reboot_timeout, s.now - s.ordered) // STEP
        record = (n.verdict, n.being_replaced, n.gone, n.instance, n.replaced_by)
        return (record, s.comers, s.life, s.taken, s.gone, s.proof, s.came, had)
