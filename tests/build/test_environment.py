"""An environment is made once, kept while it holds, and never made smaller."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tools import environment, project
from tools.environment import Stamp
from tools.project import Lock

LOCKS = project.locks()
DEV, RUNTIME, MINISTACK = LOCKS["dev"], LOCKS["runtime"], LOCKS["ministack"]


def an_environment(folder: Path, lock: Lock, **changed: str) -> Path:
    """A folder that looks like a finished environment."""
    stamp = Stamp(
        lock=lock.name,
        digest=environment.digest(lock, project.settings()),
        root=str(project.ROOT),
        python="3.13.0",
    )
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    (folder / ".ready").write_text(json.dumps(asdict(replace(stamp, **changed))))
    return folder


@pytest.fixture
def installs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the locks that would have been installed."""
    done: list[str] = []

    def note(
        folder: Path, wanted: Lock, locks: dict[str, Lock], pyproject: dict[str, object], version: str
    ) -> Stamp:
        lock = environment.lock_to_install(wanted, Stamp.read(folder), locks)
        done.append(lock.name)
        return Stamp(lock=lock.name, digest="", root="", python=version)

    monkeypatch.setattr(environment, "_install", note)
    return done


def test_a_finished_environment_is_left_alone(tmp_path: Path, installs: list[str]) -> None:
    environment.ensure("dev", an_environment(tmp_path / "venv", DEV))
    assert installs == []


def test_a_development_environment_serves_the_demo(tmp_path: Path, installs: list[str]) -> None:
    environment.ensure("runtime", an_environment(tmp_path / "venv", DEV))
    assert installs == []


def test_the_demo_environment_grows_into_a_development_one(tmp_path: Path, installs: list[str]) -> None:
    environment.ensure("dev", an_environment(tmp_path / "venv", RUNTIME))
    assert installs == ["dev"]


def test_a_stale_development_environment_stays_one_when_the_demo_asks(
    tmp_path: Path, installs: list[str]
) -> None:
    environment.ensure("runtime", an_environment(tmp_path / "venv", DEV, digest="of yesterday"))
    assert installs == ["dev"]


def test_an_environment_that_was_moved_here_is_not_trusted(tmp_path: Path) -> None:
    assert Stamp.read(an_environment(tmp_path / "venv", DEV, root="/somewhere/else")) is None


def test_an_environment_whose_python_is_gone_is_not_trusted(tmp_path: Path) -> None:
    folder = an_environment(tmp_path / "venv", DEV)
    (folder / "bin" / "python").unlink()
    assert Stamp.read(folder) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"lock": "dev"}'])
def test_a_half_written_stamp_is_not_trusted(tmp_path: Path, text: str) -> None:
    folder = an_environment(tmp_path / "venv", DEV)
    (folder / ".ready").write_text(text)
    assert Stamp.read(folder) is None


def test_the_local_aws_lives_apart_from_the_package() -> None:
    assert environment.folder_of("ministack") != environment.folder_of("dev")
    assert not DEV.covers(MINISTACK)
