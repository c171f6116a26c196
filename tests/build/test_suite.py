"""The tests run on every Python there is, and the report names the one there is not."""

from __future__ import annotations

from tools.project import ROOT
from tools.suite import ONCE, SOME, plan, proven


def test_both_versions_are_tested_the_everyday_one_first() -> None:
    assert plan("3.13", lambda version: True) == (["3.13", "3.11"], [])


def test_a_version_that_is_not_on_the_machine_is_named() -> None:
    assert plan("3.11", lambda version: False) == (["3.11"], ["3.13"])


def test_another_everyday_version_does_not_replace_the_supported_ones() -> None:
    assert plan("3.12", lambda version: version == "3.11") == (["3.12", "3.11"], ["3.13"])


def test_what_a_second_python_leaves_out_is_there_and_so_is_what_it_runs() -> None:
    left_out = set(proven())
    assert all(path.exists() for path in left_out)
    assert len(left_out) > len(ONCE)
    for folder, names in SOME.items():
        for name in names:
            kept = ROOT / "tests" / folder / name
            assert kept.exists()
            assert kept not in left_out
