"""What the system is doing for a job at this moment, in one sentence; and its past, told shortly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..core.edges import JOB
from ..core.model import Job, JobStatus, NodeStatus, TaskStatus

#: So many names are told; of more, the number.
MOST_NAMES = 4
#: Entries of the same kind are one line if they are so close together.
CLOSE_S = 3.0


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text with blanks. The text is a key of `texts`; the blanks are filled after it was translated."""

    key: str
    values: Mapping[str, object] = field(default_factory=dict)


STOPPING = "Stopping the gang: {left} of {all} tasks still run."
ENDING = "The job is ending: {left} of {all} tasks still run."
FIRST_CHECK = "Examining {all} nodes before the first start: {done} have answered."
CHECKING = "Examining {all} nodes: {done} have answered."
AWAITING = "Waiting for {nodes}. Then all {all} ranks start again from the last checkpoint."
RESTARTING = "Starting all ranks again: {done} of {all} run."
STARTING = "Starting: {done} of {all} ranks run."
FINISHING = "Finishing: {done} of {all} ranks are done."
TRAINING = "Training on {all} nodes."
TRAINING_ALONE = "Training on one node."
ENDED = "Nothing: the job has ended."
SENTENCES = (
    *(STOPPING, ENDING, FIRST_CHECK, CHECKING, AWAITING, RESTARTING, STARTING, FINISHING, TRAINING),
    *(TRAINING_ALONE, ENDED),
)


def now_doing(job: Job) -> Sentence:
    """Read from the ranks, so it is true whatever the last line of the timeline says."""
    count = len(job.ranks)
    live = sum(rank.live for rank in job.ranks)
    answered = sum(rank.verdict is not None for rank in job.ranks)
    if job.status.final:
        return Sentence(ENDED)
    if job.ending is not None:
        return Sentence(ENDING, {"left": live, "all": count})
    if job.status is JobStatus.PENDING_HEALTHCHECK:
        if job.preflight:
            return Sentence(FIRST_CHECK, {"done": answered, "all": count})
        if live:
            return Sentence(STOPPING, {"left": live, "all": count})
        return Sentence(CHECKING, {"done": answered, "all": count})
    if job.status is JobStatus.PENDING_RESTART:
        away = [rank.node for rank in job.ranks if rank.node_status is not NodeStatus.AVAILABLE]
        return Sentence(AWAITING, {"nodes": names(away), "all": count})
    started = sum(rank.task_status is not None for rank in job.ranks)
    if job.status is JobStatus.RESTARTING:
        return Sentence(RESTARTING, {"done": started, "all": count})
    if started < count:
        return Sentence(STARTING, {"done": started, "all": count})
    done = sum(rank.task_status is TaskStatus.COMPLETE for rank in job.ranks)
    if done:
        return Sentence(FINISHING, {"done": done, "all": count})
    return Sentence(TRAINING, {"all": count}) if count > 1 else Sentence(TRAINING_ALONE)


def names(found: Sequence[str]) -> str:
    if len(found) > MOST_NAMES:
        return f"{', '.join(found[:MOST_NAMES])} +{len(found) - MOST_NAMES}"
    return ", ".join(found) or "–"


def deadline(job: Job) -> datetime | None:
    """When the present wait ends at the latest; a job that trains waits for nothing."""
    waits = [rank.deadline for rank in job.ranks if rank.deadline is not None]
    return None if job.status.final else min(waits, default=None)


def grouped(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Nodes that did the same thing at the same time share a line; a move of the job comes with its rule."""
    found: list[dict[str, Any]] = []
    for entry in entries:
        same = ("before", "after", "why", "evidence", "attempt", "job")
        last = found[-1] if found else None
        if (
            last is not None
            and "job" not in (entry["subject"], last["subject"])
            and all(entry.get(key) == last.get(key) for key in same)
            and entry["subject"] not in last["subjects"]
            and _apart_s(last["at"], entry["at"]) <= CLOSE_S
        ):
            last["subjects"].append(entry["subject"])
            continue
        found.append({**entry, "subjects": [entry["subject"]], "rule": _rule(entry)})
    return found


def _apart_s(first: str, second: str) -> float:
    return abs((datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds())


def _rule(entry: Mapping[str, Any]) -> str:
    """The line of the transition table that a move of a job followed."""
    edge = JOB.get((entry["before"], entry["after"])) if entry["subject"] == "job" else None
    return edge.why if edge is not None and edge.why != entry["why"] else ""
