"""Dead letters on the page of alerts: what a deployment's queue holds, looked at once a minute for all viewers.

To look at a queue is to take its messages for a moment. So viewers share a look, and the event itself is not shown: it
may hold variables of a job that are secret.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, StrictStr

from ..control.backend import NO_LETTERS
from ..control.records import RecordsBackend
from ..core.errors import NotFound, RecoveryError, Refused, Transient
from .api.bodies import Body
from .api.models import Answer

#: How long a look at the queue is good for.
LOOK_AGAIN_S = 60.0


class LetterBody(Body):
    """A dead letter."""

    id: Annotated[StrictStr, Field(min_length=1, max_length=100)]


class DiscardBody(LetterBody):
    """A dead letter that is to be put away, and why; the reason is kept."""

    why: Annotated[StrictStr, Field(min_length=1, max_length=400)]


class LetterView(Answer):
    """An event that no function could handle."""

    id: str
    at: str | None
    sender: str
    function: str
    error: str
    understood: str


class LetterList(Answer):
    """Oldest first; `more` is about how many there are beside them."""

    letters: list[LetterView]
    more: int


class LetterSent(Answer):
    """What the function answered."""

    id: str
    function: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look found; `trouble` where the queue could not be looked at."""

    has_queue: bool = False  #: only AWS has one
    letters: list[dict[str, Any]] = field(default_factory=list)
    more: int = 0
    trouble: RecoveryError | None = None


class Letters:
    """The last look, for all who ask within a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._last: tuple[float, Look] | None = None

    def forget(self) -> None:
        with self._lock:
            self._last = None

    def look(self, side: RecordsBackend) -> Look:
        with self._lock:
            if self._last is None or self._clock() - self._last[0] >= LOOK_AGAIN_S:
                self._last = (self._clock(), _look(side))
            return self._last[1]

    def listed(self, side: RecordsBackend) -> dict[str, Any]:
        """For the API, where a queue that can't be looked at is an error."""
        found = self.look(side)
        if found.trouble is not None:
            kind = Transient if isinstance(found.trouble, Transient) else Refused
            raise kind(str(found.trouble)) from found.trouble
        return {"letters": found.letters, "more": found.more}


def _look(side: RecordsBackend) -> Look:
    try:
        seen = side.letters()
    except RecoveryError as exc:
        return Look(has_queue=True, trouble=exc)
    if seen is None:
        return Look()
    return Look(has_queue=True, letters=[letter.to_json() for letter in seen.letters], more=seen.more)


def send_again(side: RecordsBackend, letter_id: str) -> dict[str, str]:
    """Give the event to its function again. One that fails stays in the queue, and the person is told why."""
    _must_be_named(letter_id)
    (sent,) = side.send_letters_again(letter_id)
    if not sent.done:
        raise Refused(f"the letter stays in the queue: {sent.said}")
    return {"id": sent.letter.id, "function": sent.letter.function, "said": sent.said}


def discard(side: RecordsBackend, letter_id: str, *, by: str, why: str) -> dict[str, Any]:
    """Put the event away unhandled; the others of the deployment are told, and the audit keeps who and why."""
    _must_be_named(letter_id)
    if not why.strip():
        raise Refused("give a reason: the person who misses the event will ask for it")
    return side.discard_letter(letter_id, by=by, why=why).to_json()


def _must_be_named(letter_id: str) -> None:
    """Without an id all letters would be meant."""
    if not letter_id:
        raise NotFound(NO_LETTERS)
