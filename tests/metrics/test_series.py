from __future__ import annotations

import math
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ecs_gpu_recovery.metrics.sample import Sample
from ecs_gpu_recovery.metrics.series import HOUR, RESOLUTION_S, SeriesStore, read_series

T0 = 1_800_000_000 // (HOUR * RESOLUTION_S) * (HOUR * RESOLUTION_S)
LOSS, READ = "gpu_recovery_job_loss", "gpu_recovery_host_disk_read_bytes_total"


def sampled(slot: int, **losses: float) -> Sample:
    sample = Sample(float(T0 + slot * RESOLUTION_S))
    for job, loss in losses.items():
        sample.put("job_loss", loss, job=job)
    return sample


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.db"


@pytest.fixture
def store(path: Path) -> Iterator[SeriesStore]:
    with closing(SeriesStore(path)) as made:
        yield made


def test_what_went_in_comes_out_across_hours_and_restarts(path: Path) -> None:
    store = SeriesStore(path)
    for slot in range(3 * HOUR + 7):
        if slot in (HOUR - 1, 2 * HOUR, 2 * HOUR + 50):  # in the middle of an hour too
            store.close()
            store = SeriesStore(path)
        assert store.add(sampled(slot, a=slot, b=-slot) if slot % 3 else sampled(slot, a=slot))
    a, b = read_series(path, LOSS)
    store.close()
    assert (a.labels, b.labels) == ({"job": "a"}, {"job": "b"})
    assert a.points == tuple((T0 + slot * 10.0, float(slot)) for slot in range(3 * HOUR + 7))
    assert b.points == tuple((T0 + slot * 10.0, -float(slot)) for slot in range(3 * HOUR + 7) if slot % 3)


def test_questions_about_a_stretch_of_time_and_some_labels(store: SeriesStore, path: Path) -> None:
    for slot in range(HOUR + 20):
        store.add(sampled(slot, a=slot, b=0))
    until = T0 + (HOUR + 5) * 10
    (found,) = read_series(path, LOSS, {"job": "a"}, since=until - 95, until=until)
    assert [value for _, value in found.points] == list(range(HOUR - 4, HOUR + 6))
    assert read_series(path, LOSS, {"job": "nobody"}) == []
    assert read_series(path, LOSS, since=until + 10_000) == []
    store.close()
    assert read_series(path, LOSS, {"job": "a"}, since=until - 95, until=until) == [found]


def test_a_step_gives_a_gauges_mean_and_a_counters_last_value(store: SeriesStore, path: Path) -> None:
    for slot in range(12):
        sample = sampled(slot, a=slot)
        sample.put("host_disk_read_bytes_total", slot * 1e12 + 1, host="h")
        store.add(sample)
    (loss,), (read,) = read_series(path, LOSS, step=60), read_series(path, READ, step=60)
    assert loss.points == ((T0, 2.5), (T0 + 60.0, 8.5))
    assert read.points == ((T0, 5e12 + 1), (T0 + 60.0, 11e12 + 1))


@pytest.mark.parametrize("step", [None, 10, 25, 60, 300, 7000, 10**6])
def test_any_step_gives_the_mean_of_what_is_there(store: SeriesStore, path: Path, step: float | None) -> None:
    want: dict[float, list[float]] = {}
    for slot in range(2 * HOUR + 30):
        present = slot % 7 not in (2, 3) and not 100 < slot < 140
        store.add(sampled(slot, a=slot * 0.5) if present else sampled(slot, b=1))
        if present:
            at = (T0 + slot * 10) // max(step or 0, 10) * max(step or 0, 10)
            want.setdefault(at, []).append(slot * 0.5)
    (found,) = read_series(path, LOSS, {"job": "a"}, step=step)
    assert dict(found.points) == {at: pytest.approx(sum(values) / len(values)) for at, values in want.items()}
    assert [at for at, _ in found.points] == sorted(want)


def test_counters_keep_every_digit_and_a_loss_may_explode(store: SeriesStore, path: Path) -> None:
    for slot in range(HOUR + 1):
        sample = sampled(slot, a=(math.nan, math.inf, 1e300)[slot % 3])
        sample.put("host_disk_read_bytes_total", 2**52 + slot, host="h")
        store.add(sample)
    (read,), (loss,) = read_series(path, READ, until=T0 + 3599), read_series(path, LOSS, until=T0 + 3599)
    assert [value for _, value in read.points] == [2.0**52 + slot for slot in range(HOUR)]
    assert {value for _, value in loss.points} == {math.inf, 1e300}


def test_one_sample_in_ten_seconds_is_kept(store: SeriesStore) -> None:
    assert store.add(Sample(T0 + 3.0))
    assert not store.add(Sample(T0 + 8.0))
    assert store.add(Sample(T0 + 13.0))


def test_only_the_last_day_is_kept_and_series_that_ended_are_forgotten(path: Path) -> None:
    store = SeriesStore(path, keep_s=2 * 3600)
    for slot in range(0, 12 * HOUR, 6):
        store.add(sampled(slot, **{f"job-{slot // HOUR}": 1.0}))
    kept = read_series(path, LOSS)
    store.close()
    assert {series.labels["job"] for series in kept} == {"job-9", "job-10", "job-11"}
    assert store_count(path) <= 5


def store_count(path: Path) -> int:
    store = SeriesStore(path)
    store.close()
    return store.count


def test_a_clock_that_was_set_back_does_not_stop_the_history(store: SeriesStore, path: Path) -> None:
    for slot in range(5 * HOUR):
        store.add(sampled(slot, a=1))
    assert not store.add(sampled(5 * HOUR - 3, a=2)), "a small step is waited out"
    assert store.add(sampled(HOUR + 5, a=2))
    assert store.add(sampled(HOUR + 6, a=2))
    (found,) = read_series(path, LOSS)
    times = [at for at, _ in found.points]
    assert times == sorted(set(times))
    assert found.points[-1] == (T0 + (HOUR + 6) * 10.0, 2.0)


def test_too_many_series_are_refused_not_kept(path: Path) -> None:
    store = SeriesStore(path, max_series=3)
    store.add(sampled(0, a=1, b=1, c=1, d=1, e=1))
    assert (store.count, store.refused) == (3, 2)
    store.close()


def test_a_file_that_would_grow_too_large_loses_its_oldest_hours(path: Path) -> None:
    chance = random.Random(1)
    store = SeriesStore(path, max_bytes=300_000)
    for slot in range(0, 12 * HOUR, 2):
        store.add(sampled(slot, **{f"j{n}": chance.random() for n in range(40)}))
    assert store.size() < 600_000
    found = read_series(path, LOSS, {"job": "j0"})[0].points
    store.close()
    assert found[0][0] > T0
    assert found[-1][0] == T0 + (12 * HOUR - 2) * 10


@pytest.mark.parametrize("damage", [b"this is no database" * 300, b"SQLite format 3\0" + b"\xff" * 8000])
def test_a_damaged_file_makes_room_for_a_new_one(path: Path, damage: bytes) -> None:
    path.write_bytes(damage)
    store = SeriesStore(path)
    store.add(sampled(0, a=1))
    assert len(read_series(path, LOSS)) == 1
    store.close()


def test_a_file_of_another_version_makes_room_too(path: Path) -> None:
    with sqlite3.connect(path) as conn:
        conn.execute("CREATE TABLE other (x)")
        conn.execute("PRAGMA user_version=99")
    conn.close()
    store = SeriesStore(path)
    assert store.add(sampled(0, a=1))
    store.close()


def test_a_write_that_fails_leaves_the_store_as_it_was(store: SeriesStore, path: Path) -> None:
    store.add(sampled(0, a=1))
    store._conn.execute("PRAGMA query_only=1")
    with pytest.raises(sqlite3.OperationalError):
        store.add(sampled(1, a=1, new=2))
    store._conn.execute("PRAGMA query_only=0")
    assert store.add(sampled(2, a=1, new=2))
    assert [len(series.points) for series in read_series(path, LOSS)] == [2, 1]


def test_there_is_nothing_where_no_file_is_and_no_such_metric(path: Path) -> None:
    assert read_series(path, LOSS) == []
    assert not path.exists()
    with pytest.raises(ValueError, match="no metric"):
        read_series(path, "gpu_recovery_nonsense")


def test_a_day_of_64_busy_nodes_stays_small(store: SeriesStore) -> None:
    """Every number as noisy as in real life: some minutes of the whole fleet, scaled to a day."""
    chance, first = random.Random(7), 0
    for slot in range(61):
        sample = Sample(float(T0 + slot * RESOLUTION_S))
        for node in range(64):
            _busy_node(sample, f"node-{node}", chance)
        store.add(sample)
        first = store.size() if slot == 0 else first
    series, day = store.count, first + (store.size() - first) / 60 * 24 * HOUR
    print(f"{series} series, {day / 1e6:.0f} MB a day, {day / series / 24 / HOUR:.2f} bytes a number")
    assert day < 60e6


def test_only_the_owner_can_read_the_file(path: Path) -> None:
    path.touch(0o644)
    store = SeriesStore(path)
    store.add(sampled(0, a=1))
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    store.close()
    assert set(modes.values()) == {0o600}, modes


def test_the_place_of_a_forgotten_series_is_taken_by_another_without_mixing_them(path: Path) -> None:
    store = SeriesStore(path, keep_s=3600)
    for slot in range(0, 6 * HOUR, 6):
        store.add(sampled(slot, **{f"job-{slot // HOUR}": float(slot // HOUR)}))
    assert store.count < 5
    store.close()
    for found in read_series(path, LOSS):
        assert {value for _, value in found.points} == {float(found.labels["job"].removeprefix("job-"))}


def _busy_node(sample: Sample, node: str, chance: random.Random) -> None:
    sample.put("node_connected", 1, node=node)
    sample.put("node_cpu_cores", chance.uniform(10, 12), node=node)
    sample.put("node_memory_bytes", 3e11 + chance.randrange(1 << 24) * 4096, node=node)
    for gpu in range(8):
        where = {"node": node, "gpu": str(gpu)}
        sample.put("gpu_present", 1, **where)
        sample.put("gpu_utilization_ratio", chance.randrange(90, 101) / 100, **where)
        sample.put("gpu_memory_used_bytes", (70000 + chance.randrange(4)) * 2**20, **where)
        sample.put("gpu_memory_total_bytes", 81559 * 2**20, **where)
        sample.put("gpu_temperature_celsius", chance.randrange(60, 66), **where)
        sample.put("gpu_power_watts", chance.randrange(6000, 6900) / 10, **where)
        sample.put("gpu_throttled", 0, **where)
        sample.put("gpu_ecc_uncorrectable_errors", 0, **where)
        sample.put("gpu_action_wanted", 0, **where)


def test_a_file_whose_tables_are_yet_to_be_made_has_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.db"
    path.touch()
    assert read_series(path, "gpu_recovery_nodes") == []
