"""What the checks find, and the words in which it is said.

A check states facts; a rule of the policy turns each fact into a `Finding` with an action; the verdict is
read off the actions. Nothing here touches a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum


class Action(StrEnum):
    """What one finding asks for, taken by itself."""

    NONE = "none"
    """Recorded and harmless."""
    WATCH = "watch"
    """Worth a person's look some day; never acts."""
    CONFIG = "config"
    """A setting or a library is wrong; a person fixes it, a reboot would not."""
    APPLICATION = "application"
    """The program on the GPU did this; the GPU itself is sound."""
    HOST = "host"
    """The machine around the GPU has a problem: disk, network, shared files, clock."""
    NOT_TESTED = "not_tested"
    """This check could not run, so it says nothing about the GPU."""
    WARN = "warn"
    """Unknown to the rules. Acts only together with a second witness; alone the node stays healthy."""
    SUSPECT = "suspect"
    """Something failed, but not proof enough. Acts only with a second witness; alone it is inconclusive."""
    REBOOT = "reboot"
    """A GPU fault that a reset or a restart of the machine may cure."""
    REPLACE = "replace"
    """A GPU fault that comes back after a reboot; the hardware has to be changed."""


class Verdict(StrEnum):
    """The one answer about the node's GPUs."""

    HEALTHY = "healthy"
    """The GPUs were looked at and no fault of theirs was found."""
    REBOOT = "reboot"
    """A GPU fault that a reboot may cure."""
    REPLACE = "replace"
    """A GPU fault that a reboot will not cure."""
    INCONCLUSIVE = "inconclusive"
    """The GPUs could not be tested; this proves nothing, least of all that they are bad."""

    @property
    def exit_code(self) -> int:
        """The exit code that carries this verdict."""
        return _EXIT_CODES[self]


_EXIT_CODES = {Verdict.HEALTHY: 0, Verdict.REBOOT: 1, Verdict.REPLACE: 2, Verdict.INCONCLUSIVE: 3}

_SEVERITIES = {Action.NONE: "info", Action.REBOOT: "error", Action.REPLACE: "critical"}

WITNESSES = frozenset({Action.WARN, Action.SUSPECT})
FAULTS = frozenset({Action.REBOOT, Action.REPLACE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact with its evidence, the rule that judged it, and what that rule asks for."""

    source: str
    """Who said it: kernel-log, nvml, nvidia-smi, simulated, dcgm-diag, dcgm-health, training-log or host."""
    kind: str
    """What it is about: xid, sxid, recovery, ecc, count, nvlink, pcie, clocks, disk ..."""
    code: int | str
    """The Xid, SXid or DCGM number, or the word of the condition."""
    action: Action
    rule: str
    why: str
    evidence: str
    gpu: str | None = None
    """PCI id (0000:0a:00) where known, else the index; None when it concerns the whole node."""
    count: int = 1
    first_at: str | None = None
    last_at: str | None = None

    @property
    def severity(self) -> str:
        """info, warning, error or critical: how loudly a person should be told."""
        return _SEVERITIES.get(self.action, "warning")

    def to_json(self) -> dict[str, object]:
        """The finding as the report shows it."""
        return {**asdict(self), "severity": self.severity}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check that was asked for: did it answer, and how long did that take?"""

    name: str
    status: str
    """ok, findings, hung or not_tested."""
    detail: str
    seconds: float = 0.0
    untested: str = ""
    """What of it could not be tested, for a verdict that would otherwise sound as if everything had been."""
    note: str = ""
    """What else the verdict's sentence must say."""

    @property
    def answered(self) -> bool:
        """True when the check really looked at something."""
        return self.status in ("ok", "findings")

    def to_json(self) -> dict[str, object]:
        """The check as the report shows it."""
        seconds = round(self.seconds, 3)
        return {"name": self.name, "status": self.status, "detail": self.detail, "seconds": seconds}


def status_of(found: Iterable[Finding]) -> str:
    """What a check that answered has to show: only what asks for nothing is no finding."""
    return "findings" if any(f.action is not Action.NONE for f in found) else "ok"


def one_line(text: str, limit: int = 300) -> str:
    """Evidence for a table and a JSON string: printable, on one line, of bounded length."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
