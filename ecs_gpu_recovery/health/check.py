"""The live check: ask everything at once, judge what came back, write it down.

The order is of cost: first what only reads, then (at level 1 to 4) DCGM's active tests, which are left out
when a fault is already proven: they take minutes and could tell nothing that changes the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from ecs_gpu_recovery.health.findings import FAULTS, Action, Check, Finding, status_of
from ecs_gpu_recovery.health.judge import xid
from ecs_gpu_recovery.health.policy import Policy
from ecs_gpu_recovery.health.sources import dcgm, gpus, host, kernel_log, machine, marker
from ecs_gpu_recovery.health.sources.gpus import GpuState
from ecs_gpu_recovery.health.sources.probe import Emit, Outcome, Probe
from ecs_gpu_recovery.health.sources.probe import run as run_probes
from ecs_gpu_recovery.health.sources.simulated import Node

GPU_CHECKS = ("driver", dcgm.DIAG, dcgm.HEALTH)
QUICK = "quick"
LEVELS = (QUICK, "1", "2", "3", "4")
DEFAULT_LEVEL = "1"
"""Seconds, and no load on the GPUs: libraries, permissions, remapped rows, what the InfoROM and the fabric say."""
DIAG_DEADLINES_S = {"1": 300.0, "2": 900.0, "3": 3600.0, "4": 4 * 3600.0}
PASSIVE_DEADLINE_S = 20.0
IDLE = "idle"
PROGRESS = "progress"
#: More of a GPU's memory than this is in use. The driver alone holds some hundred MiB.
UNUSED_MIB = 2048
DISKS = ("/", "/tmp", "/var/lib/docker", "/var/lib/ecs")  # noqa: S108 (looked at, not written to)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the caller asked for, by the names of the options."""

    level: str = DEFAULT_LEVEL
    since: datetime | None = None
    expect_gpus: int | None = None
    kernel_log: Path | None = None
    shared_dir: Sequence[str] = ()
    checkpoints: str = ""  #: the folder of a training, to say how far that has come
    peer: Sequence[str] = ()
    disk: Sequence[str] = ()
    expect_nics: int | None = None
    deadline: float | None = None  #: seconds, for each question
    diag_deadline: float | None = None
    dcgm_host: str | None = None
    require: Sequence[str] = ()  #: what must have answered; where `idle` is among it, that is asked too


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything the checks brought home."""

    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]
    gpus: tuple[GpuState, ...]
    progress: Mapping[str, object] | None = None  #: how far the training has come, where that was asked
    driver: str = ""  #: its version


Judged = tuple[Check, list[Finding]]


def examine(node: Node, wanted: Wanted, policy: Policy, now: datetime) -> Seen:
    """Run every check that applies to this node."""
    outcomes = run_probes(_passive(node, wanted, policy))
    expected = wanted.expect_gpus if wanted.expect_gpus is not None else node.expected_gpus()
    driver = outcomes.pop("driver")
    log = _kernel_log(outcomes.pop("kernel-log"), wanted, policy, now)
    first, states = _driver(driver, policy, expected)
    if driver.state == "hung" and not _proven(log[1]):
        first, states = _asked_again(node, wanted, policy, expected, first)
    judged: list[Judged] = [first, *([(_idle(states), [])] if IDLE in wanted.require else []), log]
    for name, outcome in outcomes.items():
        judged.append(_dcgm(outcome, policy, states) if name == dcgm.HEALTH else _host(outcome, policy))
    if wanted.level != QUICK:
        diag = _diag(node, wanted, policy, states, _found(judged))
        judged.append(diag)
        if diag[0].answered:
            judged = [one for one in judged if one[0].name != dcgm.HEALTH]
            judged.append(_health_again(wanted, policy, states))
    told = outcomes[PROGRESS].first("progress") if PROGRESS in outcomes else None
    return Seen(
        checks=tuple(check for check, _ in judged),
        findings=tuple(_found(judged)),
        gpus=tuple(states),
        progress=told if isinstance(told, dict) else None,
        driver=str(driver.first("driver") or ""),
    )


def _found(judged: Iterable[Judged]) -> list[Finding]:
    return [finding for _, found in judged for finding in found]


def _passive(node: Node, wanted: Wanted, policy: Policy) -> list[Probe]:
    """All that only looks. A simulated node has no machine around it, so only what was named is looked at."""
    live = node.kind == "live"
    patience = wanted.deadline or PASSIVE_DEADLINE_S
    read_log = node.read_kernel_log
    if wanted.kernel_log:
        own = node if isinstance(node, machine.Machine) else None
        read_log = partial(machine.read_log_file, wanted.kernel_log, own)
    probes = [
        Probe(name="driver", deadline_s=wanted.deadline or node.driver_deadline_s, work=node.read_driver),
        Probe(name="kernel-log", deadline_s=patience, work=read_log),
    ]

    def add(name: str, work: Callable[[Emit], None], deadline_s: float = patience) -> None:
        probes.append(Probe(name=name, deadline_s=deadline_s, work=work))

    if live:
        add(dcgm.HEALTH, partial(machine.dcgm_health, wanted.dcgm_host))
        add("clock", partial(host.clock, policy.limits))
    if live or wanted.expect_nics is not None:
        add("nics", partial(host.nics, wanted.expect_nics))
    disks = wanted.disk or (DISKS if live else ())
    if disks:
        add("disk", partial(host.disk, disks, policy.limits))
    for path in wanted.shared_dir:
        add(f"shared-dir {path}", partial(host.shared_dir, path))
    if wanted.checkpoints:
        add(PROGRESS, partial(marker.tell, wanted.checkpoints))
    if wanted.peer:
        slow = host.CONNECT_TIMEOUT_S * len(wanted.peer) + 1
        add("network", partial(host.network, wanted.peer), max(patience, slow))
    return probes


def _driver(outcome: Outcome, policy: Policy, expected: int | None) -> tuple[Judged, list[GpuState]]:
    source = str(outcome.first("route") or "driver")
    data = [message["gpu"] for message in outcome.messages if "gpu" in message]
    states = [GpuState.from_json(item) for item in data if isinstance(item, dict)]
    problem = str(outcome.first("problem") or outcome.problem)
    if outcome.state == "hung":
        asking = [message["asking"] for message in outcome.messages if "asking" in message]
        where = f" while asking GPU {asking[-1]}" if asking else ""
        found = gpus.judge(states, source=source, policy=policy, expected=None)
        found.append(_driver_finding("hang", f"{problem}{where}", source, policy))
        return (_check("driver", outcome, "hung", f"{source}: {problem}{where}"), found), states
    if outcome.state == "done" and not states and outcome.first("count") == 0 and expected:
        found = gpus.count(0, source=source, policy=policy, expected=expected)
        return (_check("driver", outcome, "findings", f"{source}: no GPU"), found), states
    if outcome.state == "failed" or not states:
        problem = problem or "the driver works and shows no GPU, and none was said to be expected"
        found = [_driver_finding("unreachable", problem, source, policy)]
        return (_check("driver", outcome, "not_tested", problem), found), states
    found = gpus.judge(states, source=source, policy=policy, expected=expected)
    return (
        _check("driver", outcome, status_of(found), f"{len(states)} GPU(s) through {source}"),
        found,
    ), states


def _idle(states: Iterable[GpuState]) -> Check:
    """Memory or work that is none of ours: a GPU in use is not examined, and not given away."""
    used = [
        f"GPU {gpu.label}: {gpu.memory_used_mib or 0:.0f} MiB and {gpu.utilization or 0:.0f} % in use"
        for gpu in states
        if (gpu.memory_used_mib or 0) > UNUSED_MIB or gpu.utilization
    ]
    return Check(
        name=IDLE, status="not_tested" if used else "ok", detail="; ".join(used) or "nothing uses the GPUs"
    )


def _asked_again(
    node: Node, wanted: Wanted, policy: Policy, expected: int | None, first: Judged
) -> tuple[Judged, list[GpuState]]:
    """One hang may be a slow start. A second one, on a node that has GPUs, is a hung driver."""
    deadline_s = wanted.deadline or node.driver_deadline_s
    again = _ask("driver", deadline_s, node.read_driver_again)
    check, found = first
    hang = found[-1]
    rest = found[:-1]
    if again.state != "hung":
        (second_check, second_found), states = _driver(again, policy, expected)
        if second_check.answered:
            slow = _driver_finding("slow", hang.evidence, hang.source, policy)
            return (second_check, [*second_found, slow]), states
        return (check, [*found, *second_found]), []
    if expected or node.gpus_on_bus():
        evidence = f"{hang.evidence}, and again when asked a second time"
        confirmed = _driver_finding("hang-confirmed", evidence, hang.source, policy)
        return (replace(check, seconds=check.seconds + again.seconds), [*rest, confirmed]), []
    return first, []


def _driver_finding(condition: str, evidence: str, source: str, policy: Policy) -> Finding:
    rule = policy.rule("driver", condition)
    return rule.finding(source=source, kind="driver", code=condition, evidence=evidence)


def _kernel_log(outcome: Outcome, wanted: Wanted, policy: Policy, now: datetime) -> Judged:
    problem = str(outcome.first("problem") or outcome.problem)
    if problem:
        silent = _check("kernel-log", outcome, "hung" if outcome.state == "hung" else "not_tested", problem)
        return replace(silent, untested=problem), []
    boot = kernel_log.parse_time(str(outcome.first("boot") or ""))
    boot_id = outcome.first("boot_id")
    lines = [str(message["line"]) for message in outcome.messages if "line" in message]
    log = kernel_log.parse(lines, now, wanted.since, boot, boot_id if isinstance(boot_id, str) else None)
    found = xid.judge(log.events, policy)
    detail = f"{log.summary(wanted.since)} in {outcome.first('from')}"
    heard = _check("kernel-log", outcome, status_of(found), detail)
    return replace(heard, note=log.note(wanted.since)), found


def _dcgm(outcome: Outcome, policy: Policy, states: list[GpuState]) -> Judged:
    """Health or diagnostic."""
    source, exit_code = outcome.name, outcome.first("exit")
    if not isinstance(exit_code, int):
        return _dcgm_silent(outcome, policy)
    text = str(outcome.first("out") or "")
    output = dcgm.parse_diag(text) if source == dcgm.DIAG else dcgm.parse_health(text)
    said = " ".join(str(outcome.first("err") or "").split())[:200]
    found = dcgm.judge_run(output, exit_code, source=source, policy=policy, said=said)
    found = [replace(f, gpu=_bus(f.gpu, states)) for f in found]
    broken = [f.evidence for f in found if f.action is Action.NOT_TESTED]
    if output.problem or (found and len(broken) == len(found)):
        why = "; ".join(filter(None, (output.problem, said))) or broken[0]
        return replace(_check(source, outcome, "not_tested", why), untested=why), found
    untested = "; ".join([*broken, *(f"{name} was skipped" for name in output.skipped)])
    return replace(_check(source, outcome, status_of(found), output.summary), untested=untested), found


def _dcgm_silent(outcome: Outcome, policy: Policy) -> Judged:
    """No exit code came back. A diagnostic that hangs is suspicious; an absent DCGM is only absent."""
    problem = str(outcome.first("problem") or outcome.problem)
    hung = outcome.state == "hung" and outcome.name == dcgm.DIAG
    rule = policy.rule("driver", "hang") if hung else policy.rule("dcgm-exit", "not-run")
    code = "hang" if hung else "not-run"
    found = rule.finding(source=outcome.name, kind="dcgm", code=code, evidence=problem)
    silent = _check(outcome.name, outcome, "hung" if hung else "not_tested", problem)
    return replace(silent, untested=problem), [found]


def _diag(node: Node, wanted: Wanted, policy: Policy, states: list[GpuState], found: list[Finding]) -> Judged:
    if node.kind != "live":
        return Check(name=dcgm.DIAG, status="not_tested", detail="a simulated node has no DCGM"), []
    if _proven(found):
        return Check(name=dcgm.DIAG, status="not_tested", detail="left out: a fault is already proven"), []
    deadline_s = wanted.diag_deadline or DIAG_DEADLINES_S[wanted.level]
    work = partial(machine.dcgm_diag, wanted.level, wanted.dcgm_host)
    return _dcgm(_ask(dcgm.DIAG, deadline_s, work), policy, states)


def _health_again(wanted: Wanted, policy: Policy, states: list[GpuState]) -> Judged:
    """What DCGM's watches say behind its tests: they have seen the GPUs at work, and one that was just started too."""
    work = partial(machine.dcgm_health, wanted.dcgm_host)
    deadline_s = wanted.deadline or PASSIVE_DEADLINE_S
    return _dcgm(_ask(dcgm.HEALTH, deadline_s, work), policy, states)


def _ask(name: str, deadline_s: float, work: Callable[[Emit], None]) -> Outcome:
    return run_probes([Probe(name=name, deadline_s=deadline_s, work=work)])[name]


def _host(outcome: Outcome, policy: Policy) -> Judged:
    name = outcome.name.partition(" ")[0]
    found = [
        policy.rule("host", str(message["fact"])).finding(
            source="host", kind=name, code=str(message["fact"]), evidence=str(message["evidence"])
        )
        for message in outcome.messages
        if "fact" in message
    ]
    if outcome.state == "hung":
        rule = policy.rule("host", f"{name}-hang")
        text = f"{outcome.name}: {outcome.problem}"
        found.append(rule.finding(source="host", kind=name, code=f"{name}-hang", evidence=text))
        return _check(name, outcome, "hung", outcome.problem), found
    problem = str(outcome.first("problem") or outcome.problem)
    if problem:
        return _check(name, outcome, "not_tested", problem), found
    return _check(name, outcome, status_of(found), str(outcome.first("detail") or "")), found


def _check(name: str, outcome: Outcome, status: str, detail: str) -> Check:
    return Check(name=name, status=status, detail=detail, seconds=outcome.seconds)


def _proven(found: Iterable[Finding]) -> bool:
    return any(f.action in FAULTS for f in found)


def _bus(gpu: str | None, states: list[GpuState]) -> str | None:
    """DCGM counts GPUs, everyone else names them by PCI id."""
    return next((s.bus_id for s in states if s.bus_id and str(s.index) == gpu), gpu)
