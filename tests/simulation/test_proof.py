"""How the proof counts and tells."""

from __future__ import annotations

from tools.proof import read_junit, report

JUNIT = """<testsuites><testsuite>
<testcase name="a"><properties><property name="kills" value="100"/></properties></testcase>
<testcase name="b"><failure/></testcase>
<testcase name="c"><skipped/></testcase>
</testsuite></testsuites>"""


def test_a_test_counts_as_many_as_it_says_and_a_skipped_one_none() -> None:
    assert read_junit(JUNIT, "kills") == (101, 1)


def test_the_report_shows_only_what_was_measured() -> None:
    text = report({"seeds_run": 10_000, "seeds_failed": 0})
    assert "10,000" in text
    assert "kill -9" not in text
