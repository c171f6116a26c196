"""What every fleet promises to the engine: the two that people use, and the two that tests run in.

What a double does not promise is in `CANNOT`, with the reason. Such a test is run all the same, and must fail: a double
that has learned it is found out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ecs_gpu_recovery.core.effects import ReplaceNode, StartTask, StopTask
from ecs_gpu_recovery.core.errors import ClusterRefused
from ecs_gpu_recovery.core.events import (
    CheckStarted,
    NodeChecked,
    NodeSeen,
    RebootProven,
    StopAsked,
    TaskEnded,
    TaskStarted,
)
from ecs_gpu_recovery.core.exits import OUR_REASON
from ecs_gpu_recovery.core.model import Verdict
from tests.contract.fleet_doubles import model, nights
from tests.contract.fleets import Behind, Story, ecs, embedded

FLEETS = {"embedded": embedded, "ecs": ecs, "nights": nights, "model": model}

NO_OTHER = "it has no other machines, and refuses"
CANNOT = {
    (
        "model",
        "test_a_start_on_a_node_in_use_is_refused_for_its_gpus",
    ): "it has one job, and calls the very order of a second task a violation",
    (
        "model",
        "test_a_machine_that_is_replaced_twice_goes_once_and_another_comes",
    ): "its judge calls an order without a fault a violation",
    ("embedded", "test_a_machine_that_is_replaced_twice_goes_once_and_another_comes"): NO_OTHER,
}


@pytest.fixture(params=FLEETS)
def behind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Behind]:
    why = CANNOT.get((request.param, request.node.originalname))
    if why:
        request.applymarker(pytest.mark.xfail(reason=why, strict=True))
    with FLEETS[request.param](tmp_path) as made:
        yield made


def test_what_a_double_cannot_promise_is_named_by_a_test_that_exists() -> None:
    assert {fleet for fleet, _ in CANNOT} <= set(FLEETS)
    assert {name for _, name in CANNOT} <= set(globals())


# -- starts ----------------------------------------------------------------------------------------------------


def test_a_start_sent_twice_is_one_task(behind: Behind) -> None:
    story = Story(behind)
    (first,) = story.starts()
    (second,) = story.starts(again=True)
    assert isinstance(first, TaskStarted)
    assert isinstance(second, TaskStarted)
    assert (first.task_id, first.rank, first.attempt) == (second.task_id, 0, 0)
    assert behind.tasks() == 1


def test_a_start_is_not_made_again_after_its_task_has_ended(behind: Behind) -> None:
    """Its sender died before it could record the task, and it was over when another looked."""
    story = Story(behind)
    (first,) = story.starts()
    assert isinstance(first, TaskStarted)
    story.until(TaskStarted, lambda fact: fact.running)
    behind.program_ends(first.task_id, 1)
    story.until(TaskEnded)
    (again,) = behind.fleet.start_task(Story(behind).job, story.order(StartTask), again=True)
    assert isinstance(again, TaskStarted)
    assert again.task_id == first.task_id
    assert behind.tasks() == 0


def test_a_start_on_a_node_without_its_agent_is_refused_as_passing(behind: Behind) -> None:
    story = Story(behind)
    behind.disconnects()
    with pytest.raises(ClusterRefused) as refused:
        story.starts()
    assert refused.value.reason.startswith("AGENT")
    assert behind.tasks() == 0


def test_a_start_on_a_node_in_use_is_refused_for_its_gpus(behind: Behind) -> None:
    Story(behind).starts()
    with pytest.raises(ClusterRefused) as refused:
        Story(behind, job_id="k").starts()
    assert refused.value.reason.startswith("RESOURCE:GPU")
    assert behind.tasks() == 1


# -- stops -----------------------------------------------------------------------------------------------------


def test_a_stop_by_id_ends_the_task_with_our_reason(behind: Behind) -> None:
    story = Story(behind)
    story.starts()
    story.until(TaskStarted, lambda fact: fact.running)
    story.stops()
    ended = story.until(TaskEnded)
    assert (ended.rank, ended.stop_code) == (0, "UserInitiated")
    assert ended.reason.startswith(OUR_REASON)
    assert behind.tasks() == 0


def test_a_stop_by_token_ends_a_task_whose_id_nobody_recorded(behind: Behind) -> None:
    story = Story(behind)
    list(behind.fleet.start_task(story.job, story.order(StartTask), again=False))
    story.hears([StopAsked(at=behind.now(), by="ann")])
    assert story.order(StopTask).task_id == ""
    story.stops()
    story.until(TaskEnded)
    assert behind.tasks() == 0


def test_a_stop_of_what_was_never_started_tells_its_end_at_once_or_at_the_next_look(behind: Behind) -> None:
    story = Story(behind)
    told = [*story.stops(), *story.looks()]
    assert any(isinstance(fact, TaskEnded) and fact.rank == 0 for fact in told)


def test_a_stop_sent_twice_is_one_stop(behind: Behind) -> None:
    story = Story(behind)
    story.starts()
    story.stops()
    story.stops()
    story.until(TaskEnded)
    story.stops()
    assert behind.tasks() == 0


# -- checks ----------------------------------------------------------------------------------------------------


def test_a_check_sent_twice_is_one_check_and_gives_its_verdict(behind: Behind) -> None:
    story = Story(behind, check=True)
    (first,) = story.checks()
    (second,) = story.checks(again=True)
    assert isinstance(first, CheckStarted)
    assert isinstance(second, CheckStarted)
    assert (first.check_id, first.node, first.check_try) == (second.check_id, "n0", 1)
    assert behind.tasks() == 1
    answer = story.until(NodeChecked)
    assert (answer.node, answer.check_try, answer.verdict) == ("n0", 1, Verdict.HEALTHY)


def test_a_check_tells_a_fault_that_a_reboot_may_cure(behind: Behind) -> None:
    behind.breaks()
    story = Story(behind, check=True)
    story.checks()
    assert story.until(NodeChecked).verdict is Verdict.REBOOT


def test_a_check_is_refused_while_the_task_still_holds_the_gpus(behind: Behind) -> None:
    Story(behind).starts()
    with pytest.raises(ClusterRefused) as refused:
        Story(behind, check=True, job_id="k").checks()
    assert refused.value.reason.startswith("RESOURCE:GPU")


# -- reboots ---------------------------------------------------------------------------------------------------


def condemned(behind: Behind) -> Story:
    """A job whose rank died on a node that the check calls bad: the reboot is ordered."""
    story = Story(behind)
    (started,) = story.starts()
    assert isinstance(started, TaskStarted)
    story.until(TaskStarted, lambda fact: fact.running)
    behind.breaks()
    behind.program_ends(started.task_id, 1)
    story.until(TaskEnded)
    story.checks()
    story.until(NodeChecked)
    story.looks()
    return story


def test_a_reboot_sent_twice_for_one_key_is_one_reboot_and_it_is_proven(behind: Behind) -> None:
    story = condemned(behind)
    before = behind.boots()
    story.reboots()
    story.reboots(again=True)
    proof = story.until(RebootProven)
    assert (proof.node, proof.key) == ("n0", "j/1/0/reboot")
    story.reboots(again=True)
    for _ in range(5):
        behind.passes()
    assert behind.boots() == before + 1


def test_a_machine_that_is_replaced_twice_goes_once_and_another_comes(behind: Behind) -> None:
    node, order = behind.node(), ReplaceNode(key="node/n0/replace/1", node="n0")
    before = behind.successors()
    for again in (False, True, True):
        list(behind.fleet.replace_node(node, order, again=again))
    for _ in range(400):
        behind.passes()
        if behind.successors() > before:
            break
    seen = [fact for _, fact in behind.fleet.observe_nodes([node]) if isinstance(fact, NodeSeen)]
    assert [(fact.gone, fact.connected) for fact in seen] == [(True, False)]
    list(behind.fleet.replace_node(node, order, again=True))
    for _ in range(100):
        behind.passes()
    assert behind.successors() == before + 1


# -- what can be seen ------------------------------------------------------------------------------------------


def test_a_look_tells_that_a_task_runs_and_how_it_ended(behind: Behind) -> None:
    story = Story(behind)
    (started,) = story.starts()
    assert isinstance(started, TaskStarted)
    running = story.until(TaskStarted, lambda fact: fact.running)
    assert (running.task_id, running.rank, running.attempt) == (started.task_id, 0, 0)
    behind.program_ends(started.task_id, 1)
    ended = story.until(TaskEnded)
    assert (ended.task_id, ended.rank, ended.exit_code) == (started.task_id, 0, 1)


def test_a_look_tells_that_a_node_went_away_and_came_back(behind: Behind) -> None:
    story = Story(behind)
    behind.disconnects()
    assert story.until(NodeSeen, lambda fact: not fact.connected).node == "n0"
    assert not story.job.ranks[0].connected
    behind.connects()
    story.until(NodeSeen, lambda fact: fact.connected)
    assert story.job.ranks[0].connected


def test_a_look_twice_tells_the_same_and_the_record_does_not_move(behind: Behind) -> None:
    story = Story(behind)
    story.starts()
    story.until(TaskStarted, lambda fact: fact.running)
    story.looks()
    before = story.job
    story.looks()
    assert story.job is before


def test_a_node_that_no_job_holds_is_observed_too(behind: Behind) -> None:
    node = behind.node()
    behind.disconnects()
    seen = [fact for name, fact in behind.fleet.observe_nodes([node]) if name == "n0"]
    assert [fact.connected for fact in seen if isinstance(fact, NodeSeen)] == [False]


def test_labels_are_put_on_as_many_nodes_as_there_are_and_on_none(behind: Behind) -> None:
    behind.fleet.label_nodes([])
    behind.fleet.label_nodes([behind.node()])
