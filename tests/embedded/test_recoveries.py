"""Recoveries with real processes: what a fault, a person or an accident does to a job, and how it ends."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ecs_gpu_recovery.core.events import NodeChecked, TaskEnded
from ecs_gpu_recovery.core.keys import token
from ecs_gpu_recovery.core.model import JobStatus, NodeStatus, Verdict
from ecs_gpu_recovery.local.controller import Controller
from ecs_gpu_recovery.local.fleet import LocalFleet
from ecs_gpu_recovery.local.wiring import now
from tests.cli.conftest import run_command
from tests.embedded.helpers import FOREVER, eventually, last_step, live_controller, training

QUICKLY = timedelta(seconds=1)


def test_an_answer_from_before_the_failure_is_no_verdict_on_it(tmp_path: Path) -> None:
    """The check before the start found the node healthy. That says nothing about why its job failed since."""
    with live_controller(tmp_path) as live:
        live.submit("job", FOREVER, check="quick")
        job = live.started("job")
        assert [rank.check_try for rank in job.ranks] == [1, 1]
        old = token("job/0/check/1", job.salt)
        assert live.cluster.task("node-1", old).exit_code == 0
        facts = LocalFleet(live.cluster, now).observe_job(job)
        assert not [fact for fact in facts if isinstance(fact, NodeChecked)]
        live.stop("job")


def test_the_end_of_a_task_that_was_never_named_is_seen_by_the_attempt_it_was_started_for(
    tmp_path: Path,
) -> None:
    """Its node was lost before the record knew the task, and the job has gone on to its next attempt since."""
    with live_controller(tmp_path) as live:
        live.submit("job", FOREVER)
        job = live.started("job")
        task = job.ranks[0].task_id
        live.stop("job")
        unnamed = replace(job.ranks[0], task_id="", task_status=None, node_status=NodeStatus.UNKNOWN)
        gone_on = replace(job, status=JobStatus.PENDING_RESTART, attempt=1, ranks=(unnamed, *job.ranks[1:]))
        seen = list(LocalFleet(live.cluster, now).observe_job(gone_on))
        ends = [(f.task_id, f.attempt) for f in seen if isinstance(f, TaskEnded) and f.rank == 0]
        assert ends == [(task, 0)]


@pytest.mark.slow
def test_a_hanging_gpu_is_found_though_its_task_takes_long_to_stop(tmp_path: Path) -> None:
    with live_controller(tmp_path) as live:
        command = training(60, 0.05)
        live.submit("job", command, check="quick", env={"COLLECTIVE_TIMEOUT_S": "1.5"})
        live.trains_to("job", 10)
        live.cluster.inject("node-2", "hang")
        job = live.ends("job", JobStatus.COMPLETE)
        assert job.attempt == 1
        assert last_step(job) == 60
        verdicts = [entry for entry in job.timeline if entry.after == "REBOOTING"]
        assert [entry.subject for entry in verdicts] == ["node-2"]


def test_a_node_that_does_not_come_back_fails_the_job_and_one_message_says_so(tmp_path: Path) -> None:
    with live_controller(tmp_path, reboot_timeout=timedelta(seconds=2)) as live:
        live.submit("job", training(200, 0.05))
        live.trains_to("job", 3)
        live.cluster.inject("node-2", "no-return")
        live.cluster.inject("node-2", "off-bus")
        job = live.ends("job", JobStatus.FAILED)
        assert "node-2 could not be brought back" in job.outcome
        assert {node.name: node.status for node in live.side.nodes()} == {
            "node-1": NodeStatus.AVAILABLE,
            "node-2": NodeStatus.FAILED,
        }
        (message,) = live.side.notices(10)
        assert message["key"] == "job/notify/failed"
        assert "gpu-recovery node release node-2" in message["next"]
        (kept,) = live.side.evidence("node-2")
        where = f"gpu-recovery evidence node-2: {kept.name}"
        said = [entry.why for entry in live.side.node("node-2").timeline if entry.evidence == where]
        assert said == ["what its reboot would wipe is kept first"]
        said = [entry.why for entry in job.timeline if where in entry.evidence]
        assert said == ["could not be brought back"]


@pytest.mark.slow
def test_a_node_that_comes_back_without_its_gpu_is_not_used_again(tmp_path: Path) -> None:
    with live_controller(tmp_path, reboot_timeout=timedelta(seconds=3)) as live:
        live.submit("job", training(200, 0.05))
        live.trains_to("job", 3)
        live.cluster.inject("node-1", "no-cure")
        live.cluster.inject("node-1", "off-bus")
        job = live.ends("job", JobStatus.FAILED)
        assert "came back with 1 of 2 GPUs" in job.outcome
        assert live.side.node("node-1").status is NodeStatus.FAILED
        # The check must run on the GPUs that are left, or it could never tell that one is missing.
        live.side.ask_node("node-1", "check", why="is it still broken?")
        eventually(lambda: live.side.node("node-1").status is NodeStatus.FAILED, "the check says so too")
        assert live.side.node("node-1").verdict is Verdict.REBOOT


@pytest.mark.parametrize("moment", ["examined first", "training", "examined after a fault", "rebooting"])
def test_a_person_can_stop_a_job_at_any_moment(tmp_path: Path, moment: str) -> None:
    boot_seconds = 30.0 if moment == "rebooting" else 0.2
    with live_controller(tmp_path, boot_seconds=0.2) as live:
        if moment == "rebooting":
            for view in live.cluster.nodes():
                text = (view.folder / "node.json").read_text()
                (view.folder / "node.json").write_text(text.replace("0.2", str(boot_seconds)))
        live.submit("job", training(400, 0.05), check="quick")
        if moment != "examined first":
            live.trains_to("job", 3)
        if moment in ("examined after a fault", "rebooting"):
            live.cluster.inject("node-2", "off-bus")
            live.reaches("job", JobStatus.PENDING_HEALTHCHECK, JobStatus.PENDING_RESTART)
        if moment == "rebooting":
            live.reaches("job", JobStatus.PENDING_RESTART)
        live.side.stop("job", why="changed my mind")
        job = live.ends("job", JobStatus.USER_STOPPED)
        assert "changed my mind" in job.outcome
        assert not live.side.notices(10)
        if moment == "rebooting":
            assert live.side.node("node-2").status is NodeStatus.REBOOTING, "the reboot goes on by itself"
        else:
            eventually(lambda: all(node.claimable for node in live.side.nodes()), "nodes free")


@pytest.mark.slow
def test_jobs_go_on_after_the_control_plane_was_shut_down_with_its_nodes(tmp_path: Path) -> None:
    with live_controller(tmp_path) as live:
        live.submit("job", training(60, 0.05))
        live.trains_to("job", 7)
    with live_controller(tmp_path, nodes=0) as live:
        job = live.ends("job", JobStatus.COMPLETE)
        assert (job.attempt, last_step(job)) == (1, 60)
        assert sorted(node.name for node in live.side.nodes()) == ["node-1", "node-2"]


def test_a_deleted_node_folder_costs_its_own_job_only(tmp_path: Path) -> None:
    short = {"node_lost_after": QUICKLY, "stop_timeout": QUICKLY, "reboot_timeout": QUICKLY}
    with live_controller(tmp_path, nodes=3, **short) as live:
        live.submit("unlucky", FOREVER, nodes=["node-1", "node-2"])
        live.submit("lucky", training(40, 0.05), nodes=["node-3"])
        live.started("unlucky")
        live.cluster.power_off("node-2")
        shutil.rmtree(tmp_path / "nodes" / "node-2")
        job = live.ends("unlucky", JobStatus.FAILED)
        assert "node-2" in job.outcome
        live.ends("lucky", JobStatus.COMPLETE)
        assert live.side.node("node-1").claimable
        assert not live.side.node("node-2").claimable


def test_a_node_whose_files_are_damaged_is_a_node_that_does_not_answer(tmp_path: Path) -> None:
    with live_controller(tmp_path, nodes=2, node_lost_after=QUICKLY) as live:
        live.cluster.power_off("node-2", "lost")
        (tmp_path / "nodes" / "node-2" / "agent.json").write_text("{half")
        eventually(lambda: live.side.node("node-2").status is NodeStatus.UNKNOWN, "node-2 unknown")
        live.submit("job", training(5, 0), nodes=["node-1"])
        live.ends("job", JobStatus.COMPLETE)


def test_a_task_that_vanished_with_its_node_is_lost_and_not_awaited_for_ever(tmp_path: Path) -> None:
    with live_controller(tmp_path) as live:
        live.submit("job", FOREVER)
        job = live.started("job")
        live.cluster.stop_task("node-1", job.ranks[0].task_id, "gone")
        eventually(lambda: not live.cluster.task("node-1", job.ranks[0].task_id).live, "ended")
        folder = Path(live.cluster.task("node-1", job.ranks[0].task_id).folder)

        def vanished() -> bool:
            shutil.rmtree(folder, ignore_errors=True)  # its shim may still put a last file in place
            return not folder.exists()

        eventually(vanished, "nothing is left of it")
        ended = [f for f in LocalFleet(live.cluster, now).observe_job(job) if isinstance(f, TaskEnded)]
        # The controller may have stopped the other rank by now.
        assert [fact.exit_code for fact in ended if fact.rank == 0] == [None]
        live.stop("job")


def test_a_record_that_cannot_be_read_does_not_stop_the_others(tmp_path: Path) -> None:
    with live_controller(tmp_path, nodes=2) as live:
        live.submit("bad", FOREVER, nodes=["node-1"])
        live.started("bad")

        def damage(conn: sqlite3.Connection) -> None:
            conn.execute("UPDATE ecs_job SET record='{\"id\": 5}', version=version+1 WHERE job_id='bad'")

        live.parts.store.write(damage)
        live.submit("good", training(10, 0), nodes=["node-2"])
        live.ends("good", JobStatus.COMPLETE)
        told = run_command("job", "bad", "--state", tmp_path)
        assert told.code == 4
        assert "the record of job bad cannot be read" in told.err
        assert "bad" in run_command("jobs", "--state", tmp_path).out
        assert run_command("notices", "--state", tmp_path).out.count("cannot be worked on") == 1
    with live_controller(tmp_path, nodes=0) as live:  # and it does not keep a new controller from starting
        live.submit("better", training(10, 0), nodes=["node-2"])
        live.ends("better", JobStatus.COMPLETE)
    assert run_command("notices", "--state", tmp_path).out.count("cannot be worked on") == 1


def test_a_node_that_cannot_be_read_is_named_in_its_place(tmp_path: Path) -> None:
    """The others work, lists and pages name it, and a job that wants it is told why it can't have it."""
    with live_controller(tmp_path, nodes=2) as live:
        eventually(lambda: len(live.parts.store.nodes()) == 2, "two nodes")

        def damage(conn: sqlite3.Connection) -> None:
            conn.execute("UPDATE ecs_node SET record='rubbish', version=version+1 WHERE node_name='node-1'")

        live.parts.store.write(damage)
        live.submit("good", training(10, 0), nodes=["node-2"])
        live.ends("good", JobStatus.COMPLETE)
        listed = run_command("nodes", "--json", "--state", tmp_path).data["nodes"]
        assert [(node["name"], node["status"]) for node in listed] == [
            ("node-1", "UNKNOWN"),
            ("node-2", "AVAILABLE"),
        ]
        assert "the record of node node-1 cannot be read" in listed[0]["findings"]
        refused = run_command("submit", "--nodes", "node-1", "--state", tmp_path, "--", "true")
        assert refused.code != 0
        assert "the record of node node-1 cannot be read" in refused.err
        eventually(lambda: live.parts.reads.notices(10), "a message")
        assert [told["node"] for told in live.parts.reads.notices(10)] == ["node-1"]


def test_a_line_that_makes_no_sense_hides_no_other(tmp_path: Path) -> None:
    with live_controller(tmp_path, nodes=2) as live:
        live.submit("good", training(10, 0), nodes=["node-1"])
        live.submit("bad", training(10, 0), nodes=["node-2"])
        live.ends("bad", JobStatus.COMPLETE)
        live.parts.store.write(
            lambda conn: conn.execute("UPDATE ecs_job SET job_status='PAUSED' WHERE job_id='bad'")
        )
        listed = run_command("jobs", "--state", tmp_path)
        assert "good" in listed.out
        assert "left out: the record of job bad cannot be read: 'PAUSED'" in listed.err
        shown = run_command("jobs", "--json", "--state", tmp_path).data
        assert [job["id"] for job in shown["jobs"]] == ["good"]
        assert [one["id"] for one in shown["bad"]] == ["bad"]


@pytest.mark.slow
def test_two_jobs_share_the_nodes_and_break_apart(tmp_path: Path) -> None:
    with live_controller(tmp_path, nodes=4) as live:
        live.submit("one", training(60, 0.05), nodes=["node-1", "node-2"])
        live.submit("two", training(60, 0.05), nodes=["node-3", "node-4"])
        live.trains_to("one", 6)
        live.trains_to("two", 6)
        live.cluster.inject("node-2", "ecc")
        live.cluster.inject("node-3", "app-xid")
        one, two = live.ends("one", JobStatus.COMPLETE), live.ends("two", JobStatus.COMPLETE)
        assert (one.attempt, two.attempt) == (1, 1)
        assert any("GPUs healthy; restarted after step" in entry.why for entry in two.timeline)
        assert not live.side.notices(10), "nobody is needed"


def test_a_second_controller_on_the_same_state_is_refused(tmp_path: Path) -> None:
    from ecs_gpu_recovery.core.errors import Refused

    with live_controller(tmp_path) as live:
        with pytest.raises(Refused, match=r"another controller \(pid \d+\) already runs"):
            Controller(tmp_path).__enter__()
        live.submit("job", training(5, 0))
        live.ends("job", JobStatus.COMPLETE)


def test_commands_that_look_for_the_controller_do_not_keep_one_from_starting(tmp_path: Path) -> None:
    from ecs_gpu_recovery.local.controller import running_pid

    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            running_pid(tmp_path)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(10):
            with Controller(tmp_path):
                pass
    finally:
        stop.set()
        for looker in lookers:
            looker.join()


def test_a_rank_that_a_gpu_froze_is_recovered_without_its_own_time_out(tmp_path: Path) -> None:
    """The program would wait for ten minutes; the fault is on record after a second."""
    with live_controller(tmp_path, fault_grace=timedelta(seconds=1)) as live:
        live.submit("job", training(40, 0.05))
        live.trains_to("job", 6)
        live.cluster.inject("node-2", "hang")
        job = live.ends("job", JobStatus.COMPLETE)
        assert job.attempt == 1
        assert any(entry.why == "rank 1 on node-2 froze after a GPU fault" for entry in job.timeline)
        assert any(entry.why == "GPU fault on node-2" for entry in job.timeline)


def test_a_task_that_no_stop_ends_gets_its_node_rebooted_and_the_job_goes_on(tmp_path: Path) -> None:
    patience = {"fault_grace": timedelta(seconds=1), "stop_timeout": timedelta(seconds=8)}
    with live_controller(tmp_path, **patience) as live:
        live.submit("job", training(40, 0.05))
        live.trains_to("job", 6)
        before = live.cluster.node("node-2").boot_id
        live.cluster.inject("node-2", "stuck")
        job = live.ends("job", JobStatus.COMPLETE)
        assert job.attempt == 1
        assert any(entry.why == "the task on node-2 could not be stopped" for entry in job.timeline)
        assert live.cluster.node("node-2").boot_id != before
        assert not live.side.notices(10), "nobody is needed"


@pytest.mark.parametrize("how", [pytest.param("leaving", marks=pytest.mark.slow), "move"])
def test_a_job_leaves_a_node_that_is_to_be_taken_away_and_goes_on_elsewhere(tmp_path: Path, how: str) -> None:
    with live_controller(tmp_path, nodes=3, max_retries=0) as live:
        live.side.ask_node("node-3", "spare", why="for those who must leave")
        live.submit("job", training(150, 0.05), any_nodes=2)
        live.trains_to("job", 5)
        if how == "leaving":
            assert run_command("node", "inject", "node-2", "leaving", "--state", str(tmp_path)).code == 0
        else:
            asked = ("node", "drain", "node-2", "--move", "--why", "new fan", "--state", str(tmp_path))
            assert "moves to another node" in run_command(*asked).out
        job = live.ends("job", JobStatus.COMPLETE)
        assert (job.attempt, job.spent.charged, last_step(job)) == (1, 0, 150)
        assert "rank 1 moved from node-2 to node-3" in [entry.why for entry in job.timeline]
        examined = {entry.subject for entry in job.timeline if "health check" in entry.why}
        assert examined == {"node-3"}, "nothing failed: only what is taken is examined"
        left = live.side.node("node-2")
        assert (left.job_id, left.claimable) == ("", False)
        if how == "leaving":
            assert run_command("node", "inject", "node-2", "clear", "--state", str(tmp_path)).code == 0
        else:
            assert live.side.ask_node("node-2", "release", why="the fan is in").claimable
        eventually(lambda: live.side.node("node-2").claimable, "it is back")
        assert live.side.notices(10) == [], "nobody is needed"
