"""The app as people start it, and the checkers of its templates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

import pytest

from tests.infra.stacks import EVERYTHING, faults, synthesize
from tests.programs import ran

if TYPE_CHECKING:
    from tests.infra.stacks import Made

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return ran(*command, env={**os.environ, **env})


@pytest.mark.slow
def test_the_templates_have_no_fault_that_cfn_lint_knows(stack: Made, everything: Made) -> None:
    assert faults(stack.path, everything.path) == ""


@pytest.mark.slow
def test_the_app_needs_neither_network_nor_account(tmp_path: Path) -> None:
    alone = ["unshare", "--map-root-user", "--net"]
    if run(*alone, "true").returncode:
        pytest.skip("this machine does not let us cut the network off")
    env = {name: "" for name in os.environ if name.startswith("AWS_")}
    done = run(*alone, sys.executable, "app.py", CDK_OUTDIR=str(tmp_path), **env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "EcsGpuRecoveryStack.template.json").exists()


def test_a_wrong_setting_is_told_in_one_line() -> None:
    done = run(sys.executable, "app.py", CREATE_FSX="maybe", LAMBDA_MEMORY_SIZE="0")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("LAMBDA_MEMORY_SIZE='0': use a whole number")
    assert "CREATE_FSX='maybe': use true or false" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cdk_command_that_is_too_old_is_told_which_one_to_use() -> None:
    done = run(sys.executable, "app.py", CDK_CLI_ASM_VERSION="43.0.0", CDK_CLI_VERSION="3.0.0")
    assert done.returncode == 1
    assert "npx cdk" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_no_finding_is_accepted_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing accepted, the findings are exactly those that were, so no reason outlives its cause."""
    from ecs_gpu_recovery import infra

    accepted: set[str] = set()

    def note(_construct: Any, rule: str, _why: str) -> None:
        accepted.add(f"AwsSolutions-{rule}")

    def wildcard(construct: Any, resource: str, why: str) -> None:
        note(construct, f"IAM5[Resource::{resource}]", why)

    # All of them are loaded before, so that none takes the note for the real one and keeps it.
    for found in [import_module(f"{infra.__name__}.{one.name}") for one in iter_modules(infra.__path__)]:
        for name, instead in (("accept", note), ("accept_wildcard", wildcard)):
            if hasattr(found, name):
                monkeypatch.setattr(found, name, instead)
    with pytest.raises(RuntimeError, match="ValidationFailed"):
        synthesize(tmp_path, EVERYTHING, nag=True)
    report = json.loads((tmp_path / "out" / "validation-report.json").read_text(encoding="utf-8"))
    violations = [violation["ruleName"] for one in report["pluginReports"] for violation in one["violations"]]
    assert {name for name in violations if name.startswith("AwsSolutions-")} == accepted
