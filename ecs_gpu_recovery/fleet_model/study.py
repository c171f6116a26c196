"""Questions to the fleet model: does it agree with what was published, and what would a change gain?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

from .fleet import KINDS, Estimate, Result, Scenario, simulate
from .policies import CHANGES, FleetPolicy, changed
from .rates import MEASURED_MTTF_H, PROJECTED_MTTF_H, RATES, expected_ettr, renewal_ettr

#: Nodes and the published expectation, at 6.5 failures per 1000 node-days and hourly checkpoints.
ETTR_TABLE = {
    8: (0.999, 0.977),
    16: (0.997, 0.955),
    32: (0.994, 0.909),
    63: (0.989, 0.821),
    128: (0.977, 0.636),
}
#: The two recovery times of that table, in minutes.
QUICK, SLOW = 10.0, 600.0
MTTF_TOLERANCE = 0.08
ETTR_TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class Agreement:
    """One published number beside ours."""

    what: str
    published: float
    ours: float
    tolerance: float  #: relative
    note: str = ""

    @property
    def error(self) -> float:
        return self.ours / self.published - 1

    @property
    def holds(self) -> bool:
        return abs(self.error) <= self.tolerance


def _only_recovery(minutes: float) -> FleetPolicy:
    """The table's world: every failure costs the same, no person is ever needed."""
    return FleetPolicy(
        max_retries=10**9,
        failover=False,
        checkpoint=60.0,
        checkpoint_cost=0.0,
        detect=0.0,
        check=0.0,
        reboot=0.0,
        restart=minutes,
    )


def _long_run(nodes: int, per_node_day: float, policy: FleetPolicy, failures: int) -> Result:
    """As long as it takes to see about so many failures, in ten jobs."""
    weeks = max(20.0, failures / (10 * nodes * per_node_day * 7))
    return simulate(
        Scenario(nodes=10 * nodes, job_nodes=nodes, per_node_day=per_node_day, policy=policy, weeks=weeks)
    )


def validate(failures: int = 20_000) -> list[Agreement]:
    """Every published anchor. Where one can't be met, the note says why."""
    return [*_mttf(failures), *_ettr(failures)]


def _mttf(failures: int) -> list[Agreement]:
    found = []
    for gpus, hours in MEASURED_MTTF_H.items():
        ran = _long_run(gpus // 8, RATES["jobs"].per_node_day, _only_recovery(QUICK), failures)
        note = "one rate for both sizes: fitted between them, so each is missed by some percent"
        found.append(Agreement(f"MTTF at {gpus} GPUs, h", hours, ran.mttf_h, MTTF_TOLERANCE, note))
    for gpus, hours in PROJECTED_MTTF_H.items():
        ran = _long_run(gpus // 8, RATES["rsc1"].per_node_day, _only_recovery(QUICK), failures)
        note = "a projection from node failures alone (6.5); the rate that jobs met would give a third of it"
        found.append(Agreement(f"MTTF at {gpus} GPUs, h", hours, ran.mttf_h, MTTF_TOLERANCE, note))
    return found


def _ettr(failures: int) -> list[Agreement]:
    found = []
    rate = RATES["rsc1"].per_node_day
    for nodes, row in ETTR_TABLE.items():
        for minutes, published in zip((QUICK, SLOW), row, strict=True):
            ours = _long_run(nodes, rate, _only_recovery(minutes), failures).ettr
            exact = renewal_ettr(nodes, rate, minutes, 60.0)
            first = expected_ettr(nodes, rate, minutes, 60.0)
            note = ""
            if abs(exact / first - 1) > ETTR_TOLERANCE:
                note = f"the closed form is first order; exact, if nothing fails while down: {exact:.3f}"
            title = f"ETTR, {nodes} nodes, {minutes:.0f} min recovery"
            found.append(Agreement(title, published, ours, ETTR_TOLERANCE, note))
    return found


@dataclass(frozen=True, slots=True)
class Line:
    """One way to run the same fleet."""

    title: str
    ettr: Estimate
    gain: Estimate  #: in ETTR, against the first line, run by run
    lost_gpu_hours: float  #: a week
    people: float  #: times a week a person is needed
    shares: dict[str, float]  #: what the time went into, over all runs

    @property
    def sure(self) -> bool:
        """Whether the runs tell its gain from luck."""
        return abs(self.gain.mean) > 2 * self.gain.error


def compare(base: Scenario, runs: int = 8) -> list[Line]:
    """The policy as it is, then one change at a time, each in the same weeks."""
    plans = [("as it is", base.policy)]
    for title, change in CHANGES:
        policy = changed(base.policy, dict(change), base.nodes)
        if policy != base.policy:
            plans.append((title, policy))
    seeds = [base.seed + number for number in range(runs)]
    first: list[Result] = []
    lines = []
    for title, policy in plans:
        results = [simulate(replace(base, policy=policy, seed=seed)) for seed in seeds]
        first = first or results
        gains = [mine.ettr - old.ettr for mine, old in zip(results, first, strict=True)]
        weeks = base.weeks * runs
        lines.append(
            Line(
                title,
                Estimate.of([result.ettr for result in results]),
                Estimate.of(gains),
                sum(result.lost_gpu_hours_a_week for result in results) / runs,
                sum(result.people for result in results) / weeks,
                {kind: fmean(result.share(kind) for result in results) for kind in KINDS},
            )
        )
    return lines


def unattended(base: Scenario, days: float, runs: int = 8) -> Estimate:
    """How likely a job of this fleet is to run for so many days without a person."""
    found = [simulate(replace(base, weeks=days / 7, seed=base.seed + number)) for number in range(runs)]
    return Estimate.of([result.alone / result.jobs for result in found])


def by_size(base: Scenario, sizes: tuple[int, ...], runs: int = 1) -> list[tuple[int, float, float]]:
    """For each job size, the same fleet recovered by the policy and by hand; means over several runs."""

    def mean(scenario: Scenario) -> float:
        return fmean(simulate(replace(scenario, seed=base.seed + number)).ettr for number in range(runs))

    found = []
    for size in sizes:
        if size <= base.nodes:
            one = replace(base, job_nodes=size)
            hand = replace(one, policy=replace(base.policy, automatic=False))
            found.append((size, mean(one), mean(hand)))
    return found


#: In ETTR; what is less is +0.0 in the table.
LEAST_GAIN = 0.0005


def best(lines: list[Line], *, sure: bool = True) -> Line | None:
    """The one change that gains most: of those the runs are sure of, or of those that may be luck."""
    found = [line for line in lines[1:] if line.sure is sure and line.gain.mean >= LEAST_GAIN]
    return max(found, key=lambda line: line.gain.mean, default=None)
