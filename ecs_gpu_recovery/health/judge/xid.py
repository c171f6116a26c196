"""From the driver's lines in the kernel log to findings.

Many lines make one finding: a fault repeats itself, names its companions and is followed by clean-up. Lines
are grouped by GPU and number; what the group asks for is the policy's business.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ecs_gpu_recovery.health.findings import Action, Finding, one_line
from ecs_gpu_recovery.health.judge import nvlink
from ecs_gpu_recovery.health.policy import Policy, Repeat, Rule
from ecs_gpu_recovery.health.sources import recovery
from ecs_gpu_recovery.health.sources.kernel_log import KernelEvent

SOURCE = "kernel-log"
RECOVERY_CHANGED = 154
CLEAN_UP = 45
CONTAINED = 94
NVLINK = 74

_CAUSE = re.compile(r"caused by previous Xid ([0-9]{1,6})", re.IGNORECASE)
_RESET_WANTED = re.compile(r"\bRST:\s*Yes", re.IGNORECASE)
_UNIT = re.compile(r"GPC [0-9]+, TPC [0-9]+")
_NON_FATAL = re.compile(r"\s*non[- ]?fatal", re.IGNORECASE)
_FATAL = re.compile(r"\s*fatal", re.IGNORECASE)

Numbered = tuple[int, KernelEvent]
"""An event with its place in the log, so that later can be told from earlier without a date."""


def judge(events: Iterable[KernelEvent], policy: Policy) -> list[Finding]:
    """The findings of one kernel log, each GPU and number once.

    What an earlier boot saw is no finding: the machine was started anew. It counts where a fault of this boot
    repeats it.
    """
    everything = list(events)
    history = [event for event in everything if event.old]
    numbered = list(enumerate(event for event in everything if not event.old))
    xids = [(n, e) for n, e in numbered if e.kind in ("xid", "off-bus")]
    changes = _last_changes(xids)
    findings = [_recovery(event, policy) for _, event in changes.values()]
    for key, group in _groups(xids).items():
        finding = _xid(key[1], group, xids, changes, policy, history)
        same = [*(event for _, event in group), *_alike(group[0][1], history)]
        findings += [finding, *_hint_of_hardware(finding, same, policy)]
    findings += _switches([e for _, e in numbered if e.kind == "sxid"], policy, history)
    worded = [e for _, e in numbered if e.kind not in ("xid", "off-bus", "sxid")]
    for kind, device in dict.fromkeys((e.kind, e.device) for e in worded):
        same = [e for e in worded if (e.kind, e.device) == (kind, device)]
        about = "driver-init" if kind == "init-failed" else "kernel"
        findings.append(_made(policy.rule("kernel", kind), about, kind, same, policy, history))
    return findings


def _alike(event: KernelEvent, history: Sequence[KernelEvent]) -> list[KernelEvent]:
    """What earlier boots saw of the same fault."""
    wanted = (event.device, event.code, _variant(event))
    return [other for other in history if (other.device, other.code, _variant(other)) == wanted]


def _last_changes(xids: Sequence[Numbered]) -> dict[str | None, Numbered]:
    """The last Xid 154 of each GPU: the driver's present opinion."""
    return {e.device: (n, e) for n, e in xids if e.code == RECOVERY_CHANGED}


def _recovery(event: KernelEvent, policy: Policy) -> Finding:
    wanted = recovery.from_xid_text(event.text)
    return _made(policy.rule("recovery", wanted), "recovery", RECOVERY_CHANGED, [event], policy, ())


def _groups(xids: Sequence[Numbered]) -> dict[tuple[str | None, int, str], list[Numbered]]:
    """Lines that tell of the same thing: same GPU, same number, same decoded meaning."""
    groups: dict[tuple[str | None, int, str], list[Numbered]] = {}
    for n, event in xids:
        if event.code != RECOVERY_CHANGED:
            groups.setdefault((event.device, event.code, _variant(event)), []).append((n, event))
    return groups


def _variant(event: KernelEvent) -> str:
    """The part of the text that changes what an Xid means; empty when only the number counts."""
    if nvlink.is_nvlink5(event.code):
        return nvlink.decode(event.code, event.text)
    if event.code == NVLINK:
        return "benign" if nvlink.is_benign_74(event.text) else ""
    if event.code == CONTAINED:
        return "reset" if _RESET_WANTED.search(event.text) else ""
    if event.code == CLEAN_UP:
        cause = _CAUSE.search(event.text)
        return cause[1] if cause else ""
    return ""


def _xid(
    code: int,
    group: Sequence[Numbered],
    xids: Sequence[Numbered],
    changes: dict[str | None, Numbered],
    policy: Policy,
    history: Sequence[KernelEvent],
) -> Finding:
    events = [event for _, event in group]
    rule = _rule(events[0], xids, policy)
    finding = _made(rule, "xid", code, events, policy, history)
    if finding.action is Action.REBOOT and _withdrawn(group, changes):
        rule = policy.rule("recovery", "withdrawn")
        finding = replace(finding, action=rule.action, rule=rule.id, why=rule.why)
    return finding


def _rule(event: KernelEvent, xids: Sequence[Numbered], policy: Policy) -> Rule:
    variant = _variant(event)
    if nvlink.is_nvlink5(event.code):
        return policy.rule("nvlink5", variant)
    if event.code == CLEAN_UP:
        return _clean_up_rule(event, int(variant) if variant else None, xids, policy)
    return policy.rule("xid", f"{event.code}-{variant}" if variant else event.code)


def _clean_up_rule(event: KernelEvent, cause: int | None, xids: Sequence[Numbered], policy: Policy) -> Rule:
    """Xid 45 is an echo. With its cause in the log it says nothing new; alone, a program was ended."""
    if cause is not None:
        if any(other.code == cause for _, other in xids):
            return policy.rule("xid", "45-symptom")
        return policy.rule("nvlink5", "undecoded") if nvlink.is_nvlink5(cause) else policy.rule("xid", cause)
    if any(other.code != CLEAN_UP and other.device == event.device for _, other in xids):
        return policy.rule("xid", "45-symptom")
    return policy.rule("xid", CLEAN_UP)


def _withdrawn(group: Sequence[Numbered], changes: dict[str | None, Numbered]) -> bool:
    """True when the driver, later than the whole group, went back to asking for nothing."""
    last = changes.get(group[0][1].device)
    if last is None or recovery.from_xid_text(last[1].text) != "none":
        return False
    return all(n < last[0] for n, _ in group)


def _switches(events: Sequence[KernelEvent], policy: Policy, history: Sequence[KernelEvent]) -> list[Finding]:
    """One finding per NVSwitch and number; the lines with engine and data belong to the one before."""
    groups: dict[tuple[str | None, int], list[KernelEvent]] = {}
    for event in events:
        groups.setdefault((event.device, event.code), []).append(event)
    findings = []
    for (_, code), lines in groups.items():
        fatal = [e for e in lines if _FATAL.match(e.text)]
        other = [e for e in lines if _NON_FATAL.match(e.text)]
        grade = "fatal" if fatal else "non-fatal" if other else "unclear"
        told = fatal or other or lines[:1]
        made = _made(policy.rule("sxid", grade), "sxid", code, told, policy, history)
        findings.append(replace(made, gpu=None))
    return findings


def _made(
    rule: Rule,
    kind: str,
    code: int | str,
    events: Sequence[KernelEvent],
    policy: Policy,
    history: Sequence[KernelEvent],
) -> Finding:
    finding = rule.finding(source=SOURCE, kind=kind, code=code, gpu=events[0].device, evidence=events[0].line)
    times = sorted(e.at for e in events if e.at is not None)
    finding = replace(
        finding,
        count=len(events),
        first_at=times[0].isoformat() if times else None,
        last_at=times[-1].isoformat() if times else None,
    )
    again = rule.repeat
    if again is None or rule.action is Action.APPLICATION:
        return finding
    everywhen = [*events, *_alike(events[0], history)]
    return _as_repeat(finding, again) if _repeated(again, everywhen, policy) else finding


def _hint_of_hardware(finding: Finding, events: Sequence[KernelEvent], policy: Policy) -> list[Finding]:
    """A program's fault stays a program's fault; that it keeps hitting one GPU is said beside it."""
    rule = policy.by_id(finding.rule)
    if rule is None or rule.repeat is None or finding.action is not Action.APPLICATION:
        return []
    return [_as_repeat(finding, rule.repeat)] if _repeated(rule.repeat, events, policy) else []


def _as_repeat(finding: Finding, again: Repeat) -> Finding:
    text = one_line(
        f"{again.count} or more incidents in {again.window_s / 3600:g} h, first: {finding.evidence}"
    )
    return replace(finding, action=again.action, rule=f"{finding.rule}/repeat", evidence=text)


def _repeated(again: Repeat, events: Sequence[KernelEvent], policy: Policy) -> bool:
    apart_s = again.apart_s if again.apart_s is not None else policy.limits.burst_s
    return _most_incidents(events, apart_s, again.window_s) >= again.count


def _most_incidents(events: Sequence[KernelEvent], apart_s: float, window_s: float) -> int:
    """The most separate incidents within any window, counted for each link or unit by itself."""
    by_part: dict[str, list[KernelEvent]] = {}
    for event in events:
        unit = _UNIT.search(event.text)
        by_part.setdefault(unit[0] if unit else nvlink.link(event.text), []).append(event)
    return max(_incidents(part, apart_s, window_s) for part in by_part.values())


def _incidents(events: Sequence[KernelEvent], apart_s: float, window_s: float) -> int:
    """Lines without any time cannot be told apart and are one incident."""
    dated = [e.at.timestamp() for e in events if e.at is not None]
    clock = sorted(dated or [e.uptime_s for e in events if e.uptime_s is not None])
    starts: list[float] = []
    for place, second in enumerate(clock):
        if place == 0 or second - clock[place - 1] > apart_s:
            starts.append(second)
    return max((sum(1 for s in starts if 0 <= s - first <= window_s) for first in starts), default=1)
