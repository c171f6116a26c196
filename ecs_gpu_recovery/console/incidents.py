"""Messages to people as incidents: those about one node or one job together, open until their cause is gone.

A person may acknowledge an incident: it leaves the first place until something new is told of it. What was acknowledged
is kept in the console's own file, so no record changes for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..control.job_names import next_in_line
from ..control.records import RecordsBackend
from ..core import keys
from ..engine.reads import Notice
from ..standing import BAD
from .access.database import Database

OPEN, ACKNOWLEDGED, RESOLVED = STATES = ("open", "acknowledged", "resolved")
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS acknowledged (key TEXT PRIMARY KEY, who TEXT NOT NULL, at TEXT NOT NULL)"
)


class Acknowledged:
    """Which messages a person has seen to, and who."""

    def __init__(self, database: Database) -> None:
        self._db = database
        database.create(_SCHEMA)

    def add(self, told: Iterable[str], who: str) -> None:
        at = self._db.now().isoformat(timespec="seconds")
        for key in told:
            self._db.run("INSERT OR IGNORE INTO acknowledged VALUES (?,?,?)", key, who, at)

    def of(self, told: Sequence[str]) -> dict[str, str]:
        """Who acknowledged each of these."""
        marks = ",".join("?" * len(told))
        return dict(self._db.run(f"SELECT key, who FROM acknowledged WHERE key IN ({marks})", *told))  # noqa: S608


@dataclass(frozen=True, slots=True)
class Incident:
    """What was told about one subject, newest first. A message that is still open makes the whole of it open."""

    subject: str
    messages: Sequence[Mapping[str, Any]]

    @property
    def state(self) -> str:
        return next(state for state in STATES if any(m["state"] == state for m in self.messages))


def job_of(key: str) -> str:
    """The job that a message is about; a message's key begins with it, or with node/."""
    said = keys.parse(key)
    return said.job if said is not None and said.kind == "notify" else ""


def judged(
    told: Sequence[Notice],
    *,
    bad: Collection[str],
    known: Collection[str],
    retried: Collection[str],
    pending: Callable[[], Collection[str]],
    frozen: Callable[[], bool] = lambda: True,
    acknowledged: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Each message with its state.

    `bad` and `known` are names of nodes, `retried` jobs that were run again, `pending` the keys of orders that are not
    carried out yet; it is asked for only if a message is about an order. So is whether the fleet is `frozen`.
    """
    found = []
    for notice in told:
        key, node, job = notice["key"], notice.get("node", ""), job_of(notice["key"])
        gone = False
        if key.endswith(("/stuck", "/permit")):
            gone = key.rpartition("/")[0] not in pending()
        elif key.startswith("fleet/"):
            gone = not frozen()
        elif node in known:
            gone = node not in bad
        elif job:
            gone = job in retried
        state = RESOLVED if gone else ACKNOWLEDGED if key in acknowledged else OPEN
        found.append({**notice, "job": job, "state": state, "by": acknowledged.get(key, "")})
    return found


def grouped(messages: Iterable[Mapping[str, Any]]) -> list[Incident]:
    """Those that need a person first, and of each kind the newest first."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for message in messages:
        node, job = message.get("node", ""), message["job"]
        subject = f"node/{node}" if node else f"job/{job}" if job else message["key"]
        found.setdefault(subject, []).append(message)
    made = [Incident(subject, some) for subject, some in found.items()]
    return sorted(made, key=lambda incident: STATES.index(incident.state))


def with_states(
    side: RecordsBackend,
    told: Sequence[Notice],
    nodes: Sequence[Mapping[str, Any]],
    acknowledged: Acknowledged,
) -> list[dict[str, Any]]:
    """The messages, and what became of each."""
    jobs = {job for notice in told if (job := job_of(notice["key"])) and not notice.get("node")}
    again = side.some_jobs([next_in_line(job) for job in sorted(jobs)])
    return judged(
        told,
        frozen=lambda: bool(side.fleet()["frozen"]),
        bad={node["name"] for node in nodes if node["standing"]["word"] == BAD},
        known={node["name"] for node in nodes},
        retried={job.spec.retry_of for job in again},
        pending=lambda: {order.key for some in side.waiting() for holder in some for order in holder.outbox},
        acknowledged=acknowledged.of([notice["key"] for notice in told]),
    )
