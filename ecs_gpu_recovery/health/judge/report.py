"""The report: one JSON document with a version, and the same as a table for people."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path

from ecs_gpu_recovery.health.findings import Action, Check, Finding
from ecs_gpu_recovery.health.judge.verdict import Judgement
from ecs_gpu_recovery.health.policy import Policy, Rule
from ecs_gpu_recovery.health.sources.gpus import GpuState

SCHEMA = "gpu-health-report/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that is known at the end of one run."""

    source: str
    """live, simulated or recorded."""
    started_at: datetime
    finished_at: datetime
    expected_gpus: int | None
    gpus: Sequence[GpuState]
    checks: Sequence[Check]
    judgement: Judgement
    policy: Policy
    level: str | None = None
    boot_id: str | None = None
    progress: Mapping[str, object] | None = None
    """How far the training has come, where that was asked."""
    driver: str = ""
    """The version of the NVIDIA driver, where that was told."""

    def to_json(self) -> dict[str, object]:
        """The document that docs/health-report.schema.json describes."""
        return {
            "schema": SCHEMA,
            "verdict": self.judgement.verdict.value,
            "exit_code": self.judgement.verdict.exit_code,
            "why": self.judgement.why,
            "application_fault": self.judgement.application_fault,
            "host_ok": self.judgement.host_ok,
            "source": self.source,
            "level": self.level,
            "host": os.uname().nodename,
            "boot_id": self.boot_id,
            "driver": self.driver or None,
            "started_at": self.started_at.isoformat(),
            "finished_at": self.finished_at.isoformat(),
            "expected_gpus": self.expected_gpus,
            "policy": self.policy.to_json(),
            "gpus": [gpu.to_json() for gpu in self.gpus],
            "checks": [check.to_json() for check in self.checks],
            "findings": [finding.to_json() for finding in self.judgement.findings],
            **({"progress": dict(self.progress)} if self.progress is not None else {}),
        }


def write_json(path: Path, document: dict[str, object]) -> None:
    """All or nothing: a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def table(report: Report) -> str:
    """For a person at a terminal: the verdict first, then what was looked at, then what was found."""
    judgement = report.judgement
    code = f"exit code {judgement.verdict.exit_code}"
    meaning = f"a check would end with {code}" if report.source == "recorded" else code
    lines = [f"{judgement.verdict.value.upper()}  ({meaning})", judgement.why, ""]
    if judgement.host_ok is False:
        lines[2:2] = ["The host has problems of its own; see the findings marked host."]
    lines += _columns(["check", "result", "time", ""], [_check_row(check) for check in report.checks])
    if report.gpus:
        lines += [
            "",
            *_columns(["gpu", "pci", "name", "recovery action"], [_gpu_row(g) for g in report.gpus]),
        ]
    if judgement.findings:
        lines += ["", *_findings(judgement.findings)]
    return "\n".join(lines)


def rules_table(policy: Policy) -> str:
    """The rule table, in the order in which rules are tried."""
    head = ["rule", "source", "codes", "action", "why"]
    return "\n".join(_columns(head, [_rule_row(rule) for rule in policy.rules], widest=44))


def _rule_row(rule: Rule) -> list[str]:
    extra = []
    if rule.repeat:
        hours = rule.repeat.window_s / 3600
        extra.append(f"{rule.repeat.count} times in {hours:g} h: {rule.repeat.action.value}.")
    if rule.again:
        extra.append(f"Again after a reboot: {rule.again.value}.")
    if rule.on_warning not in (Action.WATCH, Action.CONFIG):
        extra.append(f"As a warning too: {rule.on_warning.value}.")
    if rule.fatal:
        extra.append("Fatal: a running job is not left to its own time-outs.")
    source = f"{rule.source} ({rule.group})" if rule.group else rule.source
    return [rule.id, source, _codes(rule), rule.action.value, " ".join([rule.why, *extra])]


def say(text: str) -> None:
    """Print, and not mind a reader who has left: the verdict is in the exit code."""
    try:
        print(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _codes(rule: Rule) -> str:
    """3, 4, 5 -> 3-5."""
    numbers = sorted(int(code) for code in rule.codes if code.isdecimal())
    placed = groupby(enumerate(numbers), lambda one: one[1] - one[0])  # in a run both go up by one
    runs = [[number for _, number in run] for _, run in placed]
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join([*parts, *(code for code in rule.codes if not code.isdecimal())])


def _check_row(check: Check) -> list[str]:
    return [check.name, check.status.replace("_", " "), f"{check.seconds:.2f} s", check.detail]


def _gpu_row(gpu: GpuState) -> list[str]:
    index = "" if gpu.index is None else str(gpu.index)
    return [index, gpu.bus_id or "", gpu.name or "", gpu.recovery_action or "not told"]


def _findings(findings: Sequence[Finding]) -> list[str]:
    rows = [
        [
            f.severity,
            f.action.value.replace("_", " "),
            f.gpu or "node",
            f"{f.kind} {f.code}",
            f.rule,
            f.evidence,
        ]
        for f in findings
    ]
    return _columns(["severity", "action", "gpu", "what", "rule", "evidence"], rows)


def _columns(head: list[str], rows: list[list[str]], widest: int = 60) -> list[str]:
    """Left-aligned columns; the last one runs on."""
    table_rows = [head, *rows]
    widths = [min(widest, max(len(row[i]) for row in table_rows)) for i in range(len(head) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in table_rows
    ]
