"""The documents of the deployment name what is there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ecs_gpu_recovery.config import Config
from ecs_gpu_recovery.core import messages
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.core.setting import rows
from ecs_gpu_recovery.settings import LambdaSettings
from tools import architecture

if TYPE_CHECKING:
    from tests.infra.stacks import Made

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
OURS = [DOCS / f"{name}.md" for name in ("deployment", "permissions", "cost", "ecs-anywhere", "upgrade")]
OURS += [DOCS / f"{name}.md" for name in ("workflow", "testbed")]
OURS += sorted((DOCS / "runbooks").glob("*.md"))


@pytest.mark.parametrize("page", OURS, ids=lambda page: page.name)
def test_every_setting_that_is_named_exists(page: Path) -> None:
    table = [row for owner in (Config, LambdaSettings, Policy) for row in rows(owner)]
    known = {name for row in table for name in (row.name, *row.older)}
    known |= {"POLICY", "GPU_RECOVERY_BACKEND", "AWS_REGION"}
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"export ([A-Z0-9_]+)=", text)) | set(
        re.findall(r"`([A-Z0-9]+(?:_[A-Z0-9]+)+)", text)
    )
    words = {"CREATE_COMPLETE", "RULE_ARN", "SCHEDULE_ARN", "TARGET_ARN", "ERROR_CODE", "NO_PERMISSIONS"}
    words |= {"PATH", "ECS_AWSVPC_BLOCK_IMDS", "ECS_INSTANCE_ATTRIBUTES", "PERSISTENT_2"}
    assert named - words <= known


def test_every_alarm_and_message_is_listed_with_its_page(stack: Made) -> None:
    index = (DOCS / "runbooks" / "README.md").read_text(encoding="utf-8")
    pages = set(re.findall(r"docs/runbooks/([\w-]+\.md)", inspect.getsource(messages)))
    assert len(pages) == 8
    for alarm in stack.properties("AWS::CloudWatch::Alarm"):
        assert f"`{alarm['AlarmName'].rpartition('-')[2]}`" in index
        pages.add(alarm["AlarmDescription"].rpartition("/")[2])
    assert all(f"]({page})" in index for page in pages)
    assert pages == {page.name for page in (DOCS / "runbooks").glob("*.md")} - {"README.md"}


def test_every_output_that_is_named_exists(stack: Made, everything: Made) -> None:
    outputs = set(stack.template["Outputs"]) | set(everything.template["Outputs"])
    for page in OURS:
        named = set(re.findall(r"OutputKey=='(\w+)'", page.read_text(encoding="utf-8")))
        assert named <= outputs, page.name


def test_the_picture_of_the_architecture_shows_the_stack(stack: Made) -> None:
    """Made again by: python -m tools.architecture cdk.out/EcsGpuRecoveryStack.template.json"""
    assert architecture.PAGE.read_text(encoding="utf-8") == architecture.page(stack.template)
