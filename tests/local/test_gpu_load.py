from __future__ import annotations

import os
from pathlib import Path

import pytest

from ecs_gpu_recovery.health.sources.simulated import SimulatedNode
from ecs_gpu_recovery.local import gpu_load, gpus
from ecs_gpu_recovery.local.files import Json, write_json
from ecs_gpu_recovery.local.gpu_load import measured

AT = 1_794_700_000.0
REST = {"utilization": 0, "memory_used_mib": 4, "power_w": 112, "temperature_c": 38}


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Two GPUs, both held by a rank."""
    write_json(str(tmp_path / "gpus.json"), gpus.simulated("n1", 2))
    task = tmp_path / "tasks" / "t1"
    task.mkdir(parents=True)
    write_json(str(task / "spec.json"), {"kind": "train"})
    write_json(str(task / "running.json"), {"pid": 1})
    return tmp_path


def seen(node: Path, gpu: int = 0, at: float = AT) -> Json:
    found = measured(str(node), at)["gpus"][gpu]
    return {key: found[key] for key in REST}


def test_a_gpu_that_a_rank_holds_is_busy(node: Path) -> None:
    busy = seen(node)
    assert 80 < busy["utilization"] <= 100
    assert 0.7 < busy["memory_used_mib"] / 81559 < 0.9
    assert 500 < busy["power_w"] <= 700
    assert 55 < busy["temperature_c"] < 75


def test_the_same_moment_gives_the_same_numbers_and_another_moves_them(node: Path) -> None:
    assert seen(node) == seen(node)
    assert len({seen(node, at=AT + 5 * n)["power_w"] for n in range(10)}) > 3


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("tasks/t1/exit.json", "{}"),
        ("off", "{}"),
        ("tasks/t1/spec.json", '{"kind": "check"}'),
        ("tasks/t1/spec.json", "{"),
    ],
    ids=["it has ended", "it lost its power", "it is no training", "its order is damaged"],
)
def test_what_does_not_train_holds_no_gpu(node: Path, file: str, text: str) -> None:
    (node / file).write_text(text)
    assert (seen(node), seen(node, gpu=1)) == (REST, REST)


def test_a_frozen_gpu_claims_to_be_busy_and_a_throttled_one_is_hot(node: Path) -> None:
    healthy = measured(str(node), AT)["gpus"][0]
    gpus.inject(str(node), "hang", 0, None, 0.25, None)
    assert (seen(node)["utilization"], seen(node)["power_w"] < 250) == (100, True)
    gpus.clear(str(node))
    gpus.inject(str(node), "slow", 0, None, 0.25, None)
    slow = measured(str(node), AT)["gpus"][0]
    assert (slow["utilization"], slow["temperature_c"]) == (100, 91)
    assert slow["sm_mhz"] < 0.6 * healthy["sm_mhz"]
    assert slow["power_w"] < 0.7 * healthy["power_w"]


def test_a_health_check_never_sees_these_numbers(node: Path) -> None:
    told: list[Json] = []
    SimulatedNode(node).read_driver(lambda message: told.append(dict(message)))
    first = next(message["gpu"] for message in told if "gpu" in message)
    assert {key: first[key] for key in REST} == REST


@pytest.mark.parametrize(
    ("letter", "seconds_ago", "stopped", "load"),
    [
        ("k", 0.0, False, "busy"),
        ("k", 5.0, True, "idle"),  # its kernel has ended, and nobody gives it another
        ("c", 0.1, False, "busy"),
        ("c", 5.0, False, "flat"),  # the others have not come
        ("c", 5.0, True, "flat"),  # the collective spins on, whatever became of its process
        ("h", 5.0, False, "idle"),
    ],
)
def test_a_gpu_does_what_its_program_gave_it_to_do(
    node: Path, monkeypatch: pytest.MonkeyPatch, letter: str, seconds_ago: float, stopped: bool, load: str
) -> None:
    file = node / "tasks" / "t1" / gpu_load.LOAD_FILE
    file.write_text(letter)
    os.utime(file, (AT - seconds_ago, AT - seconds_ago))
    monkeypatch.setattr(gpu_load, "process", lambda task_dir: (stopped, 0.0))
    found = seen(node)
    used, watts = found["utilization"], found["power_w"]
    does = {
        "busy": used > 80 and watts > 500,
        "flat": used == 100 and watts < 200,
        "idle": (used, watts) == (0, 112),
    }
    assert does[load], found
