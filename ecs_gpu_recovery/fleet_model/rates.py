"""How often things break: published figures, and what follows from them. Figures only; each says whose it is.

A node has 8 GPUs. Rates are failures per node and day.
"""

from __future__ import annotations

from dataclasses import dataclass

GPUS_PER_NODE = 8


@dataclass(frozen=True, slots=True)
class Rate:
    """One measured failure rate."""

    name: str
    per_node_day: float
    source: str

    def mttf_h(self, nodes: int) -> float:
        """Mean time to the first failure of so many nodes, in hours."""
        return 24.0 / (self.per_node_day * nodes)


#: Two published means of what jobs really met: 47.7 days at 8 GPUs, 7.9 hours at 1,024.
MEASURED_MTTF_H = {8: 47.7 * 24, 1024: 7.9}
#: Two published projections from the rate of node failures alone.
PROJECTED_MTTF_H = {16384: 1.8, 131072: 0.23}

#: One rate can't meet both: 8 GPUs say 21.0, 1,024 say 23.7 per 1000 node-days. The middle is ours.
_MIDDLE = ((24 / MEASURED_MTTF_H[8]) * (24 / MEASURED_MTTF_H[1024] / 128)) ** 0.5

RATES: dict[str, Rate] = {
    rate.name: rate
    for rate in (
        Rate("rsc1", 6.50e-3, "node failures, RSC-1, 8 x A100 (Meta, HPCA 2025)"),
        Rate("rsc2", 2.34e-3, "node failures, RSC-2, 8 x A100 (Meta, HPCA 2025)"),
        Rate("llama3", 3.79e-3, "419 unexpected interruptions of 2,048 nodes in 54 days (Llama 3 405B)"),
        Rate(
            "jobs", _MIDDLE, "between the two published means of time to failure as jobs met it (fit: ours)"
        ),
    )
}

#: Causes of the 419 unexpected interruptions of Llama 3 405B. The 22 that are not listed count as software.
LLAMA3_CAUSES = {
    "faulty GPU": 148,
    "HBM3 memory": 72,
    "software": 54 + 22,
    "network": 35,
    "host maintenance": 32,
    "SRAM": 19,
    "GSP": 17,
    "NIC": 7,
    "NCCL timeout": 7,
    "silent corruption": 6,
}
#: What helps against each is our reading of NVIDIA's advice, not a published figure.
_REBOOT = ("HBM3 memory", "network", "host maintenance", "GSP", "NCCL timeout", "SRAM")
_REPLACE = ("NIC", "silent corruption")
#: Of the faulty GPUs, this share comes back with a reboot (ours).
FAULTY_GPUS_CURED = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Causes:
    """How failures divide by what helps: a reboot, another node, a plain restart, or a change to the program."""

    reboot: float
    replace: float
    program: float
    restart: float = 0.0
    hang: float = 0.0  #: of all of them, those that end no rank by themselves


def llama3_causes() -> Causes:
    total = sum(LLAMA3_CAUSES.values())
    cured = sum(LLAMA3_CAUSES[name] for name in _REBOOT) + FAULTY_GPUS_CURED * LLAMA3_CAUSES["faulty GPU"]
    swapped = (
        sum(LLAMA3_CAUSES[name] for name in _REPLACE) + (1 - FAULTY_GPUS_CURED) * LLAMA3_CAUSES["faulty GPU"]
    )
    return Causes(reboot=cured / total, replace=swapped / total, program=LLAMA3_CAUSES["software"] / total)


#: Incidents that a plain restart on the same nodes has cured (ByteRobust, 2nd hand).
RESTART_CURES = 0.227
#: Interruptions of Llama 3 405B that took significant work by hand.
BY_HAND = 3 / 419
#: Its causes that freeze a rank instead of ending it: the GPU's firmware does not answer, a collective does not end.
_FREEZE = ("GSP", "NCCL timeout")


def incident_causes() -> Causes:
    """Llama 3's hardware, with what it leaves out: restarts that cure, programs that must be changed, hangs."""
    hardware, total = llama3_causes(), sum(LLAMA3_CAUSES.values())
    left = (1 - RESTART_CURES - BY_HAND) / (hardware.reboot + hardware.replace)
    return Causes(
        reboot=hardware.reboot * left,
        replace=hardware.replace * left,
        program=BY_HAND,
        restart=RESTART_CURES,
        hang=sum(LLAMA3_CAUSES[name] for name in _FREEZE) / total,
    )


#: Hardware alone, and a reboot always helps: what the closed forms below assume.
ONLY_REBOOTS = Causes(reboot=1.0, replace=0.0, program=0.0)


def expected_ettr(nodes: int, per_node_day: float, recovery_min: float, checkpoint_min: float) -> float:
    """The published first-order form: each failure costs one recovery and half an interval.

    It counts failures during recovery too, and goes below the truth when recoveries eat much of the time.
    """
    overhead_days = (recovery_min + checkpoint_min / 2) / (24 * 60)
    return 1 - nodes * per_node_day * overhead_days


def renewal_ettr(nodes: int, per_node_day: float, recovery_min: float, checkpoint_min: float) -> float:
    """The exact form for what is simulated: nothing fails while nothing runs (ours).

    One cycle runs until a failure and is then recovered. Of the run, whole intervals are kept.
    """
    from math import expm1

    rate = nodes * per_node_day / (24 * 60)
    kept = checkpoint_min / expm1(
        rate * checkpoint_min
    )  # expected number of whole intervals before a failure
    return kept / (1 / rate + recovery_min)
