"""The guard of a fleet: whoever would reboot a node, or stop a gang that still runs, needs a permit from here.

One small record for all. Many faults at once have one cause more often than many, and a reboot cures few of those: so
too many requests within a short time freeze the fleet. Nothing destructive is done then until a person thaws it, and
everything else goes on. Each request counts once, by the key of its order, however often it is made. Why it is so is in
docs/decisions/0015-destructive-orders-need-a-permit.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from . import keys
from .errors import NotFound, Refused
from .node_record import Condemnation, Node
from .policy import Policy
from .stored import Stored

#: What was found longer ago than this when the fleet is thawed is looked for once more before it is acted on.
EVIDENCE_AGES = timedelta(minutes=10)
#: A permit is remembered for this long: its order may be sent again by whoever finds it unsent.
REMEMBERED = timedelta(days=1)
#: The record stays small. Whoever comes when so many wait is told to wait too, and asks again.
MOST_WAITING, MOST_GRANTED = 500, 300
REBOOT, REPLACE, STOP, CONDEMNED = "reboot", "replace", "stop", "condemned"


class Answer(StrEnum):
    """What becomes of a request."""

    GRANTED = "granted"  #: the order may be sent
    HELD = "held"  #: not now: ask again
    EXAMINE = "examine"  #: its evidence is old: once that is renewed, ask again
    REFUSED = "refused"  #: a person said no
    BUSY = "busy"  #: it has its permit, and something runs on the node that is none of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Stored):
    """An order that waits for its permit, or had it lately."""

    key: str  #: of the order
    what: str = REBOOT
    node: str = ""
    job: str = ""
    at: datetime  #: when it was first asked for
    since: datetime  #: when its evidence was found
    why: str = ""  #: the evidence
    driver: str = ""  #: of the node, as far as the evidence tells
    image: str = ""  #: what its job runs, where that is known
    person: bool = (
        False  #: a person asked for this very order: it is no sign of trouble, and needs no other yes
    )
    granted: datetime | None = None
    allowed: str = ""  #: who said yes to it
    refused: str = ""  #: who said no to it, and why
    thawed: bool = False  #: it waited when the fleet was thawed
    renew: bool = False  #: it was granted for evidence that must be found once more


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze(Stored):
    """Since when nothing destructive is done, and why."""

    at: datetime
    why: str
    by: str = ""  #: empty: nobody; there was too much at once
    first: str = ""  #: the request that was too much


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetGuard(Stored):
    """The record."""

    cluster: str
    requests: tuple[Request, ...] = ()  #: oldest first
    frozen: Freeze | None = None
    thawed_at: datetime | None = None
    thawed_by: str = ""
    thawed_why: str = ""
    trips: int = 0  #: how often there was too much at once
    version: int = 0

    @property
    def waiting(self) -> tuple[Request, ...]:
        return tuple(each for each in self.requests if each.granted is None and not each.refused)


def for_reboot(node: Node, key: str, now: datetime, image: str = "") -> Request:
    """The request for the reboot of a node, or for another machine. Without a fault that is being repaired, a person
    has asked for it. Who is to say yes to another machine for one that was missed is told so."""
    fault = open_fault(node)
    found = node.findings if fault is None else fault.findings
    return Request(
        key=key,
        what=REPLACE if fault is not None and fault.repair == REPLACE else REBOOT,
        node=node.name,
        job=node.job_id,
        at=now,
        since=now if fault is None else fault.renewed or fault.at,
        why=(f"{node.absence}; {found}" if node.missed else found)[:200],
        driver=driver_of(found),
        image=image[:100],
        person=fault is None,
    )


def condemnations(node: Node, since: datetime) -> list[Request]:
    """Faults that were found on a node and that nobody repairs. They wait for nothing, and count like the others; but
    not one that was known, and that a person had looked for again."""
    found = (each for each in node.condemned if not (each.repair or each.asked) and each.at > since)
    return [
        Request(
            key=keys.node_condemned(node.name, each.at),
            what=CONDEMNED,
            node=node.name,
            job=node.job_id,
            at=each.at,
            since=each.at,
            why=each.findings[:200],
            driver=driver_of(each.findings),
            granted=each.at,
        )
        for each in found
    ]


def for_stop(job: str, key: str, now: datetime, *, why: str, since: datetime, image: str = "") -> Request:
    """The request to stop a gang of which no rank has ended. `since` is when the evidence was last seen to hold."""
    return Request(key=key, what=STOP, job=job, at=now, since=since, why=why[:200], image=image[:100])


def open_fault(node: Node) -> Condemnation | None:
    """The fault that is being repaired."""
    last = node.condemned[-1] if node.condemned else None
    return None if last is None or last.outcome else last


def next_version(new: FleetGuard, old: FleetGuard) -> FleetGuard:
    return replace(new, version=old.version + 1)


# -- asking ------------------------------------------------------------------------------------------------------


def ask(
    guard: FleetGuard, asked: Sequence[Request], policy: Policy, now: datetime
) -> tuple[FleetGuard, dict[str, Answer]]:
    """Answer requests that are made together: if they are too many, none of them is granted.

    The same question gets the same answer and changes nothing, so a process that died in between may ask again.
    """
    old, known = guard, {each.key for each in guard.requests}
    room = MOST_WAITING - len(guard.waiting)
    new = [each for each in asked if each.key not in known][: max(0, room)]
    if new:
        guard = replace(guard, requests=(*guard.requests, *new))
        guard = _tripped(guard, new, policy, now)
    answers: dict[str, Answer] = {}
    for each in sorted(asked, key=_age):
        guard, answers[each.key] = _answer(guard, each, policy, now)
    return _tidy(guard, now) if guard is not old else old, answers


def _age(request: Request) -> tuple[datetime, str]:
    return request.at, request.key


def _counted(guard: FleetGuard, policy: Policy, now: datetime, *kinds: str) -> list[Request]:
    """Requests of these kinds since the last thaw and within the time that counts."""
    since = now - policy.freeze_within
    since = since if guard.thawed_at is None else max(since, guard.thawed_at)
    return [each for each in guard.requests if each.what in kinds and not each.person and each.at > since]


def _tripped(guard: FleetGuard, new: Sequence[Request], policy: Policy, now: datetime) -> FleetGuard:
    nodes = {each.node for each in _counted(guard, policy, now, REBOOT, REPLACE, CONDEMNED)}
    jobs = {each.job for each in _counted(guard, policy, now, STOP)}
    first = next((each for each in new if not each.person), None)
    few = len(nodes) <= policy.freeze_nodes and len(jobs) <= policy.freeze_jobs
    if guard.frozen is not None or first is None or few:
        return guard
    length = policy.freeze_within.total_seconds()
    minutes = f"{length / 60:g} minutes" if length >= 120 else f"{length:g} seconds"
    much = (
        f"{len(nodes)} nodes to repair" if len(nodes) > policy.freeze_nodes else f"{len(jobs)} jobs to stop"
    )
    freeze = Freeze(at=now, why=f"{much} within {minutes}", first=first.key)
    return replace(guard, frozen=freeze, trips=guard.trips + 1)


def _answer(guard: FleetGuard, asked: Request, policy: Policy, now: datetime) -> tuple[FleetGuard, Answer]:
    found = next((each for each in guard.requests if each.key == asked.key), None)
    if found is None:
        return guard, Answer.HELD
    if found.refused:
        return guard, Answer.REFUSED
    if found.granted is None:
        if waits_for(guard, found, policy, now):
            return guard, Answer.HELD
        aged = _queues(found) and now - asked.since > EVIDENCE_AGES
        found = replace(found, granted=now, renew=aged)
        guard = _with(guard, found)
    granted = found.granted or now
    return guard, Answer.EXAMINE if found.renew and asked.since <= granted else Answer.GRANTED


def waits_for(guard: FleetGuard, request: Request, policy: Policy, now: datetime) -> str:
    """What a request waits for, in words; empty if it needs to wait for nothing."""
    if request.allowed:
        return ""
    if guard.frozen is not None:
        by = f" by {guard.frozen.by}" if guard.frozen.by else ""
        return f"a thaw (frozen{by}: {guard.frozen.why})"
    if policy.repairs == "ask" and not request.person:
        return "a person's yes"
    if request.thawed and not request.person:
        lately = [
            each
            for each in guard.requests
            if _queues(each) and each.granted and now - each.granted < policy.freeze_within
        ]
        queue = sorted(filter(_queues, guard.waiting), key=_age)
        free = policy.freeze_nodes - len(lately)
        if request.key not in [each.key for each in queue[: max(0, free)]]:
            return "those that waited longer: after a thaw only few go at a time"
    return ""


def _queues(request: Request) -> bool:
    return request.thawed and not request.allowed and not request.person


def _with(guard: FleetGuard, request: Request) -> FleetGuard:
    some = (request if each.key == request.key else each for each in guard.requests)
    return replace(guard, requests=tuple(some))


def _tidy(guard: FleetGuard, now: datetime) -> FleetGuard:
    """Forget what was settled long ago."""
    settled = [each for each in guard.requests if each not in guard.waiting]
    kept = {each.key for each in settled[-MOST_GRANTED:] if now - (each.granted or each.at) < REMEMBERED}
    kept |= {each.key for each in guard.waiting}
    return replace(guard, requests=tuple(each for each in guard.requests if each.key in kept))


def forget(
    guard: FleetGuard,
    pending: Iterable[str],
    now: datetime,
    after: timedelta,
    kinds: Sequence[str] = (REBOOT, REPLACE),
) -> FleetGuard:
    """Take out what waits here though no record asks for it any more: nobody must wait behind it."""
    wanted = set(pending)
    gone = {
        each.key
        for each in guard.waiting
        if each.what in kinds and each.key not in wanted and now - each.at > after
    }
    if not gone:
        return guard
    return replace(guard, requests=tuple(each for each in guard.requests if each.key not in gone))


# -- people ------------------------------------------------------------------------------------------------------


def freeze(guard: FleetGuard, *, by: str, why: str, at: datetime) -> FleetGuard:
    if guard.frozen is not None:
        who = guard.frozen.by or "the control plane itself"
        raise Refused(f"the fleet is frozen already, by {who}: {guard.frozen.why}")
    return replace(guard, frozen=Freeze(at=at, why=why, by=by))


def thaw(guard: FleetGuard, *, by: str, why: str, at: datetime) -> FleetGuard:
    """What waits goes one after the other; what comes from now on is counted anew."""
    if guard.frozen is None:
        raise Refused("the fleet is not frozen")
    waiting = {each.key for each in guard.waiting}
    some = (replace(each, thawed=True) if each.key in waiting else each for each in guard.requests)
    return replace(guard, frozen=None, thawed_at=at, thawed_by=by, thawed_why=why, requests=tuple(some))


def allow(guard: FleetGuard, name: str, *, by: str) -> FleetGuard:
    """A person's yes to one order, whatever it waits for."""
    return _with(guard, replace(_waiting(guard, name), allowed=by))


def refuse(guard: FleetGuard, name: str, *, by: str, why: str) -> FleetGuard:
    """A person's no: the order is withdrawn, and its node stays out of use until it is released."""
    return _with(guard, replace(_waiting(guard, name), refused=f"refused by {by}: {why}"))


def _waiting(guard: FleetGuard, name: str) -> Request:
    """By its key, its node or its job."""
    found = [each for each in guard.waiting if name in (each.key, each.node, each.job)]
    exact = [each for each in found if each.key == name]
    if not found:
        raise NotFound(f"nothing of {name} waits for a permit")
    if len(found) > 1 and not exact:
        raise Refused(f"several orders of {name} wait: name one of {', '.join(each.key for each in found)}")
    return (exact or found)[0]


# -- what they have in common ------------------------------------------------------------------------------------

_DRIVER = re.compile(r"\(driver ([0-9.]+)\)")
_RULE = re.compile(r"\bS?Xid \d+|\bDCGM[^;:,(\[]*")


def rule_of(why: str) -> str:
    """The fault without the machine: what two nodes with the same fault both say."""
    named = _RULE.search(why)
    words = named[0] if named else re.split(r"[(\[;:]", why)[0]
    return re.sub(r"\b[0-9a-f]{4}:[0-9a-f:.]+|\bGPU[- ]\S+", "a GPU", words).strip()


def driver_of(why: str) -> str:
    """The version that the report of a check names."""
    named = _DRIVER.search(why)
    return named[1] if named else ""


def in_common(requests: Sequence[Request]) -> str:
    """What many requests share, most telling first; how they differ if it is nothing."""
    traits: tuple[tuple[str, Callable[[Request], str]], ...] = (
        ("the fault", lambda each: rule_of(each.why)),
        ("the driver", lambda each: each.driver),
        ("the image", lambda each: each.image),
        ("the job", lambda each: each.job),
    )
    shared = []
    for name, trait in traits:
        values = {trait(each) for each in requests}
        if len(values) == 1 and (value := values.pop()):
            shared.append(f"{name}: {value}")
    if shared:
        return "All have in common " + ", ".join(shared)
    faults = sorted({rule_of(each.why) or "unknown" for each in requests})
    return f"They have no fault in common: {'; '.join(faults[:8])}"
