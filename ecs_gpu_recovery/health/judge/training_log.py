"""What a training program's own log says about the cause of its end.

A log is hearsay about a GPU: the same words come from a bad pointer and from a dying chip. So it never leads to a
reboot alone. It tells programs' faults from hints at hardware and at the network, and knows the words that only
repeat what another rank said first. Kernel lines in it are judged as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from ecs_gpu_recovery.health.findings import Action, Finding
from ecs_gpu_recovery.health.judge import xid
from ecs_gpu_recovery.health.policy import Policy
from ecs_gpu_recovery.health.sources import kernel_log

TRAINING_LOG = "training-log"
_LONGEST = 4000

#: Condition in the policy and how it is worded. The first that fits names the line; the telling ones come first.
_SIGNATURES: tuple[tuple[str, str], ...] = (
    ("gpu-memory", r"uncorrectable ECC error|ECC_?UNCORRECTABLE|double[- ]bit ECC|row[- ]?remap\w* fail"),
    ("gpu-link", r"uncorrectable NVLink error|NVLINK_?UNCORRECTABLE|access of peer GPU memory over nvlink"),
    (
        "gpu-gone",
        r"fallen off the bus|GPU_? ?is_? ?lost|device handle for GPU.{0,40}Unknown Error|GPU requires reset",
    ),
    ("gpu-gone", r"nvidia-container-cli: .{0,120}unknown device|unresolvable CDI devices"),
    ("gpu-bus", r"PCIe.{0,30}(?:AER.{0,10}fatal|link down|fatal error|uncorrectable)"),
    ("out-of-memory", r"out of memory|OutOfMemoryError|STATUS_ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED"),
    ("out-of-memory", r"oom[-_ ]kill|cannot allocate memory|std::bad_alloc|\bMemoryError\b"),
    ("killed", r"exitcode\s*:\s*-9\b|killed by signal(?: |: )9\b|signal: killed|^\s*Killed\s*$"),
    ("bad-access", r"illegal memory access|device-side assert|misaligned address|invalid program counter"),
    ("bad-access", r"not supported on global/shared address space|ILLEGAL_?ADDRESS"),
    (
        "bad-call",
        r"CUDA error: invalid|no kernel image is available|nccl\s?Invalid(?:Usage|Argument)|invalid usage",
    ),
    ("driver-version", r"driver version is insufficient|version mismatch"),
    ("numbers", r"non[- ]finite|found NaN|(?:loss|grad\w*)\s*(?:[=:]|is)\s*[-+]?(?:nan|inf)\b"),
    ("storage", r"no space left|read-only file system|stale file handle|transport endpoint is not connected"),
    (
        "storage",
        r"Input/output error|No such file or directory|permission denied|PermissionError|FileNotFoundError",
    ),
    ("program", r"(?:ModuleNotFound|Import|Syntax|Name|Key|Type|Attribute|Assertion|Value|Index)Error\b"),
    (
        "program",
        r"segmentation fault|core dumped|bus error|size mismatch for|DataLoader worker.{0,40}(?:killed|exited)",
    ),
    ("gpu-hint", r"unspecified launch failure|illegal instruction|hardware stack error|launch timed out"),
    (
        "gpu-hint",
        r"no CUDA-capable device|No CUDA GPUs|CUDA_ERROR_(?:NO_DEVICE|UNKNOWN)|CUDA error: unknown error",
    ),
    (
        "gpu-hint",
        r"busy or unavailable|system not yet initialized|STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)",
    ),
    (
        "gpu-hint",
        r"Failed to initialize NVML|CUDA_ERROR_LAUNCH|LaunchFailure|CUDA (?:driver error|unknown error)",
    ),
    ("gpu-hint", r"nvidia-container-cli: .{0,60}timed out"),
    ("echo", r"communicator was aborted|nccl\s?InternalError|nccl\s?UnhandledCudaError|unhandled cuda error"),
    ("echo", r"Watchdog caught collective|NCCL operations have failed or timed out|watchdog got stuck"),
    (
        "echo",
        r"watchdog thread terminated|heartbeat monitor timed out|NCCL WARN Cuda failure|previous error during capture",
    ),
    ("echo", r"ChildFailedError|closing signal SIGTERM|got signal: 15"),
    (
        "network",
        r"NET/IB.{0,10}Got completion from peer|IBV_WC_RETRY_EXC|async fatal event|ibv_\w+ failed|ibv_poll_cq",
    ),
    ("network", r"NET/OFI Request.{0,60}completed with error|Unresponsive receiver"),
    ("network", r"Got async event|EndpointConnectionError"),
    ("peer-gone", r"remote process exited|nccl\s?(?:Remote|System)Error|unhandled system error"),
    ("peer-gone", r"connection (?:closed|reset|refused)|broken pipe|no route to host|network is unreachable"),
    ("peer-gone", r"DistNetworkError|DistStoreError|got 0 bytes|Socket Timeout|Rendezvous\w*Error"),
)
_COMPILED = tuple((code, re.compile(pattern, re.IGNORECASE | re.ASCII)) for code, pattern in _SIGNATURES)

#: One of these stands in every line that a signature fits. Logs are long, and most of their lines are of no interest.
_TELLING = (
    "error|uncorrectable|remap|bit ecc|over nvlink|fallen off|lost|device handle|pcie|out of memory|outofmemory|oom"
    "|killed|allocate memory|bad_alloc|status_|exitcode|signal|illegal|assert|misaligned|program counter|address space"
    "|kernel image|invalid|insufficient|mismatch|finite|found nan|no space left|file system|file handle|endpoint"
    "|no such file|permission|segmentation|core dumped|dataloader|launch|cuda|unavailable|initialize|timed out|aborted"
    "|nccl|watchdog|heartbeat|net/ib|ibv_|async|unresponsive|net/ofi|unhandled|remote process|connection|broken pipe"
    "|requires reset|unknown device|cdi devices|no route|unreachable|0 bytes|timeout|previous"
)
_WORDS = tuple(_TELLING.split("|"))
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
    if not any(word in small for word in _WORDS) and not _NOT_A_NUMBER.search(small):
        return None
    return next((code for code, pattern in _COMPILED if pattern.search(line)), None)
