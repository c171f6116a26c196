"""kill -9 of everything but the controller: agents, supervisors and ranks, while it watches."""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.local.files import read_json
from tests.embedded.helpers import (
    FOREVER,
    LiveController,
    check_that_every_rank_ran_once,
    check_the_steps,
    control_plane,
    eventually,
    live_controller,
    living,
    submit,
    training,
    undisturbed_digest,
)
from tests.local.helpers import kill_9


def rank_pid(live: LiveController, job_id: str, rank: int, named_in: str = "running.json") -> int:
    place = live.job(job_id).ranks[rank]
    file = live.cluster.task(place.node, place.task_id).folder / named_in
    return int(eventually(lambda: read_json(str(file)), f"{named_in} of rank {rank}")["pid"])


def shim_pid(live: LiveController, job_id: str, rank: int) -> int:
    return rank_pid(live, job_id, rank, "claim")


def test_agents_may_die_while_their_tasks_train_on(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    digest = undisturbed_digest(tmp_path / "undisturbed", 2, 40)
    with live_controller(tmp_path / "state") as live:
        chance = random.Random(7)
        live.submit("job", training(40, 0.05))
        killed = set()
        while not live.job("job").status.final:
            view = live.cluster.node(chance.choice(["node-1", "node-2"]))
            if view.pid is not None and len(killed) < 8:
                kill_9(view.pid)
                killed.add(view.pid)
            time.sleep(chance.uniform(0.05, 0.3))
        job = live.ends("job", JobStatus.COMPLETE)
        assert len(killed) >= 4
        record_property("kills", len(killed))
        assert job.attempt == 0, "an agent that comes back in time costs nothing"
        eventually(lambda: all(view.connected for view in live.cluster.nodes()), "agents back")
        assert not live.side.notices(10)
    with control_plane(tmp_path / "state", 2) as plane:
        check_that_every_rank_ran_once(plane, job)
        check_the_steps(plane, job, 40, digest)


def test_a_killed_rank_costs_its_job_nothing_but_the_steps_since_its_checkpoint(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Twice, with one restart in the budget: what got further has its restart back."""
    record_property("kills", 2)
    with live_controller(tmp_path) as live:
        live.submit("job", training(60, 0.1))
        for attempt, step in enumerate((6, 20)):
            live.trains_to("job", step)
            eventually(lambda: live.job("job").restarts_left == 1, "progress is seen")
            kill_9(rank_pid(live, "job", 1))
            eventually(lambda: live.job("job").attempt == attempt + 1, "started again")  # noqa: B023
        job = live.ends("job", JobStatus.COMPLETE)
        assert job.attempt == 2
        said = [entry.why for entry in job.timeline if entry.after == JobStatus.PENDING_RESTART]
        headline = r"rank 1 on node-2 was killed \(SIGKILL\); GPUs healthy; restarted after step \d+"
        assert all(re.fullmatch(headline, why) for why in said), said
        assert not live.side.notices(10), "nobody is needed"


def test_where_the_deployment_says_never_a_killed_rank_ends_the_job_and_its_gang(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Code 137 is outside the policy: nobody knows who killed it, and no reboot cures that."""
    record_property("kills", 1)
    with live_controller(tmp_path, restart_when_healthy="never") as live:
        live.submit("job", FOREVER)
        live.started("job")
        rank_pid(live, "job", 0)  # it runs too: one that never began has no exit code
        kill_9(rank_pid(live, "job", 1))
        job = live.ends("job", JobStatus.FAILED)
        assert [rank.exit_code for rank in job.ranks] == [143, 137]
        assert job.outcome == "rank 1 on node-2 was killed (SIGKILL), which no reboot cures"
        assert [message["key"] for message in live.side.notices(10)] == ["job/notify/failed"]
        eventually(lambda: all(node.claimable for node in live.side.nodes()), "nodes free")
        assert len(living(live.cluster)) == 2, "only the agents are left"


def test_a_killed_supervisor_costs_its_job_one_retry_and_no_node_a_reboot(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Nobody knows how the rank ended, so it is lost: the job goes on from its checkpoint."""
    record_property("kills", 1)
    with live_controller(tmp_path) as live:
        live.submit("job", training(40, 0.05))
        live.trains_to("job", 6)
        boots = {view.name: view.boot_id for view in live.cluster.nodes()}
        kill_9(shim_pid(live, "job", 1))
        job = live.ends("job", JobStatus.COMPLETE)
        assert job.attempt == 1
        assert {view.name: view.boot_id for view in live.cluster.nodes()} == boots
        assert not live.side.notices(10), "nobody is needed"
        assert any("supervisor was killed" in entry.evidence for entry in job.timeline)
        open_rows = live.parts.store.read("SELECT * FROM ecs_task WHERE task_status='IN_PROGRESS'")
        assert open_rows == [], "the task that was lost is not called running for ever"


def test_a_rank_that_fails_by_itself_takes_no_node_out_of_service(tmp_path: Path) -> None:
    with live_controller(tmp_path) as live:
        program = (
            "import os, sys, time; time.sleep(0.3); print('ValueError: no such batch')\n"
            "sys.exit(int(os.environ['RANK']))"
        )
        live.submit("job", (sys.executable, "-c", program))
        job = live.ends("job", JobStatus.FAILED)
        assert job.outcome == (
            "rank 1 on node-2 died with exit code 1 (ValueError: no such batch); no GPU fault found"
            "; no restart is left (1 of 1 used)"
        )
        assert job.attempt == 1, "it tells no progress, so it was tried once more"
        (message,) = live.side.notices(1)
        assert "it wrote last: ValueError: no such batch" in message["evidence"]
        eventually(lambda: all(node.claimable for node in live.side.nodes()), "nodes free")


def test_a_job_gets_the_policy_of_the_control_plane_and_not_of_who_submits(tmp_path: Path) -> None:
    with live_controller(tmp_path, max_retries=3, restart_when_healthy="never") as live:
        job = live.submit("job", FOREVER)
        assert (job.max_retries, job.restart_when_healthy) == (3, "never")


def test_a_program_that_does_not_exist_on_the_node_fails_with_the_reason(tmp_path: Path) -> None:
    program = tmp_path / "train.sh"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    with live_controller(tmp_path / "state") as live:
        live.side.ask_node("node-2", "drain", why="one is enough")
        live.cluster.power_off("node-1", "a moment")
        live.submit("job", [str(program)], nodes=["node-1"])
        program.unlink()
        live.cluster.power_on("node-1")
        job = live.ends("job", JobStatus.FAILED)
        assert "CannotStartContainerError" in job.outcome
        assert "train.sh" in job.outcome


def test_a_gang_of_escaped_processes_is_caught(tmp_path: Path) -> None:
    """Launchers start workers in sessions of their own. When the rank ends, they end too."""
    program = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'], start_new_session=True)\n"
        "time.sleep(0.2); sys.exit(3)\n"
    )
    with live_controller(tmp_path) as live:
        live.submit("job", (sys.executable, "-c", program))
        live.ends("job", JobStatus.FAILED)
        eventually(lambda: len(living(live.cluster)) == 2, "only the agents are left")


@pytest.mark.slow
def test_controller_and_agents_killed_together_lose_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    kills = 0
    chance = random.Random(11)
    digest = undisturbed_digest(tmp_path / "undisturbed", 2, 40)
    with control_plane(tmp_path / "state", 2) as plane:
        with plane.running():
            eventually(lambda: (plane.state / "recovery.db").exists(), "a database")
            eventually(plane.nodes_free, "nodes free")
        submit(plane, "job", training(40, 0.05), check="none")
        for _ in range(5):
            plane.start()
            time.sleep(chance.uniform(0.3, 0.8))
            plane.must_live()
            plane.kill()
            kills += 1
            for view in plane.cluster.nodes():
                if view.pid is not None:
                    kill_9(view.pid)
                    kills += 1
        record_property("kills", kills)
        with plane.running():
            job = eventually(lambda: j if (j := plane.job("job")).status.final else None, "the end")
            assert (job.status, job.attempt) == (JobStatus.COMPLETE, 0), job.outcome
            eventually(plane.nodes_free, "nodes free")
        check_that_every_rank_ran_once(plane, job)
        check_the_steps(plane, job, 40, digest)
