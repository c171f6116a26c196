"""A fleet over weeks: jobs that run, lose a node, are recovered, and what of their time was worth something.

Event-driven: between two failures of a job nothing is computed, so the cost grows with failures. Each job's
next failure is drawn from the sum of its nodes' rates. While a job does not run, none of its nodes fails.
Time is in minutes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from statistics import fmean, stdev

from .policies import DAY, HOUR, WEEK, FleetPolicy, until_person
from .rates import GPUS_PER_NODE, ONLY_REBOOTS, Causes

#: Every way in which a job's time can go. The first is the only good one.
KINDS = (
    "productive",
    "recomputed",
    "checkpointing",
    "detecting",
    "examining",
    "rebooting",
    "restarting",
    "person",
    "no node",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One question to the model."""

    nodes: int
    job_nodes: int
    per_node_day: float
    policy: FleetPolicy
    weeks: float = 4.0
    causes: Causes = ONLY_REBOOTS
    lemons: float = 0.0  #: this share of nodes fails ten times as often
    seed: int = 1


@dataclass(slots=True)
class Result:
    """What the time went into, in node-minutes, over all jobs."""

    scenario: Scenario
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    failures: int = 0
    runs: int = 0  #: stretches of running
    ran: float = 0.0  #: their length together, in minutes of a job
    people: int = 0  #: times a person was needed
    events: int = 0

    @property
    def total(self) -> float:
        return sum(self.spent.values())

    @property
    def ettr(self) -> float:
        """Effective training time: the share of all time that moved a job forward for good."""
        return self.spent["productive"] / self.total if self.total else 0.0

    @property
    def mttf_h(self) -> float:
        return self.ran / self.failures / HOUR if self.failures else float("inf")

    @property
    def lost_gpu_hours_a_week(self) -> float:
        return (self.total - self.spent["productive"]) * GPUS_PER_NODE / HOUR / self.scenario.weeks

    def share(self, kind: str) -> float:
        return self.spent[kind] / self.total if self.total else 0.0


@dataclass(slots=True, eq=False)
class _Job:
    size: int
    nodes: list[int]
    rate: float  #: failures a minute
    retries: int = 0
    since: float = 0.0
    passed: bool = False  #: a checkpoint has been passed since the last failure


class Fleet:
    """One run of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._s = scenario
        self._rng = Random(scenario.seed)  # noqa: S311 (chance that can be repeated is the point)
        self._end = scenario.weeks * WEEK
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0
        base = scenario.per_node_day / DAY
        lemon = [self._rng.random() < scenario.lemons for _ in range(scenario.nodes + scenario.policy.spares)]
        # The mean over all nodes is as asked for; lemons take their share from the others.
        plain = base / (1 + 9 * scenario.lemons)
        self._rates = [10 * plain if bad else plain for bad in lemon]
        self._most = 10 * plain if scenario.lemons else plain
        self._free = list(range(scenario.nodes, scenario.nodes + scenario.policy.spares))
        self._queue: list[tuple[float, _Job]] = []  #: jobs that wait for a node
        self.result = Result(scenario)

    def run(self) -> Result:
        size = self._s.job_nodes
        for first in range(0, self._s.nodes - size + 1, size):
            nodes = list(range(first, first + size))
            self._start(0.0, _Job(size, nodes, sum(self._rates[n] for n in nodes)))
        while self._agenda and self._agenda[0][0] < self._end:
            at, _, act = heapq.heappop(self._agenda)
            self.result.events += 1
            act(at)
        self._close()
        return self.result

    def _after(self, at: float, act: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (at, self._count, act))

    def _spend(self, job: _Job, kind: str, begin: float, end: float) -> None:
        """What lies behind the horizon does not count."""
        length = min(end, self._end) - begin
        if length > 0:
            self.result.spent[kind] += length * job.size

    # -- running -----------------------------------------------------------------------------------------

    def _start(self, at: float, job: _Job) -> None:
        job.since = at
        fails = at + self._rng.expovariate(job.rate) if job.rate > 0 else float("inf")
        if fails < self._end:
            self._after(fails, lambda t: self._fails(t, job))
        else:
            self._account(job, self._end, kept=True)

    def _account(self, job: _Job, end: float, *, kept: bool) -> None:
        """Of a stretch, whole intervals are kept; at the horizon what was not lost counts too."""
        policy, length = self._s.policy, end - job.since
        period = policy.checkpoint + policy.checkpoint_cost
        whole, rest = divmod(length, period)
        job.passed = job.passed or whole >= 1
        spent = self.result.spent
        spent["productive"] += whole * policy.checkpoint * job.size
        spent["checkpointing"] += whole * policy.checkpoint_cost * job.size
        spent["productive" if kept else "recomputed"] += rest * job.size
        self.result.runs += 1
        self.result.ran += length

    # -- recovering --------------------------------------------------------------------------------------

    def _fails(self, at: float, job: _Job) -> None:
        policy, rng = self._s.policy, self._rng
        self.result.failures += 1
        self._account(job, at, kept=False)
        if policy.refill and job.passed:
            job.retries = 0
        job.passed = False
        chance, causes = rng.random(), self._s.causes
        kind = (
            "reboot"
            if chance < causes.reboot
            else "replace"
            if chance < causes.reboot + causes.replace
            else "program"
        )
        if not policy.automatic:
            at = self._ask(at, job)
        known = at + policy.detect
        examined = known + policy.check
        self._spend(job, "detecting", at, known)
        self._spend(job, "examining", known, examined)
        self._after(examined, lambda t: self._judged(t, job, kind))

    def _ask(self, at: float, job: _Job) -> float:
        """Wait for a person; a new submission has all its retries again."""
        self.result.people += 1
        job.retries = 0
        there = at + until_person(at, self._s.policy, self._rng)
        self._spend(job, "person", at, there)
        return there

    def _judged(self, at: float, job: _Job, kind: str) -> None:
        policy = self._s.policy
        if kind == "program" and policy.automatic:
            at = self._ask(
                at, job
            )  # no fault was found: the job has failed, and a person looks at the program
        if kind == "replace":
            self._replace(at, job)
            return
        if kind == "reboot":
            if policy.automatic and job.retries >= policy.max_retries:
                at = self._ask(at, job)
            else:
                job.retries += 1
            self._spend(job, "rebooting", at, at + policy.reboot)
            at += policy.reboot
        self._restart(at, job)

    def _restart(self, at: float, job: _Job) -> None:
        ready = at + self._s.policy.restart
        self._spend(job, "restarting", at, ready)
        if ready < self._end:
            self._after(ready, lambda t: self._start(t, job))

    def _replace(self, at: float, job: _Job) -> None:
        """Another node: a spare at once, else one that a person finds or that comes back repaired."""
        bad = self._worst(job)
        back = at + self._s.policy.repair_h * HOUR
        self._after(back, lambda t: self._repaired(t, bad))
        job.nodes.remove(bad)
        job.rate -= self._rates[bad]
        if self._free or not self._s.policy.automatic:  # by hand, the person is there already
            self._take(at, job)
            return
        there = self._ask(at, job)
        if there < self._end:
            self._after(there, lambda t: self._take(t, job))

    def _worst(self, job: _Job) -> int:
        """Which node failed: by their rates."""
        while True:
            node = self._rng.choice(job.nodes)
            if self._rng.random() * self._most <= self._rates[node]:
                return node

    def _take(self, at: float, job: _Job) -> None:
        if not self._free:
            self._queue.append((at, job))
            return
        node = self._free.pop(0)
        job.nodes.append(node)
        job.rate += self._rates[node]
        self._restart(at, job)

    def _repaired(self, at: float, node: int) -> None:
        self._free.append(node)
        if self._queue:
            since, job = self._queue.pop(0)
            self._spend(job, "no node", since, at)
            self._take(at, job)

    def _close(self) -> None:
        for since, job in self._queue:
            self._spend(job, "no node", since, self._end)


def simulate(scenario: Scenario) -> Result:
    return Fleet(scenario).run()


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over several runs, and how sure it is."""

    mean: float
    error: float  #: standard error

    @classmethod
    def of(cls, values: list[float]) -> Estimate:
        return cls(fmean(values), stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0)
