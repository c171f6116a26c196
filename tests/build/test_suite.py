"""The tests run on every Python there is, and the report names the one there is not."""

from __future__ import annotations

from tools.suite import plan


def test_both_versions_are_tested_the_everyday_one_first() -> None:
    assert plan("3.13", lambda version: True) == (["3.13", "3.11"], [])


def test_a_version_that_is_not_on_the_machine_is_named() -> None:
    assert plan("3.11", lambda version: False) == (["3.11"], ["3.13"])


def test_another_everyday_version_does_not_replace_the_supported_ones() -> None:
    assert plan("3.12", lambda version: version == "3.11") == (["3.12", "3.11"], ["3.13"])
