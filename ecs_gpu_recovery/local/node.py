"""The agent of one node: boots, starts a shim per ordered task, settles the tasks that lost theirs.

A node is a folder and this process. The agent may be killed at any moment: tasks run on under their shims,
and the next agent of the same boot picks them up. It decides nothing about jobs; it is the ECS agent of the
embedded cluster. What it knows it reads from the folder, what it does it writes there.
"""

from __future__ import annotations

import os
import sys
import time

from . import attic, gpus, processes
from .files import (
    DamagedFile,
    Json,
    changed_at,
    create_json,
    give_room_back,
    now_iso,
    read_json,
    read_text,
    say,
    try_lock,
    write_json,
    write_reserved,
)
from .shim import FULL_DISK_PAUSE_S, NODE_RESTARTED, end_record

TICK_S = 0.05
SHIM_TRIES = 3

SHIM_KILLED = "the task's supervisor was killed, so nobody knows how the task ended"
NO_SHIM = "CannotStartContainerError: the task's supervisor ended before it could take the task"


class Agent:
    """The node's one agent, for one boot of the node."""

    def __init__(self, node_dir: str, boot_id: str) -> None:
        self.node_dir = node_dir
        self.boot_id = boot_id
        self.shims: dict[int, str] = {}
        self.tries: dict[str, int] = {}
        self.attached: dict[str, processes.ProcessId] = {}
        self.ended: set[str] = set()
        self.told: dict[str, str] = {}
        self.boot_mark = (0, 0)
        self.own_mark = (0, 0)

    def path(self, *names: str) -> str:
        return os.path.join(self.node_dir, *names)

    def run(self) -> int:
        """Boot, then look after tasks until the node is rebooted or gone."""
        processes.adopt_orphans()
        seen = self.counted_before()
        if seen is None:
            seen = self.boot()
        if not self.still_wanted():
            return 0
        self.tend_tasks()
        self.announce("ready", seen)
        while self.still_wanted():
            self.reap()
            self.tend_tasks()
            if changed_at(self.path("agent.json")) != self.own_mark:  # removed or overwritten by another hand
                self.announce("ready", seen)
            time.sleep(TICK_S)
        return 0

    def counted_before(self) -> int | None:
        """The GPUs that an earlier agent of this boot has counted; None when there was none that got so far."""
        try:
            known = read_json(self.path("agent.json")) or {}
        except DamagedFile as error:
            say(f"{error}; it is written again")
            return None
        ready = known.get("boot_id") == self.boot_id and known.get("state") == "ready"
        return known["gpus"] if ready and isinstance(known.get("gpus"), int) else None

    def boot(self) -> int:
        """Take the time a machine takes, then count the GPUs; how many there are."""
        node = read_json(self.path("node.json")) or {}
        self.announce("booting", 0)
        deadline = time.monotonic() + float(node.get("boot_seconds", 0.0))
        while self.still_wanted() and time.monotonic() < deadline:
            time.sleep(min(TICK_S, max(0.0, deadline - time.monotonic())))
        if node.get("kind") != "real":
            return gpus.count_present(self.node_dir)
        try:
            return gpus.count_real()
        except gpus.NvmlUnavailable as error:  # a node without GPUs, which its controller will notice
            say(f"no GPU can be counted: {error}")
            return 0

    def announce(self, state: str, seen: int) -> None:
        """Say who we are and how far we got, if there still is a folder to say it in. A full disk is waited for."""
        record = {
            **processes.me()._asdict(),
            "boot_id": self.boot_id,
            "state": state,
            "gpus": seen,
            "at": now_iso(),
        }
        while os.path.isdir(self.node_dir):
            try:
                self.own_mark = write_json(self.path("agent.json"), record)
                return
            except OSError as error:
                self.tell("agent.json", error)
                time.sleep(FULL_DISK_PAUSE_S)

    def tell(self, what: str, error: Exception) -> None:
        """Note a trouble in the agent's log, once for as long as it stays the same."""
        if self.told.get(what) != str(error):
            self.told[what] = str(error)
            say(f"{what}: {error}")

    def still_wanted(self) -> bool:
        """False after a reboot (another agent's time) or when the node is gone with its tasks."""
        mark = changed_at(self.path("boot.json"))
        if mark == (0, 0):
            self.end_everything()
            return False
        if mark != self.boot_mark:  # read it only when it changed
            try:
                boot = read_json(self.path("boot.json")) or {}
            except (DamagedFile, OSError) as error:  # no word of another boot: tasks need not die for it
                self.tell("boot.json", error)
                boot = {"boot_id": self.boot_id}
            if boot.get("boot_id") != self.boot_id:
                return False
            self.boot_mark = mark
        return True

    def end_everything(self) -> None:
        """Nothing of a node that is gone may run on. The kill spares its own process, so it can be last."""
        processes.kill_descendants(self.reap, patience_s=10.0)
        processes.kill_marked(processes.NODE_MARKER, self.node_dir)

    def reap(self) -> None:
        """Collect dead shims, and whatever their death left to us."""
        for pid, _ in processes.reaped():
            self.shims.pop(pid, None)

    def tend_tasks(self) -> None:
        """Start what is ordered, settle what was orphaned, leave alone what runs or has ended."""
        try:
            names = os.listdir(self.path("tasks"))
        except FileNotFoundError:
            return
        for task_id in names:
            if task_id in self.ended or self.is_in_good_hands(task_id):
                continue
            if os.path.exists(self.path("tasks", task_id, "exit.json")):
                self.ended.add(task_id)
                continue
            try:
                spec = read_json(self.path("tasks", task_id, "spec.json"))
                if spec is not None:
                    self.tend(task_id, spec)
            except (OSError, DamagedFile) as error:  # a full disk or a bad file: the other tasks go on
                self.tell(task_id, error)
        self.put_away()

    def put_away(self) -> None:
        """Let go of tasks that ended long ago, their folders and what we know of them."""
        try:
            gone = attic.tidy(self.node_dir, self.ended)
        except OSError as error:
            self.tell("past tasks", error)
            return
        for task_id in gone:
            self.ended.discard(task_id)
            for memory in (self.tries, self.attached, self.told):
                memory.pop(task_id, None)

    def is_in_good_hands(self, task_id: str) -> bool:
        """Whether its shim lives: the usual case, and cheap to see."""
        shim = self.attached.get(task_id)
        return shim is not None and processes.is_alive(shim)

    def tend(self, task_id: str, spec: Json) -> None:
        claim = read_json(self.path("tasks", task_id, "claim"))
        if claim is not None:
            if not claim.get("refused"):
                self.attached[task_id] = self.holder_of(task_id, claim)
            if not self.is_in_good_hands(task_id):
                self.settle(task_id, claim)
        elif task_id in self.shims.values():
            return  # its shim is on its way
        elif self.may_start(task_id, spec):
            self.start_shim(task_id)
        else:
            self.refuse(task_id, spec)

    def holder_of(self, task_id: str, claim: Json) -> processes.ProcessId:
        try:
            return processes.ProcessId.of(claim)
        except (LookupError, TypeError, ValueError) as error:
            raise DamagedFile(
                self.path("tasks", task_id, "claim"), f"no process is named: {error!r}"
            ) from error

    def may_start(self, task_id: str, spec: Json) -> bool:
        """Not if it was ordered in an earlier boot, or stopped already, or no shim of it ever gets going."""
        stale = spec.get("boot_id", self.boot_id) != self.boot_id
        stopped = os.path.exists(self.path("tasks", task_id, "stop"))
        return not stale and not stopped and self.tries.get(task_id, 0) < SHIM_TRIES

    def start_shim(self, task_id: str) -> None:
        task_dir = self.path("tasks", task_id)
        env = {**os.environ, processes.TASK_MARKER: task_dir, processes.NODE_MARKER: self.node_dir}
        argv = processes.python_module("ecs_gpu_recovery.local.shim", task_dir, self.boot_id)
        pid = processes.spawn_detached(argv, env, self.path("shims.log"))
        self.shims[pid] = task_id
        self.tries[task_id] = self.tries.get(task_id, 0) + 1

    def refuse(self, task_id: str, spec: Json) -> None:
        """Never start it: take the claim, for a shim of an earlier agent may still be on its way."""
        boot_id = spec.get("boot_id", self.boot_id)
        claim = {**processes.me()._asdict(), "boot_id": boot_id, "refused": True}
        if create_json(self.path("tasks", task_id, "claim"), claim):
            self.settle(task_id, claim)

    def settle(self, task_id: str, claim: Json) -> None:
        """Write the end of a task whose shim is dead or never was. First make sure nothing of it lives."""
        task_dir = self.path("tasks", task_id)
        try:
            processes.kill_marked(processes.TASK_MARKER, task_dir, patience_s=2.0)
            processes.kill_descendants(self.reap, keep=set(self.shims), patience_s=2.0)
        except processes.Unkillable as error:
            self.tell(task_id, error)
            return  # not ended yet; looked at again with the next tick
        if os.path.exists(os.path.join(task_dir, "exit.json")):
            return  # the shim had reported before it died
        write_reserved(os.path.join(task_dir, "exit.json"), self._end_of(task_dir, claim))
        give_room_back(os.path.join(task_dir, "running.json"))

    def _end_of(self, task_dir: str, claim: Json) -> Json:
        started_at = (read_json(os.path.join(task_dir, "running.json")) or {}).get("started_at")
        stop = read_text(os.path.join(task_dir, "stop"))
        refused = bool(claim.get("refused"))
        if stop is not None:
            return end_record(None if refused else 137, stop, "UserInitiated", started_at)
        if claim.get("boot_id") != self.boot_id:
            return end_record(137, NODE_RESTARTED, "EssentialContainerExited", started_at)
        if refused:
            return end_record(None, NO_SHIM, "TaskFailedToStart", None)
        return end_record(None, SHIM_KILLED, "EssentialContainerExited", started_at)


def main(arguments: list[str]) -> int:
    """NODE_DIR: be the agent of that node, if it has none."""
    if len(arguments) != 1:
        print("usage: node NODE_DIR", file=sys.stderr)
        return 2
    processes.require_proc()
    processes.close_inherited_files()
    node_dir = os.path.realpath(arguments[0])
    if not os.path.isdir(node_dir):
        print(f"there is no node folder {node_dir}", file=sys.stderr)
        return 1
    os.chdir("/")
    lock = try_lock(os.path.join(node_dir, "agent.lock"), patience_s=2.0)
    if lock is None:
        return 0  # the node has its agent
    boot = read_json(os.path.join(node_dir, "boot.json"))
    if boot is None:
        print(f"{node_dir} was never powered on", file=sys.stderr)
        return 1
    return Agent(node_dir, str(boot["boot_id"])).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
