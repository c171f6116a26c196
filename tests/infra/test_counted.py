"""The metrics count what happened: each job, recovery, reboot and lost node once."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from ecs_gpu_recovery.aws.errands import Answer
from ecs_gpu_recovery.core.errors import Transient
from ecs_gpu_recovery.core.model import Job
from ecs_gpu_recovery.lambdas import metrics
from tests.stories.plots import BY_NAME
from tests.stories.world import World, a_world


def test_what_is_counted_says_of_which_stack_and_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    """Two stacks in one account count under the same names, and each has its own alarms."""
    metrics.of("Second", "gpus-2")
    metrics.events_taken([Answer("task", True, ""), Transient("busy")])
    metrics.flush()
    told = json.loads(capsys.readouterr().out)
    names = ("stack", "cluster", "service", "EventsTaken", "EventsFailed")
    assert {name: told[name] for name in names} == {
        "stack": "Second",
        "cluster": "gpus-2",
        "service": "ecs-gpu-recovery",
        "EventsTaken": [1.0],
        "EventsFailed": [1.0],
    }
    (about,) = told["_aws"]["CloudWatchMetrics"]
    assert sorted(about["Dimensions"][0]) == ["cluster", "service", "stack"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("completion", {"JobsCompleted": 1}),
        ("healthy GPU", {"JobsFailed": 1}),
        ("gpu fault", {"JobsCompleted": 1, "RecoveriesStarted": 1, "NodesRebooted": 1}),
        ("both nodes bad", {"JobsCompleted": 1, "RecoveriesStarted": 1, "NodesRebooted": 2}),
        ("verdict replace", {"JobsFailed": 1, "NodesFailed": 1}),
        (
            "retry spent",
            {"JobsFailed": 1, "RecoveriesStarted": 1, "NodesRebooted": 1, "NodesFailed": 1},
        ),
        (
            "never back from its reboot",
            {"JobsFailed": 1, "RecoveriesStarted": 1, "NodesRebooted": 1, "NodesFailed": 1},
        ),
        (
            "post-reboot check refuses",
            {"JobsFailed": 1, "RecoveriesStarted": 1, "NodesRebooted": 1, "NodesFailed": 1},
        ),
        ("job stopped by a person", {}),
    ],
)
def test_each_thing_is_counted_once(
    name: str, expected: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: Counter[str] = Counter()
    committed = World._committed

    def count(what: str, value: float = 1) -> None:
        counted[what] += int(value)

    def both(world: World, old: Job | None, new: Job) -> None:
        committed(world, old, new)
        metrics.job_moved(old, new)

    monkeypatch.setattr(metrics, "_add", count)
    monkeypatch.setattr(World, "_committed", both)
    plot = BY_NAME[name]
    with a_world(policy=plot.policy) as world:
        plot.tell(world)
    assert {what: number for what, number in counted.items() if number} == expected
