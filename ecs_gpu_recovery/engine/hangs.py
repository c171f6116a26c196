"""Joins the witnesses of a hang: what the nodes said of their GPUs, and what the ranks wrote. The core decides."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from ..core import keys, witness
from ..core.errors import ClusterRefused, Transient
from ..core.events import GangStalled
from ..core.job import hang
from ..core.job.table import decide
from ..core.model import Job, JobStatus, Rank
from ..core.node_record import Node
from ..core.policy import Policy
from ..core.witness import Named, Silence, Stall
from .runtime import Runtime

log = logging.getLogger("ecs_gpu_recovery")
#: Of so many ranks it is kept where they wait: of those that the others wait for, and of some others. Each look is an
#: order of its own to a host, which SSM takes a few of in a second, while the sweep has more to do. Those who wait for
#: the same rank all stand at the same place, and one NCCL speaks for all ranks.
MOST_KEPT = 32


class Hangs:
    """Asks what ranks wrote once in a while: often where the GPUs stand still, else seldom. It remembers only when."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._asked: dict[str, datetime] = {}
        self._kept: set[tuple[str, int, bool]] = set()  #: job, attempt, and whether it was the last look

    def due(self, live: Iterable[str], nodes: Sequence[Node], now: datetime) -> list[str]:
        """The jobs that are worth a closer look now."""
        policy = self._runtime.policy
        by_job: dict[str, list[Node]] = {}
        for node in nodes:
            by_job.setdefault(node.job_id, []).append(node)
        self._asked = {job_id: at for job_id, at in self._asked.items() if job_id in by_job}
        self._kept = {look for look in self._kept if look[0] in by_job}
        found = []
        for job_id in sorted(live):
            stall = witness.gang(by_job.get(job_id, ()), now, policy)
            still = stall is not None and now - stall.since >= policy.silent_after
            rest = policy.hang_after / 20 if still else policy.silent_after
            if now - self._asked.setdefault(job_id, now - (rest if still else timedelta(0))) >= rest:
                self._asked[job_id] = now
                found.append(job_id)
        return found

    def look(self, job: Job, nodes: Sequence[Node], now: datetime) -> None:
        """Tell a running job what its witnesses say, if they say anything."""
        if job.status is not JobStatus.IN_PROGRESS or job.ending is not None:
            return
        held = {node.name: node for node in nodes if node.job_id == job.id}
        ranks = hang.gang(job)
        gang = [held[rank.node] for rank in ranks if rank.node in held]
        whole = len(gang) == len(ranks)
        stall = witness.gang(gang, now, self._runtime.policy) if whole else None
        stall = witness.of_attempt(stall, job.spent.started)
        named = None
        if stall is not None:
            if now - stall.since >= self._runtime.policy.silent_after:
                self._keep(job, stall, last=False)
            named = self._named(job, stall, now)
        since = stall.since if stall is not None else now - self._runtime.policy.first_progress
        silence = self._silence(job, ranks, held, since, now)
        if stall is not None and _nearly_proven(stall, silence, now, self._runtime.policy):
            self._keep(job, stall, last=True)
        if stall is None and silence is None:
            alarmed = hang.alarmed_at(job)
            if whole and alarmed is not None and witness.works(gang, alarmed):
                self._runtime.handle(job.id, [GangStalled(at=now, attempt=job.attempt, works=True)], job)
            return
        fact = GangStalled(
            at=now,
            attempt=job.attempt,
            still_since=stall.since if stall else None,
            still_until=stall.until if stall else None,
            spinning=stall is not None and stall.spinning,
            trained=stall is not None and stall.trained,
            odd=(silence.odd if silence else ())
            or (named.odd if named else ())
            or (stall.odd if stall else ()),
            what="; ".join(
                [
                    *(each.what for each in (named, stall) if each is not None),
                    *self._not_looked_at(ranks, stall),
                ]
            ),
            silent_since=silence.since if silence else None,
            patience=silence.patience if silence else timedelta(0),
            written=silence.what if silence else "",
        )
        self._runtime.handle(job.id, [self._permitted(job, fact, now)], job)

    def _silence(
        self, job: Job, ranks: Sequence[Rank], held: Mapping[str, Node], since: datetime, now: datetime
    ) -> Silence | None:
        """What the watches say; where one of them does not, the fleet is asked."""
        told = witness.silence(job, ranks, held, now, self._runtime.policy)
        if told is None:
            return self._runtime.fleet.silence(job, since)
        return told if now - told.since >= self._runtime.policy.silent_after else None

    def _keep(self, job: Job, stall: Stall, *, last: bool) -> None:
        """Before anything is stopped. It is evidence: where it can't be kept, everything else goes on.

        Twice in an attempt at most, however often a job that trains makes a pause: a look costs orders, and holds its
        processes for a moment. The first pause may be no hang, so one look is left for when two witnesses have nearly
        proven one. Where a process knows of no look it orders it again, and who is to look remembers.
        """
        look = (job.id, job.attempt, last)
        if not stall.spinning or look in self._kept:
            return
        try:
            self._runtime.fleet.keep_hang(job, _some(job, stall), last=last)
        except (Transient, ClusterRefused) as exc:
            log.warning("a hang was not looked at", extra={"job": job.id, "why": str(exc)})
        else:
            self._kept.add(look)

    def _named(self, job: Job, stall: Stall, now: datetime) -> Named | None:
        """Asked once it matters: what was ordered when the GPUs began to look suspicious has come back by then."""
        if not stall.spinning or now - stall.since < self._runtime.policy.hang_after:
            return None
        try:
            return self._runtime.fleet.waited_for(job, _some(job, stall), stall.since)
        except (Transient, ClusterRefused) as exc:
            log.warning("nobody says who is waited for", extra={"job": job.id, "why": str(exc)})
            return None

    def _not_looked_at(self, ranks: Sequence[Rank], stall: Stall | None) -> list[str]:
        looked_at = self._runtime.policy.keeps_evidence and stall is not None and stall.spinning
        if not looked_at or len(ranks) <= MOST_KEPT:
            return []
        return [f"where they stand was kept of {MOST_KEPT} of its {len(ranks)} ranks"]

    def _permitted(self, job: Job, fact: GangStalled, now: datetime) -> GangStalled:
        """A gang that would be stopped though none of its ranks has ended needs a permit."""
        step = decide(job, fact, self._runtime.policy, now)
        if self._runtime.permits is None or not any(rank.hung for rank in step.job.ranks):
            return fact
        key, since = keys.hang_stop(job.id, job.attempt), fact.still_until or now
        held = self._runtime.permits.stop_withheld(job, f"it hangs: {fact.what}", now, key=key, since=since)
        return fact if held is None else replace(fact, withheld=held.why, tell=held.tell)


def _nearly_proven(stall: Stall, silence: Silence | None, now: datetime, policy: Policy) -> bool:
    """Both have said so for three quarters of their time: what NCCL is asked now, it answers before the end."""
    if silence is None:
        return False
    left = policy.hang_after / 4
    lasted = stall.until - max(stall.since, silence.since)
    return lasted + left >= policy.hang_after and now - silence.since + left >= silence.patience


def _some(job: Job, stall: Stall) -> list[Rank]:
    """Those that the others seem to wait for, and some of those others."""
    return sorted(hang.gang(job), key=lambda rank: rank.node not in stall.odd)[:MOST_KEPT]
