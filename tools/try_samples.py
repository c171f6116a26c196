"""Judges a folder of recorded outputs: events, kernel logs, and what DCGM, nvidia-smi, NCCL and the network said.

    python -m tools.try_samples DIR [--json]

Every file below the folder is recognised by what is in it (a name's ending only helps), and gets a line: its kind, what
it leads to and why. What nobody recognises is called unknown, and a file that can't be read is named. The exit code is
0 unless something crashed: a recording that our parsers can't stand is a bug of ours.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from ecs_gpu_recovery.aws.explain import explain_text
from ecs_gpu_recovery.core.errors import Refused
from ecs_gpu_recovery.health import policy
from ecs_gpu_recovery.health.judge import explain, training_log, verdict
from ecs_gpu_recovery.health.sources import dcgm

EVENT, UNKNOWN, UNREADABLE, CRASHED = "event", "unknown", "unreadable", "crashed"
#: The first line of a table that nvidia-smi makes.
_QUERY = re.compile(r"pci\.bus_id|gpu_uuid, |, gpu_bus_id|remapped_rows|retired_pages")
#: What only this kind says. The first that fits decides, even if the rest of the file makes no sense.
_MARKS = (
    (dcgm.HEALTH, re.compile(r"Overall Health|Health Monitor Report|dcgmi health")),
    (dcgm.DIAG, re.compile(r"DCGM (?:GPU )?Diagnostic|DCGM Run time error|Diagnostic +\| Result|dcgmi diag")),
    (explain.NVIDIA_SMI, re.compile(r"<nvidia_smi_log|NVIDIA-SMI|NVSMI LOG|\bNVML\b|No devices were found")),
    (explain.NVIDIA_SMI, re.compile(r"device handle for (?:the )?GPU|^GPU \d+: .*\(UUID", re.MULTILINE)),
    (explain.NVIDIA_SMI, _QUERY),
    (explain.NETWORK, re.compile(r"^CA '|^hca_id:|^provider: |fi_getinfo", re.MULTILINE)),
)
_TRIED = (dcgm.DIAG, dcgm.HEALTH, explain.NVIDIA_SMI, explain.KERNEL_LOG, explain.NETWORK)
#: A list is a recording only if nvidia-smi made it, and a page about recordings is none.
_TABLE, _PAGE = ".csv", ".md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One file and what became of it."""

    path: str
    kind: str
    verdict: str
    why: str

    def __str__(self) -> str:
        return f"{self.kind:<13} {self.verdict:<13} {self.path}: {self.why}"


def judge_folder(folder: Path) -> list[Judged]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [_told(path, str(path.relative_to(folder))) for path in files]


def _told(path: Path, name: str) -> Judged:
    try:
        kind, outcome, why = judge_file(path)
    except OSError as problem:
        kind, outcome, why = UNREADABLE, "", problem.strerror or str(problem)
    except Exception:  # noqa: BLE001 - it is told, the others are still judged, and the exit code says so
        kind, outcome, why = CRASHED, "", traceback.format_exc()
    return Judged(path=name, kind=kind, verdict=outcome, why=why)


def judge_file(path: Path) -> tuple[str, str, str]:
    """Kind, verdict, and why."""
    text = explain.read(UNKNOWN, path).text
    if (seen := _events(text)) is not None:
        return EVENT, *seen
    marked = _marked(text, path.suffix.lower())
    for kind in _kinds(text, path.suffix.lower(), marked):
        status, outcome, why = _recording(kind, path)
        if status != "not_tested" or kind == marked:
            return kind, outcome, why
    return UNKNOWN, "", "no event, and no output of a command that the health check reads"


def _events(text: str) -> tuple[str, str] | None:
    """How many are ours or may be, and of which kinds; None where there is none."""
    try:
        told = explain_text(text)
    except Refused:
        return None
    answers = told if isinstance(told, list) else [told]
    events = [answer for answer in answers if answer["kind"] != "malformed"]
    if not events:
        return None
    kinds = Counter(str(answer["kind"]) for answer in events)
    counted = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    return "understood", f"{counted}; {events[0]['why']}" if len(events) == 1 else counted


def _kinds(text: str, ending: str, marked: str) -> Iterator[str]:
    if marked:
        yield marked
    elif ending not in (_TABLE, _PAGE):
        yield from _TRIED
        if training_log.judge(text.splitlines(), policy.load(), datetime.now(UTC)):
            yield training_log.TRAINING_LOG


def _marked(text: str, ending: str) -> str:
    if ending == _PAGE:
        return ""
    if ending == _TABLE:
        return explain.NVIDIA_SMI if _QUERY.search(text.partition("\n")[0]) else ""
    return next((kind for kind, words in _MARKS if words.search(text)), "")


def _recording(kind: str, path: Path) -> tuple[str, str, str]:
    """As `gpu-health explain` judges it."""
    context = explain.Context(now=datetime.now().astimezone())
    checks, findings, _ = explain.judge([explain.read(kind, path)], policy.load(), context)
    done = verdict.decide(findings, checks, gpu_checks=explain.GPU_KINDS, required=[kind])
    return checks[0].status, done.verdict.value, done.why


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.try_samples", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="one object with every file and the summary")
    asked = parser.parse_args(arguments)
    if not asked.folder.is_dir():
        parser.error(f"{asked.folder} is no folder")
    judged = judge_folder(asked.folder)
    summary = Counter(f"{one.kind} {one.verdict}".strip() for one in judged)
    if asked.json:
        print(json.dumps({"files": [asdict(one) for one in judged], "summary": summary}, indent=2))
    else:
        for one in judged:
            print(one)
        print(f"\n{len(judged)} file(s): " + ", ".join(f"{n} {what}" for what, n in sorted(summary.items())))
    return int(any(one.kind == CRASHED for one in judged))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
