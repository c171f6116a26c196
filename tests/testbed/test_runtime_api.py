"""What is deployed, under the runtime that AWS runs it with, in an environment that holds nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ecs_gpu_recovery.core.model import JobStatus
from testbed.aws.deployment import machine
from testbed.aws.runtime_api import DidNotStart, Function, function
from testbed.aws.server import Server, serve
from tests.stories.arrivals import a_tick, passes_rules
from tests.stories.functions import HANDLERS, Deployment, deployed, handler_of
from tools import build_lambda

pytestmark = pytest.mark.ministack
ROOT = Path(__file__).resolve().parents[2]
NAMES = ("ECS_CLUSTER_NAME", "DCGM_HEALTH_CHECK_TASK", "SNS_TOPIC_ARN")


@pytest.fixture(scope="module")
def runtime() -> Path:
    """A Python that has Lambda's runtime and nothing else."""
    subprocess.run([sys.executable, "-m", "tools.environment", "lambda-runtime"], cwd=ROOT, check=True)
    return ROOT / ".venv-lambda-runtime" / "bin" / "python"


@pytest.fixture(scope="module")
def asset() -> Path:
    return build_lambda.ensure(machine())


@pytest.fixture(scope="module")
def own_server(ministack_python: Path) -> Iterator[Server]:
    """Whatever other tests have registered is not there."""
    with serve(ministack_python) as made:
        yield made


@pytest.fixture
def stack(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    with deployed(own_server, monkeypatch) as made:
        yield made


@pytest.mark.parametrize("name", HANDLERS)
def test_nothing_is_done_before_the_first_call_and_an_error_is_handed_on(
    name: str, runtime: Path, asset: Path
) -> None:
    """Without any setting it loads; its first call says all that is missing, in the words of the runtime."""
    with function(runtime, asset, f"ecs_gpu_recovery.lambdas.{name}.lambda_handler", {}) as one:
        one.wait_until_loaded()
        assert one.said() == ""
        answer = one.invoke(a_tick())
        assert answer.failed
        assert answer.payload["errorType"] == "ConfigError"
        assert all(wanted in answer.payload["errorMessage"] for wanted in NAMES)
        assert any("lambda_handler" in line for line in answer.payload["stackTrace"])
        assert "ConfigError" in one.said()
        assert one.invoke(a_tick()).failed, "an error does not end the process"


def test_what_cannot_be_loaded_is_no_function(runtime: Path, asset: Path) -> None:
    name = "ecs_gpu_recovery.lambdas.missing.lambda_handler"
    wrong = pytest.raises(DidNotStart, match=r"Runtime\.ImportModuleError")
    with function(runtime, asset, name, {}) as one, wrong:
        one.invoke({})


def test_it_sees_the_runtime_and_what_is_deployed_and_nothing_else(runtime: Path, asset: Path) -> None:
    ask = "import sys, boto3, awslambdaric, importlib.util as u; print(boto3.__file__, u.find_spec('pytest'))"
    said = subprocess.run([runtime, "-c", ask], cwd=asset, env={}, capture_output=True, text=True, check=True)
    assert said.stdout.split() == [str(asset / "boto3" / "__init__.py"), "None"]


def test_a_recovery_by_the_four_functions(stack: Deployment, runtime: Path, asset: Path) -> None:
    with ExitStack() as running:
        functions = {
            name: running.enter_context(
                function(runtime, asset, f"ecs_gpu_recovery.lambdas.{name}.lambda_handler", stack.environment)
            )
            for name in HANDLERS
        }
        recover(stack, functions)
        check_logs(functions)


def recover(stack: Deployment, functions: dict[str, Function]) -> None:
    """From a GPU fault to the end of the second attempt, every event through the function it is meant for."""
    server, heard, kinds = stack.server, 0, set()

    def deliver() -> None:
        nonlocal heard
        events = server.control("events")
        new, heard = events[heard:], len(events)
        ours = [e for e in new if stack.cluster in str(e["detail"].get("clusterArn", stack.cluster))]
        for event in filter(passes_rules, ours):
            answer = functions[handler_of(event)].invoke(event)
            assert not answer.failed, answer.payload
            kinds.add(answer.payload["kind"])
        answer = functions["recovery_sweeper"].invoke(a_tick())
        assert not answer.failed, answer.payload
        assert answer.payload["taken"], answer.payload

    def at(status: JobStatus, attempt: int) -> bool:
        deliver()
        job = stack.job()
        return (job.status, job.attempt) == (status, attempt) and all(r.deadline is None for r in job.ranks)

    stack.submit(["n0", "n1"])
    server.control("health", node="n1", verdict=1)
    server.wait_for(lambda: at(JobStatus.IN_PROGRESS, 0), seconds=240)
    server.control("exit_task", task=stack.job().ranks[0].task_id, exit_code=1)
    server.wait_for(lambda: at(JobStatus.IN_PROGRESS, 1), seconds=240)
    for rank in stack.job().ranks:
        server.control("exit_task", task=rank.task_id, exit_code=0)
    server.wait_for(lambda: at(JobStatus.COMPLETE, 1), seconds=240)
    assert kinds == {"task", "check", "instance", "reboot-command"}
    assert server.control("node", node="n1")["boots"] == 2


def check_logs(functions: dict[str, Function]) -> None:
    """Every line is JSON: a transition with what it is about, or metrics that CloudWatch reads."""
    lines: list[dict[str, Any]] = []
    for one in functions.values():
        lines += [json.loads(line) for line in one.said().splitlines() if line]
    moves = [line for line in lines if "_aws" not in line]
    assert moves
    assert all({"level", "message", "timestamp", "service"} <= set(move) for move in moves)
    assert {move["level"] for move in moves} == {"INFO"}
    counted = {name for line in lines if "_aws" in line for name in line}
    assert {"EventsTaken", "RecoveriesStarted", "JobsCompleted", "LiveJobs"} <= counted
