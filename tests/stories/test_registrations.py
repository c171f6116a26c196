"""A host whose agent lost its memory registers as a new container instance. What it ran before, ECS never reports."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.aws.discover import discover
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus
from tests.stories.ends import check_end
from tests.stories.plots import Plot, gpu_fault
from tests.stories.test_crashes import calls_of, die
from tests.stories.world import CLUSTER, World, a_world


def back_anew_from_its_reboot(world: World) -> None:
    world.cloud.control.next_reboot("n1", forgets=True)
    gpu_fault(world)


def crashed_and_back_anew(world: World) -> None:
    """The host restarts by itself, and its agent's disk does not come back."""
    world.finish_attempt(1)
    world.cloud.control.next_reboot("n1", forgets=True)
    world.cloud.control.reboot("n1")


def orphaned(world: World) -> None:
    """The agent alone starts anew; its containers run on, and nobody can stop them."""
    world.cloud.control.register_again("n1")


def anew_under_its_check(world: World) -> None:
    """The check that ran there is never heard of again; the machine is examined once more."""
    world.cloud.control.knobs(check_s=60.0)
    gpu_fault(world)
    world.cloud.agenda.after(30, lambda: world.cloud.control.register_again("n1"))


def anew_while_it_stops(world: World) -> None:
    """Its task was told to stop, and nobody will ever report that it did."""
    world.cloud.control.knobs(stop_s=20.0)
    world.finish_attempt(1)
    world.fail_rank(0)
    world.cloud.control.next_reboot("n1", forgets=True)
    world.cloud.agenda.after(5, lambda: world.cloud.control.reboot("n1"))


OK, FAILED = JobStatus.COMPLETE, JobStatus.FAILED
PLOTS = [
    Plot(name="back anew from its reboot", then=back_anew_from_its_reboot, status=OK, attempt=1),
    Plot(name="crashed and back anew", then=crashed_and_back_anew, status=OK, attempt=1, spontaneous=1),
    Plot(name="anew while it stops", then=anew_while_it_stops, status=OK, attempt=1, spontaneous=1),
    Plot(name="anew under its check", then=anew_under_its_check, status=OK, attempt=1),
    Plot(
        name="orphaned",
        then=orphaned,
        status=FAILED,
        attempt=1,
        bad=(("n1", "FAILED"),),
        messages=1,
    ),
]
BY_NAME = {plot.name: plot for plot in PLOTS}


def follows_its_host(world: World, name: str = "n1") -> None:
    """The job's rank, the node's record and its row are those of the new registration."""
    instance = world.cloud.control.node(name)["arn"]
    assert next(rank.instance for rank in world.job().ranks if rank.node == name) == instance
    assert world.side.store.node(name).instance == instance
    assert world.account.rows("node_table")[name]["container_instance_arn"] == instance


@pytest.mark.parametrize("plot", PLOTS, ids=str)
def test_a_job_follows_a_machine_that_registered_again(plot: Plot) -> None:
    with a_world() as world:
        plot.begin(world)
        before = world.cloud.control.node("n1")["arn"]
        plot.then(world)
        began = world.now()
        world.run()
        plot.end(world)
        follows_its_host(world)
        assert world.job().ranks[1].instance != before
        assert world.now() - began < world.settings.policy.reboot_timeout, "nobody waited for a deadline"


def test_a_person_is_told_that_the_old_task_may_still_run(world: World) -> None:
    BY_NAME["orphaned"].tell(world)
    (told,) = world.messages()
    assert "n1 could not be brought back: it registered again, and its old task may still run there" in told


@pytest.mark.parametrize("plot", PLOTS, ids=str)
def test_every_event_twice_changes_no_end(plot: Plot) -> None:
    with a_world() as world:
        world.twice = True
        plot.tell(world)


@pytest.mark.parametrize("plot", PLOTS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_events_that_overtake_each_other_change_no_end(plot: Plot, seed: int) -> None:
    """What was said of the old registration comes after what was said of the new one."""
    with a_world(seed=seed) as world:
        world.cloud.control.weather(reorder_s=8.0, duplicate=0.3, late=0.3, late_s=100.0)
        plot.tell(world)
        follows_its_host(world)


@pytest.mark.parametrize("name", ["back anew from its reboot", "crashed and back anew"])
def test_a_death_after_any_write_changes_no_end(name: str) -> None:
    for number in calls_of(BY_NAME[name]):
        die(BY_NAME[name], after=number)


@pytest.mark.parametrize("named", [True, False], ids=["its settings", "the old instance"])
def test_a_machine_is_known_by_its_host_where_its_name_was_on(world: World, named: bool) -> None:
    """An operator may have put the name on the instance, and it is gone with it."""
    names = world.begin(2)
    world.finish_attempt(1)
    world.cloud.control.register_again("n1", named=named)
    world.cloud.control.reboot("n1")
    world.run()
    check_end(world, JobStatus.COMPLETE, attempt=1, spontaneous=1)
    follows_its_host(world)
    assert sorted(world.account.rows("node_table")) == names, "and no other node was made of it"


def test_another_machine_under_the_same_name_does_not_take_the_place_of_one_in_use(world: World) -> None:
    world.begin(2)
    before = world.job()
    world.cloud.control.disconnect("n1")
    world.cloud.control.add_node(name="other", cluster=CLUSTER, attributes={"node_name": "n1"})
    world.pass_time(5)
    assert world.job().ranks[1].instance == before.ranks[1].instance
    assert world.job().status is JobStatus.IN_PROGRESS


def test_a_free_node_follows_its_host_at_once(world: World) -> None:
    world.add_nodes(1)
    world.pass_time(60)
    world.cloud.control.register_again("n0")
    world.pass_time(1)
    node = world.side.store.node("n0")
    assert node.instance == world.cloud.control.node("n0")["arn"]
    assert (node.status, node.connected) == (NodeStatus.AVAILABLE, True)
    assert "registered again" in node.timeline[-1].why
    world.tick()
    assert world.labels()["n0"] == "AVAILABLE", "the new instance says so too"
    world.submit(["n0"])
    world.fail_rank(0, 0)
    assert world.run().status is JobStatus.COMPLETE


def test_a_list_of_the_nodes_does_not_make_a_second_one_of_it(world: World) -> None:
    """Nobody heard of the new registration, and its name is gone with the old one."""
    names = world.add_nodes(2)
    world.pass_time(60)
    world.events = False
    world.cloud.control.register_again("n1", named=False)
    world.pass_time(60)
    discover(world.cloud.client("ecs"), world.cloud.client("ssm"), world.side.store, CLUSTER, world.now())
    assert [node.name for node in world.side.store.nodes()] == names
    assert world.side.store.node("n1").instance == world.cloud.control.node("n1")["arn"]


def test_a_registration_whose_event_was_lost_is_noticed_with_the_next_one(world: World) -> None:
    world.begin(2)
    world.finish_attempt(1)
    world.events = False
    world.cloud.control.next_reboot("n1", forgets=True)
    world.cloud.control.reboot("n1")
    world.pass_time(120)
    world.events = True
    world.cloud.control.disconnect("n1", 20)
    world.run()
    check_end(world, JobStatus.COMPLETE, attempt=1, spontaneous=1)
    follows_its_host(world)


def test_the_registration_of_a_stranger_costs_one_look_at_the_nodes(world: World) -> None:
    world.begin(2)
    world.wire.forget()
    world.cloud.control.add_node(name="cpu", cluster=CLUSTER, gpus=0)
    world.pass_time(1)
    assert [action for _, action in world.wire.calls] == ["get_item", "query", "query"]
    world.wire.forget()
    world.cloud.control.disconnect("cpu", 1)
    world.pass_time(5)
    assert [action for _, action in world.wire.calls] == ["get_item", "query"] * 2


# -- another machine in its place ----------------------------------------------------------------------------------


def replaced(world: World, name: str, **told: str) -> str:
    """Its machine is terminated, and five minutes later another registers under its name."""
    world.finish_attempt(1)
    world.cloud.control.terminate(name)
    world.pass_time(300)
    spare = world.cloud.control.add_node(
        name="spare", cluster=CLUSTER, gpus=8, attributes={"node_name": name, **told}
    )
    world.pump()
    return str(spare["arn"])


@pytest.mark.parametrize(("name", "told"), [("n0", {"ip": "10.9.9.9"}), ("n2", {})])
def test_a_job_follows_a_node_that_was_replaced_under_its_name(
    world: World, name: str, told: dict[str, str]
) -> None:
    names = world.begin(3)
    arn = replaced(world, name, **told)
    ended = world.run()
    assert (ended.status, ended.attempt) == (OK, 1)
    rank = ended.ranks[names.index(name)]
    node = world.side.store.node(name)
    assert rank.instance == node.instance == arn
    assert rank.host == node.host == world.cloud.control.node("spare")["host_id"]
    assert world.account.rows("node_table")[name]["container_instance_arn"] == arn
    (check,) = [t for t in world.tasks("check") if t["containerInstanceArn"] == arn]
    assert check["env"]["GPU_HEALTH_EXPECT_IDLE"] == "1", "it is examined before it is used"
    if told:
        started = [t["env"]["MASTER_ADDR"] for t in world.tasks() if t["env"]["JOB_ATTEMPT"] == "1"]
        assert started == [told["ip"]] * 3
    assert world.rules_broken == []


def test_the_first_of_a_gang_is_not_followed_to_where_nobody_could_meet_it(world: World) -> None:
    world.begin(2)
    replaced(world, "n0")
    ended = world.run()
    assert (ended.status, ended.attempt) == (FAILED, 1)
    assert "n0 could not be brought back" in ended.outcome


def test_a_machine_under_the_name_of_one_that_is_only_away_is_not_taken_for_it(world: World) -> None:
    world.begin(2)
    before = world.job().ranks[1].instance
    world.cloud.control.power_off("n1")
    world.cloud.control.add_node(name="spare", cluster=CLUSTER, gpus=8, attributes={"node_name": "n1"})
    assert world.run().status is FAILED
    assert world.job().ranks[1].instance == before
