"""gpu-recovery submit --backend aws: nodes from the cluster, and all tasks or none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ecs_gpu_recovery.core.model import JobStatus
from tests.cli.aws_person import ARN, Person
from tests.cli.conftest import Result
from tests.stories.other_tool import NODES, OtherTool, text
from tests.stories.world import CLUSTER


def test_nodes_that_nobody_knew_are_found_and_the_job_starts_on_them(person: Person) -> None:
    person.submit("--nodes", "n0,n1", "--id", "j1", "--check", "none").tells(
        "submitted j1 on n0, n1", "gpu-recovery job j1 --watch --backend aws"
    )
    person.world.pass_time(2)
    job = person.world.job()
    assert job.status is JobStatus.IN_PROGRESS
    assert job.cluster == CLUSTER
    assert "assumed-role/Researchers/ann" in job.spec.submitted_by
    rows = person.world.account.rows("node_table")
    assert {name: row["node_status"] for name, row in rows.items()} == {
        "n0": "IN_PROGRESS",
        "n1": "IN_PROGRESS",
    }
    assert [task["lastStatus"] for task in person.world.tasks()] == ["RUNNING", "RUNNING"]
    assert rows["n0"]["ip"], "the ranks meet at the address that SSM knows"


def test_the_nodes_are_examined_first_and_the_job_starts_when_they_pass(person: Person) -> None:
    told = person.submit("--any", "2", "--id", "j1", "--json")
    assert told.data["status"] == "PENDING_HEALTHCHECK"
    assert person.world.tasks() == []
    person.world.pass_time(30)
    assert person.world.job().status is JobStatus.IN_PROGRESS


def test_waiting_ends_with_the_job(person: Person) -> None:
    person.world.cloud.control.script(family="gpu-training-run", times=None, exit_code=0, after_s=20)
    person.submit("--any", "2", "--id", "j1", "--wait").tells("COMPLETE")


def test_a_log_group_that_is_not_there_is_told_of_before_anything_starts(person: Person) -> None:
    person("submit", "--any", "1", "--image", "x:1", "--log-group", "/none", "--", "true").refused(
        "aws logs create-log-group --log-group-name /none"
    )
    assert person.world.account.rows("job_table") == {}


def test_checkpoints_that_would_end_with_the_task_are_warned_of(person: Person) -> None:
    told = person.submit(
        "--any", "1", "--check", "none", "--checkpoint-dir", "/tmp/c", "--mount", "/fsx:/fsx"
    )
    assert told.code == 0
    assert "checkpoint_dir /tmp/c is in no mount" in told.err
    told = person.submit(
        "--any", "1", "--check", "none", "--checkpoint-dir", "/fsx/c", "--mount", "/fsx:/fsx"
    )
    assert (told.code, told.err) == (0, "")


# -- refusals: nothing is started and nothing is left --------------------------------------------------------


def refused(person: Person, *args: object, code: int = 4) -> str:
    before = person.world.account.rows("job_table")
    told = person.submit(*args)
    assert told.code == code, told
    assert person.world.account.rows("job_table") == before
    return told.err


def test_a_node_that_is_busy_is_refused_by_name(person: Person) -> None:
    assert person.submit("--nodes", "n0", "--id", "j1", "--check", "none").code == 0
    said = refused(person, "--nodes", "n0,n1")
    assert "n0: in use by job j1" in said
    assert "n1:" not in said
    assert "See: gpu-recovery nodes" in said


def test_every_node_that_is_wrong_is_named_at_once(person: Person) -> None:
    control = person.world.cloud.control
    control.disconnect("n0")
    person.world.pass_time(5)
    person("nodes")
    person("node", "drain", "n1", "--why", "broken fan")
    said = refused(person, "--nodes", "n0,n1,n9")
    assert "n0: is UNKNOWN; its ECS agent is not connected" in said
    assert "n1: drained by" in said
    assert "broken fan" in said
    assert "n9: no such node" in said


def test_a_node_that_ecs_drains_is_refused(person: Person) -> None:
    ecs, node = person.world.cloud.client("ecs"), person.world.cloud.control.node("n0")
    ecs.update_container_instances_state(cluster=CLUSTER, containerInstances=[node["arn"]], status="DRAINING")
    assert "n0: is UNKNOWN" in refused(person, "--nodes", "n0")
    ecs.update_container_instances_state(cluster=CLUSTER, containerInstances=[node["arn"]], status="ACTIVE")
    person.world.pass_time(1)
    person("nodes")
    ecs.update_container_instances_state(cluster=CLUSTER, containerInstances=[node["arn"]], status="DRAINING")
    assert "n0: the cluster says DRAINING" in refused(person, "--nodes", "n0")


def test_a_node_that_left_the_cluster_is_refused(person: Person) -> None:
    person("nodes")
    node = person.world.cloud.control.node("n0")
    person.world.events = False  # nobody has heard of it yet
    person.world.cloud.client("ecs").deregister_container_instance(
        cluster=CLUSTER, containerInstance=node["arn"], force=True
    )
    assert "n0: it is not in the cluster any more" in refused(person, "--nodes", "n0")


def test_too_few_free_nodes_are_counted(person: Person) -> None:
    assert "it wants 3 free nodes, and there are 2" in refused(person, "--any", "3")
    assert "it wants 1 free nodes with 16 GPUs each, and there are 0" in refused(
        person, "--any", "1", "--gpus", "16"
    )


def test_any_node_means_one_on_which_a_task_can_start(person: Person) -> None:
    person.world.cloud.control.disconnect("n0")
    person.world.pass_time(1)
    assert person.submit("--any", "1", "--id", "j1", "--check", "none").code == 0
    assert [rank.node for rank in person.world.job().ranks] == ["n1"]


def test_an_id_is_used_once(person: Person) -> None:
    assert person.submit("--nodes", "n0", "--id", "j1", "--check", "none").code == 0
    said = refused(person, "--nodes", "n1", "--id", "j1")
    assert "job j1 exists already (IN_PROGRESS)" in said
    row = {"job_id": text("t1"), "job_status": text("IN_PROGRESS"), "cluster_name": text(CLUSTER)}
    person.world.account.write("job_table", row | {"created_at": text("2026-11-15T01:00:00Z")})
    assert "another tool has recorded a job t1" in refused(person, "--nodes", "n1", "--id", "t1")


def test_when_others_are_faster_the_task_definition_is_taken_back(person: Person) -> None:
    """Between the choice and the claim another person takes the node."""
    person("nodes")
    world = person.world
    taken = []

    def others(service: str, action: str, request: dict[str, Any]) -> None:
        if action == "register_task_definition" and not taken:
            taken.append(action)
            world.submit(["n0"], job_id="faster")

    world.wire.before.append(others)
    said = refused_after(person, "--nodes", "n0")
    assert "n0: in use by job faster" in said
    family = definitions_of(person, "gpu-training-run")
    assert [d["status"] for d in family] == ["INACTIVE"]


def refused_after(person: Person, *args: object) -> str:
    told = person.submit(*args)
    assert told.code == 4, told
    assert list(person.world.account.rows("job_table")) == ["faster"]
    return told.err


def definitions_of(person: Person, family: str) -> list[dict[str, Any]]:
    return person.world.cloud._own._families[family]


def test_a_start_that_the_cluster_refuses_ends_the_job_and_the_command_says_so(person: Person) -> None:
    """All tasks or none: the rank that did start is stopped."""
    person.world.cloud.control.fail_call(action="StartTask", code="ClientException", status=400, times=1)
    told = person.submit("--nodes", "n0,n1", "--id", "j1", "--check", "none")
    assert (told.code, told.out) == (1, "submitted j1 on n0, n1\n"), told
    assert "j1 could not be started" in told.err
    assert "ClientException" in told.err
    assert person.world.run().status is JobStatus.FAILED
    assert person.world.tasks(live=True) == []
    assert person.world.node_statuses() == {"n0": "AVAILABLE", "n1": "AVAILABLE"}


def test_a_command_too_long_for_ecs_is_told_of(person: Person) -> None:
    said = refused(person, "--any", "1", "--", "python", "-c", "x" * 8000)
    assert "ECS takes about 6800" in said


def test_what_a_person_may_not_start_the_functions_start(person: Person) -> None:
    world = person.world
    world.wire.fail_all[("ecs", "start_task")] = "AccessDeniedException"
    told = person.submit("--nodes", "n0", "--id", "j1", "--check", "none")
    assert told.code == 0, told
    assert "the deployed functions carry it out within minutes" in told.err
    assert "docs/permissions.md" in told.err
    del world.wire.fail_all[("ecs", "start_task")]
    world.until(lambda: len(world.tasks(live=True)) == 1, minutes=10)


def test_the_functions_policy_counts_not_the_one_of_the_terminal(person: Person) -> None:
    person.functions.environment["MAX_RETRIES"] = "4"
    assert person.submit("--nodes", "n0", "--id", "j1", "--check", "none").code == 0
    assert person.world.job().max_retries == 4
    assert person.submit("--nodes", "n1", "--id", "j2", "--check", "none", "--max-retries", "0").code == 0
    assert person.world.job("j2").max_retries == 0


def test_the_json_of_a_submission_is_the_record(person: Person) -> None:
    told = person.submit("--nodes", "n0", "--id", "j1", "--json")
    data = json.loads(told.out)
    assert (data["id"], data["spec"]["submitted_by"].endswith(f"({ARN.rpartition(':')[2]})")) == ("j1", True)


# -- again ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("letters", [1, 6650], ids=["little", "as much as ECS takes"])
def test_an_ended_job_runs_again_from_the_same_definition(person: Person, letters: int) -> None:
    args = ("--nodes", "n0", "--id", "j1", "--check", "none", "--workdir", "/w", "--mount", "/fsx:/fsx")
    assert person.submit(*args, "-e", f"OWN={'x' * letters}").code == 0
    person.world.pass_time(2)
    assert person("retry", "j1").code == 4
    person.world.fail_rank(0, code=3)
    person.world.run()
    data = person.done("retry", "j1")
    assert data["spec"]["retry_of"] == "j1"
    assert data["spec"]["task_def"] == person.world.job().spec.task_def
    assert data["ranks"][0]["node"] == "n0"


def test_what_another_tool_started_runs_again_on_its_nodes_with_each_rank_s_own_command(
    person: Person,
) -> None:
    other = OtherTool(person.world)
    tasks = other.submit()
    person.world.cloud.control.exit_task(tasks[0], 3)
    person.world.run("t1")
    person("retry", "t1", "--nodes", "n0,n1").refused("on the same nodes only. Leave --nodes out")
    again = person.done("retry", "t1")
    assert [rank["node"] for rank in again["ranks"]] == list(NODES)
    person.world.pass_time(60)
    ran = [task for task in person.world.tasks(live=True) if task["env"]["JOB_ID"] == again["id"]]
    given = [task["overrides"]["containerOverrides"][0]["command"][-1] for task in ran]
    assert sorted(given) == ["--node_rank=0", "--node_rank=1"]
    assert {task["env"]["MASTER_ADDR"] for task in ran} == {"10.0.1.5"}, "as their own tool told them"


def test_what_cannot_be_run_again_says_what_to_do(person: Person) -> None:
    assert person.submit("--nodes", "n0", "--id", "j1", "--check", "none").code == 0
    person.world.pass_time(2)
    person.world.fail_rank(0, code=3)
    person.world.run()
    store = person.world.side.store
    job = store.job("j1")
    store.commit(job, replace(job, spec=replace(job.spec, task_def=""), version=job.version + 1))
    person("retry", "j1").refused("its task definition is not on record", "--task-definition")


# -- checkpoints that another job writes ---------------------------------------------------------------------


def _keeps(person: Person, job: str, node: str, folder: str, mount: str) -> Result:
    return person.submit(
        *("--nodes", node, "--id", job, "--check", "none", "--checkpoint-dir", folder, "--mount", mount)
    )


def test_two_live_jobs_do_not_share_a_checkpoint_folder(person: Person) -> None:
    assert _keeps(person, "j1", "n0", "/fsx/run", "/fsx:/fsx").code == 0
    _keeps(person, "j2", "n1", "/fsx/run/", "/fsx:/fsx").refused(
        "job j1 is running and keeps its checkpoints in /fsx/run", "gpu-recovery stop j1"
    )
    assert person.made().count(("ecs", "register_task_definition")) == 1, "refused before anything is made"
    person.world.pass_time(2)
    person.world.fail_rank(0, code=3)
    person.world.run()
    assert _keeps(person, "j2", "n1", "/fsx/run", "/fsx:/fsx").code == 0, "that job has ended"


def test_a_folder_of_the_same_name_in_another_place_is_another_folder(person: Person) -> None:
    assert _keeps(person, "j1", "n0", "/ckpt/run", "/fsx/ann:/ckpt").code == 0
    assert _keeps(person, "j2", "n1", "/ckpt/run", "/fsx/bob:/ckpt").code == 0
