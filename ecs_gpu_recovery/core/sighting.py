"""What is seen of a machine: the cluster's word about it, and what its kernel log says."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from .draft import RecordDraft
from .events import FaultSeen, NodeSeen
from .model import Leave, MachineRecord, NodeStatus, Notice

#: How a timeline tells that a node is to be taken away, that it may be, and that it is not.
LEAVES, MAY_LEAVE, STAYS = "is to be taken away", "may be taken away soon", "is not taken away after all"
#: A machine that is there so long after it should have been taken away was not, or is back.
STAYED = timedelta(minutes=10)


def changes(record: MachineRecord, ev: NodeSeen, at: datetime) -> dict[str, Any] | None:
    """What a sighting says of the machine; None if it is older than what is known, or of another registration."""
    if not ev.concerns(record) or (ev.version and ev.version < record.seen_version):
        return None
    there = ev.connected and not ev.gone
    return {
        "connected": there,
        "away_since": None if there else record.away_since or at,
        "gone": ev.gone or (record.gone and not there),
        "boot_id": ev.boot_id or record.boot_id,
        "gpus_seen": record.gpus_seen if ev.gpus is None else ev.gpus,
        "leave": _leave(record.leave, ev, at),
    }


def _leave(known: Leave | None, ev: NodeSeen, at: datetime) -> Leave | None:
    """What the cluster shows of a leave counts for as long as it shows it. What was only told has an end."""
    if ev.leave is not None:
        return after(known, ev.leave)
    if known is None or not ev.connected or ev.gone:
        return known
    return None if over(known, at) or known.notice is Notice.SEEN else known


def over(leave: Leave, now: datetime) -> bool:
    """Whether a machine that is still there was not taken away."""
    return leave.until is not None and now >= leave.until + STAYED


def after(known: Leave | None, news: Leave) -> Leave:
    """The same once more changes nothing. What is sure stands against what is not, and so does a known end."""
    if known is None:
        return news
    same = (known.notice, known.why, known.until) == (news.notice, news.why, news.until)
    weight = (known.moves, known.sure, known.until is not None)
    return known if same or weight > (news.moves, news.sure, news.until is not None) else news


def note_leave(
    draft: RecordDraft, node: str, status: NodeStatus, old: Leave | None, new: Leave | None
) -> None:
    """A line for whoever reads the timeline, where it is news."""
    if new is not None and (old is None or old.why != new.why):
        draft.note(node, status, status, LEAVES if new.moves else MAY_LEAVE, new.why)
    elif new is None and old is not None:
        draft.note(node, status, status, STAYS, old.why)


def known(record: MachineRecord) -> dict[str, Any]:
    """What one record has seen of a machine, for the one that decides on it next."""
    place = ("instance", "host", "ibdev", "registered_at", "gone", "boot_id")
    names = (*place, "connected", "away_since", "gpus_seen", "seen_version")
    return {name: getattr(record, name) for name in names}


def says_nothing_new(
    record: MachineRecord, ev: NodeSeen, status: NodeStatus, changed: dict[str, Any]
) -> bool:
    """Most sightings change nothing, and then nothing is written.

    An absence is kept: older good news must not undo it. So is a look at a node that reboots: what is heard later of
    how it went down must not be held against the next attempt.
    """
    there = ev.connected and not ev.gone
    known = ev.version <= record.seen_version or (there and status is not NodeStatus.REBOOTING)
    return known and not ev.gone and all(getattr(record, name) == value for name, value in changed.items())


def registered_anew(record: MachineRecord, ev: NodeSeen, at: datetime) -> dict[str, Any]:
    """A machine as a new instance, connected, and with versions that count from the start."""
    another = ev.host != record.host
    return {
        "instance": ev.instance,
        "host": ev.host,
        "boot_id": ev.boot_id if another else record.boot_id,
        "ibdev": ev.ibdev or record.ibdev if another else record.ibdev,
        "gone": False,
        "registered_at": ev.registered or at,
        "seen_version": ev.version,
        "connected": True,
        "away_since": None,
        "gpus_seen": record.gpus_seen if ev.gpus is None else ev.gpus,
        "leave": ev.leave if another else record.leave,
    }


def note_fault(draft: RecordDraft, node: str, status: NodeStatus, ev: FaultSeen) -> bool:
    """Evidence for whoever reads the timeline, under the node's own time; whether it is news."""
    if draft.noted(ev.at, node, ev.noted_as, ev.evidence):
        return False
    draft.note(node, status, status, ev.noted_as, ev.evidence, ev.at)
    return True
