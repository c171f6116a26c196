"""The shapes of what the API gives back. Its description is made from these.

Answers are not passed through these shapes at run time: a thousand nodes would cost more to check than to read.
The tests check that every answer fits.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, create_model

from ...core.model import JobStatus, NodeStatus


class Answer(BaseModel):
    """What comes back. More fields may come with later releases."""

    model_config = ConfigDict(extra="allow")


def _page(name: str, key: str, item: type[Answer], about: str = "", place: type = str) -> type[Answer]:
    """A part of a list, and where the rest of it begins."""
    fields: Any = {key: (list[item], ...), "next": (place, ...)}  # type: ignore[valid-type]
    return create_model(name, __base__=Answer, __doc__=about or None, **fields)


class JobLineView(Answer):
    """A job in a list."""

    id: str
    name: str
    status: JobStatus
    attempt: int
    nodes: int
    created_at: str
    updated_at: str
    final: bool


class BadLine(Answer):
    """A job that cannot be shown, and why."""

    id: str
    why: str


class JobList(Answer):
    """Newest first; `next` asks for the rest."""

    jobs: list[JobLineView]
    next: str
    bad: list[BadLine]


class EntryView(Answer):
    """One line of a timeline: what changed, when, why, on what evidence."""

    at: str
    subject: str
    before: str
    after: str
    why: str
    evidence: str
    attempt: int


class RankView(Answer):
    """One rank and its node."""

    index: int
    node: str
    node_status: NodeStatus
    task_id: str
    exit_code: int | None
    verdict: str | None


class SpecView(Answer):
    """What was asked for. Values that look like secrets are hidden."""

    name: str
    command: list[str]
    env: dict[str, str]
    submitted_by: str
    retry_of: str


class OrderInJob(Answer):
    """An order in a record's outbox."""

    due: str
    tries: int
    error: str


class PhaseView(Answer):
    """A stretch of a job's life."""

    name: str
    status: JobStatus
    attempt: int
    start: str
    end: str
    seconds: float


class JobView(Answer):
    """Everything about a job."""

    id: str
    cluster: str
    spec: SpecView
    status: JobStatus
    final: bool
    attempt: int
    max_retries: int
    restarts_left: int
    restarts_charged: int
    restart_when_healthy: str
    waiting_since: str | None
    ranks: list[RankView]
    timeline: list[EntryView]
    outbox: list[OrderInJob]
    phases: list[PhaseView]
    created_at: str
    updated_at: str
    outcome: str
    version: int
    seconds: float
    effective: float | None


Timeline = _page(
    "Timeline",
    "entries",
    EntryView,
    "Oldest first; `next` asks for the rest, and is 0 at the end.",
    place=int,
)


class ProgressPoints(Answer):
    """Columns of equal length, as the training reported them."""

    count: int
    step: list[int]
    loss: list[float]
    attempt: list[int]
    at: list[float]


class LogView(Answer):
    """A log there is."""

    rank: int
    attempt: int
    node: str
    task: str
    size: int


LogList = _page("LogList", "logs", LogView, place=int)


class LogPart(Answer):
    """Text of a log; `next` is the byte to go on at."""

    task: str
    offset: int
    next: int
    size: int
    text: str


class Hit(Answer):
    line: int
    text: str


class Hits(Answer):
    """Lines that hold a text. Where a limit ended the search, `limit` names it (`hits`, `bytes` or `time`), `more` is
    true, and `next` (a line, the `after` of the rest) and `offset` (where that line ends) go on."""

    task: str
    hits: list[Hit]
    more: bool
    limit: str
    next: int
    offset: int
    size: int


class HoldView(Answer):
    by: str
    why: str
    at: str


class StandingView(Answer):
    """Where a node stands, and why. `text` and `values` are what `why` is made of."""

    word: Literal["free", "busy", "drained", "bad"]
    why: str
    text: str
    values: dict[str, Any]


class NodeView(Answer):
    """A node."""

    name: str
    cluster: str
    status: NodeStatus
    gpus: int
    job_id: str
    free: bool
    refusal: str
    standing: StandingView
    hold: HoldView | None
    timeline: list[EntryView]
    version: int


class OneNode(NodeView):
    """A node, with the report of its last check where it can be read."""

    report: dict[str, Any] | None


NodeList = _page("NodeList", "nodes", NodeView, "By name; `next` asks for the rest.")


class Alert(Answer):
    """A message to people."""

    at: str
    key: str
    subject: str
    happened: str
    evidence: str
    done: str
    next: str
    owner: str = ""
    team: str = ""
    job: str
    state: Literal["open", "acknowledged", "resolved"]
    by: str


class Acknowledged(Answer):
    """The messages that were acknowledged."""

    keys: list[str]


class BundleView(Answer):
    """An archive of what a node kept before a reboot."""

    node: str
    name: str
    at: str
    size: int


class EvidenceList(Answer):
    """Newest first."""

    evidence: list[BundleView]


AlertList = _page("AlertList", "alerts", Alert, "Newest first; `next` asks for older ones.")


class AuditLine(Answer):
    """Who did what, why, from where, and how it ended."""

    id: int
    at: str
    who: str
    role: str
    action: str
    subject: str
    why: str
    outcome: str
    address: str


AuditList = _page(
    "AuditList",
    "audit",
    AuditLine,
    "Newest first; `next` asks for older ones, and is 0 at the end.",
    place=int,
)


class PendingOrder(Answer):
    """An order that is committed and not yet known to be carried out."""

    record: str
    key: str
    do: str
    due: str
    tries: int
    error: str


OrderList = _page("OrderList", "orders", PendingOrder)


class SentAgain(Answer):
    record: str
    key: str


class Preview(Answer):
    """What would run; nothing is kept."""

    command: list[str]
    nodes: list[str]
    refusal: str
    check: str
    environment: dict[str, str]
    task_definition: dict[str, Any] | None


class FleetNumbers(Answer):
    """Counts of now."""

    nodes: dict[str, int]
    gpus: dict[str, int]
    jobs: dict[str, int]
    viewers: int


class SeriesView(Answer):
    """One line of a graph."""

    labels: dict[str, str]
    points: list[tuple[float, float]]


class History(Answer):
    """The lines of one metric; `more` where there are more than are given."""

    name: str
    series: list[SeriesView]
    more: bool


class Who(Answer):
    """Who the console takes you for."""

    name: str
    role: str
    backend: str
    version: str
