"""What really happens: machines, tasks, checks and reboots in virtual time, and the news they make.

Nothing here knows the rules under test. `World` keeps the truth; `cluster` shows it through the fleet port,
and `night` delivers its news to the control plane, or doesn't.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random

from .machine import GPUS, Machine, News, Reboot, Task
from .weather import Weather

T0 = datetime(2026, 1, 1, 22, 0, tzinfo=UTC)
#: A job that runs to its end trains so many.
STEPS = 8
_SECOND = timedelta(seconds=1)
_NEVER_RAN = (
    "CannotPullContainerError: no such image",
    "RESOURCE:GPU",
    "CannotStartContainerError: device gone",
)


class World:
    """Time, chance and truth. Who wants to hear of what happens, listens."""

    def __init__(self, weather: Weather, rng: Random) -> None:
        self.weather, self.rng = weather, rng
        self.now = 0.0
        self.history: list[tuple[object, ...]] = []
        self.struck: Counter[str] = Counter()  #: how often each trouble of the weather has struck
        self.named = [f"n{i}" for i in range(weather.nodes)]  #: those that people name
        self.spares = [f"s{i}" for i in range(weather.spares)]
        self.machines = {name: Machine(name) for name in (*self.named, *self.spares)}
        self.tasks: dict[str, Task] = {}
        self.sizes: dict[str, int] = {}  #: how many ranks each job has
        #: Of each step that a job has trained for the first time: the attempt, and when.
        self.steps: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        self.news: Callable[[str, Machine, News], None] = lambda kind, machine, what: None
        self.on_start: Callable[[Task], None] = lambda task: None
        self.on_run: Callable[[Task], None] = lambda task: None
        self.on_reboot: Callable[[Machine, Reboot], None] = lambda machine, reboot: None
        self.on_replace: Callable[[Machine, Reboot], None] = lambda machine, order: None
        self.on_successor: Callable[[Machine], None] = lambda machine: None
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    # -- time ------------------------------------------------------------------------------------------

    @property
    def time(self) -> datetime:
        return self.stamp(self.now)

    @staticmethod
    def stamp(at: float) -> datetime:
        return T0 + _SECOND * round(at, 3)

    def after(self, delay: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (self.now + delay, self._count, act))

    def _in_a_while(
        self, trouble: str, slow: tuple[float, float], usual: tuple[float, float], act: Callable[[], None]
    ) -> None:
        """Within the usual time, or later if that trouble strikes."""
        self.after(self.rng.uniform(*(slow if self.troubled and self.strikes(trouble) else usual)), act)

    def run_until(self, end: float) -> None:
        """Everything that happens up to then. Called from within, the caller stands still meanwhile."""
        while self._agenda and self._agenda[0][0] <= end:
            at, _, act = heapq.heappop(self._agenda)
            self.now = max(self.now, at)
            act()
        self.now = max(self.now, end)

    def note(self, *what: object) -> None:
        self.history.append((round(self.now, 3), *what))

    def strikes(self, trouble: str, rate: float | None = None) -> bool:
        """Whether this trouble strikes now. Its rate is tonight's, unless told otherwise."""
        rate = getattr(self.weather, trouble) if rate is None else rate
        if rate <= 0 or self.rng.random() >= rate:
            return False
        self.struck[trouble] += 1
        return True

    @property
    def troubled(self) -> bool:
        return self.now < self.weather.trouble_s

    # -- tasks -----------------------------------------------------------------------------------------

    def start(
        self,
        machine: Machine,
        *,
        token: str,
        check: bool,
        job: str,
        rank: int,
        attempt: int,
        check_try: int,
        start_key: str,
    ) -> Task:
        """The cluster has accepted a task; its container runs a little later, or never."""
        self._count += 1
        task = Task(
            f"{'c' if check else 't'}{self._count}",
            token,
            check,
            job,
            machine,
            rank,
            attempt,
            check_try,
            start_key,
            self.now,
            machine.name,
        )
        machine.tasks.append(task)
        self.tasks[task.id] = task
        self.note("start", task.id, job, rank, attempt, machine.name)
        self.on_start(task)
        self.after(self.rng.uniform(1, 20), lambda: self._runs(task))
        return task

    def _runs(self, task: Task) -> None:
        if not task.alive:
            return
        if not task.machine.connected:
            self.after(30, lambda: self._runs(task))
            return
        if self.troubled and not task.check and self.strikes("refused"):
            self.end(task, None, self.rng.choice(_NEVER_RAN), "TaskFailedToStart")
            return
        task.running = True
        if task.stopping:
            self._obey(task)
            return
        self.news("running", task.machine, task)
        if task.check:
            self._examine(task)
        else:
            self.after(self.weather.work_s * self.rng.uniform(0.95, 1.1), lambda: self._finish(task))
            if self.weather.reports and task.rank == 0:
                first = max(0, len(self.steps[task.job]) - 1)  # the last one is trained again
                self.after(self.weather.work_s / STEPS, lambda: self._train(task, first))
            self.on_run(task)
            if task.machine.fault and self.rng.random() < 0.9:
                self.after(
                    self.rng.uniform(5, 600),
                    lambda: self.fail(task, 1, "Essential container in task exited"),
                )

    def _gang(self, task: Task) -> dict[int, Task]:
        """The newest of each rank."""
        same = (
            t for t in self.tasks.values() if t.job == task.job and t.attempt == task.attempt and not t.check
        )
        return {t.rank: t for t in same}

    def _train(self, task: Task, number: int) -> None:
        """The gang trains a step together, and rank 0 tells of one that is new. One that was left behind finds the
        fence, and writes no more."""
        if not task.alive or task.left:
            return
        gang = self._gang(task).values()
        if sum(t.alive and t.running and not t.frozen and t.still < 0 for t in gang) == self.gang_size(
            task.job
        ):
            steps = self.steps[task.job]
            number += 1
            if number > len(steps):
                steps.append((task.attempt, self.now))
                self.note("step", task.job, number, task.attempt)
                self.news("progress", task.machine, task)
        self.after(self.weather.work_s / STEPS, lambda: self._train(task, number))

    def _finish(self, task: Task) -> None:
        """A rank ends well only if its whole gang has come as far. With a dead member it hangs for ever."""
        if not task.alive:
            return
        gang = self._gang(task)
        if any((not t.alive and not t.finished and t.running) or t.frozen for t in gang.values()):
            return
        if self.hung_since(task.job, task.attempt) is not None:
            return
        if sum(t.running for t in gang.values()) < self.gang_size(task.job):
            self.after(120, lambda: self._finish(task))
            return
        task.finished = True
        self.end(task, 0, "", "EssentialContainerExited")

    def hung_since(self, job: str, attempt: int) -> float | None:
        """Since when a gang waits for one that stands still."""
        still = [
            task.still
            for task in self.tasks.values()
            if (task.job, task.attempt) == (job, attempt) and task.still >= 0 and task.alive
        ]
        return min(still, default=None)

    def gang_size(self, job: str) -> int:
        return self.sizes.get(job, 1)

    def fail(self, task: Task, code: int, reason: str) -> None:
        if task.alive and task.running and task.machine.up:
            self.end(task, code, reason, "EssentialContainerExited")

    def end(self, task: Task, code: int | None, reason: str, stop_code: str) -> None:
        task.alive = False
        task.exit_code, task.reason, task.stop_code, task.ended = code, reason, stop_code, self.now
        self.note("end", task.id, code, stop_code)
        if (task.machine.connected or task.machine.gone) and not task.forgotten:
            self._tell_end(task)

    def _tell_end(self, task: Task) -> None:
        task.told, task.ended = True, self.now
        self.news("ended", task.machine, task)

    def _examine(self, task: Task) -> None:
        machine = task.machine
        if self.troubled and self.strikes("hung_check"):
            return
        code = {"": 0, "reboot": 1, "replace": 2}[machine.fault]
        if self.troubled and self.strikes("broken_check"):
            code = self.rng.choice((3, 126, 137))
        elif self.troubled and self.strikes("wrong_check"):
            code = self.rng.choice((0, 1))
        if task.idle and machine.orphans:
            code = 3
        self.after(self.rng.uniform(5, 120), lambda: self.fail(task, code, ""))

    def stop(self, task: Task, reason: str) -> None:
        """The cluster wants it stopped. A machine that is not connected hears of it later."""
        if task.forgotten:
            task.stopping = True  # as far as the cluster is concerned
        task.asked = self.now if task.asked < 0 else task.asked
        if not task.alive or task.stopping:
            return
        task.stopping, task.stop_reason = True, reason
        self.note("stop", task.id)
        if task.running and task.machine.connected:
            self._obey(task)

    def _obey(self, task: Task) -> None:
        self._in_a_while("deaf", (200, 1500), (0.5, self.weather.stop_s), lambda: self._stopped(task))

    def _stopped(self, task: Task) -> None:
        if task.alive and task.machine.up:
            self.end(task, 143, task.stop_reason, "UserInitiated")

    # -- machines --------------------------------------------------------------------------------------

    def changed(self, machine: Machine) -> None:
        """How the cluster sees the machine has changed, or a placement made it say so again."""
        machine.version += 1
        if not machine.connected or machine.away_since is not None:
            machine.last_away = self.now
        machine.away_since = (
            None if machine.connected else self.now if machine.away_since is None else machine.away_since
        )
        self.note("node", machine.name, machine.connected, machine.boot, machine.version)
        self.news("node", machine, None)

    def down(self, machine: Machine) -> None:
        """The power is off. Whatever ran is dead; the cluster learns how only when the machine is back."""
        if not machine.up:
            return
        machine.up = machine.agent = False
        machine.strangers = 0
        for task in machine.tasks:
            if task.alive:
                lie = self.strikes("lies") and not task.check
                self.end(
                    task,
                    0 if lie else 137,
                    "" if lie else "node restarted while the task ran",
                    "EssentialContainerExited",
                )
        self.changed(machine)

    def boots(self, machine: Machine, *, cure: bool = True) -> None:
        """The machine is on again; its agent follows."""
        if machine.up or machine.gone:
            return
        machine.up = True
        machine.boot += 1
        machine.gpus = GPUS - 1 if self.troubled and self.strikes("fewer_gpus") else GPUS
        if machine.fault == "reboot" and cure:
            machine.fault = ""
        self.note("boot", machine.name, machine.boot)
        self.after(self.rng.uniform(1, 60), lambda: self.agent_back(machine))

    def agent_back(self, machine: Machine) -> None:
        if not machine.up or machine.agent:
            return
        machine.agent = True
        if self.weather.forgetful and self.troubled and not machine.gone and self.strikes("forgets", 0.4):
            self._registers_anew(machine)
        self.changed(machine)
        if not machine.connected:
            return
        if self.weather.report_s:
            self.after(
                self.rng.uniform(0, self.weather.report_s), lambda: self._report(machine, machine.boot)
            )
        else:
            self._report(machine, machine.boot)

    def _report(self, machine: Machine, boot: int) -> None:
        """The agent tells what has become of its tasks while it was away."""
        if not machine.connected or machine.boot != boot:
            return
        for task in machine.tasks:
            if task.forgotten:
                continue
            if not task.alive and not task.told:
                self._tell_end(task)
            elif task.alive and task.stopping and task.running:
                self._obey(task)

    def _registers_anew(self, machine: Machine) -> None:
        """The cluster gets to know a new machine. What it knew of the old one stays as it was."""
        machine.registration += 1
        machine.registered, machine.version = self.now, 0
        for task in machine.tasks:
            task.forgotten = task.forgotten or not task.told
        self.note("anew", machine.name, machine.registration)

    def agent_away(self, machine: Machine, seconds: float) -> None:
        if not machine.connected:
            return
        machine.agent = False
        self.changed(machine)
        self.after(seconds, lambda: self.agent_back(machine))

    def terminate(self, machine: Machine) -> None:
        """The instance is gone for good."""
        if machine.gone:
            return
        machine.gone = True
        machine.up = machine.agent = False
        for task in machine.tasks:
            if task.alive:
                self.end(task, None, "Host EC2 (instance i-0) terminated.", "TerminationNotice")
        self.changed(machine)

    def replace(self, machine: Machine, key: str) -> None:
        """Its group ends the machine and starts another one. Some are ended late or never, and some never come."""
        if key in machine.reboots:
            return
        order = machine.reboots[key] = Reboot(key, self.now)
        self.note("replace", machine.name, key)
        self.on_replace(machine, order)
        if self.troubled and self.strikes("no_return"):
            return
        self._in_a_while("slow_reboot", (900, 4000), (30, 300), lambda: self._ends(machine))

    def _ends(self, machine: Machine) -> None:
        self.terminate(machine)
        if not (self.troubled and self.strikes("no_return")):
            self.after(self.rng.uniform(60, 900), lambda: self.on_successor(machine))

    def reboot(self, machine: Machine, key: str) -> None:
        """The host refuses a second reboot for the same key by itself."""
        if key in machine.reboots:
            return
        reboot = machine.reboots[key] = Reboot(key, self.now)
        self.note("reboot", machine.name, key)
        self.on_reboot(machine, reboot)
        if not machine.up or (self.troubled and self.strikes("reboot_fails")):
            reboot.failed = True
            self.after(self.rng.uniform(1, 60), lambda: self.news("reboot failed", machine, reboot))
            return
        self.after(self.rng.uniform(1, 5), lambda: self.down(machine))
        if self.troubled and self.strikes("no_return"):
            return
        slow = self.troubled and self.strikes("slow_reboot")
        cure = not (self.troubled and self.strikes("no_cure"))
        self.after(
            self.rng.uniform(900, 4000) if slow else self.rng.uniform(60, 400),
            lambda: self._rebooted(machine, reboot, cure),
        )

    def _rebooted(self, machine: Machine, reboot: Reboot, cure: bool) -> None:
        self.boots(machine, cure=cure)
        if not machine.gone:
            self.after(self.rng.uniform(1, 90), lambda: self._proven(machine, reboot))

    def _proven(self, machine: Machine, reboot: Reboot) -> None:
        if machine.up:
            reboot.done = True
            self.note("rebooted", machine.name, reboot.key)
            self.news("rebooted", machine, reboot)
