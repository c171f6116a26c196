"""What must hold, judged from the world's own history. Nothing here reasons as the rules under test do.

The judge watches three things: tasks that really start, machines that really reboot, and records as they are
committed. Whether a record is right is held against what truly happened, never against what the record says.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise

from ecs_gpu_recovery.core import keys
from ecs_gpu_recovery.core.effects import Archive, Notify, RebootNode, StartTask, StopTask
from ecs_gpu_recovery.core.invariants import broken
from ecs_gpu_recovery.core.model import Exit, Job, JobStatus, NodeStatus, Rank, Verdict
from ecs_gpu_recovery.core.node_record import Node
from ecs_gpu_recovery.core.sighting import LEAVES
from ecs_gpu_recovery.engine.ports import Store, each

from .permit_judge import PermitJudge
from .replacement_judge import ReplacementJudge
from .violation import demand
from .world import Machine, Reboot, Task, World, verdict_of

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
        self._asked: set[str] = set()  #: reboots that a person asked for
        self._used: set[tuple[str, int, str]] = set()  #: job, attempt and node of every reboot
        self._pending: dict[str, frozenset[str]] = {}  #: orders in each job's outbox
        self._nodes: dict[str, Node] = {}  #: as their own rules have left them last
        self._repairs: Counter[str] = Counter()  #: of each node, since a person released it
        self._by_person: set[str] = set()  #: keys of reboots that a person asked for
        self._proofs: set[str] = set()  #: checks of nodes on their own that led to a reboot
        self._round: set[str] = set()  #: nodes that were rebooted, and not let back or given up since
        self._booted: dict[str, float] = {}  #: when each node was rebooted last, as its record knows it
        self._starts: set[str] = set()  #: every start that was ever ordered
        self._holds: dict[str, frozenset[str]] = {}  #: the nodes of each job that has not ended
        self._moves: dict[tuple[str, int, int], float] = {}  #: of a job, in an attempt, of a rank: the last
        self._idle: dict[tuple[str, str], float] = {}  #: since when a job waits, and this node is free for it
        self._planned: set[tuple[str, int]] = set()  #: of a job: attempts that began with a planned leave
        self._given_up: set[tuple[str, int]] = set()  #: ranks that never confirmed a stop; people were told
        self.permits = PermitJudge(world)
        self.carried_out: Counter[str] = Counter()
        self.final: dict[str, JobStatus] = {}
        self._marks: dict[tuple[str, str], list[str]] = {}  #: what a later release wrote into each record
        self.poisoned: set[tuple[str, str]] = set()  #: records that are damaged for good
        self.late: Sequence[tuple[float, float]] = ()  #: stretches in which nobody hears of anything
        self.mishaps = 0  #: processes that died or got no answer: only they excuse a message sent twice
        world.on_start = self.started
        world.on_reboot = self.rebooted
        self._replacements = ReplacementJudge(world, self.permits)

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

    def asked_by_person(self, node: str, ask: str) -> None:
        if ask == "reboot":
            self._asked.add(node)
        elif ask == "release":
            del self._repairs[node]

    def rebooted(self, machine: Machine, reboot: Reboot) -> None:
        """Only on a verdict of the failed attempt, once for it, and over no task that is meant to run."""
        self.permits.rebooted(machine.name, reboot.key)
        running = [t.id for t in machine.tasks if t.alive and not (t.check or t.stopping or t.stray)]
        demand(not running, f"{machine.name} is rebooted under {running}")
        demand(not machine.strangers, f"{machine.name} is rebooted under somebody else's task")
        key = keys.parse(reboot.key)
        assert key is not None, reboot.key
        demand(machine.name not in self._round, f"{machine.name} is rebooted once more, as its gate failed")
        self._round.add(machine.name)
        if key.node:
            self._for_its_own_sake(machine, reboot)
            return
        attempt = max(0, key.attempt - 1)  # or it failed the check before the first start
        taken = (key.job, key.attempt, key.rank) in self._moves  # such a node is examined first
        attempts = (attempt, key.attempt) if key.last or taken else (attempt,)
        proof = [
            t
            for t in machine.tasks
            if t.check
            and t.job == key.job
            and t.attempt in attempts
            and t.told
            and verdict_of(t) is Verdict.REBOOT
        ]
        demand(
            bool(proof) or self._was_stuck(machine, key.job, attempt),
            f"{machine.name} is rebooted by {reboot.key} without a verdict of attempt {attempt}",
        )
        used = (reboot.key, attempt, machine.name)
        demand(used not in self._used, f"{machine.name} is rebooted twice for one verdict")
        self._used.add(used)
        self._repaired(machine)

    def _for_its_own_sake(self, machine: Machine, reboot: Reboot) -> None:
        """No job waits for it. A person has asked, or a check of the node has condemned it."""
        if reboot.key in self._by_person:
            demand(machine.name in self._asked, f"{machine.name} is rebooted, and nobody asked for it")
            return
        told = (t for t in machine.tasks if t.check and not t.job and t.told and t.id not in self._proofs)
        proof = [t.id for t in told if verdict_of(t) is Verdict.REBOOT]
        demand(bool(proof), f"{machine.name} is rebooted by {reboot.key}, and no check asks for it")
        self._proofs.update(proof)
        self._repaired(machine)

    def _repaired(self, machine: Machine) -> None:
        self._repairs[machine.name] += 1
        demand(self._repairs[machine.name] < 3, f"{machine.name} is repaired again and again")

    def _was_stuck(self, machine: Machine, job: str, attempt: int) -> bool:
        """Whether a task of that attempt did not end in the time of a stop. No clock jumps."""
        w = self._world.weather
        wait = w.policy.stop_timeout.total_seconds() - 0.01
        mine = [
            t for t in machine.tasks if t.job == job and t.attempt == attempt and not t.check and t.asked >= 0
        ]
        long = [t for t in mine if (self._world.now if t.alive else t.ended) - t.asked >= wait]
        return bool(long or (mine and (w.skew_s or w.jolt_s)))

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
        self._holds_alone(new)
        if old is None:
            return
        demand(
            old.attempt <= new.attempt <= old.attempt + 1,
            f"job {new.id} went from attempt {old.attempt} to {new.attempt}",
        )
        self._truly_leaves(old, new)
        self._fairly_charged(old, new)
        demand(
            not old.status.final or new.status is old.status,
            f"job {new.id} was {old.status} for good and is {new.status} now",
        )
        for before, rank in zip(old.ranks, new.ranks, strict=True):
            if before.node != rank.node:
                self._left(new, before)
            if rank.verdict is Verdict.LOST and before.verdict is not rank.verdict:
                self._truly_lost(old, rank)
            if rank.exit is Exit.FROZEN and before.exit is not rank.exit:
                self._truly_frozen(old, rank)
                self.permits.stopped(new.id, new.attempt)
        if old.status is not new.status:
            self._moved(old, new)

    def _truly_leaves(self, old: Job, new: Job) -> None:
        """A gang in which nothing failed is stopped only where a node was announced to be taken away, with a permit,
        if it may move; and nobody is charged for it."""
        said = [entry for entry in new.timeline if entry not in old.timeline and entry.subject == "job"]
        begun = any(entry.after == "PENDING_HEALTHCHECK" and LEAVES in entry.why for entry in said)
        if begun:
            named = [rank.node for rank in new.ranks if self._world.machines[rank.node].announced]
            demand(bool(named), f"job {new.id} was stopped to leave a node, and none is taken away")
            demand(bool(self._world.weather.failover), f"job {new.id} was stopped, and may not move")
            self.permits.stopped(new.id, old.attempt)
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

    def _holds_alone(self, job: Job) -> None:
        names = frozenset() if job.status.final else frozenset(rank.node for rank in job.ranks)
        for other, theirs in self._holds.items():
            both = sorted(names & theirs) if other != job.id else []
            demand(not both, f"{both} is held by {job.id} and by {other}")
        self._holds[job.id] = names

    def _left(self, job: Job, rank: Rank) -> None:
        """A rank has moved away. What it ran there is over, or was asked to stop and is out of reach for long."""
        self._moves[job.id, job.attempt, rank.index] = self._world.now
        self._world.struck["moves"] += 1
        if rank.handed and rank.verdict in (Verdict.REBOOT, Verdict.REPLACE):
            self.permits.moved(rank.node)
        w, machine = self._world.weather, self._world.machines[rank.node]
        told = not (w.lost or w.late or w.reordered or w.together or w.skew_s or w.jolt_s or w.late_functions)
        for task in machine.tasks:
            if task.alive and task.job == job.id and not task.check and not task.stray:
                since = task.asked if machine.away_since is None else machine.away_since
                took = self._world.now - since + 1.0
                back = (
                    machine.connected and self._world.now - machine.last_away < 300
                )  # and nobody knows it yet
                task.left = True
                demand(
                    not told or back or took >= w.policy.failover_lost_after.total_seconds(),
                    f"job {job.id} left {machine.name} behind, where {task.id} still runs",
                )

    def look(self, store: Store) -> None:
        """No job waits for a node while one is free for it, but for ranks whose nodes broke in a frozen fleet."""
        waits: dict[tuple[str, str], float] = {}
        nobody = any(begin <= self._world.now < end for begin, end in self.late)
        if not self._world.troubled and not nobody:
            for job in each(store.job, store.live_jobs())[0]:
                ready = [r for r in job.ranks if r.handed and not r.live and not r.anew]
                if self.permits.frozen:
                    ready = [r for r in ready if r.verdict not in (Verdict.REBOOT, Verdict.REPLACE)]
                if job.status is JobStatus.PENDING_RESTART and ready and job.ending is None:
                    some = {(job.id, node.name) for node in store.nodes() if self._suits(job, node)}
                    waits |= {pair: self._idle.get(pair, self._world.now) for pair in some}
        self._idle = waits
        most = 1800.0 + 3 * self._world.weather.sweep_s
        late = [pair for pair, since in waits.items() if self._world.now - since > most]
        demand(not late, f"{late[:1]}: the one waits, and the other is free")

    def _suits(self, job: Job, node: Node) -> bool:
        usable = node.status is NodeStatus.AVAILABLE and node.connected and node.gpus_seen == node.gpus
        may = job.spec.failover == "any" or (job.spec.failover == "spares" and node.spare)
        usable = usable and node.hold is None and node.leave is None
        return usable and may and node.kind == "alike" and not node.job_id

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
        self._nodes[node.name] = node
        self.permits.found(node)
        held = False
        for order in node.outbox:
            if isinstance(order.effect, RebootNode):
                held = node.status is NodeStatus.PENDING_HEALTHCHECK
                self.permits.ordered.add(order.key)
        self._of_its_life(node)
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

    def _of_its_life(self, node: Node) -> None:
        """What is kept of its repairs, to be held against what follows."""
        machine = self._world.machines[node.name]
        if node.status is NodeStatus.AVAILABLE and node.name in self._round:
            self._passed_the_gate(machine, node.reboot_key)
        if node.status not in (NodeStatus.REBOOTING, NodeStatus.PENDING_HEALTHCHECK):
            self._round.discard(node.name)
        reboot = machine.reboots.get(node.reboot_key)
        if reboot is not None and node.rebooted:
            self._booted[node.name] = reboot.at
        last = node.timeline[-1] if node.timeline else None
        self._replacements.committed(node)
        if last is not None and last.why.startswith("reboot asked for by"):
            self._by_person.add(node.reboot_key)
        if last is not None and last.why.startswith("a fault was seen"):
            seen = float(last.evidence.rpartition(" ")[2])
            old = seen < self._booted.get(node.name, -1.0)
            self._round.discard(node.name)  # its gate opened in the same step
            demand(not old, f"{node.name} is examined for a fault of {seen}, and was rebooted since")

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
        lost = rank.anew and old.ranks[rank.index].verdict in (None, Verdict.LOST)  # and examined at once
        demand(lost or rank.verdict is not None, f"job {old.id} decided without a verdict about {rank.node}")

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
        untold = away is not None and any(begin <= away < end for begin, end in self.late)
        if (job.id, job.attempt, rank.index) in self._moves:
            self._passed(job, rank, machine)
            waited = 0.0
        demand(
            away is None or away >= waited - UNHEARD_S - self._world.weather.sweep_s or untold,
            f"job {job.id} restarts, but {rank.node} has not been back",
        )
        key = keys.reboot(job.id, job.attempt, rank.index, max(0, rank.handed_times - 1))
        reboot = machine.reboots.get(key)
        demand(reboot is None or reboot.done, f"job {job.id} restarts, but {rank.node} has not rebooted yet")
        self._passed_the_gate(machine, key)
        node = self._nodes.get(rank.node)
        if node is not None and node.job_id == job.id:
            due = any(isinstance(order.effect, RebootNode) for order in node.outbox)
            demand(not due, f"job {job.id} restarts with the reboot of {rank.node} still to be ordered")
            demand(not node.own, f"job {job.id} restarts, but {rank.node} has not been given back")

    def _passed_the_gate(self, machine: Machine, key: str) -> None:
        """Whoever rebooted it: it is used again when a check has found it healthy, and not before."""
        reboot = machine.reboots.get(key)
        if reboot is not None and self._world.weather.policy.post_reboot_check:
            since = (
                t for t in machine.tasks if t.check and not t.job and t.began > reboot.at and not t.alive
            )
            well = any(verdict_of(t) is Verdict.HEALTHY for t in since)
            demand(well, f"{machine.name} is let back, and no check has found it healthy since its reboot")

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
            left = said is not None and (said.job, said.attempt, said.rank) in self._moves
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
