"""Is the verdict right? Hundreds of broken, sound, misused and untestable nodes through gpu-health itself.

Faults are put in by the embedded mode's own injector; the program runs in this process with its usual child
processes and deadlines. What each fault must lead to is written here by hand, not taken from the rules.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from ecs_gpu_recovery.health import main, simulated
from ecs_gpu_recovery.local import gpus
from ecs_gpu_recovery.local.files import write_json

GPUS = 4
HEALTHY, REBOOT, REPLACE, INCONCLUSIVE = range(4)
BAD = (REBOOT, REPLACE)
CURABLE = (46, 48, 61, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158)
REPLACED = (54, 142)
PROGRAMS = (8, 11, 13, 25, 31, 32, 43, 45, 60, 68, 69, 94, 126, 135, 137, 139)
HARMLESS = (14, 37, 38, 44, 63, 66, 67, 92, 93, 106, 121, 141, 152, 157, 160, 161, 173, 555)
ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Case:
    """What is wrong with one node, and what must be said about it."""

    kind: str
    faults: tuple[tuple[str, int | None], ...]
    """Names for the injector, with an Xid where the fault is one."""
    lines: tuple[int, ...]
    """Xids that stand in the kernel log only."""
    wanted: int
    deadline: str = "10"


def cases(chance: random.Random) -> Iterator[Case]:
    for _ in range(ROUNDS):
        yield from (Case("faulty", ((name, None),), (), REBOOT) for name in ("off-bus", "ecc", "hang"))
        yield Case("faulty", (("permanent", None),), (), REPLACE)
        yield from (Case("faulty", (), (code,), REBOOT) for code in CURABLE)
        yield from (Case("faulty", (), (code,), REPLACE) for code in REPLACED)
        yield Case("faulty", (("off-bus", None), ("app-xid", None)), (43, 45), REBOOT)
        yield from (Case("application", (), (code,), HEALTHY) for code in PROGRAMS)
        yield Case("application", (("app-xid", None),), (45,), HEALTHY)
        yield from (Case("healthy", (), (code,), HEALTHY) for code in HARMLESS)
        yield from (Case("healthy", ((name, None),), (), HEALTHY) for name in ("slow", "oom"))
        yield Case("healthy", (), (), HEALTHY)
        noise = tuple(chance.choice((*PROGRAMS, *HARMLESS[:12])) for _ in range(chance.randrange(1, 6)))
        yield Case("healthy", (), tuple(dict.fromkeys(code for code in noise if code != 63)), HEALTHY)
        yield Case("untestable", (("check-broken", None),), (), INCONCLUSIVE)
        yield Case("untestable", (("check-broken", None), ("off-bus", None)), (), INCONCLUSIVE)
    yield Case("faulty", (("driver-hang", None),), (), REBOOT, deadline="1")


def make(folder: Path, case: Case, chance: random.Random) -> None:
    """A node folder in which exactly this is wrong, on some GPU."""
    folder.mkdir()
    about = {"name": "n", "gpus": GPUS, "boot_seconds": 1.0, "kind": "simulated"}
    write_json(str(folder / "node.json"), about)
    write_json(str(folder / "gpus.json"), gpus.simulated("n", GPUS))
    gpus.log_kernel(str(folder), "booted")
    gpu = chance.randrange(GPUS)
    for fault, xid in case.faults:
        gpus.inject(str(folder), fault, gpu, xid, 0.2, 4711)
    for code in case.lines:
        culprit = f"pid={chance.randrange(1, 30000)}, name=python"
        gpus.log_kernel(str(folder), f"NVRM: Xid (PCI:0000:{gpu + 1:02x}:00): {code}, {culprit}, Ch 00000008")


def verdict(folder: Path, deadline: str) -> tuple[int, dict[str, object]]:
    """The exit code and the report of one check."""
    argv = ["--json", "--expect-gpus", str(GPUS), "--deadline", deadline]
    os.environ[simulated.VARIABLE] = str(folder)
    try:
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()):
            code = main.run(argv)
    finally:
        del os.environ[simulated.VARIABLE]
    return code, json.loads(out.getvalue())


def overhead(folder: Path) -> float:
    """CPU seconds of one quick check of a healthy node, its child processes included."""
    chance = random.Random(0)
    make(folder, Case("healthy", (), (), HEALTHY), chance)
    rounds = 20
    before = os.times()
    for _ in range(rounds):
        verdict(folder, "10")
    after = os.times()
    spent = [sum(t[:4]) for t in (before, after)]
    return (spent[1] - spent[0]) / rounds


def measure() -> dict[str, float]:
    chance = random.Random(42)
    told: list[tuple[Case, int]] = []
    with tempfile.TemporaryDirectory(prefix="bench-health-") as base:
        began = time.perf_counter()
        for number, case in enumerate(cases(chance)):
            folder = Path(base) / str(number)
            make(folder, case, chance)
            code, _ = verdict(folder, case.deadline)
            told.append((case, code))
            if code != case.wanted:
                print(f"  wrong: {case} said {code}")
        seconds = time.perf_counter() - began
        cost = overhead(Path(base) / "healthy")
    accused = [(case, code) for case, code in told if code in BAD]
    guilty = [(case, code) for case, code in told if case.wanted in BAD]
    right = [(case, code) for case, code in accused if code == case.wanted]
    return {
        "verdict_cases": len(told),
        "verdict_precision": len(right) / len(accused),
        "verdict_recall": len(right) / len(guilty),
        "healthy_condemned": sum(c.wanted == HEALTHY and code in BAD for c, code in told),
        "reboots_on_inconclusive": sum(c.wanted == INCONCLUSIVE and code in BAD for c, code in told),
        "verdicts_per_s": len(told) / seconds,
        "health_overhead_s": cost,
    }
