"""What must hold of permits, judged from what was really ordered, asked for and rebooted."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.guard import CONDEMNED, REBOOT, REPLACE, STOP, FleetGuard
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.core.policy import Policy

from .violation import demand
from .world import World

#: How old the look at the fleet may be on which a process acts. It writes down when it decided, and may stand still
#: before it writes: so two of its times can be this much farther apart than what was done, and no rule can know it.
LIFE_S = 120.0


class PermitJudge:
    """One night's observer of the guard."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._granted: dict[str, float] = {}  #: when each permit was given
        self._permits: list[
            tuple[float, str, bool]
        ] = []  #: those that count: when, for which node, after a thaw
        self.ordered: set[str] = set()  #: every reboot that was ever ordered
        self._asked_at: dict[str, tuple[str, float]] = {}  #: its node, and when a permit was first asked for
        self.set_aside: set[str] = set()  #: those that a person refused, or that wait for another look
        self._thawed = 0.0
        self._trips: dict[str, bool] = {}  #: messages that tell of them, and whether each must have been sent
        self._froze = self._looked = (
            0.0  #: the last trip, and the begin of the last sweep that nothing hindered
        )
        self._frozen: float | None = None  #: since when
        self._condemned: dict[
            tuple[str, datetime], float
        ] = {}  #: faults that nobody repairs, by when they were found; and when that was first seen in a record

    @property
    def frozen(self) -> bool:
        return self._frozen is not None

    def rebooted(self, machine: str, key: str) -> None:
        demand(key in self._granted, f"{machine} is rebooted without a permit for {key}")

    def stopped(self, job: str, attempt: int) -> None:
        """A gang of which no rank has ended."""
        demand(keys.halt(job, attempt) in self._granted, f"the gang of {job} is stopped without a permit")

    def at_rest(self, told: Counter[str], mishaps: int) -> None:
        for trip, due in self._trips.items():
            demand(due <= told[trip] <= 1 + mishaps, f"people were told {told[trip]} times of {trip}")

    def found(self, node: Node) -> None:
        """What is kept of faults that nobody repairs."""
        for each in node.condemned:
            if not each.repair:
                self._condemned.setdefault((node.name, each.at), self._world.now)

    def moved(self, node: str) -> None:
        """A rank leaves a node on which a fault was found. Whoever looked just before the fleet froze may still do."""
        frozen = self._frozen is not None and self._world.now - self._frozen > LIFE_S
        demand(not frozen, f"a rank takes another node for {node} in a frozen fleet")

    def swept(self, begun: float) -> None:
        """All that was found before has been counted by now."""
        self._looked = max(self._looked, begun)
        policy = self._world.weather.policy
        since = max(
            self._thawed, self._froze, self._world.now - policy.freeze_within.total_seconds() + LIFE_S
        )
        late = self._world.stamp(since)
        nodes = {node for (node, at), seen in self._condemned.items() if at > late and seen < begun}
        demand(
            self._clocks_differ or self._frozen is not None or len(nodes) <= policy.freeze_nodes,
            f"{sorted(nodes)} were condemned at once, and nothing is frozen",
        )

    def guarded(self, old: FleetGuard, new: FleetGuard) -> None:
        """Permits are given while nothing is frozen, to few within a while, and where people are asked, by people."""
        before = {each.key for each in old.requests if each.granted}
        policy = self._world.weather.policy
        if old.frozen is not None and new.frozen is None:
            self._thawed, self._frozen = self._world.now, None
            self._found_by_a_person(old)
        if new.frozen is not None and old.frozen is None:
            self._frozen = self._world.now
        for each in new.requests:
            if each.key in self.ordered or each.what == CONDEMNED:
                self._asked_at.setdefault(each.key, (each.node, self._world.now))
            if each.refused or each.renew:
                self.set_aside.add(each.key)
            if (
                each.granted is None
                or each.key in before
                or each.key in self._granted
                or each.what == CONDEMNED
            ):
                continue
            demand(new.frozen is None or bool(each.allowed), f"{each.key} has a permit in a frozen fleet")
            asked = policy.repairs == "auto" or each.person or each.allowed
            demand(bool(asked), f"{each.key} has a permit, and nobody was asked")
            self._granted[each.key] = self._world.now
            if each.what in (REBOOT, REPLACE) and not (each.person or each.allowed):
                self._permits.append((self._world.now, each.node, each.thawed))
        self._not_too_many(policy)
        if new.frozen is not None and old.frozen is None and not new.frozen.by:
            self._world.note("frozen", new.trips)
            self._trips[keys.frozen(new.cluster, new.trips)] = True
            self._froze = self._world.now
            lately = (
                self._world.now - policy.freeze_within.total_seconds() - LIFE_S
            )  # who asked may have stalled
            nodes = {node for node, at in self._asked_at.values() if at >= lately}
            stops = {each.job for each in new.requests if each.what == STOP}
            demand(
                self._clocks_differ or len(nodes) > policy.freeze_nodes or len(stops) > policy.freeze_jobs,
                f"the fleet is frozen for {sorted(nodes)} alone",
            )

    def _found_by_a_person(self, old: FleetGuard) -> None:
        """Who thaws a fleet knows that it was frozen. If whoever froze it died, and nobody could send its message in
        time, none is due: it would tell of what is over."""
        trip, lease = keys.frozen(old.cluster, old.trips), self._world.weather.policy.lease.total_seconds()
        if trip in self._trips and self._looked <= self._froze + lease:
            self._trips[trip] = False

    @property
    def _clocks_differ(self) -> bool:
        return bool(self._world.weather.skew_s or self._world.weather.jolt_s)

    def _not_too_many(self, policy: Policy) -> None:
        """Those that waited for a thaw, and those that came after it, each by themselves."""
        lately = max(self._thawed, self._world.now - policy.freeze_within.total_seconds() + LIFE_S)
        for waited in (False, True):
            nodes = {node for at, node, thawed in self._permits if at > lately and thawed is waited}
            demand(
                self._clocks_differ or len(nodes) <= policy.freeze_nodes,
                f"{sorted(nodes)} have permits at once",
            )
