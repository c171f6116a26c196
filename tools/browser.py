"""A Chromium for the tests and the pictures: the one that is here, or one that is brought.

    python -m tools.browser     finds or brings one, and prints where it is

Root on Debian gets the system's package by apt-get. Everybody else gets one in this folder, as far as the machine has
the libraries that it needs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tools.environment import folder_of
from tools.project import ROOT, ProblemError

#: Where a fetched one goes: beside the other tools, not into anybody's home.
FOLDER = ROOT / ".tools" / "browsers"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: A container has no user namespaces for its sandbox and a small /dev/shm; tests need no update, sync or report.
FLAGS = (
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_PATIENCE_S = 240
_APT = (
    "apt-get",
    "-q",
    "-o",
    "Acquire::Retries=1",
    "-o",
    "Acquire::http::Timeout=20",
    "-o",
    "DPkg::Lock::Timeout=120",
)
#: A machine without a way out is not asked again with every run.
_ASK_AGAIN_S = 24 * 3600
_RELEASE = Path("/etc/os-release")


def find() -> str:
    """The browser that CHROMIUM names, that the system has, or that was fetched; empty if there is none."""
    named = os.environ.get("CHROMIUM", "")
    if named:
        return named if os.access(named, os.X_OK) else ""
    for name in _NAMES:
        if where := shutil.which(name):
            return where
    fetched = sorted(FOLDER.glob("chromium-*/chrome-*/chrome"), reverse=True)
    return str(fetched[0]) if fetched else ""


def ensure() -> str:
    """Like `find`, and brings one where there is none. A machine that can't have one is told what to do."""
    if found := find():
        return found
    tried = FOLDER / "tried"
    if tried.exists() and time.time() - tried.stat().st_mtime < _ASK_AGAIN_S:
        raise ProblemError(_ADVICE.format(why="it could not be brought earlier"))
    if os.environ.get("CHROMIUM"):
        raise ProblemError(_ADVICE.format(why="CHROMIUM names no program"))
    why = _by_apt() if apt_can() else _fetch()
    if not why and (found := find()):
        return found
    FOLDER.mkdir(parents=True, exist_ok=True)
    tried.touch()
    raise ProblemError(_ADVICE.format(why=why or "it is not where it should be"))


_ADVICE = (
    "No Chromium, so no browser tests: {why}."
    " Install one (Debian: apt-get install chromium), or set CHROMIUM to its path"
)


def apt_can() -> bool:
    """Root on Debian. (Ubuntu's package of this name only points at a snap.)"""
    release = _RELEASE.read_text(encoding="utf-8").splitlines() if _RELEASE.exists() else []
    return "ID=debian" in release and os.geteuid() == 0 and shutil.which("apt-get") is not None


def _by_apt() -> str:
    """Why it did not work; empty if it did."""
    print("No Chromium found; bringing one for the browser tests: apt-get install chromium", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for order in (("update",), ("install", "--yes", "--no-install-recommends", "chromium")):
        try:
            done = subprocess.run([*_APT, *order], env=environment, capture_output=True, timeout=_PATIENCE_S)
        except (OSError, subprocess.TimeoutExpired) as exc:
            return f"apt-get {order[0]} did not end ({type(exc).__name__})"
        if done.returncode:
            return f"apt-get {order[0]} failed"
    return ""


def _fetch() -> str:
    """Why it did not work; empty if it did. A browser that lacks a library of the system is no browser."""
    print("No Chromium found; fetching one for the browser tests (about 170 MB)", flush=True)
    command = [
        str(folder_of("dev") / "bin" / "python"),
        "-m",
        "playwright",
        "install",
        "--no-shell",
        "chromium",
    ]
    environment = {**os.environ, "PLAYWRIGHT_BROWSERS_PATH": str(FOLDER)}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
        if done.returncode:
            return "it can't be fetched from here"
        tried = subprocess.run([find(), "--version"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return f"it can't be fetched or started ({type(exc).__name__})"
    return "" if tried.returncode == 0 else "this machine lacks libraries that it needs"


if __name__ == "__main__":
    try:
        print(ensure())
    except ProblemError as problem:
        sys.exit(str(problem))
