"""The stack on a local AWS, and a job there: what a test does to it, and what it finds in tables, logs and on nodes."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ecs_gpu_recovery.core.model import Job, JobStatus
from testbed.aws.deployment import STACK, Deployment, People
from testbed.aws.server import Server, serve
from tools.node import CDK

ROOT = Path(__file__).resolve().parents[2]
TICK = {"source": "aws.scheduler", "detail-type": "Scheduled Event", "time": "2026-11-15T03:00:00Z"}


@contextlib.contextmanager
def strict_aws(python: Path) -> Iterator[Server]:
    """One that checks permissions, for a stack that the CDK command deploys."""
    brought = subprocess.run([sys.executable, "-m", "tools.node"], cwd=ROOT, capture_output=True, text=True)
    if not CDK.exists():
        pytest.skip(f"there is no CDK command: {brought.stderr}")
    with serve(python, auth=True) as server:
        yield server


def deployed(server: Server, folder: Path, settings: dict[str, str], *, bootstrap: bool = True) -> Deployment:
    """`bootstrap`: it is the first of its account."""
    made = Deployment(server, root=ROOT, folder=folder, settings=settings)
    if bootstrap:
        made.bootstrap()
    made.deploy()
    return made


def sweep(stack: Deployment, function: str = "RecoverySweeperFunction") -> bytes:
    """A minute is over, for this function."""
    reply = stack.server.client("lambda").invoke(
        FunctionName=stack.outputs[function], Payload=json.dumps(TICK)
    )
    answer: bytes = reply["Payload"].read()
    return answer


def hasten(people: People, holds: Callable[[], Any], told: Callable[[], str]) -> Any:
    """Wait until it holds. A minute is over sooner here."""
    for _ in range(80):
        with contextlib.suppress(TimeoutError):
            return people.server.wait_for(holds, seconds=3, every=0.1)
        sweep(people.stack)
    raise TimeoutError(f"it did not come true: {told()}")


def kept(people: People, node: str) -> list[dict[str, Any]]:
    """What lies in the bucket of this node."""
    bucket, s3 = people.stack.outputs["EvidenceBucket"], people.server.client("s3")
    return list(s3.list_objects_v2(Bucket=bucket, Prefix=f"evidence/{node}/").get("Contents", []))


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

    def tasks(self, kind: str = "train") -> list[dict[str, Any]]:
        """Of the job, on the cluster."""
        found: list[dict[str, Any]] = self.server.control(
            "tasks", env={"JOB_ID": self.name, "GPU_RECOVERY_KIND": kind}
        )
        return found

    def runs(self, attempt: int) -> bool:
        """The functions have seen every rank of the attempt run."""
        job = self.job()
        seen = job.status is JobStatus.IN_PROGRESS and job.attempt == attempt
        return seen and all(rank.task_id and rank.deadline is None for rank in job.ranks)

    def history(self) -> str:
        """For whoever must find out what went wrong."""
        job = self.job()
        return "\n".join((f"{self.name}: {job.status}", *map(str, job.ranks), *map(str, job.timeline)))

    def wait_for(self, holds: Callable[[], Any]) -> Any:
        """What ends only with the next minute's sweep is swept a little sooner."""
        return hasten(self.people, holds, self.history)

    def wait_until_it_runs(self, attempt: int = 0) -> None:
        self.wait_for(lambda: self.runs(attempt))

    def exit(self, rank: int, code: int) -> None:
        assert self.server.control("exit_task", task=self.job().ranks[rank].task_id, exit_code=code)

    def complete(self, attempt: int = 0) -> None:
        """Once all ranks of the attempt run, they end well."""
        self.wait_until_it_runs(attempt)
        for rank in range(len(self.nodes)):
            self.exit(rank, 0)

    def end(self) -> Job:
        """Final, with nothing left to send."""

        def over() -> bool:
            job = self.job()
            return job.status.final and not job.outbox

        self.wait_for(over)
        return self.job()

    def boots(self) -> list[int]:
        return [self.server.control("node", node=name)["boots"] for name in self.nodes]

    def told(self) -> list[str]:
        """Messages that are about it or its nodes. Its name may be a word that others use too."""
        mine = re.compile(rf"\bJob {re.escape(self.name)}\b|\b{re.escape(self.name)}-\d")
        return [m["Message"] for m in self.people.told() if mine.search(m["Subject"] + "\n" + m["Message"])]

    def incidents(self) -> list[dict[str, Any]]:
        return [told for told in self.people.incidents() if told["job"] == self.name]


def begin(people: People, nodes: dict[str, int]) -> list[Story]:
    """Jobs beside each other, by name, each on so many nodes of its own. They run."""
    stories = [Story(people, name, tuple(f"{name}-{i}" for i in range(size))) for name, size in nodes.items()]
    people.add_nodes([node for story in stories for node in story.nodes])
    for story in stories:
        people.submit(story.name, story.nodes)
    for story in stories:
        story.wait_until_it_runs()
    return stories


@dataclass(frozen=True)
class Gang:
    """Which rank fails, which nodes are bad, and which node's check answers first, second, …"""

    fails: int
    bad: frozenset[int]
    order: tuple[int, ...]


def recover_together(people: People, gangs: list[Gang]) -> None:
    """Each is healed by rebooting its bad nodes and no other. Every verdict is written before the next is given."""
    size = len(gangs[0].order)
    name = f"gang-{size}-{uuid.uuid4().hex[:4]}"
    stories = begin(people, {f"{name}-{number}": size for number in range(len(gangs))})
    for story, gang in zip(stories, gangs, strict=True):
        for node in story.nodes:  # its first check lasts until it is told what to find
            story.server.control("script", node=node, env={"GPU_RECOVERY_KIND": "check"})
        story.exit(gang.fails, 1)
    for place in range(size):
        for story, gang in zip(stories, gangs, strict=True):
            _answer(story, gang.order[place], int(gang.order[place] in gang.bad))
    for story, gang in zip(stories, gangs, strict=True):
        story.complete(attempt=1)
        assert story.end().status is JobStatus.COMPLETE, story.history()
        assert story.boots() == [1 + (index in gang.bad) for index in range(size)]
        check_records(story, JobStatus.COMPLETE, attempt=1, nodes=("AVAILABLE",) * size)
        assert story.told() == []


def _answer(story: Story, index: int, verdict: int) -> None:
    """The check on this node ends so, and the functions have heard it."""

    def running() -> list[dict[str, Any]]:
        checks = [task for task in story.tasks("check") if task["node"] == story.nodes[index]]
        return [task for task in checks if task["lastStatus"] == "RUNNING"]

    (check,) = story.wait_for(running)
    assert story.server.control("exit_task", task=check["taskArn"], exit_code=verdict)
    story.wait_for(lambda: story.job().ranks[index].verdict is not None)


def check_records(
    story: Story, status: JobStatus, *, attempt: int, nodes: tuple[str, ...], disbelieved: str = ""
) -> None:
    """The three tables, read as any other tool would. A node that restarted by itself told a false success."""
    story.wait_for(lambda: not story.job().owed)  # rows may follow their record by a moment
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
        told_falsely = task["node"] == disbelieved and item["retry"]["S"] == "0"
        ended_well = task["containers"][0]["exitCode"] == 0 and not told_falsely
        assert item["task_status"]["S"] == ("COMPLETE" if ended_well else "TERMINATED")


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
