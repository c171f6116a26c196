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


@pytest.mark.parametrize(
    ("asked", "there", "changed", "installed"),
    [
        ("dev", DEV, {}, []),
        ("runtime", DEV, {}, []),  # a development environment serves the demo
        ("dev", RUNTIME, {}, ["dev"]),  # that of the demo grows
        ("runtime", DEV, {"digest": "of yesterday"}, ["dev"]),  # a stale one stays what it is
    ],
)
def test_an_environment_is_installed_when_it_is_not_enough(
    tmp_path: Path,
    installs: list[str],
    asked: str,
    there: Lock,
    changed: dict[str, str],
    installed: list[str],
) -> None:
    environment.ensure(asked, an_environment(tmp_path / "venv", there, **changed))
    assert installs == installed


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
