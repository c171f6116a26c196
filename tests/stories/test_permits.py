"""Permits on AWS, through the functions: a storm freezes the fleet, a person thaws it, and all heals."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ecs_gpu_recovery.control import permits
from ecs_gpu_recovery.core.events import FaultSeen
from ecs_gpu_recovery.core.guard import STOP, FleetGuard
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus
from tests.stories.ends import check_end
from tests.stories.memory import error
from tests.stories.plots import gpu_fault
from tests.stories.world import World, a_world, with_policy

HELD = NodeStatus.PENDING_HEALTHCHECK


def guard_of(world: World) -> FleetGuard:
    return permits.granted(world.a_process().runtime.permits).look()


def a_person(world: World, ask: str, name: str = "") -> None:
    """With a command of their own: another process, which sends nothing."""
    asked = permits.granted(world.a_process().runtime.permits)
    permits.ask(asked, ask, name, by="ann", why="a switch was broken", at=world.now())


def reboots(world: World) -> int:
    return sum(len(node.reboot_keys) for node in world.cloud.cluster.nodes.values())


def a_storm(world: World, nodes: int = 4) -> None:
    world.begin(nodes)
    world.finish_attempt(1)
    for i in range(nodes):
        world.cloud.control.health(f"n{i}", 1)
    world.fail_rank(0)
    world.until(lambda: world.job().status is JobStatus.PENDING_RESTART)
    world.tick()


def test_four_nodes_at_once_freeze_the_fleet_and_none_of_them_reboots() -> None:
    with a_world() as world:
        a_storm(world)
        world.pass_time(3600)
        world.tick()
        assert reboots(world) == 0
        assert {node.status for node in world.records().nodes()} == {HELD}
        assert world.job().status is JobStatus.PENDING_RESTART
        (told,) = world.messages()
        assert "The fleet gpus is frozen: 4 nodes to repair within 10 minutes" in told
        assert "All have in common the fault" in told
        assert "the image: train:1" in told


def test_a_person_thaws_it_three_go_within_ten_minutes_and_the_job_heals() -> None:
    with a_world() as world:
        a_storm(world)
        a_person(world, "thaw")
        world.until(lambda: reboots(world) == 3, minutes=5)
        world.pass_time(240)
        world.tick()
        assert reboots(world) == 3, "the fourth waits for the rest of the ten minutes"
        world.run()
        assert reboots(world) == 4
        assert guard_of(world).frozen is None
        check_end(world, JobStatus.COMPLETE, attempt=1, messages=1)


def test_what_waited_over_ten_minutes_is_examined_again_and_not_rebooted_if_it_is_well() -> None:
    with a_world() as world:
        a_storm(world)
        world.pass_time(1800)
        for i in range(4):
            world.cloud.control.health(f"n{i}", 0)
        a_person(world, "thaw")
        world.run()
        assert reboots(world) == 0
        check_end(world, JobStatus.COMPLETE, attempt=1, messages=1)


def test_four_nodes_that_nobody_can_repair_freeze_the_fleet_too() -> None:
    """No order waits, so the sweeper counts what it finds; people hear of the job and of the fleet."""
    with a_world() as world:
        world.begin(4)
        for i in range(4):
            world.cloud.control.health(f"n{i}", 2)
        world.fail_rank(0)
        world.run()
        world.tick()
        frozen = guard_of(world).frozen
        assert frozen is not None
        assert frozen.why == "4 nodes to repair within 10 minutes"
        for _ in range(3):
            world.pass_time(60)
            world.tick()
        told = [message for message in world.messages() if "is frozen" in message]
        assert len(told) == 1, told
        assert world.job().status is JobStatus.FAILED


def test_everything_else_goes_on_in_a_frozen_fleet() -> None:
    with a_world() as world:
        a_person(world, "freeze")
        world.begin(2)
        world.fail_rank(0)
        world.run()
        check_end(world, JobStatus.FAILED, messages=1)


@pytest.mark.parametrize("answer", ["allow", "refuse"])
def test_each_reboot_waits_for_a_yes_or_a_no_if_people_want_to_be_asked(answer: str) -> None:
    with a_world(policy=with_policy(repairs="ask")) as world:
        world.begin(2)
        gpu_fault(world)
        world.until(lambda: bool(guard_of(world).waiting))
        world.pass_time(3600)
        assert reboots(world) == 0
        (told,) = world.messages()
        assert "n1 waits for your yes to its reboot" in told
        a_person(world, answer, "n1")
        world.run()
        assert reboots(world) == (answer == "allow")
        if answer == "allow":
            check_end(world, JobStatus.COMPLETE, attempt=1)
        else:
            assert world.job().status is JobStatus.FAILED
            assert world.node_statuses()["n1"] == "FAILED"


def test_a_guard_that_cannot_be_asked_means_wait_and_then_all_goes_on() -> None:
    with a_world() as world:
        world.begin(2)
        world.finish_attempt(1)
        world.cloud.control.health("n1", 1)
        table = world.settings.GUARD_TABLE_NAME

        def away(service: str, action: str, request: dict[str, object]) -> None:
            if request.get("TableName") == table:
                raise error("ThrottlingException", action)

        world.wire.before.append(away)
        world.fail_rank(0)
        world.until(lambda: world.job().status is JobStatus.PENDING_RESTART)
        world.pass_time(timedelta(hours=2).total_seconds())
        world.tick()
        assert reboots(world) == 0
        assert world.records().node("n1").status is HELD
        world.wire.before.remove(away)
        world.run()
        check_end(world, JobStatus.COMPLETE, attempt=1)


def stops(world: World) -> list[str]:
    return [each.key for each in guard_of(world).waiting if each.what == STOP]


def a_fatal_fault_in_a_frozen_fleet(world: World) -> None:
    world.begin(2)
    a_person(world, "freeze")
    world.cloud.control.health("n1", 1)
    fault = FaultSeen(at=world.now(), node="n1", evidence="fell off the bus | Xid 79", fatal=True)
    world.a_process().runtime.handle("j1", [fault])


def test_a_gang_that_died_of_its_fault_needs_no_permit_to_be_stopped() -> None:
    with a_world() as world:
        a_fatal_fault_in_a_frozen_fleet(world)
        world.fail_rank(1)
        for _ in range(10):
            world.pass_time(60)
            world.tick()
            assert stops(world) == []
        assert [rank.frozen_at for rank in world.job().ranks] == [None, None]
        a_person(world, "allow", "j1")
        world.until(lambda: reboots(world) == 1, minutes=5)


@pytest.mark.parametrize("end", ["its rank dies", "a person stops the job"])
def test_a_stop_that_nobody_needs_any_more_is_asked_for_no_longer(end: str) -> None:
    with a_world() as world:
        a_fatal_fault_in_a_frozen_fleet(world)
        world.until(lambda: bool(stops(world)))
        assert stops(world) == ["j1/0/halt"]
        if end == "its rank dies":
            world.fail_rank(1)
        else:
            world.stop()
        world.until(lambda: not stops(world), minutes=10)
        for _ in range(3):
            world.pass_time(60)
            world.tick()
        assert stops(world) == []
