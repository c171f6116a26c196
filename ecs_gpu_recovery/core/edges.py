"""Every move that exists, with the reason in a sentence. A move that is not here is a bug, not an option.

The state diagrams and tables in `docs/states.md` are drawn from these three tables. `ours` marks the moves that the
original state graphs don't draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .model import JobStatus as J
from .model import NodeStatus as N
from .model import TaskStatus as T

#: "Before" of a record that is being made.
NEW = ""


@dataclass(frozen=True, slots=True)
class Edge:
    why: str
    ours: bool = False


def _edges(*rows: tuple[StrEnum | str, StrEnum, str, bool]) -> dict[tuple[str, str], Edge]:
    return {(str(before), str(after)): Edge(why, ours) for before, after, why, ours in rows}


JOB = _edges(
    (NEW, J.IN_PROGRESS, "submitted without a check: the gang starts", False),
    (NEW, J.PENDING_HEALTHCHECK, "submitted: the nodes are examined before the first start", True),
    (J.PENDING_HEALTHCHECK, J.IN_PROGRESS, "every node passed the check before the first start", True),
    (J.IN_PROGRESS, J.COMPLETE, "every rank ended with success", False),
    (
        J.IN_PROGRESS,
        J.PENDING_HEALTHCHECK,
        "a rank died in a way a GPU fault can cause, its node was lost, or a node is to be taken away",
        False,
    ),
    (J.IN_PROGRESS, J.FAILED, "an end that no reboot can cure, or a gang that could not start", True),
    (J.IN_PROGRESS, J.USER_STOPPED, "a person stopped the job or one of its tasks", False),
    (
        J.PENDING_HEALTHCHECK,
        J.PENDING_RESTART,
        "a GPU fault that a reboot may cure, a lost node, or no fault after progress, and a restart left; or a node is"
        " to be taken away",
        False,
    ),
    (
        J.PENDING_HEALTHCHECK,
        J.FAILED,
        "no GPU fault found and no progress, no restart left, a node to replace, or a check never answered",
        False,
    ),
    (J.PENDING_HEALTHCHECK, J.USER_STOPPED, "a person stopped the job", True),
    (J.PENDING_RESTART, J.RESTARTING, "every node of the gang is back", False),
    (J.PENDING_RESTART, J.FAILED, "a node did not come back, or could not be rebooted", True),
    (J.PENDING_RESTART, J.USER_STOPPED, "a person stopped the job", True),
    (J.RESTARTING, J.IN_PROGRESS, "every rank has been started again, or a node was lost meanwhile", False),
    (J.RESTARTING, J.FAILED, "a rank could not be started again", True),
    (J.RESTARTING, J.USER_STOPPED, "a person stopped the job", True),
)

TASK = _edges(
    (NEW, T.IN_PROGRESS, "the cluster has started it", False),
    (NEW, T.TERMINATED, "it was refused or withdrawn before it ran", True),
    (T.IN_PROGRESS, T.COMPLETE, "exit code 0, and the node did not restart under it", False),
    (T.IN_PROGRESS, T.TERMINATED, "it failed, was stopped, or its node was lost", False),
)

NODE = _edges(
    (N.AVAILABLE, N.ASSIGNED, "claimed for a job", False),
    (N.ASSIGNED, N.IN_PROGRESS, "its rank has started", True),
    (N.AVAILABLE, N.IN_PROGRESS, "its rank has started again after a recovery", False),
    (N.ASSIGNED, N.PENDING_HEALTHCHECK, "the check before the first start runs", True),
    (N.PENDING_HEALTHCHECK, N.ASSIGNED, "passed the check before the first start", True),
    (N.IN_PROGRESS, N.PENDING, "its job failed; the old task is being stopped", False),
    (N.ASSIGNED, N.PENDING, "its job failed before this rank had started", True),
    (N.PENDING, N.PENDING_HEALTHCHECK, "the health check runs", False),
    (N.PENDING_HEALTHCHECK, N.REBOOTING, "the check found a GPU fault that a reboot may cure", False),
    (N.PENDING_HEALTHCHECK, N.AVAILABLE, "the check found no GPU fault, or could not run", False),
    (N.PENDING_HEALTHCHECK, N.FAILED, "the check found a fault that will not be repaired by itself", False),
    (
        N.PENDING,
        N.AVAILABLE,
        "the check could not be started: nothing is proven against it; or its gang was stopped for a planned leave",
        True,
    ),
    (N.REBOOTING, N.AVAILABLE, "rebooted, connected, all GPUs there", False),
    (
        N.REBOOTING,
        N.PENDING_HEALTHCHECK,
        "rebooted, and examined once more; or its reboot waits for a permit",
        True,
    ),
    (N.REBOOTING, N.FAILED, "did not come back in time, or not with all its GPUs", False),
    (N.IN_PROGRESS, N.AVAILABLE, "its job ended", False),
    (N.ASSIGNED, N.AVAILABLE, "its job ended before it started here", True),
    (
        N.AVAILABLE,
        N.PENDING_HEALTHCHECK,
        "a fault was seen, or a person or the schedule asked for a check",
        True,
    ),
    (N.AVAILABLE, N.REBOOTING, "a person asked for a reboot", True),
    (N.FAILED, N.REBOOTING, "a person asked for a reboot", True),
    (N.FAILED, N.PENDING_HEALTHCHECK, "a person asked for a check", True),
    (N.FAILED, N.AVAILABLE, "a person released it, with a reason", True),
    (N.UNKNOWN, N.AVAILABLE, "heard from, for the first time or again", True),
    (N.UNKNOWN, N.FAILED, "a lost node did not come back in time", True),
    (N.UNKNOWN, N.REBOOTING, "its task could not be stopped, or a person asked for a reboot", True),
    (N.UNKNOWN, N.PENDING_HEALTHCHECK, "a person asked for a check", True),
    (N.UNKNOWN, N.ASSIGNED, "claimed by another tool while it was not heard from", True),
    *(
        (before, N.UNKNOWN, "not heard from any more", True)
        for before in (N.AVAILABLE, N.ASSIGNED, N.IN_PROGRESS, N.PENDING, N.PENDING_HEALTHCHECK)
    ),
    (N.REBOOTING, N.UNKNOWN, "its machine is replaced, and gone", True),
)
