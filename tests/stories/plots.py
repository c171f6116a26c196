"""Stories as data: what goes wrong while a job runs, and how it must end. Tests tell them plainly, or disturb them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.core.policy import Policy
from tests.stories.ends import check_end
from tests.stories.world import CHECK, CLUSTER, POLICY, TRAIN, World, with_policy

Do = Callable[[World], None]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """`before` the job is submitted, `then` once it runs, and its end."""

    name: str
    then: Do
    status: JobStatus
    attempt: int = 0
    bad: tuple[tuple[str, str], ...] = ()  #: nodes that do not end AVAILABLE
    messages: int = 0
    before: Do = lambda world: None
    nodes: int = 2
    check: bool = False
    policy: Policy = POLICY
    spontaneous: int = 0  #: reboots that nobody ordered
    unreachable: tuple[str, ...] = ()

    def begin(self, world: World) -> None:
        names = world.add_nodes(self.nodes)
        self.before(world)
        world.submit(names, check=self.check)

    def end(self, world: World, *, told_again: int = 0, errors: bool = False) -> None:
        """`told_again`: how many processes died, each perhaps right after sending a message.

        With `errors`, a sweep may have stumbled over one of them: people hear that it left the record out.
        """
        left_out = sum("cannot be worked on" in one.splitlines()[0] for one in world.messages() if errors)
        assert left_out <= told_again
        told = len(world.messages()) - left_out
        messages = left_out + (
            told
            if self.messages <= told <= self.messages + (told_again if self.messages else 0)
            else self.messages
        )
        check_end(
            world,
            self.status,
            attempt=self.attempt,
            nodes=dict(self.bad),
            messages=messages,
            spontaneous=self.spontaneous,
            unreachable=self.unreachable,
            errors=errors,
        )

    def tell(self, world: World) -> None:
        self.begin(world)
        self.then(world)
        world.run()
        self.end(world)

    def __str__(self) -> str:
        return self.name


def gpu_fault(world: World) -> None:
    world.finish_attempt(1)
    world.cloud.control.health("n1", 1)
    world.fail_rank(0)


def healthy(world: World) -> None:
    world.fail_rank(0)


def fault_again(world: World) -> None:
    """The node is as bad after the reboot as before."""
    world.cloud.control.next_reboot("n1", cures=False)
    world.cloud.control.script(env={"JOB_ATTEMPT": "1", "NODE_RANK": "1"}, exit_code=1, after_s=20)
    world.cloud.control.health("n1", 1)
    world.fail_rank(1)


def completes(world: World) -> None:
    for rank in range(len(world.job().ranks)):
        world.fail_rank(rank, 0)


def person_stops_the_job(world: World) -> None:
    world.stop()


def person_stops_a_task(world: World) -> None:
    world.cloud.client("ecs").stop_task(cluster=CLUSTER, task=world.task_of(1), reason="Task stopped by user")


def out_of_memory(world: World) -> None:
    assert world.cloud.control.kill_for_memory(world.task_of(1), 1)


def cannot_pull(world: World) -> None:
    world.cloud.control.script(node="n1", family=TRAIN, accident="cannot pull")


def power_lost_for_a_while(world: World) -> None:
    """Long enough to count as lost; it is back before the patience ends."""
    world.finish_attempt(1)
    world.cloud.control.power_off("n1")
    world.cloud.agenda.after(20 * 60, lambda: world.cloud.control.power_on("n1"))


def power_lost_for_good(world: World) -> None:
    world.cloud.control.power_off("n1")


def terminated(world: World) -> None:
    world.cloud.control.terminate("n0")


def interrupted(world: World) -> None:
    world.cloud.control.interrupt("n0")


def never_back(world: World) -> None:
    world.cloud.control.next_reboot("n1", returns=False)
    gpu_fault(world)


def slow_reboot(world: World) -> None:
    """So long that an order whose sender died is due again before the node is back."""
    world.cloud.control.next_reboot("n1", seconds=700)
    gpu_fault(world)


def fast_reboot(world: World) -> None:
    """So fast that ECS never sees the agent go."""
    world.cloud.control.next_reboot("n1", fast=True, seconds=5)
    gpu_fault(world)


def deaf_to_ssm(world: World) -> None:
    """The order is never delivered; it must not reboot the node hours later."""
    world.cloud.control.ssm_agent("n1", False)
    gpu_fault(world)


def script_fails(world: World) -> None:
    world.cloud.control.script_result("n1", 1, stderr="read-only file system")
    gpu_fault(world)


def fewer_gpus(world: World) -> None:
    world.cloud.control.next_reboot("n1", lose_gpus=1)
    gpu_fault(world)


def doubtful_success(world: World) -> None:
    """The host restarts under its task, and the container runtime calls that exit code 0."""
    world.finish_attempt(1)
    world.cloud.control.next_reboot("n1", exit_code=0)
    world.cloud.control.reboot("n1")


def replace_it(world: World) -> None:
    world.cloud.control.health("n1", 2)
    world.fail_rank(0)


def inconclusive(world: World) -> None:
    world.cloud.control.verdicts("n1", [3, 3])
    world.fail_rank(0)


def inconclusive_once(world: World) -> None:
    world.finish_attempt(1)
    world.cloud.control.verdicts("n1", [3, 1])
    world.fail_rank(0)


def no_answer(world: World) -> None:
    world.cloud.control.script(node="n1", family=CHECK, times=None)
    world.fail_rank(0)


def not_cured(world: World) -> None:
    world.cloud.control.next_reboot("n1", cures=False)
    gpu_fault(world)


def both_bad(world: World) -> None:
    world.cloud.control.health("n0", 1)
    gpu_fault(world)


def agent_away_at_restart(world: World) -> None:
    """The agent of a healthy node flaps just when the gang is to start again."""
    gpu_fault(world)
    world.cloud.agenda.after(60, lambda: world.cloud.control.disconnect("n0", 90))


def flaps(world: World) -> None:
    world.finish_attempt(0)
    for number in range(12):
        world.cloud.agenda.after(100 * number, lambda: world.cloud.control.disconnect("n1", 45))
    world.cloud.agenda.after(1300, lambda: completes(world))


OK, FAILED, STOPPED = JobStatus.COMPLETE, JobStatus.FAILED, JobStatus.USER_STOPPED
N0, N1 = (("n0", "FAILED"),), (("n1", "FAILED"),)
PLOTS = (
    Plot(name="gpu fault", then=gpu_fault, status=OK, attempt=1),
    Plot(name="both nodes bad", then=both_bad, status=OK, attempt=1),
    Plot(name="healthy GPU", then=healthy, status=FAILED, messages=1),
    Plot(name="retry spent", then=fault_again, status=FAILED, attempt=1, bad=N1, messages=1),
    Plot(name="completion", then=completes, status=OK),
    Plot(name="job stopped by a person", then=person_stops_the_job, status=STOPPED),
    Plot(name="task stopped by a person", then=person_stops_a_task, status=STOPPED),
    Plot(name="out of memory", then=out_of_memory, status=FAILED, messages=1),
    Plot(name="cannot pull", before=cannot_pull, then=lambda world: None, status=FAILED, messages=1),
    Plot(name="power lost for a while", then=power_lost_for_a_while, status=OK, attempt=1, spontaneous=1),
    Plot(
        name="power lost for good",
        then=power_lost_for_good,
        status=FAILED,
        attempt=1,
        bad=N1,
        messages=1,
        unreachable=("n1",),
    ),
    Plot(
        name="terminated",
        then=terminated,
        status=FAILED,
        attempt=1,
        bad=N0,
        messages=1,
        unreachable=("n0",),
    ),
    Plot(
        name="spot interruption",
        then=interrupted,
        status=FAILED,
        attempt=1,
        bad=N0,
        messages=1,
        unreachable=("n0",),
    ),
    Plot(name="never back from its reboot", then=never_back, status=FAILED, attempt=1, bad=N1, messages=1),
    Plot(name="slow reboot", then=slow_reboot, status=OK, attempt=1),
    Plot(name="fast reboot", then=fast_reboot, status=OK, attempt=1),
    Plot(name="deaf to SSM", then=deaf_to_ssm, status=FAILED, attempt=1, bad=N1, messages=1),
    Plot(name="reboot script fails", then=script_fails, status=FAILED, attempt=1, bad=N1, messages=1),
    Plot(name="back with fewer GPUs", then=fewer_gpus, status=FAILED, attempt=1, bad=N1, messages=1),
    Plot(name="doubtful success", then=doubtful_success, status=OK, attempt=1, spontaneous=1),
    Plot(name="verdict replace", then=replace_it, status=FAILED, bad=N1, messages=1),
    Plot(name="inconclusive twice", then=inconclusive, status=FAILED, messages=1),
    Plot(name="inconclusive, then bad", then=inconclusive_once, status=OK, attempt=1),
    Plot(name="check never answers", then=no_answer, status=FAILED, messages=1),
    Plot(
        name="post-reboot check passes",
        then=gpu_fault,
        status=OK,
        attempt=1,
        policy=with_policy(post_reboot_check=True),
    ),
    Plot(
        name="post-reboot check refuses",
        then=not_cured,
        status=FAILED,
        attempt=1,
        bad=N1,
        messages=1,
        policy=with_policy(post_reboot_check=True),
    ),
    Plot(name="pre-flight passes", check=True, then=lambda world: world.finish_attempt(0), status=OK),
    Plot(name="agent away at the restart", then=agent_away_at_restart, status=OK, attempt=1),
)
BY_NAME = {plot.name: plot for plot in PLOTS}
