"""Before a node is rebooted it sends away what the reboot would wipe: to an address that is good for that alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.exceptions import UnknownServiceError

from ecs_gpu_recovery.aws import hang_document, reboot_document
from ecs_gpu_recovery.aws.fleet import ROLE
from ecs_gpu_recovery.aws.reads import DynamoReads
from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.events import NodePulse
from ecs_gpu_recovery.core.model import Job, JobStatus
from ecs_gpu_recovery.core.node_record import Wrote
from ecs_gpu_recovery.engine import hangs as looks
from ecs_gpu_recovery.status_text import Said, deadline, now_doing
from tests.stories.plots import gpu_fault
from tests.stories.world import DOCUMENT, TRAIN, World, container

BUCKET = "stack-evidence-1"
LOOK = hang_document.name("EcsGpuRecoveryStack")


def keeping(world: World) -> None:
    """A deployment with a bucket."""
    world.settings = replace(world.settings, EVIDENCE_BUCKET=BUCKET)
    world.cloud.documents.put(DOCUMENT, reboot_document.content(BUCKET))
    world.cloud.documents.put(LOOK, hang_document.content(BUCKET, "EcsGpuRecoveryStack-watch"))
    world.new_process()


def stands_still(world: World, since: datetime, state: str = "flat", wrote: datetime | None = None) -> None:
    """All GPUs of the gang spin, and its nodes say so; or that they work. `wrote`: when their ranks did, and all nodes
    see the files of all."""
    job = world.job()
    said = () if wrote is None else tuple(Wrote(job=job.id, rank=rank.index, at=wrote) for rank in job.ranks)
    for rank in job.ranks:
        fact = NodePulse(at=world.now(), node=rank.node, state=state, since=since, trained=True, wrote=said)
        world.side.runtime.handle_node(rank.node, [fact])


def test_a_gang_that_stands_still_is_looked_at_once_and_before_it_is_stopped(world: World) -> None:
    keeping(world)
    world.begin(2)
    world.pass_time(60)
    began = world.now()
    for minute in range(8):
        if minute == 6:
            world.new_process()  # which knows of no look: the hosts do
        since = began - timedelta(seconds=minute % 2)  # the nodes' clocks run ahead, and not evenly
        stands_still(world, since)
        world.tick()
        world.pass_time(60)
        assert len(world.cloud.cluster.kept) == (2 if minute >= 5 else 0), minute
    assert [urlsplit(address).path for address in world.cloud.cluster.kept] == [
        f"/evidence/{node}/{keys.evidence(f'j1/0/hang/{node}')}" for node in ("n0", "n1")
    ]
    assert world.job().status is JobStatus.IN_PROGRESS
    assert not any(rank.hung for rank in world.job().ranks)


TRAINING_LOG = {
    "logConfiguration": {
        "logDriver": "awslogs",
        "options": {"awslogs-group": "/gpu/train", "awslogs-stream-prefix": "rank"},
    }
}
ANSWERS = Path(__file__).parents[1] / "health" / "ras"


def logged(world: World, nodes: int) -> None:
    """A job whose ranks write to CloudWatch."""
    definition = {**container("main", 8), **TRAINING_LOG}
    world.cloud.client("ecs").register_task_definition(family=TRAIN, containerDefinitions=[definition])
    world.submit(world.add_nodes(nodes), task_def=f"{TRAIN}:2")


def hangs(world: World, *says: str, minutes: int = 12) -> Job:
    """A gang whose ranks have written, and then neither write nor work. `says`: what the NCCL of each answers."""
    keeping(world)
    logged(world, len(says))
    for rank, said in zip(world.job().ranks, says, strict=True):
        world.cloud.cluster.write_log("/gpu/train", f"rank/main/{rank.task_id}", ["step 1"])
        world.cloud.control.nccl(rank.node, said)
    world.pass_time(60)
    since = world.now()
    for _ in range(minutes):
        stands_still(world, since)
        world.tick()
        world.pass_time(60)
    return world.job()


#: What the NCCL of each rank answers, and who is blamed, how deep each node is examined then.
WORDS: dict[str, tuple[tuple[str, ...], str]] = {
    "a stopped rank answers nothing, and the other says so": (("stopped", ""), "n1"),
    "a rank that lags says so itself": (("asleep", "asleep"), "n1"),
    "nobody stands out": (("endless", "endless"), ""),
    "nobody answers": (("", ""), ""),
}


@pytest.mark.parametrize("what", WORDS)
def test_the_rank_that_nccl_names_is_blamed_and_its_node_examined_deeper(world: World, what: str) -> None:
    answers, odd = WORDS[what]
    job = hangs(world, *((ANSWERS / f"{name}.txt").read_text() if name else "" for name in answers))
    assert ("rank 1 on n1 hung" if odd else "the whole gang hung") in job.outcome
    assert [rank.node for rank in job.ranks if rank.hung] == ([odd] if odd else ["n0", "n1"])
    (seen,) = [entry for entry in job.timeline if entry.why.startswith("the job hangs: ")]
    assert seen.evidence.startswith("NCCL: rank 1 (process ") is bool(odd)
    assert levels(world) == {"n0": "2" if odd else "3", "n1": "3"}


def test_a_second_hang_of_an_attempt_is_looked_at_by_itself(world: World) -> None:
    """In the first one n1 was stopped, as its neighbour's NCCL said; in the second one nobody answers."""
    job = hangs(world, (ANSWERS / "stopped.txt").read_text(), "", minutes=6)
    assert len(world.cloud.cluster.kept) == 2
    stands_still(world, world.now(), "moving")
    world.cloud.control.nccl("n0", "")
    world.pass_time(60)
    since = world.now()
    for _ in range(12):
        stands_still(world, since, wrote=since)
        world.tick()
        world.pass_time(60)
    assert [urlsplit(address).path for address in world.cloud.cluster.kept[2:]] == [
        f"/evidence/{node}/{keys.evidence(f'j1/0/hang/{node}/last')}" for node in ("n0", "n1")
    ]
    assert "the whole gang hung" in world.job().outcome, job.outcome


def test_a_job_that_trains_is_looked_at_in_its_first_pause_alone(world: World) -> None:
    """Rank 0 writes a checkpoint for nine minutes, again and again, and says so; the others wait for it."""
    keeping(world)
    world.begin(2)
    for _ in range(4):
        world.pass_time(600)
        since = world.now()
        for _ in range(9):
            stands_still(world, since, wrote=world.now())
            world.tick()
            world.pass_time(60)
        stands_still(world, world.now(), "moving")
        world.new_process()
    assert len(world.cloud.cluster.kept) == 2, "one of each node"
    assert world.job().status is JobStatus.IN_PROGRESS


def test_of_a_gang_with_more_ranks_than_are_looked_at_the_evidence_says_of_how_many(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "MOST_KEPT", 1)
    job = hangs(world, "", "")
    assert len(world.cloud.cluster.kept) == 2, "when it stood still, and before it was stopped"
    (seen,) = [entry for entry in job.timeline if entry.why.startswith("the job hangs: ")]
    assert "where they stand was kept of 1 of its 2 ranks" in seen.evidence


def questions(world: World) -> int:
    return world.wire.calls.count(("logs", "filter_log_events"))


def test_logs_are_asked_only_where_a_watch_does_not_say_when_its_rank_wrote(world: World) -> None:
    """Ranks that log to no place that can be asked are found silent all the same."""
    logged(world, 8)
    since = world.now()
    for minute in range(9):
        stands_still(world, since, wrote=since)
        world.tick()
        world.pass_time(60)
        assert questions(world) == 0, minute
    stands_still(world, since)
    world.tick()
    assert questions(world) == 1, "the watches say no more of it"
    world.pass_time(60)
    assert world.job().status is JobStatus.IN_PROGRESS
    stands_still(world, since, wrote=world.now())
    world.tick()
    world.pass_time(60)
    assert world.job().status is JobStatus.IN_PROGRESS, "a rank has written"
    asked = questions(world)
    while world.job().status is JobStatus.IN_PROGRESS and world.now() - since < timedelta(minutes=15):
        stands_still(world, since, wrote=since)
        world.tick()
        world.pass_time(60)
    assert world.job().status is not JobStatus.IN_PROGRESS
    assert questions(world) == asked


def levels(world: World) -> dict[str, str]:
    """How deep each node is examined."""
    found = world.cloud.control.tasks(env={ROLE: "check"})
    return {task["node"]: task["env"]["GPU_HEALTH_LEVEL"] for task in found}


def test_who_was_told_that_a_job_may_hang_is_told_when_it_trains_again(world: World) -> None:
    """Nobody knows what its ranks write, so the GPUs are one witness alone."""
    world.begin(2)
    since = world.now()
    for _ in range(14):
        stands_still(world, since)
        world.tick()
        world.pass_time(60)
    (told,) = world.messages()
    assert "may hang" in told
    stands_still(world, world.now(), "moving")  # each says so once
    for _ in range(12):
        world.tick()
        world.pass_time(60)
    assert ["trains again" in message for message in world.messages()] == [False, True]
    assert world.job().status is JobStatus.IN_PROGRESS
    assert sum(entry.why == "the job trains again" for entry in world.job().timeline) == 1


@pytest.mark.parametrize("keeps", [True, False])
def test_messages_say_how_to_get_evidence_of_a_hang_only_where_it_is_kept(world: World, keeps: bool) -> None:
    if keeps:
        keeping(world)
    world.begin(2)
    since = world.now()
    while world.job().status is JobStatus.IN_PROGRESS:
        told_of = bool(world.messages())  # by one witness; then the second one speaks too
        stands_still(world, since, wrote=since if told_of else None)
        world.tick()
        world.pass_time(60)
    assert world.run().status is JobStatus.FAILED
    listed = DynamoReads(world.side.store, keeps_evidence=keeps).notices(10)
    told = [*world.messages(), *(str(notice["next"]) for notice in listed)]
    assert ["gpu-recovery evidence j1" in text for text in told] == [keeps] * 3, told


def test_a_rank_that_stands_still_is_told_of_though_another_has_finished(world: World) -> None:
    world.begin(2)
    world.fail_rank(0, code=0)
    since = world.now()
    for _ in range(14):
        fact = NodePulse(at=world.now(), node="n1", state="flat", since=since, trained=True)
        world.side.runtime.handle_node("n1", [fact])
        world.tick()
        world.pass_time(60)
    (told,) = world.messages()
    assert "may hang" in told
    doing = deadline(world.job()), now_doing(world.job()).key
    assert doing == (None, Said.FINISHING), "no end is named that is put off again and again"


def test_a_look_that_can_not_be_ordered_is_no_trouble(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The document is not there: an older stack, or somebody took it away."""
    keeping(world)
    world.cloud.documents.delete(LOOK)
    world.begin(2)
    since = world.now()
    for _ in range(7):
        stands_still(world, since)
        world.side.intake._sweeper.sweep(world.now()).raise_unforeseen()
        world.pass_time(60)
    assert world.cloud.cluster.kept == []
    assert "nobody looks at a hang" in caplog.text


def test_a_node_is_told_where_to_put_its_evidence_and_does_so_once(world: World) -> None:
    keeping(world)
    world.begin(2)
    gpu_fault(world)
    world.run()
    (address,) = world.cloud.cluster.kept
    place = urlsplit(address)
    assert place.hostname == f"{BUCKET}.s3.us-east-1.amazonaws.com"
    archive = keys.evidence("j1/1/1/reboot")
    assert place.path == f"/evidence/n1/{archive}"
    where = f"gpu-recovery evidence n1: {archive}"
    told = {(entry.why, entry.after) for entry in world.job().timeline if entry.evidence == where}
    assert told == {("repaired, connected, all GPUs there", "AVAILABLE")}
    told = {
        (entry.why, entry.after) for entry in world.records().node("n1").timeline if entry.evidence == where
    }
    assert told == {("what its reboot would wipe is kept first", "REBOOTING")}
    signed = parse_qs(place.query)
    assert signed["X-Amz-Expires"] == ["3600"]
    assert signed["X-Amz-SignedHeaders"] == ["host"]


def test_a_deployment_without_a_bucket_keeps_nothing(world: World) -> None:
    world.begin(2)
    world.cloud.control.health("n1", 1)
    world.fail_rank(0)
    world.until(lambda: world.job().attempt == 1)
    assert world.cloud.cluster.kept == []
    assert "gpu-recovery evidence" not in str(world.records().node("n1").timeline)


def test_a_function_that_cannot_sign_reboots_all_the_same(world: World) -> None:
    keeping(world)

    class NoSuchService:
        def generate_presigned_url(self, *_: object, **__: object) -> str:
            raise UnknownServiceError(service_name="s3", known_service_names="ecs")

    world.side.fleet._reboots._evidence._s3 = NoSuchService()
    world.begin(2)
    gpu_fault(world)
    assert world.run().status is JobStatus.COMPLETE
    assert world.cloud.cluster.kept == []
