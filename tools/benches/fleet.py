"""The fleet model: how long one simulated week takes, and how that grows with the fleet."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median

from ecs_gpu_recovery.fleet_model.fleet import Estimate, Scenario, simulate
from ecs_gpu_recovery.fleet_model.policies import FIRST_RELEASE, FleetPolicy, changed
from ecs_gpu_recovery.fleet_model.rates import RATES, incident_causes, llama3_causes
from ecs_gpu_recovery.fleet_model.study import unattended

_SMALL, _LARGE = 4_096, 16_384
_ROUNDS = 7
#: Runs of the default fleet; and the share of nodes that fail ten times as often (3 of 63 in a published study).
_RUNS, _LEMONS = 40, 3 / 63
#: A month is shorter than half a year: more of them for the same error.
_MONTHS = 200


def measure() -> dict[str, float]:
    """The two sizes take turns, so that a busy machine slows both."""
    small, large = [], []
    for seed in range(_ROUNDS):
        small.append(_week(_SMALL, seed))
        large.append(_week(_LARGE, seed))
    return {
        **_default_fleet(),
        "fleet_week_16384_s": median(large),
        "fleet_growth": median(large) / (_LARGE / _SMALL * median(small)),
    }


def _default_fleet() -> dict[str, float]:
    """128 nodes of RSC-1, 8 jobs, one spare in 32, our own defaults; beside it as the first release did it."""
    base = Scenario(
        nodes=128,
        job_nodes=16,
        per_node_day=RATES["rsc1"].per_node_day,
        policy=FleetPolicy(spares=4),
        weeks=26.0,
        causes=incident_causes(),
        lemons=_LEMONS,
    )
    first = replace(base, policy=changed(base.policy, dict(FIRST_RELEASE), base.nodes))
    now, then = ([simulate(replace(one, seed=seed)) for seed in range(_RUNS)] for one in (base, first))
    ettr = Estimate.of([result.ettr for result in now])
    people = Estimate.of([result.people / base.weeks for result in now])
    alone = unattended(base, 30, _MONTHS)
    causes = base.causes
    sound = replace(causes, reboot=causes.reboot + causes.program, program=0.0)
    without_bugs = unattended(replace(base, causes=sound), 30, _MONTHS)
    return {
        "ettr_default_fleet": ettr.mean,
        "ettr_default_fleet_error": ettr.error,
        "ettr_first_release": Estimate.of([result.ettr for result in then]).mean,
        "person_per_week_default_fleet": people.mean,
        "person_per_week_error": people.error,
        "person_per_week_first_release": Estimate.of([result.people / base.weeks for result in then]).mean,
        "unattended_16x30d": alone.mean,
        "unattended_16x30d_error": alone.error,
        "unattended_16x30d_sound": without_bugs.mean,
        "unattended_16x30d_sound_error": without_bugs.error,
        "unattended_16x30d_first_release": unattended(first, 30, _MONTHS).mean,
    }


def _week(nodes: int, seed: int) -> float:
    """CPU time of one week: jobs of 128 nodes (1,024 GPUs), one spare in 64."""
    policy = FleetPolicy(spares=nodes // 64)
    scenario = Scenario(
        nodes=nodes,
        job_nodes=128,
        per_node_day=RATES["rsc1"].per_node_day,
        policy=policy,
        weeks=1.0,
        causes=llama3_causes(),
        lemons=0.02,
        seed=seed,
    )
    began = time.process_time()
    simulate(scenario)
    return time.process_time() - began
