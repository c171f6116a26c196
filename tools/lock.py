"""Makes the lock files: every package with its exact version and hashes, for every Python and platform.

No address is written into them, so they install from whatever registry or mirror a machine uses. Each notes a
digest of what was asked for; `--check` compares it with pyproject.toml and needs no network.
"""

from __future__ import annotations

import argparse
import sys

from tools import project
from tools.installer import uv
from tools.project import Lock, ProblemError

HEADER = """\
# Made by `make lock` from {source}. Do not edit.
# Inputs: {inputs}
"""


def make(lock: Lock, *, upgrade: bool) -> None:
    """Resolves one lock. Versions in the file are kept, unless they no longer fit or `upgrade` is asked."""
    arguments = ["pip", "compile", "-", "--output-file", lock.file]
    arguments += ["--universal", "--python-version", lock.python, "--generate-hashes", "--no-header"]
    arguments += ["--no-annotate", "--quiet"]
    if lock.same_as:
        arguments += ["--constraint", project.locks()[lock.same_as].file]
    if upgrade:
        arguments.append("--upgrade")
    uv(*arguments, stdin="\n".join(lock.requirements), purpose=f"lock {lock.file}")
    text = lock.path.read_text(encoding="utf-8")
    if "://" in text:
        raise ProblemError(f"{lock.file} names an address. Lock again without an index of your own.")
    lock.path.write_text(header(lock) + text, encoding="utf-8")


def header(lock: Lock) -> str:
    source = f"the extras {', '.join(lock.extras)}" if lock.extras else ", ".join(lock.requirements)
    return HEADER.format(source=source, inputs=lock.inputs())


def is_current(lock: Lock) -> bool:
    return lock.path.exists() and lock.path.read_text(encoding="utf-8").startswith(header(lock))


def check() -> None:
    stale = [lock.file for lock in project.locks().values() if not is_current(lock)]
    if stale:
        raise ProblemError(f"Not made from the pyproject.toml of today: {', '.join(stale)}. Run: make lock")


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools.lock", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only tell whether the locks are current")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    options = parser.parse_args()
    if options.check:
        check()
        return
    for lock in project.locks().values():
        make(lock, upgrade=options.upgrade)
        packages = sum("==" in line for line in lock.path.read_text(encoding="utf-8").splitlines()[2:])
        print(f"{lock.file}: {packages} packages")


if __name__ == "__main__":
    try:
        main()
    except ProblemError as problem:
        sys.exit(str(problem))
