"""A Python is believed in only after it ran."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import a_program, ran

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "find-python.sh"
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def pretend(version: str, path: str) -> str:
    """A program that answers the script's question the way a Python of that version would."""
    return f'echo "{version} {path}"'


def find(asked: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the script where nothing but the given folder and the system's own tools is on PATH."""
    nothing = {"HOME": str(folder), "PATH": f"{folder}:/usr/bin:/bin"}
    return ran("/bin/sh", SCRIPT, asked, env={**nothing, **environment})


def test_a_shim_that_only_prints_an_error_is_passed_over(bin_folder: Path, tmp_path: Path) -> None:
    a_program(bin_folder / "python3.42", 'echo "python3.42: command not found" >&2; exit 127')
    a_program(tmp_path / "manager/versions/3.42.1/bin/python", pretend("3.42", "/the/real/python3.42"))
    found = find("3.42", bin_folder, PYENV_ROOT=str(tmp_path / "manager"))
    assert found.stdout.strip() == "/the/real/python3.42"


def test_the_name_of_a_program_is_not_taken_for_its_version(bin_folder: Path) -> None:
    a_program(bin_folder / "python3.42", pretend("3.9", "/an/old/python"))
    found = find("3.42", bin_folder)
    assert (found.returncode, found.stdout) == (1, "")


def test_the_python_a_person_names_is_taken(bin_folder: Path) -> None:
    named = a_program(bin_folder / "mine", pretend("3.12", "/my/python"))
    assert find("any", bin_folder, PYTHON=str(named)).stdout.strip() == "/my/python"


def test_a_named_python_that_is_too_old_is_not_taken(bin_folder: Path) -> None:
    named = a_program(bin_folder / "mine", pretend("3.9", "/my/old/python"))
    a_program(bin_folder / "python3.13", pretend("3.13", "/a/good/python"))
    assert find("any", bin_folder, PYTHON=str(named)).stdout.strip() == "/a/good/python"


def test_a_virtual_environment_leads_to_the_python_it_was_made_from(bin_folder: Path) -> None:
    found = find(HERE, bin_folder, PYTHON=sys.executable).stdout.strip()
    base = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    assert Path(found) == base


def test_the_explanation_names_every_candidate_and_says_what_to_do(bin_folder: Path) -> None:
    a_program(bin_folder / "python3.13", "exit 127")
    a_program(bin_folder / "python3.12", pretend("3.9", "/an/old/python"))
    said = find("--explain", bin_folder).stderr
    assert f"{bin_folder}/python3.13: it does not run" in said
    assert f"{bin_folder}/python3.12: 3.9" in said
    assert "Install one" in said
