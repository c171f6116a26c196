"""Bandit, the search for secrets, and what both must be able to find."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import security

# Put together here, so that this file itself holds none.
PLANTED = {
    "AWS Access Key": "key = 'AKIA" + "Z7Q4M2XK5PW3NVTB'",
    "Private Key": "-----BEGIN OPENSSH " + "PRIVATE KEY-----",
    "GitHub Token": "ghp_" + "a8Kd93nVbQ2xLw7TzR5yUe1sJf6Hc0Gm4PoI",
    "Slack Token": "xoxb-" + "2948571038-5830194756-kQzWvN",
    "PyPI Token": "pypi-" + "AgEIcHlwaS5vcmcC" + "AgEIcHlwaS5vcmcCJ" * 5,
    "NPM tokens": "//registry/:_auth" + "Token=npm_9f8e7d6c5b4aQwErTyUi",
    "Console Token": "gpurec_" + "h3Vq8ZtLw2Yc7RkN0pXs5JmBd9FgAe1UoTi4WyKx6Qz",
    "JSON Web Token": "eyJ"
    + "hbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_Xg",
    "Basic Auth Credentials": "postgres://admin:" + "hunter22@db.internal",
    "Base64 High Entropy String": 'API_TOKEN = "' + "q7Wz9LmX2vKc4RtB8nPy6HdJ" + '"',
}


@pytest.mark.slow
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


@pytest.mark.slow
def test_no_file_of_the_repository_holds_a_secret() -> None:
    try:
        files = security.shown_files()
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("this is no git checkout")
    assert len(files) > 100
    assert security.not_meant(security.secrets(files), security.PLANTED) == []
    assert all(security.PLANTED.values()), "every exception has its reason"


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_secret_is_found(tmp_path: Path, kind: str) -> None:
    planted = tmp_path / "notes.txt"
    planted.write_text(f"first line\nx = 1  # {PLANTED[kind]}\n")
    found = security.secrets([planted], root=tmp_path)
    assert (kind, "notes.txt", 2) in [(one.rule, one.path, one.line) for one in found]
    assert not any(PLANTED[kind] in str(one) for one in found), "it is not repeated"


def test_a_secret_that_is_not_yet_tracked_is_found(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("ignored.txt\n")
    for name in ("new.txt", "ignored.txt"):
        (tmp_path / name).write_text(PLANTED["AWS Access Key"])
    found = security.secrets(security.shown_files(tmp_path), root=tmp_path)
    assert [one.path for one in found] == ["new.txt"]


@pytest.mark.parametrize(
    "line",
    [
        'TOKEN_VARIABLE = "GPU_RECOVERY_CONSOLE_TOKEN"',
        'password = "correct horse battery staple"',
        'secret_name = "arn:aws:secretsmanager:eu-west-1"',
        "    --hash=sha256:6d2a1c0f5e4b3a29188776655443322110ffeeddccbbaa99887766554433aa",
    ],
)
def test_what_only_sounds_like_a_secret_is_left_alone(tmp_path: Path, line: str) -> None:
    (tmp_path / "notes.txt").write_text(line)
    assert security.secrets([tmp_path / "notes.txt"], root=tmp_path) == []
