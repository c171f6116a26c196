"""`make demo-aws`: the stack is deployed with the CDK command, a training job loses a GPU, and the functions heal it.
With other faults a free node breaks, or all nodes do at once.

The AWS is a local one that checks permissions; its nodes, tasks and GPUs are simulated. The template, the roles, the
rules, the tables and the functions are what a deployment to an account would get.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from ecs_gpu_recovery.cli.render import console, plain, styled
from ecs_gpu_recovery.control import permits
from ecs_gpu_recovery.core.model import Failover, Job, JobStatus, NodeStatus
from ecs_gpu_recovery.report import phases
from ecs_gpu_recovery.serve.demo import news
from testbed.aws.deployment import CommandFailed, Deployment, People
from testbed.aws.server import serve
from tools import environment, node
from tools.project import ROOT, ProblemError

LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What breaks, and how the job must end then."""

    verdict: int  #: what a health check finds on the node
    says: str
    status: JobStatus = JobStatus.COMPLETE
    attempt: int = 1
    spares: int = 0  #: how many nodes are kept for it, if nobody says
    everywhere: bool = False  #: not on one node, but on all
    free: bool = False  #: on a node that no job holds


FAULTS = {
    "gpu": Fault(1, "a GPU falls off the bus; the rank on it dies"),
    "gpu-permanent": Fault(2, "a GPU breaks for good; the rank on it dies", spares=1),
    "app": Fault(0, "a rank dies of a mistake in the program; the GPUs are healthy"),
    "idle-gpu": Fault(1, "a GPU falls off the bus, and no job runs there", free=True),
    "storm": Fault(1, "a GPU of every node falls off the bus; a rank dies", everywhere=True),
}
#: The same without a node to go to.
WITHOUT_SPARES = {
    "gpu-permanent": replace(FAULTS["gpu-permanent"], status=JobStatus.FAILED, attempt=0),
}


class Show:
    """One job on the deployed stack, told line by line."""

    def __init__(self, fault: str, nodes: int, spares: int | None) -> None:
        self._fault = FAULTS[fault] if spares != 0 else WITHOUT_SPARES.get(fault, FAULTS[fault])
        spares = self._fault.spares if spares is None else spares
        self._names = [f"node-{number + 1}" for number in range(nodes)]
        self._spares = [f"node-{nodes + number + 1}" for number in range(spares)]
        self._victim = self._names[nodes // 2]
        self._out, self._began, self._told = console(), time.monotonic(), set[Any]()
        self._heard = 0.0

    def say(self, text: str, style: str = "") -> None:
        line = f"[{style}]{text}[/]" if style else text
        self._out.print(f"[dim]{time.monotonic() - self._began:6.1f} s[/]  {line}")
        sys.stdout.flush()

    def watch(self, seconds: float, line: str) -> None:
        """A sign of life every few seconds, with what the command says it does."""
        if time.monotonic() - self._heard >= 5:
            self._heard = time.monotonic()
            self.say(f"       [dim]{seconds:.0f} s: {plain(line[:120]) or 'working'}[/]")

    def play(self, python: Path) -> int:
        self.say("starting a local AWS that checks permissions")
        with serve(python, auth=True) as server, tempfile.TemporaryDirectory(prefix="demo-aws-") as place:
            self.say(f"it answers at {server.url}, on this machine only")
            # Who watches this has no ten minutes for the rest of a storm.
            few = {"FREEZE_WITHIN_S": "60", "FREEZE_NODES": str(min(3, len(self._names) - 1))}
            settings = few if self._fault.everywhere else {}
            stack = Deployment(server, root=ROOT, folder=Path(place), watch=self.watch, settings=settings)
            self._step("cdk bootstrap", stack.bootstrap)
            self._step("cdk deploy[/], which synthesizes the app first[bold]", stack.deploy)
            self._show_stack(stack)
            people = People(stack)
            people.join(self._names)
            self.say(f"{len(self._names)} machines have joined, 8 GPUs each; every other one is ECS Anywhere")
            self._admitted(people, self._names)
            for name in self._spares:
                people.add_spare(name, like=self._victim)
                self.say(f"{name} has joined, of the kind of {self._victim}; it is kept as a spare")
            self._admitted(people, self._spares)
            good = self._free_node(people) if self._fault.free else self._report(people, self._follow(people))
            self._step("cdk destroy", stack.destroy)
        self.say("the local AWS has ended; nothing is left running")
        return 0 if good else 1

    def _step(self, name: str, do: Any) -> None:
        self.say(f"[bold]{name}[/]")
        self._heard = time.monotonic()
        do()

    def _show_stack(self, stack: Deployment) -> None:
        aws = stack.server.client
        found = aws("cloudformation").describe_stacks(StackName="EcsGpuRecoveryStack")["Stacks"][0]
        tables = ", ".join(aws("dynamodb").list_tables()["TableNames"])
        rules = len(aws("events").list_rules()["Rules"])
        self.say(f"{found['StackName']} is {found['StackStatus']}: tables {tables}; {rules} rules;")
        for one in aws("lambda").list_functions()["Functions"]:
            self.say(f"       {one['FunctionName']} as {one['Role'].rpartition('/')[2]}")

    def _admitted(self, people: People, names: Sequence[str]) -> None:
        """Nobody has recorded them: the functions do, and examine each before its first job."""

        def free() -> bool:
            nodes = {node.name: node for node in people.side.store.nodes()}
            found = [nodes.get(name) for name in names]
            return all(n is not None and n.status is NodeStatus.AVAILABLE and not n.fresh for n in found)

        people.server.wait_for(free, seconds=LIMIT_S, every=0.2)
        if names:
            self.say(f"{', '.join(names)}: seen, examined and free")

    def _free_node(self, people: People) -> bool:
        """It is examined, repaired, gated and free again, and nobody is asked for anything."""
        name, told = self._victim, len(people.side.store.node(self._victim).timeline)
        self.say(f"{name}: {self._fault.says}", "bold red")
        people.server.control("health", node=name, verdict=self._fault.verdict)
        people.server.control("impair", node=name)
        limit = time.monotonic() + LIMIT_S
        while True:
            node = people.side.store.node(name)
            for entry in node.timeline[told:]:
                move = (
                    entry.after if entry.before in ("", entry.after) else f"{entry.before} -> {entry.after}"
                )
                self.say(f"{name}  {move}: [dim]{plain(f'{entry.why} {entry.evidence}')}[/]")
            told = len(node.timeline)
            if node.condemned and node.condemned[-1].outcome and not node.outbox:
                break
            if time.monotonic() > limit:
                raise ProblemError(f"The demo did not end within {LIMIT_S:.0f} s; {name} is {node.status}.")
            time.sleep(0.2)
        boots = people.server.control("node", node=name)["boots"]
        good = (node.status, node.condemned[-1].outcome, boots) == (NodeStatus.AVAILABLE, "cured", 2)
        return self._end(people, good, f"{name} AVAILABLE after one reboot")

    def _follow(self, people: People) -> Job:
        """Submit, break something once all ranks run, and let the job end."""
        job = people.submit("demo", self._names, restart_when_healthy="progress", failover=Failover.SPARES)
        self.say(f"submitted [bold]{job.id}[/] over {len(job.ranks)} nodes; once it runs, {self._fault.says}")
        broken = finished = False
        limit = time.monotonic() + LIMIT_S
        while not (job.status.final and not job.outbox and not self._still_tells(people)):
            if time.monotonic() > limit:
                raise ProblemError(f"The demo did not end within {LIMIT_S:.0f} s; the job is {job.status}.")
            time.sleep(0.1)
            job = people.job(job.id)
            for line in news(job, self._told):
                self.say(line)
            if _runs(job, 0) and not broken:
                self.say(f"{self._victim}: {self._fault.says}", "bold red")
                self._break(people, job)
                broken = True
            if self._fault.everywhere and broken:
                self._thaw(people)
            if _runs(job, 1) and not finished:
                self.say("all ranks run again, from the last checkpoint on; the training ends", "green")
                for rank in job.ranks:
                    people.server.control("exit_task", task=rank.task_id, exit_code=0)
                finished = True
        return job

    def _thaw(self, people: People) -> None:
        """The demo plays the person: it reads why the fleet is frozen, and thaws it."""
        guard = permits.granted(people.side.runtime.permits)
        frozen = guard.look().frozen
        if frozen is None or not all(people.side.store.node(name).held for name in self._names):
            return
        self.say(f"the fleet is frozen: {frozen.why}; all of them wait for a permit", "bold cyan")
        permits.ask(guard, "thaw", "", by="demo", why="each GPU is broken by itself", at=people.now())
        self.say("a person thaws it: gpu-recovery fleet thaw --why 'each GPU is broken by itself'", "bold")

    def _still_tells(self, people: People) -> bool:
        """What people are told of a node that its job has left belongs to the story. The sweeper sends it."""
        return bool(people.side.store.node(self._victim).outbox)

    def _break(self, people: People, job: Job) -> None:
        for name in self._names if self._fault.everywhere else [self._victim]:
            people.server.control("health", node=name, verdict=self._fault.verdict)
        rank = next(rank for rank in job.ranks if rank.node == self._victim)
        people.server.control("exit_task", task=rank.task_id, exit_code=1)

    def _report(self, people: People, job: Job) -> bool:
        """What it took, and whether it ended as it should."""
        out, control = self._out, people.server.control
        out.print()
        out.print(f"[bold]{job.id}[/] is {styled(job.status)}: {plain(job.outcome)}")
        for phase in phases(job, people.now()):
            tail = f" (attempt {phase.attempt})" if phase.status is JobStatus.IN_PROGRESS else ""
            out.print(f"  {phase.seconds:6.1f} s  {phase.name}{tail}")
        reboots = {name: control("node", node=name)["boots"] - 1 for name in (*self._names, *self._spares)}
        told = ", ".join(
            f"{name} {times} time{'s' * (times > 1)}" for name, times in reboots.items() if times
        )
        out.print(f"  attempts {job.attempt + 1}; rebooted: {told or 'no node'}")
        bad = self._names if self._fault.everywhere else [self._victim]
        wanted = {name: int(name in bad and self._fault.verdict == 1) for name in reboots}
        good = (job.status, job.attempt, reboots) == (self._fault.status, self._fault.attempt, wanted)
        return self._end(people, good, f"{self._fault.status}, {wanted}")

    def _end(self, people: People, good: bool, expected: str) -> bool:
        """What the functions were allowed, what people were told, and whether all is as it should be."""
        out, control = self._out, people.server.control
        rights = [row for row in control("rights") if ":assumed-role/EcsGpuRecoveryStack-" in row["who"]]
        refused = [row for row in rights if not row["allowed"]]
        asked = sum(row["times"] for row in rights)
        out.print(f"  the functions needed a right {asked} times and were refused {len(refused)} times")
        for message in people.told():
            out.print(f"  message to people: {message['Subject']}", markup=False)
        good = good and not refused
        out.print("  as it should be" if good else f"  NOT as it should be: expected {expected}")
        out.print()
        return good


def _runs(job: Job, attempt: int) -> bool:
    """The functions have seen every rank run."""
    current = job.status is JobStatus.IN_PROGRESS and job.attempt == attempt
    return current and all(rank.task_id and rank.deadline is None for rank in job.ranks)


def _end_early(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo-aws", description=__doc__)
    parser.add_argument("--fault", choices=list(FAULTS), default="gpu", help="what goes wrong")
    parser.add_argument("--nodes", type=int, default=4, choices=range(2, 17), metavar="2..16")
    parser.add_argument("--spares", type=int, choices=range(5), metavar="0..4", help="[default: as needed]")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):  # whoever ends the demo early: nothing of it may run on
        signal.signal(number, _end_early)
    node.ensure()
    environment.ensure("ministack", environment.folder_of("ministack"))
    python = environment.folder_of("ministack") / "bin" / "python"
    return Show(options.fault, options.nodes, options.spares).play(python)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ProblemError, CommandFailed) as problem:
        sys.exit(f"\n{problem}")
    except KeyboardInterrupt:
        sys.exit("\nEnded early; nothing is left running.")
