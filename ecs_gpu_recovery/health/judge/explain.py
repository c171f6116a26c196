"""Recorded output, judged by the same rules as a live node: what would we have done that night?"""

from __future__ import annotations

import json
import re
import textwrap
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from ecs_gpu_recovery.health.findings import Check, Finding, status_of
from ecs_gpu_recovery.health.judge import training_log, xid
from ecs_gpu_recovery.health.judge.training_log import TRAINING_LOG
from ecs_gpu_recovery.health.policy import Policy
from ecs_gpu_recovery.health.sources import dcgm, gpus, kernel_log, log_records, network_ports, nvsmi
from ecs_gpu_recovery.health.sources.gpus import GpuState

NVIDIA_SMI = "nvidia-smi"
KERNEL_LOG = xid.SOURCE
NETWORK = "network"
LOGS = (KERNEL_LOG, TRAINING_LOG)
GPU_KINDS = (KERNEL_LOG, dcgm.DIAG, dcgm.HEALTH, NVIDIA_SMI)
"""Recordings of someone who looked at GPUs. A training log and the network's ports did not."""

_ROOT_KEY = re.compile(r'"(?:DCGM (?:GPU )?Diagnostic|Overall Health)"\s*:')
_OBJECT = re.compile(r"^\{", re.MULTILINE)
_MOST_BYTES = 1 << 30
_MOST_WRAPPINGS = 3
_TIMES = re.compile(
    r"^(?:> )?(?:[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,18}(?:Z|[+-][0-9:]{4,6})(?: std(?:out|err) [FP])?[ \t]?)?"
)
_NAMES = re.compile(r"[\w.-]{1,60}(?:: | +\| ?)")
_BYTE_ORDER_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One kept output and what it is said to be."""

    kind: str
    path: Path
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the recordings themselves don't tell."""

    now: datetime
    since: datetime | None = None
    expected_gpus: int | None = None
    dcgm_exit: int | None = None
    expected_nics: int | None = None


def read(kind: str, path: Path) -> Recording:
    """Any bytes make a text; what of it makes sense is for the parsers to say."""
    data = _inflated(path.read_bytes())
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS if data.startswith(mark)), "utf-8")
    text = data.decode(encoding, errors="replace")
    for _ in range(_MOST_WRAPPINGS):
        text = log_records.plain(text)
        text = _unpacked(text if kind in LOGS else _bare(text))
    return Recording(kind=kind, path=path, text=text)


def _bare(text: str) -> str:
    """Without what a program put in front of the lines: a time, the name of a container or of a node, a margin."""
    text = "\n".join(_TIMES.sub("", line, count=1) for line in text.splitlines())
    lines = [line for line in text.splitlines() if line.strip()]
    names = Counter(found[0].rstrip() for found in map(_NAMES.match, lines) if found)
    for name, times in names.most_common(1):
        if times > max(1, len(lines) // 2):
            text = "\n".join(re.sub(f"^{re.escape(name)} ?", "", line) for line in text.splitlines())
    return textwrap.dedent(text)


def _inflated(data: bytes) -> bytes:
    """Bug reports and rotated logs come compressed. One that is cut off is read as far as it goes."""
    parts, rest = [], data
    try:
        while rest.startswith(b"\x1f\x8b"):
            inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            parts.append(inflater.decompress(rest, _MOST_BYTES))
            rest = inflater.unused_data
    except zlib.error:
        return b"".join(parts) or data
    return b"".join(parts) if parts else data


def _unpacked(text: str) -> str:
    """What a program kept as a string inside JSON, such as the answer of Run Command, is read as it was printed."""
    start = _OBJECT.search(text)
    if start is None or _ROOT_KEY.search(text):
        return text
    try:
        document, end = json.JSONDecoder().raw_decode(text, start.start())
    except (ValueError, RecursionError):
        return text
    strings = list(_strings(document))
    packed = any("\n" in string.strip() or "\x1b" in string or _ROOT_KEY.search(string) for string in strings)
    most = end - start.start() > len(text) // 2
    return "\n".join(strings) if packed and most else text


def _strings(value: object) -> Iterator[str]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            waiting += reversed(one.values())
        elif isinstance(one, list):
            waiting += reversed(one)


def judge(
    recordings: Sequence[Recording], policy: Policy, context: Context
) -> tuple[list[Check], list[Finding], list[GpuState]]:
    """One check per recording, so that a file that can't be read is seen as such and not as good news."""
    checks: list[Check] = []
    findings: list[Finding] = []
    states: list[GpuState] = []
    found: list[Finding]
    for recording in recordings:
        if not recording.text.strip("\x00 \r\n\t\ufeff"):
            check, found = _silent(recording, "the file is empty"), []
        elif recording.kind == KERNEL_LOG:
            check, found = _kernel_log(recording, policy, context)
        elif recording.kind == TRAINING_LOG:
            check, found = _training_log(recording, policy, context)
        elif recording.kind == NETWORK:
            check, found = _network(recording, policy, context)
        elif recording.kind == NVIDIA_SMI:
            check, found, shown = _nvidia_smi(recording, policy, context)
            states += shown
        else:
            check, found = _dcgm(recording, policy, context)
        checks.append(check)
        findings += found
    return checks, findings, states


def _silent(recording: Recording, why: str) -> Check:
    return Check(name=recording.kind, status="not_tested", detail=f"{recording.path.name}: {why}")


def _heard(recording: Recording, found: Sequence[Finding], detail: str) -> Check:
    return Check(name=recording.kind, status=status_of(found), detail=f"{recording.path.name}: {detail}")


def _kernel_log(recording: Recording, policy: Policy, context: Context) -> tuple[Check, list[Finding]]:
    if not kernel_log.looks_like_kernel_log(recording.text):
        return _silent(recording, "not one line of it looks like a kernel log"), []
    lines = recording.text.splitlines()
    log = kernel_log.parse(lines, context.now, context.since)
    found = xid.judge(log.events, policy)
    heard = _heard(recording, found, f"{len(lines)} line(s), {log.summary(context.since)}")
    return replace(heard, note=log.note(context.since)), found


def _training_log(recording: Recording, policy: Policy, context: Context) -> tuple[Check, list[Finding]]:
    lines = recording.text.splitlines()
    found = training_log.judge(lines, policy, context.now, context.since)
    return _heard(recording, found, f"{len(lines)} line(s)"), found


def _network(recording: Recording, policy: Policy, context: Context) -> tuple[Check, list[Finding]]:
    ports = network_ports.parse(recording.text, context.expected_nics)
    if ports.problem:
        return _silent(recording, ports.problem), []
    found = [
        policy.rule("host", code).finding(source="host", kind="nics", code=code, evidence=text)
        for code, text in ports.facts
    ]
    return _heard(recording, found, ports.summary), found


def _nvidia_smi(
    recording: Recording, policy: Policy, context: Context
) -> tuple[Check, list[Finding], list[GpuState]]:
    output = nvsmi.parse(recording.text)
    if output.no_devices and context.expected_gpus:
        found = gpus.count(0, source=NVIDIA_SMI, policy=policy, expected=context.expected_gpus)
        return _heard(recording, found, "no GPU shown"), found, []
    if output.problem:
        return _silent(recording, output.problem), [], []
    shown = list(output.gpus)
    found = gpus.judge(
        shown, source=NVIDIA_SMI, policy=policy, expected=context.expected_gpus, in_part=output.in_part
    )
    return _heard(recording, found, f"{len(shown)} GPU(s)"), found, shown


def _dcgm(recording: Recording, policy: Policy, context: Context) -> tuple[Check, list[Finding]]:
    is_diag = recording.kind == dcgm.DIAG
    output = dcgm.parse_diag(recording.text) if is_diag else dcgm.parse_health(recording.text)
    exit_code = context.dcgm_exit if is_diag else None
    found = dcgm.judge_run(output, exit_code, source=recording.kind, policy=policy)
    if output.problem:
        return _silent(recording, output.problem), found
    return _heard(recording, found, output.summary), found
