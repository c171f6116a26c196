"""Many at once, in real threads: nothing is lost, and nothing half done."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ecs_gpu_recovery.core.errors import NodesTaken, RecoveryError, Transient, VersionConflict
from ecs_gpu_recovery.core.model import Job, NodeStatus, TaskStatus
from ecs_gpu_recovery.engine.ports import Store
from tests.contract.worlds import World, a_job, after, committed, running, some_nodes, with_ranks
from tests.contract.worlds import ended as over


def at_once(acts: Sequence[Callable[[], object]]) -> list[object]:
    """Run all at the same moment; give back what each returned, or how it was refused."""
    start = threading.Barrier(len(acts))

    def act(one: Callable[[], object]) -> object:
        start.wait(60)
        try:
            return one()
        except RecoveryError as exc:
            return exc

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(act, acts))


def until_committed(store: Store, job_id: str, change: Callable[[Job], Job]) -> Job:
    """Read, decide, commit; again if someone was faster. This is what the runtime does with a fact."""
    while True:
        old = store.job(job_id)
        try:
            return store.commit(old, change(old))
        except VersionConflict:
            continue


def test_of_16_writers_none_loses_a_change(store: Store) -> None:
    store.create(a_job("j1", some_nodes(store, 2)))
    before = store.job("j1")

    def count() -> None:
        for _ in range(4):
            until_committed(store, "j1", lambda job: after(job, max_retries=job.max_retries + 1))

    assert at_once([count] * 16) == [None] * 16
    job = store.job("j1")
    assert (job.max_retries, job.version) == (before.max_retries + 64, before.version + 64)


def test_of_16_writers_on_a_node_none_loses_a_change(store: Store) -> None:
    some_nodes(store, 1)

    def count() -> None:
        for _ in range(3):
            while True:
                node = store.node("n000")
                try:
                    store.commit_node(replace(node, errands=node.errands + 1, version=node.version + 1))
                except VersionConflict:
                    continue
                break

    assert at_once([count] * 16) == [None] * 16
    assert (store.node("n000").errands, store.node("n000").version) == (48, 49)


def test_of_two_jobs_that_want_one_node_exactly_one_gets_its_nodes(world: World) -> None:
    stores = [world.store, world.another()]
    for game in range(12):
        nodes = some_nodes(world.store, 3, f"g{game}-")
        wanted = [nodes[:2], nodes[1:]]
        jobs = [a_job(f"job-{game}-{i}", chosen) for i, chosen in enumerate(wanted)]
        ended = at_once([lambda s=s, j=j: s.create(j) for s, j in zip(stores, jobs, strict=True)])
        assert sorted(type(end).__name__ for end in ended) == ["NodesTaken", "NoneType"], ended
        winner = ended.index(None)
        refused = ended[1 - winner]
        assert isinstance(refused, NodesTaken)
        assert refused.reasons == {nodes[1].name: f"in use by job {jobs[winner].id}"}
        held = {node.name: world.store.node(node.name).job_id for node in nodes}
        taken = {node.name for node in wanted[winner]}
        assert held == {node.name: jobs[winner].id if node.name in taken else "" for node in nodes}


def test_large_jobs_that_want_one_node_leave_no_half_claims(world: World) -> None:
    """More nodes than one transaction takes: a refusal comes after some were claimed, and gives them back."""
    stores = [world.store, world.another()]
    nodes = some_nodes(world.store, 221)
    wanted = [nodes[:111], nodes[110:]]
    for game in range(2):
        free = {node.name: node for node in world.store.nodes()}
        jobs = [a_job(f"job-{game}-{i}", [free[n.name] for n in some]) for i, some in enumerate(wanted)]
        ended = at_once([lambda s=s, j=j: s.create(j) for s, j in zip(stores, jobs, strict=True)])
        winners = [i for i, end in enumerate(ended) if end is None]
        assert all(end is None or isinstance(end, NodesTaken) for end in ended), ended
        assert len(winners) <= 1
        held = {node.name for node in world.store.nodes() if node.job_id}
        assert held == {node.name for i in winners for node in wanted[i]}
        for i in winners:
            committed(world.store, jobs[i], over(jobs[i]))
    assert all(node.claimable for node in world.store.nodes())


def test_of_many_that_record_one_job_one_does(world: World) -> None:
    nodes = some_nodes(world.store, 2)
    ended = at_once([lambda: world.store.create(a_job("j1", nodes))] * 8)
    assert [type(end).__name__ for end in ended].count("NoneType") == 1
    assert {node.job_id for node in world.store.nodes()} == {"j1"}


def settled(store: Store, job: Job) -> None:
    """As the sweeper does it: what could not be written is tried again."""
    while True:
        try:
            store.settle(job)
        except Transient:
            continue
        return


def test_rows_settled_by_many_in_any_order_end_at_the_newest_record(world: World) -> None:
    """Each process believes that the rows of its version are still owed."""
    statuses = [NodeStatus.IN_PROGRESS, NodeStatus.PENDING]
    job = running(a_job("j1", some_nodes(world.store, 3)))
    versions = [replace(job, version=1)]
    world.store.create(versions[0])
    for turn in range(11):
        change = statuses[turn % 2]
        new = with_ranks(versions[-1], lambda r, s=change: replace(r, node_status=s))
        versions.append(world.store.commit(versions[-1], new))
    owing = [
        replace(version, owed=tuple((index, version.version) for index in range(3))) for version in versions
    ]
    random.Random(7).shuffle(owing)
    ended = at_once([lambda v=v: settled(world.store, v) for v in owing])
    assert ended == [None] * 12
    assert {node.status for node in world.store.nodes()} == {NodeStatus.IN_PROGRESS}
    assert world.store.job("j1").owed == ()


def test_when_a_gang_ends_all_at_once_every_row_ends_right(world: World) -> None:
    """Eight ranks end together; each event commits its rank and writes the rows, as a Lambda each would."""
    job = running(a_job("j1", some_nodes(world.store, 8)))
    world.store.create(replace(job, version=1))

    def rank_ended(index: int) -> None:
        def change(job: Job) -> Job:
            ranks = list(job.ranks)
            ranks[index] = replace(
                ranks[index],
                task_status=TaskStatus.TERMINATED,
                exit_code=index,
                node_status=NodeStatus.PENDING,
            )
            return after(job, ranks=tuple(ranks))

        settled(world.store, until_committed(world.store, "j1", change))

    assert at_once([lambda i=i: rank_ended(i) for i in range(8)]) == [None] * 8
    assert {node.status for node in world.store.nodes()} == {NodeStatus.PENDING}
    rows = [world.task_row(rank.task_id) for rank in job.ranks]
    assert [row["task_status"] for row in rows] == ["TERMINATED"] * 8
    assert [row["exit_code"] for row in rows] == [str(i) for i in range(8)]
