"""What comes from npm is there before it is needed, or it is said why not."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tests.programs import a_program
from tools import node, suite
from tools.project import ProblemError


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh clone: a lock, and nothing else."""
    modules = tmp_path / "node_modules"
    monkeypatch.setattr(node, "ROOT", tmp_path)
    monkeypatch.setattr(node, "TOOLS", tmp_path / ".tools")
    monkeypatch.setattr(node, "LOCK", tmp_path / "package-lock.json")
    monkeypatch.setattr(node, "CDK", modules / ".bin" / "cdk")
    monkeypatch.setattr(node, "_STAMP", modules / ".ready")
    (tmp_path / "package-lock.json").write_text("{}")
    return tmp_path


def an_npm(clone: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    """The only program on the path."""
    a_program(clone / "bin" / "npm", f"PATH={os.defpath}\n{does}")
    monkeypatch.setenv("PATH", str(clone / "bin"))


GOOD = 'mkdir -p node_modules/.bin && touch node_modules/.bin/cdk && echo "$@" >> calls'


def test_it_is_installed_once_for_each_lock(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    an_npm(clone, monkeypatch, GOOD)
    node.ensure()
    node.ensure()
    assert (clone / "calls").read_text().splitlines() == ["ci --ignore-scripts --loglevel=error"]
    (clone / "package-lock.json").write_text('{"changed": true}')
    node.ensure()
    assert len((clone / "calls").read_text().splitlines()) == 2
    digest = hashlib.sha256((clone / "package-lock.json").read_bytes()).hexdigest()
    assert (clone / "node_modules" / ".ready").read_text() == digest


def test_without_npm_it_says_what_to_install(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(clone / "empty"))
    with pytest.raises(ProblemError, match="npm was not found"):
        node.ensure()


def test_a_registry_that_cannot_be_reached_is_said(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    an_npm(clone, monkeypatch, "echo 'network timeout' >&2; exit 1")
    with pytest.raises(ProblemError, match=r"(?s)network timeout.*npm_config_registry"):
        node.ensure()
    assert not (clone / "node_modules" / ".ready").exists()


def test_the_tests_go_on_without_it_and_the_report_says_why(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(clone / "empty"))
    assert "npm was not found" in suite.why_not(node.ensure)
    assert "Install Node.js with npm" in capsys.readouterr().err
