"""Synthesized stacks, and ways to look at them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.programs import ran

ROOT = Path(__file__).resolve().parents[2]
NODE = ROOT / "node_modules" / ".bin" / "node"
#: Every option that a deployment has.
EVERYTHING = {
    "CREATE_ECS_CLUSTER": "true",
    "CREATE_EC2_INSTANCE": "true",
    "CREATE_FSX": "true",
    "FSX_CLIENT_CIDRS": "10.20.0.0/16, 192.168.7.0/24",
    "CREATE_ECS_ANYWHERE_ROLE": "true",
    "CREATE_PEOPLE_POLICIES": "true",
    "WATCH_NODES": "false",  # it has a template of its own
    "VPC_ID": "vpc-0123456789abcdef0",
    "SUBNET_ID": "subnet-0123456789abcdef0",
    "NODE_TAG": "Fleet=training",
    "NOTIFICATION_EMAIL": "ops@example.com",
    "CHAT_TOPIC_NAME": "gpu-chat",
    "IMAGE": "example.com/team/health:3",
    "DCGM_HEALTH_CHECK_TASK": "arn:aws:ecs:region:account:task-definition/my-check:1",
    "TRAINING_TASK_FAMILIES": "train-a,train-b*",
    "TASK_ROLE_ARNS": "arn:aws:iam::123456789012:role/mine",
    "MAX_RETRIES": "3",
    "REPAIR_RUNGS": "reboot,replace",
    "LAMBDA_TIMEOUT_SECONDS": "300",
    "SWEEPER_CONCURRENCY": "0",
    "STACK_NAME": "SecondCluster",
}


class Made:
    """A synthesized stack, with a few ways to look at it."""

    def __init__(self, outdir: Path) -> None:
        self.path = outdir / "EcsGpuRecoveryStack.template.json"
        self.template: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))

    def all(self, kind: str) -> dict[str, dict[str, Any]]:
        return {name: r for name, r in self.template["Resources"].items() if r["Type"] == kind}

    def properties(self, kind: str) -> list[dict[str, Any]]:
        return [resource["Properties"] for resource in self.all(kind).values()]

    def functions(self) -> dict[str, dict[str, Any]]:
        made = self.properties("AWS::Lambda::Function")
        return {properties["FunctionName"].rpartition("-")[2]: properties for properties in made}

    def dead_letters(self) -> str:
        """The logical name of the queue that has no such queue of its own."""
        queues = self.all("AWS::SQS::Queue")
        (name,) = [name for name, queue in queues.items() if "RedrivePolicy" not in queue["Properties"]]
        return name

    def name(self, value: Mapping[str, Any]) -> str:
        """The logical name that a reference leads to."""
        return str(value["Ref"] if "Ref" in value else value["Fn::GetAtt"][0])


def faults(*templates: Path) -> str:
    """What cfn-lint says of them. W3005 is about dependencies that CDK writes twice."""
    linter = Path(sys.executable).with_name("cfn-lint")
    done = ran(linter, "--ignore-checks", "W3005", "--", *templates)
    return done.stdout + done.stderr * bool(done.returncode)


def synthesize(outdir: Path, env: Mapping[str, str], *, asset: Path | None = None, **context: Any) -> Made:
    """A stack with some settings. Its functions' code is a stand-in unless a built one is given."""
    if not NODE.exists() and shutil.which("node") is None:
        pytest.skip("CDK needs Node.js: install it, or run npm ci")
    os.environ.setdefault("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", "1")
    from app import make_app

    if asset is None:
        asset = outdir / "functions"
        asset.mkdir()
        (asset / "code.py").write_text("# stands for the package\n", encoding="utf-8")
    paths = {"aws:cdk:enable-path-metadata": True}
    make_app(env, outdir=str(outdir / "out"), asset=asset, context={**paths, **context}).synth()
    return Made(outdir / "out")
