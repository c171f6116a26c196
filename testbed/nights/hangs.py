"""Jobs that stand still, and the witnesses of it: they lie, come late, or stop coming.

Tonight either the GPUs may be seen to rest though they work, or a job writes nothing though it trains: never both,
since two witnesses that lie together can't be told from the truth. One watch whose folder is a stale copy is outvoted
by the others, whatever the GPUs seem to do.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from ecs_gpu_recovery.core.events import NodePulse, StopAsked
from ecs_gpu_recovery.core.job import hang
from ecs_gpu_recovery.core.model import Job
from ecs_gpu_recovery.core.node_record import Wrote
from ecs_gpu_recovery.core.witness import FLAT, IDLE, MOVING, Named, Silence

from .machine import Machine, Task
from .violation import demand

if TYPE_CHECKING:
    from .night import Night

PULSE_S = 60.0
#: A person who sees that a job stands still ends it after this long.
PERSON_S = 4 * 3600.0


class Hangs:
    """What stands still tonight, and who says so."""

    def __init__(self, night: Night, chance: Random, nccl: Random, files: Random) -> None:
        self._night, self._world, self._chance, self._nccl = night, night.world, chance, nccl
        self._files, self._shared = (
            files,
            files.random() < 0.5,
        )  # whether each watch sees what all ranks write
        self._spins: dict[str, bool] = {}  #: tasks that stand still, and whether their GPUs spin
        self._dead: set[str] = set()  #: machines whose watch has died
        self._lying: dict[
            str, float
        ] = {}  #: machines whose watch sees no work where there is some, and since when
        self._said: dict[str, str] = {}
        #: By job and attempt: for a while nobody works (-1), or one rank alone, and the others wait. Then they go on.
        self._pauses: dict[tuple[str, int], tuple[int, float, float]] = {}
        self._mute: set[str] = set()  #: jobs that write nothing
        self._looked: set[tuple[str, int]] = set()  #: attempts of which it was kept where they stand
        self._ended: set[tuple[str, int]] = set()  #: attempts that were ended because they hung
        #: By attempt: every answer to the question whom the others wait for. Often there is none.
        self._named: dict[tuple[str, int], set[tuple[str, ...]]] = {}
        if night.weather.hangs:
            self._world.on_run = self._runs
            for machine in self._world.machines.values():
                self._world.after(chance.uniform(1, PULSE_S), partial(self._beat, machine))

    # -- what happens ------------------------------------------------------------------------------------------

    def _runs(self, task: Task) -> None:
        w, world = self._night.weather, self._world
        if world.troubled and world.strikes("hangs"):
            world.after(self._chance.uniform(30, 0.8 * w.work_s), lambda: self._freeze(task))
        if world.troubled and task.rank == 0 and world.strikes("pauses"):
            begin, alone = world.now + self._chance.uniform(30, 600), self._chance.choice((-1, 0))
            most = 0.95 * w.policy.hang_after.total_seconds()
            lasts = self._chance.uniform(100, most) if alone < 0 else self._chance.uniform(most, 3 * most)
            self._pauses[task.job, task.attempt] = (alone, begin, begin + lasts)
        if w.false_witness and w.mute and task.rank == 0 and world.strikes("false_witness"):
            self._mute.add(task.job)

    def _freeze(self, task: Task) -> None:
        if task.alive and not task.stopping and self._world.hung_since(task.job, task.attempt) is None:
            task.still = self._world.now
            self._spins[task.id] = self._chance.random() < 0.5
            self._world.note("hangs", task.job, task.attempt, task.rank)
            self._world.after(PERSON_S, lambda: self._person(task))

    def _person(self, task: Task) -> None:
        w = self._night.weather
        if not task.alive or task.stopping:
            return
        demand(
            bool(
                w.lost
                or w.late
                or w.reordered
                or w.transient
                or w.throttles
                or w.late_functions
                or self._dead
            )
            or w.policy.on_hang == "notify"
            or (self._world.gang_size(task.job) == 1 and not self._spins[task.id]),
            f"{task.job} hangs since {task.still:.0f} s, and nobody saw it",
        )
        self._world.note("person ends the hang", task.job)
        self._world.after(3600, lambda: self._person(task))  # whoever was asked may have died over it
        ask = StopAsked(at=self._world.time, by="ann", why="it hangs")
        self._night.process(lambda: self._night.desk.handle(task.job, [ask]), self._world.time)

    def _beat(self, machine: Machine) -> None:
        """A watch tells each minute that its GPUs stand still, and once that they work again."""
        world, w = self._world, self._night.weather
        world.after(PULSE_S, lambda: self._beat(machine))
        if (
            world.troubled
            and machine.name not in self._dead
            and world.strikes("deaf_watch", w.deaf_watch / 60)
        ):
            self._dead.add(machine.name)
        if not machine.up or machine.gone or machine.name in self._dead:
            return
        state, since = self._seen(machine)
        if state == MOVING and self._said.get(machine.name, MOVING) == MOVING:
            return
        self._said[machine.name] = state
        fact = NodePulse(
            at=world.time,
            node=machine.name,
            state=state,
            since=world.stamp(since),
            trained=True,
            what=state,
            wrote=self._wrote(machine),
        )
        self._night.deliveries.tell_pulse(machine, fact)

    def _wrote(self, machine: Machine) -> tuple[Wrote, ...]:
        """Now and then a folder does not answer. That of a first rank may be a copy that nobody writes to."""
        world, w, task = self._world, self._night.weather, _training(machine)
        if not w.files or task is None or self._files.random() < 0.1:
            return ()
        stale = bool(w.false_witness) and not w.mute and task.rank == 0 and world.gang_size(task.job) > 1
        last = task.began if stale else self._last_line(task.job, task.attempt, task.began)
        world.struck["files"] += 1
        ranks = range(world.gang_size(task.job)) if self._shared else (task.rank,)
        return tuple(Wrote(job=task.job, rank=rank, at=world.stamp(last)) for rank in ranks)

    def _last_line(self, job: str, attempt: int, began: float) -> float:
        hung = self._world.hung_since(job, attempt)
        return hung if hung is not None else began if job in self._mute else self._world.now

    def _seen(self, machine: Machine) -> tuple[str, float]:
        world, w = self._world, self._night.weather
        task = _training(machine)
        if task is None:
            self._lying.pop(machine.name, None)
            return MOVING, world.now
        hung = world.hung_since(task.job, task.attempt)
        if hung is not None:
            return (FLAT if self._spins.get(task.id, True) else IDLE), hung
        works, begin, end = self._pauses.get((task.job, task.attempt), (0, 0.0, 0.0))
        if begin <= world.now < end and task.rank != works and world.gang_size(task.job) > 1:
            return FLAT, begin
        if w.false_witness and not w.mute and (machine.name in self._lying or world.strikes("false_witness")):
            since = self._lying.setdefault(machine.name, world.now)
            return self._chance.choice((FLAT, IDLE)), since
        return MOVING, world.now

    # -- what can be asked -------------------------------------------------------------------------------------

    def silence(self, job: Job, since: datetime) -> Silence | None:
        tasks = [self._world.tasks[rank.task_id] for rank in job.ranks if rank.task_id in self._world.tasks]
        began = max((task.began for task in tasks), default=self._world.now)
        at = self._world.stamp(self._last_line(job.id, job.ranks[0].task_attempt, began))
        return Silence(since=at) if at <= since else None

    def looked_at(self, job: Job) -> None:
        self._looked.add((job.id, job.ranks[0].task_attempt))

    def unanswered(self, job: Job) -> None:
        """The question itself was lost, and whatever was heard before is not asked for again."""
        self._named.setdefault((job.id, job.ranks[0].task_attempt), set()).add(())

    def waited_for(self, job: Job) -> Named | None:
        """The NCCL of a rank knows whose GPUs do not come; now and then nobody has heard it yet."""
        attempt = job.ranks[0].task_attempt
        tasks = [self._world.tasks.get(rank.task_id) for rank in job.ranks]
        odd = tuple(
            task.machine.name for task in tasks if task is not None and task.alive and task.still >= 0
        )
        heard = odd if len(odd) < len(tasks) and self._nccl.random() < 0.6 else ()
        self._named.setdefault((job.id, attempt), set()).add(heard)
        return Named(odd=heard, what="NCCL") if heard else None

    def committed(self, old: Job | None, new: Job) -> None:
        self._trains_again(old, new)
        self._stopped(old, new)

    def _trains_again(self, old: Job | None, new: Job) -> None:
        """Who was told that a job may hang hears that it does not: once, and only if that is so."""
        before = old.timeline if old is not None else ()
        fresh = [entry for entry in new.timeline if entry.why == hang.HEALED and entry not in before]
        for entry in fresh:
            said = [each.why for each in new.timeline if each.attempt == entry.attempt]
            demand(said.count(hang.HEALED) == 1, f"{new.id} was said twice to train again")
            demand(hang.NOTED in said, f"{new.id} was said to train again, and nobody had worried")
            hung = self._world.hung_since(new.id, new.ranks[0].task_attempt)
            patience = self._night.weather.policy.hang_after.total_seconds()
            demand(
                hung is None or self._world.now - hung < patience,
                f"{new.id} was said to train again, and it hangs",
            )
            self._world.struck["trains again"] += 1

    def _stopped(self, old: Job | None, new: Job) -> None:
        """A gang may be stopped for a hang only if it truly stands still, and has for long enough."""
        if old is None or not any(rank.hung for rank in new.ranks) or any(rank.hung for rank in old.ranks):
            return
        attempt = new.ranks[0].task_attempt
        mine = [t for t in self._world.tasks.values() if (t.job, t.attempt) == (new.id, attempt)]
        stood = [
            task.still for task in mine if task.still >= 0
        ]  # one that has died since has not moved again
        demand(bool(stood), f"{new.id} was stopped as if it hung, and it trains")
        patience, lasted = self._night.weather.policy.hang_after.total_seconds(), self._world.now - min(stood)
        demand(lasted >= patience - 1, f"{new.id} was called hung after {lasted:.0f} s")
        demand((new.id, attempt) in self._looked, f"{new.id} was stopped, and nobody kept where it stood")
        demand((new.id, attempt) not in self._ended, f"{new.id} was stopped twice for one hang")
        self._ended.add((new.id, attempt))
        odd = {rank.index for rank in new.ranks if rank.hung}
        frozen = {task.rank for task in mine if task.still >= 0}
        answers = self._named.get((new.id, attempt), set())
        demand(bool(answers), f"{new.id} was stopped, and nobody was asked whom it waits for")
        if () not in answers:
            blamed = tuple(rank.node for rank in new.ranks if rank.hung)
            demand(blamed in answers, f"{new.id}: {answers} was named, and {blamed} is blamed")
        if len(odd) < len(new.ranks):
            demand(bool(odd & frozen), f"{new.id}: rank {odd} is blamed, {frozen} stands still")
        self._world.struck["hang ended"] += 1


def _training(machine: Machine) -> Task | None:
    return next((t for t in machine.tasks if t.alive and t.running and not t.check), None)
