"""A browser for the tests is found, fetched once, or said to be missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools import browser
from tools.project import ProblemError


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a browser."""
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(browser, "FOLDER", tmp_path / "browsers")
    return tmp_path


def a_program(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_the_named_one_comes_first_then_the_systems_then_a_fetched_one(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert browser.find() == ""
    fetched = a_program(bare / "browsers" / "chromium-1" / "chrome-linux64" / "chrome")
    assert browser.find() == fetched
    system = a_program(bare / "bin" / "chromium")
    assert browser.find() == system
    named = a_program(bare / "mine")
    monkeypatch.setenv("CHROMIUM", named)
    assert browser.find() == named
    monkeypatch.setenv("CHROMIUM", str(bare / "nowhere"))
    assert browser.find() == "", "a wrong name is not passed over"


def test_a_machine_that_cannot_have_one_is_told_and_not_asked_again_the_same_day(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(browser, "_fetch", lambda: asked.append(1) or "no way out")
    with pytest.raises(ProblemError, match="no browser tests: no way out"):
        browser.ensure()
    with pytest.raises(ProblemError, match="earlier"):
        browser.ensure()
    assert len(asked) == 1
    os.utime(bare / "browsers" / "tried", (0, 0))
    with pytest.raises(ProblemError, match="no way out"):
        browser.ensure()
    assert len(asked) == 2


def test_one_that_was_fetched_is_used(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = bare / "browsers" / "chromium-1" / "chrome-linux64" / "chrome"
    monkeypatch.setattr(browser, "_fetch", lambda: "" if a_program(place) else "x")
    assert browser.ensure() == str(place)
