"""The lock files are whole, agree with each other, and name no address."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ecs_gpu_recovery
from tools import lock as maker
from tools import project
from tools.project import Lock

LOCKS = project.locks()
PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)


def pins(lock: Lock) -> dict[str, str]:
    return dict(PIN.findall(lock.path.read_text(encoding="utf-8")))


def entries(lock: Lock) -> list[str]:
    """Each requirement with its continuation lines."""
    text = lock.path.read_text(encoding="utf-8").replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


every_lock = pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)


@every_lock
def test_every_package_has_an_exact_version_and_a_hash(lock: Lock) -> None:
    assert entries(lock)
    assert [one for one in entries(lock) if not (PIN.match(one) and "--hash=sha256:" in one)] == []


@every_lock
def test_no_lock_names_an_address(lock: Lock) -> None:
    text = lock.path.read_text(encoding="utf-8")
    assert "://" not in text
    assert "index-url" not in text


@every_lock
def test_every_lock_was_made_from_the_pyproject_of_today(lock: Lock) -> None:
    assert maker.is_current(lock), "run: make lock"


@pytest.mark.parametrize("lock", [one for one in LOCKS.values() if one.same_as], ids=lambda lock: lock.name)
def test_what_is_shipped_has_the_version_that_is_tested(lock: Lock) -> None:
    assert lock.same_as
    tested = pins(LOCKS[lock.same_as])
    shipped = pins(lock)
    assert {name: shipped[name] for name in shipped.keys() & tested.keys()} == {
        name: tested[name] for name in shipped.keys() & tested.keys()
    }


def test_a_new_requirement_makes_a_lock_stale(tmp_path: Path) -> None:
    settings = project.settings()
    settings["project"]["optional-dependencies"]["lambda"].append("something-new")
    assert not maker.is_current(project.locks(settings)["lambda"])


def test_the_package_and_its_metadata_tell_the_same_version() -> None:
    assert project.settings()["project"]["version"] == ecs_gpu_recovery.__version__
