"""News and functions that are late, and stops that were not sent: no healthy node counts as lost for it."""

from __future__ import annotations

from ecs_gpu_recovery.core.model import Job, JobStatus, NodeStatus
from tests.stories.world import World

STOP = ("ecs", "stop_task")


def healthy(ended: Job) -> None:
    """All nodes were examined and found well: nothing was lost, and no retry was spent."""
    assert (ended.status, ended.attempt) == (JobStatus.FAILED, 0)
    assert "no GPU fault found" in ended.outcome
    assert {rank.node_status for rank in ended.ranks} == {NodeStatus.AVAILABLE}


def test_an_end_that_is_handled_six_minutes_late_leaves_the_others_time_to_stop(world: World) -> None:
    world.begin(3)
    world.cloud.control.knobs(stop_s=90.0)
    world.events = False
    world.fail_rank(0)
    world.pass_time(360)
    late = [e for e in world.cloud.control.events() if e["detail"].get("lastStatus") == "STOPPED"][-1]
    world.events = True
    world.deliver(late)
    assert world.job().status is JobStatus.PENDING_HEALTHCHECK
    world.tick()
    healthy(world.run())
    assert world.sent("SendCommand") == 0


def test_a_stop_that_could_not_be_sent_for_longer_than_it_may_take_is_still_waited_for(world: World) -> None:
    world.begin(2)
    world.wire.fail_all[STOP] = "ThrottlingException"
    world.fail_rank(0)
    for _ in range(7):
        world.pass_time(60)
        world.tick()
    assert world.job().ranks[1].node_status is NodeStatus.PENDING
    del world.wire.fail_all[STOP]
    healthy(world.run())
