"""Two deployments in one account, made as the guide says: neither hears the other's nodes, jobs or messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ecs_gpu_recovery.core.model import JobStatus
from testbed.aws.deployment import Deployment, People
from tests.infra.deployed import Story, complaints, deployed, strict_aws

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "deployment.md"
#: Nodes are used as soon as they are there.
QUICK = {"ADMISSION_CHECK": "false"}
pytestmark = [pytest.mark.ministack, pytest.mark.slow]


def own_names() -> list[str]:
    """The settings that the guide says a second stack needs."""
    row = next(
        line for line in GUIDE.read_text(encoding="utf-8").splitlines() if "needs another stack" in line
    )
    return re.findall(r"`(\w+)`", row)


@pytest.fixture(scope="module")
def both(ministack_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[People]]:
    second = {name: f"second-{name.lower().replace('_', '-')}" for name in own_names()}
    with strict_aws(ministack_python) as server:
        first = deployed(server, tmp_path_factory.mktemp("stack"), QUICK)
        other = deployed(server, tmp_path_factory.mktemp("stack"), second | QUICK, bootstrap=False)
        yield [People(first), People(other)]


def physical_names(stack: Deployment) -> set[tuple[str, str]]:
    """What is called by a name of its own, which another of its kind in the account can't have."""
    template = json.loads((stack.folder / "cdk.out" / "EcsGpuRecoveryStack.template.json").read_text())
    found = set()
    for resource in template["Resources"].values():
        kind, properties = resource["Type"], resource.get("Properties", {})
        if kind == "AWS::IAM::Policy":  # a part of its role
            continue
        own = kind.rpartition("::")[2]
        for key in (f"{own}Name", "Name", "Family", "RoleName", "FunctionName"):
            if isinstance(properties.get(key), str):
                found.add((kind, properties[key]))
    return found


def test_no_name_is_taken_twice(both: list[People]) -> None:
    first, second = (physical_names(people.stack) for people in both)
    assert len(first) == len(second) > 15
    assert first & second == set()


def test_each_heals_its_own_job_and_hears_nothing_of_the_other_s(both: list[People]) -> None:
    """Both jobs have the same name."""
    mine, theirs = (
        Story(people, "same", (f"{people.stack.name}-0", f"{people.stack.name}-1")) for people in both
    )
    for story in (mine, theirs):
        story.people.add_nodes(story.nodes)
        story.people.submit(story.name, story.nodes)
        story.wait_until_it_runs()
    assert mine.job().cluster != theirs.job().cluster
    break_one(mine, verdict=1)
    mine.complete(attempt=1)
    assert mine.end().status is JobStatus.COMPLETE
    assert (mine.boots(), theirs.boots()) == ([1, 2], [1, 1])
    assert (theirs.job().status, theirs.job().attempt) == (JobStatus.IN_PROGRESS, 0)
    break_one(theirs, verdict=0)
    assert theirs.end().status is JobStatus.FAILED
    theirs.server.wait_for(theirs.told)
    theirs.server.wait_for(theirs.incidents)
    assert (mine.told(), mine.incidents()) == ([], [])
    assert mine.job().status is JobStatus.COMPLETE
    for people in both:
        assert complaints(people.stack) == []
        assert letters(people) == 0
    assert touched(both[0], "second") == touched(both[1], "EcsGpuRecoveryStack") == set()


def break_one(story: Story, verdict: int) -> None:
    story.server.control("health", node=story.nodes[1], verdict=verdict)
    story.exit(1, 1)


def letters(people: People) -> int:
    url = people.stack.outputs["DeadLetterQueueUrl"]
    about = people.server.client("sqs").get_queue_attributes(
        QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"]
    )
    return int(about["Attributes"]["ApproximateNumberOfMessages"])


def touched(people: People, others: str) -> set[Any]:
    """What the functions of one stack asked for that bears the other's name."""
    rows = people.server.control("rights")
    own = [row for row in rows if f":assumed-role/{people.stack.name}" in row["who"]]
    assert own, "its functions did something"
    return {(row["action"], row["resource"]) for row in own if others in row["resource"]}
