"""`gpu-health watch`: tell of a GPU fault the moment the kernel log does.

A check asks a node how it is; the watch is told. It runs as long as the node does: it survives rotated and
damaged logs, full disks and a network that is away, and after a restart it goes on where it was. It decides
nothing; what it tells is a finding by the same rules as a check's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from ecs_gpu_recovery.health import policy
from ecs_gpu_recovery.health.findings import Action, Finding
from ecs_gpu_recovery.health.judge import phrases, report, xid
from ecs_gpu_recovery.health.sources import driver_events, follow, kernel_log, nvml, simulated
from ecs_gpu_recovery.health.sources.kernel_log import KernelEvent
from ecs_gpu_recovery.health.sources.machine import Machine, booted_at
from ecs_gpu_recovery.health.watch.node_metrics import NodeMetrics
from ecs_gpu_recovery.health.watch.sinks import (
    PULSE,
    EcsAgent,
    Event,
    EventBridgeSink,
    FileSink,
    NotTold,
    Place,
    Sink,
)
from ecs_gpu_recovery.health.watch.stalls import Stalls
from ecs_gpu_recovery.health.watch.writing import RankFiles

SCHEMA = "gpu-health-event/1"
NO_LOG = 3

_REMEMBERED = 200
_MOST_UNSENT = 1000
_PID = re.compile(r"pid='?(\d+)")
_RETRY_S = (1.0, 60.0)
#: The log and the driver tell of the same fault within this time.
_ECHO_S = 5.0
_NEEDS = "it takes root with CAP_SYSLOG, and in a container also the device; or follow a file with --kernel-log FILE"

_TEXT = """\
Follows the kernel log and tells of every Xid and SXid as it happens: one line of JSON each, on standard
output and, if asked, to a file or to EventBridge. A fault that repeats itself within minutes is told once.
Faults of programs (Xid 13, 31, 43, 45, 94 and their like) are told as such: their action is "application".
With --pulse it also samples the GPUs every five seconds, and says so each minute while a program holds them and none of
them works: they spin in a collective that does not end ("flat"), or rest ("idle").
It runs until SIGTERM or SIGINT.
"""


class Watch:
    """What was seen, what is still to be told, and where we stand in the log."""

    def __init__(self, rules: policy.Policy, node: str, boot_id: str | None, boot: datetime | None) -> None:
        self._rules, self._node, self._boot_id, self._boot = rules, node, boot_id, boot
        self._recent: deque[tuple[KernelEvent, float, bool]] = deque(maxlen=_REMEMBERED)
        self.told: dict[str, float] = {}

    def take(self, line: str, source: str) -> list[Event]:
        """The events that this line makes; none for a line that says nothing new."""
        now = datetime.now().astimezone()
        seen = kernel_log.parse_line(line, now, self._boot)
        if seen is None:
            return []
        if not self._keep(seen, (seen.at or now).timestamp(), source == driver_events.DriverEvents.name):
            return []
        found = [
            f
            for f in xid.judge([event for event, _, _ in self._recent], self._rules)
            if f.action is not Action.NONE and _is_of(f, seen) and self._is_new(f, seen, now)
        ]
        return [self._event(f, seen, source, now) for f in found]

    def _keep(self, seen: KernelEvent, at: float, by_driver: bool) -> bool:
        """The driver tells what the log tells. One fault counts once, and the log knows more of it."""
        for kept in self._recent:
            event, when, driver_said = kept
            same = (event.kind, event.code, event.device) == (seen.kind, seen.code, seen.device)
            if same and driver_said is not by_driver and abs(when - at) <= _ECHO_S:
                if by_driver:
                    return False
                self._recent.remove(kept)
                break
        self._recent.append((seen, at, by_driver))
        return True

    def _is_new(self, finding: Finding, seen: KernelEvent, now: datetime) -> bool:
        """A stuck GPU repeats itself, and the driver tells what the log tells: once is enough.

        Programs that fail one after the other are several faults, told apart by their process.
        """
        key = f"{finding.gpu} {finding.kind} {finding.code} {finding.action.value}"
        culprit = _PID.search(seen.line) if finding.action is Action.APPLICATION else None
        at = (seen.at or now).timestamp()
        last = self.told.get(f"{key} {culprit[1]}" if culprit else key)
        for one in {key, f"{key} {culprit[1]}" if culprit else key}:
            self.told[one] = max(at, self.told.get(one, at))
        fresh = {k: t for k, t in self.told.items() if at - t < 24 * 3600}
        self.told = dict(sorted(fresh.items(), key=lambda item: item[1])[-_REMEMBERED:])
        return last is None or at - last > self._rules.limits.burst_s

    def _event(self, finding: Finding, seen: KernelEvent, source: str, now: datetime) -> Event:
        at = (seen.at or now).astimezone(UTC).isoformat()
        undated = at if seen.at is None else ""
        same = json.dumps([self._node, self._boot_id, finding.gpu, finding.rule, seen.line, undated])
        return {
            "schema": SCHEMA,
            "id": hashlib.sha256(same.encode()).hexdigest()[:24],
            "at": at,
            "node": self._node,
            "boot_id": self._boot_id,
            "from": source,
            "what": phrases.phrase(finding),
            "application": finding.action is Action.APPLICATION,
            "fatal": any(rule.fatal for rule in self._rules.rules if rule.id == finding.rule),
            **finding.to_json(),
            "evidence": seen.line[:500],
        }


def _is_of(finding: Finding, seen: KernelEvent) -> bool:
    if finding.kind == "sxid":
        return seen.kind == "sxid" and finding.code == seen.code
    if finding.gpu != seen.device:
        return False
    if finding.kind in ("driver-init", "kernel"):
        return seen.kind == finding.code
    return seen.kind in ("xid", "off-bus") and finding.code == seen.code


class Telling:
    """Events on their way out. They wait in order while a sink refuses them, the oldest lost last of all."""

    def __init__(self, sinks: Sequence[Sink], unsent: Sequence[Event]) -> None:
        self._sinks = list(sinks)
        self.unsent: list[Event] = list(unsent)
        self._wait_s, self._next, self._said = 0.0, 0.0, ""

    def add(self, event: Event) -> None:
        """Of pulses only the newest is worth telling: an old one says how it was, not how it is."""
        report.say(json.dumps(event))
        if self._sinks:
            old = event.get("schema") == PULSE
            stays = [one for one in self.unsent if not (old and one.get("schema") == PULSE)]
            self.unsent = [*stays, event][-_MOST_UNSENT:]

    def try_now(self) -> None:
        """Offer what waits, unless it was refused a moment ago."""
        if not self.unsent or time.monotonic() < self._next:
            return
        try:
            for sink in self._sinks:
                sink.tell(self.unsent)
        except NotTold as error:
            self._wait_s = min(max(2 * self._wait_s, _RETRY_S[0]), _RETRY_S[1])
            self._next = time.monotonic() + self._wait_s
            if str(error) != self._said:
                _complain(f"{error}; kept, to be tried again")
            self._said = str(error)
            return
        self.unsent, self._wait_s, self._said = [], 0.0, ""


def run(argv: Sequence[str], parser: argparse.ArgumentParser) -> int:
    """The command; returns the exit code."""
    options = _parser(parser).parse_args(argv)
    rules = policy.load(options.policy, options.group)
    stop = threading.Event()

    def ask_to_stop(signum: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask_to_stop)
    node = simulated.here()
    kept = _remembered(options.state)
    logs = _logs(options, node, kept)
    if not logs:
        return NO_LOG
    boot = booted_at() if isinstance(node, Machine) else None
    watch = Watch(rules, options.node, node.boot_id(), boot)
    recent = kept.get("told")
    watch.told = {str(k): float(v) for k, v in recent.items()} if isinstance(recent, dict) else {}
    unsent = kept.get("unsent")
    here = {"cluster": options.cluster} if options.cluster else {}
    place = EcsAgent() if options.ecs else lambda: here
    telling = Telling(_sinks(options, place), unsent if isinstance(unsent, list) else [])
    files = RankFiles(options.progress) if options.pulse and options.progress else None
    pulse = Stalls(node.read_samples, rules.limits, options.node, files=files) if options.pulse else None
    metrics = None
    if options.metrics:
        latest = (lambda: None) if pulse is None else (lambda: pulse.latest)
        metrics = NodeMetrics(node.read_driver, options.node, place, options.disk, pulse=latest)
    try:
        _follow(options, logs, watch, telling, metrics, pulse, stop)
    finally:
        for part in (*logs, *((metrics,) if metrics else ()), *((pulse,) if pulse else ())):
            part.close()
    return 0


Log = follow.FileFollower | follow.KernelFollower | driver_events.DriverEvents


def _follow(
    options: argparse.Namespace,
    logs: list[Log],
    watch: Watch,
    telling: Telling,
    metrics: NodeMetrics | None,
    pulse: Stalls | None,
    stop: threading.Event,
) -> None:
    saved: dict[str, object] = {}
    while True:
        for log in logs:
            for line in log.lines():
                for event in watch.take(line, log.name):
                    telling.add(event)
        if pulse is not None and (stalled := pulse.news()) is not None:
            telling.add(stalled)
        telling.try_now()
        if metrics is not None and (numbers := metrics.news()) is not None:
            report.say(json.dumps(numbers))
        state: dict[str, object] = {"told": watch.told, "unsent": telling.unsent}
        state |= {log.name: log.position() for log in logs if not isinstance(log, driver_events.DriverEvents)}
        if options.state and state != saved:
            _remember(options.state, state)
            saved = json.loads(json.dumps(state))
        for log in [one for one in logs if isinstance(one, driver_events.DriverEvents) and one.ended]:
            _complain(f"the driver's events have ended ({log.ended}); the kernel log is still followed")
            log.close()
            logs.remove(log)
        if options.once or stop.wait(options.poll):
            return


def _logs(options: argparse.Namespace, node: simulated.Node, kept: dict[str, object]) -> list[Log]:
    logs: list[Log] = []
    path = options.kernel_log or (node.kernel_log if isinstance(node, simulated.SimulatedNode) else None)
    start = kept.get(str(path or follow.KMSG))
    given = start if isinstance(start, dict) else None
    try:
        if path is not None:
            logs.append(follow.FileFollower(path, given, from_start=options.from_start))
        else:
            logs.append(follow.KernelFollower(node.boot_id(), given, from_start=options.from_start))
    except OSError as error:
        do = "give one that can be" if path else _NEEDS
        _complain(f"{path or follow.KMSG} cannot be read: {error.strerror or error}; {do}")
    if path is None and not options.once and nvml.available():
        logs.append(driver_events.DriverEvents())
    return logs


def _sinks(options: argparse.Namespace, place: Callable[[], Place]) -> list[Sink]:
    sinks: list[Sink] = [FileSink(path) for path in options.events]
    if options.eventbridge is not None:
        sinks.append(EventBridgeSink(options.eventbridge, place))
    return sinks


def _remembered(path: Path | None) -> dict[str, object]:
    """Where we were. A damaged note is as good as none."""
    if path is None:
        return {}
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        _complain(f"{path} cannot be used: {error}")
        return {}
    return kept if isinstance(kept, dict) else {}


def _remember(path: Path, state: dict[str, object]) -> None:
    try:
        report.write_json(path, state)
    except OSError as error:
        _complain(f"{path} could not be written: {error.strerror or error}")


def _complain(text: str) -> None:
    print(f"gpu-health watch: {text}", file=sys.stderr, flush=True)


def _parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.description = _TEXT
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--kernel-log", type=Path, metavar="FILE", help="follow this file instead of /dev/kmsg")
    add("--from-start", action="store_true", help="tell also what is in the log already")
    add("--state", type=Path, metavar="FILE", help="remember here what was told, for the next start")
    add("--events", type=Path, action="append", default=[], metavar="FILE", help="append the events here too")
    add("--eventbridge", nargs="?", const="default", metavar="BUS", help="put the events on this bus too")
    add("--ecs", action="store_true", help="on an ECS node: let its agent say which node this is")
    name = os.environ.get("GPU_RECOVERY_NODE") or os.uname().nodename
    add("--node", default=name, metavar="NAME", help="what this node is called (GPU_RECOVERY_NODE)")
    add("--cluster", default="", metavar="NAME", help="whose node this is, where --ecs does not tell")
    add("--metrics", action="store_true", help="also print the node's numbers once a minute, for CloudWatch")
    add("--pulse", action="store_true", help="also tell each minute that the GPUs stand still, while they do")
    add(
        "--progress",
        type=Path,
        metavar="DIR",
        help="say with the pulse when ranks last wrote: DIR/JOB_ID/NODE_RANK[.*], DIR/JOB_ID/progress.jsonl",
    )
    add(
        "--disk",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="whose free space is one of them",
    )
    add("--poll", type=float, default=0.2, metavar="S", help="how often to look (default 0.2)")
    add("--once", action="store_true", help="tell what is new and end")
    add("--policy", type=Path, metavar="FILE", help="rules in front of the built-in ones (TOML)")
    add("--group", default="", metavar="NAME", help="node group whose own rules come first")
    return parser
