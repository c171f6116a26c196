"""A browser for the tests is found, brought once, or said to be missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.programs import a_program
from tools import browser
from tools.project import ProblemError


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a browser."""
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(browser, "FOLDER", tmp_path / "browsers")
    monkeypatch.setattr(browser, "_RELEASE", tmp_path / "os-release")
    return tmp_path


def test_the_named_one_comes_first_then_the_systems_then_a_fetched_one(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert browser.find() == ""
    fetched = a_program(bare / "browsers" / "chromium-1" / "chrome-linux64" / "chrome")
    assert browser.find() == str(fetched)
    system = a_program(bare / "bin" / "chromium")
    assert browser.find() == str(system)
    named = a_program(bare / "mine")
    monkeypatch.setenv("CHROMIUM", str(named))
    assert browser.find() == str(named)
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


def test_root_on_debian_gets_the_systems_own_and_is_told_so(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = bare / "bin" / "chromium"
    installs = f"case $* in *chromium) printf '#!/bin/sh' > {place}; /bin/chmod 755 {place};; esac"
    a_program(bare / "bin" / "apt-get", installs)
    (bare / "os-release").write_text("NAME=Debian\nID=debian\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert browser.ensure() == str(place)
    assert "apt-get install chromium" in capsys.readouterr().out


def test_a_debian_without_a_way_to_its_packages_has_none(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_program(bare / "bin" / "apt-get", "exit 100")
    (bare / "os-release").write_text("ID=debian\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ProblemError, match="apt-get update failed"):
        browser.ensure()


def test_apt_is_left_alone_by_others_than_root_and_elsewhere(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_program(bare / "bin" / "apt-get")
    assert not browser.apt_can(), "no release is known"
    (bare / "os-release").write_text("ID=ubuntu\nID_LIKE=debian\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not browser.apt_can(), "Ubuntu's package points at a snap"
    (bare / "os-release").write_text("ID=debian\n")
    assert browser.apt_can()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not browser.apt_can()
