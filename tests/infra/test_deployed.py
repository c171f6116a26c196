"""The stack on a local AWS that checks permissions: deployed with the CDK command, verified with the AWS command, put
through what happens to jobs, and destroyed. The functions run under the roles that were deployed.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ecs_gpu_recovery.core.model import Job, JobStatus
from ecs_gpu_recovery.testing.aws.deployment import CLUSTER, STACK, Deployment, People
from ecs_gpu_recovery.testing.aws.server import serve
from tools import node

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "deployment.md"
FUNCTIONS = ("EcsTaskHandler", "DcgmTaskMonitor", "EcsInstanceMonitor", "RecoverySweeper")
pytestmark = pytest.mark.ministack


@pytest.fixture(scope="module")
def stack(ministack_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One AWS and one deployment for all that follows. The last test destroys it."""
    brought = subprocess.run([sys.executable, "-m", "tools.node"], cwd=ROOT, capture_output=True, text=True)
    if not node.CDK.exists():
        pytest.skip(f"there is no CDK command: {brought.stderr}")
    with serve(ministack_python, auth=True) as server:
        made = Deployment(server, root=ROOT, folder=tmp_path_factory.mktemp("deployed"))
        made.bootstrap()
        made.deploy()
        yield made


@pytest.fixture(scope="module")
def people(stack: Deployment) -> People:
    return People(stack)


# -- as the guide says -----------------------------------------------------------------------------------------


def steps() -> list[list[str]]:
    """The commands of the guide's verification, as they stand there."""
    section = GUIDE.read_text(encoding="utf-8").partition("\n## Verify\n")[2].partition("\n## ")[0]
    block = re.search(r"```bash\n(.*?)```", section, re.DOTALL)
    assert block, "the guide has no commands under Verify"
    return [shlex.split(line) for line in block[1].splitlines() if line and not line.startswith("#")]


def test_the_five_steps_of_the_guide_find_what_it_says(stack: Deployment) -> None:
    answers = {tuple(words[1:3]): stack.aws(*words[1:]) for words in steps()}
    assert len(answers) == 5
    (found,) = answers["cloudformation", "describe-stacks"]["Stacks"]
    assert (found["StackName"], found["StackStatus"]) == (STACK, "CREATE_COMPLETE")
    assert set(answers["dynamodb", "list-tables"]["TableNames"]) >= {"ecs_task", "ecs_job", "ecs_node"}
    names = {one["FunctionName"] for one in answers["lambda", "list-functions"]["Functions"]}
    assert names == {f"{STACK}-{function}" for function in FUNCTIONS}
    rules = answers["events", "list-rules"]["Rules"]
    assert {"aws.ecs", "aws.ssm"} <= {source for rule in rules for source in _sources(rule)}
    assert {rule["State"] for rule in rules} == {"ENABLED"}
    topics = {one["TopicArn"] for one in answers["sns", "list-topics"]["Topics"]}
    assert stack.outputs["NotificationTopicArn"] in topics


def _sources(rule: dict[str, Any]) -> list[str]:
    found: list[str] = json.loads(rule["EventPattern"])["source"]
    return found


def test_the_sweeper_answers_whoever_calls_it(stack: Deployment, tmp_path: Path) -> None:
    tick = {"source": "aws.scheduler", "detail-type": "Scheduled Event", "time": "2026-11-15T03:00:00Z"}
    answer = tmp_path / "answer.json"
    name = stack.outputs["RecoverySweeperFunction"]
    told = stack.aws("lambda", "invoke", "--function-name", name, "--payload", json.dumps(tick), str(answer))
    assert "FunctionError" not in told
    assert json.loads(answer.read_text())["taken"] is True


def test_a_function_is_refused_what_is_not_its_business(stack: Deployment) -> None:
    tick = {"source": "aws.scheduler", "detail-type": "Scheduled Event", "time": "2026-11-15T03:00:00Z"}
    reply = stack.server.client("lambda").invoke(
        FunctionName=stack.outputs["DcgmTaskMonitorFunction"], Payload=json.dumps({"version": "0", **tick})
    )
    assert b"not authorized to perform: dynamodb:Query" in reply["Payload"].read()
    for function in FUNCTIONS:
        forget(stack, function)
    stack.server.control("forget_calls")


# -- what happens to jobs --------------------------------------------------------------------------------------


@dataclass
class Story:
    """One job on nodes of its own."""

    people: People
    name: str
    nodes: tuple[str, ...]

    @property
    def server(self) -> Any:
        return self.people.server

    def job(self) -> Job:
        return self.people.job(self.name)

    def tasks(self) -> list[dict[str, Any]]:
        """Of the job's training, on the cluster."""
        found = [task for task in self.server.control("tasks") if task["env"].get("JOB_ID") == self.name]
        return [task for task in found if task["env"]["GPU_RECOVERY_KIND"] == "train"]

    def runs(self, attempt: int) -> bool:
        """The functions have seen every rank of the attempt run."""
        job = self.job()
        seen = job.status is JobStatus.IN_PROGRESS and job.attempt == attempt
        return seen and all(rank.task_id and rank.deadline is None for rank in job.ranks)

    def wait_until_it_runs(self, attempt: int = 0) -> None:
        self.server.wait_for(lambda: self.runs(attempt), seconds=240)

    def exit(self, rank: int, code: int) -> None:
        assert self.server.control("exit_task", task=self.job().ranks[rank].task_id, exit_code=code)

    def end(self) -> Job:
        """Final, with nothing left to send."""

        def over() -> bool:
            job = self.job()
            return job.status.final and not job.outbox

        self.server.wait_for(over, seconds=240)
        return self.job()

    def boots(self) -> list[int]:
        return [self.server.control("node", node=name)["boots"] for name in self.nodes]

    def told(self) -> list[str]:
        return [m["Message"] for m in self.people.told() if self.name in m["Subject"] + m["Message"]]


@pytest.fixture
def story(people: People, request: pytest.FixtureRequest) -> Iterator[Story]:
    """A job that runs on two nodes: an EC2 instance, and a machine of ECS Anywhere."""
    name = re.sub(r"\W+", "-", request.node.name.removeprefix("test_"))[:28].strip("-")
    nodes = (f"{name}-0", f"{name}-1")
    people.add_nodes(nodes)
    made = Story(people, name, nodes)
    people.submit(name, nodes)
    made.wait_until_it_runs()
    yield made
    assert complaints(people.stack) == [], "\n".join(map(str, made.job().timeline))
    left = [task for task in made.tasks() if task["lastStatus"] != "STOPPED"]
    assert left == []


def check_records(story: Story, status: JobStatus, *, attempt: int, nodes: tuple[str, ...]) -> None:
    """The three tables, read as any other tool would."""
    db = story.server.client("dynamodb")
    row = db.get_item(TableName="ecs_job", Key={"job_id": {"S": story.name}}, ConsistentRead=True)["Item"]
    assert (row["job_status"]["S"], row["retry"]["S"]) == (status, str(attempt))
    found = []
    for name in story.nodes:
        item = db.get_item(TableName="ecs_node", Key={"node_name": {"S": name}}, ConsistentRead=True)["Item"]
        assert item.get("job_id", {"S": ""})["S"] == "", "a job that ended holds no node"
        found.append(item["node_status"]["S"])
    assert tuple(found) == nodes
    for task in story.tasks():
        task_id = task["taskArn"].rpartition("/")[2]
        item = db.get_item(TableName="ecs_task", Key={"ecs_task_id": {"S": task_id}})["Item"]
        assert item["job_id"]["S"] == story.name
        assert item["retry"]["S"] == task["env"]["JOB_ATTEMPT"]
        ended_well = task["containers"][0]["exitCode"] == 0
        assert item["task_status"]["S"] == ("COMPLETE" if ended_well else "TERMINATED")


def test_a_gpu_fault_is_healed_with_one_reboot(story: Story) -> None:
    story.server.control("health", node=story.nodes[1], verdict=1)
    story.exit(0, 1)
    story.wait_until_it_runs(attempt=1)
    for rank in (0, 1):
        story.exit(rank, 0)
    assert story.end().status is JobStatus.COMPLETE
    assert story.boots() == [1, 2]
    assert len(story.server.control("node", node=story.nodes[1])["reboot_keys"]) == 1
    check_records(story, JobStatus.COMPLETE, attempt=1, nodes=("AVAILABLE", "AVAILABLE"))
    assert story.told() == []


def test_healthy_gpus_fail_the_job_without_a_reboot(story: Story) -> None:
    story.exit(1, 1)
    assert story.end().status is JobStatus.FAILED
    assert story.boots() == [1, 1]
    check_records(story, JobStatus.FAILED, attempt=0, nodes=("AVAILABLE", "AVAILABLE"))
    (message,) = story.server.wait_for(story.told)
    assert "no GPU fault" in message


def test_a_second_fault_after_the_restart_is_left_to_people(story: Story) -> None:
    story.server.control("next_reboot", node=story.nodes[0], cures=False)
    story.server.control("health", node=story.nodes[0], verdict=1)
    story.exit(0, 1)
    story.wait_until_it_runs(attempt=1)
    story.exit(0, 1)
    assert story.end().status is JobStatus.FAILED
    assert story.boots() == [2, 1]
    check_records(story, JobStatus.FAILED, attempt=1, nodes=("FAILED", "AVAILABLE"))
    assert len(story.server.wait_for(story.told)) == 1


def test_a_job_completes(story: Story) -> None:
    for rank in (0, 1):
        story.exit(rank, 0)
    assert story.end().status is JobStatus.COMPLETE
    check_records(story, JobStatus.COMPLETE, attempt=0, nodes=("AVAILABLE", "AVAILABLE"))
    assert story.told() == []


def test_a_person_stops_a_task_and_the_job_is_over(story: Story) -> None:
    task = story.job().ranks[1].task_id
    story.people.stack.aws("ecs", "stop-task", "--cluster", CLUSTER, "--task", task)
    assert story.end().status is JobStatus.USER_STOPPED
    assert story.boots() == [1, 1]
    check_records(story, JobStatus.USER_STOPPED, attempt=0, nodes=("AVAILABLE", "AVAILABLE"))
    assert story.told() == []


# -- afterwards ------------------------------------------------------------------------------------------------


def log_lines(stack: Deployment) -> Iterator[str]:
    logs = stack.server.client("logs")
    for group in logs.describe_log_groups(logGroupNamePrefix="/aws/lambda/")["logGroups"]:
        name = group["logGroupName"]
        for stream in logs.describe_log_streams(logGroupName=name)["logStreams"]:
            where = {"logGroupName": name, "logStreamName": stream["logStreamName"]}
            for event in logs.get_log_events(**where, startFromHead=True)["events"]:
                yield event["message"]


def forget(stack: Deployment, function: str) -> None:
    """What a test made a function complain about on purpose."""
    logs, group = stack.server.client("logs"), f"/aws/lambda/{STACK}-{function}"
    for stream in logs.describe_log_streams(logGroupName=group)["logStreams"]:
        logs.delete_log_stream(logGroupName=group, logStreamName=stream["logStreamName"])


def complaints(stack: Deployment) -> list[str]:
    """What the functions could not do: in their logs, and where rights are checked."""
    said = [line for line in log_lines(stack) if "denied" in line.lower() or "Traceback" in line]
    refused = [row for row in stack.server.control("rights") if not row["allowed"]]
    return said + [str(row) for row in refused]


def test_every_function_did_its_part_under_its_own_role(stack: Deployment) -> None:
    """Whoever reads the rights that were asked for sees four roles, none of them an administrator's."""

    def asked() -> list[dict[str, str]]:
        rows = [row for row in stack.server.control("rights") if ":assumed-role/" in row["who"]]
        return rows if all(any(name in row["who"] for row in rows) for name in FUNCTIONS) else []

    # The schedule calls the sweeper once a minute; all else may be over before it does.
    rows = stack.server.wait_for(asked, seconds=180)
    rebooted = {
        row["resource"].rpartition("/")[0].rpartition(":")[2] for row in rows if "Send" in row["action"]
    }
    assert rebooted == {"document", "instance", "managed-instance"}
    assert any(row["action"] == "iam:PassRole" for row in rows)


def test_destroying_the_stack_leaves_nothing_of_it(stack: Deployment) -> None:
    stack.destroy()
    ask = stack.server.client
    assert ask("dynamodb").list_tables()["TableNames"] == []
    assert ask("lambda").list_functions()["Functions"] == []
    assert ask("events").list_rules()["Rules"] == []
    assert stack.outputs["NotificationTopicArn"] not in str(ask("sns").list_topics()["Topics"])
    left = ask("cloudformation").list_stacks(StackStatusFilter=["CREATE_COMPLETE"])["StackSummaries"]
    assert [one["StackName"] for one in left] == ["CDKToolkit"]
