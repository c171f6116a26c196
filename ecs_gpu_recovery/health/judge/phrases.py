"""Findings as a person would say them, for the one line that travels to job records and messages.

Rule ids and raw evidence stay in the findings; here only the sense is told: what is wrong, and on which GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from ecs_gpu_recovery.health.findings import Finding, one_line
from ecs_gpu_recovery.health.sources import recovery

_LONGEST = 110

_XIDS = {
    8: "a program's command timed out",
    11: "a program's command was invalid",
    13: "bad instruction or address in a program",
    31: "bad memory access by a program",
    32: "corrupted commands from a program",
    43: "a program was stopped",
    45: "a program was ended",
    46: "GPU stopped processing",
    48: "double-bit memory error",
    54: "auxiliary power missing",
    61: "on-board controller stuck",
    62: "on-board controller halted",
    63: "memory row to be remapped",
    64: "memory row could not be remapped",
    68: "video engine error in a program",
    69: "graphics engine error in a program",
    74: "NVLink failure",
    78: "driver versions don't match",
    79: "fallen off the bus",
    92: "many single-bit memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timed out",
    110: "security fault",
    119: "GPU firmware does not answer",
    120: "GPU firmware crashed",
    136: "NVLink training failed",
    140: "memory error not recovered",
    142: "hardware unit failed",
    143: "start-up failed",
    151: "encrypted session lost",
    155: "NVLink: software-defined error",
    156: "resource retirement",
    158: "GPU fatal timeout",
    175: "memory unit failed under the firmware",
}
_NVLINK5 = range(144, 151)

_KERNEL = {
    "reboot-asked": "the driver's memory manager asks for a reboot",
    "gpu-lost": "the driver lost a GPU from the bus",
    "reset-asked": "the driver finds a GPU in a bad state and asks for a reset",
    "link-discovery": "the driver fails to find out which NVLinks are up",
    "gpu-locked": "the driver finds a GPU probably locked",
    "controller-halted": "the GPU's power controller has halted",
    "chip-reset": "a GPU is being reset whole",
    "memory-subsystem": "a GPU's memory unit reports an error",
    "firmware-silent": "the GPU's firmware was silent for some seconds",
    "xid-cut": "an Xid whose number is cut off",
    "bus-error": "a PCIe error from which the GPU's driver cannot recover",
}

_WISHES = {
    "gpu_reset": "a reset",
    "node_reboot": "a reboot",
    "drain_p2p": "a drain of its peers",
    "drain_and_reset": "a drain and a reset",
    "bus_reset": "a reset of its bus",
    "system_reboot": "a reboot",
    "recover_imex_domain": "its memory domain to be restored",
}


def tell(findings: Sequence[Finding], limit: int = 3) -> str:
    """A few findings in one breath; the rest is counted."""
    told = list(dict.fromkeys(map(phrase, findings)))
    more = len(told) - limit
    return "; ".join(told[:limit]) + (f"; and {more} more" if more > 0 else "")


def phrase(finding: Finding) -> str:
    """One finding: what, where, and whether it is back."""
    text = _sense(finding)
    if finding.rule.endswith("/again"):
        return f"{text}, back after a reboot"
    if finding.rule.endswith("/repeat"):
        return f"{text}, {finding.count} times"
    return text


def _sense(finding: Finding) -> str:
    where = f" on GPU {finding.gpu}" if finding.gpu else ""
    evidence = one_line(finding.evidence.removeprefix("back after a reboot: "), _LONGEST)
    if finding.kind == "xid":
        meaning = xid_meaning(finding.code)
        return f"Xid {finding.code}{where}{f' ({meaning})' if meaning else ''}"
    if finding.kind == "sxid":
        return f"NVSwitch error SXid {finding.code}"
    if finding.kind == "recovery":
        return _wish(finding)
    if finding.kind == "driver-init":
        return f"the driver could not start {f'GPU {finding.gpu}' if finding.gpu else 'a GPU'}"
    if finding.kind == "kernel":
        return f"{_KERNEL.get(str(finding.code), evidence)}{where}"
    if finding.kind == "driver" and finding.code in ("hang", "hang-confirmed", "slow"):
        return f"the driver {'is slow' if finding.code == 'slow' else 'hangs'} ({evidence})"
    if finding.kind == "dcgm":
        return f"DCGM: {evidence}{where}"
    return f"{evidence}{where}"


def xid_meaning(code: object) -> str:
    """A few words for an Xid; empty for the rare ones, whose line is in the evidence."""
    if not isinstance(code, int):
        return ""
    return "NVLink error" if code in _NVLINK5 else _XIDS.get(code, "")


def _wish(finding: Finding) -> str:
    """The driver's word about a GPU, from a field or from the line of Xid 154."""
    wanted = finding.code if isinstance(finding.code, str) else recovery.from_xid_text(finding.evidence)
    gpu = f"GPU {finding.gpu}" if finding.gpu else "a GPU"
    if wanted == "none":
        return f"the driver asks nothing more for {gpu}"
    return f"the driver asks for {_WISHES.get(wanted, f'{wanted!r}')} on {gpu}"
