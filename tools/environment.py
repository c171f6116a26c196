"""Virtual environments that make themselves: `python -m tools.environment dev` leaves .venv ready to use.

An environment carries a stamp, .ready, with a digest of all that went into it. While the digest holds, a
second call costs one small read. A lock that covers another is never taken back: after `make test`,
`make demo` runs in the larger environment that is there already.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools import project
from tools.installer import uv
from tools.project import ROOT, TOOLS, Lock, ProblemError


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What an environment was made from. `root` is there because its scripts hold its full path."""

    lock: str
    digest: str
    root: str
    python: str

    @staticmethod
    def read(folder: Path) -> Stamp | None:
        """None when the environment was never finished, or can no longer start."""
        try:
            stamp = Stamp(**json.loads((folder / ".ready").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return stamp if (folder / "bin" / "python").exists() and stamp.root == str(ROOT) else None


def digest(lock: Lock, pyproject: dict[str, Any]) -> str:
    """Of the lock, and of what the package's own installation depends on."""
    parts = [pyproject["project"], pyproject["build-system"], pyproject["tool"]["uv"]]
    about = json.dumps(parts if lock.holds_the_package else [], sort_keys=True)
    return hashlib.sha256(lock.path.read_bytes() + about.encode()).hexdigest()


def lock_to_install(wanted: Lock, stamp: Stamp | None, locks: dict[str, Lock]) -> Lock:
    """The wanted lock, or the larger one that is in the environment already."""
    present = locks.get(stamp.lock) if stamp else None
    return present if present and present.covers(wanted) else wanted


def ensure(name: str, folder: Path, *, version: str = "any") -> Stamp:
    """Makes the environment hold lock `name`, on Python `version` if it has to be made anew."""
    pyproject = project.settings()
    locks = project.locks(pyproject)
    wanted = locks[name]

    def current() -> Stamp | None:
        stamp = Stamp.read(folder)
        lock = lock_to_install(wanted, stamp, locks)
        same = stamp is not None and (stamp.lock, stamp.digest) == (lock.name, digest(lock, pyproject))
        return stamp if same else None

    if stamp := current():
        return stamp
    with _one_at_a_time():
        return current() or _install(folder, wanted, locks, pyproject, version)


def _install(
    folder: Path, wanted: Lock, locks: dict[str, Lock], pyproject: dict[str, Any], version: str
) -> Stamp:
    started = time.monotonic()
    before = Stamp.read(folder)
    lock = lock_to_install(wanted, before, locks)
    (folder / ".ready").unlink(missing_ok=True)
    if before is None:
        python = find_python(version)
        if python is None:
            raise ProblemError(f"Python {version} was not found, so {folder.name} cannot be made.")
        uv("venv", "--quiet", "--clear", "--python", python, folder, purpose=f"make {folder.name}")
    python_version = _version_of(folder / "bin" / "python")
    _say(f"Installing {lock.file} into {folder.name} (Python {python_version})")
    into = ("--quiet", "--python", str(folder / "bin" / "python"))
    uv("pip", "sync", *into, "--require-hashes", lock.path, purpose=f"install {lock.file} into {folder.name}")
    if lock.holds_the_package:
        package = ("--no-deps", "--editable", ROOT)
        uv("pip", "install", *into, *package, purpose=f"install this package into {folder.name}")
    stamp = Stamp(lock=lock.name, digest=digest(lock, pyproject), root=str(ROOT), python=python_version)
    (folder / ".ready").write_text(json.dumps(asdict(stamp)), encoding="utf-8")
    _say(f"{folder.name} is ready ({time.monotonic() - started:.1f} s)")
    return stamp


def find_python(version: str) -> str | None:
    found = subprocess.run(
        ["/bin/sh", ROOT / "tools" / "find-python.sh", version], text=True, stdout=subprocess.PIPE
    )
    return found.stdout.strip() or None


def folder_of(name: str, version: str = "any") -> Path:
    """.venv for every day, .venv-3.11 for tests on another Python, and .venv-ministack, for the local AWS, and such."""
    if not project.locks()[name].holds_the_package:
        return ROOT / f".venv-{name}"
    return ROOT / (".venv" if version == "any" else f".venv-{version}")


def _version_of(python: Path) -> str:
    ask = "import platform; print(platform.python_version())"
    return subprocess.run([python, "-c", ask], text=True, capture_output=True, check=True).stdout.strip()


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two makes at once must not fill the same folder. The lock goes when its holder does."""
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / "environments.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools.environment", description=__doc__)
    choices = ["runtime", "dev", "ministack", "lambda-runtime"]
    parser.add_argument("lock", choices=choices, help="what the environment is for")
    parser.add_argument("--python", default="any", help="such as 3.11; an environment of its own")
    options = parser.parse_args()
    ensure(options.lock, folder_of(options.lock, options.python), version=options.python)


if __name__ == "__main__":
    try:
        main()
    except ProblemError as problem:
        sys.exit(str(problem))
