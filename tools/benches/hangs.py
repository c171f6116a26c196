"""Are hangs found, soon enough, and nothing else? Hundreds of gangs in virtual time, drawn by seed.

What the driver, the machine and the logs show is drawn here by hand, with the numbers that were measured on an H200 and
spread around them. From there on it is the real thing: the windows of `gpu-health watch --pulse`, its word each minute,
the nodes' records, the sweeper's look and the rule. The cost of the watch is measured on a simulated node.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from ecs_gpu_recovery.core.events import NodePulse, TaskStarted
from ecs_gpu_recovery.core.model import Job, JobSpec, JobStatus, NodeStatus
from ecs_gpu_recovery.core.node_record import Node, Wrote
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.core.witness import Silence
from ecs_gpu_recovery.engine.hangs import Hangs
from ecs_gpu_recovery.engine.runtime import Runtime
from ecs_gpu_recovery.health import policy
from ecs_gpu_recovery.health.watch import writing
from ecs_gpu_recovery.health.watch.pulse import GpuSample, HostSample, Pulses, State
from ecs_gpu_recovery.local import gpus
from ecs_gpu_recovery.local.files import write_json
from testbed.nights.memory import MemoryStore

from ._story import SilentFleet, SilentNotifier

EACH = 18  #: cases of every kind
T0 = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = Policy()
SAMPLE_S, PULSE_S, SWEEP_S = 5.0, 60.0, 60.0
TRAINED_S = 900.0  #: how long each gang trains before anything happens
WATCHED_S = 3600.0
_COST_S = 30.0
Load = Callable[[random.Random], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Card:
    """One kind of GPU, as one program uses it."""

    rest_w: float
    spin_w: float
    train_w: float
    swing: float  #: of its power in training, as a share
    bytes_s: float

    def train(self, chance: random.Random) -> dict[str, float]:
        power = self.train_w * chance.uniform(1 - self.swing, 1 + self.swing)
        return {"power_w": power, "utilization": chance.uniform(93, 100), "pcie_bytes_s": self.bytes_s}

    def spin(self, chance: random.Random) -> dict[str, float]:
        power = self.spin_w * chance.uniform(0.997, 1.003)
        return {"power_w": power, "utilization": 100, "pcie_bytes_s": chance.uniform(0.4e8, 2.4e8)}

    def rest(self, chance: random.Random) -> dict[str, float]:
        return {"power_w": self.rest_w * chance.uniform(0.99, 1.01), "utilization": 0, "pcie_bytes_s": 1e6}

    def small(self, chance: random.Random) -> dict[str, float]:
        power = self.rest_w * chance.uniform(1.0, 1.25)
        return {
            "power_w": power,
            "utilization": chance.uniform(3, 30),
            "pcie_bytes_s": chance.uniform(0, 2e8),
        }


@dataclass(slots=True)
class Moment:
    """What goes on: of each rank's GPU, and the machine of rank 0, which does what only one does."""

    first: str = "train"
    others: str = "train"
    first_bytes_s: float = 2e5
    first_cores: float = 0.3
    writes: bool = True
    spare: str = ""  #: of the last rank, where it is the odd one


@dataclass(slots=True)
class Case:
    kind: str
    hangs: bool
    chance: random.Random
    nodes: int
    cards: int
    card: Card
    every_s: float  #: between two lines of the log
    files: bool  #: the watches see them, and say so; else the fleet is asked
    lines: list[float] = field(default_factory=list)
    begins: float = TRAINED_S
    lasts: float = 0.0
    stopped_at: float | None = None
    told: bool = False

    def at(self, now: float) -> Moment:
        if now < self.begins or (not self.hangs and now >= self.begins + self.lasts):
            return Moment()
        return MOMENTS[self.kind](self)


def _hang(first: str, others: str, spare: str = "") -> Callable[[Case], Moment]:
    return lambda case: Moment(first=first, others=others, writes=False, spare=spare)


#: What is seen while it lasts.
MOMENTS: dict[str, Callable[[Case], Moment]] = {
    "a stopped rank": _hang("spin", "spin", "rest"),
    "a stopped rank in a collective": _hang("spin", "spin"),
    "a rank asleep": _hang("rest", "spin"),
    "another collective": _hang("spin", "spin"),
    "a collective that never ends": _hang("spin", "spin"),
    "compilation": lambda case: Moment("rest", "spin", first_cores=6.0, writes=False),
    "evaluation": lambda case: Moment("train", "spin", writes=False),
    "a checkpoint of ten minutes": lambda case: Moment("rest", "spin", first_bytes_s=2e7, writes=False),
    "a data stall of five minutes": lambda case: Moment("rest", "rest", writes=False),
    "a small model": lambda case: Moment("small", "small"),
    "one step every four minutes": lambda case: Moment("train", "train"),
    "gradient accumulation": lambda case: Moment("train", "train", writes=False),
    "an hour on processors alone": lambda case: Moment("rest", "rest", first_cores=8.0, writes=False),
}
HANGS = tuple(kind for kind in MOMENTS if kind in list(MOMENTS)[:5])
#: How long the others last, in seconds.
LASTS = {
    "compilation": (600, 1500),
    "evaluation": (600, 1800),
    "a checkpoint of ten minutes": (560, 660),
    "a data stall of five minutes": (280, 330),
    "gradient accumulation": (600, 1500),
}


def cases() -> list[Case]:
    found = []
    for kind in MOMENTS:
        for number in range(EACH):
            chance = random.Random(f"{kind}/{number}")
            rest = chance.uniform(60, 120)
            card = Card(
                rest_w=rest,
                spin_w=rest + chance.uniform(30, 90),
                train_w=rest + chance.uniform(130, 550),
                swing=chance.uniform(0.03, 0.2),
                bytes_s=chance.uniform(2e9, 4e10),
            )
            every = 240.0 if kind == "one step every four minutes" else chance.choice((1, 5, 20, 60))
            case = Case(
                kind,
                kind in HANGS,
                chance,
                chance.randint(2, 4),
                chance.choice((1, 2, 4)),
                card,
                every,
                files=number % 2 == 1,
            )
            case.lasts = chance.uniform(*LASTS.get(kind, (WATCHED_S, WATCHED_S)))
            found.append(case)
    return found


class _Fleet(SilentFleet):
    """Whose ranks wrote at these times."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def silence(self, job: Job, since: datetime) -> Silence | None:  # type: ignore[override]
        lines = self._case.lines
        if not lines or T0 + timedelta(seconds=lines[-1]) > since:
            return None
        longest = max((after - before for before, after in pairwise(lines[-100:])), default=0.0)
        return Silence(since=T0 + timedelta(seconds=lines[-1]), patience=timedelta(seconds=5 * longest))


class Gang:
    """One case from its first sample to its last."""

    def __init__(self, case: Case) -> None:
        self.case, self.now = case, 0.0
        limits = policy.load().limits
        self.pulses = [Pulses(limits) for _ in range(case.nodes)]
        self.moved = [[0.0, 0.0] for _ in range(case.nodes)]  #: bytes and processor seconds so far
        self.said: list[State | None] = [None] * case.nodes
        self.turn = [case.chance.uniform(0, PULSE_S) for _ in range(case.nodes)]
        self.store = MemoryStore()
        self.runtime = Runtime(
            store=self.store,
            fleet=_Fleet(case),
            notifier=SilentNotifier(),
            policy=POLICY,
            dispatch=False,
            clock=self.clock,
        )
        self.hangs = Hangs(self.runtime)
        self._start()

    def clock(self) -> datetime:
        return T0 + timedelta(seconds=self.now)

    def _start(self) -> None:
        names = [f"n{i}" for i in range(self.case.nodes)]
        for name in names:
            self.store.add_node(
                Node(
                    name=name,
                    cluster="c",
                    created_at=T0,
                    updated_at=T0,
                    gpus=self.case.cards,
                    connected=True,
                    status=NodeStatus.AVAILABLE,
                )
            )
        self.runtime.submit(job_id="j", cluster="c", spec=JobSpec(name="j"), nodes=names, at=T0, check=False)
        self.runtime.handle(
            "j",
            [
                TaskStarted(at=T0, task_id=f"t{i}", attempt=0, rank=i, running=True)
                for i in range(self.case.nodes)
            ],
        )

    def run(self) -> None:
        sweep = self.case.chance.uniform(0, SWEEP_S)
        while self.now < TRAINED_S + WATCHED_S and self.case.stopped_at is None:
            self.now += SAMPLE_S
            moment = self.case.at(self.now)
            if moment.writes:
                last = self.case.lines[-1] if self.case.lines else 0.0
                while last + self.case.every_s <= self.now:
                    last += self.case.every_s
                    self.case.lines.append(last)
            for i in range(self.case.nodes):
                self._sample(i, moment)
                self._tell(i)
            if self.now >= sweep:
                sweep += SWEEP_S
                self._sweep()

    def _sample(self, i: int, moment: Moment) -> None:
        case, chance = self.case, self.case.chance
        does = moment.first if i == 0 else moment.others
        samples = []
        for card in range(case.cards):
            odd = moment.spare and i == case.nodes - 1 and card == case.cards - 1
            lonely = i == 0 and card > 0 and moment.first in ("rest", "train") and moment.others == "spin"
            load: Load = getattr(case.card, moment.spare if odd else "spin" if lonely else does)
            sample = GpuSample(at=self.now, index=card, memory_used_mib=4e4, **load(chance))
            samples.append(sample)
        spinning = sum(1.0 for sample in samples if sample.utilization == 100)
        cores = spinning * chance.uniform(1.0, 2.2) + (moment.first_cores if i == 0 else 0.3)
        self.moved[i][0] += SAMPLE_S * (moment.first_bytes_s if i == 0 else 2e5) * chance.uniform(0.5, 1.5)
        self.moved[i][1] += SAMPLE_S * cores
        host = HostSample(at=self.now, bytes_moved=self.moved[i][0], busy_s=self.moved[i][1])
        self.pulses[i].add(samples, host)

    def _tell(self, i: int) -> None:
        """As the watch does: each minute while nothing works, and once when something does again."""
        judged = self.pulses[i].judge(self.now)
        before = self.said[i]
        if judged is None or (judged.state is State.MOVING and before in (None, State.MOVING)):
            return
        if judged.state is before and self.now < self.turn[i]:
            return
        self.said[i], self.turn[i] = judged.state, self.now + PULSE_S
        since = T0 + timedelta(seconds=judged.since)
        fact = NodePulse(
            at=self.clock(),
            node=f"n{i}",
            state=judged.state.value,
            since=since,
            trained=judged.moved,
            wrote=self._wrote(i),
        )
        self.runtime.handle_node(f"n{i}", [fact])

    def _wrote(self, i: int) -> tuple[Wrote, ...]:
        """As the watch sees it: a line shows when it looks again."""
        seen = sorted({-(-line // writing.EVERY_S) * writing.EVERY_S for line in self.case.lines[-100:]})
        if not self.case.files or len(seen) < 2:
            return ()
        longest = int(max(after - before for before, after in pairwise(seen))) + 1
        return (Wrote(job="j", rank=i, at=T0 + timedelta(seconds=seen[-1]), pause_s=longest),)

    def _sweep(self) -> None:
        nodes = self.store.nodes()
        for job_id in self.hangs.due(["j"], nodes, self.clock()):
            self.hangs.look(self.store.job(job_id), nodes, self.clock())
        job = self.store.job("j")
        self.case.told = self.case.told or any(entry.why == "the job may hang" for entry in job.timeline)
        if job.status is JobStatus.PENDING_HEALTHCHECK:
            self.case.stopped_at = self.now


def measure() -> dict[str, float]:
    drawn = cases()
    for case in drawn:
        Gang(case).run()
    hangs, others = [c for c in drawn if c.hangs], [c for c in drawn if not c.hangs]
    took = sorted(c.stopped_at - c.begins for c in hangs if c.stopped_at is not None)
    share, rss = _cost()
    return {
        "hang_cases": len(drawn),
        "hang_missed": len(hangs) - len(took),
        "hang_false": sum(c.stopped_at is not None for c in others),
        "hang_told": sum(c.told for c in others),
        "hang_seconds_p95": took[int(0.95 * (len(took) - 1))] / POLICY.hang_after.total_seconds(),
        "agent_cpu_share": share,
        "agent_rss_mb": rss,
    }


def _cost() -> tuple[float, float]:
    """Processor time and memory of `gpu-health watch` with all that it samples, over a simulated node of 8 GPUs."""
    with tempfile.TemporaryDirectory() as folder:
        write_json(f"{folder}/gpus.json", gpus.simulated("n1", 8))
        Path(folder, "kmsg").touch()
        Path(folder, "progress", "j").mkdir(parents=True)
        Path(folder, "progress", "j", "0.log").touch()
        env = {**os.environ, "GPU_HEALTH_SIMULATED": folder}
        command = [sys.executable, "-m", "ecs_gpu_recovery.health", "watch", "--pulse", "--node", "n1"]
        command += ["--progress", f"{folder}/progress"]
        watch = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            time.sleep(3.0)
            before, began = _used(watch.pid)[0], time.monotonic()
            time.sleep(_COST_S)
            used, rss = _used(watch.pid)
            return (used - before) / (time.monotonic() - began), rss
        finally:
            os.killpg(watch.pid, signal.SIGKILL)
            watch.wait()


def _used(pid: int) -> tuple[float, float]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    seconds = memory = 0.0
    for one in (str(pid), *children):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        rollup = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        memory += next(int(line.split()[1]) for line in rollup if line.startswith("Pss:")) / 1024
    return seconds, memory
