"""Output of other versions, tools and wrappings than those recorded: what each must lead to."""

from __future__ import annotations

import json
import random
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ecs_gpu_recovery.health import main, policy
from ecs_gpu_recovery.health.findings import Finding
from ecs_gpu_recovery.health.judge import training_log, verdict
from ecs_gpu_recovery.health.judge.explain import GPU_KINDS, Context, judge, read

from .conftest import ROOT, Explain

FOLDER = ROOT / "tests" / "health" / "samples"
#: Kind, file, text, verdict: a file lies under its verdict and its kind.
SAMPLES = [
    (file.parent.name, file.stem, file.read_bytes().decode(), file.parent.parent.name)
    for file in sorted(FOLDER.glob("*/*/*.txt"))
]
RULES = policy.load()
QUIET = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
ACTING = ("reboot", "replace")
ECC = "uncorrectable ECC error encountered\n"


def judged(kind: str, data: bytes, folder: Path) -> tuple[str, list[Finding], str]:
    """The same without the command around it, many times over."""
    (folder / "input").write_bytes(data)
    now = datetime.now().astimezone()
    checks, findings, _ = judge([read(kind, folder / "input")], RULES, Context(now=now))
    done = verdict.decide(findings, checks, gpu_checks=GPU_KINDS, required=[kind])
    return done.verdict.value, list(done.findings), done.why


def test_there_is_something_of_every_kind_and_verdict() -> None:
    assert {row[0] for row in SAMPLES} == set(main._RECORDINGS)
    assert {row[3] for row in SAMPLES} == {"healthy", "reboot", "replace", "inconclusive"}
    assert len(SAMPLES) > 60


@pytest.mark.parametrize(
    ("kind", "name", "text", "wanted"), SAMPLES, ids=[f"{row[0]} {row[1]}" for row in SAMPLES]
)
def test_it_leads_to_its_verdict(kind: str, name: str, text: str, wanted: str, explain: Explain) -> None:
    answer = explain(**{kind: text})
    assert answer["verdict"] == wanted, answer["why"]
    if wanted in ACTING:
        assert [f for f in answer["findings"] if f["action"] == wanted and f["evidence"] and f["rule"]]


def each_line(before: str, after: str = "") -> Any:
    return lambda text: "".join(f"{before}{line}{after}\n" for line in text.splitlines()).encode()


WRAPPINGS = {
    "colours": each_line("\x1b[0m", "\x1b[K\x1b[0m"),
    "a time": each_line("2026-11-15T03:12:00.123Z "),
    "a container's log": each_line("2026-11-15T03:12:00.123456789Z stdout F "),
    "the name of a container": each_line("check-1  | "),
    "the name of a node": each_line("node-7: "),
    "a quotation": each_line("> "),
    "a margin": each_line("    "),
    "blank lines": lambda text: text.replace("\n", "\n\n").encode(),
    "a prompt": lambda text: (
        f"root@node:~# dcgmi diag -r 1; nvidia-smi; dmesg\n{text}root@node:~# \n".encode()
    ),
    "an answer in JSON": lambda text: json.dumps(
        {"host": "n", "output": f"{text}\nend", "rc": 0}, indent=2
    ).encode(),
    "windows line ends": lambda text: text.replace("\n", "\r\n").encode(),
    "utf-16": lambda text: text.encode("utf-16"),
    "a byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "noise before": lambda text: b"Warning: something of no interest\n\xff\xfe\x80 noise\n" + text.encode(),
    "noise after": lambda text: text.encode() + b"\nsome prompt$ \x00\x1b[0m\n",
    "no last line end": lambda text: text.rstrip("\n").encode(),
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_wrapping_changes_no_verdict(wrapping: str, tmp_path: Path) -> None:
    for kind, name, text, wanted in SAMPLES:
        said, _, why = judged(kind, WRAPPINGS[wrapping](text), tmp_path)
        assert said == wanted, (name, why)


PREFIXES = (
    "",
    "[  100.123456] ",
    "[Fri Nov 14 02:00:01 2025] ",
    "2025-11-14T02:00:01,123456+00:00 ",
    "kern  :warn  : [  100.123456] ",
    "Nov 14 02:00:01 node-7 kernel: ",
    "Nov 14 02:00:01 node-7 kernel: [  100.123456] ",
    "2025-11-14T02:00:01.123456+01:00 node-7 kernel: ",
    "<4>[  100.123456] ",
    "4,3970,206764321,-;",
    "2025-11-14 02:00:01 node-7 dmesg[99]: [  100.1] ",
    '{"_HOSTNAME":"node-7","PRIORITY":"4","MESSAGE":"',
)
MESSAGES = (
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.", "reboot"),
    (
        "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "reboot",
    ),
    ("NVRM: Xid (0000:3b:00): 48, An uncorrectable double bit error (DBE) has been detected", "reboot"),
    ("NVRM: Xid (PCI:0018:01:00): 95, pid=77, Uncontained: FBHUB. RST: Yes, D-RST: No", "reboot"),
    (
        "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
        "reboot",
    ),
    ("NVRM: Xid (PCI:0000:3b:00): 31, pid=5, name=python, Ch 00000008, intr 00000000. MMU Fault", "healthy"),
    ("NVRM: Xid (PCI:0000:3b:00): 13, Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0)", "healthy"),
    ("NVRM: Xid (PCI:0000:3b:00): 4242, a number of tomorrow", "healthy"),
    ("nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "reboot"),
    ("nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 11021, Non-fatal, Link 30 egress", "healthy"),
)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_kernel_message_means_the_same_in_every_log(prefix: str, tmp_path: Path) -> None:
    for message, wanted in MESSAGES:
        said, _, why = judged("kernel-log", f"{prefix}{message}\n".encode(), tmp_path)
        assert said == wanted, (message, why)


@QUIET
@given(data=st.data())
def test_cut_shuffled_and_interleaved_output_never_acts_without_evidence(
    data: st.DataObject, tmp_path: Path
) -> None:
    kind, _, text, wanted = data.draw(st.sampled_from(SAMPLES))
    lines = text.splitlines(keepends=True)
    change = data.draw(st.sampled_from(("cut", "shuffle", "interleave", "bytes", "drop")))
    chance = random.Random(data.draw(st.integers(0, 10_000)))
    if change == "cut":
        made = text[: chance.randrange(len(text) + 1)].encode()
    elif change == "bytes":
        spoiled = bytearray(text.encode())
        for _ in range(5):
            spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
        made = bytes(spoiled)
    else:
        if change == "shuffle":
            chance.shuffle(lines)
        elif change == "drop":
            lines = [line for line in lines if chance.random() < 0.7]
        else:
            lines = [part for line in lines for part in (line, "stderr: Warning: retrying\n")]
        made = "".join(lines).encode()
    said, findings, why = judged(kind, made, tmp_path)
    if said in ACTING:
        proof = [f for f in findings if f.action == said]
        assert proof
        assert all(f.evidence and f.rule for f in proof)
    if wanted not in ACTING and change != "bytes":
        assert said not in ACTING, (change, why)


@pytest.mark.parametrize("code", [*range(1, 180, 3), 255, 999, 65535, 999999])
def test_no_number_acts_unless_a_rule_says_so(code: int, explain: Explain) -> None:
    answer = explain(kernel_log=f"[1.0] NVRM: Xid (PCI:0000:3b:00): {code}, some words\n")
    if answer["verdict"] in ACTING:
        assert RULES.exact("xid", code) is not None, "only a code that a rule names"
    assert answer["findings"], "nothing is dropped silently"


def test_eight_gpus_of_which_two_are_bad_are_told_apart(explain: Explain) -> None:
    buses = [f"0000:{bus:02x}:00" for bus in (0x1B, 0x29, 0x45, 0x4E, 0x9D, 0xAD, 0xD1, 0xDA)]
    lines = [f"[1.{i}] NVRM: Xid (PCI:{bus}): 43, pid=9, name=python, Ch 8" for i, bus in enumerate(buses)]
    lines += [f"[2.{i}] NVRM: Xid (PCI:{buses[i]}): 79, GPU has fallen off the bus." for i in (2, 5)]
    answer = explain(kernel_log="\n".join(lines))
    assert answer["verdict"] == "reboot"
    assert {f["gpu"] for f in answer["findings"] if f["action"] == "reboot"} == {buses[2], buses[5]}


def test_a_training_log_and_a_suspicious_driver_are_two_witnesses(explain: Explain) -> None:
    """Alone each proves too little. Together they say the same."""
    kernel = "[9.1] NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x26:0xffff:1266)\n"
    assert explain(training_log=f"RuntimeError: CUDA error: {ECC}", kernel_log=kernel)["verdict"] == "reboot"


def test_a_training_log_alone_never_acts_and_names_whom_it_blames(explain: Explain) -> None:
    program = explain(training_log="RuntimeError: CUDA error: device-side assert triggered\n")
    assert (program["verdict"], program["application_fault"]) == ("inconclusive", True)
    network = explain(training_log="NCCL WARN NET/IB : Got completion from peer 10.2.0.5<3> with error 12\n")
    assert (network["host_ok"], network["application_fault"]) == (False, False)
    echo = explain(training_log="[Rank 0] Watchdog caught collective operation timeout: WorkNCCL\n")
    assert {f["action"] for f in echo["findings"]} == {"none"}


def test_what_follows_a_dying_gpu_is_not_the_programs_fault(explain: Explain) -> None:
    answer = explain(training_log=f"CUDA error: {ECC}ValueError: bad batch\nNameError: x\n")
    assert (answer["verdict"], answer["application_fault"]) == ("inconclusive", False)


def test_the_number_of_network_ports_is_compared_where_it_is_known(explain: Explain) -> None:
    text = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n"
    for expected, well in (("1", True), ("8", False)):
        assert explain("--expect-nics", expected, network=text)["host_ok"] is well


# -- the words of training programs: none is lost to the quick look, and each blames the right one --------------


SAID = {
    "could not synchronize on CUDA context: CUDA_ERROR_ECC_UNCORRECTABLE": "gpu-memory",
    "NCCL WARN Cuda failure 214 'uncorrectable ECC error encountered'": "gpu-memory",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE": "gpu-link",
    "pynvml.NVMLError_GpuIsLost: GPU is lost": "gpu-gone",
    "nvidia-container-cli: device error: GPU-5a1c7f9e: unknown device: unknown": "gpu-gone",
    "failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=GPU-5a1c7f9e": "gpu-gone",
    "NVML: GPU requires reset": "gpu-gone",
    "XlaRuntimeError: INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS": "bad-access",
    "CUDA_ERROR_LAUNCH_FAILED": "gpu-hint",
    "RuntimeError: CUDA driver error: unknown error": "gpu-hint",
    "nvidia-container-cli: detection error: driver error: timed out: unknown": "gpu-hint",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.": "out-of-memory",
    "Killed": "killed",
    "Loss is nan, stopping": "numbers",
    "ERROR: Unexpected bus error encountered in worker.": "program",
    "OSError: [Errno 5] Input/output error": "storage",
    "NCCL WARN NET/IB : mlx5_3:1 Got async event : port error": "network",
}


@pytest.mark.parametrize(("line", "code"), SAID.items())
def test_a_complaint_is_known_by_its_words(line: str, code: str) -> None:
    assert training_log.signature(line) == code


@pytest.mark.parametrize("line", ["step 100 loss 2.31", "INFO loss: 2.31 information", "", "epoch 3, room 2"])
def test_a_line_without_a_complaint_has_none(line: str) -> None:
    assert training_log.signature(line) is None


@pytest.mark.parametrize(("code", "pattern"), training_log._SIGNATURES)
@settings(max_examples=8)
@given(data=st.data())
def test_the_quick_look_lets_every_signature_pass(
    code: str, pattern: re.Pattern[str], data: st.DataObject
) -> None:
    line = data.draw(st.from_regex(pattern))
    assert training_log.signature(line) is not None, code
