"""What there is: container instances with the hosts under them, tasks, and the knobs that set the pace.

A node has two sides. The host is what really is: power, boot id, processes. The container instance is what
ECS believes: connected or not, which tasks hold which GPUs. Reports travel from the first to the second, and
may be late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

#: What a task may still be on its way to, in the order of its life.
LIVE = ("PROVISIONING", "PENDING", "ACTIVATING", "RUNNING", "DEACTIVATING", "STOPPING", "DEPROVISIONING")
EXITED = "Essential container in task exited"
BY_USER = "Task stopped by user"
SPOT = "Your Spot Task was interrupted."
OUT_OF_MEMORY = "OutOfMemoryError: Container killed due to memory usage"


@dataclass(slots=True, kw_only=True)
class Knobs:
    """How the world behaves unless a node or a task is told otherwise. Times in seconds."""

    start_s: float = 0.05  #: from placement to RUNNING
    stop_s: float = 0.05  #: from SIGTERM to the end of a well-behaved process
    kill_s: float = 0.2  #: from SIGTERM to SIGKILL for one that ignores it
    check_s: float = 0.05  #: how long a health check takes
    reboot_s: float = 0.5
    terminate_s: float = 0.5  #: until Auto Scaling has ended an instance
    launch_s: float = 1.0  #: and until the next one has registered; below 0: none can be had
    passes_tags_on: bool = True  #: whether a group gives its tags to the machines that it starts
    disconnect_s: float = 0.05  #: until ECS notices that an agent is gone
    report_s: float = 0.0  #: how long after it is back an agent tells how its tasks have ended
    command_s: float = 0.02  #: from SendCommand to the agent, and for a script to run
    stopped_visible_s: float = 3600.0
    read_lag_s: float = 0.0  #: reads see the world as it was that long ago
    throttle: bool = False  #: token buckets, as Amazon ECS has them
    all_states: bool = (
        False  #: ACTIVATING, DEACTIVATING, STOPPING and DEPROVISIONING for every task, not only awsvpc
    )
    health_events: bool = False  #: a lost agent is also told as an instance health change
    start_on_draining: bool = False  #: whether StartTask is let onto a DRAINING instance; undocumented
    check_family: str = (
        ""  #: tasks of this family are health checks too, besides those that say so themselves
    )


@dataclass(slots=True, kw_only=True)
class Reboot:
    """How the next reboots of a node go."""

    seconds: float | None = None  #: instead of `Knobs.reboot_s`
    returns: bool = True
    fast: bool = False  #: ECS sees no disconnect
    cures: bool = True  #: the fault is gone afterwards
    lose_gpus: int = 0  #: GPUs that do not come back
    exit_code: int = 137  #: of the containers that it killed: 137, 255, or 0 where the runtime lies
    deaths_first: bool | None = None  #: the dead are reported before the agent is back; None: by the seed
    forgets: bool = False  #: the agent's memory is lost: it registers as a new container instance


@dataclass(slots=True, kw_only=True)
class Resources:
    """What a task holds."""

    cpu: int = 0
    memory: int = 0
    ports: frozenset[str] = frozenset()
    gpus: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a task's main container behaves. With `after_s` None it runs until it is stopped."""

    exit_code: int | None = None
    after_s: float | None = None
    reason: str = ""  #: of the container
    pull_s: float = 0.0  #: how long the image takes to arrive
    start_error: str = ""  #: it never starts, for this reason
    lines: tuple[str, ...] = ()  #: what it writes at its end
    on_term: int | None = 143  #: exit code after SIGTERM; None: it ignores SIGTERM and is killed


@dataclass(slots=True, kw_only=True, eq=False)
class Container:
    name: str
    arn: str
    image: str
    cpu: int = 0
    memory: int | None = None
    reservation: int | None = None
    essential: bool = True
    gpu_ids: tuple[str, ...] = ()
    status: str = "PENDING"
    exit_code: int | None = None
    reason: str = ""
    runtime_id: str = ""
    digest: str = ""


@dataclass(slots=True, kw_only=True, eq=False)
class Task:
    """A task as ECS knows it, and, under `process`, what runs on the host."""

    id: str
    arn: str
    node: Node
    definition: dict[str, Any]
    containers: list[Container]
    overrides: dict[str, Any]
    env: dict[str, str]  #: of all overrides together
    holds: Resources
    created_at: float
    group: str
    started_by: str = ""
    tags: list[dict[str, str]] = field(default_factory=list)
    long_life: bool = False  #: it passes through every state, as with awsvpc
    version: int = 1
    status: str = "PENDING"
    desired: str = "RUNNING"
    stop_code: str = ""
    reason: str = ""
    times: dict[str, float] = field(default_factory=dict)
    outcome: Outcome = field(default_factory=Outcome)
    process: str = ""  #: empty, "alive" or "dead"
    views: deque[tuple[float, dict[str, Any]]] = field(default_factory=lambda: deque(maxlen=16))

    @property
    def over(self) -> bool:
        return self.status == "STOPPED"

    @property
    def main(self) -> Container:
        """The container whose end is the task's end."""
        essential = [c for c in self.containers if c.essential] or self.containers
        return next((c for c in essential if c.gpu_ids), essential[0])


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """A container instance and its host."""

    name: str
    cluster: str
    arn: str
    host_id: str  #: i-… or mi-…
    cpu: int
    memory: int
    gpus: tuple[str, ...]
    registered_at: float
    boot_id: str
    zone: str = "us-east-1a"
    status: str = "ACTIVE"
    status_reason: str = ""
    connected: bool = True  #: what ECS believes
    version: int = 2
    attributes: dict[str, str] = field(default_factory=dict)
    tags: list[dict[str, str]] = field(default_factory=list)
    impairment: tuple[str, str, float] | None = None  #: type, reason, since
    views: deque[tuple[float, dict[str, Any]]] = field(default_factory=lambda: deque(maxlen=16))
    # The host.
    up: bool = True
    terminated: bool = False
    ec2_state: str = "running"  #: what EC2 says of the machine, whatever its agent does
    group: str = ""  #: of Auto Scaling; empty: it is in none
    forgotten: bool = False  #: its host has registered anew: nobody speaks for this instance any more
    ssm_up: bool = True
    boots: int = 1
    next_reboots: deque[Reboot] = field(default_factory=deque)
    markers: dict[str, str] = field(default_factory=dict)  #: of reboots: boot id that each was ordered under
    reboot_keys: dict[str, str] = field(default_factory=dict)  #: the order's key, by its marker
    host_tags: dict[str, str] = field(default_factory=dict)  #: of the machine, as EC2 and SSM know it
    health: int = 0  #: exit code of a health check
    verdicts: deque[int] = field(default_factory=deque)  #: of the next health checks, before `health` counts
    script_results: deque[tuple[int, str, str]] = field(default_factory=deque)  #: of the next commands
    nccl: str = ""  #: what the NCCL of the task there says, if it is asked
    inbox: list[Callable[[], None]] = field(default_factory=list)  #: orders the agent has not got yet
    reports: list[Callable[[], None]] = field(default_factory=list)  #: what the agent has not told yet
    on_boot: list[Callable[[], None]] = field(default_factory=list)
    orphans: list[Task] = field(default_factory=list)  #: of its earlier registration, as far as they ran on

    @property
    def external(self) -> bool:
        return self.host_id.startswith("mi-")

    @property
    def reachable(self) -> bool:
        """The agent hears ECS, and ECS hears it."""
        return self.up and self.connected

    @property
    def ssm_online(self) -> bool:
        return self.up and self.ssm_up and not self.terminated
