"""How fast calls that change the cluster follow each other."""

from __future__ import annotations

from ecs_gpu_recovery.aws.rate_limit import Pace


def test_two_calls_may_be_made_at_once_and_the_rest_at_their_pace() -> None:
    now, waits = [100.0], []

    def sleep(seconds: float) -> None:
        waits.append(round(seconds, 3))
        now[0] += seconds

    pace = Pace(10.0, sleep=sleep, clock=lambda: now[0])
    for _ in range(5):
        pace.wait()
    assert waits == [0.1, 0.1, 0.1]
    now[0] += 60
    pace.wait()
    pace.wait()
    assert len(waits) == 3
