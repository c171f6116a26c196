"""The files of facts: complete, without a number or a word that nothing else knows."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from ecs_gpu_recovery.health import judge, policy, sources
from ecs_gpu_recovery.health.findings import Action
from ecs_gpu_recovery.health.judge import nvlink, phrases, training_log
from ecs_gpu_recovery.health.sources import dcgm_codes, kernel_log, log_times, recovery, smi_fields
from ecs_gpu_recovery.health.sources.gpus import GpuState

RULES = policy.load()
FILES = [path for package in (judge, sources) for path in Path(str(package.__file__)).parent.glob("*.toml")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_of_facts_stands_beside_the_module_that_reads_it(path: Path) -> None:
    assert path.with_suffix(".py").exists()
    assert tomllib.loads(path.read_text(encoding="utf-8"))


def test_every_number_of_dcgm_has_a_name_a_known_rating_and_messages_of_its_own() -> None:
    assert sorted(dcgm_codes.CODES) == list(range(max(dcgm_codes.CODES) + 1)), "DCGM numbers without a gap"
    assert {rating for _, rating in dcgm_codes.CODES.values()} <= set(dcgm_codes.SEVERITIES.values())
    worded = {code for code, _ in dcgm_codes._MESSAGES}
    assert worded <= set(dcgm_codes.CODES)
    for code, hidden in dcgm_codes._COVERS.items():
        assert {code, *hidden} <= worded
        assert code not in hidden


def test_every_word_for_people_is_about_something_that_the_rules_know() -> None:
    assert set(phrases._WORDS["kernel"]) == {name for name, _ in kernel_log._WORDED} - {"init-failed"}
    assert set(phrases._WORDS["wishes"]) == set(recovery.BY_NUMBER.values()) - {"none"}
    for code in phrases._WORDS["xids"]:
        source = "nvlink5" if nvlink.is_nvlink5(int(code)) else "xid"
        assert source == "nvlink5" or RULES.exact("xid", code), f"Xid {code} has words and no rule"


def test_every_signature_of_a_training_log_has_a_rule_or_is_a_mere_hint() -> None:
    hints = {code for code, _ in training_log._SIGNATURES if RULES.exact("log", code) is None}
    assert hints == {"gpu-bus", "gpu-hint", "killed", "peer-gone"}
    assert {RULES.rule("log", code).action for code in hints} == {Action.WATCH}


def test_every_field_of_nvidia_smi_is_one_of_a_gpu_and_every_name_is_in_small_letters() -> None:
    known = {field.name for field in fields(GpuState)}
    for kind in smi_fields._NAMES.values():
        assert set(kind) <= known
        assert all(name == name.lower() for names in kind.values() for name in names)


def test_every_nvlink_unit_says_what_follows_and_no_status_means_two_things() -> None:
    for units in nvlink._UNITS.values():
        for unit in units:
            meanings = [*unit.reset, *unit.ignore, *unit.follow]
            assert bool(meanings) is not bool(unit.any_status), unit.names
            assert len(meanings) == len(set(meanings)), unit.names
            assert all(re.fullmatch(r"[A-Z0-9_]+", name) for name in unit.names)


def test_every_month_has_names_and_no_name_is_two_months() -> None:
    rows = [row.split() for row in log_times._FACTS["months"]]
    assert len(rows) == 12
    assert len(log_times._MONTHS) == sum(map(len, rows))
    assert not set(log_times._ZONES) & set(log_times._SEVERAL)
