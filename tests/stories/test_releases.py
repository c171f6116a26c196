"""A deployment and a rollback in the middle of a recovery: functions of two releases work on the same records."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ecs_gpu_recovery.core.codec import CODEC, Codec
from ecs_gpu_recovery.core.errors import NewerRecord
from ecs_gpu_recovery.core.model import JobStatus
from testbed.releases import BREAKING, NEXT, marked_job, marked_node
from tests.stories.ends import check_end
from tests.stories.world import World

MOMENTS = (JobStatus.PENDING_HEALTHCHECK, JobStatus.PENDING_RESTART)


def deploy(world: World, release: Codec) -> None:
    world.release = release
    world.new_process()


def recovering(world: World, moment: JobStatus) -> list[str]:
    """A job whose second node is bad, as far as this in its recovery."""
    world.finish_attempt(1)
    names = world.begin(2)
    world.cloud.control.health(names[1], 1)
    world.fail_rank(0)
    world.until(lambda: world.job().status is moment, step=1.0)
    return names


def use_the_new_field(world: World, node: str) -> None:
    """As the rules of the later release would."""
    store = world.side.store
    job, held = store.job("j1"), store.node(node)
    store.commit(job, replace(marked_job(job), version=job.version + 1))
    store.commit_node(replace(marked_node(held), version=held.version + 1))


def marks(world: World, node: str) -> list[str]:
    """As they stand in the tables."""
    job = json.loads(world.account.rows("job_table")["j1"]["record"])
    held = json.loads(world.account.rows("node_table")[node]["record"])
    return [part.get("mark", "") for part in (job, *job["ranks"], held)]


ALL = ["job", "rank 0", "rank 1", "node"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rollback_in_the_middle_of_a_recovery_loses_nothing(world: World, moment: JobStatus) -> None:
    names = recovering(world, moment)
    deploy(world, NEXT)
    use_the_new_field(world, names[1])
    deploy(world, CODEC)
    world.run()
    check_end(world, JobStatus.COMPLETE, attempt=1)
    assert marks(world, names[1]) == ALL
    assert world.dead_letters == []


@pytest.mark.parametrize("moment", MOMENTS)
def test_functions_of_two_releases_recover_a_job_together(world: World, moment: JobStatus) -> None:
    """While a deployment goes on, each event may meet either."""
    names = recovering(world, moment)
    deploy(world, NEXT)
    use_the_new_field(world, names[1])
    deliver = world.untouched

    def either(event: dict[str, object], tries: int = 0) -> None:
        deploy(world, CODEC if len(world.seen) % 2 else NEXT)
        deliver(event, tries)

    world.deliver = either  # type: ignore[method-assign]
    world.run()
    check_end(world, JobStatus.COMPLETE, attempt=1)
    assert marks(world, names[1]) == ALL


def test_an_older_function_leaves_the_events_of_newer_records_for_later(world: World) -> None:
    """Their neighbours go on; a person is told once; the release that can take the events gets them again."""
    names = recovering(world, JobStatus.PENDING_RESTART)
    deploy(world, BREAKING)
    use_the_new_field(world, names[1])
    deploy(world, CODEC)
    written = world.account.rows("job_table")["j1"]["record"]
    others = world.add_nodes(2, first=2)
    world.submit(others, job_id="j2")
    for rank in range(2):
        world.cloud.control.exit_task(world.task_of(rank, "j2"), 0)
    for _ in range(20):
        world.pass_time(60)
        deploy(world, CODEC)  # a process that knows nothing of the one before
        world.tick()
    assert world.job("j2").status is JobStatus.COMPLETE
    assert world.account.rows("job_table")["j1"]["record"] == written
    assert {type(exc) for exc in world.errors} == {NewerRecord}
    assert world.dead_letters
    assert set(world.bad[-1]) == {("job", "j1"), ("node", names[1])}
    told = [text for text in world.messages() if "cannot be worked on" in text]
    assert len(told) == 1
    assert "job j1" in told[0]
    assert "waits for the newer release" in told[0]
    deploy(world, BREAKING)
    world.redrive()
    world.run("j1")
    check_end(world, JobStatus.COMPLETE, attempt=1, errors=True, messages=1)
    assert marks(world, names[1]) == ALL
