"""How fast calls that change the cluster follow each other, over all functions together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ecs_gpu_recovery.aws.rate_limit import OWN_AT_ONCE, OWN_PER_S, SHARED_PER_S, Pace, SharedTurns
from ecs_gpu_recovery.core.errors import Transient
from tests.stories.memory import TURNS, Tables, error


class Clock:
    """Sleeping is how its time passes."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def calls_of(pace: Pace, clock: Clock, count: int) -> list[float]:
    made = []
    for _ in range(count):
        pace.wait()
        made.append(clock.now)
    return made


@pytest.fixture
def process() -> Callable[[], tuple[Pace, Clock]]:
    """Another function, with a clock of its own, on the same tables."""
    tables = Tables()

    def made() -> tuple[Pace, Clock]:
        clock = Clock()
        return Pace(SharedTurns(tables, TURNS), sleep=clock.sleep, clock=lambda: clock.now), clock  # type: ignore[arg-type]

    return made


def test_a_few_calls_wait_for_nobody_and_ask_nobody(process: Callable[[], tuple[Pace, Clock]]) -> None:
    pace, clock = process()
    assert set(calls_of(pace, clock, OWN_AT_ONCE)) == {100.0}
    clock.now += OWN_AT_ONCE / OWN_PER_S
    assert len(set(calls_of(pace, clock, OWN_AT_ONCE))) == 1


def test_functions_at_the_same_time_stay_within_one_pace(process: Callable[[], tuple[Pace, Clock]]) -> None:
    """Eight that begin together, each with a gang to stop: no second has more calls than they may make in all."""
    made = sorted(at for _ in range(8) for at in calls_of(*process(), 60))
    for begin in range(100, int(made[-1])):
        allowed = SHARED_PER_S + 8 * OWN_PER_S + 1 + (8 * OWN_AT_ONCE if begin == 100 else 8)
        assert sum(begin <= at < begin + 1 for at in made) <= allowed, begin
    assert made[-1] > 100 + 8 * (60 - OWN_AT_ONCE - 10) / SHARED_PER_S


def test_turns_that_were_not_used_are_not_made_up_for(process: Callable[[], tuple[Pace, Clock]]) -> None:
    pace, clock = process()
    calls_of(pace, clock, OWN_AT_ONCE + 1)
    clock.now += 60
    late = calls_of(pace, clock, 30)
    assert sum(at == late[0] for at in late) <= OWN_AT_ONCE + 1


def test_a_row_that_can_not_be_written_lets_no_call_through() -> None:
    class Busy:
        def update_item(self, **_: object) -> None:
            raise error("ThrottlingException")

    pace = Pace(SharedTurns(Busy(), TURNS))  # type: ignore[arg-type]
    for _ in range(OWN_AT_ONCE):
        pace.wait()
    with pytest.raises(Transient):
        pace.wait()
