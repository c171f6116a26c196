"""The policy: which finding asks for which action. Data from a TOML file, looked up and never guessed.

The rules shipped in `policy.toml` follow what NVIDIA publishes about its error numbers. An operator's own
file is read in front of them, so it needs to name only what it changes.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ecs_gpu_recovery.health.findings import Action, Finding, one_line

DEFAULT_FILE = Path(__file__).with_name("policy.toml")

SOURCES = frozenset(
    {
        "recovery",
        "xid",
        "nvlink5",
        "sxid",
        "kernel",
        "driver",
        "dcgm",
        "dcgm-test",
        "dcgm-severity",
        "dcgm-exit",
        "host",
        "log",
    }
)

_RULE_KEYS = frozenset({"id", "source", "codes", "action", "why", "repeat", "again", "on_warning", "fatal"})


class PolicyError(ValueError):
    """The policy file cannot be used; the message lists everything that is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """So many separate incidents on one GPU within the window call for another action."""

    count: int
    window_s: float
    action: Action
    apart_s: float | None = None
    """Lines closer together than this are one incident; a stuck GPU repeats itself until it is reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of the rule table."""

    id: str
    source: str
    codes: tuple[str, ...]
    action: Action
    why: str
    repeat: Repeat | None = None
    again: Action | None = None
    on_warning: Action = Action.WATCH
    fatal: bool = False
    """A program on the GPU may wait for ever instead of ending."""
    group: str | None = None

    def finding(
        self, *, source: str, kind: str, code: int | str, evidence: str, gpu: str | None = None
    ) -> Finding:
        """The finding this rule makes of a fact."""
        return Finding(
            source=source,
            kind=kind,
            code=code,
            gpu=gpu,
            action=self.action,
            rule=self.id,
            why=self.why,
            evidence=one_line(evidence),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Numbers the checks compare with."""

    burst_s: float
    min_free_percent: float
    min_free_gib: float
    max_clock_offset_s: float
    pulse_window_s: float
    held_mib: float
    idle_utilization: float
    spin_utilization: float
    flat_power_share: float
    flat_power_w: float
    flat_fall: float
    quiet_bytes_s: float
    quiet_share: float
    host_bytes_s: float
    host_cores: float
    spin_cores: float
    best_half_life_s: float
    slow_gang: float
    slow_busy: float
    slow_after_s: float
    slow_power_share: float
    slow_clock_share: float
    slow_spread: float


class Policy:
    """The rules in order of precedence, and the name under which a report can cite them."""

    def __init__(
        self, *, rules: tuple[Rule, ...], limits: Limits, files: tuple[str, ...], digest: str, group: str
    ) -> None:
        self.rules = rules
        self.limits = limits
        self.files = files
        self.digest = digest
        self.group = group
        self._table: dict[tuple[str, str], Rule] = {}
        for rule in rules:
            for code in rule.codes:
                self._table.setdefault((rule.source, code), rule)

    def exact(self, source: str, code: int | str) -> Rule | None:
        """The rule that names this very code, if any does."""
        return self._table.get((source, str(code)))

    def rule(self, source: str, code: int | str) -> Rule:
        """The rule for this code, or the source's catch-all."""
        found = self.exact(source, code) or self._table.get((source, "*"))
        if found is None:
            raise PolicyError(f"no rule for {source} {code}, and no catch-all for {source}")
        return found

    def by_id(self, rule_id: str) -> Rule | None:
        """The rule of that name."""
        return next((rule for rule in self.rules if rule.id == rule_id), None)

    def to_json(self) -> dict[str, object]:
        """How the report says by which rules it judged."""
        return {"files": list(self.files), "digest": self.digest, "group": self.group or None}


def load(own_file: Path | None = None, group: str = "") -> Policy:
    """The shipped rules, with the operator's file and the node group's rules in front."""
    texts = []
    if own_file is not None:
        texts.append((str(own_file), _read(own_file)))
    texts.append(("default", _read(DEFAULT_FILE)))
    problems: list[str] = []
    of_group: list[Rule] = []
    of_all: list[Rule] = []
    limits: dict[str, float] = {}
    for name, text in reversed(texts):
        data = _toml(name, text)
        problems += _shape(name, data)
        groups = data.get("group", {})
        chosen = groups.get(group, {}) if isinstance(groups, dict) else {}
        for table in (data, chosen):
            limits |= _numbers(name, table.get("limits", {}), problems)
        of_all = _rules(name, data.get("rule", []), None, problems) + of_all
        of_group = _rules(name, chosen.get("rule", []), group, problems) + of_group
    known = set(Limits.__dataclass_fields__)
    problems += [f"limits: {key} is not known" for key in sorted(set(limits) - known)]
    if problems:
        raise PolicyError("; ".join(problems))
    digest = hashlib.sha256("\0".join(text for _, text in texts).encode()).hexdigest()[:12]
    return Policy(
        rules=tuple(of_group + of_all),
        limits=Limits(**limits),
        files=tuple(name for name, _ in texts),
        digest=digest,
        group=group,
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"{path}: cannot be read: {error}") from error


def _toml(name: str, text: str) -> dict[str, object]:
    """TOML, or JSON with the same keys for those who make policies by program."""
    try:
        data: object = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except ValueError as error:
        raise PolicyError(f"{name}: {error}") from error
    if not isinstance(data, dict):
        raise PolicyError(f"{name}: a table was expected")
    return data


def _shape(name: str, data: Mapping[str, object]) -> list[str]:
    problems = []
    if data.get("version") != 1:
        problems.append(f"{name}: version must be 1")
    for key in sorted(set(data) - {"version", "limits", "rule", "group"}):
        problems.append(f"{name}: {key} is not known")
    return problems


def _numbers(name: str, table: object, problems: list[str]) -> dict[str, float]:
    if not isinstance(table, dict):
        problems.append(f"{name}: limits must be a table")
        return {}
    good: dict[str, float] = {}
    for key, value in table.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
            good[str(key)] = float(value)
        else:
            problems.append(f"{name}: limits.{key} must be a number, zero or more")
    return good


def _rules(name: str, entries: object, group: str | None, problems: list[str]) -> list[Rule]:
    if not isinstance(entries, list):
        problems.append(f"{name}: rule must be a list of tables")
        return []
    rules = []
    for number, entry in enumerate(entries, start=1):
        where = f"{name}: rule {number}"
        if not isinstance(entry, dict):
            problems.append(f"{where} must be a table")
            continue
        try:
            rules.append(_rule(entry, group))
        except (KeyError, TypeError, ValueError) as error:
            label = entry.get("id")
            text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            problems.append(f"{where}{f' ({label})' if label else ''}: {text}")
    return rules


def _rule(entry: dict[str, object], group: str | None) -> Rule:
    unknown = sorted(set(entry) - _RULE_KEYS)
    if unknown:
        raise ValueError(f"{', '.join(unknown)} is not known")
    source = str(entry["source"])
    if source not in SOURCES:
        raise ValueError(f"source must be one of {', '.join(sorted(SOURCES))}")
    codes = entry["codes"]
    if not isinstance(codes, list) or not codes:
        raise ValueError("codes must be a list with at least one entry")
    return Rule(
        id=str(entry["id"]),
        source=source,
        codes=tuple(code for item in codes for code in _codes(item)),
        action=_action(entry["action"]),
        why=str(entry["why"]),
        repeat=_repeat(entry.get("repeat")),
        again=_action(entry["again"]) if "again" in entry else None,
        on_warning=_action(entry.get("on_warning", Action.WATCH.value)),
        fatal=_yes_or_no(entry.get("fatal", False)),
        group=group,
    )


def _codes(item: object) -> list[str]:
    """79 -> 79; "126-135" -> ten codes; a word stays a word."""
    text = str(item)
    first, dash, last = text.partition("-")
    if dash and first.isdigit() and last.isdigit():
        if not 0 <= int(last) - int(first) <= 100_000:
            raise ValueError(f"{text} is not a range")
        return [str(number) for number in range(int(first), int(last) + 1)]
    return [text]


def _action(value: object) -> Action:
    try:
        return Action(str(value))
    except ValueError:
        raise ValueError(f"action {value!r} must be one of {', '.join(a.value for a in Action)}") from None


def _yes_or_no(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("fatal must be true or false")
    return value


def _repeat(value: object) -> Repeat | None:
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) - {"apart_s"} != {"count", "window_s", "action"}:
        raise ValueError("repeat needs count, window_s and action, and may have apart_s")
    count, window_s, apart_s = value["count"], value["window_s"], value.get("apart_s", 1.0)
    spans = all(isinstance(span, (int, float)) and span > 0 for span in (window_s, apart_s))
    if not isinstance(count, int) or count < 2 or not spans:
        raise ValueError("repeat: count must be 2 or more, window_s and apart_s above zero")
    return Repeat(
        count=count,
        window_s=float(window_s),
        action=_action(value["action"]),
        apart_s=float(apart_s) if "apart_s" in value else None,
    )
