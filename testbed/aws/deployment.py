"""The stack on the local AWS, put there with the CDK command as a person would, and what people then do with it.

    with serve(python, auth=True) as aws:
        stack = Deployment(aws, root=ROOT, folder=somewhere)
        stack.bootstrap()
        stack.deploy()
        people = People(stack)

No profile, no file and no machine role of whoever runs this is seen: there is no way to a real account.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ecs_gpu_recovery.aws.discover import discover
from ecs_gpu_recovery.aws.incidents import SOURCE, TYPE
from ecs_gpu_recovery.aws.tables import GUARD
from ecs_gpu_recovery.aws.wiring import AwsSide, build
from ecs_gpu_recovery.core.model import Failover, Job, JobSpec

from .server import ACCOUNT, REGION, Server

STACK, CLUSTER = "EcsGpuRecoveryStack", "gpus"
#: A busy machine may take its time.
LIMIT_S = 900.0


class CommandFailed(Exception):
    """A command that had to succeed did not; the text ends with what it said."""


def _nothing(seconds: float, line: str) -> None:
    """Nobody watches."""


class Deployment:
    """One stack on one local AWS. While a command runs, `watch` hears every second how long, and its last line."""

    def __init__(
        self,
        server: Server,
        *,
        root: Path,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        watch: Callable[[float, str], None] = _nothing,
    ) -> None:
        self.server, self.root, self.folder, self._watch = server, root, folder, watch
        self.outputs: dict[str, str] = {}
        self.settings = {"ECS_CLUSTER_NAME": CLUSTER, "CREATE_ECS_CLUSTER": "true", **(settings or {})}
        self.name, self.cluster = self.settings.get("STACK_NAME", STACK), self.settings["ECS_CLUSTER_NAME"]

    @property
    def environment(self) -> dict[str, str]:
        """For commands: this AWS, the pinned programs first, and nothing of the caller's own account."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CDK_"))}
        ours = [
            self.root / "node_modules" / ".bin",
            Path(sys.executable).parent,
            self.root / ".venv-ministack" / "bin",
        ]
        return {
            **kept,
            "PATH": os.pathsep.join([*map(str, ours), kept.get("PATH", os.defpath)]),
            # The bucket's name becomes a part of the address, and an IP address can't take one.
            "AWS_ENDPOINT_URL": self.server.url.replace("127.0.0.1", "localhost"),
            "AWS_ACCESS_KEY_ID": ACCOUNT,
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_REGION": REGION,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "CDK_DISABLE_CLI_TELEMETRY": "1",
            "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "1",
            **self.settings,
        }

    def bootstrap(self) -> None:
        """Once per account and region. It needs no app, and so runs where there is none."""
        self.cdk("bootstrap", f"aws://{ACCOUNT}/{REGION}", cwd=self.folder)

    def deploy(self, *options: str) -> None:
        """The app is synthesized on the way; the functions are built for this machine."""
        outputs = self.folder / "outputs.json"
        self.cdk(
            *("deploy", "--require-approval", "never", "--outputs-file", outputs),
            *("--output", self._assembly, "-c", f"arch={machine()}"),
            *options,
        )
        self.outputs = json.loads(outputs.read_text(encoding="utf-8"))[self.name]

    def destroy(self) -> None:
        """What was deployed is known, so the app need not be synthesized again."""
        self.cdk("destroy", "--force", "--app", self._assembly)

    @property
    def _assembly(self) -> Path:
        return self.folder / "cdk.out"

    def cdk(self, *arguments: str | Path, cwd: Path | None = None) -> str:
        words = ("cdk", *map(str, arguments), "--no-notices", "--no-color", "--progress", "events")
        return self._run(words, cwd or self.root)

    def aws(self, *arguments: str) -> Any:
        """The AWS command line, and its answer."""
        said = self._run(("aws", *arguments, "--output", "json"), self.folder)
        return json.loads(said) if said.strip() else None

    def _run(self, command: Sequence[str], cwd: Path) -> str:
        said, troubles = self.folder / "said", self.folder / "troubles"
        began = time.monotonic()
        with said.open("wb") as out, troubles.open("wb") as err:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                while (code := _ended(process)) is None and time.monotonic() - began < LIMIT_S:
                    self._watch(time.monotonic() - began, _last_line(troubles))
            finally:
                if process.poll() is None:  # with all that it started
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        answer = said.read_text(errors="replace")
        if code != 0:
            how = f"did not end within {LIMIT_S:g} s" if code is None else f"ended with {code}"
            words = (troubles.read_text(errors="replace") + answer).strip().splitlines()[-25:]
            if (ended := self.server.process.poll()) is not None:
                words += [f"the local AWS had ended with {ended}:", *self.server.said().splitlines()]
            raise CommandFailed("\n".join((f"{' '.join(command[:2])} {how}:", *(f"  | {w}" for w in words))))
        return answer


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(1.0)
    except subprocess.TimeoutExpired:
        return None


def _last_line(file: Path) -> str:
    lines = file.read_text(errors="replace").strip().splitlines()
    return " ".join(lines[-1].split()) if lines else ""


def machine() -> str:
    """The local AWS runs functions on this machine, whatever it is."""
    return "arm64" if os.uname().machine in ("aarch64", "arm64") else "x86_64"


class _Session:
    """A person's own rights, where the wiring expects a session of boto3's."""

    def __init__(self, server: Server) -> None:
        self.client = server.client


class People:
    """Operators add nodes, an engineer submits jobs, and a queue hears what people are told."""

    def __init__(self, stack: Deployment) -> None:
        self.stack, self.server = stack, stack.server
        env = {
            **stack.settings,
            "DCGM_HEALTH_CHECK_TASK": stack.outputs["HealthCheckTaskDefinition"],
            "SNS_TOPIC_ARN": stack.outputs["NotificationTopicArn"],
            "GUARD_TABLE_NAME": f"{stack.name}-{GUARD.name}",
            "INCIDENT_BUS": "default",
            "STACK_NAME": stack.name,
        }
        self.side: AwsSide = build(env, now=self.now, session=_Session(stack.server))
        self._ecs, self._ssm = stack.server.client("ecs"), stack.server.client("ssm")
        self._heard: list[dict[str, str]] = []
        self._incidents: list[dict[str, Any]] = []
        self._sqs = stack.server.client("sqs")
        topic = env["SNS_TOPIC_ARN"]
        self._queue, arn = self._listener("told", "sns", topic)
        self.server.client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
        self._pager = self._on_the_bus()

    def _on_the_bus(self) -> str:
        """A rule as a pager's integration makes one, with the pattern of the guide."""
        events, name = self.server.client("events"), f"{self.stack.name}-pager"
        pattern = {"source": [SOURCE], "detail-type": [TYPE], "detail": {"stack": [self.stack.name]}}
        rule = events.put_rule(Name=name, EventPattern=json.dumps(pattern))["RuleArn"]
        url, arn = self._listener("pager", "events", rule)
        events.put_targets(Rule=name, Targets=[{"Id": "1", "Arn": arn}])
        return url

    def _listener(self, name: str, service: str, source: str) -> tuple[str, str]:
        """A queue that this topic or rule may fill."""
        url = str(self._sqs.create_queue(QueueName=f"{self.stack.name}-{name}")["QueueUrl"])
        about = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        arn = about["Attributes"]["QueueArn"]
        allow = {
            "Effect": "Allow",
            "Principal": {"Service": f"{service}.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": arn,
            "Condition": {"ArnEquals": {"aws:SourceArn": source}},
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
        self._sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
        return url, arn

    def now(self) -> datetime:
        return datetime.now(UTC)

    def add_nodes(self, names: Sequence[str], *, gpus: int = 8) -> None:
        """They register, and their records are made."""
        self.join(names, gpus=gpus)
        discover(self._ecs, self._ssm, self.side.store, self.stack.cluster, self.now())

    def join(self, names: Sequence[str], *, gpus: int = 8) -> None:
        """Machines register with the cluster, and nobody is told. Every other one is ECS Anywhere."""
        for number, name in enumerate(names):
            self._join(name, gpus, external=bool(number % 2))

    def add_spare(self, name: str, *, like: str) -> None:
        """A node of the kind of another one, with the operator's label."""
        own = self.side.store.node(like)
        self._join(name, own.gpus, external=own.host.startswith("mi-"), spare="true")
        discover(self._ecs, self._ssm, self.side.store, self.stack.cluster, self.now())

    def _join(self, name: str, gpus: int, *, external: bool, **labels: str) -> None:
        """No agent tells the kind of a machine that is not AWS's; its operator does."""
        kind = {"gpu_model": "H100", "zone": "hall-1"} if external else {}
        about = {"gpus": gpus, "external": external, "attributes": {"node_name": name, **kind, **labels}}
        self.server.control("add_node", name=name, cluster=self.stack.cluster, **about)
        self.server.control("tag_host", node=name, tags={"GpuRecovery": self.stack.cluster})

    def submit(
        self,
        job_id: str,
        names: Sequence[str],
        *,
        check: bool = False,
        restart_when_healthy: str = "never",
        failover: str = Failover.NONE,
        retry_of: str = "",
    ) -> Job:
        definition = self.stack.outputs["TrainingTaskDefinition"]
        found = self._ecs.describe_task_definition(taskDefinition=definition)["taskDefinition"]
        container = found["containerDefinitions"][0]["name"]
        spec = JobSpec(name=job_id, task_def=definition, container=container, submitted_by="ann")
        spec = replace(spec, failover=failover, retry_of=retry_of)
        return self.side.runtime.submit(
            job_id=job_id,
            cluster=self.stack.cluster,
            spec=spec,
            nodes=list(names),
            at=self.now(),
            check=check,
            restart_when_healthy=restart_when_healthy,
        )

    def job(self, job_id: str) -> Job:
        return self.side.store.job(job_id)

    def stop(self, job_id: str, why: str) -> Job:
        return self.side.runtime.stop(job_id, by="ann", why=why, at=self.now())

    def told(self) -> list[dict[str, str]]:
        """Every message so far, oldest first, with its `Subject` and `Message`."""
        self._heard += self._received(self._queue)
        return self._heard

    def incidents(self) -> list[dict[str, Any]]:
        """What was on the bus for them, oldest first: the details of the events."""
        self._incidents += [event["detail"] for event in self._received(self._pager)]
        return self._incidents

    def _received(self, queue: str) -> Iterator[dict[str, Any]]:
        while got := self._sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages"):
            for message in got:
                yield json.loads(message["Body"])
                self._sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
