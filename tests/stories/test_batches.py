"""Events that arrive together: one commit for each record, and none of them spoils another."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from ecs_gpu_recovery.aws.errands import Answer
from ecs_gpu_recovery.core.errors import Transient
from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.lambdas import entry
from tests.stories.arrivals import Event
from tests.stories.ends import check_end
from tests.stories.plots import PLOTS, Plot
from tests.stories.world import CHECK, World, a_world


def held(world: World, seconds: float) -> list[Event]:
    """What happens in this time, and nobody hears of it yet."""
    world.events = False
    before = len(world.cloud.control.events())
    world.pass_time(seconds)
    world.events = True
    return list(world.cloud.control.events()[before:])


def verdicts(world: World, nodes: int) -> list[Event]:
    world.begin(nodes)
    world.cloud.control.knobs(check_s=600.0)
    world.fail_rank(0)
    world.pass_time(60)
    return [
        event
        for event in held(world, 700)
        if CHECK in str(event["detail"].get("taskDefinitionArn"))
        and event["detail"]["lastStatus"] == "STOPPED"
    ]


def test_the_verdicts_of_a_gang_are_one_commit(world: World) -> None:
    events = verdicts(world, 8)
    version = world.job().version
    answers = world.side.intake.take_all(events)
    assert [answer.record for answer in answers if isinstance(answer, Answer)] == ["j1"] * 8
    entries = [entry for entry in world.job().timeline if entry.subject == "job"]
    assert (world.job().status, entries[-1].before) == (JobStatus.FAILED, "PENDING_HEALTHCHECK")
    assert world.job().version <= version + 2  # the second one notes that people were told


@pytest.mark.parametrize("plot", PLOTS, ids=str)
def test_events_in_batches_of_any_size_change_no_end(plot: Plot) -> None:
    with a_world(policy=plot.policy) as world:
        world.batches = Random(plot.name)
        plot.tell(world)


def test_a_group_that_fails_is_tried_fact_by_fact(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    events = verdicts(world, 4)
    bad, handle = events[2]["detail"]["taskArn"].rpartition("/")[2], world.side.runtime.handle

    def poisoned(job_id: str, facts: Any, *more: Any) -> Any:
        if any(getattr(fact, "check_id", "") == bad for fact in facts):
            raise ValueError("nobody foresaw this")
        return handle(job_id, facts, *more)

    monkeypatch.setattr(world.side.runtime, "handle", poisoned)
    answers = world.side.intake.take_all(events)
    assert [isinstance(answer, ValueError) for answer in answers] == [False, False, True, False]
    assert sum(rank.verdict is not None for rank in world.job().ranks) == 3
    monkeypatch.undo()
    world.deliver(events[2])
    world.run()
    check_end(world, JobStatus.FAILED, messages=1)


def test_the_last_word_about_a_node_stands(world: World) -> None:
    """It went and came back within one batch: alone, neither its return nor an older event says anything new."""
    world.begin(2)
    world.cloud.control.disconnect("n1")
    world.cloud.control.connect("n1")
    gone_and_back = [event for event in held(world, 1) if "containerInstanceArn" in event["detail"]]
    world.side.intake.take_all(gone_and_back)
    assert [rank.connected for rank in world.job().ranks] == [True, True]


# -- through the handlers ------------------------------------------------------------------------------------------


def batch(*bodies: str) -> Event:
    return {
        "Records": [
            {"messageId": f"m{number}", "eventSource": "aws:sqs", "body": body}
            for number, body in enumerate(bodies)
        ]
    }


class _Answers:
    """An intake that answers as it is told."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self.answers, self.heard = list(answers), list[object]()

    def take_all(self, events: list[object]) -> list[Answer | Exception]:
        self.heard = events
        return self.answers


def test_a_handler_reports_what_shall_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    intake = _Answers(Answer("task", True, ""), Transient("busy"), Answer("other", False, "no JSON"))
    monkeypatch.setattr(entry, "intake", _cached(intake))
    late, early = '{"time": "2026-11-15T20:00:09Z"}', '{"time": "2026-11-15T20:00:00Z"}'
    assert entry.receive(batch(late, early, "{no")) == {"batchItemFailures": [{"itemIdentifier": "m1"}]}
    assert intake.heard == [json.loads(late), json.loads(early), "{no"]
    assert entry.CLOCK.now().second == 9


def test_a_handler_that_could_take_nothing_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "intake", _cached(_Answers(Transient("busy"), Transient("busy"))))
    with pytest.raises(Transient):
        entry.receive(batch("{}", "{}"))


def _cached(intake: object) -> Any:
    def made() -> object:
        return intake

    made.cache_info = entry.intake.cache_info  # type: ignore[attr-defined]
    return made
