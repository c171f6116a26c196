from __future__ import annotations

import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ecs_gpu_recovery.local.files import changed_at, create_json, now_iso, read_json, try_lock, write_json


def test_a_file_is_created_by_one_writer_only(tmp_path: Path) -> None:
    path = str(tmp_path / "claim")
    won: list[int] = []

    def race(number: int) -> None:
        if create_json(path, {"by": number}):
            won.append(number)

    racers = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert len(won) == 1
    assert read_json(path) == {"by": won[0]}
    assert [entry.name for entry in tmp_path.iterdir()] == ["claim"]


def test_a_file_that_is_not_there_is_none_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    assert read_json(str(tmp_path / "absent" / "x.json")) is None
    (tmp_path / "x.json").write_text('{"half":')
    with pytest.raises(ValueError, match="Expecting value"):
        read_json(str(tmp_path / "x.json"))
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(ValueError, match="does not hold a JSON object"):
        read_json(str(tmp_path / "x.json"))


def test_a_replaced_file_leaves_nothing_beside_it(tmp_path: Path) -> None:
    for value in range(3):
        write_json(str(tmp_path / "x.json"), {"value": value}, durable=True)
    assert read_json(str(tmp_path / "x.json")) == {"value": 2}
    assert len(list(tmp_path.iterdir())) == 1


def test_the_mark_of_a_write_is_not_that_of_whoever_writes_right_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    put = os.replace

    def put_and_overwrite(source: str, target: str) -> None:
        put(source, target)
        path.write_text("{half")

    assert write_json(str(path), {"value": 1}) == changed_at(str(path))
    monkeypatch.setattr(os, "replace", put_and_overwrite)
    assert write_json(str(path), {"value": 2}) != changed_at(str(path))


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert try_lock(path) is not None
    assert try_lock(path) is None


def test_our_clock_writes_what_datetime_reads() -> None:
    assert abs(datetime.fromisoformat(now_iso()) - datetime.now(UTC)) < timedelta(minutes=1)
