"""What the end of a task means. The reason speaks before the exit code; an exit code alone proves little."""

from __future__ import annotations

from .events import TaskEnded
from .model import Exit
from .policy import Policy

#: Every stop of ours begins so; the job and the attempt follow.
OUR_REASON = "gpu-recovery"
_OURS = (OUR_REASON, "ecs-gpu-recovery")  # the second: what older tools of this family wrote
#: Refusals that pass by themselves: the agent reconnects, the old task frees its GPUs.
PASSING = ("AGENT", "RESOURCE")
_OUT_OF_MEMORY = ("outofmemory", "out of memory", "oom-kill", "oomkilled")
_NEVER_RAN = (
    "CannotPull",
    "CannotCreate",
    "CannotStart",
    "ResourceInitializationError",
    "ContainerNetworkingError",
    "TaskStoppedBeforePullBegin",
    "TaskDependencyError",
)
#: What the container runtime says of a GPU that it was told to hand out and cannot find, or that does not answer it.
#: The words are nvidia-container-cli's, for errors of devices, of its start and of its search; the last are of CDI.
_GPU_GONE = (
    "gpu is lost",
    "unknown device",
    "fallen off the bus",
    "requires reset",
    "nvml error: unknown error",
    "driver rpc error: timed out",
    "unresolvable cdi devices",
)
_NODE_GONE = ("SpotInterruption", "TerminationNotice")


def our_reason(job_id: str, attempt: int, why: str) -> str:
    """The text of a stop of ours, so that a sibling's end is never taken for a person's doing."""
    return f"{OUR_REASON} {job_id}/{attempt}: {why}"[:255]


def is_passing(reason: str) -> bool:
    """A refusal worth another try."""
    return reason.removeprefix("TaskFailedToStart:").strip().startswith(PASSING)


def is_gone(reason: str) -> bool:
    """A refusal because the cluster does not know the machine any more."""
    return reason.startswith("MISSING")


def was_killed(code: int | None) -> bool:
    """By a signal: a shell, a container runtime and our own nodes add its number to 128."""
    return code is not None and 128 < code < 160


def host_gone(ev: TaskEnded) -> bool:
    """The machine itself was taken away, whatever the cluster still says about its agent."""
    return ev.stop_code in _NODE_GONE or ("Host EC2" in ev.reason and "terminated" in ev.reason)


def classify(ev: TaskEnded, *, doubted: bool, policy: Policy) -> Exit:
    """Decide by reason and stop code first, then by exit code, and believe a 0 only where nothing speaks against it."""
    reason = ev.reason
    if ev.stop_code == "UserInitiated" and reason.startswith(_OURS):
        return Exit.STOPPED_BY_US  # first: our reason may quote what happened to another rank
    if any(word in reason.lower() for word in _OUT_OF_MEMORY):
        return Exit.OUT_OF_MEMORY
    if host_gone(ev):
        return Exit.LOST
    if ev.stop_code == "TaskFailedToStart" or (ev.exit_code is None and any(w in reason for w in _NEVER_RAN)):
        lost = any(words in reason.lower() for words in _GPU_GONE)
        return Exit.SUSPECT if lost else Exit.NEVER_STARTED
    if ev.stop_code == "UserInitiated":
        return Exit.STOPPED_BY_PERSON
    if ev.exit_code is None:
        return Exit.LOST
    if doubted and ev.exit_code in (0, 137, 143, 255):
        return Exit.LOST
    if ev.exit_code == 0:
        return Exit.DONE
    return Exit.SUSPECT if ev.exit_code in policy.healthcheck_exit_codes else Exit.FAULT
