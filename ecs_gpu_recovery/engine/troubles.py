"""Records that can't be read or swept. All others go on; people are told once which it is, and what is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from ..core import messages
from ..core.errors import BadRecord
from .ports import Notifier, Store

log = logging.getLogger("ecs_gpu_recovery")
#: Which record: "job" or "node", and its name.
Record = tuple[str, str]
#: No single record: a question about all of them, or what else a tick does. Its trouble is logged, and raised.
ALL = ("tick", "all")
#: Does something about a record, and keeps what goes wrong.
Attempt = Callable[[Record, Callable[[], object]], None]


class Troubles:
    """Remembers what this process told. What other processes told, the store knows."""

    def __init__(self, store: Store, notifier: Notifier) -> None:
        self._store, self._notifier = store, notifier
        self._told: dict[Record, str] = {}

    def tell(self, found: Mapping[Record, Exception]) -> None:
        """One message for all records with the same trouble: when a right is lost, every record has it."""
        self._told = {record: why for record, why in self._told.items() if record in found}
        fresh: dict[str, list[Record]] = {}
        for record, exc in found.items():
            if self._told.get(record) != reason(exc):
                trace = None if isinstance(exc, BadRecord) else exc
                named = {"record": "/".join(record), "why": str(exc)}
                log.error("a record is left out", exc_info=trace, extra=named)
                if record == ALL:
                    self._told[record] = reason(exc)
                else:
                    fresh.setdefault(reason(exc), []).append(record)
        for why, records in fresh.items():
            self._tell(records, why, found[records[0]])

    def _tell(self, records: Sequence[Record], why: str, exc: Exception) -> None:
        def tell() -> None:
            if any(self._told.get(record) != why for record in records):
                self._notifier.notify(messages.bad_records(records, why, exc))
                self._told.update(dict.fromkeys(records, why))  # even if it can't be noted

        for record in records:
            self._store.tell_once(*record, why, tell)
        self._told.update(dict.fromkeys(records, why))


def reason(exc: Exception) -> str:
    """What makes two troubles the same. The words of an unforeseen error may differ each time."""
    return exc.why if isinstance(exc, BadRecord) else type(exc).__name__
