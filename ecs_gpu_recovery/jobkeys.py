"""The keys of a job, one row each: what fits, where it goes, what it is for, its option; and their fields in the form.

The job file, the options of `gpu-recovery submit`, the console's form, the API's model and docs/settings.md are made
from these two tables. A new key is one row in the first, its field in the second, and its use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from .core.setting import matching, one_of
from .own_script import LARGEST

#: How deep nodes are examined, and what that means.
LEVELS = {
    "quick": "quick: what the driver and the kernel log say",
    "1": "1: and DCGM's short tests",
    "2": "2: and DCGM's tests of some minutes",
    "3": "3: and DCGM's long tests under load",
    "4": "4: and DCGM's longest tests",
    "none": "none: skip the check",
}
#: Whether a job whose nodes are all healthy is started again.
RESTARTS = {
    "progress": "progress: restart it if it got further than before",
    "never": "never: end it",
}
#: Where a rank may go, and what that means.
FAILOVER = {
    "any": "any: a spare, or any free node of the same kind",
    "spares": "spares: a spare of the same kind",
    "none": "none: it waits for its own node",
}
#: Parts of the form.
HOW, MORE, CONTAINER = "how", "more", "container"


@dataclass(frozen=True, slots=True)
class Kind:
    """What fits."""

    type: type
    fits: Callable[[str], object] | None = None  #: of a text, or each text of a list; raises `ValueError`
    limits: tuple[int, int] | None = None
    choices: Mapping[str, str] = field(default_factory=dict)  #: with what each means
    longest: int = 4096  #: characters of a text, for the API
    entries: int = 1000  #: of a list or a table, for the API

    @property
    def control(self) -> str:
        """What a form shows for it."""
        controls = {str: "text", int: "number", bool: "check", list: "lines", dict: "lines"}
        return "select" if self.choices else controls[self.type]


@dataclass(frozen=True, slots=True)
class Input:
    """How the form asks for a key."""

    part: str
    label: str
    hint: str = ""
    first: str = ""  #: what stands there at first
    local: bool = True  #: shown in the embedded mode too


@dataclass(frozen=True, slots=True)
class JobKey:
    """One row."""

    kind: Kind
    goes_to: str  #: the part of the request, and the attribute there; empty: `jobfile` knows what to do
    about: str
    option: str = ""  #: of the command, with its short form
    replaces: tuple[
        str, ...
    ] = ()  #: keys of a job file that say the same otherwise, where the command gives this
    input: Input | None = None
    name: str = ""

    @property
    def aws(self) -> bool:
        return self.about.startswith("AWS:")


def number(least: int, most: int) -> Kind:
    return Kind(int, limits=(least, most))


def choice(choices: Mapping[str, str]) -> Kind:
    return Kind(str, one_of(*choices), choices=choices)


def _is_mount(text: str) -> None:
    if not re.fullmatch(r"/[^:]*:/[^:]+(:ro)?", text):
        raise ValueError(f"{text!r} is not HOST:CONTAINER or HOST:CONTAINER:ro, with absolute paths")


TEXT = Kind(str)
WORDS = Kind(list, longest=32_768)
NAME = Kind(
    str,
    matching(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}",
        "use 1 to 63 ASCII letters (A to Z, a to z), digits, '.', '_', '-', the first a letter or digit",
    ),
)

_ROWS = {
    "name": JobKey(NAME, "spec.name", "a short name; ASCII letters, digits, '.', '_', '-'", "--name"),
    "id": JobKey(
        NAME,
        "request.job_id",
        "the job's id; the same id is never run twice",
        "--id",
    ),
    "command": JobKey(
        WORDS,
        "spec.command",
        "the program and its arguments",
        replaces=("script", "script_text", "args"),
    ),
    "script": JobKey(
        TEXT,
        "",
        "a script of this machine instead of a command; its arguments follow. In a job file for AWS: its path"
        " in the container",
        "--script",
        ("command", "script_text"),
    ),
    "script_text": JobKey(
        Kind(str, longest=LARGEST),
        "container.script_text",
        "a script's text instead of `command`: Python, or a shell script that begins with #!",
        replaces=("command", "script"),
    ),
    "args": JobKey(WORDS, "", "arguments of `script`, or of `script_text`"),
    "nodes": JobKey(
        Kind(list, entries=4096), "request.nodes", "names of the nodes to run on", "--nodes", ("any_nodes",)
    ),
    "any_nodes": JobKey(
        number(1, 4096), "request.any_nodes", "or: how many free nodes to take", "--any", ("nodes",)
    ),
    "team": JobKey(NAME, "spec.team", "whose job it is, for messages to people", "--team"),
    "env": JobKey(Kind(dict, longest=32_768), "spec.env", "environment variables of every rank", "--env -e"),
    "workdir": JobKey(
        TEXT, "spec.workdir", "where the program starts; where you are by default", "--workdir"
    ),
    "checkpoint_dir": JobKey(
        TEXT, "spec.checkpoint_dir", "where it keeps its checkpoints", "--checkpoint-dir"
    ),
    "port": JobKey(
        number(1024, 65535),
        "spec.master_port",
        "the rendezvous port (MASTER_PORT); a free one by default",
        "--port",
    ),
    "gpus_per_node": JobKey(
        number(1, 64), "spec.gpus_per_node", "GPUs each rank takes; all of the node's by default", "--gpus"
    ),
    "memory_mib": JobKey(
        number(16, 16_777_216), "spec.memory_mib", "memory limit of each rank in MiB", "--memory"
    ),
    "check": JobKey(
        choice(LEVELS),
        "",
        f"how deep nodes are examined: {', '.join(LEVELS)} (no check before the start); the policy's by default",
        "--check",
    ),
    "max_retries": JobKey(
        number(0, 100),
        "request.max_retries",
        "restarts in a row without progress; the policy's by default",
        "--max-retries",
    ),
    "restart_when_healthy": JobKey(
        choice(RESTARTS),
        "request.restart_when_healthy",
        "when a rank dies and no GPU is at fault: `progress` restarts the job if it got further than before, `never`"
        " ends it; the policy's by default",
        "--restart-when-healthy",
    ),
    "failover": JobKey(
        choice(FAILOVER),
        "spec.failover",
        f"where a rank goes whose node is repaired: {', '.join(FAILOVER)}; the deployment's rule by default",
        "--failover",
    ),
    "fenced": JobKey(
        Kind(bool),
        "spec.fenced",
        "a rank of an older attempt writes nothing once a newer one runs, so a job of one node may leave a lost one",
    ),
    "task_definition": JobKey(
        TEXT,
        "spec.task_def",
        "AWS: the task definition to run: family, family:revision or ARN",
        "--task-definition",
        ("image", "mounts", "log_group"),
    ),
    "container": JobKey(TEXT, "spec.container", "AWS: the training container's name"),
    "image": JobKey(
        TEXT,
        "container.image",
        "AWS: the image, where no task definition is named",
        "--image",
        ("task_definition",),
    ),
    "mounts": JobKey(
        Kind(list, _is_mount, entries=100),
        "container.mounts",
        "AWS: folders of the node, as HOST:CONTAINER or HOST:CONTAINER:ro",
        "--mount",
    ),
    "shared_memory_mib": JobKey(
        number(1, 16_777_216), "container.shared_memory_mib", "AWS: size of /dev/shm in MiB"
    ),
    "infiniband": JobKey(Kind(bool), "container.infiniband", "AWS: give it the node's InfiniBand devices"),
    "log_group": JobKey(
        TEXT, "container.log_group", "AWS: the CloudWatch log group of the ranks", "--log-group"
    ),
    "task_role": JobKey(TEXT, "container.task_role", "AWS: the role of the training program"),
    "execution_role": JobKey(
        TEXT, "container.execution_role", "AWS: the role that pulls the image and writes the log"
    ),
}
#: The fields of the form. What runs, and where, the form asks in its own way.
_INPUTS = {
    "name": Input(HOW, "A short name", "ASCII letters, digits, dot, dash"),
    "team": Input(MORE, "Team", "named in messages to people"),
    "env": Input(HOW, "Variables", "One NAME=value on each line"),
    "workdir": Input(MORE, "Working folder"),
    "checkpoint_dir": Input(HOW, "Checkpoint folder", "made for the job if empty"),
    "port": Input(MORE, "Rendezvous port", "a free one if empty"),
    "gpus_per_node": Input(MORE, "GPUs of each node", "all if empty"),
    "memory_mib": Input(MORE, "Memory limit (MiB)", "none if empty"),
    "check": Input(HOW, "Check the nodes first", "as the settings say, if empty"),
    "max_retries": Input(
        HOW, "Automatic restarts", "in a row without progress; the deployment's number if empty"
    ),
    "restart_when_healthy": Input(HOW, "When no GPU is at fault", "the deployment's rule if empty"),
    "failover": Input(HOW, "When a node fails", "by how the nodes were chosen, if empty"),
    "fenced": Input(MORE, "An older attempt writes nothing"),
    "task_definition": Input(CONTAINER, "Task definition (AWS)", local=False),
    "container": Input(CONTAINER, "Container (AWS)", local=False),
    "image": Input(CONTAINER, "Container image (AWS)"),
    "mounts": Input(
        CONTAINER, "Folders of the node", "HOST:CONTAINER or HOST:CONTAINER:ro, one on each line"
    ),
    "shared_memory_mib": Input(CONTAINER, "Shared memory (MiB)"),
    "infiniband": Input(CONTAINER, "InfiniBand devices"),
    "log_group": Input(CONTAINER, "Log group"),
    "task_role": Input(CONTAINER, "Task role"),
    "execution_role": Input(CONTAINER, "Execution role"),
}
KEYS = {name: replace(row, name=name, input=_INPUTS.get(name)) for name, row in _ROWS.items()}
