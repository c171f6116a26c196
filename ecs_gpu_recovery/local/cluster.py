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
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import quote

from . import gpus, processes
from .files import Json, create_json, locked, now_iso, read_json, read_text, write_json, write_text
from .views import (
    MarkedProcess,
    NodeState,
    NodeView,
    RebootState,
    Refused,
    TaskSpec,
    TaskState,
    TaskView,
    checked_name,
)

SHUT_DOWN = "the cluster was shut down"
"""Why a node is off that nobody meant to lose: the next controller powers it on again."""


class Cluster:
    """All nodes below one state folder. Cheap to make; several may work on the same folder at once."""

    def __init__(self, state_dir: str | os.PathLike[str]) -> None:
        processes.require_proc()
        self._root = Path(os.path.realpath(state_dir)) / "nodes"
        self._root.mkdir(parents=True, exist_ok=True)
        self._agents: dict[str, int] = {}

    # nodes

    def create(
        self,
        name: str,
        gpus_expected: int,
        boot_seconds: float = 2.0,
        kind: str = "simulated",
        gpu_indices: tuple[int, ...] | None = None,
    ) -> None:
        """Make a node, powered off. The same node may be made again; another one under its name may not.

        `gpu_indices` gives a node of kind "real" some of the host's GPUs; None gives it all.
        """
        folder = self._root / checked_name("node", name)
        if kind not in ("simulated", "real"):
            raise ValueError(f"a node is simulated or real, not {kind!r}")
        node: Json = {"name": name, "gpus": gpus_expected, "boot_seconds": boot_seconds, "kind": kind}
        if gpu_indices is not None:
            node["gpu_indices"] = list(gpu_indices)
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
                (folder / "kmsg").touch()
            write_json(str(folder / "faults.json"), {})
            write_json(str(folder / "node.json"), node, durable=True)  # last: now the node exists

    def power_on(self, name: str) -> None:
        """Give the node its power and its agent. Does nothing to a node that runs."""
        folder = self._folder(name)
        with self._lock(name):
            if (folder / "retired").exists():
                raise Refused("MISSING", f"node {name} is retired")
            boot = read_json(str(folder / "boot.json"))
            off = (folder / "off").exists()
            if boot is None or off or boot["host_boot_id"] != processes.host_boot_id():
                gpus.forget_no_return(str(folder))
                self._boot(folder)
                (folder / "off").unlink(missing_ok=True)
            self._ensure_agent(name)

    def power_off(self, name: str, reason: str = "powered off") -> None:
        """Take the power away: everything on the node dies at once and stays dead until `power_on`."""
        folder = self._folder(name)
        with self._lock(name):
            if not (folder / "off").exists():
                write_text(str(folder / "off"), reason)
            self._kill_all(folder)

    def tend(self) -> None:
        """Start the agent of every node that should have one and has none. Call it now and then.

        This is the part of a service manager: an agent that was killed comes back, in the same boot. A node
        that is off or lost stays off.
        """
        for folder in self._folders():
            off = any((folder / name).exists() for name in ("off", "retired"))
            if not off and (folder / "boot.json").exists() and not self._agent_lives(folder):
                self.power_on(folder.name)

    def retire(self, name: str, reason: str) -> None:
        """Take a node out of the cluster for good. Its folder stays for whoever wants to read it."""
        self.power_off(name, reason)
        write_text(str(self._folder(name) / "retired"), reason)

    def nodes(self) -> list[NodeView]:
        """Every node that is not retired, by name."""
        return [self._view(folder) for folder in self._folders() if not (folder / "retired").exists()]

    def node(self, name: str) -> NodeView:
        """One node, retired or not."""
        return self._view(self._folder(name))

    def shutdown(self) -> None:
        """Power off every node: afterwards nothing of this cluster runs."""
        for folder in self._folders():
            self.power_off(folder.name, SHUT_DOWN)
        self._reap()

    # tasks

    def start_task(self, name: str, spec: TaskSpec) -> None:
        """Order a task. Ordering it again changes nothing, and after a stop it never starts.

        Raises Refused as ECS would: AGENT while the node is not connected, RESOURCE:GPU while live tasks hold
        the GPUs, MISSING for a node that is not there.
        """
        folder = self._folder(name)
        task_dir = folder / "tasks" / checked_name("task", spec.task_id)
        with self._lock(name):
            if (task_dir / "spec.json").exists() or (task_dir / "stop").exists():
                return
            node = self._view(folder)
            if not node.connected:
                raise Refused("AGENT", f"the agent of node {name} is not connected")
            held = sum(task.gpus for task in self.tasks(name, live_only=True))
            if spec.gpus and held + spec.gpus > node.gpus_seen:
                raise Refused("RESOURCE:GPU", f"node {name} has {node.gpus_seen} GPUs and {held} are in use")
            task_dir.mkdir(exist_ok=True)
            write_json(str(task_dir / "spec.json"), self._order(folder, node, spec), durable=True)

    def stop_task(self, name: str, task_id: str, reason: str) -> None:
        """Order the end of a task. The first reason stays. A task not yet ordered will never start."""
        task_dir = self._folder(name) / "tasks" / checked_name("task", task_id)
        with self._lock(name):
            if (task_dir / "exit.json").exists() or (task_dir / "stop").exists():
                return
            task_dir.mkdir(exist_ok=True)
            write_text(str(task_dir / "stop"), reason, durable=True)

    def task(self, name: str, task_id: str) -> TaskView:
        """One task, also one that was never ordered."""
        return self._task_view(name, self._folder(name) / "tasks" / checked_name("task", task_id))

    def tasks(self, name: str, live_only: bool = False) -> list[TaskView]:
        """The tasks of a node, by id."""
        folders = sorted((self._folder(name) / "tasks").iterdir())
        if live_only:  # most have ended long ago: do not read them all
            folders = [folder for folder in folders if not (folder / "exit.json").exists()]
        found = [self._task_view(name, folder) for folder in folders]
        return [task for task in found if task.live or not live_only]

    # reboots

    def reboot(self, name: str, key: str) -> None:
        """Reboot a node, once per key, however often this is called and wherever a caller died.

        The marker remembers the boot the order was meant for: as long as that boot lasts the order is not
        carried out. A node without power hears no order; when it is powered on, it has booted anyway.
        """
        folder = self._folder(name)
        with self._lock(name):
            boot = read_json(str(folder / "boot.json")) or {"boot_id": None}
            marker = {"key": key, "old_boot_id": boot["boot_id"], "at": now_iso()}
            create_json(self._marker(folder, key), marker, durable=True)
            order = read_json(self._marker(folder, key)) or marker
            if (folder / "off").exists() or boot["boot_id"] is None:
                return
            if order["old_boot_id"] == boot["boot_id"]:
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
        boot = read_json(str(folder / "boot.json")) or {}
        ready = agent.get("state") == "ready" and agent.get("boot_id") == boot.get("boot_id")
        return RebootState.DONE if ready and boot["boot_id"] != order["old_boot_id"] else RebootState.PENDING

    # faults

    def inject(
        self, name: str, fault: str, gpu: int = 0, xid: int | None = None, speed: float = 0.25
    ) -> None:
        """Break something on a node; `gpus.FAULTS` says what there is. `speed` is for the fault "slow"."""
        if fault not in gpus.FAULTS:
            raise ValueError(f"unknown fault {fault!r}; there are: {', '.join(gpus.FAULTS)}")
        if fault == "lost":
            self.power_off(name, "lost")
            return
        folder = self._folder(name)
        running = [task for task in self.tasks(name, live_only=True) if task.kind == "train"]
        record = read_json(str(running[0].folder / "running.json")) if running else None
        with self._lock(name):
            gpus.inject(str(folder), fault, gpu, xid, speed, record["pid"] if record else None)

    def clear_faults(self, name: str) -> None:
        """Take all faults of a node back. A lost node stays off until it is powered on."""
        with self._lock(name):
            gpus.clear(str(self._folder(name)))

    # what runs

    def processes(self) -> list[MarkedProcess]:
        """Every living process of this cluster: agents, shims, tasks and whatever they left behind."""
        found = []
        for folder in self._folders():
            for pid in processes.marked(processes.NODE_MARKER, str(folder)):
                task_dir = processes.marker_of(pid, processes.TASK_MARKER)
                task_id = os.path.basename(task_dir) if task_dir else None
                found.append(MarkedProcess(pid=pid, node=folder.name, task_id=task_id))
        return found

    def strays(self) -> list[MarkedProcess]:
        """Processes that nothing accounts for: of a task that has ended, or of a node that is off."""
        found = []
        for process in self.processes():
            off = self.node(process.node).state is NodeState.OFF
            if off or (process.task_id and not self.task(process.node, process.task_id).live):
                found.append(process)
        return found

    # inside

    def _folder(self, name: str) -> Path:
        folder = self._root / name
        if not (folder / "node.json").exists():
            raise Refused("MISSING", f"there is no node {name}")
        return folder

    def _folders(self) -> list[Path]:
        return sorted(path.parent for path in self._root.glob("*/node.json"))

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
        if spec.gpu_indices is not None:
            order["gpu_indices"] = list(spec.gpu_indices)
            if node.kind == "real":
                order["env"].setdefault("CUDA_VISIBLE_DEVICES", ",".join(map(str, spec.gpu_indices)))
        if spec.memory_mib is not None:
            order["memory_mib"] = spec.memory_mib
        return order

    def _view(self, folder: Path) -> NodeView:
        node = read_json(str(folder / "node.json")) or {}
        agent = read_json(str(folder / "agent.json"))
        boot = read_json(str(folder / "boot.json"))
        off = read_text(str(folder / "off"))
        lives = agent is not None and processes.is_alive(processes.ProcessId.of(agent))
        current = lives and agent is not None and boot is not None and agent["boot_id"] == boot["boot_id"]
        if off is not None or boot is None:
            state = NodeState.OFF
        elif not current:
            state = NodeState.DOWN
        else:
            state = NodeState(agent["state"]) if agent else NodeState.DOWN
        return NodeView(
            name=folder.name,
            kind=str(node.get("kind", "simulated")),
            connected=state is NodeState.READY,
            state=state,
            boot_id=boot["boot_id"] if boot else None,
            gpus_expected=int(node.get("gpus", 0)),
            gpus_seen=int(agent["gpus"]) if agent else 0,
            pid=int(agent["pid"]) if agent and lives else None,
            since=agent["at"] if agent else None,
            why_off=off if off is not None or boot else "never powered on",
            folder=folder,
        )

    def _task_view(self, name: str, task_dir: Path) -> TaskView:
        end = read_json(str(task_dir / "exit.json"))  # first: a task that ended meanwhile is ended
        spec = read_json(str(task_dir / "spec.json"))
        running = read_json(str(task_dir / "running.json"))
        stop = read_text(str(task_dir / "stop"))
        if end is None and spec is None and stop is not None:
            end = {"exit_code": None, "reason": stop, "stop_code": "UserInitiated", "started_at": None}
        known, ended = spec or {}, end or {}
        if end is not None:
            state = TaskState.ENDED
        elif running is not None:
            state = TaskState.RUNNING
        else:
            state = TaskState.ABSENT if spec is None else TaskState.PENDING
        return TaskView(
            task_id=task_dir.name,
            node=name,
            state=state,
            kind=known.get("kind"),
            job=known.get("job"),
            attempt=known.get("attempt"),
            rank=known.get("rank"),
            gpus=int(known.get("gpus", 0)),
            exit_code=ended.get("exit_code"),
            reason=ended.get("reason"),
            stop_code=ended.get("stop_code"),
            stop_ordered=stop is not None,
            started_at=(running or ended).get("started_at"),
            ended_at=ended.get("ended_at"),
            folder=task_dir,
            log=task_dir / "log",
        )

    def _agent_lives(self, folder: Path) -> bool:
        agent = read_json(str(folder / "agent.json"))
        return agent is not None and processes.is_alive(processes.ProcessId.of(agent))

    def _boot(self, folder: Path) -> None:
        """A new boot of a node on which nothing runs. The boot id is written last: it is the commit."""
        self._kill_all(folder)
        old = read_json(str(folder / "boot.json")) or {}
        boot_id = str(uuid.uuid4())
        gpus.boot(str(folder), old.get("boot_id"), boot_id)
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
