"""dcgmi's JSON, as releases 2 to 4 write it, and what it says about the GPUs.

The shape changed with every release: warnings as a string, as a list, as objects; the GPU as `gpu_ids`,
`gpu_id` or `entity_id`; noise in front; nulls inside. What does not fit is a problem, never a bad GPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from ecs_gpu_recovery.health.findings import FAULTS, Action, Finding, one_line
from ecs_gpu_recovery.health.policy import Policy, Rule
from ecs_gpu_recovery.health.sources import dcgm_codes, dcgm_text

DIAG = "dcgm-diag"
HEALTH = "dcgm-health"

_DIAG_ROOT = re.compile(r'"DCGM (?:GPU )?Diagnostic"\s*:\s*')
_HEALTH_ROOT = re.compile(r'"body"\s*:\s*')
_MOST_DOCUMENTS = 200
_SHORT = 160
_CUT_OFF = object()
_LINK_DOWN = 14
_ISOLATED = 205
"""dcgmi's exit code when at least one error is rated as one for which a GPU must be isolated."""
_DOWN = re.compile(r"link (-?\d{1,3}) is currently down", re.IGNORECASE)
_GPU = re.compile(r"\bGPU (\d{1,3})\b")
_XID = re.compile(r"\bXID:? (\d{1,6})", re.IGNORECASE)
_RAN = ("pass", "fail", "warn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """One thing a test or a health watch says against a device."""

    about: str
    failed: bool
    text: str
    code: int | None = None
    severity: int | None = None
    gpu: str | None = None
    is_gpu: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmOutput:
    """What one run told."""

    complaints: tuple[Complaint, ...] = ()
    summary: str = ""
    problem: str | None = None
    """Set when the run says nothing about the GPUs."""
    skipped: tuple[str, ...] = ()
    """Tests that ran on no GPU."""


def parse_diag(text: str) -> DcgmOutput:
    """`dcgmi diag`, as JSON (-j) or as the table that it draws for people. Several runs in one file are added up."""
    outputs = [
        _diag(body) for body in _bodies(text, _DIAG_ROOT) or [dcgm_text.diag(text)] if body is not None
    ]
    if not outputs:
        return DcgmOutput(problem=_why_not(text, "dcgmi diag -j"))
    return DcgmOutput(
        complaints=tuple(complaint for output in outputs for complaint in output.complaints),
        summary="; ".join(output.summary for output in outputs if output.summary),
        problem=next((output.problem for output in outputs if output.problem), None),
        skipped=tuple(dict.fromkeys(name for output in outputs for name in output.skipped)),
    )


def _diag(body: object) -> DcgmOutput:
    if body is _CUT_OFF:
        return DcgmOutput(problem="the output of dcgmi diag is cut off")
    if not isinstance(body, dict):
        return DcgmOutput(problem="the diagnostic's JSON has a shape no DCGM release writes")
    if "runtime_error" in body and not body.get("test_categories"):
        return DcgmOutput(problem=f"the diagnostic did not run: {body['runtime_error']}")
    complaints: list[Complaint] = []
    counts = dict.fromkeys((*_RAN, "skip"), 0)
    skipped = []
    for test in _tests(body):
        statuses = list(_read_test(test, complaints))
        for status in statuses:
            counts[status] = counts.get(status, 0) + 1
        if set(statuses) == {"skip"}:
            skipped.append(str(test.get("name") or "a test"))
    summary = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    if not any(counts[status] for status in _RAN):
        return DcgmOutput(problem=f"the diagnostic holds no test that ran ({summary or 'no results'})")
    return DcgmOutput(complaints=tuple(complaints), summary=summary, skipped=tuple(skipped))


def parse_health(text: str) -> DcgmOutput:
    """`dcgmi health -c`. Its exit code is 0 even for a dead GPU, so only the body counts; of several the last."""
    bodies = [body for body in _bodies(text, _HEALTH_ROOT) if isinstance(body, dict)]
    body = bodies[-1] if bodies else dcgm_text.health(text)
    if body is None:
        return DcgmOutput(problem=_why_not(text, "dcgmi health -c -j"))
    overall = body.get("Overall Health")
    value = str(overall.get("value", "")) if isinstance(overall, dict) else ""
    word = value.strip().lower()
    if word not in ("healthy", "warning", "failure"):
        return DcgmOutput(problem=f"no overall health in the report ({value or 'missing'})")
    complaints = [
        replace(complaint, is_gpu=not str(group).upper().startswith("CPU"))
        for group, node in body.items()
        if group != "Overall Health"
        for complaint in _health_node(node, str(group), None)
    ]
    if word != "healthy" and not complaints:
        complaints.append(Complaint(about="overall health", failed=word == "failure", text=value))
    return DcgmOutput(complaints=tuple(complaints), summary=f"overall health: {value}")


def judge(output: DcgmOutput, *, source: str, policy: Policy) -> list[Finding]:
    """One finding per device and number."""
    findings: dict[tuple[object, ...], Finding] = {}
    everywhere = _links_down_everywhere(output.complaints)
    for complaint in output.complaints:
        found = _finding(complaint, source, policy)
        if everywhere and found.code == _LINK_DOWN and found.action in FAULTS:
            rule = policy.rule("dcgm", f"{_LINK_DOWN}-everywhere")
            found = replace(found, action=rule.action, rule=rule.id, why=rule.why)
        key = (found.gpu, found.code, found.rule, found.action)
        earlier = findings.get(key)
        findings[key] = replace(earlier, count=earlier.count + 1) if earlier else found
    return list(findings.values())


def judge_run(
    output: DcgmOutput, exit_code: int | None, *, source: str, policy: Policy, said: str = ""
) -> list[Finding]:
    """Text and exit code together: each alone leaves something out. `said` is what the program complained of."""
    found = judge(output, source=source, policy=policy)
    if exit_code is None or (exit_code == 0 and not output.problem):
        return found
    by_exit = judge_exit(exit_code, source=source, policy=policy)
    explained = any(f.action in FAULTS for f in found) or (
        exit_code == _ISOLATED and any(map(_is_rated_isolate, output.complaints))
    )
    if not found or (by_exit.action in FAULTS and not explained):
        parts = (by_exit.evidence, output.problem, said)
        found.append(replace(by_exit, evidence="; ".join(part for part in parts if part)))
    return found


def _is_rated_isolate(complaint: Complaint) -> bool:
    """DCGM gives this rating to some settings too, such as a daemon that does not run. The rules know better."""
    code = complaint.code
    rating = dcgm_codes.severity(code) if code is not None else None
    return (rating or dcgm_codes.SEVERITIES.get(complaint.severity or 0)) == "ISOLATE"


def judge_exit(exit_code: int, *, source: str, policy: Policy) -> Finding:
    """What the exit code alone says, when the output said nothing."""
    rule = policy.rule("dcgm-exit", exit_code)
    text = f"dcgmi ended with exit code {exit_code}"
    return rule.finding(source=source, kind="dcgm", code=f"exit {exit_code}", evidence=text)


def _links_down_everywhere(complaints: Iterable[Complaint]) -> bool:
    """True when two GPUs or more miss two links or more: then no single GPU or link is broken."""
    down: dict[str | None, set[str]] = {}
    for complaint in complaints:
        down.setdefault(complaint.gpu, set()).update(_DOWN.findall(complaint.text))
    return sum(1 for gpu, links in down.items() if gpu is not None and len(links) > 1) > 1


def _finding(complaint: Complaint, source: str, policy: Policy) -> Finding:
    code: int | str
    if not complaint.is_gpu:
        rule, code = policy.rule("host", "cpu-diag"), "cpu-diag"
    else:
        rule, code = _rule(complaint, policy)
    named = f"{dcgm_codes.name(code)}: " if isinstance(code, int) else ""
    finding = rule.finding(
        source=source,
        kind="dcgm",
        code=code,
        gpu=complaint.gpu,
        evidence=f"{complaint.about} {'failed' if complaint.failed else 'warned'}: {named}{complaint.text}",
    )
    if complaint.failed or _as_warning(rule) is rule.action:
        return finding
    return replace(finding, action=_as_warning(rule), rule=f"{rule.id}/warning")


def _as_warning(rule: Rule) -> Action:
    """A warning never weighs more than the failure would, and mostly less."""
    mild = (Action.NONE, Action.WATCH, Action.CONFIG, Action.APPLICATION, Action.HOST)
    return rule.action if rule.action in mild else rule.on_warning


def _rule(complaint: Complaint, policy: Policy) -> tuple[Rule, int | str]:
    code = complaint.code
    if code is None or code in dcgm_codes.NOT_A_NUMBER:
        code = next(iter(dcgm_codes.codes_in(complaint.text)), None)
    xid = _XID.search(complaint.text)
    if code == 101 and xid:
        return policy.rule("xid", int(xid[1])), code
    if code is not None and (exact := policy.exact("dcgm", code)) is not None:
        return (exact.action is Action.NOT_TESTED and _told_inside(complaint, policy)) or (exact, code)
    rating = dcgm_codes.severity(code) if code is not None else None
    if rating is None and complaint.severity is not None:
        rating = dcgm_codes.SEVERITIES.get(complaint.severity)
    by_name = policy.exact("dcgm-test", complaint.about.strip().lower())
    if rating is None and by_name is not None:
        return by_name, complaint.about
    return policy.rule("dcgm-severity", rating or "UNKNOWN"), code if code is not None else "unknown"


def _told_inside(complaint: Complaint, policy: Policy) -> tuple[Rule, int] | None:
    """A test that broke because a GPU broke under it quotes the driver, and that counts more."""
    for code in dcgm_codes.codes_in(complaint.text):
        rule = policy.exact("dcgm", code)
        if rule is not None and rule.action in FAULTS:
            return rule, code
    return None


def _bodies(text: str, root: re.Pattern[str]) -> list[object]:
    """What stands under the root key, wherever in the text that is and however often."""
    decoder = json.JSONDecoder()
    bodies: list[object] = []
    end = 0
    for found in islice(root.finditer(text), _MOST_DOCUMENTS):
        if found.start() < end:
            continue  # inside the one before
        try:
            body, end = decoder.raw_decode(text, found.end())
        except (ValueError, RecursionError):
            body = _CUT_OFF
        bodies.append(body)
    return bodies


def _why_not(text: str, command: str) -> str:
    if not text.strip():
        return "the file is empty"
    if text.lstrip().lower().startswith("error"):
        return one_line(text, _SHORT)
    return f"this is not the output of {command}"


def _tests(body: Mapping[str, object]) -> Iterator[dict[str, object]]:
    for category in _dicts(body.get("test_categories")):
        yield from _dicts(category.get("tests"))


def _read_test(test: Mapping[str, object], complaints: list[Complaint]) -> Iterator[str]:
    """The status of each result; complaints are added on the way."""
    name = str(test.get("name") or "a test")
    statuses = []
    for result in _dicts(test.get("results")):
        status = _status(result)
        statuses.append(status)
        if status in ("fail", "warn"):
            complaints.extend(_complaints(name, result, status == "fail"))
        yield status
    summary = test.get("test_summary")
    status = _status(summary) if isinstance(summary, dict) else "pass"
    worse = {"fail": {"fail"}, "warn": {"fail", "warn"}}.get(status)
    if isinstance(summary, dict) and worse and not worse & set(statuses):
        complaints.extend(_complaints(name, summary, status == "fail"))
        yield status


def _status(result: Mapping[str, object]) -> str:
    word = str(result.get("status") or "").strip().lower()
    return next((known for known in (*_RAN, "skip") if word.startswith(known)), "unknown")


def _complaints(test: str, result: Mapping[str, object], failed: bool) -> Iterator[Complaint]:
    is_gpu = not str(result.get("entity_group") or "GPU").upper().startswith("CPU")
    device = _device(result)
    said = False
    for text, code, severity in _warnings(result):
        said = True
        named = _GPU.search(text)
        gpu = named[1] if named and (device is None or "," in device) else device
        plain = Complaint(about=test, failed=failed, text=text, gpu=gpu, is_gpu=is_gpu)
        yield replace(plain, code=code, severity=severity)
    if not said:
        yield Complaint(about=test, failed=failed, text="no text given", gpu=device, is_gpu=is_gpu)


def _device(result: Mapping[str, object]) -> str | None:
    group = str(result.get("entity_group") or "GPU").upper()
    for key in ("gpu_id", "gpu_ids", "entity_id"):
        value = result.get(key)
        if isinstance(value, (int, str)) and not isinstance(value, bool) and str(value).strip():
            return str(value).strip() if group.startswith("GPU") else None
    return None


def _warnings(result: Mapping[str, object]) -> Iterator[tuple[str, int | None, int | None]]:
    raw = result.get("warnings", result.get("warning"))
    own_code = _int(result.get("error_id"))
    for entry in raw if isinstance(raw, list) else [raw]:
        if isinstance(entry, str) and entry.strip():
            yield entry, own_code, None
        elif isinstance(entry, dict):
            text = entry.get("warning") or entry.get("warnings") or entry.get("message") or "no text given"
            yield str(text), _int(entry.get("error_id")), _int(entry.get("error_severity"))


def _health_node(node: object, path: str, gpu: str | None) -> Iterator[Complaint]:
    """Walk down to the systems; a device's own value only sums up what stands below it."""
    if not isinstance(node, dict):
        return
    children = node.get("children")
    below = 0
    if isinstance(children, dict):
        for name, child in children.items():
            device = str(name) if path == "GPU" else gpu
            for complaint in _health_node(child, str(name), device):
                below += 1
                yield complaint
    value = str(node.get("value", "")).strip().lower()
    if value in ("failure", "warning") and not below:
        parts = node.get("overflow")
        text = " ".join(str(part) for part in parts) if isinstance(parts, list) else ""
        yield from _split(path, value == "failure", text or value, gpu)


def _split(about: str, failed: bool, text: str, gpu: str | None) -> Iterator[Complaint]:
    """One system may list several errors in one text."""
    codes: list[int | None] = [*dcgm_codes.codes_in(text)] or [None]
    for code in codes:
        yield Complaint(about=about, failed=failed, text=text, code=code, gpu=gpu)


def _dicts(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _int(value: object) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 8:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
