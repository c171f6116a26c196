"""How an event is understood, for people who look back at a night. Reads; touches nothing."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import Refused
from ..core.events import NodeChecked, TaskEnded
from ..core.exits import classify
from ..core.policy import Policy
from .parse import parse_event
from .parsed import Parsed

#: Between two events; a byte order mark may stand before the first.
_SPACE = re.compile(r"[\s\ufeff]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """By what an event is judged. Without a cluster and a family, an event of any is taken for ours."""

    cluster: str = ""
    check_family: str = ""
    policy: Policy = field(default_factory=Policy)
    source: str = "built-in"  #: where the policy comes from


_BUILT_IN = Rules()


def explain(event: object, rules: Rules = _BUILT_IN) -> dict[str, Any]:
    """One event as plain JSON; null where the event does not tell."""
    seen = parse_event(event, cluster=rules.cluster, check_family=rules.check_family)
    verdict = next((fact.verdict.value for fact in seen.facts if isinstance(fact, NodeChecked)), None)
    return {
        "ours": seen.ours,
        "kind": seen.kind.value,
        "job": seen.job or None,
        "attempt": seen.attempt,
        "rank": seen.rank,
        "why": seen.why,
        "may_be_ours": seen.may_be_ours,
        "at": seen.at.isoformat() if seen.at else None,
        "cluster": seen.cluster or None,
        "task": seen.task_id or None,
        "node": seen.node or None,
        "instance": seen.instance or None,
        "host": seen.host or None,
        "command": seen.command_id or None,
        "status": seen.status or None,
        "exit": _exit(seen, rules.policy),
        "verdict": verdict,
        "policy": rules.policy.version,
        "policy_from": rules.source,
    }


def _exit(seen: Parsed, policy: Policy) -> dict[str, Any] | None:
    """The meaning is what the event alone allows: a node that restarted under the task can change it."""
    if seen.end is None:
        return None
    ended = next((fact for fact in seen.facts if isinstance(fact, TaskEnded)), None)
    return {
        "exit_code": seen.end.exit_code,
        "meaning": classify(ended, doubted=False, policy=policy).value if ended else None,
        "reason": seen.end.reason or None,
        "stop_code": seen.end.stop_code or None,
    }


def explain_text(text: str, rules: Rules = _BUILT_IN) -> dict[str, Any] | list[dict[str, Any]]:
    """One event gives one answer; an array, or one event after the other, gives a list."""
    documents = _documents(text)
    alone = len(documents) == 1 and not isinstance(documents[0], list)
    events = [event for doc in documents for event in (doc if isinstance(doc, list) else [doc])]
    answers = [explain(event, rules) for event in events]
    return answers[0] if alone else answers


def explain_file(path: str | Path, rules: Rules = _BUILT_IN) -> dict[str, Any] | list[dict[str, Any]]:
    """The same for a file. Raises `Refused` for one that can't be read or is no JSON."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as exc:
        raise Refused(f"{path}: {exc.strerror or exc}; give a file with EventBridge events") from exc
    except UnicodeDecodeError as exc:
        raise Refused(f"{path} is not UTF-8 text; save the event as JSON in UTF-8") from exc
    try:
        return explain_text(text, rules)
    except Refused as exc:
        raise Refused(f"{path}: {exc}") from exc


def _past_space(text: str, begin: int) -> int:
    space = _SPACE.match(text, begin)
    return space.end() if space else begin


def _documents(text: str) -> list[Any]:
    """Every JSON value in the text: one, or several after each other, on a line each or not."""
    decoder = json.JSONDecoder()
    found: list[Any] = []
    begin = _past_space(text, 0)
    while begin < len(text):
        try:
            value, end = decoder.raw_decode(text, begin)
        except json.JSONDecodeError as exc:
            raise Refused(
                f"not JSON in line {exc.lineno}, column {exc.colno}: {exc.msg}; "
                "give one event, an array of events, or one event per line"
            ) from exc
        except (RecursionError, ValueError) as exc:
            raise Refused(
                "JSON that is nested too deeply, or holds too long a number, to be an event"
            ) from exc
        found.append(value)
        begin = _past_space(text, end)
    if not found:
        raise Refused("no event in it; give one event, an array of events, or one event per line")
    return found
