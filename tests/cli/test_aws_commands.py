"""What a person sees of jobs on AWS, and does to them: jobs, job, logs, stop, notices, doctor."""

from __future__ import annotations

import json

import pytest

from ecs_gpu_recovery.control import aws_logs
from ecs_gpu_recovery.core.model import JobStatus
from tests.aws.event_builders import TRAIN, container, stopped
from tests.cli.aws_person import LOG_GROUP, Person
from tests.stories.memory import GUARDED
from tests.stories.other_tool import OtherTool


@pytest.fixture
def running(person: Person) -> Person:
    """A job j1 on both nodes."""
    assert person.submit("--nodes", "n0,n1", "--id", "j1", "--check", "none").code == 0
    person.world.pass_time(2)
    return person


# -- jobs ----------------------------------------------------------------------------------------------------


def test_jobs_are_listed_newest_first_and_by_state(person: Person) -> None:
    assert "No jobs yet" in person("jobs").out
    for number, node in enumerate(("n0", "n1")):
        assert person.submit("--nodes", node, "--id", f"j{number}", "--check", "none").code == 0
        person.world.pass_time(5)
    assert [line["id"] for line in person.done("jobs")["jobs"]] == ["j1", "j0"]
    first = person.done("jobs", "--limit", "1")
    assert [line["id"] for line in first["jobs"]] == ["j1"]
    rest = person.done("jobs", "--limit", "1", "--after", first["next"])
    assert [line["id"] for line in rest["jobs"]] == ["j0"]
    assert person.done("jobs", "--status", "FAILED")["jobs"] == []
    assert "No job is FAILED." in person("jobs", "--status", "failed").out
    person("jobs").tells("j0", "IN_PROGRESS")


def test_a_job_tells_its_ranks_nodes_and_reasons(running: Person) -> None:
    running.world.finish_attempt(1)
    running.world.cloud.control.script(
        env={"JOB_ATTEMPT": "1"}, family="gpu-training-run", times=None, exit_code=0, after_s=30
    )
    running.world.cloud.control.health("n1", 1)
    running.world.fail_rank(0)
    running("job", "j1", "--watch").tells("PENDING_HEALTHCHECK", "REBOOTING", "RESTARTING", "COMPLETE")
    running("job", "j1").tells("COMPLETE  restarted once\n", "n1")
    data = running.done("job", "j1")
    assert (data["status"], data["attempt"]) == ("COMPLETE", 1)
    assert {phase["name"] for phase in data["phases"]} >= {"running", "waiting for nodes"}


def test_a_job_that_is_not_there_is_code_3_and_says_where_to_look(person: Person) -> None:
    for args in (("job", "x"), ("logs", "x"), ("stop", "x"), ("retry", "x")):
        person(*args).refused("no job x in cluster gpus", "gpu-recovery jobs --backend aws", code=3)


def test_a_job_of_another_tool_that_was_not_taken_over_is_named_as_such(person: Person) -> None:
    other = OtherTool(person.world)
    person.world.events = False
    other.submit()
    person("job", "t1").refused("recorded by another tool", code=3)


# -- logs ----------------------------------------------------------------------------------------------------


def test_logs_come_from_cloudwatch_with_the_rank_in_front(running: Person) -> None:
    assert "nothing was written yet" in running("logs", "j1").err
    running.logs.write(running.world.task_of(0), "step 1", "step 2", "step 3")
    running.logs.write(running.world.task_of(1), "hello")
    assert running("logs", "j1").out == "[0] step 1\n[0] step 2\n[0] step 3\n[1] hello\n"
    assert running("logs", "j1", "--rank", "1").out == "[1] hello\n"
    assert running("logs", "j1", "--rank", "2").code == 4
    assert "no attempt 1 yet" in running("logs", "j1", "--attempt", "1").err


def test_logs_as_json_are_one_object_a_line(running: Person) -> None:
    running.logs.write(running.world.task_of(1), 'said "hi"')
    (line,) = running("logs", "j1", "--json").out.splitlines()
    assert json.loads(line) == {
        "rank": 1,
        "attempt": 0,
        "node": "n1",
        "task": running.world.task_of(1),
        "line": 'said "hi"',
    }


def test_following_ends_with_the_job_and_repeats_nothing(running: Person) -> None:
    """Two attempts: each rank's lines come once, and those of the second attempt say so."""
    world, logs = running.world, running.logs
    world.cloud.control.script(
        env={"JOB_ATTEMPT": "1"}, family="gpu-training-run", times=None, exit_code=0, after_s=40
    )
    world.cloud.control.health("n0", 1)
    logs.write(world.task_of(0), "first")
    seen: list[str] = []

    def write(*_: object) -> None:
        """The restarted rank writes as soon as it has a task."""
        job = world.job()
        if job.ranks[0].task_attempt and job.ranks[0].task_id and not seen:
            seen.append(job.ranks[0].task_id)
            logs.write(job.ranks[0].task_id, "second")

    world.wire.before.append(write)
    world.fail_rank(0)
    told = running("logs", "j1", "-f")
    assert told.code == 0, told
    assert told.out.splitlines() == ["[0] first", "[0 attempt 1] second"]
    assert running("logs", "j1", "--all").out.count("first") == 1
    assert running("logs", "j1").out == "[0 attempt 1] second\n"


def test_a_long_log_is_read_to_its_end(running: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ecs_gpu_recovery.control.aws_logs._PAGES", 2)
    running.logs.write(running.world.task_of(0), *(f"line {n}" for n in range(23)))
    for rank in range(2):
        running.world.cloud.control.exit_task(running.world.task_of(rank), 0)
    running.world.run()
    assert len(running("logs", "j1", "--rank", "0").out.splitlines()) == 23


def test_a_log_is_handed_on_as_soon_as_the_reader_has_enough(running: Person) -> None:
    task = running.world.task_of(0)
    running.logs.write(task, *(f"line {n}" for n in range(23)))
    place, asked = (LOG_GROUP, f"train/train/{task}"), list[int]()

    def enough(read: int) -> bool:
        asked.append(read)
        return len(asked) == 3

    lines, position = aws_logs.read(running.logs, place, "", "us-east-1", enough)
    assert (lines, asked) == ([f"line {n}" for n in range(6)], [12, 24, 36])
    assert aws_logs.read(running.logs, place, position, "us-east-1")[0] == [f"line {n}" for n in range(6, 23)]


def test_a_log_group_that_is_gone_is_told_of(running: Person) -> None:
    running.logs.groups.remove(LOG_GROUP)
    running("logs", "j1").refused(f"there is no log group {LOG_GROUP}")


def test_a_job_without_a_log_group_says_how_to_get_one(person: Person) -> None:
    assert (
        person("submit", "--any", "1", "--id", "j1", "--image", "x:1", "--check", "none", "--", "a").code == 0
    )
    person.world.pass_time(2)
    person("logs", "j1").refused("--log-group")


# -- stop ----------------------------------------------------------------------------------------------------


def test_a_job_is_stopped_with_a_name_and_a_reason(running: Person) -> None:
    running("stop", "j1", "--why", "wrong data", "--wait").tells("stopping j1")
    job = running.world.run()
    assert job.status is JobStatus.USER_STOPPED
    running("job", "j1").tells("assumed-role/Researchers/ann", "wrong data")
    assert running.world.tasks(live=True) == []
    running("stop", "j1").refused("has already ended (USER_STOPPED)")


def test_stopping_as_json_shows_the_record(running: Person) -> None:
    assert running.done("stop", "j1")["ending"]["status"] == "USER_STOPPED"
    assert running.world.run().status is JobStatus.USER_STOPPED


def test_what_a_person_may_not_stop_the_functions_stop(running: Person) -> None:
    running.world.wire.fail_all[("ecs", "stop_task")] = "AccessDeniedException"
    told = running("stop", "j1")
    assert told.code == 0, told
    assert "the deployed functions carry it out within minutes" in told.err
    running.world.wire.fail_all.clear()
    assert running.world.run().status is JobStatus.USER_STOPPED


# -- who is needed -------------------------------------------------------------------------------------------


def test_notices_name_what_needs_a_person(running: Person) -> None:
    assert "nobody is needed" in running("notices").out
    assert running.done("notices") == {"notices": []}
    running.world.cloud.control.health("n1", 2)
    running.world.fail_rank(0)
    running.world.run()
    running("notices").tells("Job j1 failed", "Node n1 failed")
    notices = running.done("notices")["notices"]
    sent = running.world.messages()
    assert {n["subject"] for n in notices} >= {said.splitlines()[0] for said in sent}
    assert all(n["next"] for n in notices)
    assert len(running.done("notices", "--limit", "1")["notices"]) == 1


# -- doctor --------------------------------------------------------------------------------------------------


def test_a_whole_deployment_passes_every_check(person: Person) -> None:
    told = person("doctor", "--json")
    assert told.code == 0, told
    checks = {check["name"]: check for check in told.data["checks"]}
    assert list(checks) == [
        "region",
        "credentials",
        "settings",
        *(f"table {name}" for name in ("ecs_job", "ecs_task", "ecs_node", GUARDED)),
        *("cluster", "reboots", "health check", "messages", "functions"),
    ]
    assert checks["cluster"]["found"] == "2 nodes in gpus, all connected"
    assert "ok    credentials" in person("doctor").out


def test_the_doctor_only_reads(person: Person) -> None:
    person("doctor")
    assert not [name for _, name in person.made() if not name.startswith(("get_", "describe_", "list_"))]


def test_the_doctor_says_what_is_wrong_and_what_to_do(person: Person) -> None:
    person.subscribers[0] = 0
    person.functions.names.remove("EcsGpuRecoveryStack-RecoverySweeper")
    person.world.cloud.control.ssm_agent("n1", False)
    person.world.cloud.control.add_node(name="cpu", cluster="gpus", gpus=0)
    person("doctor").tells(
        "FAIL  messages",
        "aws sns subscribe --topic-arn",
        "not there: EcsGpuRecoveryStack-RecoverySweeper",
        "SSM does not reach mi-",
        "AmazonSSMManagedInstanceCore",
        "no GPUs registered: i-",
        code=1,
    )


def test_the_doctor_says_that_a_check_of_ones_own_cannot_be_started_with_its_role(person: Person) -> None:
    role = "arn:aws:iam::123456789012:role/checks"
    person.world.cloud.client("ecs").register_task_definition(
        family="my-check", executionRoleArn=role, containerDefinitions=[{"name": "check", "image": "check"}]
    )
    person.functions.environment["DCGM_HEALTH_CHECK_TASK"] = "my-check:1"
    person("doctor").tells(f"add to TASK_ROLE_ARNS: {role}", code=1)
    person.functions.environment["TASK_ROLE_ARNS"] = role
    assert person("doctor").code == 0


@pytest.mark.parametrize("tags", [{}, {"GpuRecovery": "others"}, {"GpuRecovery": "gpus"}])
@pytest.mark.parametrize("passed_on", [False, True])
def test_the_doctor_says_whether_a_replaced_machine_would_become_a_node(
    person: Person, tags: dict[str, str], passed_on: bool
) -> None:
    control = person.world.cloud.control
    control.knobs(passes_tags_on=passed_on)
    assert "replacements" not in person("doctor").out, "nobody allowed it"
    person.functions.environment["REPAIR_RUNGS"] = "reboot,replace"
    assert "replacements" not in person("doctor").out, "the node is in no group"
    control.add_node(name="other", cluster="others")
    control.put_in_group("other", "another cluster's")
    control.put_in_group("n0", "my gpus")
    control.tag_host("n0", tags)
    if passed_on and tags == {"GpuRecovery": "gpus"}:
        person("doctor").tells("ok    replacements     my gpus: new machines get the tag GpuRecovery=gpus")
        return
    told = person("doctor")
    has_it = tags == {"GpuRecovery": "gpus"}
    lacks = "does not pass its tag GpuRecovery=gpus on" if has_it else "carries no tag GpuRecovery=gpus"
    told.tells(
        f"FAIL  replacements     my gpus {lacks}",
        "aws autoscaling create-or-update-tags --tags 'ResourceId=my gpus,",
        "Key=GpuRecovery,Value=gpus,PropagateAtLaunch=true'",
        code=1,
    )
    assert "another cluster's" not in told.out


def test_the_doctor_says_that_it_may_not_look_at_groups_and_looks_at_the_rest(person: Person) -> None:
    person.functions.environment["REPAIR_RUNGS"] = "reboot,replace"
    person.world.cloud.control.fail_call(action="DescribeAutoScalingGroups", code="AccessDenied", status=403)
    checks = {check["name"]: check for check in person("doctor", "--json").data["checks"]}
    (wrong,) = [check for check in checks.values() if not check["ok"]]
    assert wrong["name"] == "replacements"
    assert "you are not allowed to do this (DescribeAutoScalingGroups)" in wrong["found"]
    assert {"cluster", "reboots", "functions"} <= set(checks)


def test_the_doctor_says_that_nobody_gives_permits(person: Person) -> None:
    del person.functions.environment["GUARD_TABLE_NAME"]
    person("doctor").tells("nodes are rebooted without any", code=1)


@pytest.mark.parametrize(
    ("variables", "word"),
    [
        ({"JOB_TABLE_NAME": "elsewhere"}, "a table is missing in us-east-1 (elsewhere)"),
        ({"ECS_CLUSTER_NAME": "none"}, "there is no ECS cluster 'none'"),
        ({"DCGM_HEALTH_CHECK_TASK": "none:1"}, "there is no task definition none:1"),
        ({"STACK_NAME": "Other"}, "no stack Other was found in us-east-1"),
        ({"MAX_RETRIES": "many"}, "MAX_RETRIES='many': use a whole number"),
    ],
)
def test_the_doctor_names_each_missing_part(
    person: Person, variables: dict[str, str], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    person("doctor").tells(word, code=1)


def test_the_doctor_says_in_one_line_that_no_check_can_start_without_its_image(person: Person) -> None:
    person.deploy_own_image()
    told = person("doctor")
    assert told.code == 1
    (line,) = [line for line in told.out.splitlines() if "image" in line and line.startswith("FAIL")]
    assert "ecs-gpu-recovery:latest is not there, so no check can start" in line
    assert "aws codebuild start-build --project-name EcsGpuRecoveryStack-image" in told.out
    person.images.append("latest")
    assert person("doctor").code == 0


# -- events --------------------------------------------------------------------------------------------------


def test_an_event_is_judged_by_the_policy_and_the_cluster_of_the_deployment(person: Person) -> None:
    event = json.dumps(stopped(container(77), env=TRAIN))
    person.functions.environment |= {"HEALTHCHECK_EXIT_CODES": "77", "ECS_CLUSTER_NAME": "gpu"}
    told = person("explain-event", "-", "--json", stdin=event).data
    assert (told["ours"], told["exit"]["meaning"]) == (True, "suspect")
    assert told["policy_from"] == "the stack EcsGpuRecoveryStack"
    person.functions.environment["ECS_CLUSTER_NAME"] = "another"
    assert person("explain-event", "-", "--json", stdin=event).data["ours"] is False
    assert {call for call in person.mine if not call.startswith("lambda:")} == set(), "it only asks once"
