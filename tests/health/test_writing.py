"""When ranks last wrote, by the files that they keep on the node: what is looked at, and what is told."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ecs_gpu_recovery.health.watch import writing
from ecs_gpu_recovery.health.watch.sinks import Event
from ecs_gpu_recovery.health.watch.writing import MOST_TOLD, WHOLE_JOB, RankFiles, Writing, rank_files
from tests.programs import eventually

EVERY_S = 0.05


def write(path: Path, stamp: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (stamp, stamp))


def until(files: RankFiles, enough: Callable[[], bool]) -> None:
    def looked() -> bool:
        files.look()
        return enough()

    eventually(looked, "the files tell it")


def test_a_file_belongs_to_the_job_and_the_rank_that_its_path_names(tmp_path: Path) -> None:
    now = time.time()
    for name in ("j1/0", "j1/12.log", "j1/0.worker-3", "j2/progress.jsonl"):
        write(tmp_path / name, now)
    write(tmp_path / "j1" / "3.log", now - 2 * 24 * 3600)
    for name in ("stray", "j1/step-100", "j1/.0", "j1/-1", "j1/123456"):
        write(tmp_path / name, now)
    (tmp_path / "j1" / "7").symlink_to(tmp_path / "j1" / "0")
    (tmp_path / "link").symlink_to(tmp_path / "j1")
    (tmp_path / "j1" / "8.folder").mkdir()
    for odd in (b" x", b"a\nb", b"\xff"):
        write(tmp_path / os.fsdecode(odd) / "0", now)
    assert sorted(rank_files(tmp_path))[:9] == sorted(
        (job, rank, name, pytest.approx(now))
        for job, rank, name in (
            ("j1", 0, "0"),
            ("j1", 0, "0.worker-3"),
            ("j1", 12, "12.log"),
            ("j2", -1, "progress.jsonl"),
        )
    )


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_rank_is_told_of_once_its_pauses_are_known_and_as_long_as_the_folder_answers(
    tmp_path: Path,
) -> None:
    mine, stamp = tmp_path / "j" / "1.log", time.time() - 100
    write(mine, stamp)
    write(tmp_path / "old" / "1.log", stamp)
    files = RankFiles(tmp_path, every_s=EVERY_S)
    try:
        until(files, lambda: files._looked > 0)
        assert files.told() == [], "who has just begun to look knows no pause"

        said: list[Event] = []

        def writes_on() -> bool:
            nonlocal stamp
            write(mine, stamp := stamp + 1)
            said[:] = files.told()
            return bool(said)

        until(files, writes_on)
        assert [(one["job"], one["rank"]) for one in said] == [("j", 1)]
        assert int(str(said[0]["silent_s"])) < 100, "it was seen to write, whatever the time of its file"
        os.rename(tmp_path / "j", tmp_path / "stray")
        (tmp_path / "stray" / "1.log").unlink()
        until(files, lambda: files.told() == [])
    finally:
        files.close()
    time.sleep(5 * EVERY_S)
    assert files.told() == [], "nobody looks any more"


def test_the_newest_folders_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_JOBS", 2)
    now = time.time()
    for age in (3, 1, 4, 0, 2):
        write(tmp_path / f"j{age}" / "0", now)
        os.utime(tmp_path / f"j{age}", (now - age, now - age))
    assert [job for job, *_ in rank_files(tmp_path)] == ["j0", "j1"]


def told(folder: Path, *rounds: list[tuple[str, int]]) -> Sequence[Event]:
    """What is told after rounds that saw the files of these ranks change, each in the order of its list."""
    files = RankFiles(folder)
    seen = [
        [{"job": job, "rank": rank, "file": str(rank), "stamp": n} for job, rank in ranks]
        for n, ranks in enumerate(rounds)
    ]
    files._sampler.rounds = lambda: iter(seen)  # type: ignore[method-assign]
    files.look()
    return files.told()


def test_a_job_that_hangs_is_told_of_beside_many_that_are_busy(tmp_path: Path) -> None:
    busy = [("busy", rank) for rank in range(2 * MOST_TOLD)]
    others = [(f"j{i}", 0) for i in range(40)]
    hung = [("hung", WHOLE_JOB), *(("hung", rank) for rank in range(8))]
    said = [(one["job"], one["rank"]) for one in told(tmp_path, *[[*busy, *others, *hung]] * 9)]
    assert len(said) == MOST_TOLD, "an event may hold no more"
    assert {*others, *hung} <= set(said)


def test_files_that_are_gone_are_forgotten_and_when_they_changed_is_not() -> None:
    known: Writing[str] = Writing()
    for n in range(9):
        known.look({f"0.{n}": time.time() + 60})
    last = known.last
    known.look({"0.0": time.time() - 3600})
    assert list(known.files) == ["0.0"]
    assert (known.last, len(known.pauses)) == (last, 8)
