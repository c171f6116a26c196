"""Nodes that stand out in their gang: what each limit protects against, and where people are told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from ecs_gpu_recovery.control.accounts import ledger_of
from ecs_gpu_recovery.control.aws_backend import AwsBackend
from ecs_gpu_recovery.control.local_backend import LocalBackend
from ecs_gpu_recovery.control.remote_backend import RemoteBackend
from ecs_gpu_recovery.core.events import TaskStarted
from ecs_gpu_recovery.core.model import JobSpec
from ecs_gpu_recovery.health import policy
from ecs_gpu_recovery.health.policy import Limits
from ecs_gpu_recovery.health.watch.node_metrics import line
from ecs_gpu_recovery.health.watch.pulse import GpuPulse, NodePulse, State
from ecs_gpu_recovery.local import wiring
from ecs_gpu_recovery.metrics.sample import Sample
from ecs_gpu_recovery.metrics.series import FILE, SeriesStore
from ecs_gpu_recovery.slow_nodes import BUSY, CLOCK, HOUR, POWER, Slow, judge, ran
from tests.cli.aws_person import a_person
from tests.cli.conftest import run_command
from tests.console.helpers import console, link_of, still_state
from tests.core.story import T0, a_running_job

LIMITS = policy.load().limits
AT = 100 * HOUR
#: As an H100 under load: watts of two GPUs, megahertz, percent.
HEALTHY = {POWER: 1250.0, CLOCK: 1700.0, BUSY: 97.0}
HELD_DOWN = {POWER: 800.0, CLOCK: 1100.0, BUSY: 99.0}


def gang(
    *nodes: dict[str, float],
    limits: Limits = LIMITS,
    began: float = AT - 10 * HOUR,
    ended: float = AT + 9 * HOUR,
) -> list[Slow]:
    """An hour of a gang, whose nodes are called by their place in it."""
    spans = {f"n{place}": [(began, ended)] for place in range(len(nodes))}
    hours = {
        measure: {f"n{place}": {AT: told[measure]} for place, told in enumerate(nodes)} for measure in HEALTHY
    }
    return judge("j", spans, hours, limits)


def test_a_node_whose_gpus_are_held_down_stands_out_by_power_and_clock() -> None:
    until = datetime.fromtimestamp(AT + HOUR, UTC)
    common = {"node": "n2", "job": "j", "hours": 1, "until": until}
    assert gang(HEALTHY, HEALTHY, HELD_DOWN, HEALTHY) == [
        Slow(measure=CLOCK, value=1100, others=1700, **common),  # type: ignore[arg-type]
        Slow(measure=POWER, value=800, others=1250, **common),  # type: ignore[arg-type]
    ]


def test_the_one_that_all_others_wait_for_takes_more_power_than_they_do() -> None:
    waits, works = HEALTHY | {POWER: 700.0}, HEALTHY
    assert [str(one) for one in gang(waits, waits, works, waits)] == ["GPU power 1,250 W, its gang 700 W"]


def test_a_faster_clock_is_no_news() -> None:
    assert gang(HEALTHY, HEALTHY, HEALTHY, HEALTHY | {CLOCK: 1980.0}) == []


#: What a limit protects against, and the value that would not.
PROTECTED: dict[str, tuple[tuple[dict[str, float], ...], dict[str, float], dict[str, float]]] = {
    "a gang of two, of which nobody can say who is odd": (
        (HEALTHY, HELD_DOWN),
        {},
        {"slow_gang": 2, "slow_spread": 0},
    ),
    "a rank that leaves its GPUs idle": ((*[HEALTHY] * 4, HELD_DOWN | {BUSY: 10.0}), {}, {"slow_busy": 5}),
    "a job that has just started": ((*[HEALTHY] * 3, HELD_DOWN), {"began": AT - 600}, {"slow_after_s": 300}),
    "GPUs of one kind that differ by what is usual": (
        (*[HEALTHY] * 3, HEALTHY | {POWER: 1080.0}),
        {},
        {"slow_power_share": 0.1},
    ),
    "clocks at one power limit that differ by what is usual": (
        (*[HEALTHY] * 3, HEALTHY | {CLOCK: 1580.0}),
        {},
        {"slow_clock_share": 0.05},
    ),
    "ranks that do different work": (
        tuple(HEALTHY | {POWER: watts} for watts in (700.0, 900.0, 1100.0, 1300.0)),
        {},
        {"slow_spread": 1},
    ),
}


@pytest.mark.parametrize("what", PROTECTED)
def test_each_limit_protects_against(what: str) -> None:
    nodes, when, without = PROTECTED[what]
    assert gang(*nodes, **when) == []  # type: ignore[arg-type]
    assert gang(*nodes, limits=replace(LIMITS, **without), **when)  # type: ignore[arg-type]


def test_an_hour_counts_only_if_the_rank_ran_in_all_of_it() -> None:
    assert gang(*[HEALTHY] * 3, HELD_DOWN, ended=AT + HOUR - 1) == []
    assert gang(*[HEALTHY] * 3, HELD_DOWN, ended=AT + HOUR) != []


def test_hours_add_up_and_the_last_is_told() -> None:
    spans = {f"n{place}": [(0.0, 9 * AT)] for place in range(4)}
    told = [HEALTHY, HEALTHY, HEALTHY, HEALTHY | {POWER: 600.0}]
    hours = {
        measure: {
            f"n{place}": {AT: one[measure], AT + 5 * HOUR: one[measure]} for place, one in enumerate(told)
        }
        for measure in HEALTHY
    }
    (found,) = judge("j", spans, hours, LIMITS)
    assert (found.node, found.hours, found.until.timestamp()) == ("n3", 2, AT + 6 * HOUR)


def test_a_rank_ran_while_its_node_was_in_progress() -> None:
    story = a_running_job(nodes=2)
    later = T0 + timedelta(hours=3)
    ((first, last),) = ran(story.job, later)["n1"]
    assert (first >= T0.timestamp(), last) == (True, later.timestamp())
    forgotten = replace(story.job, timeline=story.job.timeline[-1:])
    assert ran(forgotten, later)["n0"], "its beginning has left the record"
    assert list(ran(a_running_job(nodes=9).job, later, "n7", 4)) == ["n7", "n0", "n1", "n2"]


# -- where people are told -------------------------------------------------------------------------------------

NODES = [f"node-{number}" for number in range(1, 5)]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gang that has run for five hours; the second GPU of the third node is held down."""
    state = still_state(tmp_path_factory.mktemp("slow"), nodes=4)
    parts = wiring.build(state)
    now = wiring.now()
    job = parts.runtime.submit(
        job_id="j",
        cluster=wiring.CLUSTER,
        spec=JobSpec(name="train", command=("train",)),
        nodes=NODES,
        at=now - timedelta(hours=5),
        check=False,
    )
    parts.runtime.handle(
        job.id,
        [
            TaskStarted(at=now - timedelta(hours=5), task_id=f"t{rank}", attempt=0, rank=rank)
            for rank in range(4)
        ],
    )
    parts.close()
    store = SeriesStore(state / FILE)
    for back in range(4 * 3600, 0, -120):
        sample = Sample(at=now.timestamp() - back)
        for node in NODES:
            for gpu in "01":
                slow = (node, gpu) == ("node-3", "1")
                sample.put("gpu_utilization_ratio", 0.98, node=node, gpu=gpu)
                sample.put("gpu_power_watts", 280.0 if slow else 650.0, node=node, gpu=gpu)
                sample.put("gpu_clock_hertz", 1.1e9 if slow else 1.9e9, node=node, gpu=gpu)
        store.add(sample)
    store.close()
    return state


@pytest.fixture(scope="module")
def client(embedded: Path) -> Iterator[httpx.Client]:
    with console(embedded) as made:
        yield made


def test_its_page_and_the_report_name_the_node(client: httpx.Client) -> None:
    page = client.get("/nodes/node-3").text
    assert "Stands out" in page
    assert "GPU power: 930 W, its gang 1300 W" in page
    assert "GPU clock: 1100 MHz, its gang 1900 MHz" in page
    assert "Stands out" not in client.get("/nodes/node-1").text
    assert "Nodes that stand out in their gang" in client.get("/report").text
    told = client.get("/api/report").json()["slow"]
    assert [(one["node"], one["job"], one["measure"]) for one in told] == [
        ("node-3", "j", "clock"),
        ("node-3", "j", "power"),
    ]
    assert {one["hours"] for one in told} <= {3, 4}


def test_the_command_tells_it_here_and_through_a_console(embedded: Path, client: httpx.Client) -> None:
    said = run_command("report", "--state", embedded).out
    assert "node-3 stands out in j: GPU power 930 W, its gang 1,300 W; " in said
    side, link = LocalBackend(embedded), link_of(client)
    far = RemoteBackend(link.address, {"GPU_RECOVERY_CONSOLE_TOKEN": link.token})
    assert ledger_of(far).slow == ledger_of(side).slow != []
    assert ledger_of(far, "j").slow == ledger_of(side, "j").slow
    side.close()


def test_on_aws_the_agents_numbers_tell_it() -> None:
    with a_person(nodes=4) as person:
        side = AwsBackend()
        side.discover()
        names = [f"n{number}" for number in range(4)]
        person.world.submit(names)
        person.world.pass_time(4 * HOUR)
        for node in side.nodes():
            place = {"cluster": node.cluster, "containerInstanceArn": node.instance}
            slow = node.name == "n2"
            pulse = NodePulse(
                state=State.MOVING,
                since=0.0,
                moved=True,
                gpus=(
                    GpuPulse(index=0, state=State.MOVING, sm_mhz=1900.0),
                    GpuPulse(index=1, state=State.MOVING, sm_mhz=1000.0 if slow else 1890.0),
                ),
            )
            numbers = {"Memory": 50.0, "GpuUtilization": 98.0, "GpuPower": 5000.0}
            for minute in range(0, 180, 10):
                at = side.now().timestamp() - 60 * minute
                person.metrics.add(line(place, f"ip-{node.name}", [], numbers, at, pulse))
        (found,) = ledger_of(side).slow
        assert (found.node, found.job, str(found)) == ("n2", "j1", "GPU clock 1,000 MHz, its gang 1,890 MHz")
