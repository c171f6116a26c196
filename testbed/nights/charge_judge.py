"""Whether a job is charged for the restarts that brought no progress, and for no other."""

from __future__ import annotations

import re

from ecs_gpu_recovery.core.model import Job, JobStatus, Verdict
from ecs_gpu_recovery.core.sighting import LEAVES

from .permit_judge import PermitJudge
from .violation import demand
from .world import World


class ChargeJudge:
    """Of one night."""

    def __init__(self, world: World, permits: PermitJudge) -> None:
        self._world, self._permits = world, permits
        self._planned: set[tuple[str, int]] = set()  #: of a job: attempts that began with a planned leave

    def committed(self, old: Job, new: Job) -> None:
        self._planned_leave(old, new)
        self._fairly_charged(old, new)

    def _planned_leave(self, old: Job, new: Job) -> None:
        """A gang in which nothing failed is stopped only where a node was announced to be taken away, with a permit,
        if it may move; and nobody is charged for it."""
        said = [entry for entry in new.timeline if entry not in old.timeline and entry.subject == "job"]
        begun = any(entry.after == "PENDING_HEALTHCHECK" and LEAVES in entry.why for entry in said)
        if begun:
            named = [rank.node for rank in new.ranks if self._world.machines[rank.node].announced]
            demand(bool(named), f"job {new.id} was stopped to leave a node, and none is taken away")
            demand(bool(self._world.weather.failover), f"job {new.id} was stopped, and may not move")
            self._permits.stopped(new.id, old.attempt)
            self._world.struck["left"] += 1
        if (old.planned or begun) and new.attempt > old.attempt:
            self._planned.add((new.id, new.attempt))
            free = new.spent.charged <= old.spent.charged
            demand(free, f"job {new.id} was charged for a leave that was planned")

    def _charges(self, job: Job, since: int) -> int:
        """Of the restarts after that attempt, those that count."""
        return sum((job.id, attempt) not in self._planned for attempt in range(since + 1, job.attempt + 1))

    def _fairly_charged(self, old: Job, new: Job) -> None:
        """What is charged are the restarts since the last step that was new, as far as the job has heard of it."""
        steps, w = self._world.steps[new.id], self._world.weather
        charged, marker = new.spent.charged, new.marker
        if w.policy.retry_refill == "never":
            every = self._charges(new, 0)
            demand(charged == every, f"job {new.id}: {charged} of {every} restarts are charged")
            return
        if marker is None:
            given = charged < old.spent.charged
            demand(not given or self._ran_long(old), f"job {new.id}: restarts were given back too soon")
            return
        number = int(re.findall("[0-9]+", str(marker))[-1])
        demand(number <= len(steps), f"job {new.id} counts step {number}, and there were {len(steps)}")
        since = self._charges(new, steps[number - 1][0])
        demand(charged >= since, f"job {new.id}: {charged} charged, and {since} restarts brought no progress")
        slack = w.reports == "checkpoints"  # which attempt wrote one is a guess, on the safe side
        most = since + slack
        demand(charged <= most, f"job {new.id}: {charged} charged, though all but {since} brought progress")
        over = old.status is JobStatus.PENDING_HEALTHCHECK and new.status is JobStatus.FAILED
        if over and old.ending is None and charged < new.max_retries and not old.preflight:
            verdicts = {rank.verdict for rank in new.ranks}
            repair = verdicts & {Verdict.REBOOT, Verdict.LOST}
            healthy = (
                new.restart_when_healthy == "progress" and steps[number - 1][0] == new.attempt and not slack
            )
            fair = Verdict.REPLACE in verdicts or not (repair or healthy)
            demand(fair, f"job {new.id} FAILED, though it came further than ever before")

    def _ran_long(self, job: Job) -> bool:
        """All of its ranks, each from its first start: the record may tell of that later."""
        w = self._world.weather
        began: dict[int, float] = {}
        for task in self._world.tasks.values():
            if (task.job, task.attempt, task.check) == (job.id, job.attempt, False):
                began.setdefault(task.rank, task.began)
        ran = self._world.now - max(began.values(), default=0.0)
        return bool(w.skew_s or w.jolt_s) or ran >= w.policy.refill_after.total_seconds() - 1
