"""Bandit, the search for secrets, and what both must be able to find."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import security

# Put together here, so that this file itself holds none.
PLANTED = {
    "AWS access key": "key = 'AKIA" + "Z7Q4M2XK5PW3NVTB'",
    "private key": "-----BEGIN OPENSSH " + "PRIVATE KEY-----",
    "GitHub token": "ghp_" + "a8Kd93nVbQ2xLw7TzR5yUe1sJf6Hc0Gm4PoI",
    "Slack token or webhook": "xoxb-" + "2948571038-5830194756-kQzWvN",
    "PyPI token": "pypi-" + "AgEIcHlwaS5vcmcCJ" * 5,
    "npm token": "//registry/:_auth" + "Token=9f8e7d6c5b4a",
    "console token": "gpurec_" + "h3Vq8ZtLw2Yc7RkN0pXs5JmBd9FgAe1UoTi4WyKx6Qz",
    "signed web token": "eyJ"
    + "hbGciOiJIUzI1NiIsInR5cCI6.eyJzdWIiOiIxMjM0NTY3ODkwIiwib"
    + ".dozjgNryP4J3jVmNHl0w5N_Xg",
    "password in an address": "postgres://admin:" + "hunter22@db.internal",
    "a value that looks random, under a name that sounds secret": 'API_TOKEN = "'
    + "q7Wz9LmX2vKc4RtB8nPy6HdJ"
    + '"',
}


def test_the_package_holds_nothing_that_bandit_warns_of_and_nobody_meant() -> None:
    assert security.not_meant(security.bandit(security.PACKAGE), security.MEANT) == []


def test_bandit_would_find_a_shell_line(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import subprocess\nsubprocess.run('ls ' + input(), shell=True)\n")
    found = security.bandit("bad.py", root=tmp_path)
    assert any("B602" in line for line in security.not_meant(found, security.MEANT))


def test_an_exception_that_excuses_nothing_is_told() -> None:
    finding = security.Finding(rule="B1", path="a/b.py", line=3, what="something")
    assert security.not_meant([finding], {("B1", "a/*"): "meant"}) == []
    assert security.not_meant([finding], {("B1", "c/*"): "meant"}) == [
        "a/b.py:3: B1 something",
        "B1 in c/* is excused and does not occur",
    ]
    assert all(security.MEANT.values()), "every exception has its reason"


def test_no_file_of_the_repository_holds_a_secret() -> None:
    try:
        files = security.shown_files()
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("this is no git checkout")
    assert len(files) > 100
    assert [str(found) for found in security.secrets(files)] == []


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_secret_is_found(tmp_path: Path, kind: str) -> None:
    planted = tmp_path / "notes.txt"
    planted.write_text(f"first line\nx = 1  # {PLANTED[kind]}\n")
    (found,) = security.secrets([planted], root=tmp_path)
    assert (found.path, found.line, found.what) == ("notes.txt", 2, kind)
    assert PLANTED[kind] not in str(found), "it is not repeated"


def test_a_secret_that_is_not_yet_tracked_is_found(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("ignored.txt\n")
    for name in ("new.txt", "ignored.txt"):
        (tmp_path / name).write_text(PLANTED["AWS access key"])
    found = security.secrets(security.shown_files(tmp_path), root=tmp_path)
    assert [one.path for one in found] == ["new.txt"]


@pytest.mark.parametrize(
    "line",
    [
        "AKIAIOSFODNN7" + "EXAMPLE",
        'TOKEN_VARIABLE = "GPU_RECOVERY_CONSOLE_TOKEN"',
        'password = "correct horse battery staple"',
        'secret_name = "arn:aws:secretsmanager:eu-west-1"',
        "    --hash=sha256:6d2a1c0f5e4b3a29188776655443322110ffeeddccbbaa99887766554433aa",
    ],
)
def test_what_only_sounds_like_a_secret_is_left_alone(line: str) -> None:
    assert list(security.secrets_in(line)) == []
