"""What a training program's own log says about the cause of its end.

A log is hearsay about a GPU: the same words come from a bad pointer and from a dying chip. So it never leads to a
reboot alone. It tells programs' faults from hints at hardware and at the network, and knows the words that only
repeat what another rank said first. Kernel lines in it are judged as such.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from ecs_gpu_recovery.health.findings import Action, Finding
from ecs_gpu_recovery.health.judge import xid
from ecs_gpu_recovery.health.policy import Policy
from ecs_gpu_recovery.health.sources import kernel_log

TRAINING_LOG = "training-log"
_LONGEST = 4000

_FACTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
#: Condition in the policy, and how it is worded. The first that fits names the line.
_SIGNATURES: list[tuple[str, re.Pattern[str]]] = [
    (code, re.compile(pattern, re.IGNORECASE | re.ASCII)) for code, pattern in _FACTS["signatures"]
]
_TELLING: list[str] = _FACTS["telling"]
_NOT_A_NUMBER = re.compile(r"(?:loss|grad\w*)\s*(?:[=:]|is)\s*[-+]?(?:nan|inf)\b", re.ASCII)


def judge(
    lines: Iterable[str], policy: Policy, now: datetime, since: datetime | None = None
) -> list[Finding]:
    """One finding for each kind of complaint, with the first line that made it."""
    found: dict[str, Finding] = {}
    kernel = []
    for line in lines:
        if kernel_log.is_relevant(line):
            told = list(kernel_log.events_in(line[:_LONGEST], now))
            kernel += [event for event in told if since is None or event.at is None or event.at >= since]
            if told:
                continue
        code = signature(line)
        if code is None:
            continue
        rule = policy.rule("log", code)
        if code in found:
            found[code] = replace(found[code], count=found[code].count + 1)
        else:
            found[code] = rule.finding(source=TRAINING_LOG, kind="log", code=code, evidence=line.strip())
    said = [*xid.judge(kernel, policy), *found.values()]
    if any(f.action in (Action.SUSPECT, Action.REBOOT, Action.REPLACE) for f in said):
        said = [f for f in said if f.action is not Action.APPLICATION]  # what follows a dying GPU is its echo
    return said


def signature(line: str) -> str | None:
    """What one line complains of. An exception inside a wrapper counts before the wrapper."""
    line = line[:_LONGEST]
    small = line.lower()
    if not any(word in small for word in _TELLING) and not _NOT_A_NUMBER.search(small):
        return None
    return next((code for code, pattern in _SIGNATURES if pattern.search(line)), None)


#: What a rank says because another has died.
_ECHOES = frozenset({"echo", "peer-gone", "network"})
#: How a Python program that nobody caught tells what ended it, at the foot of its traceback.
_RAISED = re.compile(
    r"(?:\[rank\d+\]: ?)?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)(?:: .*)?", re.ASCII
)
#: Where no line tells, so many of the last ones are given.
_LAST = 3


def last_words(lines: Iterable[str]) -> tuple[str, bool]:
    """What the end of a log tells of the end of its program, and whether it only tells of another's.

    The first line that complains is nearest to the cause; one that repeats what befell another rank comes after all
    others. A log without any such line speaks by its first exception, or by its last lines.
    """
    said = [line.strip()[:_LONGEST] for line in lines if line.strip()]
    known = [(line, code in _ECHOES) for line in said if (code := signature(line))]
    own = [line for line, echo in known if not echo]
    if own or known:
        return (own[0], False) if own else (known[0][0], True)
    raised = [line for line in said if _RAISED.fullmatch(line)]
    return raised[0] if raised else " | ".join(said[-_LAST:]), False
