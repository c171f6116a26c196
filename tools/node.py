"""What comes from npm: the CDK command, the Node.js that runs it, and axe-core, all as locked in package-lock.json.

`python -m tools.node` leaves node_modules ready. No script of theirs is run. While the lock is the one that was
installed, a second call costs one small read.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time

from tools.project import ROOT, TOOLS, ProblemError

MODULES = ROOT / "node_modules"
LOCK = ROOT / "package-lock.json"
CDK, AXE = MODULES / ".bin" / "cdk", MODULES / "axe-core" / "axe.min.js"
_STAMP = MODULES / ".ready"
_HELP = """\
If the npm registry cannot be reached: check the network. Behind a proxy, set HTTPS_PROXY. With a mirror, set
npm_config_registry to it. Then run make again."""


def ensure() -> None:
    """Raises `ProblemError` where it can't be done; the text says what is missing."""
    wanted = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if _ready(wanted):
        return
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / "node.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not _ready(wanted):
            _install()
            _STAMP.write_text(wanted, encoding="ascii")


def _ready(wanted: str) -> bool:
    return _STAMP.exists() and _STAMP.read_text(encoding="ascii") == wanted and CDK.exists()


def _install() -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise ProblemError(
            "npm was not found, so the CDK command cannot be brought. Install Node.js with npm\n"
            "(Debian, Ubuntu: apt-get install nodejs npm; macOS: brew install node), then run this again."
        )
    began = time.monotonic()
    print("Installing package-lock.json into node_modules", file=sys.stderr, flush=True)
    done = subprocess.run(
        [npm, "ci", "--ignore-scripts", "--loglevel=error"],
        cwd=ROOT,
        env={"npm_config_cache": str(TOOLS / "cache" / "npm"), **os.environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-15:]
        quoted = "\n".join(f"  | {line}" for line in words)
        raise ProblemError(f"Could not install what package-lock.json names.\n{quoted}\n{_HELP}")
    print(f"node_modules is ready ({time.monotonic() - began:.1f} s)", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        ensure()
    except ProblemError as problem:
        sys.exit(str(problem))
