"""Whether ranks still write, as CloudWatch tells it: one question for many streams."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from ecs_gpu_recovery.aws.parse import parse_event
from ecs_gpu_recovery.aws.silence import LogSilence
from ecs_gpu_recovery.core.events import NodePulse
from ecs_gpu_recovery.core.node_record import Wrote
from ecs_gpu_recovery.health.watch import sinks
from ecs_gpu_recovery.health.watch.writing import MOST_TOLD
from tests.aws.event_builders import event
from tests.core.story import MINUTE, T0, a_running_job


class Logs:
    """Streams with the times of their lines, in minutes after T0."""

    def __init__(self, *, pages: int = 0, refuses: str = "", **lines: list[float]) -> None:
        self.lines, self.pages, self.refuses = lines, pages, refuses
        self.asked: list[dict[str, Any]] = []

    def _events(self, streams: list[str], begin: float, end: float) -> list[dict[str, Any]]:
        at = [T0.timestamp() + 60 * m for s in streams for m in self.lines.get(s, [])]
        return [{"timestamp": round(t * 1000), "message": "x"} for t in at if begin <= t * 1000 < end]

    def filter_log_events(self, **asked: Any) -> dict[str, Any]:
        self.asked.append(asked)
        if self.refuses:
            raise ClientError({"Error": {"Code": self.refuses, "Message": ""}}, "FilterLogEvents")
        if len(self.asked) <= self.pages:
            return {"events": [], "nextToken": "more"}
        return {"events": self._events(asked["logStreamNames"], asked["startTime"], float("inf"))[:1]}

    def get_log_events(self, **asked: Any) -> dict[str, Any]:
        return {"events": self._events([asked["logStreamName"]], 0, asked["endTime"])}


class Definitions:
    def __init__(self, writes: bool = True) -> None:
        self._writes = writes

    def log_of(self, name: str, task_id: str) -> tuple[str, str] | None:
        return ("/gpu/train", task_id) if self._writes else None


SINCE = T0 + 10 * MINUTE
JOB = a_running_job(nodes=2).job
FIRST, SECOND = (rank.task_id for rank in JOB.ranks)


def silence(logs: Logs, definitions: Definitions | None = None) -> Any:
    return LogSilence(logs, definitions or Definitions()).since(JOB, SINCE)  # type: ignore[arg-type]


def test_ranks_that_wrote_nothing_since_are_silent_and_their_longest_pause_is_learned() -> None:
    logs = Logs(**{FIRST: [1, 2, 5, 9], SECOND: [3]})
    found = silence(logs)
    assert (found.since, found.patience) == (SINCE, timedelta(minutes=20))
    (asked,) = logs.asked
    assert (asked["logStreamNames"], asked["limit"]) == ([FIRST, SECOND], 1)


def test_one_line_of_one_rank_is_enough_to_be_heard() -> None:
    assert silence(Logs(**{FIRST: [1], SECOND: [11]})) is None


@pytest.mark.parametrize(
    ("logs", "definitions"),
    [
        (Logs(), Definitions(writes=False)),
        (Logs(refuses="AccessDeniedException"), Definitions()),
        (Logs(refuses="ResourceNotFoundException"), Definitions()),
        (Logs(pages=9), Definitions()),
    ],
)
def test_where_nobody_can_tell_there_is_no_witness(logs: Logs, definitions: Definitions) -> None:
    assert silence(logs, definitions) is None


def pulse(**detail: object) -> dict[str, object]:
    said = {"cluster": "gpus", "node": "n1", "state": "flat", "since": "2026-03-01T01:50:00Z", "moved": True}
    return event(
        sinks.PULSE_TYPE, said | {"what": "8 flat"} | detail, sinks.SOURCE, time="2026-03-01T02:00:00Z"
    )


def test_the_pulse_of_a_node_is_read_from_its_event() -> None:
    seen = parse_event(pulse(), cluster="gpus", check_family="check")
    assert seen.ours
    assert seen.facts == (
        NodePulse(at=T0, node="n1", state="flat", since=T0 - 10 * MINUTE, trained=True, what="8 flat"),
    )


FILE = {"job": "j", "rank": 0, "silent_s": 90, "pause_s": 20}
WROTE = Wrote(job="j", rank=0, at=T0 - timedelta(seconds=90), pause_s=20)


def written(said: object) -> tuple[Wrote, ...]:
    (fact,) = parse_event(pulse(wrote=said), cluster="gpus", check_family="check").facts
    assert isinstance(fact, NodePulse)
    return fact.wrote


def test_when_ranks_last_wrote_is_counted_back_from_the_event() -> None:
    assert written([FILE]) == (WROTE,)


@pytest.mark.parametrize(
    "odd",
    [
        "j",
        *(
            FILE | wrong
            for wrong in ({"job": ""}, {"job": " x"}, {"job": "a\nb"}, {"rank": -2}, {"rank": True})
        ),
        *(FILE | {"silent_s": wrong} for wrong in (-1, 1.5, "90", None, 10**9)),
        *(FILE | {"pause_s": wrong} for wrong in (-1, 10**9)),
    ],
    ids=str,
)
def test_a_word_of_a_file_that_makes_no_sense_is_left_out_of_the_pulse(odd: object) -> None:
    assert written([odd, FILE]) == (WROTE,)


def test_a_pulse_says_no_more_of_files_than_its_watch_would() -> None:
    assert written([FILE] * (2 * MOST_TOLD)) == (WROTE,) * MOST_TOLD
    assert written(FILE) == ()


@pytest.mark.parametrize(
    "detail",
    [
        {"state": "dancing"},
        {"since": "then"},
        {"what": ""},
        {"node": ""},
        {"cluster": "other"},
    ],
)
def test_a_pulse_that_makes_no_sense_or_is_of_another_cluster_says_nothing(detail: dict[str, object]) -> None:
    assert parse_event(pulse(**detail), cluster="gpus", check_family="check").facts == ()
