"""The fleet model: how long one simulated week takes, and how that grows with the fleet."""

from __future__ import annotations

import time
from statistics import median

from ecs_gpu_recovery.fleet_model.fleet import Scenario, simulate
from ecs_gpu_recovery.fleet_model.policies import FleetPolicy
from ecs_gpu_recovery.fleet_model.rates import RATES, llama3_causes

_SMALL, _LARGE = 4_096, 16_384
_ROUNDS = 7


def measure() -> dict[str, float]:
    """The two sizes take turns, so that a busy machine slows both."""
    small, large = [], []
    for seed in range(_ROUNDS):
        small.append(_week(_SMALL, seed))
        large.append(_week(_LARGE, seed))
    return {
        "fleet_week_16384_s": median(large),
        "fleet_growth": median(large) / (_LARGE / _SMALL * median(small)),
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
