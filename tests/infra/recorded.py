"""What the functions really ask AWS for, over all stories, and what a synthesized role lets them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from botocore.exceptions import ReadTimeoutError

from ecs_gpu_recovery.core.events import NodeAsked
from ecs_gpu_recovery.core.model import Failover, JobSpec, JobStatus
from ecs_gpu_recovery.core.policy import Policy
from testbed.aws import rights
from tests.stories.account import Died, error
from tests.stories.functions import handler_of
from tests.stories.other_tool import NODES, OtherTool, text
from tests.stories.plots import BY_NAME, PLOTS
from tests.stories.world import CHECK, CLUSTER, TRAIN, World, a_world

ACCOUNT = "123456789012"
PLACE = f"us-east-1:{ACCOUNT}"
FUNCTIONS = {
    "ecs_task_handler": "EcsTaskHandler",
    "dcgm_task_monitor": "DcgmTaskMonitor",
    "ecs_instance_monitor": "EcsInstanceMonitor",
    "recovery_sweeper": "RecoverySweeper",
}
ROLES = (f"arn:aws:iam::{ACCOUNT}:role/TasksTrainingRole", f"arn:aws:iam::{ACCOUNT}:role/TasksExecutionRole")
#: Of every host: the tag that the stack asks for.
TAGS = {"GpuRecovery": "gpu-cluster"}
#: The parts of a transaction, which IAM knows as the actions that they are.
PARTS = {
    "Put": "PutItem",
    "Update": "UpdateItem",
    "Delete": "DeleteItem",
    "ConditionCheck": "ConditionCheckItem",
}


@dataclass(frozen=True)
class Need:
    """A function needed this right."""

    function: str
    action: str
    resource: str
    told: tuple[tuple[str, str], ...] = ()


# -- what they ask for -----------------------------------------------------------------------------------------


def all_needs() -> set[Need]:
    """Every story with its events; some with none, so that the sweeper does it all; and other tools' jobs."""
    found: set[Need] = set()
    for plot in PLOTS:
        with a_world(policy=plot.policy) as world:
            record(world, found)
            plot.tell(world)
    for name in ("gpu fault", "both nodes bad", "retry spent", "job stopped by a person", "terminated"):
        with a_world() as world:
            record(world, found)
            world.events = False
            BY_NAME[name].tell(world)
    for number, name in enumerate(
        ("gpu fault", "both nodes bad", "retry spent", "task stopped by a person") * 4
    ):
        with a_world(seed=number) as world:
            record(world, found)
            _with_deaths(world, name, number)
    # Gangs so large that whoever sends its orders takes turns: three of the functions, and the sweeper by itself.
    known = Policy(admission_check=False)
    for policy, events in ((known, True), (replace(known, post_reboot_check=False), True), (known, False)):
        with a_world(policy=policy) as world:
            record(world, found)
            world.begin(24)
            world.events = events
            world.cloud.control.health("n1", 1)
            world.fail_rank(0)
            world.finish_attempt(1)
            world.run()
    for tell in (
        _their_job,
        _their_job_unseen,
        _their_restart,
        _a_long_name,
        _a_free_node,
        _a_job_that_waits_for_a_node,
        _a_claim_of_no_job,
        _a_gang_that_does_not_start,
        _a_gang_that_does_not_start_again,
        _a_start_that_nobody_heard_of,
        _a_host_is_gone_while_it_is_examined,
        _a_host_is_gone_while_its_rank_is_stopped,
        _a_record_without_hosts,
        _a_machine_that_registers_anew,
    ):
        with a_world() as world:
            record(world, found)
            tell(world)
    return found


def record(world: World, found: set[Need]) -> None:
    """Notes the calls of each function; those of people, between the events, are their own business.

    As in AWS, each function has a process of its own: what one has learned, another has to ask for.
    """
    at_work: list[str] = []
    deliver, processes = world.deliver, {name: world.a_process() for name in FUNCTIONS.values()}

    def delivered(event: dict[str, Any], *rest: Any) -> None:
        function, people = FUNCTIONS[handler_of(event)], world.side
        at_work.append(function)
        world.side = processes[function]
        try:
            deliver(event, *rest)
        finally:
            processes[function], world.side = world.side, people
            at_work.pop()

    def heard(service: str, action: str, request: Mapping[str, Any]) -> None:
        if at_work:
            found.update(needs(at_work[-1], service, action, request))

    world.deliver = delivered  # type: ignore[method-assign]
    world.wire.before.append(heard)


def needs(function: str, service: str, action: str, request: Mapping[str, Any]) -> Iterator[Need]:
    name = "".join(word.capitalize() for word in action.split("_"))
    if service == "dynamodb":
        for one, resource in _tables(name, request):
            yield Need(function, f"dynamodb:{one}", f"arn:aws:dynamodb:{PLACE}:table/{resource}")
    elif service == "sns":
        yield Need(function, "sns:Publish", "the topic")
    else:
        checks = rights.needed(service, name, request, PLACE, lambda definition: ROLES, lambda host: TAGS)
        for check in checks:
            yield Need(function, check.action, check.resource, check.told)
        if not checks:
            yield Need(function, f"{service}:{name}", "*")


def _tables(action: str, request: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if action == "TransactWriteItems":
        for item in request["TransactItems"]:
            for part, about in item.items():
                yield PARTS[part], about["TableName"]
    elif action.startswith("Batch"):
        yield from ((action, table) for table in request["RequestItems"])
    else:
        index = f"/index/{request['IndexName']}" if "IndexName" in request else ""
        yield action, request["TableName"] + index


def _with_deaths(world: World, name: str, seed: int) -> None:
    """About one call in eight is the last of its process, so that others find out what it has done and go on."""
    chance = random.Random(seed)
    BY_NAME[name].begin(world)
    world.wire.die_by_chance = lambda: chance.random() < 0.12
    BY_NAME[name].then(world)
    world.run()


def _their_restart(world: World) -> None:
    """Another tool had a node rebooted; the command's end is what leads to its job."""
    other = OtherTool(world)
    tasks = other.submit()
    world.events = False
    for rank, task in enumerate(tasks):
        world.cloud.control.exit_task(task, 1)
        other.write_task(task, NODES[rank], rank, task_status="TERMINATED")
    other.write_job(tasks, job_status=text("PENDING_RESTART"))
    other.write_node("gpu-b", "REBOOTING")
    world.pass_time(1)
    world.events = True
    world.finish_attempt(1)
    world.cloud.control.reboot("gpu-b")
    world.run("t1")


def _their_job(world: World) -> None:
    tasks = OtherTool(world).submit()
    world.finish_attempt(1)
    world.cloud.control.health("gpu-a", 1)
    world.cloud.control.exit_task(tasks[1], 1)
    world.run("t1")


def _their_job_unseen(world: World) -> None:
    world.events = False
    OtherTool(world).submit()
    world.tick()
    world.finish_attempt(0, after_s=1)
    world.until(lambda: "version" in world.account.rows("job_table")["t1"], minutes=30)


def _a_long_name(world: World) -> None:
    """A command's comment has no room for it, so the command's end has to be looked up among the waiting jobs."""
    name = "a-job-with-a-name-" + "that-goes-on-" * 7
    world.submit(world.add_nodes(2), job_id=name)
    world.finish_attempt(1)
    world.cloud.control.health("n1", 1)
    world.cloud.control.exit_task(world.task_of(0, name), 1)
    world.run(name)


def _a_free_node(world: World) -> None:
    """A person has it checked, rebooted, and checked again."""
    world.add_nodes(2)
    for name in ("n0", "n1"):
        world.cloud.control.health(name, 1)
        for ask in ("check", "reboot"):
            asked = NodeAsked(at=world.now(), node=name, ask=ask, by="ann", why="odd noises")
            world.side.runtime.handle_node(name, [asked])
            world.until(lambda name=name: world.node_statuses()[name] in ("AVAILABLE", "FAILED"), minutes=40)


def _a_job_that_waits_for_a_node(world: World) -> None:
    """Whoever finds a node bad looks for another one, and whoever frees one looks for the jobs that wait."""
    names = world.add_nodes(4)
    spec = JobSpec(name="train", task_def=f"{TRAIN}:1", container="main", failover=Failover.ANY)
    world.side.runtime.submit(
        job_id="j1", cluster=CLUSTER, spec=spec, nodes=names[:2], at=world.now(), check=False
    )
    world.submit(names[2:], job_id="j2")
    world.cloud.control.health("n1", 1)
    world.fail_rank(0)
    world.until(lambda: world.job().status is JobStatus.PENDING_RESTART)
    assert {rank.node for rank in world.job().ranks} == {"n0", "n1"}, "no other node is free"
    for rank in range(2):
        world.cloud.control.exit_task(world.task_of(rank, "j2"), 0, "")
    world.finish_attempt(1)
    assert world.run().status is JobStatus.COMPLETE


def _disturb_starts(world: World, *, refuse: bool = True) -> None:
    """The next rank's start is made, but its answer gets lost; the one after it is refused for good."""
    starts = 0

    def count(service: str, action: str, request: Mapping[str, Any]) -> None:
        nonlocal starts
        starts += action == "start_task" and request["taskDefinition"].startswith(TRAIN)
        if action == "start_task" and starts == 2 and refuse:
            raise error("InvalidParameterException", "no such thing")

    def lose(service: str, action: str, request: Mapping[str, Any]) -> None:
        if action == "start_task" and starts == 1:
            raise ReadTimeoutError(endpoint_url=service)

    world.wire.before.append(count)
    world.wire.after.append(lose)


def _a_gang_that_does_not_start(world: World) -> None:
    """After the checks, so that their monitor has to stop what it has started, by its token."""
    names = world.add_nodes(2)
    _disturb_starts(world)
    world.submit(names, check=True)
    world.run()


def _a_gang_that_does_not_start_again(world: World) -> None:
    """The same after the reboot of a node."""
    BY_NAME["gpu fault"].begin(world)
    _disturb_starts(world)
    BY_NAME["gpu fault"].then(world)
    world.run()


def _a_start_that_nobody_heard_of(world: World) -> None:
    """Neither its answer nor its event arrived, and then another rank fails."""
    names = world.add_nodes(2)
    world.events = False
    _disturb_starts(world, refuse=False)
    world.submit(names)
    world.events = True
    world.fail_rank(1)
    world.run()


def _a_host_is_gone_while_it_is_examined(world: World) -> None:
    """The verdicts on the others are known by then, and the end of the check is not told: so the news of the instance
    is what leads to their reboots."""
    world.begin(3)
    world.cloud.control.script(node="n2", family=CHECK, times=None)
    _two_are_bad(world)
    heard = world.deliver

    def deaf(event: dict[str, Any], *rest: Any) -> None:
        if event["detail-type"] != "ECS Task State Change":
            heard(event, *rest)

    world.deliver = deaf  # type: ignore[method-assign]
    world.cloud.control.terminate("n2")
    world.pass_time(5)
    world.deliver = heard  # type: ignore[method-assign]
    world.run()


def _a_host_is_gone_while_its_rank_is_stopped(world: World) -> None:
    """Here it is the end of the rank. The record is from a time when hosts were not kept in it."""
    world.begin(3)
    _forget_hosts(world)
    world.cloud.control.knobs(stop_s=600.0)
    world.fail_rank(1)
    _two_are_bad(world)
    world.cloud.control.terminate("n2")
    world.run()


def _two_are_bad(world: World) -> None:
    """One EC2 node and one external; both have been examined when this returns."""
    for name in ("n0", "n1"):
        world.cloud.control.health(name, 1)
    world.fail_rank(0)
    world.pass_time(30)


def _a_record_without_hosts(world: World) -> None:
    BY_NAME["gpu fault"].begin(world)
    _forget_hosts(world)
    BY_NAME["gpu fault"].then(world)
    world.run()


def _a_machine_that_registers_anew(world: World) -> None:
    """It has not even kept its name, so it is looked for among all nodes by its host."""
    world.begin(2)
    world.cloud.control.register_again("n1", named=False)
    world.run()


def _forget_hosts(world: World) -> None:
    store, job = world.side.store, world.job()
    ranks = tuple(replace(rank, host="") for rank in job.ranks)
    store.commit(job, replace(job, ranks=ranks, version=job.version + 1))
    for node in store.nodes():
        store.commit_node(replace(node, host="", version=node.version + 1))


def _a_claim_of_no_job(world: World) -> None:
    """The command that submitted a job died between claiming its nodes, too many for one write, and the record."""
    names = world.add_nodes(120)

    def die(service: str, action: str, request: Mapping[str, Any]) -> None:
        if action == "transact_write_items":
            raise Died(action)

    world.wire.after.append(die)
    with suppress(Died):
        world.submit(names)
    world.wire.after.remove(die)
    world.new_process()
    claimed = [row for row in world.account.rows("node_table").values() if row.get("job_id")]
    assert claimed
    world.until(
        lambda: not any(row.get("job_id") for row in world.account.rows("node_table").values()), step=30
    )
