"""What is kept of a node before it is rebooted: one archive for each order, in STATE/evidence/NODE.

A reboot wipes the kernel log and whatever else could tell what went wrong. Nothing here holds up a reboot: what can't
be read is left out, and where nothing can be written the node is rebooted without.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..core import keys
from ..environment import DUMP, PIPE
from ..health.collective import ras, stacks
from .files import DamagedFile, read_json, say
from .views import NodeView

FOLDER, STACKS, RAS = "evidence", "stacks.txt", "ras.txt"
#: Of each file only the end is kept, and of each node only the last archives of repairs, and as many of hangs.
_MOST_BYTES, KEPT = 4 << 20, 50
#: How many of the tasks that ran last are looked at, and how long the driver may take to answer.
_TASKS, _PATIENCE_S = 12, 10.0
#: How long NCCL may wait for those of its ranks that do not answer.
_RAS_S = 3.0
#: How long PyTorch may take to write its last collectives (5 to 6 s on an H200). A node has few ranks.
_DUMP_S, _MOST_DUMPS = 8.0, 16


def _archive(node: NodeView, key: str) -> Path:
    return node.folder.parent.parent / FOLDER / node.name / keys.evidence(key)


def keep(node: NodeView, key: str) -> str:
    """Once per order, however often it is sent. The archive's name; empty if it could not be kept."""
    target = _archive(node, key)
    if target.exists():
        return target.name
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tarfile.open(draft, "w:gz") as archive:
            for name, data, written in _pieces(node.folder, real=node.kind != "simulated"):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode, entry.mtime = len(data), 0o600, int(written)
                archive.addfile(entry, io.BytesIO(data))
        draft.chmod(0o600)
        draft.replace(target)
        _forget(target)
    except OSError as exc:
        say(f"the evidence of {node.name} was not kept: {exc}")
        with suppress(OSError):
            draft.unlink()
    return target.name if target.exists() else ""


def _forget(newest: Path) -> None:
    """The oldest of its kind go: hangs never push out what was kept before a reboot."""
    hang = newest.name.endswith(keys.HANG_ARCHIVE)
    kept = newest.parent.glob(f"*{keys.ARCHIVE}")
    alike = [path for path in kept if path.name.endswith(keys.HANG_ARCHIVE) == hang]
    for old in sorted(alike, key=os.path.getmtime)[:-KEPT]:
        old.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Look:
    """At a rank that hangs. `ras`: where its NCCL can be asked; empty where it has none."""

    node: NodeView
    key: str
    task_dir: Path
    ras: str = ""


def keep_hang(looks: Iterable[Look]) -> None:
    """Once per look. What is found lies in the tasks' own folders, until the next hang of the same tasks."""
    due = [look for look in looks if not _archive(look.node, look.key).exists()]
    dumps = Dumps(look.task_dir for look in due)
    for look in due:
        keep_stacks(look.task_dir)
        if look.ras:
            keep_ras(look.task_dir, look.ras)
        dumps.wait()
        keep(look.node, look.key)


def keep_stacks(task_dir: Path) -> None:
    """Where a rank that hangs stands: the stop that follows ends it."""
    target = task_dir / STACKS
    try:
        target.unlink(missing_ok=True)
        running = read_json(str(task_dir / "running.json"))
        if running is not None:
            target.write_text(stacks.of_tree(int(running["pid"])), encoding="utf-8")
    except (OSError, DamagedFile, KeyError) as exc:
        say(f"the stacks of {task_dir.name} were not kept: {exc}")


def keep_ras(task_dir: Path, address: str) -> None:
    """What its NCCL says of it."""
    target = task_dir / RAS
    try:
        target.unlink(missing_ok=True)
        target.write_text(ras.ask(address, _RAS_S)[:_MOST_BYTES], encoding="utf-8")
    except (OSError, ras.NotToldError) as exc:
        say(f"the NCCL of {task_dir.name} was not heard: {exc}")


class _Written(NamedTuple):
    at_ns: int
    size: int


class Dumps:
    """What PyTorch's flight recorders write when their pipes are written to. All are asked, then awaited together."""

    def __init__(self, task_dirs: Iterable[Path]) -> None:
        pipes = [pipe for task_dir in task_dirs for pipe in task_dir.glob(f"{PIPE}*.pipe")]
        there = [(pipe, _dump(pipe), _written(_dump(pipe))) for pipe in pipes]  # of an earlier hang
        self._awaited = {dump: before for pipe, dump, before in there if _ask(pipe)}
        self._until = time.monotonic() + _DUMP_S

    def wait(self) -> None:
        """Until all are new and have stopped growing. Not for one whose process is stopped, or that has no time."""
        before: dict[Path, _Written] = {}
        while time.monotonic() < self._until:
            written = {dump: _written(dump) for dump in self._awaited}
            if written == before and all(
                now.size and now != self._awaited[at] for at, now in written.items()
            ):
                return
            before = written
            time.sleep(0.1)


def _dump(pipe: Path) -> Path:
    return pipe.with_name(DUMP + pipe.stem.removeprefix(PIPE))


def _written(dump: Path) -> _Written:
    try:
        about = dump.stat()
    except OSError:
        return _Written(0, 0)  # there is none yet
    return _Written(about.st_mtime_ns, about.st_size)


def _ask(pipe: Path) -> bool:
    """Whether somebody reads there. Nothing is waited for."""
    try:
        end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False  # nobody does
    try:
        return stat.S_ISFIFO(os.fstat(end).st_mode) and os.write(end, b"1") == 1
    except OSError:
        return False  # it is full, or was closed
    finally:
        os.close(end)


def _pieces(folder: Path, *, real: bool) -> Iterator[tuple[str, bytes, float]]:
    """The kernel log of this boot, the GPUs, and what the last tasks and checks wrote; each with the time it was."""
    for path, name in ((folder / "kmsg", "kernel.log"), (folder / "gpus.json", "gpus.json")):
        yield from _end_of(path, name)
    yield from _end_of(folder / "boot.json", "boot.json")
    if real:
        yield "nvidia-smi.txt", _driver(), time.time()
    ran = sorted((folder / "tasks").iterdir(), key=os.path.getmtime, reverse=True)[:_TASKS]
    for task in ran:
        for file in ("report.json", "log", "exit.json", STACKS, RAS):
            yield from _end_of(task / file, f"tasks/{task.name}/{file}")
        for dump in sorted(task.glob(f"{DUMP}*"))[:_MOST_DUMPS]:
            yield from _end_of(dump, f"tasks/{task.name}/{dump.name}")


def _at_once(path: str, flags: int) -> int:
    """A pipe that a program has put there is no file, and must not be waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def _end_of(path: Path, name: str) -> Iterator[tuple[str, bytes, float]]:
    try:
        with open(path, "rb", opener=_at_once) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MOST_BYTES))
            yield name, file.read(_MOST_BYTES), os.fstat(file.fileno()).st_mtime
    except OSError:
        return  # there is none, or it is gone meanwhile


def _driver() -> bytes:
    """What it said until its time was over. One that hangs in the driver can't be killed, so its end is not awaited."""
    with tempfile.TemporaryFile() as said:
        try:
            command = [shutil.which("nvidia-smi") or "/usr/bin/nvidia-smi", "-q"]
            asked = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        except OSError as exc:
            return f"nvidia-smi -q: {exc}\n".encode()
        try:
            asked.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            asked.kill()
            with suppress(subprocess.TimeoutExpired):
                asked.wait(1.0)
            said.write(f"\nno answer within {_PATIENCE_S:.0f} s\n".encode())
        said.seek(0)
        return said.read(_MOST_BYTES)
