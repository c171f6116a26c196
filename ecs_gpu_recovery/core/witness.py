"""The witnesses of a hang, joined: what the nodes of a gang say of their GPUs, and what its ranks have written.

Witnesses are levels. A node repeats itself while its GPUs stand still; what it said a while ago is no witness, and a
node whose agent is silent is none. So news that is lost, late or old can hide a hang, and can never invent one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from .model import Job, Rank
from .node_record import WHOLE_JOB, Node, Pulse, Wrote
from .policy import Policy

STATES = MOVING, FLAT, IDLE = "moving", "flat", "idle"
#: A pause as long as five that were seen is none that a working job makes.
TIMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """What all nodes of a gang say together: none of its GPUs works."""

    since: datetime
    until: datetime  #: when the first of them last said so: what came after that, nobody has said
    spinning: bool  #: some wait in a collective; else all rest, which may be anything
    trained: bool  #: all have worked before, under the programs that hold them now
    odd: tuple[str, ...]  #: the nodes that the others wait for, where that can be told
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """What the ranks have written: none of them anything since then."""

    since: datetime
    patience: timedelta = timedelta(
        0
    )  #: how long they have been silent before while they worked, and some more
    odd: tuple[str, ...] = ()  #: nodes whose programs were seen to be stopped
    what: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What the programs' own communication library says: the nodes of the ranks that the others wait for."""

    odd: tuple[str, ...]
    what: str


def fresh(pulse: Pulse | None, now: datetime, policy: Policy) -> bool:
    return pulse is not None and now - pulse.at <= policy.witness_age


def works(nodes: Sequence[Node], since: datetime) -> bool:
    """Whether the last word of each of them is that its GPUs work, and some have begun again since then.

    A node that works says so once, so this word may be old."""
    said = [node.pulse for node in nodes if node.pulse is not None and node.pulse.state == MOVING]
    return len(said) == len(nodes) and any(pulse.at > since for pulse in said)


def gang(nodes: Sequence[Node], now: datetime, policy: Policy) -> Stall | None:
    """None as long as one of them works, or does not say."""
    pulses = [node.pulse for node in nodes if node.pulse is not None and fresh(node.pulse, now, policy)]
    if not nodes or len(pulses) < len(nodes) or any(pulse.state not in (FLAT, IDLE) for pulse in pulses):
        return None
    resting = [node.name for node, pulse in zip(nodes, pulses, strict=True) if pulse.state == IDLE]
    few = 0 < len(resting) <= len(nodes) // 2  # most wait for some: those are the odd ones
    return Stall(
        since=max(pulse.since for pulse in pulses),
        until=min(pulse.at for pulse in pulses),
        spinning=len(resting) < len(nodes),
        trained=all(pulse.trained for pulse in pulses),
        odd=tuple(resting) if few else (),
        what="; ".join(f"{node.name}: {pulse.what}" for node, pulse in zip(nodes, pulses, strict=True))[
            :1000
        ],
    )


def of_attempt(stall: Stall | None, began: datetime | None) -> Stall | None:
    """What the nodes said before this attempt began, they said of the one before: it was ended for that."""
    if stall is None or began is None or stall.since >= began:
        return stall
    return replace(stall, since=began) if stall.until > began else None


def silence(
    job: Job, ranks: Sequence[Rank], nodes: Mapping[str, Node], now: datetime, policy: Policy
) -> Silence | None:
    """When these ranks last wrote, where the watch on each of their nodes has just said it; None: somebody else must
    be asked. What any of them writes ends the silence of all, so no pause of theirs is longer than the shortest."""
    heard = [nodes[rank.node].pulse for rank in ranks if rank.node in nodes]
    fresh_ones = [pulse for pulse in heard if pulse is not None and fresh(pulse, now, policy)]
    if not ranks or len(fresh_ones) < len(ranks):
        return None
    words = [_word(job, rank, pulse) for rank, pulse in zip(ranks, fresh_ones, strict=True)]
    known = [word for word in words if word is not None]
    if len(known) < len(words):
        return None
    unheard = now - min(pulse.at for pulse in fresh_ones)
    said = zip(ranks, known, strict=True)
    return Silence(
        since=max(word.at for word in known),
        patience=timedelta(seconds=TIMES * min(word.pause_s for word in known)) + unheard,
        what=", ".join(f"rank {rank.index} last wrote at {word.at:%H:%M:%S}" for rank, word in said)[:500],
    )


def _word(job: Job, rank: Rank, pulse: Pulse) -> Wrote | None:
    """Nobody speaks for the rank of another node. What was written before this attempt says nothing of it."""
    began = job.spent.started
    mine = [
        one
        for one in pulse.wrote
        if one.job == job.id and one.rank in (rank.index, WHOLE_JOB) and (began is None or one.at >= began)
    ]
    return max(mine, key=lambda one: one.at, default=None)
