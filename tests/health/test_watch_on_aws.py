"""AWS: what the watch on a node puts on the bus is evidence in the record of the job that holds the node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ecs_gpu_recovery.aws.parse import WATCH_SOURCE, WATCH_TYPE, parse_event
from ecs_gpu_recovery.aws.parsed import Kind
from ecs_gpu_recovery.core.events import FAULT, PROGRAM_FAULT, FaultSeen
from ecs_gpu_recovery.core.model import Entry, Job, JobStatus, NodeStatus
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.health import policy
from ecs_gpu_recovery.health.watch import sinks
from ecs_gpu_recovery.health.watch.watcher import Watch
from tests.answering import answering
from tests.aws import event_builders
from tests.stories.arrivals import Event
from tests.stories.malformed import spoiled
from tests.stories.world import World, a_world

from .conftest import Bus

RULES = policy.load()
BAD_GPU, PROGRAM = 79, 31
INSTANCE = "arn:aws:ecs:us-east-1:123456789012:container-instance"


@pytest.fixture
def world() -> Iterator[World]:
    with a_world() as made:
        yield made


def seen_on(world: World, name: str, code: int, text: str = "") -> Event:
    """What the watch on this node makes of a line in its kernel log."""
    arn = str(world.cloud.control.node(name)["arn"])
    line = f"{world.now().isoformat()} kernel: NVRM: Xid (PCI:0000:01:00): {code}, pid=7, name=python, {text}"
    bus = Bus()
    sink = sinks.EventBridgeSink("default", lambda: {"cluster": "gpus", "containerInstanceArn": arn})
    sink._client = bus
    sink.tell(Watch(RULES, "ip-10-0-0-7", "boot", None).take(line, "/dev/kmsg"))
    (entry,) = bus.entries
    envelope = {"time": entry["Time"], "resources": entry["Resources"]}
    return event_builders.event(entry["DetailType"], json.loads(entry["Detail"]), entry["Source"], **envelope)


def told(job: Job, why: str) -> list[Entry]:
    return [entry for entry in job.timeline if entry.why == why]


def test_source_and_kind_are_those_that_the_watch_writes() -> None:
    assert (WATCH_SOURCE, WATCH_TYPE) == (sinks.SOURCE, sinks.DETAIL_TYPE)


def test_a_fault_is_in_the_record_before_the_task_dies_of_it(world: World) -> None:
    names = world.begin(2)
    world.deliver(seen_on(world, names[1], BAD_GPU, "GPU has fallen off the bus."))
    (entry,) = told(world.job(), FAULT)
    assert entry.subject == names[1]
    assert entry.evidence.startswith("Xid 79 on GPU 0000:01:00 (fallen off the bus) | ")
    assert world.job().status is JobStatus.IN_PROGRESS, "evidence is no verdict"
    world.cloud.control.health(names[1], verdict=1)
    world.finish_attempt(1)
    world.fail_rank(1)
    job = world.run()
    assert (job.status, job.attempt) == (JobStatus.COMPLETE, 1)
    exits = [index for index, entry in enumerate(job.timeline) if "died with exit code" in entry.why]
    assert job.timeline.index(entry) < exits[0]


def test_a_free_node_that_breaks_is_repaired_and_free_again(world: World) -> None:
    (name,) = world.add_nodes(1)
    world.cloud.control.health(name, verdict=1)
    broken = seen_on(world, name, BAD_GPU, "GPU has fallen off the bus.")
    world.deliver(broken)

    def node() -> Node:
        return world.side.store.node(name)

    assert node().status is NodeStatus.PENDING_HEALTHCHECK
    world.until(lambda: node().status is NodeStatus.AVAILABLE)
    assert (world.sent("SendCommand"), world.messages()) == (1, [])
    assert [each.outcome for each in node().condemned] == ["cured"]
    before = node()
    world.deliver({**broken, "id": "again", "detail": {**broken["detail"], "what": "the same, told late"}})
    world.pass_time(600)
    assert (node().status, node().check_try) == (NodeStatus.AVAILABLE, before.check_try), "of an earlier boot"
    assert not world.rules_broken


def test_a_programs_fault_on_a_free_node_starts_nothing(world: World) -> None:
    (name,) = world.add_nodes(1)
    world.deliver(seen_on(world, name, PROGRAM))
    assert world.side.store.node(name).status is NodeStatus.AVAILABLE


@pytest.mark.parametrize("code", [13, 31, 43, 45, 94])
def test_an_exit_with_only_a_programs_xids_is_the_programs_fault(world: World, code: int) -> None:
    names = world.begin(2)
    world.deliver(seen_on(world, names[0], code))
    world.fail_rank(0)
    job = world.run()
    assert job.status is JobStatus.FAILED
    assert f"; no GPU fault found; the program failed on {names[0]}: Xid {code} on GPU" in job.outcome
    assert told(job, PROGRAM_FAULT)
    assert world.sent("SendCommand") == 0, "nothing is rebooted"
    assert f"Xid {code}" in world.messages()[0]


def test_a_program_is_not_blamed_while_the_driver_blames_a_gpu_too(world: World) -> None:
    names = world.begin(2)
    world.deliver(seen_on(world, names[0], PROGRAM))
    world.deliver(seen_on(world, names[1], 63))
    world.fail_rank(0)
    job = world.run()
    assert job.outcome.endswith("no GPU fault found")
    assert told(job, PROGRAM_FAULT)
    assert told(job, FAULT)


def test_a_programs_fault_of_an_earlier_attempt_is_not_blamed_for_a_later_one(world: World) -> None:
    names = world.begin(2)
    world.deliver(seen_on(world, names[0], PROGRAM))
    world.cloud.control.health(names[1], verdict=1)
    world.fail_rank(0)
    world.until(lambda: (world.job().status, world.job().attempt) == (JobStatus.IN_PROGRESS, 1))
    world.cloud.control.health(names[1], verdict=0)
    world.fail_rank(0)
    assert world.run().outcome.endswith("no GPU fault found")


def test_the_same_event_twice_is_told_once(world: World) -> None:
    names = world.begin(2)
    event = seen_on(world, names[0], BAD_GPU)
    for _ in range(3):
        world.deliver(event)
    assert len(told(world.job(), FAULT)) == 1


def test_a_watch_without_an_ecs_agent_names_its_cluster_and_its_node(world: World) -> None:
    """Another stack in the account may have a node of that name."""
    names = world.begin(2)
    event = seen_on(world, names[1], BAD_GPU)
    del event["detail"]["containerInstanceArn"]
    event["detail"]["node"] = names[1]
    nowhere = {key: value for key, value in event["detail"].items() if key != "cluster"}
    world.deliver({**event, "detail": nowhere})
    assert told(world.job(), FAULT) == []
    world.deliver(event)
    assert [entry.subject for entry in told(world.job(), FAULT)] == [names[1]]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"containerInstanceArn": f"{INSTANCE}/gpus/unknown"}, "no node"),
        ({"containerInstanceArn": f"{INSTANCE}/other/x"}, "in cluster"),
        ({"containerInstanceArn": "n1"}, "names no node"),
        ({"containerInstanceArn": 7}, "names no node"),
        ({"containerInstanceArn": None, "node": "nobody"}, "no node is nobody"),
        ({"containerInstanceArn": None, "node": ""}, "names no node"),
        ({"containerInstanceArn": None, "node": ["n1"]}, "names no node"),
        ({"what": ""}, "what was seen"),
        ({"what": {"xid": 79}}, "what was seen"),
        ({"cluster": "other", "containerInstanceArn": None, "node": "n1"}, "in cluster"),
    ],
)
def test_an_event_that_makes_no_sense_changes_nothing(world: World, change: dict[str, Any], why: str) -> None:
    names = world.begin(2)
    before = world.job()
    event = seen_on(world, names[1], BAD_GPU)
    event["detail"] = {k: v for k, v in {**event["detail"], **change}.items() if v is not None}
    answer = world.side.intake.take(event)
    assert not answer.taken
    assert why in answer.why
    assert world.job() == before


def test_a_spoiled_event_never_raises_and_is_at_most_evidence(world: World) -> None:
    """A fatal fault also begins the time that a rank has to show a sign of life."""
    names = world.begin(2)

    def stand(job: Job) -> Job:
        ranks = tuple(replace(rank, frozen_at=None) for rank in job.ranks)
        return replace(job, timeline=(), version=0, updated_at=job.created_at, outbox=(), ranks=ranks)

    before = stand(world.job())
    for what, made in spoiled(seen_on(world, names[1], BAD_GPU)):
        assert world.side.intake.take(made).why, what
        assert stand(world.job()) == before, what
    assert not world.rules_broken


def test_the_record_stays_small_whatever_a_log_line_holds(world: World) -> None:
    names = world.begin(2)
    event = seen_on(world, names[1], BAD_GPU)
    event["detail"] |= {"what": "x" * 100_000, "evidence": "\x00\ud800" * 50_000}
    world.deliver(event)
    (entry,) = told(world.job(), FAULT)
    assert len(entry.evidence) < 500


def test_an_event_is_explained_without_touching_anything(world: World) -> None:
    (name,) = world.add_nodes(1)
    seen = parse_event(seen_on(world, name, PROGRAM), cluster="gpus")
    assert (seen.kind, seen.ours, seen.status) == (Kind.FAULT, True, "application")
    (fact,) = seen.facts
    assert isinstance(fact, FaultSeen)
    assert fact.application
    assert "saw a program at fault: Xid 31" in seen.why


def test_the_ecs_agent_tells_which_node_this_is_once_it_knows() -> None:
    """It joins a cluster after a while."""
    arn = f"{INSTANCE}/gpus/abc"
    early = [b"", b"[]", b"{}", b'{"Cluster": "gpus", "ContainerInstanceArn": ""}']
    says = [*early, json.dumps({"Cluster": "gpus", "ContainerInstanceArn": arn, "Version": "v1"}).encode()]
    with answering(lambda *_: (200, says.pop(0))) as host:
        agent = sinks.EcsAgent(f"{host}/v1/metadata")
        for _ in early:
            with pytest.raises(sinks.NotTold):
                agent()
        assert agent() == {"cluster": "gpus", "containerInstanceArn": arn}
    assert agent()["cluster"] == "gpus", "asked once, and remembered"
    with pytest.raises(sinks.NotTold):
        sinks.EcsAgent(f"{host}/v1/metadata")()
