"""What a training reports about itself, a line per step: read whole while it is short, else here and there.

Any program may have written the file, and a year of steps is hundreds of megabytes; a page must not wait for that.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median_high
from typing import NamedTuple

from .core.model import Job

#: A file up to this size is read whole, some twenty thousand lines. Of a longer one, so many places are looked at.
LARGEST_WHOLE = 2 << 20
PLACES = 2000
#: At each place so much is read; a line that is longer is not seen.
_BLOCK = 4096
#: Of so many changes from one attempt to the next, the exact line is looked for.
_MOST_TURNS = 200

_Read = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the training itself reported: one line per step."""

    steps: int = 0  #: the furthest step
    loss: float | None = None
    lost_steps: int = 0  #: trained more than once
    resumed_at: tuple[int, ...] = ()  #: the first step of every attempt after the first
    step_s: float = 0.0  #: a typical step
    base: int = 0  #: how far the job had come that this one repeats


class Step(NamedTuple):
    """One line of progress.jsonl."""

    attempt: int
    number: int
    at: datetime
    loss: float | None


def read_step(line: str | bytes) -> Step | None:
    """What a line says, which any program may have written. A killed writer leaves one that makes no sense.

    A loss that is no number is none, because JSON could not carry it on.
    """
    try:
        data = json.loads(line)
        at = datetime.fromisoformat(data["at"])
        loss = data.get("loss")
        known = isinstance(loss, int | float) and math.isfinite(loss)
        return Step(
            int(data["attempt"]),
            int(data["step"]),
            at if at.tzinfo else at.replace(tzinfo=UTC),
            float(loss) if known else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


class Steps(NamedTuple):
    """What was read of a file: stretches of lines that follow each other there."""

    stretches: Sequence[Sequence[Step]] = ()
    lines: int | None = None  #: about so many are in the file, where not all were read
    base: int = 0  #: the last step that this job did not train itself

    @classmethod
    def of(cls, lines: Iterable[str | bytes]) -> Steps:
        return cls([_parsed(lines)])

    @property
    def each(self) -> list[Step]:
        """In the order of the file, each once. (Read whole, a line may stand there twice.)"""
        found = [step for stretch in self.stretches for step in stretch]
        return found if self.lines is None else list(dict.fromkeys(found))


def read_steps(checkpoint_dir: str) -> Steps:
    """The steps of a job whose checkpoint folder this machine can read; none where it can't.

    Never through a link or from a pipe: a training program could have put one there.
    """
    if not checkpoint_dir:
        return Steps()
    try:
        file = os.open(Path(checkpoint_dir) / "progress.jsonl", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return Steps()
    try:
        size = os.fstat(file).st_size
        if size > LARGEST_WHOLE:
            return _sampled(lambda start, count: os.pread(file, count, start), size)
        return Steps.of(os.pread(file, size, 0).split(b"\n"))
    except OSError:
        return Steps()
    finally:
        os.close(file)


def _parsed(lines: Iterable[str | bytes]) -> list[Step]:
    return [step for step in map(read_step, lines) if step is not None]


def _after(read: _Read, at: int, size: int, most: int | None = None) -> list[Step]:
    """The steps of the whole lines that begin after a place."""
    lines = read(at, size).split(b"\n")[1 if at else 0 :]
    return _parsed(lines[:most])


def _sampled(read: _Read, size: int) -> Steps:
    """Two lines from each of many places, the end, and the lines around each new attempt."""
    places = [place * size // PLACES for place in range(PLACES)]
    found = [(at, steps) for at in places if (steps := _after(read, at, _BLOCK, 3))]
    found.append((size - _BLOCK, _after(read, size - _BLOCK, _BLOCK)))
    ends = sum(read(at, _BLOCK).count(b"\n") for at in places)
    turns = [(a, b) for a, b in pairwise(found) if a[1] and b[1] and a[1][0].attempt != b[1][0].attempt]
    for (low, steps), (high, _) in turns[:_MOST_TURNS]:
        found.append(_turn(read, low, high, steps[0].attempt))
    found.sort(key=lambda pair: pair[0])
    return Steps([steps for _, steps in found], ends * size // (PLACES * _BLOCK))


def _turn(read: _Read, low: int, high: int, attempt: int) -> tuple[int, list[Step]]:
    """Where an attempt ends and the next begins, by halves: attempts follow each other in the file."""
    while high - low > _BLOCK:
        middle = (low + high) // 2
        steps = _after(read, middle, _BLOCK, 3)
        if steps and steps[0].attempt == attempt:
            low = middle
        else:
            high = middle
    return low, _after(read, low, high - low + _BLOCK)


def progress(steps: Steps) -> Progress:
    seen = steps.each
    if not seen:
        return Progress()
    pairs = [
        (b.number - a.number, (b.at - a.at).total_seconds())
        for stretch in steps.stretches
        for a, b in pairwise(stretch)
        if a.attempt == b.attempt and b.number > a.number
    ]
    spans: dict[int, tuple[int, int]] = {}  # the first and the furthest step of each attempt
    for step in seen:
        first, last = spans.get(step.attempt, (step.number, step.number))
        spans[step.attempt] = first, max(last, step.number)
    if steps.lines is None:
        lost = len(seen) - len({step.number for step in seen})
    else:
        lost = _repeated(spans.values(), median_high(number for number, _ in pairs) if pairs else 1)
    return Progress(
        steps=max(last for _, last in spans.values()),
        loss=seen[-1].loss,
        lost_steps=lost,
        resumed_at=tuple(first for attempt, (first, _) in sorted(spans.items()) if attempt),
        step_s=median_high(seconds / number for number, seconds in pairs) if pairs else 0.0,
        base=steps.base,
    )


def _repeated(spans: Iterable[tuple[int, int]], stride: int) -> int:
    """How many lines tell of steps that an earlier attempt had told of."""
    lines, furthest = 0, None
    for first, last in spans:
        if furthest is not None:
            lines += max(0, (min(furthest, last) - first) // stride + 1)
        furthest = last if furthest is None else max(furthest, last)
    return lines


class Share(NamedTuple):
    """A retry goes on in the folder of the job that it repeats: by its time, a step is one job's or the other's."""

    since: datetime | None
    until: datetime | None

    @classmethod
    def of(cls, job: Job) -> Share:
        return cls(
            job.created_at if job.spec.retry_of else None, job.updated_at if job.status.final else None
        )

    def before(self, step: Step) -> bool:
        return self.since is not None and step.at < self.since

    def has(self, step: Step) -> bool:
        return not self.before(step) and (self.until is None or step.at <= self.until)


#: A folder that one job has for itself.
WHOLE = Share(None, None)


def steps_of(job: Job) -> Steps:
    """The job's own. All that there are where none seems to be: then the program's clock is another one."""
    found, share = read_steps(job.spec.checkpoint_dir), Share.of(job)
    own = [mine for steps in found.stretches if (mine := [step for step in steps if share.has(step)])]
    every = sum(map(len, found.stretches))
    if not own or every == sum(map(len, own)):
        return found
    repeats = any(share.before(step) for steps in found.stretches for step in steps)
    return Steps(
        own,
        None if found.lines is None else found.lines * sum(map(len, own)) // every,
        own[0][0].number - 1 if repeats else 0,
    )


def progress_of(job: Job) -> Progress:
    return progress(steps_of(job))


def effective_ratio(job: Job, done: Progress, now: datetime) -> float | None:
    """Effective training time: the time of the steps that count, over all the time since submission."""
    end = job.updated_at if job.status.final else now
    total = (end - job.created_at).total_seconds()
    if not done.steps or not done.step_s or total <= 0:
        return None
    return min(1.0, (done.steps - done.base) * done.step_s / total)
