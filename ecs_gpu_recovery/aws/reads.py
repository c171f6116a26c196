"""What people and pages ask of the DynamoDB store. Every question is a paid call, so there are few."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from ..core import messages
from ..core.effects import Notify
from ..core.errors import BadRecord
from ..core.model import Entry, Job, JobStatus, NodeStatus
from ..engine.dispatch import owned
from ..engine.reads import MOST_COUNTED, NodeChanges, Notice, TaskLine, as_dict, place
from .store import DynamoStore

#: Messages are looked for in so many records, when the rest of a list is asked for.
_MOST_NOTICES = 1000


class DynamoReads:
    """Safe for many threads."""

    def __init__(self, store: DynamoStore, *, keeps_evidence: bool = True) -> None:
        self._store, self._keeps_evidence = store, keeps_evidence
        self._failures: dict[str, tuple[datetime, Notify]] = {}

    def some_jobs(self, job_ids: Iterable[str]) -> Sequence[Job]:
        wanted = list(job_ids)
        known = {job.id: job for job in self._store.some_jobs(wanted)}
        return [known[job_id] for job_id in wanted if job_id in known]

    def job_counts(self, statuses: Iterable[JobStatus]) -> Mapping[JobStatus, int]:
        return {status: len(self._store.jobs(status=status, limit=MOST_COUNTED).jobs) for status in statuses}

    def changed_nodes(self, known: Mapping[str, int]) -> NodeChanges:
        """The index holds the records, so all of them are read at once."""
        nodes = self._store.nodes()
        changed = tuple(node for node in nodes if known.get(node.name) != node.version)
        bad = tuple(exc for exc in nodes.bad if known.get(exc.name) != exc.version)
        there = {node.name for node in nodes} | {exc.name for exc in nodes.bad}
        return NodeChanges(changed=changed, bad=bad, gone=frozenset(known.keys() - there))

    def tasks(self, job: Job) -> Sequence[TaskLine]:
        """As the record remembers them: no call at all."""
        found = []
        for rank in job.ranks:
            now = [f"{rank.task_attempt}/{rank.task_id}"] if rank.task_id else []
            for entry in (*rank.past_tasks, *now):
                attempt, _, task_id = entry.partition("/")
                found.append(TaskLine(rank=rank.index, attempt=int(attempt), node=rank.node, task_id=task_id))
        return sorted(found, key=lambda task: (task.attempt, task.rank))

    def earlier_entries(self, record: str) -> Sequence[Entry]:
        """They went to the log of the functions."""
        return []

    def notices(self, limit: int, after: str = "") -> Sequence[Notice]:
        """What people are needed for, from the records. The messages themselves went to the topic."""
        for line in self._store.jobs(status=JobStatus.FAILED, limit=_MOST_NOTICES if after else limit).jobs:
            if line.id not in self._failures:
                try:
                    job = self._store.job(line.id)
                except BadRecord:
                    continue  # the topic told of it, and its own page does
                told = messages.job_failed(
                    job.id, job.attempt, job.outcome, job.ranks, keeps_evidence=self._keeps_evidence
                )
                self._failures[line.id] = (job.updated_at, owned(told, job))
        found = list(self._failures.values())
        for node in self._store.nodes():
            if node.status is NodeStatus.FAILED and not (node.replaced_by or node.retired):
                why = node.findings or "it failed"
                found.append((node.updated_at, messages.node_failed(node, why)))
        found.sort(key=lambda pair: (pair[0], pair[1].key), reverse=True)
        told_of = [{"at": at.isoformat(), **as_dict(message)} for at, message in found]
        return [notice for notice in told_of if not after or place(notice) < after][:limit]
