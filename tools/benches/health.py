"""Is the verdict right, and what follows from it? Hundreds of broken, sound, misused and untestable nodes.

Each case is a node of the embedded mode with a job on it: the fault is put in by the injector, the job's task dies
with exit code 1, the controller has the node examined, and reboots it or not; the guard that many faults at once would
wake is out of the way. What each fault must lead to is written here by hand, not taken from the rules. A frozen GPU
lets no task die: such a node is examined while it is free.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

from ecs_gpu_recovery.core.events import NodeAsked
from ecs_gpu_recovery.core.model import JobSpec, NodeStatus
from ecs_gpu_recovery.health import main
from ecs_gpu_recovery.health.sources import simulated
from ecs_gpu_recovery.local import gpus, wiring
from ecs_gpu_recovery.local.controller import Controller, NodeWish
from ecs_gpu_recovery.local.files import write_json

GPUS = 4
HEALTHY, REBOOT, REPLACE, INCONCLUSIVE = range(4)
BAD = (REBOOT, REPLACE)
CURABLE = (46, 48, 61, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158)
REPLACED = (54, 142)
PROGRAMS = (8, 11, 13, 25, 31, 32, 43, 45, 60, 68, 69, 94, 126, 135, 137, 139)
HARMLESS = (14, 37, 38, 44, 63, 66, 67, 92, 93, 106, 121, 141, 152, 157, 160, 161, 173, 555)
#: Lines that are no plain Xid of a whole GPU; {gpu} is its PCI id.
CURABLE_LINES = (
    "NVRM: Xid (PCI:{gpu} GPU-I:01): 95, pid=71, name=python3, Uncontained: FBHUB. RST: Yes, D-RST: No",
    "NVRM: Xid (PCI:{gpu} GPU-I:01 GPU-CI:00): 79, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:{gpu} GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: Yes, D-RST: No",
    "NVRM: Xid (PCI:{gpu}): 175, Memory subsystem error",
    "NVRM: Xid (PCI:{gpu}): 154, GPU recovery action changed to 0x2 (Node Reboot Required)",
    "nvidia-nvswitch0: SXid (PCI:{gpu}.0): 24007, Fatal, Link 28 sourcetrack timeout error (First)",
)
PROGRAMS_LINES = (
    "NVRM: Xid (PCI:{gpu} GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
    "NVRM: Xid (PCI:{gpu} GPU-I:01 GPU-CI:00): 13, pid=9, name=a, Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0)",
)
HARMLESS_LINES = (
    "NVRM: Xid (PCI:{gpu}): 79, GPU has fallen off the bus.\n[    0.000000] Linux version 6.8.0-1021-aws (gcc 13)",
    "NVRM: Xid (PCI:{gpu}): 154, GPU recovery action changed to 0x0 (None)",
    "NVRM: GPU0 _kgspRpcRecvPoll: GSP RM heartbeat timed out",
    "nvidia-nvswitch0: SXid (PCI:{gpu}.0): 20009, Non-fatal, Link 04 RX Short Error Rate",
)
SUSPICIOUS_LINES = (
    "NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7",
    "NVRM: GPU3 _kgspRpcGspEventPmuHalted: Received signal from GSP that PMU has halted.",
    "NVRM: GPU0 nvAssertFailedNoLog: Assertion failed: (status == NV_ERR_GPU_IN_FULLCHIP_RESET) @ rs_client.c:844",
    "NVRM: Xid (PCI:{gpu}",
)
ROUNDS = 4
AT_ONCE = 8
#: The first attempt dies, the next is done.
DIES_ONCE = ("sh", "-c", '[ "$JOB_ATTEMPT" != 0 ] || exit 1')
PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class Case:
    """What is wrong with one node, and what must be said about it."""

    kind: str
    faults: tuple[str, ...]
    """Names for the injector."""
    lines: tuple[int | str, ...]
    """Xids that stand in the kernel log only, or whole lines of it."""
    wanted: int

    @property
    def frozen(self) -> bool:
        """No task on it ever ends."""
        return bool({"hang", "driver-hang"} & set(self.faults))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was said about the node, and what was done to it."""

    verdict: int
    reboots: int
    node: NodeStatus
    job: str

    def fits(self, case: Case) -> bool:
        """The action is the one that docs/health.md names for the verdict."""
        failed = self.node is NodeStatus.FAILED
        if case.frozen:
            return (self.reboots, failed) == (1, False)
        if case.wanted == REBOOT:
            return (self.reboots, failed, self.job) == (1, False, "COMPLETE")
        return (self.reboots, failed, self.job) == (0, case.wanted == REPLACE, "FAILED")


def cases(chance: random.Random) -> Iterator[Case]:
    for _ in range(ROUNDS):
        yield from (Case("faulty", (name,), (), REBOOT) for name in ("off-bus", "ecc", "hang"))
        yield Case("faulty", ("permanent",), (), REPLACE)
        yield from (Case("faulty", (), (code,), REBOOT) for code in CURABLE)
        yield from (Case("faulty", (), (code,), REPLACE) for code in REPLACED)
        yield Case("faulty", ("off-bus", "app-xid"), (43, 45), REBOOT)
        yield from (Case("application", (), (code,), HEALTHY) for code in PROGRAMS)
        yield Case("application", ("app-xid",), (45,), HEALTHY)
        yield from (Case("faulty", (), (line,), REBOOT) for line in CURABLE_LINES)
        yield from (Case("application", (), (line,), HEALTHY) for line in PROGRAMS_LINES)
        yield from (Case("healthy", (), (line,), HEALTHY) for line in HARMLESS_LINES)
        yield from (Case("suspicious", (), (line,), INCONCLUSIVE) for line in SUSPICIOUS_LINES)
        yield from (Case("healthy", (), (code,), HEALTHY) for code in HARMLESS)
        yield from (Case("healthy", (name,), (), HEALTHY) for name in ("slow", "oom"))
        yield Case("healthy", (), (), HEALTHY)
        noise = tuple(chance.choice((*PROGRAMS, *HARMLESS[:12])) for _ in range(chance.randrange(1, 6)))
        yield Case("healthy", (), tuple(dict.fromkeys(code for code in noise if code != 63)), HEALTHY)
        yield Case("untestable", ("check-broken",), (), INCONCLUSIVE)
        yield Case("untestable", ("check-broken", "off-bus"), (), INCONCLUSIVE)
    yield Case("faulty", ("driver-hang",), (), REBOOT)


def break_node(controller: Controller, name: str, case: Case, chance: random.Random) -> None:
    """Exactly this is wrong with the node, on one of its GPUs."""
    cluster, gpu = controller.parts.cluster, chance.randrange(GPUS)
    for fault in case.faults:
        cluster.inject(name, fault, gpu=gpu, speed=0.2)
    bus_id = f"0000:{gpu + 1:02x}:00"
    for line in case.lines:
        culprit = f"pid={chance.randrange(1, 30000)}, name=python"
        text = line if isinstance(line, str) else f"NVRM: Xid (PCI:{{gpu}}): {line}, {culprit}, Ch 00000008"
        gpus.log_kernel(str(cluster.node(name).folder), text.replace("{gpu}", bus_id))


def examine(controller: Controller, name: str, case: Case) -> None:
    """A job whose task dies on the node; a node on which none can die is examined by itself."""
    at, runtime = wiring.now(), controller.parts.runtime
    if case.frozen:
        ask = NodeAsked(at=at, node=name, ask="check", by="bench", why="a case of the benchmark")
        runtime.handle_node(name, [ask])
    else:
        spec = JobSpec(name=name, command=DIES_ONCE)
        place = {"job_id": name, "cluster": wiring.CLUSTER, "nodes": [name]}
        runtime.submit(**place, spec=spec, at=at, check=False, restart_when_healthy="never")  # type: ignore[arg-type]


def over(controller: Controller, name: str, case: Case) -> bool:
    store = controller.parts.store
    if case.frozen:
        return store.node(name).status in (NodeStatus.AVAILABLE, NodeStatus.FAILED)
    job = store.job(name)
    return job.status.final and not job.outbox


def outcome(controller: Controller, name: str, case: Case) -> Outcome:
    """From the node's own folder: the exit code of the first check that could tell, and how often it was booted again.

    A check after that is the gate of the node's repair."""
    parts = controller.parts
    checks = [
        task
        for task in parts.cluster.tasks(name)
        if task.kind == "check" and task.exit_code in (HEALTHY, REBOOT, REPLACE)
    ]
    first = min(checks, key=lambda task: task.ended_at or "", default=None)
    said = INCONCLUSIVE if first is None or first.exit_code is None else first.exit_code
    reboots = len(list(parts.cluster.node(name).folder.glob("kmsg.*")))
    job = "" if case.frozen else parts.store.job(name).status.value
    return Outcome(said, reboots, parts.store.node(name).status, job)


def run(state: Path, some: list[Case], chance: random.Random) -> list[tuple[Case, Outcome]]:
    """A controller of its own with a node for each case."""
    named = {f"n{number}": case for number, case in enumerate(some)}
    wishes = [NodeWish(name=name, gpus=GPUS, boot_seconds=0.0) for name in named]
    with Controller(
        state, nodes=wishes, policy=replace(wiring.LOCAL_POLICY, freeze_nodes=1000)
    ) as controller:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not all(node.connected for node in controller.parts.store.nodes()):
                controller.step()
            for name, case in named.items():
                break_node(controller, name, case, chance)
                examine(controller, name, case)
            while time.monotonic() < deadline and not all(over(controller, n, c) for n, c in named.items()):
                controller.step()
                time.sleep(0.02)
            return [(case, outcome(controller, name, case)) for name, case in named.items()]
        finally:
            controller.parts.cluster.shutdown()


def overhead(folder: Path) -> float:
    """Processor seconds of one quick check of a healthy node, its child processes included."""
    folder.mkdir()
    about = {"name": "n", "gpus": GPUS, "boot_seconds": 1.0, "kind": "simulated"}
    write_json(str(folder / "node.json"), about)
    write_json(str(folder / "gpus.json"), gpus.simulated("n", GPUS))
    gpus.log_kernel(str(folder), "booted")
    rounds = 20
    before = os.times()
    os.environ[simulated.VARIABLE] = str(folder)
    try:
        for _ in range(rounds):
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                main.run(["--json", "--expect-gpus", str(GPUS)])
    finally:
        del os.environ[simulated.VARIABLE]
    return (sum(os.times()[:4]) - sum(before[:4])) / rounds


def measure() -> dict[str, float]:
    chance = random.Random(42)
    every = list(cases(chance))
    with tempfile.TemporaryDirectory(prefix="bench-health-") as base:
        began = time.perf_counter()
        told = [
            one
            for begin in range(0, len(every), AT_ONCE)
            for one in run(Path(base) / str(begin), every[begin : begin + AT_ONCE], chance)
        ]
        seconds = time.perf_counter() - began
        cost = overhead(Path(base) / "healthy")
    for case, found in told:
        if found.verdict != case.wanted or not found.fits(case):
            print(f"  wrong: {case} led to {found}")
    accused = [(case, found) for case, found in told if found.verdict in BAD]
    guilty = [case for case, _ in told if case.wanted in BAD]
    right = [case for case, found in accused if found.verdict == case.wanted]
    harmed = [case for case, found in told if found.reboots or found.node is NodeStatus.FAILED]
    return {
        "verdict_cases": len(told),
        "verdict_precision": len(right) / len(accused),
        "verdict_recall": len(right) / len(guilty),
        "verdict_actions_right": sum(found.fits(case) for case, found in told) / len(told),
        "healthy_condemned": sum(case.wanted == HEALTHY for case in harmed),
        "reboots_on_inconclusive": sum(f.reboots for case, f in told if case.wanted == INCONCLUSIVE),
        "verdicts_per_s": len(told) / seconds,
        "health_overhead_s": cost,
    }
