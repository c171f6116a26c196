"""Records survive being written down, and the largest one fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from ecs_gpu_recovery.core import codec
from ecs_gpu_recovery.core.codec import CODEC
from ecs_gpu_recovery.core.effects import EFFECTS, Archive
from ecs_gpu_recovery.core.errors import Unreadable
from ecs_gpu_recovery.core.events import (
    CheckStarted,
    NodeChecked,
    OrderFailed,
    OrderSent,
    RebootProven,
    TaskStarted,
)
from ecs_gpu_recovery.core.job.table import submit
from ecs_gpu_recovery.core.model import Job, JobSpec, JobStatus, Verdict
from ecs_gpu_recovery.core.node_record import Hold
from ecs_gpu_recovery.core.rows import claimed_node
from tests.core.story import POLICY, T0, Story, a_job_awaiting_reboot, a_new_job, some_nodes
from tests.core.walks import stories

LIMIT = 400_000


@given(stories())
def test_every_job_comes_back_as_it_was(story: Story) -> None:
    assert CODEC.job("j", CODEC.text(story.job)) == story.job


def test_a_job_with_everything_in_it_comes_back_as_it_was() -> None:
    spec = JobSpec(
        name="run",
        command=("python", "train.py"),
        env={"A": "b"},
        workdir="/w",
        gpus_per_node=8,
        memory_mib=1,
        submitted_by="ann",
    )
    job = replace(a_job_awaiting_reboot(nodes=3, bad=(0, 1)).job, spec=spec)
    assert CODEC.job("j", CODEC.text(job)) == job


def test_a_node_comes_back_as_it_was() -> None:
    node = replace(
        some_nodes(1)[0],
        hold=Hold(by="ann", why="fan", at=T0),
        verdict=Verdict.REPLACE,
        deadline=T0,
        seen_version=9,
    )
    assert CODEC.node("n", CODEC.text(node)) == node


def test_every_kind_of_order_has_a_name_it_is_read_back_by() -> None:
    assert len({kind.__name__ for kind in EFFECTS}) == len(EFFECTS)


def test_what_has_its_default_value_is_not_written() -> None:
    written = codec.dump(a_new_job(nodes=1).job)
    assert "outcome" not in written
    assert "verdict" not in written["ranks"][0]


#: Where a later release may have a field of its own.
PLACES: dict[str, Callable[[Any], Any]] = {
    "job": lambda job: job,
    "what was asked for": lambda job: job["spec"],
    "rank": lambda job: job["ranks"][1],
    "line of the timeline": lambda job: job["timeline"][0],
    "order": lambda job: job["outbox"][0],
    "what is ordered": lambda job: job["outbox"][0]["effect"],
}


@pytest.mark.parametrize("place", PLACES)
def test_a_field_of_a_later_release_stays_where_it_is(place: str) -> None:
    """Through a step that changes the very rank and the very order."""
    story = a_new_job(nodes=2)
    written = codec.dump(story.job)
    PLACES[place](written)["mood"] = {"of": ["a", "later", "release"]}
    story.job = CODEC.job("j", json.dumps(written))
    story.hears(OrderFailed(at=T0, key=story.job.outbox[0].key, error="busy"))
    story.hears(TaskStarted(at=T0, attempt=0, rank=1, task_id="t1"))
    assert PLACES[place](codec.dump(story.job))["mood"] == {"of": ["a", "later", "release"]}


def test_an_order_that_nobody_knows_is_an_error_and_not_dropped() -> None:
    written = codec.dump(a_new_job(nodes=1).job)
    written["outbox"][0]["effect"]["do"] = "PaintNode"
    with pytest.raises(Unreadable, match="PaintNode"):
        CODEC.job("j", json.dumps(written))


class Largest:
    """256 nodes, long names and long texts, and at every stage all the orders of that stage are still to be sent."""

    def __init__(self) -> None:
        self.count = 256
        self.names = [f"ip-10-0-{i // 256}-{i}.us-east-1.compute.internal" for i in range(self.count)]
        nodes = [
            replace(
                node,
                name=name,
                instance=f"arn:aws:ecs:us-east-1:123456789012:container-instance/gpu-training-cluster/{i:032x}",
                boot_id=f"{i:08x}-1111-2222-3333-444444444444",
                seen_version=123456,
                ip="10.100.100.100",
                ibdev="mlx5_0,mlx5_1,mlx5_2,mlx5_3",
            )
            for i, (node, name) in enumerate(zip(some_nodes(self.count), self.names, strict=True))
        ]
        spec = JobSpec(
            command=("python", "-m", "train") * 20,
            env={f"VARIABLE_{i}": "v" * 40 for i in range(30)},
            submitted_by="ann",
            task_def="arn:aws:ecs:us-east-1:123456789012:task-definition/gpu-training:42",
        )
        self.story = Story(nodes=1)
        self.story.job = submit(
            job_id="train-llm-2026-03-01-abcdef0123456789",
            cluster="gpu-training-cluster",
            spec=spec,
            nodes=nodes,
            policy=POLICY,
            at=T0,
            check=False,
        ).job
        self.story.nodes = {node.name: claimed_node(node, self.story.job) for node in nodes}
        self.sizes: dict[str, int] = {}
        self.stages = 0

    @property
    def job(self) -> Job:
        return self.story.job

    def stage(self, name: str) -> None:
        """Measure with everything pending; then the sweeper sends it all."""
        self.sizes[name] = len(CODEC.text(self.job).encode())
        self.story.hears(*(OrderSent(at=T0, key=order.key) for order in self.job.outbox))

    def recover(self) -> None:
        story, everyone = self.story, range(self.count)
        self.stage("submitted")
        story.starts()
        self.stage("running")
        for r in everyone:
            story.ends(
                r,
                1,
                "Essential container in task exited; CUDA error: "
                + "uncorrectable ECC error encountered " * 30,
            )
        self.stage("every rank has died")
        for r in everyone:
            story.hears(CheckStarted(at=T0, node=self.names[r], check_id=f"{r:032x}", check_try=1))
        self.stage("under test")
        for r in everyone:
            story.hears(
                NodeChecked(
                    at=T0,
                    node=self.names[r],
                    check_id=f"{r:032x}",
                    check_try=1,
                    verdict=Verdict.REBOOT,
                    findings="Xid 48 on GPU 3; row remapping pending; " * 30,
                )
            )
        self.stage("every node is bad")
        for r in everyone[:-1]:
            story.hears(
                RebootProven(
                    at=T0,
                    node=self.names[r],
                    key=f"{self.job.id}/1/{r}/reboot",
                    boot_id=f"{r:08x}-1111-2222-3333-555555555555",
                )
            )
        self.stage("all but one are back")
        story.hears(RebootProven(at=T0, node=self.names[-1], key=f"{self.job.id}/1/{self.count - 1}/reboot"))
        self.stage("starting again")
        story.starts()
        self.stage("running again")


def test_a_job_of_256_nodes_in_the_middle_of_its_recovery_fits_into_one_item() -> None:
    largest = Largest()
    largest.recover()
    assert largest.job.status is JobStatus.IN_PROGRESS
    assert largest.job.attempt == 1
    assert max(largest.sizes.values()) < LIMIT, largest.sizes


def test_a_small_job_keeps_long_texts_and_a_large_one_cuts_them() -> None:
    long = "x" * 5000
    assert len(a_new_job(nodes=2).starts().ends(0, 1, long).rank(0).exit_reason) == 1000
    assert len(a_new_job(nodes=64).starts().ends(0, 1, long).rank(0).exit_reason) == 500


def test_the_archive_takes_many_lines_at_once() -> None:
    job = Story(nodes=256).starts()
    archives = [o for o in job.outbox if isinstance(o, Archive)]
    assert 1 <= len(archives) <= 6
    assert len(job.job.timeline) + sum(len(a.lines) for a in archives) == 257
