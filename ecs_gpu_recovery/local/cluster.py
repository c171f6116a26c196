"""The embedded cluster: nodes as supervised processes on this machine, driven by files.

Nothing here lives in memory. A controller can be killed between any two lines, and a new one that makes the
same call finishes what was begun: every order is a file that appears whole, and every order carries a name
by which a second one is recognised. Nodes and tasks do not notice that their controller is gone.

No order touches the host: a reboot ends the node's processes and starts its agent again.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Container
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

from ..own_folder import own_folder
from . import attic, gpus, processes
from .files import DamagedFile, Json, create_json, locked, now_iso, read_json, write_json, write_text
from .records import node_view, read_agent, read_boot, task_view
from .views import (
    NodeRefused,
    NodeView,
    RebootState,
    TaskSpec,
    TaskView,
    checked_name,
)

SHUT_DOWN = "the cluster was shut down"
"""Why a node is off that was not lost: the next controller powers it on again."""
#: So long before it is taken away, a node says so.
NOTICE = timedelta(seconds=20)


class Cluster:
    """All nodes below one state folder. Cheap to make; several may work on the same folder at once."""

    def __init__(self, state_dir: str | os.PathLike[str]) -> None:
        processes.require_proc()
        state = Path(os.path.realpath(state_dir))
        own_folder(state)
        self._root = state / "nodes"
        self._root.mkdir(exist_ok=True, mode=0o700)
        self._agents: dict[str, int] = {}

    # nodes

    def create(
        self, name: str, gpus_expected: int, boot_seconds: float = 2.0, kind: str = "simulated"
    ) -> None:
        """Make a node, powered off. The same node may be made again; another one under its name may not."""
        folder = self._root / checked_name("node", name)
        if kind not in ("simulated", "real"):
            raise ValueError(f"a node is simulated or real, not {kind!r}")
        node: Json = {"name": name, "gpus": gpus_expected, "boot_seconds": boot_seconds, "kind": kind}
        folder.mkdir(exist_ok=True)
        with self._lock(name):
            known = read_json(str(folder / "node.json"))
            if known is not None:
                if known != node:
                    raise ValueError(f"node {name} exists and is another: {known}")
                return
            (folder / "tasks").mkdir(exist_ok=True)
            (folder / "reboots").mkdir(exist_ok=True)
            if kind == "simulated":
                write_json(str(folder / "gpus.json"), gpus.simulated(name, gpus_expected))
                (folder / "kmsg").touch(mode=0o600)
            write_json(str(folder / "faults.json"), {})
            write_json(str(folder / "node.json"), node, durable=True)  # last: now the node exists

    def power_on(self, name: str) -> None:
        """Give the node its power and its agent. Does nothing to a node that runs."""
        folder = self._folder(name)
        with self._lock(name):
            boot = read_boot(folder)
            off = (folder / "off").exists()
            if boot is None or off or boot["host_boot_id"] != processes.host_boot_id():
                gpus.forget_no_return(str(folder))
                self._boot(folder)
                (folder / "leaving").unlink(missing_ok=True)
                (folder / "off").unlink(missing_ok=True)
            self._ensure_agent(name)

    def power_off(self, name: str, reason: str = "powered off") -> None:
        """Take the power away: everything on the node dies at once and stays dead until `power_on`."""
        folder = self._folder(name)
        with self._lock(name):
            if not (folder / "off").exists():
                write_text(str(folder / "off"), reason)
            self._kill_all(folder)

    def tend(self) -> dict[str, Exception]:
        """Start the agent of every node that should have one and has none. Call it now and then.

        This is the part of a service manager: an agent that was killed comes back, in the same boot. A node
        that is off or lost stays off. What keeps a node from coming back is told by the node's name; it does
        not keep the others.
        """
        trouble: dict[str, Exception] = {}
        for folder in self._folders():
            try:
                if (folder / "leaving").exists() and node_view(folder).is_over(datetime.now(UTC)):
                    self.power_off(folder.name, "taken away, as announced")
                if (
                    not (folder / "off").exists()
                    and (folder / "boot.json").exists()
                    and not self._agent_lives(folder)
                ):
                    self.power_on(folder.name)
            except (OSError, DamagedFile, NodeRefused, processes.Unkillable) as exc:
                trouble[folder.name] = exc
        return trouble

    def nodes(self) -> list[NodeView]:
        """Every node, by name."""
        return [node_view(folder) for folder in self._folders()]

    def node(self, name: str) -> NodeView:
        return node_view(self._folder(name))

    def shutdown(self, keep: Container[str] = ()) -> None:
        """Power off every node, except those to keep: afterwards nothing of this cluster runs but them."""
        for folder in self._folders():
            if folder.name in keep:
                continue
            try:
                self.power_off(folder.name, SHUT_DOWN)
            except OSError:  # no room for the note: without it the next controller only finds the agent dead
                self._kill_all(folder)
        self._reap()

    # tasks

    def start_task(self, name: str, spec: TaskSpec) -> None:
        """Order a task. Ordering it again changes nothing, and after a stop it never starts.

        Raises NodeRefused as ECS would: AGENT while the node is not connected, RESOURCE:GPU while live tasks hold
        the GPUs, MISSING for a node that is not there.
        """
        folder = self._folder(name)
        task_dir = folder / "tasks" / checked_name("task", spec.task_id)
        with self._lock(name):
            if any(
                path.exists() for path in (task_dir / "spec.json", task_dir / "stop", self._past(task_dir))
            ):
                return
            node = node_view(folder)
            if not node.connected:
                raise NodeRefused("AGENT", f"the agent of node {name} is not connected")
            held = sum(task.gpus for task in self.tasks(name, live_only=True))
            if spec.gpus and held + spec.gpus > node.gpus_seen:
                raise NodeRefused(
                    "RESOURCE:GPU", f"node {name} has {node.gpus_seen} GPUs and {held} are in use"
                )
            task_dir.mkdir(exist_ok=True)
            write_json(str(task_dir / "spec.json"), self._order(folder, node, spec), durable=True)

    def stop_task(self, name: str, task_id: str, reason: str) -> None:
        """Order the end of a task. The first reason stays. A task not yet ordered will never start."""
        task_dir = self._folder(name) / "tasks" / checked_name("task", task_id)
        with self._lock(name):
            if any(
                path.exists() for path in (task_dir / "exit.json", task_dir / "stop", self._past(task_dir))
            ):
                return
            task_dir.mkdir(exist_ok=True)
            write_text(str(task_dir / "stop"), reason, durable=True)

    def task(self, name: str, task_id: str) -> TaskView:
        """One task, also one that was never ordered."""
        task_dir = self._folder(name) / "tasks" / checked_name("task", task_id)
        found = task_view(name, task_dir)
        past = self._past(task_dir)  # looked for last: it may have been moved while we read
        return task_view(name, past) if past.is_dir() else found

    def tasks(self, name: str, live_only: bool = False) -> list[TaskView]:
        """The tasks of a node, by id."""
        node_dir = self._folder(name)
        if live_only:  # most have ended long ago: do not read them all
            there = [entry for entry in (node_dir / "tasks").iterdir() if not (entry / "exit.json").exists()]
            found = [task_view(name, folder) for folder in sorted(there)]
            return [task for task in found if task.live]
        ids = {entry.name for place in ("tasks", "past") for entry in (node_dir / place).glob("*")}
        return [self.task(name, task_id) for task_id in sorted(ids)]

    # reboots

    def reboot(self, name: str, key: str) -> None:
        """Reboot a node, once per key, however often this is called and wherever a caller died.

        The marker remembers the boot the order was meant for: as long as that boot lasts the order is not
        carried out. A node without power hears no order; when it is powered on, it has booted anyway.
        """
        folder = self._folder(name)
        with self._lock(name):
            boot = read_boot(folder)
            boot_id = boot["boot_id"] if boot else None
            marker = {"key": key, "old_boot_id": boot_id, "at": now_iso()}
            if create_json(self._marker(folder, key), marker, durable=True):
                attic.tidy_reboots(self._marker(folder, key))
            order = read_json(self._marker(folder, key)) or marker
            if (folder / "off").exists() or boot_id is None:
                return
            if order.get("old_boot_id") == boot_id:
                self._kill_all(folder)
                if gpus.never_returns(str(folder)):
                    write_text(str(folder / "off"), "did not come back from its reboot")
                    return
                self._boot(folder)
            self._ensure_agent(name)

    def reboot_state(self, name: str, key: str) -> RebootState:
        """Whether the node has come back in a new boot since that order."""
        folder = self._folder(name)
        order = read_json(self._marker(folder, key))
        if order is None:
            return RebootState.NONE
        agent = read_json(str(folder / "agent.json")) or {}
        boot = read_boot(folder)
        ready = boot is not None and agent.get("state") == "ready" and agent.get("boot_id") == boot["boot_id"]
        done = boot is not None and ready and boot["boot_id"] != order.get("old_boot_id")
        return RebootState.DONE if done else RebootState.PENDING

    # faults

    def inject(
        self, name: str, fault: str, gpu: int = 0, xid: int | None = None, speed: float = 0.25
    ) -> None:
        """Break something on a node; `gpus.FAULTS` says what there is. `speed` is for the fault "slow"."""
        if fault not in gpus.FAULTS:
            raise ValueError(
                f"unknown fault {fault!r}; there are: {', '.join(gpus.FAULTS)}; clear and power-on take them back"
            )
        if fault == "lost":
            self.power_off(name, "lost")
            return
        folder = self._folder(name)
        if fault == "leaving":
            with self._lock(name):
                write_text(str(folder / "leaving"), (datetime.now(UTC) + NOTICE).isoformat())
            return
        running = [task for task in self.tasks(name, live_only=True) if task.kind == "train"]
        record = read_json(str(running[0].folder / "running.json")) if running else None
        with self._lock(name):
            gpus.inject(str(folder), fault, gpu, xid, speed, record["pid"] if record else None)

    def clear_faults(self, name: str) -> None:
        """Take all faults of a node back. A lost node stays off until it is powered on."""
        with self._lock(name):
            gpus.clear(str(self._folder(name)))
            (self._folder(name) / "leaving").unlink(missing_ok=True)

    # inside

    def _folder(self, name: str) -> Path:
        folder = self._root / name
        if not (folder / "node.json").exists():
            raise NodeRefused("MISSING", f"there is no node {name}")
        return folder

    def _folders(self) -> list[Path]:
        return sorted(path.parent for path in self._root.glob("*/node.json"))

    def _past(self, task_dir: Path) -> Path:
        return task_dir.parent.parent / "past" / task_dir.name

    def _lock(self, name: str) -> AbstractContextManager[None]:
        return locked(str(self._root / name / "lock"))

    def _marker(self, folder: Path, key: str) -> str:
        """A key may hold any sign and have any length; a file name may not."""
        safe = quote(key, safe="")
        if len(safe) > 150:
            safe = f"{safe[:80]}.{hashlib.sha256(key.encode()).hexdigest()}"
        return str(folder / "reboots" / f"{safe}.json")

    def _order(self, folder: Path, node: NodeView, spec: TaskSpec) -> Json:
        """The content of spec.json. It is good for this boot only, and feels only hits still to come."""
        order: Json = {
            "task_id": spec.task_id,
            "kind": spec.kind,
            "argv": list(spec.argv),
            "env": dict(spec.env),
            "cwd": spec.cwd or str(folder / "tasks" / spec.task_id),
            "gpus": spec.gpus,
            "stop_timeout_s": spec.stop_timeout_s,
            "job": spec.job,
            "attempt": spec.attempt,
            "rank": spec.rank,
            "boot_id": node.boot_id,
            "hit_seq": gpus.hit_seq(str(folder)),
            "ordered_at": now_iso(),
        }
        if spec.memory_mib is not None:
            order["memory_mib"] = spec.memory_mib
        return order

    def _agent_lives(self, folder: Path) -> bool:
        agent = read_agent(folder)
        return agent is not None and processes.is_alive(agent.process)

    def _boot(self, folder: Path) -> None:
        """A new boot of a node on which nothing runs. The boot id is written last: it is the commit."""
        self._kill_all(folder)
        old = read_boot(folder)
        boot_id = str(uuid.uuid4())
        gpus.boot(str(folder), old["boot_id"] if old else None, boot_id)
        attic.tidy_logs(str(folder))
        boot = {"boot_id": boot_id, "host_boot_id": processes.host_boot_id(), "at": now_iso()}
        write_json(str(folder / "boot.json"), boot, durable=True)

    def _kill_all(self, folder: Path) -> None:
        processes.kill_marked(processes.NODE_MARKER, str(folder))
        self._reap()

    def _ensure_agent(self, name: str) -> None:
        """Start an agent unless one lives. If two are started, the lock of the node leaves only one."""
        self._reap()
        folder = self._root / name
        if self._agent_lives(folder) or name in self._agents:
            return
        real = (read_json(str(folder / "node.json")) or {}).get("kind") == "real"
        argv = processes.python_module("ecs_gpu_recovery.local.node", str(folder), packages=real)
        env = {**os.environ, processes.NODE_MARKER: str(folder)}
        env.pop(processes.TASK_MARKER, None)
        self._agents[name] = processes.spawn_detached(argv, env, str(folder / "agent.log"))

    def _reap(self) -> None:
        """Collect agents of ours that have ended, so that they do not stay as zombies."""
        for name, pid in list(self._agents.items()):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended = pid
            if ended and self._agents.get(name) == pid:
                del self._agents[name]
