"""`gpu-recovery doctor`: can this machine and this state folder do the work? Each finding says what to do."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import RecoveryError, Refused
from ..own_folder import own_folder

_LEAST_FREE_MB = 200


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    ok: bool
    found: str
    do: str = ""


def examine(state: Path, backend: str) -> list[Finding]:
    """All checks, in the order a newcomer should read them."""
    if backend == "aws":
        from .aws_doctor import examine as examine_aws

        return examine_aws(os.environ)
    if backend.startswith(("http://", "https://")):
        return _console(backend, state)
    if backend != "local":
        raise Refused(f"there is no backend {backend!r}: use local, aws, or the address of a console")
    checks: dict[str, Callable[[Path], Finding]] = {
        "python": _python,
        "processes": _proc,
        "state folder": _folder,
        "disk space": _space,
        "database": _database,
        "controller": _controller,
        "nodes": _nodes,
        "GPUs": _gpus,
    }
    return [_made(name, check, state) for name, check in checks.items()]


def _made(name: str, check: Callable[[Path], Finding], state: Path) -> Finding:
    """A check that may not even look has found something too."""
    try:
        return check(state)
    except OSError as exc:
        return Finding(name, False, str(exc), "make it readable, or choose another with --state")
    except Refused as exc:
        return Finding(name, False, str(exc))


def _console(address: str, state: Path) -> list[Finding]:
    """Whether a console answers, as whom it knows us, and whether it is of our age."""
    from .. import __version__
    from .remote_backend import RemoteBackend

    try:
        told = RemoteBackend(address, state=state).whoami()
    except RecoveryError as exc:
        return [Finding("console", False, str(exc))]
    other = told["version"] != __version__
    do = f"this command is {__version__}: use the same version on both sides" if other else ""
    return [
        Finding("console", True, f"{address}, version {told['version']}, backend {told['backend']}", do),
        Finding("you", True, f"{told['name']}, {told['role']}"),
    ]


def _python(state: Path) -> Finding:
    ok = sys.version_info >= (3, 11)
    return Finding("python", ok, sys.version.split()[0], "" if ok else "install Python 3.11 or newer")


def _proc(state: Path) -> Finding:
    ok = Path("/proc/self/stat").exists()
    return Finding(
        "processes", ok, "/proc is there" if ok else "no /proc", "" if ok else "the embedded mode needs Linux"
    )


def _folder(state: Path) -> Finding:
    if not state.exists():
        parent = next(p for p in state.parents if p.exists())
        ok = os.access(parent, os.W_OK)
        return Finding(
            "state folder",
            ok,
            f"{state} is not there yet",
            "start one with: gpu-recovery up" if ok else f"make {parent} writable",
        )
    own_folder(state)
    if not os.access(state, os.W_OK):
        return Finding("state folder", False, str(state), "make it writable, or choose another with --state")
    if state.stat().st_mode & 0o077:
        return Finding("state folder", True, f"{state}: others may look into it", f"chmod 700 {state}")
    return Finding("state folder", True, str(state))


def _space(state: Path) -> Finding:
    where = state if state.exists() else next(p for p in state.parents if p.exists())
    free = shutil.disk_usage(where).free // 2**20
    ok = free >= _LEAST_FREE_MB
    return Finding("disk space", ok, f"{free} MiB free", "" if ok else f"free some space in {where}")


def _database(state: Path) -> Finding:
    from ..local.reads import examine_file
    from ..local.schema import SCHEMA_VERSION
    from ..local.wiring import DATABASE

    path = state / DATABASE
    if not path.exists():
        return Finding("database", True, "none yet")
    try:
        seen = examine_file(path)
    except sqlite3.Error as exc:
        return Finding(
            "database",
            False,
            f"{path}: {exc}",
            "move it away and start with an empty state, or restore a copy",
        )
    if seen.version > SCHEMA_VERSION:
        found = f"{path}: schema {seen.version}, this release knows {SCHEMA_VERSION}"
        return Finding("database", False, found, "update, or use another state folder")
    ok = seen.integrity == "ok"
    found = f"{seen.jobs} jobs, integrity {seen.integrity}"
    return Finding("database", ok, found, "" if ok else "restore a copy of the state folder")


def _controller(state: Path) -> Finding:
    from ..local.controller import running_pid
    from ..local.reads import live_jobs
    from ..local.wiring import DATABASE

    pid = running_pid(state)
    if pid is not None:
        return Finding("controller", True, f"runs as pid {pid}")
    start = f"start one with: gpu-recovery up --state {state}"
    try:
        live = live_jobs(state / DATABASE) if (state / DATABASE).exists() else 0
    except sqlite3.Error as exc:
        return Finding(
            "controller", False, f"none runs, and whether jobs need one can't be told: {exc}", start
        )
    found = "none runs on this state"
    if live:
        found += (
            f", and {live} {'jobs have' if live > 1 else 'job has'} not ended: nothing moves, no fault is met"
        )
    return Finding("controller", not live, found, start)


def _nodes(state: Path) -> Finding:
    from ..local.cluster import Cluster

    if not (state / "nodes").is_dir():
        return Finding("nodes", True, "none yet")
    views = Cluster(state).nodes()
    if bad := [f"{view.name}: {view.why_off}" for view in views if view.damaged]:
        return Finding("nodes", False, "; ".join(bad), "restore that file, or make it readable")
    away = [view.name for view in views if not view.connected]
    return Finding(
        "nodes",
        True,
        f"{len(views)} nodes" + (f"; not connected: {', '.join(away)}" if away else ", all connected"),
    )


def _gpus(state: Path) -> Finding:
    from ..local.gpus import NvmlUnavailable, count_real

    try:
        found = f"{count_real()} real GPUs"
    except NvmlUnavailable as exc:
        found = f"no real ones here ({exc}): nodes have simulated GPUs"
    return Finding("GPUs", True, found)
