"""The policy file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ecs_gpu_recovery.health import policy
from ecs_gpu_recovery.health.findings import Action

OWN = """
version = 1

[limits]
burst_s = 60

[[rule]]
id = "ours"
source = "xid"
codes = [63, "200-202"]
action = "reboot"
why = "we don't wait for the next gap"

[group.lab.limits]
min_free_percent = 50

[[group.lab.rule]]
id = "lab"
source = "xid"
codes = [79]
action = "replace"
repeat = { count = 2, window_s = 3600, action = "watch" }
why = "the lab has spares"
"""


def load(tmp_path: Path, text: str, group: str = "") -> policy.Policy:
    file = tmp_path / "own.toml"
    file.write_text(text)
    return policy.load(file, group)


def test_the_shipped_rules_cover_every_source(rules: policy.Policy) -> None:
    for source in policy.SOURCES - {"dcgm", "dcgm-test", "kernel"}:
        assert rules.rule(source, "something nobody thought of").action not in (Action.REBOOT, Action.REPLACE)


def test_rule_ids_are_unique_and_every_rule_says_why(rules: policy.Policy) -> None:
    ids = [rule.id for rule in rules.rules]
    assert len(ids) == len(set(ids))
    assert all(rule.why.endswith(".") for rule in rules.rules)


def test_no_code_is_named_by_two_rules(rules: policy.Policy) -> None:
    named = [(rule.source, code) for rule in rules.rules for code in rule.codes]
    assert len(named) == len(set(named))


def test_an_own_file_goes_in_front_and_keeps_the_rest(tmp_path: Path) -> None:
    rules = load(tmp_path, OWN)
    assert rules.rule("xid", 63).id == "ours"
    assert rules.rule("xid", 201).id == "ours"
    assert rules.rule("xid", 79).id == "xid-off-bus"
    assert rules.limits.burst_s == 60
    assert rules.limits.min_free_percent == 5


def test_a_node_group_has_rules_of_its_own(tmp_path: Path) -> None:
    rules = load(tmp_path, OWN, "lab")
    assert rules.rule("xid", 79).id == "lab"
    assert rules.rule("xid", 63).id == "ours"
    assert rules.limits.min_free_percent == 50
    assert rules.to_json()["group"] == "lab"
    assert load(tmp_path, OWN, "other").rule("xid", 79).id == "xid-off-bus", "a group without rules"


def test_json_is_read_too(tmp_path: Path) -> None:
    rule = '{"id": "j", "source": "xid", "codes": [43], "action": "watch", "why": "x"}'
    assert load(tmp_path, f'{{"version": 1, "rule": [{rule}]}}').rule("xid", 43).id == "j"


def test_the_digest_changes_with_the_rules(tmp_path: Path, rules: policy.Policy) -> None:
    assert load(tmp_path, OWN).digest != rules.digest


def bad_rule(source: str = "xid", codes: str = "[1]", action: str = "watch", more: str = "") -> str:
    return f'[[rule]]\nsource = "{source}"\ncodes = {codes}\naction = "{action}"\nwhy = ""\n{more}\n'


BAD = "".join(
    (
        'version = 2\nextra = 1\n[limits]\nburst_s = "long"\ncolour = 3\n',
        bad_rule(source="tea leaves", more='id = "a"'),
        bad_rule(codes="[]", more='id = "b"'),
        bad_rule(action="explode", more='id = "c"'),
        bad_rule(),
        bad_rule(codes='["9-3"]', more='id = "d"'),
        bad_rule(more='id = "e"\nrepeat = { count = 1, window_s = 5, action = "watch" }'),
        bad_rule(more='id = "f"\nreason = "misspelt"'),
    )
)


def test_everything_wrong_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(policy.PolicyError) as caught:
        load(tmp_path, BAD)
    told = str(caught.value)
    wrong = ("version", "extra", "burst_s", "colour", "'id' is missing", *(f"({rule})" for rule in "abcdef"))
    assert [part for part in wrong if part not in told] == []


@pytest.mark.parametrize("text", ["= =", "[]", "{", '{"version": 1, "rule": 3}', "version = 1\nlimits = 3"])
def test_a_file_that_is_no_policy_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(policy.PolicyError):
        load(tmp_path, text)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(policy.PolicyError, match="cannot be read"):
        policy.load(tmp_path / "nothing.toml")


def test_the_faults_that_freeze_a_program_are_marked_fatal() -> None:
    """Xid 79, 95, 119, 120, 140 and a fatal error of an NVSwitch: nothing else stops a job that still seems to run."""
    marked = {(rule.source, code) for rule in policy.load().rules if rule.fatal for code in rule.codes}
    assert marked == {*(("xid", code) for code in ("79", "95", "119", "120", "140")), ("sxid", "fatal")}


def test_fatal_is_yes_or_no(tmp_path: Path) -> None:
    rule = "version = 1\n" + bad_rule(codes="[13]", more='id = "x"\nfatal = ').rstrip()
    assert load(tmp_path, f"{rule} true\n").rule("xid", 13).fatal
    with pytest.raises(policy.PolicyError, match="fatal must be true or false"):
        load(tmp_path, f'{rule} "very"\n')
