"""The functions through their real entry points: a whole recovery, and everything that is not an event of ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ecs_gpu_recovery.aws import reboot_document
from ecs_gpu_recovery.core.model import JobStatus
from ecs_gpu_recovery.settings import ConfigError
from testbed.aws.server import Server, serve
from tests.aws.strangers import STRANGERS
from tests.stories.arrivals import a_tick
from tests.stories.functions import HANDLERS, Deployment, deployed, fresh_process, handler
from tests.stories.malformed import NOT_EVENTS, one_of_each, spoiled

pytestmark = pytest.mark.ministack


@pytest.fixture(scope="module")
def server(ministack_python: Path) -> Iterator[Server]:
    with serve(ministack_python) as made:
        yield made


@pytest.fixture
def stack(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    with deployed(server, monkeypatch) as made:
        yield made


# -- how they start --------------------------------------------------------------------------------------------


def test_importing_the_functions_loads_no_client_library_and_reads_no_setting() -> None:
    code = "import sys\n" + "".join(f"import ecs_gpu_recovery.lambdas.{name}\n" for name in HANDLERS)
    code += "assert not {'boto3', 'botocore', 'aws_lambda_powertools'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={})


def test_the_first_call_says_everything_that_is_not_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ECS_CLUSTER_NAME", "DCGM_HEALTH_CHECK_TASK", "SNS_TOPIC_ARN"):
        monkeypatch.delenv(name, raising=False)
    with fresh_process(), pytest.raises(ConfigError) as error:
        handler("ecs_task_handler")(a_tick(), None)
    for name in ("ECS_CLUSTER_NAME", "DCGM_HEALTH_CHECK_TASK", "SNS_TOPIC_ARN"):
        assert name in str(error.value)


# -- a whole recovery ------------------------------------------------------------------------------------------


def test_a_gpu_fault_is_recovered_by_the_four_functions(stack: Deployment) -> None:
    server = stack.server
    stack.submit(["n0", "n1"])
    server.control("health", node="n1", verdict=1)

    def at(status: JobStatus, attempt: int) -> bool:
        stack.deliver()
        stack.tick()
        job = stack.job()
        return (job.status, job.attempt) == (status, attempt) and all(r.deadline is None for r in job.ranks)

    server.wait_for(lambda: at(JobStatus.IN_PROGRESS, 0))
    server.control("exit_task", task=stack.job().ranks[0].task_id, exit_code=1)
    server.wait_for(lambda: at(JobStatus.IN_PROGRESS, 1))
    for rank in stack.job().ranks:
        server.control("exit_task", task=rank.task_id, exit_code=0)
    server.wait_for(lambda: at(JobStatus.COMPLETE, 1))
    assert {row["node_status"] for row in stack.rows("NODE_TABLE_NAME").values()} == {"AVAILABLE"}
    assert (
        sorted(row["task_status"] for row in stack.rows("TASK_TABLE_NAME").values())
        == ["COMPLETE"] * 2 + ["TERMINATED"] * 2
    )
    assert stack.rows("JOB_TABLE_NAME")["j1"]["job_status"] == "COMPLETE"
    kinds = {answer["kind"] for answer in stack.answers if answer["taken"]}
    assert kinds == {"task", "check", "instance", "reboot-command"}


# -- what is not an event of ours ------------------------------------------------------------------------------


def test_what_is_no_event_is_answered_and_changes_nothing(stack: Deployment) -> None:
    for name in HANDLERS:
        for thing in NOT_EVENTS:
            answer = handler(name)(thing, None)
            assert not answer["taken"]
            assert answer["kind"] == "malformed"
            assert len(answer["why"]) > 10
    assert stack.rows("JOB_TABLE_NAME") == {}


def test_a_spoiled_event_never_raises(stack: Deployment) -> None:
    """A sample through the wire; `test_malformed` tries them all."""
    server = stack.server
    stack.submit(["n0", "n1"])
    server.wait_for(lambda: (stack.deliver(), all(r.deadline is None for r in stack.job().ranks))[1])
    server.control("impair", node="n1")
    host = server.control("node", node="n1")["host_id"]
    server.control("script_result", node="n1", exit_code=1)
    given = reboot_document.arguments(stack.document, stack.cluster, "j1/1/1/reboot")
    server.client("ssm").send_command(InstanceIds=[host], DocumentName=stack.document, Parameters=given)
    server.wait_for(lambda: any("Failed" in str(event) for event in server.control("events")[-4:]))
    before = stack.job()
    for event in one_of_each(
        [e for e in server.control("events") if stack.cluster in str(e) or e["source"] == "aws.ssm"]
    ):
        for number, (what, made) in enumerate(spoiled(event)):
            if number % 9 == 0:
                answer = handler(HANDLERS[number // 9 % 4])(made, None)
                assert set(answer) == {"kind", "taken", "why", "record"}, what
                assert answer["why"], what
    assert [replace(r, seen_version=0) for r in stack.job().ranks] == [
        replace(r, seen_version=0) for r in before.ranks
    ]


def test_events_of_other_peoples_tasks_change_nothing(stack: Deployment) -> None:
    stack.submit(["n0", "n1"])
    before = stack.job()
    for made, _ in STRANGERS.values():
        for name in HANDLERS:
            assert handler(name)(made, None)["why"]
    assert stack.job() == before
