"""What the overview says before everything else. It is green only when nothing is known to be wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from ..core.model import Job, JobStatus, NodeStatus
from ..standing import BAD
from ..status_text import Sentence, names, recovering
from . import pulses


class News(StrEnum):
    """Whatever it may say. The texts are keys of the catalogues."""

    WELL = "All is well. Active jobs: {count}."
    IDLE = "All is well. No job is active."
    RECOVERS = "{job} is recovering by itself."
    RECOVER = "{count} jobs are recovering by themselves."
    BROKEN = "Needs repair: {nodes}."
    SILENT = "Not heard from: {nodes}."
    FAULTY = "A fault was reported, and no job has met it yet: {nodes}."
    FROZEN = "No sign of life from a rank of {job} since a fatal GPU fault: {nodes}."
    STILL = "No GPU of {job} has worked since {time} UTC."
    HELD = "A repair waits for a permit: {nodes}."
    ICE = "The fleet is frozen, so no node is repaired: {why}"
    STUCK = "An order of {job} keeps failing: {error}"
    INCIDENTS = "Messages that nobody has acknowledged: {count}."
    NO_FLEET = "There are no nodes yet."


#: Where on the overview the fleet is.
FLEET = "#h-fleet"
#: An order that has failed so often is no hiccup any more.
_TRIES = 5

RED, AMBER, GREEN = NodeStatus.FAILED, NodeStatus.PENDING, JobStatus.COMPLETE


@dataclass(frozen=True, slots=True)
class Headline:
    """One thing that matters now, with the colour and shape of a state, and where to look."""

    status: str
    said: Sentence
    href: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the overview knows: how many jobs have not ended and some of them, and all nodes as they are shown."""

    live: int
    jobs: Sequence[Job]
    nodes: Sequence[Mapping[str, Any]]
    incidents: int = 0  #: open ones, beside those of nodes
    still: Mapping[str, datetime] = field(default_factory=dict)  #: jobs none of whose GPUs works, since when
    frozen: str = ""  #: why no node is repaired now


def _bad(seen: Seen, status: NodeStatus) -> list[Mapping[str, Any]]:
    """A machine that is being replaced, or was, or is just gone, is nobody's trouble."""
    bad = [n for n in seen.nodes if n["status"] == status and n["standing"]["word"] == BAD]
    return [n for n in bad if not n["retired"]]


def broken_nodes(seen: Seen) -> Iterator[Headline]:
    yield from _of_nodes(_bad(seen, NodeStatus.FAILED), RED, News.BROKEN)


def silent_nodes(seen: Seen) -> Iterator[Headline]:
    yield from _of_nodes(_bad(seen, NodeStatus.UNKNOWN), AMBER, News.SILENT)


def faulty_nodes(seen: Seen) -> Iterator[Headline]:
    """Free, and known to be bad: the next job would meet it."""
    yield from _of_nodes(_bad(seen, NodeStatus.AVAILABLE), AMBER, News.FAULTY)


def held_nodes(seen: Seen) -> Iterator[Headline]:
    """A reboot or a replacement that the fleet's guard, or a person who is asked, has yet to let go."""
    for line in _of_nodes([n for n in seen.nodes if n["held"]], AMBER, News.HELD):
        yield replace(line, href=FLEET)  # there it can be answered


def frozen_fleet(seen: Seen) -> Iterator[Headline]:
    if seen.frozen:
        yield Headline(AMBER, Sentence(News.ICE, {"why": seen.frozen}), FLEET)


def frozen_ranks(seen: Seen) -> Iterator[Headline]:
    """A rank that has not ended, and does not work: the job is shown as running until it is stopped."""
    for job in seen.jobs:
        where = f"/jobs/{quote(job.id)}"
        if nodes := pulses.frozen(job):
            yield Headline(AMBER, Sentence(News.FROZEN, {"job": job.id, "nodes": names(nodes)}), where)
        elif job.id in seen.still:
            said = Sentence(News.STILL, {"job": job.id, "time": f"{seen.still[job.id]:%H:%M:%S}"})
            yield Headline(AMBER, said, where)


def stuck_orders(seen: Seen) -> Iterator[Headline]:
    for job in seen.jobs:
        for order in job.outbox:
            if order.tries >= _TRIES:
                said = Sentence(News.STUCK, {"job": job.id, "error": order.error[:160]})
                yield Headline(AMBER, said, f"/jobs/{quote(job.id)}")
                break


def open_incidents(seen: Seen) -> Iterator[Headline]:
    if seen.incidents:
        yield Headline(AMBER, Sentence(News.INCIDENTS, {"count": seen.incidents}), "/alerts")


def mending_jobs(seen: Seen) -> Iterator[Headline]:
    mending = [job for job in seen.jobs if recovering(job)]
    if len(mending) == 1:
        job = mending[0]
        yield Headline(job.status, Sentence(News.RECOVERS, {"job": job.id}), f"/jobs/{quote(job.id)}")
    elif mending:
        yield Headline(JobStatus.RESTARTING, Sentence(News.RECOVER, {"count": len(mending)}), "/jobs")


#: All that can be wrong, the worst first. Whatever else is known to be wrong gets a line here.
CONCERNS: tuple[Callable[[Seen], Iterator[Headline]], ...] = (
    broken_nodes,
    silent_nodes,
    faulty_nodes,
    frozen_ranks,
    held_nodes,
    frozen_fleet,
    stuck_orders,
    open_incidents,
    mending_jobs,
)


def headlines(seen: Seen) -> list[Headline]:
    """Is all well? If not: what mends itself, and what needs a person."""
    if not seen.nodes:
        return [Headline(AMBER, Sentence(News.NO_FLEET))]
    found = [line for concern in CONCERNS for line in concern(seen)]
    well = Sentence(News.WELL, {"count": seen.live}) if seen.live else Sentence(News.IDLE)
    return found or [Headline(GREEN, well)]


def _of_nodes(nodes: Sequence[Mapping[str, Any]], status: str, text: str) -> Iterator[Headline]:
    if nodes:
        told = Sentence(text, {"nodes": names([node["name"] for node in nodes])})
        yield Headline(status, told, f"/nodes/{quote(nodes[0]['name'])}")
