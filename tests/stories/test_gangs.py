"""Gangs of 2, 8 and 32: whichever rank fails, whichever nodes are bad, in whichever order the verdicts arrive."""

from __future__ import annotations

import random
from itertools import permutations, product

import pytest

from ecs_gpu_recovery.core.model import JobStatus
from tests.stories.ends import check_end
from tests.stories.world import CHECK, World, a_world


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


@pytest.mark.parametrize("seed", range(4))
def test_a_gang_of_8_recovers(seed: int) -> None:
    chance = random.Random(seed)
    order = tuple(chance.sample(range(8), 8))
    with a_world(seed=seed) as world:
        recover(
            world, size=8, fails=chance.randrange(8), bad=set(chance.sample(range(8), 1 + seed)), order=order
        )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_gang_of_32_recovers(seed: int) -> None:
    chance = random.Random(seed)
    order = tuple(chance.sample(range(32), 32))
    with a_world(seed=seed) as world:
        recover(
            world,
            size=32,
            fails=chance.randrange(32),
            bad=set(chance.sample(range(32), 1 + 2 * seed)),
            order=order,
        )


@pytest.mark.slow
@pytest.mark.parametrize("fails", range(8))
def test_in_a_gang_of_8_whichever_rank_fails_and_whichever_node_is_bad(fails: int) -> None:
    for bad in range(8):
        order = tuple(random.Random(8 * fails + bad).sample(range(8), 8))
        with a_world() as world:
            recover(world, size=8, fails=fails, bad={bad}, order=order)


@pytest.mark.slow
@pytest.mark.parametrize("fails", range(0, 32, 4))
def test_in_a_gang_of_32_whichever_rank_fails_and_whichever_node_is_bad(fails: int) -> None:
    """Every rank fails once and every node is bad once, in orders that are drawn."""
    for rank in range(fails, fails + 4):
        chance = random.Random(rank)
        with a_world(seed=rank) as world:
            order = tuple(chance.sample(range(32), 32))
            recover(world, size=32, fails=rank, bad={(7 * rank + 3) % 32}, order=order)


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
