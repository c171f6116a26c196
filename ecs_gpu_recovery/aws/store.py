"""The DynamoDB store: one job is one item, and one conditional write moves it.

Why is in docs/decisions/0003-one-item-per-job.md. Task and node rows travel with the record, or are owed beside it
and written by `settle`: docs/decisions/0011-the-store-owes-the-rows.md. Records are read consistently; lists come
from indexes and may be a moment old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

from ..core import rows
from ..core.errors import JobExists, NodesTaken, NotFound, Refused, Transient, Unreadable, VersionConflict
from ..core.model import Entry, Job, JobStatus, Rank, TaskStatus
from ..core.node_record import Node
from ..engine.ports import Nodes, Page, each
from . import items, tables
from .dynamo import MOST_ACTIONS
from .errors import CONFLICT, Cancelled, ConditionFailed
from .items import Item, text
from .record_tables import TRIES, RecordTables

#: Of how many jobs the last record is kept at hand.
RECENT = 16
#: Up to so many write units a record travels with its rows, in one call. In a transaction each counts twice.
SMALL = 16
#: How much one question to an index reads at least, so that what is filtered out does not cost a call each.
PAGE = 50


class DynamoStore(RecordTables):
    """Safe for any number of threads and processes. Lists and sweeps are those of one cluster."""

    # -- a new job -------------------------------------------------------------------------------------------

    def create(self, job: Job) -> None:
        """Up to 99 nodes: one transaction. More: claims first, and the job with the last of them.

        A process that dies between two of those transactions leaves claims of a job that does not exist. The
        sweeper finds them, and `release_orphan` frees them. The same goes for a transaction that was not
        answered: it may have been made, so nothing is taken back.
        """
        record = self._db.new(self._jobs, self._job_item(job))
        for _ in range(TRIES):
            nodes = self._free_nodes(job)
            claims = [self._next_node(rows.claimed_node(node, job)) for node in nodes]
            done = 0
            try:
                while len(claims) - done >= MOST_ACTIONS:
                    self._db.transact(claims[done : done + MOST_ACTIONS], f"claim nodes for job {job.id}")
                    done += MOST_ACTIONS
            except Cancelled:
                self._unclaim(nodes[:done], job)
                continue
            try:
                self._db.transact([record, *claims[done:]], f"record job {job.id}")
            except Cancelled as exc:
                self._unclaim(nodes[:done], job)
                if exc.failed(0):
                    raise JobExists(f"job {job.id} exists already") from exc
            else:
                return
        raise Transient(f"job {job.id}: its nodes keep moving")

    def _free_nodes(self, job: Job) -> list[Node]:
        """The nodes of a new job, if it can have all of them; if not, every reason against it."""
        names = [rank.node for rank in job.ranks]
        found = self._db.read({self._jobs: [job.id], self._nodes: names}, only={self._jobs: ("job_id",)})
        if job.id in found[self._jobs]:
            raise JobExists(f"job {job.id} exists already")
        good, bad = each(self._node_in, found[self._nodes].values())
        known = {node.name: node for node in good}
        refused = {name: known[name].refusal if name in known else "no such node" for name in names}
        refused |= {exc.name: str(exc) for exc in bad}
        if any(refused.values()):
            raise NodesTaken({name: why for name, why in refused.items() if why})
        return [known[name] for name in names]

    def _unclaim(self, nodes: Sequence[Node], job: Job) -> None:
        """Give back what a refused job had claimed. What happened to a node meanwhile is kept.

        A claim that still can't be given back after some tries is an orphan, and will be freed as one.
        """
        before = {node.name: node for node in nodes}
        for _ in range(TRIES if nodes else 0):
            found = self._db.read({self._nodes: before})[self._nodes].values()
            held = [node for node in map(self._node_in, found) if node.job_id == job.id]
            free = [self._next_node(_unclaimed(node, before[node.name])) for node in held]
            if self._db.write_all(free, f"give back the nodes of job {job.id}"):
                return

    # -- jobs ------------------------------------------------------------------------------------------------

    def job(self, job_id: str) -> Job:
        item = self._db.get(self._jobs, job_id)
        if not item:
            raise NotFound(f"no job {job_id}")
        return self._job_in(item)

    def last(self, job_id: str) -> Job | None:
        return self._recent.get(job_id)

    def _keep(self, job: Job) -> Job:
        self._recent[job.id] = job
        if len(self._recent) > RECENT:
            self._recent.pop(next(iter(self._recent)), None)
        return job

    def commit(self, old: Job, new: Job, handed: Sequence[Node] = ()) -> Job:
        """The rows travel with a small record in one transaction, unless they are too many or have to be read first.

        A rank whose rows are owed is not written out of turn: what was said of its node before would be left out. Nodes
        that are handed over are written with the record, or, where they are more than fit, the first of them before it.
        """
        if any(rows.forgets(old, new, index) for index, _ in old.owed):
            self._pay(old)
        changes = rows.changes(old, new)
        nodes = [self._next_node(node) for node in handed]
        while len(nodes) >= MOST_ACTIONS:
            self._together(nodes[:MOST_ACTIONS], new)
            del nodes[:MOST_ACTIONS]
        fits = 0 < len(changes.tasks) + len(changes.nodes) + len(nodes) < MOST_ACTIONS
        unless = items.unless_stopped(old, new)
        item = self._job_item(new)
        fits = fits and items.units(item) <= SMALL and _unread(old, changes)
        if fits and self._commit_with(new, item, changes, nodes, unless):
            return self._keep(new)
        if changes.ranks:
            new = replace(new, owed=rows.owing(old, new, changes))
            item = self._job_item(new)
        if nodes:
            self.writes.spent(2 * items.units(item))  # in a transaction it counts twice
            record = self._db.next(self._jobs, item, sparse=items.JOB_SPARSE, unless=unless)
            self._together([record, *nodes], new)
            return self._keep(new)
        self.writes.spent(items.units(item))
        with _newest_read(self._job_in):
            self._db.move(self._jobs, item, f"job {new.id}", sparse=items.JOB_SPARSE, unless=unless)
        return self._keep(new)

    def _together(self, actions: Sequence[Item], job: Job) -> None:
        try:
            self._db.transact(actions, f"job {job.id} and nodes that it hands over")
        except Cancelled as exc:
            raise VersionConflict(f"job {job.id}, or a node of it, was moved by somebody else") from exc

    def _commit_with(
        self, job: Job, item: Item, changes: rows.Changes, handed: Sequence[Item], unless: Item
    ) -> bool:
        """False, and nothing is written, where a node is not this job's any more or its story must be taken in."""
        self.writes.spent(2 * items.units(item))  # in a transaction it counts twice
        record = self._db.next(self._jobs, item, sparse=items.JOB_SPARSE, unless=unless)
        try:
            self._db.transact([record, *handed, *self._rows(job, changes)], f"job {job.id} and its rows")
        except Cancelled as exc:
            if any(map(exc.failed, range(1 + len(handed)))) or CONFLICT in exc.codes:
                raise VersionConflict(f"job {job.id} was moved by somebody else") from exc
            return False
        return True

    def job_of_task(self, task_id: str) -> str | None:
        item = self._db.get(self._tasks, task_id, only=("job_id",))
        return str(item["job_id"]["S"]) if "job_id" in item else None

    def jobs(self, *, status: JobStatus | None = None, limit: int = 50, after: str = "") -> Page:
        """A place in the list is the last job that was shown, so new jobs don't shift the pages."""
        if status is None:
            index, key, same = tables.BY_CLUSTER, ("cluster_name", self._cluster), {}
        else:
            index, key, same = tables.BY_STATUS, ("job_status", status.value), {"cluster_name": self._cluster}
        ask: dict[str, Any] = {"ScanIndexForward": False, "Limit": max(limit + 1, PAGE)}
        if after:
            created_at, _, job_id = after.partition(" ")
            if not (created_at and job_id):
                raise Refused(f"{after!r} is not a place in a list of jobs")
            start = {key[0]: key[1], "created_at": created_at, "job_id": job_id}
            ask["ExclusiveStartKey"] = {name: text(value) for name, value in start.items()}
        listed = self._db.query(self._jobs, index, key, has="version", same=same, **ask)
        found = list(islice(listed, limit + 1))
        shown = found[:limit]
        last = " ".join(shown[-1][name]["S"] for name in ("created_at", "job_id")) if shown else ""
        lines, bad = each(items.read_line, shown)
        return Page(jobs=tuple(lines), next=last if found[limit:] else "", bad=tuple(bad))

    def due_jobs(self, now: datetime, limit: int = 1000) -> Sequence[str]:
        return [item["job_id"]["S"] for item in islice(self._due(self._jobs, now), limit)]

    def live_jobs(self) -> Sequence[str]:
        found = self._db.query(self._jobs, tables.LIVE, ("cluster_name", self._cluster))
        return sorted(item["job_id"]["S"] for item in found)

    def some_jobs(self, job_ids: Iterable[str]) -> Sequence[Job]:
        """Records by id, a hundred per call; those that are not there, not ours, or can't be read, are left out."""
        found = self._db.read({self._jobs: job_ids})[self._jobs].values()
        return each(self._job_in, (item for item in found if "record" in item))[0]

    # -- rows ------------------------------------------------------------------------------------------------

    def settle(self, job: Job, old: Job | None = None, *, soon: bool = False) -> Job:
        """Write the rows that are owed, and take note that they are.

        What another commit adds meanwhile is written too, from that record.
        """
        for _ in range(TRIES):
            if not job.owed:
                return job
            paid = self._paid(job, old)
            if paid is not None and (soon or self._noted(paid)):
                return self._keep(paid)
            job, old, soon = self.job(job.id), None, False
        raise Transient(f"job {job.id}: its rows keep moving")

    def _paid(self, job: Job, old: Job | None) -> Job | None:
        """The record without what it owed of rows that are written now; None if somebody was faster with one of them.

        What the last step alone has changed is written without a look at it.
        """
        if old is not None and old.version == job.version - 1:
            changes = rows.changes(old, job)
            if _unread(old, changes) and self._db.write_all(
                self._rows(job, changes), f"rows of job {job.id}"
            ):
                return replace(job, owed=old.owed)
        return replace(job, owed=()) if self._pay(job) else None

    def _pay(self, job: Job) -> bool:
        """Read what is there, and write what is older than the change; False if somebody was faster with one of them.

        The fence of a row that was written from this change, or from a later one, keeps older records from coming late.
        """
        ranks = [job.ranks[index] for index, _ in job.owed]
        since = {job.ranks[index].node: version for index, version in job.owed}
        wanted = {row["ecs_task_id"]: row for rank in ranks if (row := rows.task_row(job, rank)) is not None}
        past = [rank.past_tasks[-1].partition("/")[2] for rank in ranks if rank.past_tasks]
        found = self._db.read({self._tasks: [*wanted, *past], self._nodes: [rank.node for rank in ranks]})
        tasks = [
            items.task_item(row, job.version)
            for task_id, row in wanted.items()
            if items.version_of(found[self._tasks].get(task_id, {}), "job_version") < since[row["node_name"]]
        ]
        tasks += [
            _ended(found[self._tasks][task_id], job) for task_id in past if _open(found[self._tasks], task_id)
        ]
        known, bad = each(self._node_in, found[self._nodes].values())
        for exc in bad:
            if not isinstance(exc, Unreadable):  # its job goes on; the sweeper names it
                raise exc
        held = (rows.held_node(node, job) for node in known if node.job_version < since[node.name])
        nodes = [self._next_node(node) for node in held if node is not None]
        return self._db.write_all([*map(self._newer_task, tasks), *nodes], f"rows of job {job.id}")

    def _noted(self, job: Job) -> bool:
        """Take note of what is owed now; False if somebody has moved the record."""
        item = {"job_id": text(job.id)} | items.owed(job) | items.wake_up(job, self._lost_after)
        what, sparse = f"job {job.id}", ("wake_at", "rows_owed")
        self.writes.spent_again()
        return self._db.same_version(self._jobs, item, job.version, what, sparse=sparse)

    def _rows(self, job: Job, changes: rows.Changes) -> list[Item]:
        """The actions that write what a step has changed, without a look at what is there."""
        tasks = (self._newer_task(items.task_item(row, job.version)) for row in changes.tasks)
        return [*tasks, *(self._shown(job, rank, lines) for rank, lines in changes.nodes)]

    def _shown(self, job: Job, rank: Rank, lines: Sequence[Entry]) -> Item:
        return self._db.shown(
            self._nodes,
            items.shown_node(job, rank),
            fence="job_version",
            same={"job_id": text(job.id)},
            format=self._codec.format,
            without="handed",
            story=items.story(lines),
        )

    def _newer_task(self, item: Item) -> Item:
        """A row keeps the time of its first writing, and never takes the word of an older record."""
        row = item | {"created_at": item["updated_at"]}
        return self._db.newer(self._tasks, row, fence="job_version", once=("created_at",))

    # -- nodes -----------------------------------------------------------------------------------------------

    def node(self, name: str) -> Node:
        item = self._db.get(self._nodes, name)
        if not item:
            raise NotFound(f"no node {name}")
        return self._node_in(item)

    def some_nodes(self, names: Iterable[str]) -> Sequence[Node]:
        """Records by name, a hundred per call; those that are not there, not ours, or can't be read, are left out."""
        found = self._db.read({self._nodes: names})[self._nodes].values()
        return each(self._node_in, (item for item in found if "record" in item))[0]

    def node_of_instance(self, instance: str) -> Node | None:
        instance_id = instance.rpartition("/")[2]
        if not instance_id:
            return None
        listed = self._db.query(self._nodes, tables.BY_INSTANCE, ("container_instance_id", instance_id))
        found = next(listed, None)
        return None if found is None else self.node(found["node_name"]["S"])

    def nodes(self) -> Nodes:
        found = self._db.query(self._nodes, tables.BY_CLUSTER, ("cluster_name", self._cluster), has="record")
        return Nodes(*each(self._node_in, found))

    def add_node(self, node: Node) -> None:
        """Beside a row that another tool may have written. What is known about a node already stands."""
        item = self._node_item(node)
        with suppress(ConditionFailed):
            self._db.begin(self._nodes, item, f"add node {node.name}", sparse=items.NODE_SPARSE)

    def commit_node(self, node: Node) -> None:
        item = self._node_item(node)
        with _newest_read(self._node_in):
            self._db.move(self._nodes, item, f"node {node.name}", sparse=items.NODE_SPARSE)

    def forget_node(self, node: Node, at: datetime) -> bool:
        """DynamoDB takes the row away after that moment, unless the record is written meanwhile, or was just now."""
        mark = {"node_name": text(node.name), tables.FORGET_AT: items.number(int(at.timestamp()))}
        return self._db.same_version(
            self._nodes, mark, node.version, f"mark node {node.name} to be forgotten", sparse=()
        )

    def due_nodes(self, now: datetime) -> Sequence[str]:
        return [item["node_name"]["S"] for item in self._due(self._nodes, now)]

    def release_orphan(self, name: str, job_id: str, now: datetime) -> None:
        """In the same breath it is made sure that there still is no such job, if there was none."""
        node = self.node(name)
        try:
            job = self.job(job_id)
        except NotFound:
            job = None
        free = rows.freed_node(node, job, now) if node.job_id == job_id else None
        if free is not None:
            guard = [self._db.absent(self._jobs, job_id)] if job is None else []
            # If someone was faster, the next sweep looks again.
            self._db.write_all([*guard, self._next_node(free)], f"free node {name}")

    def tell_once(self, kind: str, name: str, why: str, tell: Callable[[], None]) -> bool:
        table = self._jobs if kind == "job" else self._nodes
        if self._db.get(table, name, only=("told",)).get("told") == text(why):
            return False
        tell()
        self._db.note(table, name, {"told": text(why)}, f"note what was told of {kind} {name}")
        return True

    def _due(self, table: str, now: datetime) -> Iterator[Item]:
        key = ("cluster_name", self._cluster)
        return self._db.query(table, tables.DUE, key, up_to=("wake_at", items.stamp(now)))


@contextmanager
def _newest_read(read: Callable[[Item], Job | Node]) -> Iterator[None]:
    """A conflict tells the record that was faster, if it is one of ours."""
    try:
        yield
    except VersionConflict as exc:
        ours = isinstance(exc.newest, Mapping) and "record" in exc.newest
        raise VersionConflict(str(exc), read(exc.newest) if ours else None) from exc  # type: ignore[arg-type]


def _unread(old: Job, changes: rows.Changes) -> bool:
    """Whether rows can be written without being read."""
    return not changes.opens and changes.ranks.isdisjoint(dict(old.owed))


def _open(found: Mapping[str, Item], task_id: str) -> bool:
    """A task whose rank was started again in the very step of its end, and whose row still calls it running."""
    return bool(found.get(task_id, {}).get("task_status") == text(TaskStatus.IN_PROGRESS.value))


def _ended(item: Item, job: Job) -> Item:
    kept = {name: value for name, value in item.items() if name != "created_at"}
    return kept | {
        "task_status": text(TaskStatus.TERMINATED.value),
        "exit_reason": text(rows.FORGOTTEN),
        "updated_at": text(job.updated_at.isoformat()),
        "job_version": items.number(job.version),
    }


def _unclaimed(node: Node, before: Node) -> Node:
    """The node as it was before the claim, with what was seen of it since."""
    return replace(
        node,
        job_id="",
        rank=None,
        job_version=0,
        status=before.status,
        verdict=before.verdict,
        findings=before.findings,
        deadline=before.deadline,
        timeline=tuple(entry for entry in node.timeline if entry.job != node.job_id),
        version=node.version + 1,
    )
