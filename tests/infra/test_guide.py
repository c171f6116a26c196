"""The deployment guide, done step by step on the local AWS by somebody who has the page and nothing else."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.aws.deployment import Deployment, machine
from testbed.aws.server import ACCOUNT, REGION, Server, serve
from tests.infra.deployed import TICK
from tests.infra.guide import Terminal, commands

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "deployment.md"
CLUSTER, NODES, LOG_GROUP = "my-gpu-cluster", ("i-0123456789abcdef0", "i-0fedcba9876543210"), "/gpu/train"
#: By how a command begins: why it is not typed here. Whatever else the page has is.
NOT_HERE = {
    "export JOB_TABLE_NAME=": "an example of other names",
    "REPOSITORY=": "for Docker, which there is none of: the test pushes an image by the registry's API",
    "aws ecr get-login-password": "for Docker",
    "docker ": "for Docker",
    "aws codebuild start-build": "for deployments with BUILD_IMAGE",
    "aws lambda invoke": "only version 2 of the AWS command has one of its options",
    "aws logs tail": "only version 2 of the AWS command has it",
}
#: Findings of the doctor that a fresh account can't be without: nobody has read the mail that asks to confirm.
UNCONFIRMED = "messages"
pytestmark = [pytest.mark.ministack, pytest.mark.slow]


@pytest.fixture
def server(ministack_python: Path) -> Iterator[Server]:
    """An account with a cluster of two GPU nodes and a machine of one's own, and nothing deployed."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone, so it can't be cloned")
    with serve(ministack_python, auth=True) as made:
        made.client("ecs").create_cluster(clusterName=CLUSTER)
        made.client("logs").create_log_group(logGroupName=LOG_GROUP)
        for host in NODES:
            made.control("add_node", name=host, cluster=CLUSTER, gpus=8, host_id=host, attributes={})
        yield made


@pytest.fixture
def terminal(server: Server, tmp_path: Path) -> Iterator[Terminal]:
    stack = Deployment(server, root=ROOT, folder=tmp_path)
    env = {name: value for name, value in stack.environment.items() if name not in stack.settings}
    here = [Path(sys.executable).parent, *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    env["PATH"] = os.pathsep.join(map(str, [*here, ROOT / ".venv-ministack" / "bin"]))
    page = commands(GUIDE.read_text(encoding="utf-8"))
    (address,) = re.findall(r"git clone (\S+)", page[0])
    env |= {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{ROOT}.insteadOf",
        "GIT_CONFIG_VALUE_0": address,
    }
    made = Terminal(tmp_path, env)
    yield made
    made.close()


class Reader:
    """Follows the page. Before and after some steps, what the world around the page does."""

    def __init__(self, server: Server, terminal: Terminal, folder: Path) -> None:
        self.server, self._terminal, self._folder = server, terminal, folder
        self.said: dict[str, str] = {}
        self._job = ""

    def follow(self, command: str) -> None:
        if any(command.startswith(start) for start in NOT_HERE):
            return
        self._before(command)
        code, said = self._terminal.type(self._meant(command))
        self.said[command] = said
        assert code == 0 or "doctor" in command, f"{command} ended with {code}:\n{said[-4000:]}"
        self._after(command, said)

    def _meant(self, command: str) -> str:
        """What stands for something of the reader's own."""
        words = {"ACCOUNT.dkr.ecr.REGION": f"{ACCOUNT}.dkr.ecr.{REGION}", " JOB ": f" {self._job} "}
        for word, meant in words.items():
            command = command.replace(word, meant)
        return command

    def _before(self, command: str) -> None:
        if command.startswith("gpu-recovery submit"):
            kind = {"GPU_RECOVERY_KIND": "train"}
            lines = ["trained"]
            self.server.control("script", env=kind, times=2, exit_code=0, after_s=5.0, lines=lines)
            self.server.wait_for(self._examined, seconds=300, every=2)
        elif command.startswith("gpu-recovery explain-event"):
            event = self.server.control("events")[0]
            (self._folder / "ecs-gpu-recovery" / "event.json").write_text(json.dumps(event))
        elif "ssm add-tags" in command:
            self.server.control("add_node", name="own", cluster=CLUSTER, external=True, host_id=_own(command))

    def _examined(self) -> bool:
        """New nodes pass a check before their first job; the sweeper starts it once a minute."""
        name = "EcsGpuRecoveryStack-RecoverySweeper"
        self.server.client("lambda").invoke(FunctionName=name, Payload=json.dumps(TICK))
        rows = self.server.client("dynamodb").scan(TableName="ecs_node", ConsistentRead=True)["Items"]
        free = {row["node_name"]["S"] for row in rows if row["node_status"]["S"] == "AVAILABLE"}
        return free >= set(NODES)

    def _after(self, command: str, said: str) -> None:
        if command.startswith("git clone"):  # the local AWS runs functions on this machine
            context = self._folder / "ecs-gpu-recovery" / "cdk.context.json"
            context.write_text(json.dumps({"arch": machine()}))
        elif command.startswith("aws ec2 create-tags"):
            for node in NODES:
                self.server.control("tag_host", node=node, tags={"GpuRecovery": CLUSTER})
            self._push_image()
        elif command.startswith("gpu-recovery submit"):
            (self._job,) = re.findall(r"^submitted (\S+) on ", said, re.MULTILINE)

    def _push_image(self) -> None:
        self.server.client("ecr").put_image(
            repositoryName="ecs-gpu-recovery", imageTag="latest", imageManifest=json.dumps({"layers": []})
        )

    def answer(self, start: str, nth: int = 0) -> str:
        return [said for command, said in self.said.items() if command.startswith(start)][nth]


def _own(command: str) -> str:
    (name,) = re.findall(r"\bmi-[0-9a-f]+", command)
    return str(name)


def test_every_command_of_the_guide_does_what_it_says(
    server: Server, terminal: Terminal, tmp_path: Path
) -> None:
    reader, page = Reader(server, terminal, tmp_path), commands(GUIDE.read_text(encoding="utf-8"))
    for start in NOT_HERE:
        assert any(command.startswith(start) for command in page), f"{start} is not on the page any more"
    for command in page:
        reader.follow(command)
    first, last = (reader.answer("gpu-recovery doctor", nth) for nth in (0, 1))
    assert "ecs-gpu-recovery:latest is not there, so no check can start" in first
    assert {line.split()[1] for line in last.splitlines() if line.startswith("FAIL")} <= {UNCONFIRMED}
    assert all(node in reader.answer("gpu-recovery nodes") for node in NODES)
    assert "COMPLETE" in reader.answer("gpu-recovery job")
    assert "trained" in reader.answer("gpu-recovery logs")
    assert json.loads(reader.answer("gpu-recovery explain-event"))["why"]
    left: Any = server.client("dynamodb").scan(TableName="ecs_job")["Items"]
    assert [item["job_status"]["S"] for item in left] == ["COMPLETE"], "the next deployment took it over"
