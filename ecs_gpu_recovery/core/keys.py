"""Every order's key and every task's token: how they are made, and how they are read again.

A key says what its order means, so the same order has the same key whoever makes it, and whenever. Orders and tasks of
an older release may be under way during an upgrade: no spelling here may ever change.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .model import Rank
    from .node_record import Node

#: How the name of an archive ends, and that of one with what was seen of a hang.
ARCHIVE, HANG_ARCHIVE = ".tar.gz", ".hang.tar.gz"


def token(key: str, salt: str = "") -> str:
    """A name for a task that fits ECS's `startedBy` (36 characters) and is the same every time it is made.

    The salt is the record's own. So nobody can guess the name, and two stacks on one cluster whose jobs have the same
    id give different ones. Records of older releases have none.
    """
    salted = f"{key}#{salt}" if salt else key
    return "gr-" + hashlib.sha256(salted.encode()).hexdigest()[:32]


def record_of_node(name: str) -> str:
    """How a node's record is called where a job's record is called by the job's id."""
    return f"node/{name}"


#: A rank is started more often than this in no attempt: its waits between two tries grow, and its deadline stays.
MOST_TRIES = 64

# -- a job's orders --------------------------------------------------------------------------------------------
# The task of a rank belongs to `rank.task_attempt`; the job's own number is ahead of it while nodes are awaited.


def start(job_id: str, rank: Rank) -> str:
    return f"{job_id}/{rank.task_attempt}/{rank.index}/start/{rank.start_try}"


def start_token(job_id: str, rank: Rank, salt: str = "") -> str:
    return token(f"{job_id}/{rank.task_attempt}/{rank.index}/train/{rank.start_try}", salt)


def is_start_token(said: str, job_id: str, attempt: int, rank: int, salt: str = "") -> bool:
    """Whether it is of any start of this rank in this attempt."""
    tries = (
        token(f"{job_id}/{attempt}/{rank}/train/{start_try}", salt) for start_try in range(1, MOST_TRIES)
    )
    return said in tries


def stop(job_id: str, rank: Rank) -> str:
    return f"{job_id}/{rank.task_attempt}/{rank.index}/stop/{rank.start_try}"


def ghost_stop(job_id: str, task_id: str) -> str:
    return f"{job_id}/ghost/{task_id}"


def check(job_id: str, rank: Rank) -> str:
    """Its tries count over the whole life of the job, so no attempt is named."""
    return f"{job_id}/{rank.index}/check/{rank.check_try}"


def reboot(job_id: str, attempt: int, rank: int, before: int = 0) -> str:
    """The attempt is the job's own, for which the node is repaired, and `before` how often one was for it already."""
    return f"{job_id}/{attempt}/{rank}/reboot" + (f"/{before}" if before else "")


def halt(job_id: str, attempt: int) -> str:
    """Of the permit to stop a gang of which no rank has ended."""
    return f"{job_id}/{attempt}/halt"


def job_failed(job_id: str) -> str:
    return f"{job_id}/notify/failed"


def gang_stuck(job_id: str) -> str:
    return f"{job_id}/notify/stuck"


def job_waits(job_id: str, attempt: int) -> str:
    return f"{job_id}/notify/waits.{attempt}"


def nodes_unresponsive(job_id: str) -> str:
    return f"{job_id}/notify/unresponsive"


def hang_stop(job_id: str, attempt: int) -> str:
    """Of the permit to stop a gang that hangs."""
    return f"{job_id}/{attempt}/hang"


def hang_look(job_id: str, attempt: int, node: str, *, last: bool) -> str:
    """Of a look at one rank. No time is in it: an attempt has a first look and a last one, whoever orders them."""
    return f"{hang_stop(job_id, attempt)}/{node}" + ("/last" if last else "")


def job_may_hang(job_id: str, attempt: int) -> str:
    return f"{job_id}/{attempt}/notify/hang"


def job_trains_again(job_id: str, attempt: int) -> str:
    return f"{job_id}/{attempt}/notify/trains"


# -- a node's own orders ---------------------------------------------------------------------------------------


def node_check(node: Node) -> str:
    return f"{record_of_node(node.name)}/check/{node.check_try}"


def node_reboot(name: str, errand: int) -> str:
    return f"{record_of_node(name)}/reboot/{errand}"


def node_replace(name: str, errand: int) -> str:
    return f"{record_of_node(name)}/replace/{errand}"


def node_condemned(name: str, at: datetime) -> str:
    """Of a fault that was found on a node and that nobody repairs, as the guard counts it."""
    return f"{record_of_node(name)}/condemned/{at.timestamp():.0f}"


def is_condemned(key: str, name: str) -> bool:
    return key.startswith(f"{record_of_node(name)}/condemned/")


def node_failed(name: str, errand: int) -> str:
    return f"{record_of_node(name)}/notify/{errand}"


def unreadable_file(node: str, why: str) -> str:
    return f"{record_of_node(node)}/file/{hashlib.sha256(why.encode()).hexdigest()[:12]}"


# -- the guard's messages --------------------------------------------------------------------------------------


def frozen(cluster: str, trip: int) -> str:
    return f"fleet/{cluster}/frozen/{trip}"


def permit_wanted(key: str) -> str:
    """Of the message that the order with this key waits for a person's yes."""
    return f"{key}/permit"


# -- what no record orders -------------------------------------------------------------------------------------


def dead_letter(letter_id: str) -> str:
    """Of the message that a letter was put away."""
    return f"letter/{letter_id}/discarded"


def bad_record(kind: str, name: str, why: str) -> str:
    """Of the message that a record can't be worked on. What else is wrong with it later is another message."""
    return f"{kind}/{name}/bad/{hashlib.sha256(why.encode()).hexdigest()[:12]}"


def agents_token(cluster: str, family: str) -> str:
    """All agents of a cluster carry it. One list by it finds them all."""
    return token(f"metrics-agent/{cluster.rpartition('/')[2]}/{family}")


# -- of both ---------------------------------------------------------------------------------------------------


def archive(record: str, version: int) -> str:
    return f"{record}/archive/{version}"


def check_stop(check_key: str) -> str:
    return f"{check_key}/stop"


def evidence(key: str) -> str:
    """The archive of what is kept for this reboot or look: a file name whatever the job is called."""
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    ending = HANG_ARCHIVE if re.match(r"[^/]+/\d+/hang/", key) else ARCHIVE
    return f"{re.sub('[^A-Za-z0-9._-]', '_', key)[:80]}.{digest}{ending}"


def stuck(key: str) -> str:
    """Of the message that the order with this key keeps failing."""
    return f"{key}/stuck"


# -- reading ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key taken apart. `node` is set for a node's own order, `job` for a job's; -1 stands where nothing is said."""

    kind: str  #: start, stop, check, reboot, replace, ghost, archive, notify
    job: str = ""
    node: str = ""
    attempt: int = -1
    rank: int = -1
    last: str = ""  #: the try, the errand, the version, the task, or what is told
    then: str = ""  #: "stop" of a check that is withdrawn, "stuck" of a message about this very order


_THEN = r"(?P<then>(/stop)?(/stuck)?)"
_OF_NODE = r"node/(?P<node>.+)/"
_OF_JOB = r"(?P<job>.+)/"
_SHAPES = tuple(
    re.compile(shape + _THEN, re.DOTALL)
    for shape in (
        _OF_NODE + r"(?P<kind>check|reboot|replace|notify|archive)/(?P<last>\d{1,9})",
        _OF_JOB + r"(?P<attempt>\d{1,9})/(?P<rank>\d{1,9})/(?P<kind>start|stop)/(?P<last>\d{1,9})",
        _OF_JOB + r"(?P<attempt>\d{1,9})/(?P<rank>\d{1,9})/(?P<kind>reboot)(/(?P<last>\d{1,9}))?",
        _OF_JOB + r"(?P<rank>\d{1,9})/(?P<kind>check)/(?P<last>\d{1,9})",
        _OF_JOB + r"(?P<kind>archive)/(?P<last>\d{1,9})",
        _OF_JOB + r"(?P<kind>ghost|notify)/(?P<last>[^/]+)",
    )
)


def parse(key: str) -> Key | None:
    """What a key says; None if it is none of ours. Names may hold a slash, so it is read from the end."""
    for shape in _SHAPES:
        if found := shape.fullmatch(key):
            said = found.groupdict(default="")
            return Key(
                kind=said["kind"],
                job=said.get("job", ""),
                node=said.get("node", ""),
                attempt=int(said.get("attempt", -1)),
                rank=int(said.get("rank", -1)),
                last=said.get("last", ""),
                then=said["then"].lstrip("/"),
            )
    return None
