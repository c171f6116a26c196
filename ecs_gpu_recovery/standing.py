"""Where a node stands, in one of four plain words, with the reason beside it.

The stored state AVAILABLE means four things to people: free, drained, waiting inside a job that recovers, and known to
be bad. The state stays as other tools read it; what people see is said here, for the commands, the pages and the API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .core.events import FAULT
from .core.model import NodeStatus, Verdict
from .core.node.repair import COMPANY, PERMIT, REPLACES
from .core.node_record import Node

FREE, BUSY, DRAINED, BAD = WORDS = ("free", "busy", "drained", "bad")

#: What a node is busy with, for a job or for itself. The texts are keys of the catalogues.
BUSY_WITH = {
    NodeStatus.ASSIGNED: "about to start",
    NodeStatus.IN_PROGRESS: "running",
    NodeStatus.PENDING: "stopping",
    NodeStatus.PENDING_HEALTHCHECK: "under check",
    NodeStatus.REBOOTING: "rebooting",
    NodeStatus.AVAILABLE: "waiting for the rest of its job",
}
BY_PERSON = "by {by}: {why}"
LEAVES = "to be taken away: {why}"
MAY_LEAVE = "may be taken away soon: {why}"
SILENT = "not heard from"
REPLACING = "its machine is being replaced"
REPLACED = "its machine is gone; {by} has come for it"
UNTESTED = "not tested: {found}"
SPARE = "kept as a spare"
SPARE_UNTESTED = "kept as a spare; not tested: {found}"
GPUS_GONE = "only {seen} of {all} GPUs are there"
GIVEN = "{found}"
NEEDS_PERSON = "a person must look at it"
WAITS = (PERMIT, COMPANY, REPLACES[PERMIT], REPLACES[COMPANY])
TEXTS = (
    *BUSY_WITH.values(),
    *(
        BY_PERSON,
        LEAVES,
        MAY_LEAVE,
        SILENT,
        REPLACING,
        REPLACED,
        *WAITS,
        UNTESTED,
        SPARE,
        SPARE_UNTESTED,
        GPUS_GONE,
    ),
    *(GIVEN, NEEDS_PERSON),
)
#: A fault that was reported is settled by what comes after it.
_SETTLES = frozenset({NodeStatus.PENDING_HEALTHCHECK, NodeStatus.REBOOTING, NodeStatus.FAILED})


@dataclass(frozen=True, slots=True)
class Standing:
    """`text` is a key of the catalogues with blanks; `why` is the same filled in, in English."""

    word: str
    text: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def why(self) -> str:
        return self.text.format(**self.values)


def standing(node: Node) -> Standing:
    """What a person wants to know of a node first: can I have it, and if not, why not?"""
    if (out := _out_of_use(node)) is not None:
        return out
    if node.held:
        waits = [entry.why for entry in node.timeline if entry.why in WAITS]
        return Standing(BUSY, waits[-1] if waits else PERMIT)
    if node.job_id or node.hold is not None or node.leave is not None:
        return _kept(node)
    if node.status is not NodeStatus.AVAILABLE:
        return Standing(BUSY, BUSY_WITH[node.status])
    if fault := _known_fault(node):
        return Standing(BAD, GIVEN, {"found": fault})
    if not node.all_gpus_back:
        return Standing(BAD, GPUS_GONE, {"seen": node.gpus_seen, "all": node.gpus})
    if node.verdict is Verdict.INCONCLUSIVE:
        return Standing(FREE, SPARE_UNTESTED if node.spare else UNTESTED, {"found": node.findings})
    return Standing(FREE, SPARE if node.spare else "")


def _out_of_use(node: Node) -> Standing | None:
    """Not to be had by anybody. One whose machine is replaced needs nobody to look at it."""
    if node.replaced_by and node.gone:
        return Standing(DRAINED, REPLACED, {"by": node.replaced_by})
    if node.status is NodeStatus.FAILED:
        return (
            Standing(BAD, GIVEN, {"found": node.findings}) if node.findings else Standing(BAD, NEEDS_PERSON)
        )
    if node.being_replaced and node.status in (NodeStatus.REBOOTING, NodeStatus.UNKNOWN):
        return Standing(BUSY, REPLACING)
    return Standing(BAD, SILENT) if node.status is NodeStatus.UNKNOWN else None


def _kept(node: Node) -> Standing:
    """By a job, by a person, or because it is to be taken away."""
    if node.hold is not None and not node.job_id:
        return Standing(DRAINED, BY_PERSON, {"by": node.hold.by, "why": node.hold.why})
    if node.leave is None:
        return Standing(BUSY, BUSY_WITH[node.status])
    text = LEAVES if node.leave.moves else MAY_LEAVE
    return Standing(BUSY if node.job_id else DRAINED, text, {"why": node.leave.why})


def _known_fault(node: Node) -> str:
    """What its driver said of a GPU since it was last examined, rebooted or released."""
    if node.verdict in (Verdict.REBOOT, Verdict.REPLACE):
        return node.findings or f"verdict {node.verdict}"
    for entry in reversed(node.timeline):
        if entry.before != entry.after and entry.before in _SETTLES:
            return ""
        if entry.why == FAULT:
            return entry.evidence.partition(" | ")[0]
    return ""


def standing_view(node: Node) -> dict[str, Any]:
    """For JSON: the word, the reason, and what a translation is made of."""
    said = standing(node)
    return {"word": said.word, "why": said.why, "text": said.text, "values": dict(said.values)}
