"""AWS does not do as asked, or our own process is slow: calls refused, forbidden, throttled, and made late."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from ecs_gpu_recovery.core.effects import CheckNode
from ecs_gpu_recovery.core.events import NodeAsked
from ecs_gpu_recovery.core.model import JobStatus
from tests.stories.ends import check_end
from tests.stories.plots import BY_NAME, Plot, gpu_fault
from tests.stories.test_crashes import calls_of
from tests.stories.world import World, a_world

# -- calls that are refused ------------------------------------------------------------------------------------


def refuse(plot: Plot, number: int, code: str) -> World:
    """If the note that a message was sent can't be made, it is sent again: as with a death at that point."""
    with a_world(policy=plot.policy) as world:
        plot.begin(world)
        world.wire.forget()
        world.wire.fail = {number: code}
        plot.then(world)
        world.run()
        plot.end(world, errors=True, told_again=1)
        return world


@pytest.mark.parametrize("name", ["gpu fault"])
def test_a_throttled_call_is_made_later(name: str) -> None:
    plot = BY_NAME[name]
    for number in calls_of(plot):
        refuse(plot, number, "ThrottlingException")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["healthy GPU", "gpu fault", "post-reboot check passes"])
def test_a_throttled_call_of_any_story_is_made_later(name: str) -> None:
    plot = BY_NAME[name]
    for number in calls_of(plot, reads=True):
        refuse(plot, number, "ThrottlingException")


def test_an_order_of_a_node_that_may_not_be_sent_holds_up_no_other(world: World) -> None:
    """As with a job's orders: the rest is sent and recorded, and the reason is raised."""
    world.add_nodes(1)
    world.wire.fail_all[("ecs", "start_task")] = "AccessDeniedException"
    ask = NodeAsked(at=world.now(), node="n0", ask="check", by="ann", why="to see")
    with pytest.raises(ClientError, match="AccessDenied"):
        world.side.runtime.handle_node("n0", [ask])
    assert world.labels() == {"n0": "PENDING_HEALTHCHECK"}
    (order,) = world.side.store.node("n0").outbox
    assert isinstance(order.effect, CheckNode)
    assert (order.tries, "AccessDenied" in order.error) == (1, True)


@pytest.mark.slow
def test_a_call_that_may_not_be_made_leaves_the_handler_and_heals() -> None:
    """Somebody changed a permission for a moment: Lambda tries again, and the end is the same."""
    plot = BY_NAME["gpu fault"]
    for number in calls_of(plot, reads=True):
        world = refuse(plot, number, "AccessDeniedException")
        action = world.wire.calls[number - 1][1]
        quiet = action == "get_log_events"  # a verdict does not wait for its reason
        assert len(world.errors) == 1 or (quiet and not world.errors), (action, world.errors)
        assert all("AccessDenied" in str(error) for error in world.errors)


@pytest.mark.parametrize(
    "action",
    [
        ("ecs", "start_task"),
        ("ecs", "stop_task"),
        ("ecs", "put_attributes"),
        ("ssm", "send_command"),
        ("ssm", "list_command_invocations"),
        ("dynamodb", "transact_write_items"),
        ("dynamodb", "update_item"),
        ("ecs", "describe_task_definition"),
    ],
    ids=lambda action: action[1],
)
def test_a_missing_permission_is_loud_and_heals_when_it_is_given(
    world: World, action: tuple[str, str]
) -> None:
    """For ten minutes one action is forbidden. Nothing is half done meanwhile, and nothing is forgotten."""
    world.begin(2)
    world.wire.fail_all = {action: "AccessDeniedException"}
    gpu_fault(world)
    for _ in range(10):
        world.pass_time(60)
        world.tick()
    assert world.errors
    assert all("AccessDenied" in str(error) for error in world.errors)
    if action[1] in ("start_task", "stop_task", "send_command"):
        waiting = [order for record in (world.job(), *world.records().nodes()) for order in record.outbox]
        assert any("AccessDenied" in order.error for order in waiting), "the record says why it waits"
    world.wire.fail_all = {}
    world.redrive()
    world.run()
    # The host's own command says that it rebooted, so nothing has to be asked: no sweep stumbles over that right. A
    # reboot is the node's own order.
    told = {"list_command_invocations": 0, "send_command": 0}.get(action[1], 1)
    check_end(world, JobStatus.COMPLETE, attempt=1, errors=True, messages=told)
    of_nodes = [message for message in world.messages() if "The record of node n1" in message]
    assert len(of_nodes) == (action[1] == "send_command"), of_nodes


def test_the_sweeper_begins_with_what_is_due_and_never_ends_with_the_same_job(world: World) -> None:
    """A sweep of very many jobs may be cut short; whoever came last must not come last again and again."""
    names = world.add_nodes(8)
    jobs = [f"j{number}" for number in range(8)]
    for name, job_id in zip(names, jobs, strict=True):
        world.submit([name], job_id=job_id)
    world.pass_time(5)
    world.events = False
    late = world.job("j5").ranks[0].instance
    world.wire.fail_all = {("ecs", "stop_task"): "ThrottlingException"}
    world.stop("j5")
    swept: list[list[str]] = []

    def heard(service: str, action: str, request: dict[str, object]) -> None:
        if action == "describe_container_instances" and len(asked := request["containerInstances"]) == 1:  # type: ignore[arg-type]
            swept[-1] += asked  # type: ignore[operator]

    world.wire.before.append(heard)
    for _ in range(6):
        world.pass_time(60)
        swept.append([])
        world.tick()
    orders = [row for row in swept if len(row) == len(jobs)]
    assert len(orders) >= 5
    assert orders[0][0] == late, "its stop is overdue"
    assert len({row[-1] for row in orders}) > 1


def test_one_job_in_trouble_does_not_keep_the_sweeper_from_the_others(world: World) -> None:
    names = world.add_nodes(4)
    world.submit(names[:2], job_id="j1")
    world.submit(names[2:], job_id="j2")
    world.events = False
    world.finish_attempt(1)
    world.cloud.control.health("n3", 1)
    world.fail_rank(0)
    world.cloud.control.exit_task(world.task_of(0, "j2"), 1)
    mine = world.job("j1").ranks[0].instance

    def forbidden_on_n0(service: str, action: str, request: dict[str, object]) -> None:
        if action == "start_task" and mine in str(request):
            raise PermissionError("not on n0")

    world.wire.before.append(forbidden_on_n0)
    for _ in range(12):
        world.pass_time(60)
        world.tick()
    assert world.job("j1").status is JobStatus.PENDING_HEALTHCHECK
    assert world.errors
    assert world.job("j2").attempt == 1
    world.wire.before.clear()
    world.run("j2")
    check_end(world, JobStatus.COMPLETE, attempt=1, job_id="j2", errors=True)
    world.run("j1")
    check_end(world, JobStatus.FAILED, messages=2, job_id="j1", errors=True)  # it was left out, and it failed


def test_a_large_gang_stays_below_the_account_s_limit() -> None:
    """With ECS's own token buckets: calls are paced, and what is refused all the same is sent again."""
    with a_world() as world:
        names = world.add_nodes(8)
        world.cloud.control.knobs(throttle=True)
        world.submit(names)
        world.finish_attempt(1)
        world.cloud.control.health("n5", 1)
        world.fail_rank(2)
        world.run()
        check_end(world, JobStatus.COMPLETE, attempt=1)


# -- slow processes --------------------------------------------------------------------------------------------


def pause(plot: Plot, number: int, seconds: float) -> None:
    """At this call the process stands still, while others handle what happens meanwhile."""
    with a_world(policy=plot.policy) as world:
        plot.begin(world)
        world.wire.forget()

        def others() -> None:
            mine, world.side = world.side, world.a_process()
            now = world.clock.now()
            world.pass_time(seconds)
            world.tick()
            world.side = mine
            world.clock.set({"time": now.isoformat()})

        world.wire.meanwhile[number] = others
        plot.then(world)
        world.run()
        plot.end(world)


@pytest.mark.parametrize("seconds", [10.0, 100.0])
def test_a_process_that_is_slow_at_any_call_changes_no_end(seconds: float) -> None:
    """Up to the time limit of a function, which is shorter than the lease of an order."""
    plot = BY_NAME["gpu fault"]
    for number in calls_of(plot, reads=True)[:: 2 if seconds < 50 else 3]:
        pause(plot, number, seconds)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["healthy GPU", "retry spent", "doubtful success", "out of memory", "post-reboot check passes"]
)
def test_a_process_that_is_slow_at_any_call_of_any_story_changes_no_end(name: str) -> None:
    plot = BY_NAME[name]
    for number in calls_of(plot, reads=True):
        pause(plot, number, 30.0)
