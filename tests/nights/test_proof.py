"""How the proof counts, goes on after it was cut off, and remembers what went wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.model.errands import Errands
from testbed.model.worlds import QUICK, THOROUGH
from testbed.nights import batch
from testbed.nights.batch import Tally
from testbed.nights.night import run
from tools import evidence, proof, reports
from tools.evidence import Extent, read_junit, remember, that_count
from tools.proof import Progress

JUNIT = """<testsuites><testsuite>
<testcase name="a"><properties><property name="kills" value="100"/></properties></testcase>
<testcase name="b"><properties><property name="kills" value="7"/></properties><failure/></testcase>
<testcase name="c"><skipped/></testcase>
<testcase name="d"/>
<testcase name="e"><error/></testcase>
</testsuite></testsuites>"""


def test_a_test_counts_as_many_as_it_says_and_a_failure_is_never_hidden() -> None:
    assert read_junit(JUNIT, "kills") == (107, 8)


def test_the_tests_that_count_are_found_by_what_they_say() -> None:
    assert {"tests/embedded/test_controller_kills.py", "tests/local/test_kills.py"} <= set(
        that_count("kills")
    )
    assert "tests/nights/test_mutants.py" in that_count("mutants")
    assert that_count("nothing " + "of the kind") == []


def test_a_night_that_ended_badly_is_remembered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.nights.night.PATIENCE_S", -1e9)
    file = tmp_path / "regressions.txt"
    file.write_text("# nights\n4 late-news  # another\n")
    for _ in range(2):
        remember(run(4), file)
    assert file.read_text().splitlines()[2:] == [f"4  # {run(4).violation}"]
    assert "never ended" in run(4).violation


def test_a_run_that_was_cut_off_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "BLOCK", 5)
    monkeypatch.setattr(evidence, "PROCESSES", 1)
    extent, file = Extent(seeds=13), tmp_path / "kept"
    told: list[str] = []
    first = Progress(extent, file, "code")
    with pytest.raises(KeyboardInterrupt):
        evidence.seeds(extent, first.nights, told.append, _cut_off_after(first, 2))
    again = Progress(extent, file, "code")
    assert len(again.nights) == 2
    assert evidence.seeds(extent, again.nights, told.append, again.night)["seeds_run"] == 13
    assert len(again.nights) == 3
    assert told[-1].startswith("13 of 13 nights, 0 failed")


def _cut_off_after(progress: Progress, blocks: int):  # type: ignore[no-untyped-def]
    def keep(name: str, tally: Tally) -> None:
        progress.night(name, tally)
        if len(progress.nights) == blocks:
            raise KeyboardInterrupt

    return keep


def test_nothing_is_taken_over_from_other_code_or_another_extent(tmp_path: Path) -> None:
    Progress(Extent(), tmp_path / "kept", "code").part("kills", {"kills": 1})
    assert Progress(Extent(), tmp_path / "kept", "code").numbers == {"kills": {"kills": 1}}
    assert Progress(Extent(), tmp_path / "kept", "newer code").numbers == {}
    assert Progress(Extent(seeds=5), tmp_path / "kept", "code").numbers == {}


def test_a_part_keeps_the_numbers_of_the_others_and_a_bad_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(proof, "OUT", tmp_path / "proof.json")
    monkeypatch.setattr(proof, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(reports, "write_reliability", lambda numbers: [])
    monkeypatch.setattr(evidence, "counted", lambda name, extent, say: {name: 3, f"{name}_failed": 0})
    assert proof.main(["kills"]) == 0
    monkeypatch.setattr(evidence, "counted", lambda name, extent, say: {"mutants": 8, "mutants_caught": 7})
    assert proof.main(["mutants", "--quick"]) == 1
    assert json.loads((tmp_path / "proof.json").read_text()) == {
        "kills": 3,
        "kills_failed": 0,
        "mutants": 8,
        "mutants_caught": 7,
    }
    assert "planted bugs not found: 1" in capsys.readouterr().out


def test_the_model_counts_what_it_searched_and_what_was_searched_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "QUICK", {"nothing goes wrong": QUICK["nothing goes wrong"]})
    monkeypatch.setattr(Errands, "run", lambda self: 11)
    monkeypatch.setattr(evidence, "PROCESSES", 1)
    told: list[str] = []
    extent, file = Extent(slow=False), tmp_path / "kept"
    first = Progress(extent, file, "code")
    found = evidence.model(extent, {}, told.append, first.world)
    assert found["model_worlds"] == 3
    assert found["model_states"] == 7 + 2 * 11
    assert found["model_failed"] == found["model_worlds_cut_short"] == 0
    assert told == ["nothing goes wrong: 7 states"]
    monkeypatch.setattr(evidence, "_search", None)  # none is left to search
    assert evidence.model(extent, Progress(extent, file, "code").worlds, told.append, first.world) == found


def test_the_longest_world_is_one_that_is_searched() -> None:
    assert evidence.LONGEST in THOROUGH


@pytest.mark.parametrize("folder", ["ecs_gpu_recovery/core", "testbed/nights", "tests/model", "tools"])
def test_new_code_anywhere_begins_anew(tmp_path: Path, folder: str) -> None:
    before = proof.code_digest(tmp_path)
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "new.py").touch()
    assert proof.code_digest(tmp_path) != before
