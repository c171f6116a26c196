"""What the GPUs of each rank of a job do, in a word, and what their power was over the last time.

A node tells that its GPUs stand still again and again while they do. One that said so and says nothing more is silent:
its word is old. A node that has told of no standstill has nothing to tell, or nobody watches it: then there is no word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ..core.job import hang
from ..core.model import Entry, Job, JobStatus
from ..core.policy import Policy
from ..core.witness import FLAT, IDLE, MOVING

SILENT = "silent"
#: What each word means, for people. The words and the texts are keys of the catalogues.
MEANINGS = {
    MOVING: "its GPUs work",
    FLAT: "its GPUs spin in a collective that does not end",
    IDLE: "a program holds its GPUs and lets them rest",
    SILENT: "its GPUs stood still, and its agent says nothing any more",
}
#: How far back a chart looks, and of how many ranks there are charts.
LOOK_BACK = timedelta(minutes=15)
MOST_CHARTS = 64


@dataclass(frozen=True, slots=True)
class RankPulse:
    """`still` is the time in which the GPUs are known to have stood still."""

    word: str = ""
    still: tuple[datetime, datetime] | None = None


def span_of(job: Job, now: datetime) -> tuple[datetime, datetime]:
    """The time that a chart shows. Of a job that has ended its last: what its nodes do now says nothing about it."""
    end = job.updated_at if job.status.final else now
    return max(job.created_at, end - LOOK_BACK), end


def of_ranks(
    job: Job, nodes: Iterable[Mapping[str, Any]], policy: Policy, now: datetime
) -> dict[int, RankPulse]:
    """By rank, while the gang runs; what was said of it before it was started again is over."""
    moves = [entry.at for entry in job.timeline if entry.subject == "job" and entry.before != entry.after]
    began = max(moves, default=job.created_at)
    held = {node["name"]: node["pulse"] for node in nodes if node["job_id"] == job.id and node["pulse"]}
    return {
        rank.index: _pulse(held[rank.node], policy, now)
        for rank in job.ranks
        if rank.node in held and job.status is JobStatus.IN_PROGRESS
        if datetime.fromisoformat(held[rank.node]["at"]) >= began
    }


def _pulse(told: Mapping[str, Any], policy: Policy, now: datetime) -> RankPulse:
    since, at = datetime.fromisoformat(told["since"]), datetime.fromisoformat(told["at"])
    if told["state"] not in (FLAT, IDLE):
        return RankPulse(MOVING)
    old = now - at > policy.witness_age
    return RankPulse(SILENT if old else str(told["state"]), (since, at if old else now))


def still_since(
    job: Job, nodes: Iterable[Mapping[str, Any]], policy: Policy, now: datetime
) -> datetime | None:
    """Since when no GPU of a gang works, if that is too long for a pause and some of them spin."""
    found = of_ranks(job, nodes, policy, now).values()
    words = {pulse.word for pulse in found}
    if len(found) < len(job.ranks) or not words <= {FLAT, IDLE} or FLAT not in words:
        return None
    since = max(pulse.still[0] for pulse in found if pulse.still is not None)
    return since if now - since >= policy.silent_after else None


def frozen(job: Job) -> list[str]:
    """Nodes whose rank has neither ended nor got further since a fatal GPU fault, and nothing is done about it yet."""
    running = job.status is JobStatus.IN_PROGRESS
    return [rank.node for rank in job.ranks if running and rank.live and rank.frozen_at is not None]


def hangs_seen(entries: Sequence[Entry]) -> list[datetime]:
    """The moments in which the job was said to hang, or that it may."""
    return [
        entry.at
        for entry in entries
        if entry.subject == "job" and (entry.why == hang.NOTED or entry.why.startswith(hang.SEEN))
    ]
