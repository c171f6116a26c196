"""Gangs of 2, 8 and 32: whichever rank fails, whichever nodes are bad, in whichever order the verdicts arrive."""

from __future__ import annotations

import random
from itertools import permutations, product

import pytest

from ecs_gpu_recovery.core.model import JobStatus
from tests.stories.ends import check_end
from tests.stories.world import CHECK, World, a_world, with_policy


def recover(world: World, *, size: int, fails: int, bad: set[int], order: tuple[int, ...]) -> None:
    """The check of node order[0] answers first, and so on."""
    world.begin(size)
    world.finish_attempt(1)
    for place, index in enumerate(order):
        world.cloud.control.script(
            node=f"n{index}", family=CHECK, exit_code=int(index in bad), after_s=5.0 + 3 * place
        )
    world.fail_rank(fails)
    world.run()
    ordered = {key for node in world.cloud.cluster.nodes.values() for key in node.reboot_keys.values()}
    assert ordered == {f"j1/1/{index}/reboot" for index in bad}
    if bad:
        check_end(world, JobStatus.COMPLETE, attempt=1)
    else:
        check_end(world, JobStatus.FAILED, messages=1)


GANGS = [
    pytest.param(size, rank, marks=[pytest.mark.slow] if size == 4 and rank else [])
    for size in (2, 3, 4)
    for rank in range(size)
]


@pytest.mark.parametrize(("size", "fails"), GANGS)
def test_every_order_of_verdicts_leads_to_the_same_end(size: int, fails: int) -> None:
    for number, order in enumerate(permutations(range(size))):
        with a_world() as world:
            recover(world, size=size, fails=fails, bad={(fails + number) % size}, order=order)


@pytest.mark.parametrize("fails", range(3))
def test_every_set_of_bad_nodes_is_rebooted_and_no_other(fails: int) -> None:
    for verdicts in product((0, 1), repeat=3):
        with a_world() as world:
            recover(world, size=3, fails=fails, bad={i for i in range(3) if verdicts[i]}, order=(2, 0, 1))


def drawn(size: int, seed: int, fails: int | None = None, bad: set[int] | None = None) -> None:
    """What is not said, and the order of the verdicts, is drawn."""
    chance = random.Random(seed)
    order = tuple(chance.sample(range(size), size))
    fails = chance.randrange(size) if fails is None else fails
    bad = set(chance.sample(range(size), 1 + seed % size)) if bad is None else bad
    with a_world(seed=seed, policy=with_policy(freeze_nodes=size)) as world:
        recover(world, size=size, fails=fails, bad=bad, order=order)


LARGE = [*((8, seed) for seed in range(4)), *((32, seed) for seed in (0, 2, 4))]


@pytest.mark.parametrize(
    ("size", "seed"), [pytest.param(*gang, marks=[pytest.mark.slow] * (gang[0] > 8)) for gang in LARGE]
)
def test_a_large_gang_recovers(size: int, seed: int) -> None:
    drawn(size, seed)


@pytest.mark.slow
@pytest.mark.parametrize("fails", range(8))
def test_in_a_gang_of_8_whichever_rank_fails_and_whichever_node_is_bad(fails: int) -> None:
    for bad in range(8):
        drawn(8, 8 * fails + bad, fails, {bad})


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 32, 4))
def test_in_a_gang_of_32_every_rank_fails_once_and_every_node_is_bad_once(first: int) -> None:
    for rank in range(first, first + 4):
        drawn(32, rank, rank, {(7 * rank + 3) % 32})


@pytest.mark.parametrize("size", [8, 32])
def test_a_large_gang_ends_well_without_a_fault(size: int) -> None:
    with a_world() as world:
        world.begin(size)
        for rank in range(size):
            world.fail_rank(rank, 0)
        world.run()
        check_end(world, JobStatus.COMPLETE)


@pytest.mark.parametrize("size", [8, 32])
def test_a_large_gang_without_a_bad_gpu_fails_once(size: int) -> None:
    with a_world() as world:
        recover(world, size=size, fails=size - 1, bad=set(), order=tuple(range(size)))


@pytest.mark.parametrize("first", range(3))
def test_ranks_that_fail_together_are_one_failure(first: int) -> None:
    """All of them die of the same fault within a moment; one recovery follows, not three."""
    with a_world() as world:
        world.begin(3)
        world.finish_attempt(1)
        world.cloud.control.health("n1", 1)
        for rank in (first, (first + 1) % 3, (first + 2) % 3):
            world.fail_rank(rank)
        world.run()
        check_end(world, JobStatus.COMPLETE, attempt=1)
        assert world.sent("SendCommand") == 1


@pytest.mark.parametrize("done", range(3))
def test_a_rank_that_finished_does_not_save_the_job(done: int) -> None:
    with a_world() as world:
        world.begin(3)
        world.finish_attempt(1)
        world.cloud.control.health("n0", 1)
        world.fail_rank(done, 0)
        world.pass_time(5)
        world.fail_rank((done + 1) % 3, 1)
        world.run()
        check_end(world, JobStatus.COMPLETE, attempt=1)
