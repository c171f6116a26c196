"""The state of each GPU as the driver shows it, and what in it is a finding.

NVML, nvidia-smi and the simulated node all fill the same `GpuState`, so one set of rules judges them. A
field that could not be read is None and never counts as good or bad.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from ecs_gpu_recovery.health.findings import Finding
from ecs_gpu_recovery.health.policy import Policy

HELD_BY_HARDWARE = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU, one moment. Only plain values, so that a child process can send it up as JSON."""

    index: int | None = None
    uuid: str | None = None
    bus_id: str | None = None
    name: str | None = None
    lost: str | None = None
    """The driver's words when it knows the GPU but cannot talk to it."""
    error: str | None = None
    """The driver's words when one question about the GPU failed for another reason."""
    reset_required: bool | None = None
    recovery_action: str | None = None
    ecc_uncorrectable: int | None = None
    """Since the driver was loaded."""
    ecc_uncorrectable_ever: int | None = None
    ecc_mode_pending: bool | None = None
    sram_threshold_exceeded: bool | None = None
    unrepairable_memory: bool | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    remap_banks_without_spares: int | None = None
    retired_pages_pending: bool | None = None
    tpc_repair_pending: bool | None = None
    channel_repair_pending: bool | None = None
    nvlinks_up: int | None = None
    nvlinks_down: int | None = None
    fabric_state: str | None = None
    """not_supported, not_started, in_progress or completed."""
    fabric_status: str | None = None
    fabric_health: str | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    clocks_held_by: tuple[str, ...] = ()
    idle: bool | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    sm_mhz: float | None = None
    memory_used_mib: float | None = None
    memory_total_mib: float | None = None
    utilization: float | None = None

    @property
    def label(self) -> str | None:
        """How findings name this GPU: the PCI id, which every source can be brought to."""
        return self.bus_id or (str(self.index) if self.index is not None else self.uuid)

    def to_json(self) -> dict[str, object]:
        """Only what is known."""
        return {key: value for key, value in asdict(self).items() if value is not None and value != ()}

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> GpuState:
        """Back from a child process; keys we don't know are dropped."""
        known = {f.name for f in fields(cls)}
        values: dict[str, object] = {key: value for key, value in data.items() if key in known}
        held = values.get("clocks_held_by")
        values["clocks_held_by"] = tuple(map(str, held)) if isinstance(held, (list, tuple)) else ()
        return cls(**values)  # type: ignore[arg-type]


Fact = tuple[str, str, str]
"""(kind, condition in the policy, evidence)"""


def judge(
    gpus: Sequence[GpuState], *, source: str, policy: Policy, expected: int | None, in_part: bool = False
) -> list[Finding]:
    """All findings about the GPUs the driver shows, the driver's own wish first."""
    findings = [
        policy.rule("recovery", gpu.recovery_action).finding(
            source=source,
            kind="recovery",
            code=gpu.recovery_action,
            gpu=gpu.label,
            evidence=f"recovery action {gpu.recovery_action}",
        )
        for gpu in gpus
        if gpu.recovery_action not in (None, "none")
    ]
    findings += count(len(gpus), source=source, policy=policy, expected=expected, in_part=in_part)
    for gpu in gpus:
        for kind, condition, evidence in _facts(gpu, gpus):
            rule = policy.rule("driver", condition)
            found = rule.finding(source=source, kind=kind, code=condition, gpu=gpu.label, evidence=evidence)
            findings.append(found)
    return findings


def count(
    seen: int, *, source: str, policy: Policy, expected: int | None, in_part: bool = False
) -> list[Finding]:
    """The number of GPUs against the number the node should have. `in_part`: only some were asked about."""
    if expected is None or seen == expected:
        return []
    condition = ("shown-in-part" if in_part else "count-low") if seen < expected else "count-high"
    evidence = f"{seen} of {expected} GPUs found"
    rule = policy.rule("driver", condition)
    return [rule.finding(source=source, kind="count", code=condition, evidence=evidence)]


def _facts(gpu: GpuState, all_gpus: Sequence[GpuState]) -> Iterator[Fact]:
    if gpu.lost:
        yield "driver", "gpu-lost", gpu.lost
    if gpu.error:
        yield "driver", "device-error", gpu.error
    if gpu.reset_required:
        yield "driver", "reset-required", "the driver says that a reset is required"
    yield from _memory(gpu)
    yield from _links(gpu, all_gpus)
    held = [reason for reason in gpu.clocks_held_by if reason in HELD_BY_HARDWARE]
    if held:
        yield "clocks", "clocks-held", f"clocks held down: {', '.join(held)}"


def _memory(gpu: GpuState) -> Iterator[Fact]:
    flags: Iterable[tuple[bool | None, str, str]] = (
        (gpu.sram_threshold_exceeded, "sram-threshold", "SRAM error threshold exceeded"),
        (gpu.unrepairable_memory, "unrepairable-memory", "memory marked as unrepairable"),
        (gpu.remap_failure, "remap-failure", "row remapping failed"),
        (gpu.remap_pending, "remap-pending", "row remapping pending"),
        (gpu.retired_pages_pending, "retired-pending", "page retirement pending"),
        (gpu.tpc_repair_pending, "tpc-repair-pending", "repair of a processing cluster pending"),
        (gpu.channel_repair_pending, "channel-repair-pending", "repair of a memory channel pending"),
        (gpu.ecc_mode_pending, "ecc-mode-pending", "a change of the ECC mode waits for a reboot"),
    )
    for flag, condition, evidence in flags:
        if flag:
            yield "ecc", condition, evidence
    if gpu.ecc_uncorrectable:
        yield "ecc", "ecc-volatile", f"{gpu.ecc_uncorrectable} uncorrectable error(s) since driver load"
    elif gpu.ecc_uncorrectable_ever:
        yield "ecc", "ecc-aggregate", f"{gpu.ecc_uncorrectable_ever} uncorrectable error(s) ever"
    if gpu.remap_banks_without_spares:
        yield "ecc", "remap-spares-gone", f"{gpu.remap_banks_without_spares} bank(s) without spare rows"


def _links(gpu: GpuState, all_gpus: Sequence[GpuState]) -> Iterator[Fact]:
    twins = [other.nvlinks_up or 0 for other in all_gpus if other.name == gpu.name]
    if gpu.nvlinks_up and gpu.nvlinks_down and gpu.nvlinks_up < max(twins, default=0):
        yield "nvlink", "nvlink-down", f"{gpu.nvlinks_up} NVLink(s) up, {max(twins)} on its twins"
    if gpu.fabric_state == "not_started":
        yield "fabric", "fabric-not-started", "the fabric manager has not begun with this GPU"
    elif gpu.fabric_state == "in_progress":
        yield "fabric", "fabric-pending", "joining the fabric is still in progress"
    elif gpu.fabric_state == "completed" and (gpu.fabric_status or "success") != "success":
        yield "fabric", "fabric-failed", f"fabric status {gpu.fabric_status}"
    if gpu.fabric_health:
        yield "fabric", "fabric-unhealthy", f"fabric health: {gpu.fabric_health}"
    if _below(gpu.pcie_width, gpu.pcie_width_max):
        yield "pcie", "pcie-width", f"PCIe x{gpu.pcie_width} of x{gpu.pcie_width_max}"
    if gpu.idle is False and _below(gpu.pcie_generation, gpu.pcie_generation_max):
        yield "pcie", "pcie-generation", f"PCIe generation {gpu.pcie_generation} of {gpu.pcie_generation_max}"


def _below(value: int | None, limit: int | None) -> bool:
    return value is not None and limit is not None and 0 < value < limit
