"""The queue of events that nobody could handle: look at them, give them to their functions again, or put them away.

SQS has no way to look without taking. So letters are taken for a while and let go again at once, and whoever looks at
the same moment may miss some. Giving an event to its function twice is safe: one that was applied already changes
nothing. So nothing here has to be exactly once; a letter is deleted only after its function said that it is done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..core.errors import NotFound, Refused
from .event_fields import line, member
from .letters import Letter, read_letter, why_not

__all__ = ["FUNCTIONS", "DeadLetters", "Letter", "Seen", "Sent", "read_letter"]

#: The four functions, behind the name of the stack and a dash.
FUNCTIONS = ("EcsTaskHandler", "DcgmTaskMonitor", "EcsInstanceMonitor", "RecoverySweeper")
#: At most so many letters are taken at once, in parts of so many, which is all that SQS gives.
MOST, PART = 200, 10
#: For how long letters are out of sight: for a look, and while functions are called. They are let go sooner.
LOOK_S, ACT_S = 30, 300
#: A short wait makes SQS ask all its servers instead of a few.
_WAIT_S = 1
_LONGEST = 400
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The letters that were found, oldest first, and about how many there are beside them."""

    letters: tuple[Letter, ...] = ()
    more: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of a letter that was sent again. One that is not done is still in the queue."""

    letter: Letter
    done: bool
    said: str  #: the function's answer or error, in a line


class DeadLetters:
    """One deployment's queue."""

    def __init__(
        self, sqs: Any, functions: Any, url: str, *, stack: str, cluster: str = "", check_family: str = ""
    ) -> None:
        self._sqs, self._functions, self._url = sqs, functions, url
        self._ours = frozenset(f"{stack}-{name}" for name in FUNCTIONS)
        self._cluster, self._check_family = cluster, check_family

    def seen(self) -> Seen:
        count = self._count()
        with self._taken(LOOK_S, count) as taken:
            found = _oldest_first(taken.values())
        return Seen(letters=found, more=max(0, count - len(found)))

    def send_again(self, *ids: str) -> list[Sent]:
        """These letters, or all that are found; the oldest first, so that events arrive in their order."""
        with self._taken(ACT_S, self._count()) as taken:
            named = [_named(name, taken) for name in ids] or taken.values()
            sent = []
            for letter in _oldest_first({letter.id: letter for letter in named}.values()):
                answer = self._sent(letter)
                if answer.done:
                    self._delete(letter)
                    del taken[letter.id]
                sent.append(answer)
        return sent

    def discard(self, name: str, note: Callable[[Letter], None]) -> Letter:
        """Put a letter away unhandled, once it is noted; if it can't be noted, it stays."""
        with self._taken(ACT_S, self._count()) as taken:
            letter = _named(name, taken)
            note(letter)
            self._delete(letter)
            del taken[letter.id]
        return letter

    # -- the function ------------------------------------------------------------------------------------------

    def _sent(self, letter: Letter) -> Sent:
        if refusal := why_not(letter, self._ours):
            return Sent(letter=letter, done=False, said=refusal)
        reply = self._functions.invoke(
            FunctionName=letter.function,
            InvocationType="RequestResponse",
            Payload=json.dumps(letter.event).encode(),
        )
        answer = _answer(reply["Payload"].read())
        if reply.get("FunctionError"):
            said = ": ".join(filter(None, (line(answer.get(key), _LONGEST) for key in _ERROR)))
            said = f"{letter.function} failed again: {said or reply['FunctionError']}"
            return Sent(letter=letter, done=False, said=said)
        word = "taken" if answer.get("taken") else "nothing to do"
        return Sent(
            letter=letter, done=True, said=": ".join(filter(None, (word, line(answer.get("why"), _LONGEST))))
        )

    # -- the queue ---------------------------------------------------------------------------------------------

    def _count(self) -> int:
        """About how many there are; those in somebody's hands count too."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self._sqs.get_queue_attributes(QueueUrl=self._url, AttributeNames=names)
        return sum(int(found.get("Attributes", {}).get(name, 0)) for name in names)

    @contextmanager
    def _taken(self, seconds: int, count: int) -> Iterator[dict[str, Letter]]:
        """Letters by id, out of everybody's sight until this is over. Delete one, and take it out of here."""
        taken: dict[str, Letter] = {}
        try:
            for _ in range(MOST // PART):
                part = self._part(seconds)
                fresh = [letter for letter in part if letter.id not in taken]
                taken |= {letter.id: letter for letter in part}
                if not fresh or (len(part) < PART and len(taken) >= count):
                    break
            yield taken
        finally:
            self._let_go(list(taken.values()))

    def _part(self, seconds: int) -> list[Letter]:
        reply = self._sqs.receive_message(
            QueueUrl=self._url,
            MaxNumberOfMessages=PART,
            VisibilityTimeout=seconds,
            WaitTimeSeconds=_WAIT_S,
            MessageSystemAttributeNames=["SentTimestamp", "DeadLetterQueueSourceArn"],
            MessageAttributeNames=["All"],
        )
        return [
            read_letter(message, cluster=self._cluster, check_family=self._check_family)
            for message in reply.get("Messages", ())
        ]

    def _let_go(self, letters: Sequence[Letter]) -> None:
        """Others may see them again. One that can't be let go comes back by itself when its time is over."""
        for start in range(0, len(letters), PART):
            entries = [
                {"Id": str(number), "ReceiptHandle": letter.receipt, "VisibilityTimeout": 0}
                for number, letter in enumerate(letters[start : start + PART])
            ]
            self._sqs.change_message_visibility_batch(QueueUrl=self._url, Entries=entries)

    def _delete(self, letter: Letter) -> None:
        self._sqs.delete_message(QueueUrl=self._url, ReceiptHandle=letter.receipt)


_ERROR = ("errorType", "errorMessage")


def _answer(payload: bytes) -> dict[Any, Any]:
    try:
        return member(json.loads(payload or b"null"))
    except ValueError:
        return {}


def _oldest_first(letters: Iterable[Letter]) -> tuple[Letter, ...]:
    return tuple(sorted(letters, key=lambda letter: (letter.at or _NEVER, letter.id)))


def _named(name: str, taken: dict[str, Letter]) -> Letter:
    """By its id, or by a beginning of it that only one letter has."""
    if name in taken:
        return taken[name]
    found = [letter for key, letter in taken.items() if name and key.startswith(name)]
    if len(found) > 1:
        raise Refused(f"{len(found)} letters begin with {name}: give more of the id")
    if not found:
        raise NotFound(
            f"no dead letter {name}: it was dealt with, or somebody is looking at it just now; then try again in"
            f" {LOOK_S} seconds. Those that are there: gpu-recovery letters"
        )
    return found[0]
