"""What AWS answers when it does not do as asked, in the project's own words.

Three fates, as everywhere: what may work later is `Transient`; a condition that did not hold is for the
adapter that set it to explain; all else is raised as it came, because nobody foresaw it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..core.errors import NotFound, RecoveryError, Transient

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

#: Codes that say "not now" in every service we call, on top of every answer with a status of 500 or more.
NOT_NOW = frozenset(
    {
        "InternalFailure",
        "InternalServerError",
        "ProvisionedThroughputExceeded",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServerException",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "SlowDown",
        "Throttling",
        "ThrottlingError",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
CONDITION_FAILED = "ConditionalCheckFailed"
CONFLICT = "TransactionConflict"


class ConditionFailed(RecoveryError):
    """A conditional write was not made. `item` is what was found there, empty if nothing was."""

    def __init__(self, what: str, item: Mapping[str, Any]) -> None:
        self.item = item
        super().__init__(f"{what}: the condition did not hold")


class Cancelled(RecoveryError):
    """A transaction was not made: a condition or another transaction stood in its way. A code per action."""

    def __init__(self, what: str, codes: Sequence[str]) -> None:
        self.codes = tuple(codes)
        super().__init__(f"{what}: {', '.join(sorted(set(codes) - {'None'}))}")

    def failed(self, index: int) -> bool:
        return self.codes[index] == CONDITION_FAILED


class InTheWay(Transient):
    """A transaction on the same item was under way. This write was not made."""


class ForeignRecord(NotFound):
    """A row with the schema's attributes alone: another tool wrote it, and it has no record of ours yet.

    `row` holds those attributes, for whoever makes a record from them.
    """

    def __init__(self, what: str, row: Mapping[str, Any]) -> None:
        self.row = dict(row)
        super().__init__(f"{what} was recorded by another tool and has not been taken over")


@contextmanager
def translated(what: str) -> Iterator[None]:
    """`what` is the thing that was asked for, as a person would name it."""
    # Who holds a client has loaded botocore already; who only imports this module should not pay for it.
    from botocore.exceptions import ClientError, ConnectionError, HTTPClientError

    try:
        yield
    except ClientError as exc:
        meaning = _meaning(exc.response, what)
        if meaning is None:
            raise
        raise meaning from exc
    except (ConnectionError, HTTPClientError) as exc:
        raise Transient(f"{what}: no answer from AWS ({exc})") from exc


def code_of(exc: ClientError) -> str:
    """What AWS calls the reason."""
    return str(exc.response.get("Error", {}).get("Code", ""))


def _meaning(response: Mapping[str, Any], what: str) -> RecoveryError | None:
    code = str(response.get("Error", {}).get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code == "ConditionalCheckFailedException":
        return ConditionFailed(what, response.get("Item") or {})
    if code == "TransactionCanceledException":
        codes = [str(reason.get("Code") or "None") for reason in response.get("CancellationReasons", ())]
        if NOT_NOW.intersection(codes):
            return Transient(f"{what}: {', '.join(sorted(NOT_NOW.intersection(codes)))}")
        expected = bool(codes) and set(codes) <= {"None", CONDITION_FAILED, CONFLICT}
        return Cancelled(what, codes) if expected else None
    if code == "TransactionConflictException":
        return InTheWay(f"{what}: {code}")
    if code in NOT_NOW or status >= 500:
        return Transient(f"{what}: {code}")
    return None
