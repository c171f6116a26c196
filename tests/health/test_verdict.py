"""From findings to the verdict."""

from __future__ import annotations

import pytest

from ecs_gpu_recovery.health.findings import Action, Check, Finding, Verdict
from ecs_gpu_recovery.health.judge.verdict import Judgement, decide, escalate
from ecs_gpu_recovery.health.policy import Policy

DRIVER = Check(name="driver", status="ok", detail="8 GPU(s)")
SILENT = Check(name="driver", status="not_tested", detail="no driver")
DISK = Check(name="disk", status="ok", detail="")


def finding(
    action: Action,
    source: str = "nvml",
    gpu: str | None = "0000:01:00",
    rule: str = "some-rule",
    kind: str = "xid",
    code: int | str = 1,
    evidence: str = "a line",
) -> Finding:
    return Finding(
        source=source, kind=kind, code=code, gpu=gpu, action=action, rule=rule, why="", evidence=evidence
    )


def judged(
    *findings: Finding, checks: tuple[Check, ...] = (DRIVER,), required: tuple[str, ...] = ()
) -> Judgement:
    return decide(findings, checks, gpu_checks=["driver"], required=required)


ALONE = dict.fromkeys(Action, Verdict.HEALTHY) | {
    Action.SUSPECT: Verdict.INCONCLUSIVE,
    Action.REBOOT: Verdict.REBOOT,
    Action.REPLACE: Verdict.REPLACE,
}


@pytest.mark.parametrize(("action", "verdict"), ALONE.items())
def test_what_one_finding_alone_leads_to(action: Action, verdict: Verdict) -> None:
    assert judged(finding(action)).verdict is verdict


def test_the_exit_codes_are_what_others_rely_on() -> None:
    codes = {verdict.value: verdict.exit_code for verdict in Verdict}
    assert codes == {"healthy": 0, "reboot": 1, "replace": 2, "inconclusive": 3}


def test_a_replacement_outweighs_a_reboot_and_is_listed_first() -> None:
    judgement = judged(finding(Action.WATCH), finding(Action.REBOOT), finding(Action.REPLACE))
    assert judgement.verdict is Verdict.REPLACE
    assert [f.action for f in judgement.findings] == [Action.REPLACE, Action.REBOOT, Action.WATCH]


def test_the_reason_is_for_people_and_names_the_gpu() -> None:
    gone = finding(Action.REBOOT, rule="xid-off-bus", kind="xid", code=79)
    missing = finding(Action.REBOOT, gpu=None, kind="count", code="count-low", evidence="1 of 2 GPUs found")
    assert judged(missing, gone).why == "1 of 2 GPUs found; Xid 79 on GPU 0000:01:00 (fallen off the bus)"


#: Who says what besides a warning of NVML about the first GPU, and what both together lead to.
WITNESSES = {
    "another who warns": (Action.WARN, "kernel-log", "0000:01:00", Verdict.REBOOT),
    "another who suspects": (Action.SUSPECT, "kernel-log", "0000:01:00", Verdict.REBOOT),
    "the same once more": (Action.WARN, "nvml", "0000:01:00", Verdict.HEALTHY),
    "one against another GPU": (Action.WARN, "kernel-log", "0000:02:00", Verdict.HEALTHY),
    "one against the whole node": (Action.SUSPECT, "kernel-log", None, Verdict.REBOOT),
}


@pytest.mark.parametrize(("action", "source", "gpu", "verdict"), WITNESSES.values(), ids=WITNESSES)
def test_two_witnesses_against_one_gpu_are_proof(
    action: Action, source: str, gpu: str | None, verdict: Verdict
) -> None:
    assert judged(finding(Action.WARN), finding(action, source, gpu)).verdict is verdict


def test_two_who_suspect_are_proof_in_any_order() -> None:
    for other in (Action.WARN, Action.SUSPECT):
        witnesses = finding(Action.SUSPECT), finding(other, source="kernel-log")
        assert judged(*witnesses).verdict is Verdict.REBOOT


def test_a_programs_fault_is_no_witness() -> None:
    fault = finding(Action.APPLICATION, source="kernel-log")
    judgement = judged(finding(Action.SUSPECT), fault)
    assert (judgement.verdict, judgement.application_fault) == (Verdict.INCONCLUSIVE, True)


def test_a_proven_gpu_fault_acquits_the_program() -> None:
    assert judged(finding(Action.REBOOT), finding(Action.APPLICATION)).application_fault is False


def test_without_anyone_who_looked_nothing_is_healthy() -> None:
    judgement = judged(checks=(SILENT,))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "no driver" in judgement.why


def test_evidence_counts_even_when_the_driver_is_silent() -> None:
    assert judged(finding(Action.REBOOT), checks=(SILENT,)).verdict is Verdict.REBOOT


def test_a_required_check_that_did_not_answer_is_inconclusive() -> None:
    log = Check(name="kernel-log", status="not_tested", detail="permission denied")
    judgement = judged(checks=(DRIVER, log), required=("kernel-log",))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "permission denied" in judgement.why
    assert judged(checks=(DRIVER, log)).verdict is Verdict.HEALTHY
    assert judged(required=("dcgm-diag",)).verdict is Verdict.INCONCLUSIVE


def test_host_problems_stand_beside_the_verdict() -> None:
    full = finding(Action.HOST, source="host", gpu=None)
    judgement = judged(full, checks=(DRIVER, DISK))
    assert (judgement.verdict, judgement.host_ok) == (Verdict.HEALTHY, False)
    assert judged(checks=(DRIVER, DISK)).host_ok is True
    assert judged().host_ok is None


def test_a_required_host_keeps_a_node_from_being_healthy_but_never_reboots_it() -> None:
    full = finding(Action.HOST, source="host", gpu=None)
    assert judged(full, checks=(DRIVER, DISK), required=("host",)).verdict is Verdict.INCONCLUSIVE
    assert judged(checks=(DRIVER, DISK), required=("host",)).verdict is Verdict.HEALTHY
    assert judged(required=("host",)).verdict is Verdict.INCONCLUSIVE
    broken = judged(full, finding(Action.REBOOT), checks=(DRIVER, DISK), required=("host",))
    assert broken.verdict is Verdict.REBOOT


def report(**different: object) -> dict[str, object]:
    before = {"rule": "xid-off-bus", "gpu": "0000:01:00", "action": "reboot"}
    return {"verdict": "reboot", "findings": [before], "boot_id": "old"} | different


def test_a_fault_that_is_back_after_its_reboot_asks_for_a_replacement(rules: Policy) -> None:
    now = finding(Action.REBOOT, rule="xid-off-bus")
    back = escalate([now], report(), rules)[0]
    assert (back.action, back.rule) == (Action.REPLACE, "xid-off-bus/again")


@pytest.mark.parametrize(
    "previous",
    [
        None,
        "text",
        [],
        {},
        report(verdict="healthy"),
        report(findings=None),
        report(findings=[None, {}]),
        report(findings=[{"rule": "xid-off-bus", "gpu": "0000:02:00", "action": "reboot"}]),
        report(findings=[{"rule": "xid-off-bus", "gpu": "0000:01:00", "action": "watch"}]),
    ],
)
def test_any_other_earlier_report_changes_nothing(rules: Policy, previous: object) -> None:
    now = finding(Action.REBOOT, rule="xid-off-bus")
    assert escalate([now], previous, rules) == [now]


def test_a_rule_that_says_nothing_about_again_stays_a_reboot(rules: Policy) -> None:
    now = finding(Action.REBOOT, rule="xid-reset")
    before = [{"rule": "xid-reset", "gpu": "0000:01:00", "action": "reboot"}]
    assert escalate([now], report(findings=before), rules) == [now]


@pytest.mark.parametrize(("source", "code"), [("xid", 64), ("dcgm", 80), ("driver", "remap-failure")])
def test_a_failed_remapping_is_answered_alike_whoever_tells_it(
    rules: Policy, source: str, code: int | str
) -> None:
    rule = rules.rule(source, code)
    assert (rule.action, rule.again) == (Action.REBOOT, Action.REPLACE)
