"""How patient, how strict, how deep: the numbers people may change. Data only; `config` reads it from outside."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import lru_cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Every wait has an end, and every end is here."""

    max_retries: int = 1
    healthcheck_exit_codes: frozenset[int] = frozenset({1})
    post_reboot_check: bool = False
    check_tries: int = 2  #: an inconclusive check is tried again this often in all
    start_timeout: timedelta = timedelta(minutes=20)
    stop_timeout: timedelta = timedelta(minutes=5)
    check_timeout: timedelta = timedelta(minutes=30)
    reboot_timeout: timedelta = timedelta(minutes=30)
    node_lost_after: timedelta = timedelta(minutes=10)
    backoff_first: timedelta = timedelta(seconds=10)
    backoff_most: timedelta = timedelta(minutes=2)
    lease: timedelta = timedelta(seconds=180)  #: how long an order belongs to the process that committed it
    alarm_tries: int = 12  #: an order that failed this often is told to a person
    timeline_limit: int = 100

    @property
    def version(self) -> str:
        """Changes whenever a number does, so a timeline entry says under which policy it was written."""
        return _digest(self)

    def backoff(self, tries: int) -> timedelta:
        """10 s, 20 s, 40 s ... up to the most."""
        longer: timedelta = self.backoff_first * int(2 ** min(tries, 16))
        return min(longer, self.backoff_most)


@lru_cache(maxsize=64)
def _digest(policy: Policy) -> str:
    text = ";".join(f"{f.name}={_stable(getattr(policy, f.name))}" for f in fields(policy))
    return "p" + hashlib.sha256(text.encode()).hexdigest()[:8]


def _stable(value: object) -> str:
    return ",".join(map(str, sorted(value))) if isinstance(value, frozenset) else str(value)
