"""From findings to the one verdict, by rules short enough to argue about.

1. Any finding that asks for a replacement: replace.
2. Any finding that asks for a reboot: reboot.
3. Two witnesses of different sources against the same GPU (or one of them against the node): reboot.
4. One suspicion alone, a required check that did not answer, or no check that looked at a GPU: inconclusive.
5. Otherwise healthy. Faults of programs and of the host are told beside the verdict and never change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ecs_gpu_recovery.health.findings import WITNESSES, Action, Check, Finding, Verdict, one_line
from ecs_gpu_recovery.health.judge.phrases import tell
from ecs_gpu_recovery.health.policy import Policy

_SHORT = 160
SECOND_WITNESS = "second-witness"

HOST_CHECKS = ("disk", "shared-dir", "network", "clock", "nics")

_ORDER = {action: place for place, action in enumerate(reversed(Action))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict with its reason, and what stands beside it."""

    verdict: Verdict
    why: str
    application_fault: bool
    host_ok: bool | None
    """None when nothing about the host was looked at."""
    findings: tuple[Finding, ...]


def decide(
    findings: Iterable[Finding],
    checks: Sequence[Check],
    *,
    gpu_checks: Iterable[str],
    required: Iterable[str] = (),
) -> Judgement:
    """`gpu_checks` name the checks of which one must have answered before GPUs may be called healthy."""
    ordered = tuple(sorted(_with_second_witness(list(findings)), key=lambda f: _ORDER[f.action]))
    host_ok = _host_ok(ordered, checks)
    verdict, why = _verdict(ordered, checks, frozenset(gpu_checks), tuple(required), host_ok)
    why = "; ".join([why, *_left_open(verdict, checks)])
    blamed = [f for f in ordered if f.action is Action.APPLICATION]
    application_fault = bool(blamed) and verdict in (Verdict.HEALTHY, Verdict.INCONCLUSIVE)
    if application_fault:
        why += f"; the program on the GPU failed: {tell(blamed)}"
    return Judgement(
        verdict=verdict, why=why, application_fault=application_fault, host_ok=host_ok, findings=ordered
    )


def escalate(findings: Iterable[Finding], previous: object, policy: Policy) -> list[Finding]:
    """A fault that a reboot was meant to cure and that is here again asks for what its rule says next.

    `previous` is the JSON report that led to the reboot. Anything else than such a report changes nothing.
    """
    before = set()
    if isinstance(previous, dict) and previous.get("verdict") == Verdict.REBOOT.value:
        listed = previous.get("findings")
        before = {
            (str(f.get("rule")), f.get("gpu"))
            for f in (listed if isinstance(listed, list) else [])
            if isinstance(f, dict) and f.get("action") == Action.REBOOT.value
        }
    result = []
    for finding in findings:
        rule = policy.by_id(finding.rule)
        if rule is not None and rule.again is not None and (finding.rule, finding.gpu) in before:
            finding = replace(
                finding,
                action=rule.again,
                rule=f"{rule.id}/again",
                evidence=f"back after a reboot: {finding.evidence}",
            )
        result.append(finding)
    return result


def _with_second_witness(findings: list[Finding]) -> list[Finding]:
    """Two that agree are proof enough: both are raised to a reboot and say so in their rule."""
    witnesses = [f for f in findings if f.action in WITNESSES]
    agreed = {
        id(one)
        for one in witnesses
        for other in witnesses
        if one.source != other.source and (one.gpu == other.gpu or None in (one.gpu, other.gpu))
    }
    return [
        replace(f, action=Action.REBOOT, rule=f"{f.rule}/{SECOND_WITNESS}") if id(f) in agreed else f
        for f in findings
    ]


def _verdict(
    findings: Sequence[Finding],
    checks: Sequence[Check],
    gpu_checks: frozenset[str],
    required: Sequence[str],
    host_ok: bool | None,
) -> tuple[Verdict, str]:
    by_action = {action: [f for f in findings if f.action is action] for action in Action}
    if by_action[Action.REPLACE]:
        return Verdict.REPLACE, tell(by_action[Action.REPLACE])
    if by_action[Action.REBOOT]:
        return Verdict.REBOOT, tell(by_action[Action.REBOOT])
    if by_action[Action.SUSPECT]:
        return Verdict.INCONCLUSIVE, f"suspicious, with no second witness: {tell(by_action[Action.SUSPECT])}"
    if not any(check.answered for check in checks if check.name in gpu_checks):
        silent = [f"{check.name}: {check.detail}" for check in checks if check.name in gpu_checks]
        return Verdict.INCONCLUSIVE, f"no GPU was tested ({'; '.join(silent) or 'nothing was asked for'})"
    for name in required:
        missing = _missing(name, checks, host_ok)
        if missing:
            return Verdict.INCONCLUSIVE, missing
    broken = [f for f in by_action[Action.NOT_TESTED] if f.source in required]
    if broken:
        return Verdict.INCONCLUSIVE, f"a required test could not do its work: {tell(broken)}"
    return Verdict.HEALTHY, _healthy(by_action)


def _missing(name: str, checks: Sequence[Check], host_ok: bool | None) -> str | None:
    """Why a required check keeps the node from being called healthy; None if it does not."""
    if name == "host":
        return None if host_ok else "the host is required to be well, and it is not or was not looked at"
    of_name = [check for check in checks if check.name == name]
    if any(check.answered for check in of_name):
        return None
    return (
        f"{name} is required and did not answer: {of_name[0].detail if of_name else 'it was not asked for'}"
    )


def _healthy(by_action: dict[Action, list[Finding]]) -> str:
    actions = (Action.WARN, Action.WATCH, Action.CONFIG)
    noted = [f for action in actions for f in by_action[action] if f.source != "host"]
    return f"no GPU fault found; noted: {tell(noted)}" if noted else "no GPU fault found"


def _left_open(verdict: Verdict, checks: Sequence[Check]) -> Iterator[str]:
    """What the sentence owes its reader: what was not tested, and lines that count without a time."""
    reasons: dict[str, list[str]] = {}
    for check in checks if verdict is Verdict.HEALTHY else ():
        if check.untested:
            reasons.setdefault(check.untested, []).append(check.name)
    if reasons:
        parts = (f"{_called(names)} ({one_line(reason, _SHORT)})" for reason, names in reasons.items())
        yield f"not tested: {', '.join(parts)}"
    yield from (check.note for check in checks if check.note)


def _called(names: Sequence[str]) -> str:
    if names == ["dcgm-health"]:
        return "DCGM's watches"
    return "DCGM" if names[0].startswith("dcgm") else f"the {names[0].replace('-', ' ')}"


def _host_ok(findings: Sequence[Finding], checks: Sequence[Check]) -> bool | None:
    if any(f.action is Action.HOST for f in findings):
        return False
    return True if any(c.name in HOST_CHECKS and c.answered for c in checks) else None
