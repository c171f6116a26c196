"""Records as the console shows them: everything people need, and nothing that is secret."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from ..core.codec import whole
from ..core.model import Entry, Job, JobStatus, NodeStatus
from ..core.node_record import Node
from ..engine.ports import JobLine, Page
from ..masks import command_line, masked_record
from ..progress import effective_ratio, progress_of
from ..report import phases
from ..standing import BAD, BUSY, standing_view
from ..status_text import deadline, now_doing


def job_line(line: JobLine) -> dict[str, Any]:
    """Written out field by field: every look makes two hundred of them."""
    return {
        "id": line.id,
        "name": line.name,
        "status": line.status.value,
        "attempt": line.attempt,
        "nodes": line.nodes,
        "created_at": line.created_at.isoformat(),
        "updated_at": line.updated_at.isoformat(),
        "final": line.status.final,
    }


def job_page(page: Page) -> dict[str, Any]:
    bad = [{"id": exc.name, "why": exc.why} for exc in page.bad]
    return {"jobs": [job_line(line) for line in page.jobs], "next": page.next, "bad": bad}


def job_view(job: Job, now: datetime, earlier: Sequence[Entry] = ()) -> dict[str, Any]:
    """Everything about a job; `earlier` is what left its timeline, where it is known."""
    data = masked_record(job)
    done = progress_of(job)
    ratio = effective_ratio(job, done, now)
    data.update(
        final=job.status.final,
        restarts_left=job.restarts_left,
        restarts_charged=job.spent.charged,
        command_line=command_line(data["spec"]["command"]),
        phases=[
            {"name": phase.name, **whole(phase), "seconds": round(phase.seconds, 1)}
            for phase in phases(job, now, earlier)
        ],
        progress=whole(done),
        effective=None if ratio is None else round(ratio, 4),
        seconds=round(((job.updated_at if job.status.final else now) - job.created_at).total_seconds(), 1),
    )
    return data


def in_order(name: str) -> list[tuple[int, str]]:
    """A key that puts node-2 before node-10."""
    return [
        (int(part), "") if part.isascii() and part.isdigit() else (0, part)
        for part in re.split(r"([0-9]{1,18})", name)
    ]


def node_view(node: Node) -> dict[str, Any]:
    return {
        **whole(node),
        "free": node.claimable,
        "refusal": node.refusal,
        "standing": standing_view(node),
        "held": node.held,
        "curable": node.curable,
        "replaced_by": node.replaced_by,
        "retired": node.retired,
        "has_report": bool(node.check_id),
    }


#: Who is looked after, and by whom. The texts are keys of the catalogues; beside each the look of a state.
UNDER_REPAIR, AWAITS_PERMIT, NEEDS_PERSON = CARE = (
    ("Under repair", NodeStatus.REBOOTING),
    ("Waiting for a permit", NodeStatus.PENDING),
    ("Needs a person", NodeStatus.FAILED),
)


def care(nodes: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, list[str]]]:
    """At a glance: which nodes mend themselves, which wait for a yes, and which wait for a person."""
    found: dict[tuple[str, NodeStatus], list[str]] = {kind: [] for kind in CARE}
    for node in nodes:
        repaired = node["condemned"] and not node["condemned"][-1]["outcome"]
        if node["held"]:
            found[AWAITS_PERMIT].append(node["name"])
        elif node["status"] in (NodeStatus.FAILED, NodeStatus.UNKNOWN) and node["standing"]["word"] == BAD:
            found[NEEDS_PERSON].append(node["name"])
        elif node["status"] == NodeStatus.REBOOTING or (
            repaired and node["status"] in (NodeStatus.PENDING_HEALTHCHECK, NodeStatus.UNKNOWN)
        ):
            found[UNDER_REPAIR].append(node["name"])
    return [(text, look.value, names) for (text, look), names in found.items()]


def in_care(nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Nodes that are neither free nor a job's: checked, repaired, or waiting for a permit to be."""
    busy = [node for node in nodes if node["standing"]["word"] == BUSY]
    return [
        node["name"]
        for node in busy
        if node["held"] or node["status"] == NodeStatus.REBOOTING or not node["job_id"]
    ]


def doing(job: Job, nodes: Iterable[Node] = ()) -> dict[str, Any]:
    """What the system is doing for this job right now, until when at the latest, and why: its last move."""
    moves = [e for e in job.timeline if e.subject == "job" and e.before != e.after]
    last = moves[-1] if moves else None
    nodes = list(nodes)
    return {
        "job": job.id,
        "status": job.status.value,
        "why": last.why if last else "",
        "evidence": last.evidence if last else "",
        "since": last.at.isoformat() if last else job.created_at.isoformat(),
        "ending": job.ending.why if job.ending else "",
        "now": now_doing(job, nodes),
        "deadline": end.isoformat() if (end := deadline(job, nodes)) else "",
        "calm": job.status is JobStatus.IN_PROGRESS and job.ending is None,
    }


def whole_timeline(job: Job, earlier: Sequence[Entry]) -> list[dict[str, Any]]:
    """What happened, oldest first, with what left the record; a move that stayed longer finds its place."""
    entries = [whole(entry) for entry in (*earlier, *job.timeline)]
    return sorted(entries, key=lambda entry: str(entry["at"])) if earlier else entries
