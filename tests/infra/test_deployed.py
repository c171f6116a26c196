"""The stack on a local AWS that checks permissions: deployed with the CDK command, verified with the AWS command, put
through what happens to jobs, and destroyed. The functions run under the roles that were deployed.
"""

from __future__ import annotations

import json
import random
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ecs_gpu_recovery.core.model import JobStatus
from testbed.aws.deployment import CLUSTER, STACK, Deployment, People
from tests.infra.deployed import (
    TICK,
    Gang,
    Story,
    begin,
    check_records,
    complaints,
    deployed,
    forget,
    kept,
    recover_together,
    strict_aws,
    sweep,
)

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "deployment.md"
FUNCTIONS = ("EcsTaskHandler", "DcgmTaskMonitor", "EcsInstanceMonitor", "RecoverySweeper")
pytestmark = pytest.mark.ministack


@pytest.fixture(scope="module")
def stack(ministack_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One AWS and one deployment for all that follows. The last test destroys it."""
    # Stories run side by side, on nodes that they add and use at once.
    settings = {"FREEZE_NODES": "1000", "ADMISSION_CHECK": "false"}
    with strict_aws(ministack_python) as server:
        yield deployed(server, tmp_path_factory.mktemp("deployed"), settings)


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
    answer = tmp_path / "answer.json"
    name = stack.outputs["RecoverySweeperFunction"]
    told = stack.aws("lambda", "invoke", "--function-name", name, "--payload", json.dumps(TICK), str(answer))
    assert "FunctionError" not in told
    assert json.loads(answer.read_text())["taken"] is True


def test_a_function_is_refused_what_is_not_its_business(stack: Deployment) -> None:
    assert b"not authorized to perform: dynamodb:Query" in sweep(stack, "DcgmTaskMonitorFunction")
    for function in FUNCTIONS:
        forget(stack, function)
    stack.server.control("forget_calls")


# -- what happens to jobs --------------------------------------------------------------------------------------


@pytest.fixture
def story(people: People, request: pytest.FixtureRequest) -> Iterator[Story]:
    """A job that runs on two nodes: an EC2 instance, and a machine of ECS Anywhere."""
    name = re.sub(r"\W+", "-", request.node.name.removeprefix("test_"))[:28].strip("-")
    (made,) = begin(people, {name: 2})
    yield made
    assert complaints(people.stack) == [], "\n".join(map(str, made.job().timeline))
    left = [task for task in made.tasks() if task["lastStatus"] != "STOPPED"]
    assert left == []


def test_a_gpu_fault_is_healed_with_one_reboot(story: Story) -> None:
    story.server.control("health", node=story.nodes[1], verdict=1)
    story.exit(0, 1)
    story.complete(attempt=1)
    assert story.end().status is JobStatus.COMPLETE
    assert story.boots() == [1, 2]
    assert len(story.server.control("node", node=story.nodes[1])["reboot_keys"]) == 1
    (ordered,) = [entry for entry in story.job().timeline if entry.after == "REBOOTING"]
    assert "Xid 79" in ordered.evidence, "the check's own report says why"
    (archive,) = story.server.wait_for(lambda: kept(story.people, story.nodes[1]))
    assert archive["Size"] > 0
    check_records(story, JobStatus.COMPLETE, attempt=1, nodes=("AVAILABLE", "AVAILABLE"))
    assert story.told() == []


def test_healthy_gpus_fail_the_job_without_a_reboot(story: Story) -> None:
    story.exit(1, 1)
    assert story.end().status is JobStatus.FAILED
    assert story.boots() == [1, 1]
    check_records(story, JobStatus.FAILED, attempt=0, nodes=("AVAILABLE", "AVAILABLE"))
    (message,) = story.server.wait_for(story.told)
    assert "no GPU fault" in message
    (incident,) = story.server.wait_for(story.incidents)
    assert (incident["owner"], incident["thread"]) == ("ann", f"job/{story.name}")
    again = Story(story.people, f"{story.name}-2", story.nodes)
    again.people.submit(again.name, again.nodes, retry_of=story.name)
    opened, resolved = story.server.wait_for(lambda: story.incidents()[1:] and story.incidents())
    assert (opened["status"], resolved["status"]) == ("open", "resolved")
    assert opened["key"] == resolved["key"], "a pager closes what it has opened"
    again.complete()
    assert again.end().status is JobStatus.COMPLETE


def test_a_fault_that_a_reboot_does_not_cure_fails_the_gate_and_is_left_to_people(story: Story) -> None:
    story.server.control("next_reboot", node=story.nodes[0], cures=False)
    story.server.control("health", node=story.nodes[0], verdict=1)
    story.exit(0, 1)
    assert story.end().status is JobStatus.FAILED
    assert story.boots() == [2, 1]
    check_records(story, JobStatus.FAILED, attempt=1, nodes=("FAILED", "AVAILABLE"))
    assert len(story.server.wait_for(story.told)) == 1


def test_a_job_completes(story: Story) -> None:
    story.complete()
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


# -- many at once ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Night:
    """Something that happens to a running job of two nodes, and its end."""

    happens: Callable[[Story], object]
    status: JobStatus = JobStatus.FAILED
    attempt: int = 0
    boots: tuple[int, int] = (1, 1)
    last: str = "AVAILABLE"  #: how the second node ends
    told: int = 1


def _check_says(*codes: int) -> Callable[[Story], object]:
    """The first rank fails; the checks of the second node exit so, one after the other."""

    def happens(story: Story) -> None:
        story.server.control("verdicts", node=story.nodes[1], codes=list(codes))
        story.exit(0, 1)

    return happens


def _out_of_memory(story: Story) -> None:
    assert story.server.control("kill_for_memory", task=story.job().ranks[1].task_id, exit_code=1)


def _reboot_script_fails(story: Story) -> None:
    story.server.control("script_result", node=story.nodes[1], exit_code=1, stderr="read-only file system")
    _check_says(1)(story)


def _one_is_done_before(story: Story) -> None:
    story.exit(0, 0)
    story.wait_for(lambda: story.job().ranks[0].ended)
    story.server.control("health", node=story.nodes[1], verdict=1)
    story.exit(1, 1)


def _host_restarts(story: Story) -> None:
    """Under its task, and the container runtime calls that exit code 0.

    It takes longer than the news of it: an end that overtakes its own restart would be believed.
    """
    story.server.control("next_reboot", node=story.nodes[1], exit_code=0, returns=False)
    assert story.server.control("reboot", node=story.nodes[1])
    story.wait_for(lambda: story.job().ranks[1].doubted)
    story.server.control("power_on", node=story.nodes[1])


NIGHTS = {
    "beyond-repair": Night(_check_says(2), last="FAILED"),
    "inconclusive": Night(_check_says(3, 3)),
    "bad-at-second-look": Night(_check_says(3, 1), JobStatus.COMPLETE, 1, (1, 2), told=0),
    "out-of-memory": Night(_out_of_memory),
    "other-exit-code": Night(lambda story: story.exit(1, 2)),
    "reboot-script-fails": Night(_reboot_script_fails, attempt=1, last="FAILED"),
    "one-done-before": Night(_one_is_done_before, JobStatus.COMPLETE, 1, (1, 2), told=0),
    "host-restarts": Night(_host_restarts, JobStatus.COMPLETE, 1, (1, 2), told=0),
}


@pytest.mark.slow
def test_whatever_else_happens_to_a_job_ends_as_it_must(people: People) -> None:
    """Eight jobs beside each other, so that none can spoil another's recovery either."""
    stories = begin(people, dict.fromkeys(NIGHTS, 2))
    for story in stories:
        NIGHTS[story.name].happens(story)
    for story in stories:
        night = NIGHTS[story.name]
        if night.status is JobStatus.COMPLETE and night.attempt:
            story.complete(night.attempt)
        assert story.end().status is night.status, story.history()
        assert tuple(story.boots()) == night.boots, story.name
        check_records(
            story,
            night.status,
            attempt=night.attempt,
            nodes=("AVAILABLE", night.last),
            disbelieved="host-restarts-1",
        )
        assert len(story.told()) == night.told, story.name
    assert complaints(people.stack) == []


@pytest.mark.slow
def test_of_two_nodes_whichever_fails_is_bad_or_answers_first(people: People) -> None:
    ranks = (0, 1)
    orders = ((0, 1), (1, 0))
    recover_together(people, [Gang(f, frozenset({b}), o) for f in ranks for b in ranks for o in orders])
    assert complaints(people.stack) == []


def drawn(size: int, seed: int, *, bad: int = 1) -> Gang:
    """Over all seeds below the size, each rank fails once, and each node is the first bad one once."""
    chance = random.Random(seed)
    nodes = [(7 * seed + 3) % size, *chance.sample(range(size), bad - 1)]
    return Gang(seed % size, frozenset(nodes), tuple(chance.sample(range(size), size)))


@pytest.mark.slow
def test_gangs_of_8_and_32_recover(people: People) -> None:
    recover_together(people, [drawn(8, 6, bad=3)])
    recover_together(people, [drawn(32, 5, bad=2)])
    assert complaints(people.stack) == []


@pytest.mark.slow
def test_of_8_nodes_whichever_fails_and_whichever_is_bad(people: People) -> None:
    for first in range(0, 8, 4):
        recover_together(people, [drawn(8, seed) for seed in range(first, first + 4)])
    assert complaints(people.stack) == []


# -- afterwards ------------------------------------------------------------------------------------------------


def test_every_function_did_its_part_under_its_own_role(stack: Deployment) -> None:
    """Whoever reads the rights that were asked for sees four roles, none of them an administrator's."""

    def asked() -> list[dict[str, str]]:
        rows = [row for row in stack.server.control("rights") if ":assumed-role/" in row["who"]]
        return rows if all(any(name in row["who"] for row in rows) for name in FUNCTIONS) else []

    sweep(stack)  # as the schedule does once a minute; all else may be over before it comes to that
    rows = stack.server.wait_for(asked, seconds=180)
    rebooted = {
        row["resource"].rpartition("/")[0].rpartition(":")[2] for row in rows if "Send" in row["action"]
    }
    assert rebooted == {"document", "instance", "managed-instance"}
    assert any(row["action"] == "iam:PassRole" for row in rows)


def test_a_machine_without_the_tag_is_not_rebooted(people: People) -> None:
    """Whatever the code asks for: the role does not allow it."""
    (story,) = begin(people, {"untagged": 1})
    story.server.control("tag_host", node=story.nodes[0], tags={})
    story.server.control("health", node=story.nodes[0], verdict=1)
    story.exit(0, 1)

    def refused() -> list[dict[str, Any]]:
        rows = story.server.control("rights")
        return [row for row in rows if row["action"] == "ssm:SendCommand" and not row["allowed"]]

    (row, *_) = story.wait_for(refused)
    assert row["resource"].endswith(story.server.control("node", node=story.nodes[0])["host_id"])
    assert story.boots() == [1]
    people.stop("untagged", "it can't be healed")


@pytest.mark.slow
def test_a_destroyed_stack_leaves_its_records_and_the_next_takes_them_over(stack: Deployment) -> None:
    """The last one: what is left afterwards is a fresh deployment with the records of the one before."""
    db, ask = stack.server.client("dynamodb"), stack.server.client

    def jobs() -> set[str]:
        return {item["job_id"]["S"] for item in db.scan(TableName="ecs_job", ConsistentRead=True)["Items"]}

    before = jobs()
    assert before
    stack.destroy()
    assert set(db.list_tables()["TableNames"]) == {"ecs_job", "ecs_node", "ecs_task", f"{STACK}-guard"}
    groups = ask("logs").describe_log_groups(logGroupNamePrefix="/gpu-recovery/")["logGroups"]
    assert [group["logGroupName"] for group in groups] == [f"/gpu-recovery/{STACK}/timeline"]
    assert ask("lambda").list_functions()["Functions"] == []
    rules = {rule["Name"] for rule in ask("events").list_rules()["Rules"]}
    assert rules <= {f"{STACK}-pager"}, "but for the one that people made by themselves"
    assert stack.outputs["NotificationTopicArn"] not in str(ask("sns").list_topics()["Topics"])
    left = ask("cloudformation").list_stacks(StackStatusFilter=["CREATE_COMPLETE"])["StackSummaries"]
    assert [one["StackName"] for one in left] == ["CDKToolkit"]
    stack.deploy("--import-existing-resources")
    assert jobs() == before
    assert stack.outputs["JobTable"] == "ecs_job"
