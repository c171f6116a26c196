"""Findings as a person would say them, for the one line that travels to job records and messages.

Rule ids and raw evidence stay in the findings; here only the sense is told: what is wrong, and on which GPU. The words
are in `phrases.toml`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from ecs_gpu_recovery.health.findings import Finding, one_line
from ecs_gpu_recovery.health.sources import recovery

_LONGEST = 110

_WORDS: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)


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
        return f"{_WORDS['kernel'].get(str(finding.code), evidence)}{where}"
    if finding.kind == "driver" and finding.code in ("hang", "hang-confirmed", "slow"):
        return f"the driver {'is slow' if finding.code == 'slow' else 'hangs'} ({evidence})"
    if finding.kind == "dcgm":
        return f"DCGM: {evidence}{where}"
    return f"{evidence}{where}"


def xid_meaning(code: object) -> str:
    """A few words for an Xid; empty for the rare ones, whose line is in the evidence."""
    return _WORDS["xids"].get(str(code), "")


def _wish(finding: Finding) -> str:
    """The driver's word about a GPU, from a field or from the line of Xid 154."""
    wanted = finding.code if isinstance(finding.code, str) else recovery.from_xid_text(finding.evidence)
    gpu = f"GPU {finding.gpu}" if finding.gpu else "a GPU"
    if wanted == "none":
        return f"the driver asks nothing more for {gpu}"
    return f"the driver asks for {_WORDS['wishes'].get(wanted, repr(wanted))} on {gpu}"
