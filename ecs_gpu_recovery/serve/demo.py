"""`gpu-recovery demo`: a multi-node training job breaks and heals in front of you, on one machine.

Real processes: every node is a supervised process, every rank a training process that talks to the others.
The GPUs are simulated, so that one can be broken on purpose.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from ..cli.render import console, plain, styled
from ..cli.terminal import emit_json
from ..control.local_backend import LocalBackend
from ..core.errors import RecoveryError, Refused
from ..core.model import Job, JobStatus, NodeStatus
from ..jobfile import parse
from ..local.controller import Controller, NodeWish
from ..local.wiring import LOCAL_POLICY, Embedded, now
from ..metrics.collector import Collector
from ..progress import Progress, effective_ratio, progress_of
from ..report import phases
from ..status_text import Said, items_of, now_doing
from . import free_node
from .beside import ConsoleBeside, linger, person_is_there
from .scenarios import SCENARIOS, WITHOUT_SPARES, Scenario

LIMIT_S = 150.0
#: A hang is believed after ten minutes; who watches this has less patience.
HANG_AFTER_S = 12.0
STEP_S = 0.05
#: After the end: how long the console waits for a page to be opened, and how long it stays at most.
LINGER_S, LINGER_MOST_S = 60.0, 1800.0
MOST_NOTICES = 50


def run_demo(
    *,
    fault: str,
    nodes: int,
    spares: int | None = None,
    steps: int,
    state: Path | None,
    as_json: bool,
    console_port: int | None = None,
) -> int:
    folder = state.resolve() if state is not None else Path(tempfile.mkdtemp(prefix="gpu-recovery-demo-"))
    patience = timedelta(seconds=2)
    policy = replace(
        LOCAL_POLICY,
        node_lost_after=patience,
        failover_lost_after=2 * patience,
        hang_after=timedelta(seconds=HANG_AFTER_S),
    )
    if SCENARIOS[fault].everywhere:  # all at once are too many, and nobody wants to watch for ten minutes
        if nodes < 2:
            raise Refused("a storm takes two nodes or more: --nodes 4")
        policy = replace(policy, freeze_nodes=min(3, nodes - 1), freeze_within=timedelta(seconds=10))
    scenario = SCENARIOS[fault] if spares != 0 else WITHOUT_SPARES.get(fault, SCENARIOS[fault])
    spares = scenario.spares if spares is None else spares
    wishes = [NodeWish(name=f"node-{i + 1}", gpus=2, boot_seconds=1.5) for i in range(nodes + spares)]
    for number in (signal.SIGTERM, signal.SIGHUP):  # ended early: nothing of it may run on
        signal.signal(number, _end_early)
    try:
        with ExitStack() as running:
            beside = _console(folder, console_port, sys.stderr if as_json else sys.stdout)
            if beside is not None:
                running.enter_context(beside)
            controller = running.enter_context(Controller(folder, nodes=wishes, policy=policy))
            running.callback(controller.parts.cluster.shutdown)
            stop = threading.Event()
            loop = threading.Thread(target=controller.run, args=(stop,), name="controller")
            loop.start()
            running.callback(loop.join)
            running.callback(stop.set)
            if beside is not None:
                beside.open()
                running.enter_context(Collector(controller.parts, controller.looks))
            show = _Show(controller.parts, scenario, fault, steps, loop, beside, quiet=as_json)
            code = show.play(folder, nodes, [wish.name for wish in wishes[nodes:]])
            if beside is not None and not as_json:
                _look_on(beside, folder if state is not None else None, fault)
            return code
    finally:
        if state is None:
            shutil.rmtree(folder, ignore_errors=True)


def _console(folder: Path, port: int | None, out: TextIO) -> ConsoleBeside | None:
    """Its address is told at once. Where the console's packages are missing, the story is told without it."""
    if port is None:
        return None
    try:
        beside = ConsoleBeside(folder, port, or_another=True)
    except Refused as exc:
        print(f"no page to watch it on: {exc}\n", file=out, flush=True)
        return None
    print(f"watch it in a browser:  {beside.link.page()}\n", file=out, flush=True)
    return beside


def _look_on(beside: ConsoleBeside, kept: Path | None, fault: str) -> None:
    """What is left to see, for a person at the terminal; without one nothing is waited for."""
    print()
    if person_is_there():
        print(
            f"The console stays at {beside.link.page()} while a page is open, or for a minute. Enter ends it."
        )
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            linger(beside, idle_s=LINGER_S, most_s=LINGER_MOST_S)
    started, me = sys.argv[0], "gpu-recovery"
    if started.endswith(f"/{me}") and not shutil.which(me):  # `make demo` runs it from outside the path
        me = started
    print("\nThree things to try next:")
    other = (
        "app   (the program is at fault, nothing is rebooted)"
        if fault != "app"
        else "node-lost   (a node loses power for good, its rank moves to a spare)"
    )
    print(f"  1. another fault:   {me} demo --fault {other}")
    if kept is not None:
        print(f"  2. look again:      {me} console --state {kept}")
    else:
        print(f"  2. keep a run:      {me} demo --state DIR,  then  {me} console --state DIR")
    print(f"  3. a job of yours:  {me} up --console 8080,  then  {me} submit --any 2 -- python train.py")


def _end_early(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def news(job: Job, told: set[Any]) -> Iterator[str]:
    """New lines of the timeline, marked up; nodes that did the same thing at once share a line."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for entry in job.timeline:
        if entry not in told:
            told.add(entry)
            subject = "" if entry.subject != "job" else "job"
            key = (subject, entry.before, entry.after, entry.why, entry.evidence)
            groups.setdefault(key, []).append(entry.subject)
    for (subject, before, after, why, evidence), names in groups.items():
        move = styled(after) if before in ("", after) else f"{styled(before)} -> {styled(after)}"
        if subject:
            yield f"[bold]job[/]  {move}: {plain(why)}"
            yield from (f"       [dim]{plain(part)}[/]" for part in items_of(evidence))
        else:
            yield f"       {', '.join(names)}  {move}: [dim]{plain(why)}[/]"


class _Show:
    """Plays one scenario and tells it line by line."""

    def __init__(
        self,
        parts: Embedded,
        scenario: Scenario,
        name: str,
        steps: int,
        controller: threading.Thread,
        beside: ConsoleBeside | None,
        *,
        quiet: bool,
    ) -> None:
        self._parts, self._scenario, self._name, self._steps = parts, scenario, name, steps
        self._controller, self._beside, self._quiet = controller, beside, quiet
        self._out = console()
        self._began = time.monotonic()
        self._told: set[Any] = set()
        self._told_step = 0
        self._waits = 0
        self._side: LocalBackend | None = None
        self._victims: list[str] = []

    def _say(self, text: str, style: str = "") -> None:
        if not self._quiet:
            self._out.print(
                f"[dim]{time.monotonic() - self._began:6.1f} s[/]  "
                + (f"[{style}]{text}[/]" if style else text),
                markup=True,
                soft_wrap=True,  # a link that is broken into lines can't be clicked
            )
            sys.stdout.flush()

    def play(self, folder: Path, nodes: int, spares: Sequence[str]) -> int:
        side = self._side = LocalBackend(folder)
        try:
            self._wait_for_nodes(nodes + len(spares))
            if self._scenario.status is None:
                return self._play_without_a_job()
            for name in spares:
                side.ask_node(name, "spare", why="the demo keeps it for a rank that loses its node")
                self._say(f"{name} is kept as a spare")
            options = f"--steps {self._steps} --step-seconds {STEP_S} --checkpoint-every 20"
            command = [sys.executable, "-m", "ecs_gpu_recovery.examples.train", *options.split()]
            wish = {"name": "demo", "check": "quick", "any_nodes": nodes, "command": command}
            job = side.submit(parse(wish, python=sys.executable))
            many = f", on {self._scenario.victims} nodes" if self._scenario.victims > 1 else ""
            self._say(
                f"submitted [bold]{job.id}[/]: {self._steps} training steps over {len(job.ranks)} nodes;"
                f" halfway, {self._scenario.says}{many}"
            )
            if self._beside is not None:
                self._say(f"its page: {self._beside.link.page(f'/jobs/{job.id}')}")
            job = self._follow(job)
            done = progress_of(job)
            return self._report(job, done)
        finally:
            side.close()

    def _play_without_a_job(self) -> int:
        parts, want = self._parts, self._scenario
        node, seconds = free_node.play(parts, want.fault, want.says, self._say, self._rest)
        return free_node.report(parts, self._name, want.victim, node, seconds, quiet=self._quiet)

    def _wait_for_nodes(self, nodes: int) -> None:
        self._say(f"starting {nodes} simulated nodes, 2 GPUs each")
        limit = time.monotonic() + 60
        while sum(node.claimable for node in self._parts.store.nodes()) < nodes:
            for node in self._parts.store.nodes():
                if node.hold or node.job_id or node.status is NodeStatus.FAILED:
                    raise Refused(f"{node.name} {node.refusal}: choose another folder with --state")
            if time.monotonic() > limit:
                raise RecoveryError(
                    "the simulated nodes did not come up within a minute; see: gpu-recovery doctor"
                )
            self._rest()

    def _rest(self) -> None:
        if not self._controller.is_alive():
            raise RecoveryError("the control plane of the demo has stopped with the error above")
        time.sleep(0.05)

    def _follow(self, job: Job) -> Job:
        """Tell what happens; break something halfway; give a lost node its power back when the job waits."""
        # Between two checkpoints, so that some steps are lost.
        halfway = self._steps // 2 + min(8, self._steps // 8)
        middle = len(job.ranks) // 2
        many = len(job.ranks) if self._scenario.everywhere else self._scenario.victims
        first = min(middle, len(job.ranks) - many)
        self._victims = [rank.node for rank in job.ranks[first : first + many]]
        broken = not self._scenario.fault
        powered, thawed = self._scenario.victim is NodeStatus.UNKNOWN, False
        limit = time.monotonic() + LIMIT_S
        while not job.status.final or job.outbox:  # what people are told belongs to the story
            if time.monotonic() > limit:
                raise RecoveryError(f"the demo did not end within {LIMIT_S:.0f} s; the job is {job.status}")
            self._rest()
            job = self._parts.store.job(job.id)
            self._tell(job)
            done = progress_of(job)
            self._tell_progress(done)
            if not broken and done.steps >= halfway:
                if self._scenario.everywhere:
                    self._say(self._scenario.says, "bold red")
                for victim in self._victims:
                    if not self._scenario.everywhere:
                        self._say(f"{victim}: {self._scenario.says}", "bold red")
                    self._parts.cluster.inject(victim, self._scenario.fault)
                broken = True
            thawed = thawed or self._thaw()
            if self._scenario.fault == "lost" and job.status is JobStatus.PENDING_RESTART and not powered:
                self._say(f"{self._victims[0]} gets its power back", "bold")
                self._parts.cluster.power_on(self._victims[0])
                powered = True
        self._tell(job)
        return job

    def _thaw(self) -> bool:
        """The demo plays the person: it reads why the fleet is frozen, and thaws it. Whether it has."""
        if not self._scenario.everywhere or self._side is None:
            return False
        fleet = self._side.fleet()
        if not fleet["frozen"]:
            return False
        names = ", ".join(one["node"] for one in fleet["waiting"])
        self._say(f"the fleet is frozen: {fleet['frozen']['why']}; {names} wait for a permit", "bold cyan")
        self._side.ask_fleet("thaw", by="demo", why="each GPU is broken by itself")
        self._say("a person thaws it: gpu-recovery fleet thaw --why 'each GPU is broken by itself'", "bold")
        return True

    def _tell(self, job: Job) -> None:
        for line in news(job, self._told):
            self._say(line)
        doing = now_doing(job)
        left = int(str(doing.values["left"])) if doing.key == Said.WAITS else 0
        if left and left != self._waits:
            self._say(doing.key.format(**doing.values), "cyan")
        self._waits = left

    def _tell_progress(self, done: Progress) -> None:
        if done.steps >= self._told_step + 20 and done.loss is not None:
            self._told_step = done.steps - done.steps % 20
            self._say(f"training: step {done.steps} of {self._steps}, loss {done.loss:.4f}", "green")

    def _report(self, job: Job, done: Progress) -> int:
        """What it cost, and whether it ended as it should."""
        want = self._scenario
        victim = self._parts.store.node(self._victims[-1])
        good = job.status is want.status and job.attempt == want.attempt and victim.status is want.victim
        if want.status is JobStatus.COMPLETE:
            good = good and done.steps == self._steps
        ratio = effective_ratio(job, done, now())
        total = (job.updated_at - job.created_at).total_seconds()
        if self._quiet:
            emit_json(
                {
                    "fault": self._name,
                    "status": job.status.value,
                    "outcome": job.outcome,
                    "as_expected": good,
                    "attempts": job.attempt + 1,
                    "steps": done.steps,
                    "steps_lost": done.lost_steps,
                    "resumed_at": list(done.resumed_at),
                    "loss": done.loss,
                    "seconds": round(total, 2),
                    "effective_training_time": ratio if ratio is None else round(ratio, 3),
                    "phases": [
                        {"name": p.name, "attempt": p.attempt, "seconds": round(p.seconds, 2)}
                        for p in phases(job, now())
                    ],
                    "notices": list(self._parts.reads.notices(MOST_NOTICES)),
                }
            )
            return 0 if good else 1
        out = self._out
        out.print()
        out.print(f"[bold]{job.id}[/] is {styled(job.status)}: {plain(job.outcome)}")
        for phase in phases(job, now()):
            out.print(
                f"  {phase.seconds:6.1f} s  {phase.name}"
                + (f" (attempt {phase.attempt})" if phase.status is JobStatus.IN_PROGRESS else "")
            )
        out.print(f"  {total:6.1f} s  in all")
        resumed = f" (resumed at step {done.resumed_at[-1]})" if done.resumed_at else ""
        out.print(
            f"  attempts {job.attempt + 1}; steps {done.steps} of {self._steps},"
            f" {done.lost_steps} of them trained twice{resumed}"
        )
        if ratio is not None:
            out.print(f"  effective training time: {ratio:.0%} of the time since submission")
        for message in self._parts.reads.notices(MOST_NOTICES):
            out.print(f"  message to people: {message['happened']} {message['next']}", markup=False)
        out.print(
            "  as it should be"
            if good
            else f"  NOT as it should be: expected {want.status} in attempt {want.attempt},"
            f" {victim.name} {want.victim}"
        )
        return 0 if good else 1
