"""The stack on a local AWS that checks permissions: a job heals with the roles that were deployed."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ecs_gpu_recovery.aws.wiring import AwsSide, build
from ecs_gpu_recovery.core.model import JobSpec, JobStatus, Node, NodeStatus
from ecs_gpu_recovery.testing.aws.server import ACCOUNT, REGION, Server, serve
from tests.infra.stacks import ROOT, synthesize
from tools import build_lambda

pytestmark = [pytest.mark.ministack, pytest.mark.slow]
BUCKET = f"cdk-hnb659fds-assets-{ACCOUNT}-{REGION}"
STACK = "EcsGpuRecoveryStack"


@pytest.fixture(scope="module")
def aws(ministack_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("path")
    (path / "ecs_gpu_recovery").symlink_to(ROOT / "ecs_gpu_recovery", target_is_directory=True)
    (path / "sitecustomize.py").symlink_to(Path(__file__).parent / "checked" / "sitecustomize.py")
    with serve(ministack_python, auth=True, environment={"PYTHONPATH": str(path)}) as server:
        yield server


@pytest.fixture(scope="module")
def outputs(aws: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What `cdk deploy` does, without the command: the asset, the template, and the wait."""
    env = {"ECS_CLUSTER_NAME": "gpus"}
    folder = tmp_path_factory.mktemp("deployed")
    made = synthesize(folder, env, asset=build_lambda.ensure("x86_64"), arch="x86_64", synthesizer="cli")
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=BUCKET)
    files = json.loads((made.path.parent / f"{STACK}.assets.json").read_text(encoding="utf-8"))["files"]
    for file in files.values():
        source = made.path.parent / file["source"]["path"]
        (place,) = file["destinations"].values()
        body = _zipped(source) if source.is_dir() else source.read_bytes()
        s3.put_object(Bucket=BUCKET, Key=place["objectKey"], Body=body)
        if not source.is_dir():
            template = place["objectKey"]
    aws.client("ssm").put_parameter(Name="/cdk-bootstrap/hnb659fds/version", Value="30", Type="String")
    cloudformation = aws.client("cloudformation")
    url = f"{aws.url}/{BUCKET}/{template}"
    cloudformation.create_stack(StackName=STACK, TemplateURL=url, Capabilities=["CAPABILITY_IAM"])

    def settled() -> Any:
        (stack,) = cloudformation.describe_stacks(StackName=STACK)["Stacks"]
        return None if stack["StackStatus"].endswith("_IN_PROGRESS") else stack

    stack = aws.wait_for(settled, seconds=120)
    assert stack["StackStatus"] == "CREATE_COMPLETE", stack
    aws.client("ecs").create_cluster(clusterName="gpus")
    return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}


def _zipped(folder: Path) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            packed.write(file, file.relative_to(folder))
    return archive.getvalue()


class Session:
    """A person's own rights, as the command has them."""

    def __init__(self, aws: Server) -> None:
        self.client = lambda name, **options: aws.client(name, **options)


@pytest.fixture(scope="module")
def side(aws: Server, outputs: dict[str, str]) -> AwsSide:
    env = {
        "ECS_CLUSTER_NAME": "gpus",
        "DCGM_HEALTH_CHECK_TASK": outputs["HealthCheckTaskDefinition"],
        "SNS_TOPIC_ARN": outputs["NotificationTopicArn"],
    }
    return build(env, now=lambda: datetime.now(UTC), session=Session(aws))


def complaints(aws: Server) -> list[str]:
    """Lines of the functions' logs that tell of something they could not do."""
    logs, found = aws.client("logs"), []
    for group in logs.describe_log_groups(logGroupNamePrefix="/aws/lambda/")["logGroups"]:
        name = group["logGroupName"]
        for stream in logs.describe_log_streams(logGroupName=name)["logStreams"]:
            events = logs.get_log_events(logGroupName=name, logStreamName=stream["logStreamName"])["events"]
            found += [
                e["message"]
                for e in events
                if "denied" in e["message"].lower() or "Traceback" in e["message"]
            ]
    return found


def test_a_job_loses_a_gpu_and_heals_with_the_roles_that_were_deployed(
    aws: Server, outputs: dict[str, str], side: AwsSide
) -> None:
    now = datetime.now(UTC)
    for name in ("n0", "n1"):
        seen = aws.control("add_node", name=name, cluster="gpus", gpus=8)
        side.store.add_node(
            Node(
                name=name,
                cluster="gpus",
                instance=seen["arn"],
                host=seen["host_id"],
                gpus=8,
                connected=True,
                status=NodeStatus.AVAILABLE,
                created_at=now,
                updated_at=now,
            )
        )
    spec = JobSpec(name="j1", task_def=outputs["TrainingTaskDefinition"])
    side.runtime.submit(job_id="j1", cluster="gpus", spec=spec, nodes=["n0", "n1"], at=now, check=False)

    def running() -> list[Any]:
        return [task for task in aws.control("tasks") if task["lastStatus"] == "RUNNING"]

    aws.wait_for(lambda: len(running()) == 2)
    aws.control("verdicts", node="n0", codes=[1])
    victim = next(t for t in running() if t["containerInstanceArn"] == side.store.node("n0").instance)
    aws.control("exit_task", task=victim["taskArn"], exit_code=1)

    def healed() -> bool:
        job = side.store.job("j1")
        return job.status is JobStatus.IN_PROGRESS and job.attempt == 1 and len(running()) == 2

    try:
        aws.wait_for(healed, seconds=240)
    finally:
        job = side.store.job("j1")
        said = [f"{e.subject}: {e.before} -> {e.after} ({e.why})" for e in job.timeline]
        assert complaints(aws) == [], "\n".join(said)
    assert aws.control("node", node="n0")["boots"] == 2
    assert aws.control("node", node="n1")["boots"] == 1


def test_a_function_is_refused_what_is_not_its_business(aws: Server, outputs: dict[str, str]) -> None:
    tick = {"source": "aws.scheduler", "detail-type": "Scheduled Event", "time": "2026-11-15T03:00:00Z"}
    reply = aws.client("lambda").invoke(
        FunctionName=outputs["DcgmTaskMonitorFunction"], Payload=json.dumps({"version": "0", **tick})
    )
    assert b"not authorized to perform: dynamodb:Query" in reply["Payload"].read()
