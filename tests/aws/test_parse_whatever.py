"""Whatever comes: noise, damaged events, and a collection of recorded ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecs_gpu_recovery.aws.parse import UNKNOWN, Kind, Parsed, parse_event
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

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "samples" / "events"

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
            place[last] = data.draw(WRONG)
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


# -- recorded events -----------------------------------------------------------------------------------------

SERVICE = (False, False, "task", "service")
LOOK_UP = (False, True, "task", "task table knows")
ANSWER = (False, False, "malformed", "event")
HEALTH = (True, True, "instance-health", "ECS reports")
SIGHTING = (True, True, "instance", "the instance is")
EXPECTED = {
    "api_": ANSWER,
    "ci_health_accelerated_compute_impaired": (*HEALTH[:3], "ACCELERATED_COMPUTE IMPAIRED XID_46"),
    "ci_health_agent_connectivity_impaired": (*HEALTH[:3], "AGENT_CONNECTIVITY IMPAIRED"),
    "ci_health_container_runtime_ok": (*HEALTH[:3], "nothing to record"),
    "ci_health_daemon_impaired": (*HEALTH[:3], "DAEMON IMPAIRED"),
    "ci_state_change_lambdago": (*SIGHTING[:3], "GPUs registered: 0"),
    "derived_ci_ec2_deregistered": (*SIGHTING[:3], "INACTIVE"),
    "derived_ci_ec2_draining": (*SIGHTING[:3], "DRAINING"),
    "derived_ci_ec2_gpu_active_idle": (*SIGHTING[:3], "GPUs registered: 8"),
    "derived_ci_ec2_gpu_agent_disconnected": (*SIGHTING[:3], "not connected"),
    "derived_ci_external_agent_disconnected": (*SIGHTING[:3], "not connected"),
    "derived_ci_": SIGHTING,
    "derived_task_ec2_oom_137": (*LOOK_UP[:3], "OutOfMemoryError"),
    "derived_task_ec2_cannot_pull": (*LOOK_UP[:3], "CannotPullContainerError"),
    "derived_task_ec2_gpu_exit1": (*LOOK_UP[:3], "exit code 1 "),
    "derived_task_ec2_reboot_255": (*LOOK_UP[:3], "exit code 255"),
    "derived_task_": LOOK_UP,
    "lifecycle_exit99_": SERVICE,
    "service_action_": (False, False, "other", "ECS Service Action"),
    "task_deprovisioning_exit0_env_overrides": (*LOOK_UP[:3], "counts at STOPPED"),
    "task_ec2_pending_2016": (*LOOK_UP[:3], "exists (PENDING)"),
    "task_ec2_running_docs2025": (*LOOK_UP[:3], "it runs"),
    "task_ec2_user_stop_exit0": SERVICE,
    "task_fargate_app_exit0": (*LOOK_UP[:3], "exit code 0"),
    "task_fargate_app_exit1": (*LOOK_UP[:3], "exit code 1"),
    "task_fargate_elb_unhealthy_": SERVICE,
    "task_fargate_failedtostart_missing_secret": (*LOOK_UP[:3], "ResourceInitializationError"),
    "task_fargate_pending_5containers": (*LOOK_UP[:3], "exists (PENDING)"),
    "task_fargate_running_5containers": (*LOOK_UP[:3], "it runs"),
    "task_fargate_running_execagent": SERVICE,
    "task_spot_": (*LOOK_UP[:3], "is being stopped"),
}
RECORDED = sorted(SAMPLES.glob("*.json"))
needs_samples = pytest.mark.skipif(not RECORDED, reason="the recorded events are not beside this checkout")


@needs_samples
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_every_recorded_event_is_understood(path: Path) -> None:
    row = max((key for key in EXPECTED if path.stem.startswith(key)), key=len)
    ours, may_be_ours, kind, word = EXPECTED[row]
    seen = parse_event(json.loads(path.read_text()))
    sound(seen)
    assert (seen.ours, seen.may_be_ours, seen.kind, word in seen.why) == (ours, may_be_ours, kind, True), (
        seen.why
    )


@needs_samples
@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.ndjson")), ids=lambda path: path.stem)
def test_a_recorded_stream_holds_nothing_of_ours_and_one_end_per_task(path: Path) -> None:
    seen = [parse_event(json.loads(line)) for line in path.read_text().splitlines()]
    assert not any(one.ours for one in seen)
    assert {one.kind for one in seen} <= {Kind.TASK, Kind.OTHER}
    ends = [fact.task_id for one in seen for fact in one.facts if isinstance(fact, TaskEnded)]
    assert len(ends) == len(set(ends))


@needs_samples
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_no_recorded_event_is_ours_when_it_happened_elsewhere(path: Path) -> None:
    seen = parse_event(json.loads(path.read_text()), cluster="somewhere-else")
    assert (seen.ours, seen.may_be_ours, seen.facts) == (False, False, ())
