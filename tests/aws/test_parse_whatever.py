"""Whatever comes: noise, damaged events, and events of things that are not a job's."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import UTC
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecs_gpu_recovery.aws.parse import UNKNOWN, parse_event
from ecs_gpu_recovery.aws.parsed import Kind, Parsed
from ecs_gpu_recovery.core.events import NodeChecked, TaskEnded, TaskStarted
from ecs_gpu_recovery.core.model import Verdict
from tests.aws.event_builders import (
    CHECK,
    TASK_ID,
    command_event,
    container,
    event,
    health_event,
    instance_event,
    stopped,
    task_event,
)
from tests.aws.strangers import STRANGERS

# -- whatever comes ------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
WRONG: st.SearchStrategy[object] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.lists(JSON, max_size=2) | st.just({})
)
VALID = [
    task_event(),
    stopped(container(1, gpuIds=["GPU-0"])),
    stopped(container(0), env={**CHECK, "JOB_ID": "j1"}),
    instance_event(),
    health_event("IMPAIRED", {"type": "DAEMON", "status": "IMPAIRED", "statusReason": "x"}),
    command_event(),
    event("Scheduled Event", {}, source="aws.scheduler"),
]


def paths(value: object, begin: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*begin, key)
        yield from paths(inner, (*begin, key))


def sound(seen: Parsed) -> None:
    """What holds for every answer."""
    assert seen.why
    assert seen.may_be_ours >= (seen.ours or bool(seen.facts))
    assert all(fact.at.tzinfo is UTC for fact in seen.facts)
    if seen.kind in (Kind.OTHER, Kind.MALFORMED):
        assert (seen.ours, seen.facts, seen.job) == (False, (), "")


@given(JSON)
def test_no_json_whatever_raises(value: object) -> None:
    sound(parse_event(value, cluster="gpu", check_family="dcgm"))


@given(st.sampled_from(VALID), JSON)
def test_no_detail_whatever_raises(valid: dict[str, Any], value: object) -> None:
    sound(parse_event({**valid, "detail": value}))


@given(st.sampled_from(VALID), st.dictionaries(st.text(max_size=12), JSON, max_size=3))
def test_fields_that_nobody_knows_change_nothing(valid: dict[str, Any], extra: dict[str, Any]) -> None:
    unknown = {f"x-{key}": value for key, value in extra.items()}
    assert parse_event({**valid, **unknown, "detail": {**valid["detail"], **unknown}}) == parse_event(valid)


@given(st.data())
def test_a_damaged_event_never_speaks_for_another_job_or_task(data: st.DataObject) -> None:
    made = copy.deepcopy(data.draw(st.sampled_from(VALID)))
    for _ in range(data.draw(st.integers(1, 3))):
        *way, last = data.draw(st.sampled_from(list(paths(made)) or [("detail",)]))
        place: Any = made
        for step in way:
            place = place[step]
        if data.draw(st.booleans()):
            del place[last]
        else:
            right = (1, 2) if last == "exitCode" else ()  # other verdicts, and no damage
            place[last] = data.draw(WRONG.filter(lambda value, right=right: value not in right))
    seen = parse_event(made, cluster="gpu")
    sound(seen)
    assert seen.job in ("", "j1")
    assert seen.task_id in ("", TASK_ID)
    assert seen.node in ("", "node-a")
    for fact in seen.facts:
        if isinstance(fact, TaskStarted | TaskEnded):
            assert (fact.task_id, fact.attempt in (UNKNOWN, 1), fact.rank in (UNKNOWN, 2)) == (
                TASK_ID,
                True,
                True,
            )
        if isinstance(fact, NodeChecked):
            assert fact.check_try in (UNKNOWN, 3)
            assert fact.verdict in (Verdict.HEALTHY, Verdict.INCONCLUSIVE)


# -- strangers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRANGERS)
def test_a_strangers_event_is_understood(name: str) -> None:
    made, understood = STRANGERS[name]
    seen = parse_event(made)
    sound(seen)
    assert (seen.ours, seen.may_be_ours, seen.kind) == understood[:3]
    assert understood[3] in seen.why


def test_nothing_is_ours_that_happened_in_another_cluster() -> None:
    for made, _ in STRANGERS.values():
        seen = parse_event(made, cluster="somewhere-else")
        assert (seen.ours, seen.may_be_ours, seen.facts) == (False, False, ()), seen.why
