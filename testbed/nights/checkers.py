"""What must hold, judged from the world's own history. Nothing here reasons as the rules under test do.

The judge watches three things: tasks that really start, machines that really reboot, and records as they are
committed. Whether a record is right is held against what truly happened, never against what the record says.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise

from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.effects import Archive, Notify, RebootNode, StartTask, StopTask
from ecs_gpu_recovery.core.invariants import broken
from ecs_gpu_recovery.core.model import Exit, Job, JobStatus, NodeStatus, Rank, Verdict
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.engine.ports import Store

from .charge_judge import ChargeJudge
from .machine import Machine, Task, verdict_of
from .move_judge import MoveJudge
from .permit_judge import PermitJudge
from .reboot_judge import RebootJudge
from .replacement_judge import ReplacementJudge
from .suspect_judge import SuspectJudge
from .violation import demand
from .world import World

_FOUND = frozenset({Verdict.HEALTHY, Verdict.REBOOT, Verdict.REPLACE})
_OUT_OF_USE = (NodeStatus.FAILED, NodeStatus.UNKNOWN)
_RECOVERED = frozenset({JobStatus.PENDING_RESTART, JobStatus.FAILED})
#: So old may be what a process knows that stood still; and the sweeper looks only now and then.
UNHEARD_S = 120.0


class Judge:
    """One night's observer."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._entered: dict[tuple[str, int, JobStatus], float] = {}
        self._released: dict[str, float] = {}  #: free nodes that a person gave back, and when
        self._ordered: dict[str, str] = {}  #: key of every order that must be carried out: its kind
        self._pending: dict[str, frozenset[str]] = {}  #: orders in each job's outbox
        self._nodes: dict[str, Node] = {}  #: as their own rules have left them last
        self._starts: set[str] = set()  #: every start that was ever ordered
        self._given_up: set[tuple[str, int]] = set()  #: ranks that never confirmed a stop; people were told
        self.permits = PermitJudge(world)
        self.moves = MoveJudge(world, self.permits)
        self._suspects = SuspectJudge(world)
        self.reboots = RebootJudge(world, self.permits, self.moves, self._suspects)
        self._charges = ChargeJudge(world, self.permits)
        self.carried_out: Counter[str] = Counter()
        self.final: dict[str, JobStatus] = {}
        self._marks: dict[tuple[str, str], list[str]] = {}  #: what a later release wrote into each record
        self.poisoned: set[tuple[str, str]] = set()  #: records that are damaged for good
        self.mishaps = 0  #: processes that died or got no answer: only they excuse a message sent twice
        world.on_start = self.started
        self._replacements = ReplacementJudge(world, self.permits, self.reboots)

    # -- what really happens ---------------------------------------------------------------------------

    def started(self, task: Task) -> None:
        """At most one live task per rank; never two attempts of a job alive at once.

        A start that was withdrawn while its sender stood still may get through after all. Nobody wanted that task:
        it has to be gone in the end, but it is not held against those that are wanted.
        """
        if task.job and not task.check:
            demand(
                task.start_key in self._starts,
                f"{task.id} was started by {task.start_key}, which nobody ordered",
            )
            task.stray = task.start_key not in self._pending[task.job]
        if task.stray:
            self._world.struck["stray"] += 1
            return
        if task.machine.new and not task.check:
            seen = any(t.check and not t.alive for t in task.machine.tasks)
            demand(seen, f"{task.id} starts on {task.machine.name}, which is new and was never examined")
        since = self._released.get(task.machine.name)
        if since is not None and not task.check:
            seen = any(t.check and t.ended > since for t in task.machine.tasks)
            demand(seen, f"{task.id} starts on {task.machine.name}, which a person gave back, unexamined")
        alive = [
            t
            for m in self._world.machines.values()
            for t in m.tasks
            if t.alive and t is not task and not t.stray
        ]
        meant = (
            [t for t in alive if not (t.check or t.stopping or task.check)]
            if self._world.weather.roomy
            else alive
        )
        here = [
            t.id
            for t in meant
            if t.machine is task.machine and t.job != task.job and (t.job, t.rank) not in self._given_up
            if not (task.check and t.forgotten)  # to find it is what the check is for
        ]
        demand(not here, f"{task.id} shares {task.machine.name} with {here}")
        if task.check or not task.job:
            return
        for other in alive:
            if other.job == task.job and not other.check and not other.left:
                demand(
                    other.rank != task.rank,
                    f"{task.id} and {other.id} are both rank {task.rank} of {task.job}",
                )
                demand(
                    other.attempt == task.attempt,
                    f"{task.id} of attempt {task.attempt} starts, {other.id} of {other.attempt} lives",
                )

    # -- what is committed -----------------------------------------------------------------------------

    def committed(self, old: Job | None, new: Job) -> None:
        self._pending[new.id] = frozenset(order.key for order in new.outbox)
        for order in new.outbox:
            effect = order.effect
            if isinstance(effect, StartTask):
                self._starts.add(effect.key)
            if isinstance(effect, StopTask | Notify | Archive):
                self._ordered[effect.key] = type(effect).__name__
        if old is None or old.status is not new.status:
            self._world.note("job", new.id, str(new.status), new.attempt)
            self._entered[new.id, new.attempt, new.status] = self._world.now
        for rank in new.ranks:
            self._is_real(rank.task_id, rank.check_id)
        said = broken(new)
        demand(not said, f"job {new.id}: {'; '.join(said)}")
        self.moves.holds_alone(new)
        if old is None:
            return
        demand(
            old.attempt <= new.attempt <= old.attempt + 1,
            f"job {new.id} went from attempt {old.attempt} to {new.attempt}",
        )
        self._charges.committed(old, new)
        self._suspects.committed(old, new)
        demand(
            not old.status.final or new.status is old.status,
            f"job {new.id} was {old.status} for good and is {new.status} now",
        )
        for before, rank in zip(old.ranks, new.ranks, strict=True):
            if before.node != rank.node:
                self.moves.left(new, before)
            if rank.verdict is Verdict.LOST and before.verdict is not rank.verdict:
                self._truly_lost(old, rank)
            if rank.exit is Exit.FROZEN and before.exit is not rank.exit:
                self._truly_frozen(old, rank)
                self.permits.stopped(new.id, new.attempt)
        if old.status is not new.status:
            self._moved(old, new)

    def _is_real(self, *ids: str) -> None:
        """A task that a record names was started by its order, and by nobody else."""
        for name in filter(None, ids):
            demand(name in self._world.tasks, f"{name} counts as ours, and a neighbour has started it")

    def committed_node(self, node: Node) -> None:
        """A node's own step, or that of a job that hands it over."""
        self._is_real(node.check_id)
        known = self._nodes.get(node.name)
        news = [entry.why for entry in node.timeline if known is None or entry not in known.timeline]
        given_back = known is not None and (known.hold or known.leave or known.status in _OUT_OF_USE)
        if not node.job_id and given_back and any(why.startswith("released by") for why in news):
            self._released[node.name] = self._world.now
        # One that nobody could test is used, and marked.
        if any(why.startswith("not tested:") for why in news):
            self._released.pop(node.name, None)
        asked = known is not None and known.asked and node.status is NodeStatus.AVAILABLE
        untested = any(why.startswith(("the check gave no answer", "not tested")) for why in news)
        demand(
            not (asked and untested),
            f"{node.name} had FAILED, and is free again, though no check found it well",
        )
        self._nodes[node.name] = node
        self.permits.found(node)
        held = False
        for order in node.outbox:
            if isinstance(order.effect, RebootNode):
                held = node.status is NodeStatus.PENDING_HEALTHCHECK
                self.permits.ordered.add(order.key)
        self.reboots.committed(node)
        self._replacements.committed(node)
        for order in node.outbox:
            said = keys.parse(order.key)
            if isinstance(order.effect, Notify | Archive) or (said and said.kind == "reboot" and said.job):
                self._ordered[order.key] = type(order.effect).__name__
        busy = node.own and node.status in (NodeStatus.REBOOTING, NodeStatus.PENDING_HEALTHCHECK)
        demand(
            not busy or held or node.deadline is not None,
            f"{node.name} is {node.status} and may be so for ever",
        )
        late = node.job_id and node.own and node.status is NodeStatus.UNKNOWN and node.deadline is None
        demand(not late, f"{node.name} was handed over, and may be missed for ever")

    def _moved(self, old: Job, new: Job) -> None:
        if (
            old.status is JobStatus.PENDING_HEALTHCHECK
            and new.status in _RECOVERED
            and old.ending is None
            and not old.preflight
        ):
            for rank in new.ranks:
                self._examined(old, rank)
        if new.status is JobStatus.RESTARTING:
            for rank in new.ranks:
                self._back(new, rank)
        if new.status is JobStatus.COMPLETE:
            for rank in new.ranks:
                task = self._world.tasks.get(rank.task_id)
                demand(
                    task is not None and task.finished and task.attempt == new.attempt,
                    f"job {new.id} is COMPLETE, but {rank.task_id} of rank {rank.index} did not finish",
                )
        if new.status.final:
            self.final[new.id] = new.status
            self._given_up |= {(new.id, rank.index) for rank in new.ranks if rank.exit is Exit.LOST}

    def _examined(self, old: Job, rank: Rank) -> None:
        """A decision waits for every node, and a verdict is one that a check of this attempt gave."""
        checks = [
            t
            for t in self._world.machines[rank.node].tasks
            if t.check and t.job == old.id and t.attempt == old.attempt
        ]
        if rank.verdict in _FOUND and not rank.stuck:
            given = any(not t.alive and verdict_of(t) is rank.verdict for t in checks)
            demand(
                given,
                f"job {old.id}: {rank.node} counts as {rank.verdict}, which no check said",
            )
        before = old.ranks[rank.index]
        at_once = rank.anew and before.verdict in (None, Verdict.LOST)  # examined once more, in the same step
        at_once = at_once or (before.suspect and before.verdict is not None)
        demand(
            at_once or rank.verdict is not None, f"job {old.id} decided without a verdict about {rank.node}"
        )

    def _truly_frozen(self, old: Job, rank: Rank) -> None:
        """A gang is stopped under a living rank only after a fatal fault, and the time that it had to end."""
        machine, w = self._world.machines[rank.node], self._world.weather
        since = self._world.now - (machine.froze if machine.froze is not None else self._world.now)
        sure = since >= w.policy.fault_grace.total_seconds() - 1 or w.skew_s or w.jolt_s
        demand(
            machine.froze is not None and bool(sure),
            f"job {old.id}: {rank.node} counts as frozen without a fatal fault, or too soon after it",
        )

    def _truly_lost(self, old: Job, rank: Rank) -> None:
        """A node counts as lost if it was away, or kept its task for as long as a stop may take. No clock jumps."""
        w, machine = self._world.weather, self._world.machines[rank.node]
        if rank.exit is Exit.LOST or rank.anew or w.skew_s or w.jolt_s:
            return
        began = self._entered.get((old.id, old.attempt, JobStatus.IN_PROGRESS), 0.0)
        task = self._world.tasks.get(rank.task_id)
        asked = task.asked if task is not None else -1.0
        took = self._world.now - asked + 0.01  # records count in milliseconds
        slow = asked >= 0 and took >= w.policy.stop_timeout.total_seconds()
        away = machine.away_since is not None or machine.last_away >= began
        demand(
            away or slow,
            f"job {old.id}: {rank.node} counts as lost, but it was there, and its task was not "
            f"asked to stop for long enough",
        )

    def _back(self, job: Job, rank: Rank) -> None:
        machine = self._world.machines[rank.node]
        waited = self._entered.get((job.id, job.attempt, JobStatus.PENDING_RESTART), 0.0)
        away = machine.away_since
        untold = away is not None and any(begin <= away < end for begin, end in self.moves.late)
        if (job.id, job.attempt, rank.index) in self.moves.last:
            self._passed(job, rank, machine)
            waited = 0.0
        demand(
            away is None or away >= waited - UNHEARD_S - self._world.weather.sweep_s or untold,
            f"job {job.id} restarts, but {rank.node} has not been back",
        )
        key = keys.reboot(job.id, job.attempt, rank.index, max(0, rank.handed_times - 1))
        reboot = machine.reboots.get(key)
        demand(reboot is None or reboot.done, f"job {job.id} restarts, but {rank.node} has not rebooted yet")
        self.reboots.passed_the_gate(machine, key)
        node = self._nodes.get(rank.node)
        if node is not None and node.job_id == job.id:
            due = any(isinstance(order.effect, RebootNode) for order in node.outbox)
            demand(not due, f"job {job.id} restarts with the reboot of {rank.node} still to be ordered")
            demand(not node.own, f"job {job.id} restarts, but {rank.node} has not been given back")

    def _passed(self, job: Job, rank: Rank, machine: Machine) -> None:
        """A node that was taken was found healthy before it is used, or could not be examined."""
        if any(reboot.done for reboot in machine.reboots.values()):
            return  # it was examined, and repaired; whether it is examined again is another question
        lines = [entry.why for entry in job.timeline if entry.subject == rank.node]
        lately = [
            t for t in machine.tasks if t.check and not t.alive and t.ended > self._world.now - 6 * 3600 - 60
        ]
        well = any(verdict_of(t) is Verdict.HEALTHY for t in lately)
        demand(
            well or "verdict inconclusive" in lines,
            f"job {job.id} restarts on {rank.node}, which it took and did not examine",
        )

    def kept(self, kind: str, name: str, text: str) -> None:
        """A field that a later release has written is still there, whoever wrote the record since."""
        data = json.loads(text)
        marks = [part.get("mark", "") for part in (data, *data.get("ranks", ()))]
        before = self._marks.get((kind, name), [])
        lost = any(mark and mark != now for mark, now in zip(before, marks, strict=False))
        demand(not lost, f"{kind} {name} has lost a field of a later release: {before}, {marks}")
        self._marks[kind, name] = marks

    # -- the end of the night --------------------------------------------------------------------------

    def at_rest(self, store: Store, told: Counter[str]) -> None:
        bad = {name for kind, name in self.poisoned if kind == "job"}
        jobs = [store.job(line.id) for line in store.jobs(limit=1000).jobs if line.id not in bad]
        for job in jobs:
            demand(job.status.final, f"job {job.id} never ended: {job.status}")
            demand(not job.outbox, f"job {job.id} ended with orders unsent: {[o.key for o in job.outbox]}")
            demand(not job.owed, f"job {job.id} ended, and the rows of ranks {job.owed} were never written")
            if job.status is JobStatus.FAILED:
                sent = told[keys.job_failed(job.id)]
                demand(sent >= 1, f"job {job.id} FAILED and nobody was told")
                demand(sent <= 1 + self.mishaps, f"job {job.id} FAILED and people were told {sent} times")
        for key, kind in self._ordered.items():
            said = keys.parse(key)
            if said is not None and said.job in bad:
                continue
            ended = self.final.get(said.job) if said is not None else None
            left = said is not None and (said.job, said.attempt, said.rank) in self.moves.last
            withdrawn = kind == "RebootNode" and (ended in (JobStatus.FAILED, JobStatus.USER_STOPPED) or left)
            withdrawn = withdrawn or key in self.permits.set_aside
            demand(
                self.carried_out[key] > 0 or withdrawn, f"{kind} {key} was committed and never carried out"
            )
        nodes = [node for node in store.nodes() if node.job_id not in bad]
        self._nodes_are_free(nodes, bad)
        self._nodes_tell(nodes, jobs)
        self._told_of_bad_records(told)
        self.permits.at_rest(told, self.mishaps)

    def untold(self, told: Counter[str]) -> list[str]:
        """Records that are damaged for good, and of which nobody was told."""
        names = (f"{kind}/{name}/bad/" for kind, name in self.poisoned)
        return [name for name in names if not any(key.startswith(name) for key in told)]

    def _told_of_bad_records(self, told: Counter[str]) -> None:
        demand(not self.untold(told), f"nobody was told of {self.untold(told)}")
        often = [key for key, times in told.items() if "/bad/" in key and times > 1 + self.mishaps]
        demand(not often, f"people were told again and again: {often}")

    def _nodes_tell(self, nodes: Sequence[Node], jobs: Sequence[Job]) -> None:
        """Each node's own record says what happened to it in the hands of its jobs, in the order in which it did."""
        for node in nodes:
            own = [entry for entry in node.timeline if entry.job]
            held = [job for job in jobs if any(rank.node == node.name for rank in job.ranks)]
            missing = {job.id for job in held} - {entry.job for entry in own}
            whole = not own or own[0].why.startswith("taken by job")  # else the oldest lines are archived
            demand(not missing or not whole, f"{node.name} does not tell of {sorted(missing)}")
            for first, then in pairwise(entry for entry in node.timeline if entry.before != entry.after):
                demand(first.after == then.before, f"{node.name} tells {first} and then {then}")

    def _nodes_are_free(self, nodes: Sequence[Node], bad: Collection[str]) -> None:
        for node in nodes:
            demand(not node.job_id, f"{node.name} is still held by {node.job_id}, which has ended")
            demand(not node.outbox, f"{node.name} has orders unsent: {[o.key for o in node.outbox]}")
            unsettled = node.status in (
                NodeStatus.REBOOTING,
                NodeStatus.PENDING_HEALTHCHECK,
                NodeStatus.ASSIGNED,
                NodeStatus.IN_PROGRESS,
                NodeStatus.PENDING,
            )
            demand(not unsettled, f"{node.name} was left {node.status}")
            self._replacements.at_rest(node)
        for machine in self._world.machines.values():
            ours = [t for t in machine.tasks if t.job and t.job not in bad]
            alive = [t for t in ours if t.alive and machine.connected and not t.stopping]
            demand(not alive, f"all jobs are over, and {[t.id for t in alive]} runs on {machine.name}")
