"""Which sighting of a node is the newest: an absence is kept even where it changes nothing else."""

from __future__ import annotations

from ecs_gpu_recovery.core.events import NodeSeen
from tests.core.machine import Machine
from tests.core.story import MINUTE, Story, a_running_job


def sees(job: Story, *, connected: bool, version: int) -> Story:
    return job.hears(
        NodeSeen(at=job.now, node="n0", connected=connected, gpus=8, boot_id="boot-1", version=version)
    )


def test_older_good_news_does_not_undo_a_newer_look_that_found_the_node_away() -> None:
    job = sees(a_running_job(nodes=2), connected=False, version=3)
    job.now += MINUTE
    sees(job, connected=False, version=7)  # it had been back in between, and nobody heard of it
    sees(job, connected=True, version=4)
    assert not job.rank(0).connected
    assert sees(job, connected=True, version=8).rank(0).connected


def test_a_free_node_remembers_its_newest_absence_too() -> None:
    node = Machine().seen(connected=False, version=3).seen(connected=False, version=7)
    assert not node.seen(connected=True, version=4).node.connected
    assert node.seen(connected=True, version=8).node.connected


def test_the_same_absence_seen_again_writes_nothing() -> None:
    job = sees(a_running_job(nodes=2), connected=False, version=3)
    version = job.job.version
    sees(job, connected=False, version=3)
    assert job.job.version == version


def test_a_placement_that_tells_nothing_new_writes_nothing() -> None:
    job = sees(a_running_job(nodes=2), connected=True, version=3)
    version = job.job.version
    sees(job, connected=True, version=9)
    assert job.job.version == version
