"""Every licence of what is shipped is known and accepted, and the page says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import licences
from tools.licences import Part, licences_of


def test_everything_shipped_has_a_licence_that_is_accepted() -> None:
    parts = [*licences.packages(), *licences.vendored()]
    assert len(parts) > 20
    assert [part.problem for part in parts if part.problem] == []


def test_the_page_is_current() -> None:
    made = licences.page([*licences.packages(), *licences.vendored()])
    assert licences.PAGE.read_text() == made, "run: python -m tools.licences"


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({"License-Expression": ["MIT OR Apache-2.0"], "License": ["GPL"]}, ("MIT", "Apache-2.0")),
        ({"Classifier": ["License :: OSI Approved :: BSD License"]}, ("BSD",)),
        ({"Classifier": ["License :: OSI Approved"], "License": ["Apache-2.0"]}, ("Apache-2.0",)),
        ({"License": ["UNKNOWN"]}, ()),
        ({}, ()),
    ],
)
def test_a_licence_is_read_wherever_a_package_puts_it(
    told: dict[str, list[str]], found: tuple[str, ...]
) -> None:
    assert licences_of(told) == found


@pytest.mark.parametrize("bad", [("GPL-3.0-or-later",), ("MIT", "LGPL-2.1"), ("Proprietary",), ()])
def test_copyleft_and_unknown_licences_are_refused(bad: tuple[str, ...]) -> None:
    assert Part(name="p", version="1", licences=bad, used_by="functions").problem
    assert not Part(name="p", version="1", licences=("MIT",), used_by="functions").problem


def test_a_vendored_file_without_its_licence_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing" / "thing.js").write_text('var t={version:"1.2.3"}')
    (part,) = licences.vendored(tmp_path)
    assert part.version == "1.2.3"
    assert part.problem == "thing 1.2.3: its licence is not known"


def test_a_lock_is_read_without_what_is_for_windows_only() -> None:
    text = "a==1.0 \\\n    --hash=sha256:00\nb==2.0 ; sys_platform == 'win32' \\\nc==3 ; python_version < '3.12' \\\n"
    assert licences.locked(text) == [("a", "1.0"), ("c", "3")]
