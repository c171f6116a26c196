"""The command line of `gpu-health`.

Two traps of exit codes are closed here. argparse ends with 2 on a typing error, which would mean "replace
this node", and Python ends with 1 on an uncaught error, which would mean "reboot it". Both are 3 for `check`:
a program that did not run has tested nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from ecs_gpu_recovery.health import check, policy
from ecs_gpu_recovery.health.judge import report, verdict
from ecs_gpu_recovery.health.sources import dcgm, host, kernel_log, simulated

NOT_TESTED = 3
USAGE = 2
COMMANDS = ("check", "explain", "rules", "collective", "watch", "ras", "stacks")

_RECORDINGS = {
    "kernel-log": "dmesg, journalctl -k, /var/log/messages, /dev/kmsg",
    "dcgm-diag": "dcgmi diag, with -j or without",
    "dcgm-health": "dcgmi health -c, with -j or without",
    "nvidia-smi": "nvidia-smi -q -x, -q, or --query-gpu=... --format=csv",
    "training-log": "what the training program wrote",
    "network": "ibstat, ibv_devinfo or fi_info",
}
_REQUIRABLE = ("driver", "kernel-log", "dcgm", "host", check.IDLE)

_CHECK_TEXT = """\
Looks at this node's GPUs and says in its exit code whether they are fit to train:

  0  healthy
  1  a GPU fault that a reboot may cure
  2  a GPU fault that a reboot will not cure: replace
  3  could not be tested (also: wrong arguments, a broken installation)

The driver's own recovery action is asked first, then Xid and SXid messages in the kernel log, memory errors
and row remapping, the number of GPUs, NVLink and fabric, PCIe, clocks, and what DCGM knows. Disk space,
shared directories, peers, the clock and InfiniBand or EFA ports are told beside the verdict and never cause
a reboot. Every question is asked by a child process with a deadline, so a driver that hangs is a finding.
"""

_CHECK_MORE = """\
other commands:
  gpu-health explain      the verdict that recorded output leads to
  gpu-health rules        the rule table
  gpu-health collective   do the nodes of a job reach each other, fast enough?
  gpu-health watch        tell of a fault the moment the kernel log does
  gpu-health stacks       where do the processes of a rank stand?
  gpu-health ras          which rank do the others wait for? NCCL's own answer

examples:
  gpu-health --expect-gpus 8
  gpu-health --level 2 --expect-gpus 8 --json --report /var/log/gpu-health.json
  gpu-health --since 2026-11-15T02:00:00Z --shared-dir /fsx --peer 10.0.0.12:29500
"""

_EXPLAIN_TEXT = """\
Reads output that was kept from some node and tells the findings and the verdict it leads to, by the same
rules as a live check. Several files are judged together, as witnesses of one node. Nothing is touched. The
exit code is 0 whatever the verdict; a file that says nothing is "inconclusive".
"""

_EXPLAIN_MORE = """\
examples:
  dmesg --time-format iso > night.log;  gpu-health explain --kernel-log night.log
  gpu-health explain --dcgm-diag diag.json --nvidia-smi smi.xml --json
"""


class _Parser(argparse.ArgumentParser):
    """argparse with an exit code of our choice for typing errors."""

    wrong_usage = USAGE

    def error(self, message: str) -> NoReturn:
        raise _WrongUsageError(self, message)


class _WrongUsageError(Exception):
    def __init__(self, parser: _Parser, message: str) -> None:
        super().__init__(message)
        self.parser = parser


def run(argv: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments.pop(0) if arguments and arguments[0] in COMMANDS else "check"
    failed = NOT_TESTED if command in ("check", "collective") else USAGE
    does = {"check": _check, "explain": _explain, "rules": _rules}
    try:
        own = does.get(command)
        return own(arguments) if own else _run_part(command, arguments, failed)
    except SystemExit as stop:  # argparse: --help, or an argument it does not understand
        return stop.code if isinstance(stop.code, int) else failed
    except _WrongUsageError as error:
        usage = error.parser.format_usage()
        return _complain(f"{usage}{error.parser.prog}: {error}", error, error.parser.wrong_usage, arguments)
    except policy.PolicyError as error:
        return _complain(f"gpu-health: policy: {error}", f"policy: {error}", failed, arguments)
    except Exception:  # noqa: BLE001 (an error of ours must never read as a verdict about a GPU)
        told = traceback.format_exc().rstrip()
        return _complain(told, told, NOT_TESTED, arguments)


def _complain(text: str, error: object, code: int, arguments: Sequence[str]) -> int:
    """A script that asked for JSON gets the reason as JSON, too, where errors are written."""
    told = json.dumps({"error": str(error), "exit_code": code}) if "--json" in arguments else text
    print(told, file=sys.stderr)
    return code


def _check(argv: Sequence[str]) -> int:
    options = _check_parser().parse_args(argv)
    started = datetime.now(UTC)
    rules = policy.load(options.policy, options.group)
    node = simulated.here()
    wanted = check.Wanted(**{field.name: getattr(options, field.name) for field in fields(check.Wanted)})
    seen = check.examine(node, wanted, rules, datetime.now().astimezone())
    findings = verdict.escalate(seen.findings, _previous(options.previous_report, node.boot_id()), rules)
    judgement = verdict.decide(
        findings, seen.checks, gpu_checks=check.GPU_CHECKS, required=_required(wanted.require, wanted.level)
    )
    done = report.Report(
        source=node.kind,
        level=wanted.level,
        started_at=started,
        finished_at=datetime.now(UTC),
        boot_id=node.boot_id(),
        expected_gpus=wanted.expect_gpus if wanted.expect_gpus is not None else node.expected_gpus(),
        gpus=seen.gpus,
        checks=seen.checks,
        judgement=judgement,
        policy=rules,
        progress=seen.progress,
        driver=seen.driver,
    )
    if options.report:
        _write(options.report, done)
    report.say(json.dumps(done.to_json(), indent=2) if options.json else report.table(done))
    if options.json_line:
        report.say(json.dumps(done.to_json()))
    return judgement.verdict.exit_code


def _explain(argv: Sequence[str]) -> int:
    from ecs_gpu_recovery.health.judge import explain  # brings parsers that a check on a node rarely needs

    parser = _explain_parser()
    options = parser.parse_args(argv)
    given = [(kind, path) for kind in _RECORDINGS for path in getattr(options, kind.replace("-", "_"))]
    if not given:
        parser.error(f"give at least one of {', '.join('--' + kind for kind in _RECORDINGS)}")
    rules = policy.load(options.policy, options.group)
    try:
        recordings = [explain.read(kind, path) for kind, path in given]
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}")
    now = datetime.now().astimezone()
    context = explain.Context(
        now=now,
        since=options.since,
        expected_gpus=options.expect_gpus,
        dcgm_exit=options.dcgm_exit,
        expected_nics=options.expect_nics,
    )
    checks, findings, states = explain.judge(recordings, rules, context)
    kinds = [recording.kind for recording in recordings]
    judgement = verdict.decide(findings, checks, gpu_checks=explain.GPU_KINDS, required=kinds)
    done = report.Report(
        source="recorded",
        started_at=now.astimezone(UTC),
        finished_at=datetime.now(UTC),
        expected_gpus=options.expect_gpus,
        gpus=states,
        checks=checks,
        judgement=judgement,
        policy=rules,
    )
    report.say(json.dumps(done.to_json(), indent=2) if options.json else report.table(done))
    return 0


def _rules(argv: Sequence[str]) -> int:
    parser = _Parser(
        prog="gpu-health rules", description="Print the rule table, in the order rules are tried."
    )
    _policy_options(parser)
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args(argv)
    rules = policy.load(options.policy, options.group)
    listed = [asdict(rule) for rule in rules.rules]
    report.say(json.dumps(listed, indent=2) if options.json else report.rules_table(rules))
    return 0


def _run_part(command: str, argv: Sequence[str], wrong_usage: int) -> int:
    """Each brings what a check does without: sockets, threads."""
    if command == "collective":
        from ecs_gpu_recovery.health.collective.program import run
    elif command == "watch":
        from ecs_gpu_recovery.health.watch.watcher import run
    elif command == "ras":
        from ecs_gpu_recovery.health.collective.ras import run
    else:
        from ecs_gpu_recovery.health.collective.stacks import run
    parser = _Parser(prog=f"gpu-health {command}")
    parser.wrong_usage = wrong_usage
    return run(argv, parser)


def _check_parser() -> _Parser:
    parser = _Parser(
        prog="gpu-health",
        usage="gpu-health [check] [options]",
        description=_CHECK_TEXT,
        epilog=_CHECK_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.wrong_usage = NOT_TESTED
    add = parser.add_argument
    add(
        "--level",
        choices=check.LEVELS,
        default=check.DEFAULT_LEVEL,
        help="quick only looks; 1 (default, seconds) to 4 also run `dcgmi diag -r LEVEL`; from 2 on the GPUs must be"
        " idle",
    )
    add("--expect-gpus", type=_number, metavar="N", help="how many GPUs this node must have")
    add("--since", type=_time, metavar="TIME", help="ignore kernel messages older than this (ISO 8601)")
    add("--json", action="store_true", help="print the report as JSON instead of a table")
    add(
        "--json-line", action="store_true", help="print it once more, last, as one line: for readers of a log"
    )
    add("--report", type=Path, metavar="FILE", help="also write the JSON report here, all or nothing")
    add(
        "--previous-report",
        type=Path,
        metavar="FILE",
        help="the report that led to the last reboot: what is back since then may ask for a replacement",
    )
    add(
        "--require",
        action="append",
        choices=_REQUIRABLE,
        default=[],
        help="exit 3 unless this part could be tested (host: unless it is also well; idle: unless nothing uses the"
        " GPUs); may be repeated",
    )
    _look_options(parser)
    _policy_options(parser)
    return parser


def _look_options(parser: _Parser) -> None:
    """Where a check looks, and for how long."""
    add = parser.add_argument
    add(
        "--kernel-log", type=Path, metavar="FILE", help="read this instead of /dev/kmsg, dmesg or the journal"
    )
    add(
        "--checkpoints", default="", metavar="DIR", help="say how far the training that writes there has come"
    )
    add("--shared-dir", action="append", default=[], metavar="DIR", help="must be writable; may be repeated")
    add(
        "--peer",
        action="append",
        default=[],
        type=_peer,
        metavar="HOST:PORT",
        help="must accept a connection; may be repeated",
    )
    add("--disk", action="append", default=[], metavar="PATH", help="file systems to look at for free space")
    add("--expect-nics", type=_number, metavar="N", help="how many InfiniBand or EFA ports must be active")
    add(
        "--deadline",
        type=_seconds,
        metavar="S",
        help="for each question (default: 30 for the driver, 20 for others)",
    )
    add("--diag-deadline", type=_seconds, metavar="S", help="for dcgmi diag (default by level)")
    add(
        "--dcgm-host", metavar="ADDRESS", help="passed to dcgmi --host, such as a socket of the host's engine"
    )


def _explain_parser() -> _Parser:
    parser = _Parser(
        prog="gpu-health explain",
        description=_EXPLAIN_TEXT,
        epilog=_EXPLAIN_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    for kind, text in _RECORDINGS.items():
        add(f"--{kind}", action="append", default=[], type=Path, metavar="FILE", help=text)
    add("--json", action="store_true", help="print the report as JSON instead of a table")
    add("--since", type=_time, metavar="TIME", help="ignore kernel messages older than this (ISO 8601)")
    add("--expect-gpus", type=_number, metavar="N", help="how many GPUs the node should have shown")
    add("--expect-nics", type=_number, metavar="N", help="how many network ports should have been active")
    add("--dcgm-exit", type=int, metavar="CODE", help="the exit code that dcgmi diag ended with")
    _policy_options(parser)
    return parser


def _policy_options(parser: _Parser) -> None:
    parser.add_argument(
        "--policy", type=Path, metavar="FILE", help="rules in front of the built-in ones (TOML)"
    )
    parser.add_argument("--group", default="", metavar="NAME", help="node group whose own rules come first")


def _required(names: Sequence[str], level: str) -> list[str]:
    dcgm_checks = [dcgm.HEALTH] if level == check.QUICK else [dcgm.DIAG]
    return [name for wanted in names for name in (dcgm_checks if wanted == "dcgm" else [wanted])]


def _previous(path: Path | None, boot_id: str | None) -> object:
    """The earlier report, if it is one and from another boot. Without it there is nothing to compare with."""
    if path is None:
        return None
    try:
        earlier: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"gpu-health: {path} is no earlier report: {error}", file=sys.stderr)
        return None
    same_boot = isinstance(earlier, dict) and boot_id is not None and earlier.get("boot_id") == boot_id
    return None if same_boot else earlier


def _write(path: Path, done: report.Report) -> None:
    """A full disk must not change the verdict; it is told, and the exit code stands."""
    try:
        report.write_json(path, done.to_json())
    except OSError as error:
        print(f"gpu-health: {path} could not be written: {error.strerror or error}", file=sys.stderr)


def _number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError("must be above zero")
    return seconds


def _time(text: str) -> datetime:
    at = kernel_log.parse_time(text)
    if at is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time like 2026-11-15T02:00:00Z")
    return at


def _peer(text: str) -> str:
    try:
        host.split_peer(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text
