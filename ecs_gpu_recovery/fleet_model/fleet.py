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


#: People are told that a job waits for a node after so many minutes.
TOLD_AFTER = 15.0


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
    jobs: int = 0
    alone: int = 0  #: jobs that needed nobody
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
    progressed: bool = False  #: ... and had been at the last failure
    asked: bool = False  #: it has needed a person


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
        jobs = []
        for first in range(0, self._s.nodes - size + 1, size):
            nodes = list(range(first, first + size))
            jobs.append(_Job(size, nodes, sum(self._rates[n] for n in nodes)))
            self._start(0.0, jobs[-1])
        while self._agenda and self._agenda[0][0] < self._end:
            at, _, act = heapq.heappop(self._agenda)
            self.result.events += 1
            act(at)
        self._close()
        self.result.jobs, self.result.alone = len(jobs), sum(not job.asked for job in jobs)
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
        job.progressed, job.passed = job.passed, False
        kind = self._kind()
        hung = self._s.causes.hang > 0 and rng.random() < self._s.causes.hang
        if not policy.automatic:
            at = self._ask(at, job)
        known = at + (policy.hang_after if hung else policy.detect)
        examined = known + policy.check
        self._spend(job, "detecting", at, known)
        self._spend(job, "examining", known, examined)
        self._after(examined, lambda t: self._judged(t, job, kind))

    def _kind(self) -> str:
        """What helps against this failure."""
        chance, causes = self._rng.random(), self._s.causes
        for kind, share in (
            ("reboot", causes.reboot),
            ("replace", causes.replace),
            ("restart", causes.restart),
        ):
            if chance < share:
                return kind
            chance -= share
        return "program"

    def _ask(self, at: float, job: _Job) -> float:
        """Wait for a person; a new submission has all its retries again."""
        self.result.people += 1
        job.asked = True
        job.retries = 0
        there = at + until_person(at, self._s.policy, self._rng)
        self._spend(job, "person", at, there)
        return there

    def _judged(self, at: float, job: _Job, kind: str) -> None:
        """A person is needed where no restart is left, or where no fault was found and the job may not go on."""
        policy = self._s.policy
        goes_on = kind == "restart" and policy.restart_when_healthy and job.progressed
        spends = kind == "reboot" or goes_on or (policy.failover and kind == "replace")
        failed = kind in ("program", "restart") and not goes_on
        spent = spends and job.retries >= policy.max_retries
        if policy.automatic and (failed or spent):
            at = self._ask(at, job)
        elif spends:
            job.retries += 1
        if kind == "replace":
            self._replace(at, job)
        elif kind == "reboot" and policy.failover and self._free:
            self._leave(at, job, policy.reboot + policy.check)
            self._take(at, job)
        elif kind == "reboot":
            self._spend(job, "rebooting", at, at + policy.reboot)
            self._restart(at + policy.reboot, job)
        else:
            self._restart(at, job)

    def _restart(self, at: float, job: _Job) -> None:
        ready = at + self._s.policy.restart
        self._spend(job, "restarting", at, ready)
        if ready < self._end:
            self._after(ready, lambda t: self._start(t, job))

    def _replace(self, at: float, job: _Job) -> None:
        """Another node: a spare at once, else one that a person finds or that comes back repaired."""
        policy = self._s.policy
        self._leave(at, job, policy.repair_h * HOUR)
        if self._free or policy.failover or not policy.automatic:  # by hand, the person is there already
            self._take(at, job)
            return
        there = self._ask(at, job)
        if there < self._end:
            self._after(there, lambda t: self._take(t, job))

    def _leave(self, at: float, job: _Job, away: float) -> None:
        """The node that failed is repaired without its job, and free afterwards."""
        bad = self._worst(job)
        self._after(at + away, lambda t: self._repaired(t, bad))
        job.nodes.remove(bad)
        job.rate -= self._rates[bad]

    def _worst(self, job: _Job) -> int:
        """Which node failed: by their rates."""
        while True:
            node = self._rng.choice(job.nodes)
            if self._rng.random() * self._most <= self._rates[node]:
                return node

    def _take(self, at: float, job: _Job) -> None:
        policy = self._s.policy
        if not self._free:
            self._queue.append((at, job))
            if policy.failover:
                self._after(at + TOLD_AFTER, lambda _: self._tell(at, job))
            return
        node = self._free.pop(0)
        job.nodes.append(node)
        job.rate += self._rates[node]
        if policy.failover:
            self._spend(job, "examining", at, at + policy.admit)
            at += policy.admit
        self._restart(at, job)

    def _tell(self, since: float, job: _Job) -> None:
        """A person hears that a job waits, if it still does."""
        if (since, job) in self._queue:
            self.result.people += 1
            job.asked = True

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
