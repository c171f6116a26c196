"""The folder that the functions run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import build_lambda

HANDLERS = ("ecs_task_handler", "dcgm_task_monitor", "ecs_instance_monitor", "recovery_sweeper")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from this environment, in a place of its own."""
    place = tmp_path_factory.mktemp("asset")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_lambda, "_FOLDER", place)
        return build_lambda.build("arm64")


def test_the_handlers_import_with_nothing_but_the_folder(folder: Path) -> None:
    modules = ", ".join(f"ecs_gpu_recovery.lambdas.{name}" for name in HANDLERS)
    wiring = "import ecs_gpu_recovery.aws.wiring, aws_lambda_powertools.metrics, boto3"
    program = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); import {modules}; {wiring}; print(boto3.__file__)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(folder))


def test_it_holds_what_is_locked_and_nothing_that_only_runs_elsewhere(folder: Path) -> None:
    held = {path.name.rpartition(".dist-info")[0] for path in folder.glob("*.dist-info")}
    assert held == {f"{name.replace('-', '_')}-{version}" for name, version in build_lambda.locked().items()}
    parts = {path.name for path in (folder / "ecs_gpu_recovery").iterdir() if path.is_dir()}
    assert parts - {"__pycache__"} == {"core", "engine", "aws", "lambdas"}
    assert not list(folder.rglob("*.so"))


def test_it_describes_the_services_that_are_called_and_no_other(folder: Path) -> None:
    kept = {path.name for path in (folder / "botocore" / "data").iterdir() if path.is_dir()}
    wiring = (build_lambda.PACKAGE / "aws" / "wiring.py").read_text(encoding="utf-8")
    assert kept == set(re.findall(r'client\("(\w+)"\)', wiring))
    make = "; ".join(f"boto3.client({name!r}, region_name='us-east-1')" for name in sorted(kept))
    program = f"import sys; sys.path.insert(0, {str(folder)!r}); import boto3; {make}"
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True)


def test_its_byte_code_never_counts_as_stale(folder: Path) -> None:
    compiled = list(folder.rglob("*.cpython-313.pyc"))
    if not compiled:
        pytest.skip(f"there is no Python {build_lambda.PYTHON} here to compile with")
    sources = [path for path in folder.rglob("*.py") if "templates" not in path.parts]
    assert len(compiled) >= len(sources) * 0.95
    for path in compiled:
        flags = int.from_bytes(path.read_bytes()[4:8], "little")
        assert flags == 0b01, f"{path} is not of the unchecked-hash kind"


def test_the_same_sources_give_the_same_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Or every deployment would replace the functions, and lose what is warm, for nothing."""
    monkeypatch.setattr(build_lambda, "_FOLDER", tmp_path)
    again = build_lambda.build("arm64")
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
    assert [file for file in files if (folder / file).read_bytes() != (again / file).read_bytes()] == []


def test_it_is_made_again_only_when_something_in_it_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build_lambda, "_FOLDER", folder.parent)
    built: list[str] = []
    monkeypatch.setattr(build_lambda, "build", lambda arch: built.append(arch))
    assert build_lambda.ensure("arm64") == folder
    assert built == []
    other = tmp_path / "requirements.txt"
    other.write_text(build_lambda._lock().read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    monkeypatch.setattr(build_lambda, "_lock", lambda: other)
    build_lambda.ensure("arm64")
    assert built == ["arm64"]


def test_another_version_in_this_environment_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = build_lambda.locked() | {"boto3": "0.0.1"}
    monkeypatch.setattr(build_lambda, "locked", lambda: wanted)
    assert build_lambda.copy_installed(tmp_path) is False
    assert list(tmp_path.iterdir()) == []
