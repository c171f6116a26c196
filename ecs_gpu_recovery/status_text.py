"""What the system is doing for a job at this moment, in one sentence; and its past, told shortly."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from .core.edges import JOB
from .core.job.claim import MOVED
from .core.model import Entry, Job, JobStatus, NodeStatus, TaskStatus
from .core.node_record import Node

#: So many names are told; of more, the number.
MOST_NAMES = 4
#: Entries of the same kind are one line if they are so close together.
CLOSE_S = 3.0


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text with blanks. The text is a key of the catalogues; the blanks are filled after it was translated."""

    key: str
    values: Mapping[str, object] = field(default_factory=dict)


class Said(StrEnum):
    """Whatever is said of a job. The texts are keys of the catalogues."""

    STOPPING = "Stopping the gang: {left} of {all} tasks still run."
    ENDING = "The job is ending: {left} of {all} tasks still run."
    FIRST_CHECK = "Examining {all} nodes before the first start: {done} have answered."
    CHECKING = "Examining {all} nodes: {done} have answered."
    WAITS = "Waits for {left} of {all} nodes since {since}: {nodes}, or others that are free."
    HELD = "The repair of {nodes} {why}. To see and answer it: gpu-recovery permits."
    AWAITING = "Waiting for {nodes}. Then all {all} ranks start again from the last checkpoint."
    RESTARTING = "Starting all ranks again: {done} of {all} run."
    STARTING = "Starting: {done} of {all} ranks run."
    FINISHING = "Finishing: {done} of {all} ranks are done."
    TRAINING = "Training on {all} nodes."
    TRAINING_ALONE = "Training on one node."
    COMPLETE = "The job is complete."
    FAILED = "The job has failed. It needs a person."
    STOPPED = "A person has stopped the job."
    # What a person does next, here in the console.
    MEND_AND_RETRY = "Mend {nodes}: its page says how. Then run the job again."
    MEND = "Mend {nodes}: its page says how."
    FREE = "Free now: {free} of {all} nodes."
    READ_AND_RETRY = "Read the logs, mend the cause, and run the job again."


ENDS = {
    JobStatus.COMPLETE: Said.COMPLETE,
    JobStatus.FAILED: Said.FAILED,
    JobStatus.USER_STOPPED: Said.STOPPED,
}
#: The way from a fault back to training, and the way to the first start.
RECOVERY = ("Stop all ranks", "Check the nodes", "Repair", "Start again", "Train")
FIRST_START = ("Check the nodes", "Start", "Train")


def now_doing(job: Job, nodes: Iterable[Node] = ()) -> Sentence:
    """Read from the ranks, and from the nodes that were handed over where they are known: so it is true whatever the
    last line of the timeline says."""
    count = len(job.ranks)
    live = sum(rank.live for rank in job.ranks)
    answered = sum(rank.verdict is not None for rank in job.ranks)
    if job.status.final:
        return Sentence(ENDS[job.status])
    if job.ending is not None:
        return Sentence(Said.ENDING, {"left": live, "all": count})
    if job.status is JobStatus.PENDING_HEALTHCHECK:
        if job.preflight:
            return Sentence(Said.FIRST_CHECK, {"done": answered, "all": count})
        if live:
            return Sentence(Said.STOPPING, {"left": live, "all": count})
        return Sentence(Said.CHECKING, {"done": answered, "all": count})
    if job.status is JobStatus.PENDING_RESTART:
        return _held(nodes) or _waiting(job)
    started = sum(rank.task_status is not None for rank in job.ranks)
    if job.status is JobStatus.RESTARTING:
        return Sentence(Said.RESTARTING, {"done": started, "all": count})
    if started < count:
        return Sentence(Said.STARTING, {"done": started, "all": count})
    done = sum(rank.task_status is TaskStatus.COMPLETE for rank in job.ranks)
    if done:
        return Sentence(Said.FINISHING, {"done": done, "all": count})
    return Sentence(Said.TRAINING, {"all": count}) if count > 1 else Sentence(Said.TRAINING_ALONE)


def _held(nodes: Iterable[Node]) -> Sentence | None:
    """A repair that only a person lets go on. What it waits for is written beside its order."""
    waits = {
        node.name: order.error
        for node in nodes
        for order in node.outbox
        if node.held and order.key == node.reboot_key and order.error.startswith("waits for ")
    }
    why = next(iter(waits.values()), "")
    return Sentence(Said.HELD, {"nodes": names(list(waits)), "why": why}) if waits else None


def _waiting(job: Job) -> Sentence:
    """For its own nodes, or, where its ranks may move, for any that fit."""
    count = len(job.ranks)
    handed = [rank.node for rank in job.ranks if rank.handed]
    if job.waiting_since is not None and handed:
        since = f"{job.waiting_since:%Y-%m-%d %H:%M} UTC"
        return Sentence(
            Said.WAITS, {"left": len(handed), "all": count, "since": since, "nodes": names(handed)}
        )
    away = [rank.node for rank in job.ranks if rank.node_status is not NodeStatus.AVAILABLE]
    return Sentence(Said.AWAITING, {"nodes": names(away), "all": count})


def recovering(job: Job) -> bool:
    """On its way back from a fault; a job that is checked before its first start has had none."""
    return job.status not in (JobStatus.IN_PROGRESS, *ENDS) and not job.preflight


def steps(job: Job) -> tuple[Sequence[str], int]:
    """The way that the job is on, and how far it is; no way at all for one that trains or has ended."""
    if job.status.final or job.ending is not None:
        return (), 0
    started = all(rank.task_status is not None for rank in job.ranks)
    if job.preflight or (job.attempt == 0 and job.status is JobStatus.IN_PROGRESS and not started):
        return FIRST_START, 0 if job.preflight else 1
    if job.status is JobStatus.PENDING_HEALTHCHECK:
        return RECOVERY, 0 if any(rank.live for rank in job.ranks) else 1
    if job.status is JobStatus.PENDING_RESTART:
        return RECOVERY, 2
    return (RECOVERY, 3) if job.status is JobStatus.RESTARTING or not started else ((), 0)


@dataclass(frozen=True, slots=True)
class Recovery:
    """A fault that the system has mended by itself: when, what it was, and how long the training stood still."""

    at: datetime
    why: str
    seconds: float
    moves: tuple[str, ...] = ()  #: ranks that took other nodes, in words


def recoveries(moves: Iterable[Entry]) -> list[Recovery]:
    """Those that led back to training, oldest first."""
    found, began, why, moved = [], None, "", list[str]()
    for move in moves:
        if move.subject != "job":
            continue
        if move.before == move.after:
            moved += [move.why] if MOVED.fullmatch(move.why) else []
            continue
        if (move.before, move.after) == (JobStatus.IN_PROGRESS, JobStatus.PENDING_HEALTHCHECK):
            began, why, moved = move.at, move.why, []
        elif move.after == JobStatus.PENDING_RESTART:
            why = move.why
        elif move.after == JobStatus.IN_PROGRESS and began is not None:
            found.append(Recovery(began, why, (move.at - began).total_seconds(), tuple(moved)))
            began = None
    return found


def next_step(job: str, nodes: Sequence[str]) -> Sentence | None:
    """What is asked of a person after a job or a node has failed; nothing else is known to be in their hands."""
    if nodes:
        return Sentence(Said.MEND_AND_RETRY if job else Said.MEND, {"nodes": names(nodes)})
    return Sentence(Said.READ_AND_RETRY) if job else None


def names(found: Sequence[str]) -> str:
    if len(found) > MOST_NAMES:
        return f"{', '.join(found[:MOST_NAMES])} +{len(found) - MOST_NAMES}"
    return ", ".join(found) or "–"


def deadline(job: Job, nodes: Iterable[Node] = ()) -> datetime | None:
    """When the present wait ends at the latest; a job that trains or finishes waits for nothing that ends. A node that
    was handed over has the deadline of its repair in its own record."""
    if now_doing(job).key == Said.FINISHING:  # by then a rank must be seen again, and it is, again and again
        return None
    handed = {rank.node for rank in job.ranks if rank.handed}
    waits = [rank.deadline for rank in job.ranks] + [node.deadline for node in nodes if node.name in handed]
    return None if job.status.final else min((wait for wait in waits if wait is not None), default=None)


def grouped(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Nodes that did the same thing at the same time share a line; a move of the job comes with its rule."""
    found: list[dict[str, Any]] = []
    for entry in entries:
        twin = _twin(found, entry)
        if twin is not None:
            twin["subjects"].append(entry["subject"])
        else:
            found.append({**entry, "subjects": [entry["subject"]], "rule": _rule(entry)})
    return found


def _twin(found: Sequence[dict[str, Any]], entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """The line that this entry belongs to, if it came a moment ago and the job has not moved since."""
    same = ("before", "after", "why", "evidence", "attempt", "job")
    line: dict[str, Any]
    for line in reversed(found):
        if "job" in (entry["subject"], line["subject"]) or _apart_s(line["at"], entry["at"]) > CLOSE_S:
            return None
        if entry["subject"] in line["subjects"]:
            return None
        if all(entry.get(key) == line.get(key) for key in same):
            return line
    return None


def _apart_s(first: str, second: str) -> float:
    return abs((datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds())


def _rule(entry: Mapping[str, Any]) -> str:
    """The line of the transition table that a move of a job followed."""
    edge = JOB.get((entry["before"], entry["after"])) if entry["subject"] == "job" else None
    return edge.why if edge is not None and edge.why != entry["why"] else ""


def items_of(text: str) -> list[str]:
    """Evidence as one line for each thing that was found: it is joined by semicolons, outside of brackets."""
    found, depth = [""], 0
    for part in re.split(r"([();] ?)", text):
        depth += {"(": 1, ")": -1}.get(part.strip(), 0)
        if part.strip() == ";" and depth <= 0:
            found.append("")
        else:
            found[-1] += part
    return [line.strip() for line in found if line.strip()]
