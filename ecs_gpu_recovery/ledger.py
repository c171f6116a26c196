"""Where the time went: training or not, for each job and for all, in GPU hours and by cause, from the records alone.

There is no code of ours in the training loop, so nothing is known that the timelines do not tell. A gang that hung has
stood still since the moment that its witnesses name; a standstill for which nobody stopped it counts as training.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, time, timedelta
from itertools import zip_longest
from typing import Any

from .core.job.hang import SEEN
from .core.model import Entry, Job, JobStatus, NodeStatus
from .report import Phase, phases
from .slow_nodes import Slow

#: What time is spent on.
STANDING = "standing still"
TRAINING, CHECKING_FIRST, STOPPING, CHECKING = "training", "checking before the start", "stopping", "checking"
REPAIRING, STARTING, EARLIER = "repairing or waiting for a node", "starting", "not on record any more"
KINDS = (TRAINING, STANDING, CHECKING_FIRST, STOPPING, CHECKING, REPAIRING, STARTING, EARLIER)
HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A gang that was stopped against its will, and what that cost until it ran again."""

    job: str
    at: datetime
    cause: str
    node: str
    gpu_hours: float
    rule: str = ""  #: what the check found: an Xid, or the beginning of its sentence
    gpu: str = ""  #: its UUID, or where it sits, if the check named one


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What one cause has cost; `rule` and `gpu` are empty where no check named them."""

    cause: str
    node: str
    rule: str
    gpu: str
    times: int
    gpu_hours: float


@dataclass(slots=True, kw_only=True)
class Ledger:
    """The account of some jobs within a stretch of time."""

    jobs: int = 0
    hours: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))  #: GPU hours
    failures: list[Failure] = field(default_factory=list)
    running_h: float = 0.0  #: of gangs, whatever their size
    node_h: float = 0.0  #: of nodes in running gangs
    down_h: float = 0.0  #: of nodes under repair
    window_h: float = 0.0
    slow: list[Slow] = field(default_factory=list)

    @property
    def total(self) -> float:
        return sum(self.hours.values())

    @property
    def effective(self) -> float | None:
        return self.hours[TRAINING] / self.total if self.total else None

    @property
    def causes(self) -> list[Loss]:
        """By cause, node, rule and GPU; the dearest first."""
        cost: defaultdict[tuple[str, str, str, str], list[float]] = defaultdict(list)
        for each in self.failures:
            cost[each.cause, each.node, each.rule, each.gpu].append(each.gpu_hours)
        rows = [
            Loss(cause=cause, node=node, rule=rule, gpu=gpu, times=len(hours), gpu_hours=sum(hours))
            for (cause, node, rule, gpu), hours in cost.items()
        ]
        return sorted(rows, key=lambda row: (-row.gpu_hours, row.cause, row.node, row.rule, row.gpu))

    def mean_time_to_failure(self) -> tuple[float | None, float, float | None]:
        """Of a node, in hours: the estimate and the ends of its 95 % interval; None where no failure gives one."""
        low, high = poisson_interval(len(self.failures))
        mean = self.node_h / len(self.failures) if self.failures else None
        return mean, self.node_h / high, self.node_h / low if low else None

    @property
    def telling(self) -> bool:
        """Whether nodes ran for long enough to say how often one fails."""
        return self.node_h / poisson_interval(len(self.failures))[1] >= 1

    def checkpoint_interval(self, write_s: float) -> float | None:
        """Seconds between checkpoints that lose least, if one takes so long to write: √(2·w/rate)."""
        if not self.failures or not self.running_h:
            return None
        return math.sqrt(2 * write_s * self.running_h * HOUR / len(self.failures))

    def spares(self, sure: float = 0.99) -> int:
        """How many nodes cover those under repair, at so many moments out of all."""
        mean = self.down_h / self.window_h if self.window_h else 0.0
        count, term = 0, math.exp(-mean)
        reached = term
        while reached < sure:
            count += 1
            term *= mean / count
            reached += term
        return count


def view(ledger: Ledger, write_s: float) -> dict[str, Any]:
    """The account for programs and for the page."""
    mean, low, high = ledger.mean_time_to_failure()
    return {
        "jobs": ledger.jobs,
        "gpu_hours": {kind: round(hours, 4) for kind, hours in ledger.hours.items()},
        "effective": ledger.effective,
        "failures": len(ledger.failures),
        "causes": [{**asdict(row), "gpu_hours": round(row.gpu_hours, 4)} for row in ledger.causes],
        "node_hours_between_failures": {"mean": mean, "low": low, "high": high},
        "checkpoint_every_s": ledger.checkpoint_interval(write_s),
        "spares": ledger.spares(),
        "slow": [{**asdict(row), "until": row.until.isoformat()} for row in ledger.slow],
    }


def account(
    jobs: Iterable[Job], now: datetime, since: datetime | None = None, earlier: Sequence[Entry] = ()
) -> Ledger:
    """The jobs' time from `since` on. `earlier` is what left the timeline of a single job."""
    ledger, began = Ledger(), now
    for job in jobs:
        ledger.jobs += 1
        found = [_clipped(phase, since) for phase in phases(job, now, earlier)]
        _add(ledger, job, [phase for phase in found if phase.end > phase.start], earlier, since)
        began = min(began, max(job.created_at, since) if since else job.created_at)
    ledger.window_h = (now - began) / timedelta(hours=1)
    return ledger


def _clipped(phase: Phase, since: datetime | None) -> Phase:
    if since is None or phase.start >= since:
        return phase
    return Phase(
        status=phase.status,
        name=phase.name,
        attempt=phase.attempt,
        start=min(since, phase.end),
        end=phase.end,
    )


def _add(
    ledger: Ledger, job: Job, spent: Sequence[Phase], earlier: Sequence[Entry], since: datetime | None
) -> None:
    gpus = sum(job.spec.gpus_per_node or rank.gpus or 1 for rank in job.ranks)
    lines = [*earlier, *job.timeline]
    lost: list[tuple[Phase, float]] = []
    stood: dict[datetime, float] = {}
    for phase in spent:
        hours = phase.seconds / HOUR
        if phase.status is JobStatus.IN_PROGRESS:
            ledger.running_h += hours
            ledger.node_h += hours * len(job.ranks)
        else:
            lost.append((phase, hours * gpus))
        for kind, part in _kinds(phase, lines):
            ledger.hours[kind] += part / HOUR * gpus
            if kind == STANDING:
                stood[phase.end] = part / HOUR * gpus
    ledger.down_h += _down(job, spent, lines) / HOUR
    ledger.failures += [
        each for each in _failures(job, lost, stood, lines) if since is None or each.at >= since
    ]


def _kinds(phase: Phase, lines: Sequence[Entry]) -> list[tuple[str, float]]:
    """What a phase was spent on. A gang that failed is stopped first; its checks begin when its tasks have ended."""
    if phase.name == "earlier":
        return [(EARLIER, phase.seconds)]
    if phase.status is JobStatus.IN_PROGRESS:
        stood = min(phase.seconds, sum(_stood(line) for line in lines if phase.start < line.at <= phase.end))
        return [(TRAINING, phase.seconds - stood), (STANDING, stood)]
    if phase.status is JobStatus.PENDING_RESTART:
        return [(REPAIRING, phase.seconds)]
    if phase.status is JobStatus.RESTARTING:
        return [(STARTING, phase.seconds)]
    if phase.name != "stopping and checking":
        return [(CHECKING_FIRST, phase.seconds)]
    asked = [
        entry.at
        for entry in lines
        if entry.after == NodeStatus.PENDING_HEALTHCHECK and phase.start <= entry.at <= phase.end
    ]
    stopped = (max(asked) - phase.start).total_seconds() if asked else phase.seconds
    return [(STOPPING, stopped), (CHECKING, phase.seconds - stopped)]


def _stood(line: Entry) -> float:
    """Seconds that a gang had stood still when its hang was seen, as both witnesses say, if this line tells of one.

    They name no day: of more than one only what is over whole days is known.
    """
    if not line.why.startswith(SEEN):
        return 0.0
    told = (time.fromisoformat(at) for at in re.findall(r"since (\d\d:\d\d:\d\d)", line.why))
    ago = [(line.at - datetime.combine(line.at, at, line.at.tzinfo)) % timedelta(days=1) for at in told]
    return min(ago, default=timedelta()).total_seconds()


def _down(job: Job, spent: Sequence[Phase], lines: Sequence[Entry]) -> float:
    """Seconds that nodes of a job were rebooting or missed."""
    if not spent:
        return 0.0
    out, total = (NodeStatus.REBOOTING.value, NodeStatus.UNKNOWN.value), 0.0
    first, last = spent[0].start, spent[-1].end
    for rank in job.ranks:
        moves = [entry for entry in lines if entry.subject == rank.node and entry.before != entry.after]
        for entry, nxt in zip_longest(moves, moves[1:]):
            end = last if nxt is None else nxt.at
            if entry.after in out:
                total += max(0.0, (min(end, last) - max(entry.at, first)).total_seconds())
    return total


def _failures(
    job: Job, lost: Sequence[tuple[Phase, float]], stood: Mapping[datetime, float], lines: Sequence[Entry]
) -> Iterator[Failure]:
    """Each time a gang was stopped to be examined, with the hours it had stood and those until it ran again."""
    moves = [entry for entry in lines if entry.subject == "job" and entry.before != entry.after]
    for number, entry in enumerate(moves):
        if (entry.before, entry.after) != (JobStatus.IN_PROGRESS, JobStatus.PENDING_HEALTHCHECK):
            continue
        then = moves[number + 1 :]
        again = next((move.at for move in then if move.after == JobStatus.IN_PROGRESS), None)
        cost = stood.get(entry.at, 0.0) + sum(
            hours
            for phase, hours in lost
            if phase.start >= entry.at and (again is None or phase.start < again)
        )
        cause, node = _cause(then[0].why if then else "")
        rule, gpu = _finding(then[0].evidence if then else "", node)
        yield Failure(job=job.id, at=entry.at, cause=cause, node=node, gpu_hours=cost, rule=rule, gpu=gpu)


_CAUSES = (
    (r"GPU fault on ([^;,]+)", "GPU fault"),
    (r"the task on ([^;,]+) could not be stopped", "task that could not be stopped"),
    (r"lost ([^;,]+)", "lost node"),
    (r"GPU fault that no reboot cures: ([^;,]+?) must be replaced", "GPU fault that no reboot cures"),
    (r"(?:rank \d+ on (\S+)|the whole gang) hung", "hang"),
    (r"rank \d+ on (\S+) (?:was killed|died|froze|ended)", "rank that failed on healthy nodes"),
)


def _cause(why: str) -> tuple[str, str]:
    for pattern, cause in _CAUSES:
        if found := re.search(pattern, why):
            return cause, (found[1] or "").strip()
    return "other", ""


def _finding(evidence: str, node: str) -> tuple[str, str]:
    """What was found on a node, and on which GPU, as the verdicts of a recovery tell it."""
    said = re.search(rf"(?:^|; |, ){re.escape(node)}: (?:reboot|replace) \((.*)", evidence) if node else None
    if said is None:
        return "", ""
    text = re.split(r"\)(?:; |$)", said[1])[0]
    rule = re.search(r"S?Xid \d+", text)
    gpu = re.search(r"GPU-[0-9a-f-]{8,}", text) or re.search(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}", text)
    return rule[0] if rule else re.split(r" on |; ", text)[0][:60], gpu[0] if gpu else ""


def poisson_interval(count: int) -> tuple[float, float]:
    """The exact ends of the interval in which the mean lies with 95 %, if so many were counted."""
    tail = 0.025
    low = 0.0 if not count else _where(lambda mean: 1 - _at_most(count - 1, mean), tail, count)
    return low, _where(lambda mean: 1 - _at_most(count, mean), 1 - tail, count)


def _at_most(count: int, mean: float) -> float:
    logs = (number * math.log(mean) - mean - math.lgamma(number + 1) for number in range(count + 1))
    return math.fsum(map(math.exp, logs))


def _where(rises: Callable[[float], float], value: float, count: int) -> float:
    """Where a rising function has a value, by halves."""
    low, high = 1e-9, 10.0 * (count + 2)
    for _ in range(100):
        middle = (low + high) / 2
        if rises(middle) < value:
            low = middle
        else:
            high = middle
    return high
