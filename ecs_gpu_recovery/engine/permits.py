"""Asking the guard of the fleet, before an order that destroys something is sent.

The record is guessed first, as this process saw it last: a wrong guess is told by the write. That a request must wait
is believed only of a record that was just read. Where the record can't be read, everything waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from ..core import guard as rules
from ..core import keys, messages
from ..core.effects import Notify, Order, RebootNode
from ..core.errors import BadRecord, Refused, Transient, VersionConflict
from ..core.events import Fact, PermitWithheld, Tick
from ..core.guard import Answer, FleetGuard, Request
from ..core.job import leaves, sightings
from ..core.model import Job, JobStatus
from ..core.node.repair import unheard
from ..core.node_record import Node
from ..core.policy import Policy
from .ports import GuardStore

_TRIES = 50


class Permits:
    """Of one process. Answers to requests that were made together are kept until their orders are sent."""

    def __init__(self, store: GuardStore, policy: Policy) -> None:
        self._store, self._policy = store, policy
        self._last = FleetGuard(cluster=store.cluster)  #: a guess, until it was written or read
        self._looked = False  #: for stops that another process has asked for
        self._given: dict[str, Answer] = {}

    def ask(self, requests: Sequence[Request], now: datetime) -> dict[str, Answer]:
        """Each request once, however often it is made. Raises `Transient` or `BadRecord` where nobody can tell."""
        answers: dict[str, Answer] = {}

        def decide(guard: FleetGuard) -> FleetGuard:
            guard, found = rules.ask(guard, requests, self._policy, now)
            answers.update(found)
            return guard

        self.change(decide)
        return answers

    def change(self, decide: Callable[[FleetGuard], FleetGuard]) -> FleetGuard:
        """Read, decide, write, until nobody else was faster. That nothing changes, or that it must not, is believed
        only of what was just read."""
        guess: FleetGuard | None = self._last
        for _ in range(_TRIES):
            guard = guess if guess is not None else self._store.guard()
            try:
                new = decide(guard)
            except Refused:
                if guess is None:
                    raise
                new = guard
            if new is guard:
                if guess is None:
                    self._last = guard
                    return guard
                guess = None
                continue
            new = rules.next_version(new, guard)
            try:
                self._store.commit_guard(new)
            except VersionConflict as exc:
                guess = exc.newest if isinstance(exc.newest, FleetGuard) else None
                continue
            self._last = new
            return new
        raise Transient("too many ask the guard at once")

    def look(self) -> FleetGuard:
        """The record as it is now."""
        return self._store.guard()

    # -- reboots -----------------------------------------------------------------------------------------------

    def ask_together(
        self, nodes: Iterable[Node], now: datetime, image: str = ""
    ) -> list[tuple[str, PermitWithheld]]:
        """For reboots that are ordered together, and faults that were found together. What a node has to tell of it.

        If nobody can tell now, each is asked for by itself later.
        """
        nodes = list(nodes)
        asked = [
            rules.for_reboot(node, order.key, now, image)
            for node in nodes
            for order in node.outbox
            if isinstance(order.effect, RebootNode) and order.key == node.reboot_key
        ]
        found = [each for node in nodes for each in self.condemnations(node, now)]
        known = {each.key for each in self._last.requests}
        self._given.clear()
        with suppress(Transient, BadRecord):
            if asked or any(each.key not in known for each in found):
                self._given.update(self.ask([*asked, *found], now))
        frozen = self._last.frozen
        first = [each for each in found if frozen and frozen.first == each.key]
        return [(each.node, self._froze(each, now)) for each in first]

    def condemnations(self, node: Node, now: datetime) -> list[Request]:
        """What was found on a node of late and counts though nobody repairs it."""
        return rules.condemnations(node, now - self._policy.freeze_within)

    def _froze(self, request: Request, now: datetime) -> PermitWithheld:
        """No order waits for it; but it was the one too many, and tells of it."""
        frozen = self._last.frozen
        why = "" if frozen is None else frozen.why
        tell = messages.fleet_frozen(self._last)
        return PermitWithheld(at=now, key=request.key, answer=Answer.HELD, why=why, tell=tell)

    def frozen(self) -> bool:
        """Whether the fleet is, or nobody can tell."""
        try:
            return self.look().frozen is not None
        except (Transient, BadRecord):
            return True

    def waits(self, node: Node, now: datetime) -> bool:
        """Whether it is known to wait for a permit, and does so still: then there is nothing to send or to write."""
        if not node.held:
            return False
        key = node.reboot_key
        if key not in self._given:
            self._given.update(self.ask([rules.for_reboot(node, key, now)], now))
        said = self._said(key, self._given[key], now, now)
        return said.answer is Answer.HELD and not unheard(node, said)

    def sort(
        self, node: Node, orders: Sequence[Order], at: datetime, now: datetime
    ) -> tuple[list[Order], list[Fact]]:
        """The orders that may be sent, and what is learned of the others."""
        sent: list[Order] = []
        facts: list[Fact] = []
        for order in orders:
            fact = self.withheld(node, order.key, at, now) if isinstance(order.effect, RebootNode) else None
            if fact is None:
                sent.append(order)
            else:
                facts.append(fact)
        return sent, facts

    def withheld(self, node: Node, key: str, at: datetime, now: datetime) -> PermitWithheld | None:
        """What is learned instead, if the order must not be sent; None if it may."""
        return self._withheld(rules.for_reboot(node, key, now), at, now)

    def stop_withheld(
        self, job: Job, why: str, now: datetime, *, key: str, since: datetime, announced: bool = False
    ) -> PermitWithheld | None:
        """The same for the stop of a gang of which no rank has ended, before that is decided. `why` speaks for it.
        What was `announced` by somebody is no sign of trouble."""
        image = job.spec.task_def or " ".join(job.spec.command)
        request = rules.for_stop(job.id, key, now, why=why, since=since, image=image)
        return self._withheld(replace(request, person=announced), now, now)

    def tick(self, job: Job, now: datetime) -> Tick:
        """The tick of a job, with the permit to stop its gang if that is due."""
        frozen = sightings.frozen(job, now)
        going = [] if frozen else leaves.due(job, self._policy, now)
        if not (frozen or going) or job.status.final:
            return Tick(at=now, may_stop=False)
        names = ", ".join(rank.node for rank in frozen)
        why = f"no sign of life after a fatal GPU fault on {names}" if frozen else leaves.why(going)
        key = keys.halt(job.id, job.attempt)
        held = self.stop_withheld(job, why, now, key=key, since=now, announced=bool(going))
        return Tick(at=now) if held is None else Tick(at=now, may_stop=False, why=held.why, tell=held.tell)

    def _withheld(self, request: Request, at: datetime, now: datetime) -> PermitWithheld | None:
        key = request.key
        try:
            answer = self._given.pop(key, None) or self.ask([request], now)[key]
        except (Transient, BadRecord) as exc:
            why = f"waits: the guard can't be asked: {exc}"
            return PermitWithheld(at=at, key=key, answer=Answer.HELD, why=why)
        return None if answer is Answer.GRANTED else self._said(key, answer, at, now)

    def _said(self, key: str, answer: Answer, at: datetime, now: datetime) -> PermitWithheld:
        why, tell = self._why(key, answer, now), self._message(key, answer)
        return PermitWithheld(at=at, key=key, answer=answer, why=why, tell=tell)

    def _found(self, key: str) -> Request | None:
        return next((each for each in self._last.requests if each.key == key), None)

    def _why(self, key: str, answer: Answer, now: datetime) -> str:
        request = self._found(key)
        if request is None:
            return "too many wait before it"
        if answer is Answer.HELD:
            return f"waits for {rules.waits_for(self._last, request, self._policy, now)}"
        return request.refused or f"found at {request.since.isoformat(timespec='seconds')}"

    def _message(self, key: str, answer: Answer) -> Notify | None:
        """The first that is too much tells of all; where each needs a yes, each asks for it."""
        request, guard = self._found(key), self._last
        if request is None or answer is not Answer.HELD:
            return None
        if guard.frozen is not None:
            return messages.fleet_frozen(guard) if guard.frozen.first == key else None
        asks = self._policy.repairs == "ask" and not request.person
        return messages.permit_wanted(request) if asks else None

    def forget(self, pending: Iterable[str], now: datetime, after: timedelta) -> None:
        """Requests that wait for orders which nobody has any more."""
        wanted = list(pending)
        if self._last.waiting:
            self.change(lambda guard: rules.forget(guard, wanted, now, after))

    def forget_stops(self, jobs: Sequence[Job], unread: Collection[str], now: datetime) -> None:
        """Stops of gangs that have ended, or were stopped otherwise. `jobs` are all that live, but for the `unread`."""
        if not self._looked:
            self._last, self._looked = self.look(), True
        trains = [job for job in jobs if job.status in (JobStatus.IN_PROGRESS, JobStatus.RESTARTING)]
        wanted = {of(job.id, job.attempt) for job in trains for of in (keys.halt, keys.hang_stop)}

        def decide(guard: FleetGuard) -> FleetGuard:
            unknown = {each.key for each in guard.waiting if each.job in unread}
            return rules.forget(guard, wanted | unknown, now, self._policy.lease, (rules.STOP,))

        if decide(self._last) is not self._last:
            self.change(decide)
