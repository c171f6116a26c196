"""The parts of the page of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ... import status_text
from ...control.job_names import retries_of
from ...control.records import RecordsBackend
from ...core.edges import JOB
from ...core.model import Entry, Exit, Job, JobStatus, NodeStatus, Verdict
from ...core.node_record import Node
from ...report import Stretch, lanes, phases
from .. import pulses, views
from ..api import charts
from ..context import Console
from . import svg
from .render import Fragments, Renderer

#: Nodes that a person must look at, and ends of a task that a person asks about.
BROKEN = (NodeStatus.FAILED, NodeStatus.UNKNOWN)
BLAMED = (Exit.SUSPECT, Exit.OUT_OF_MEMORY, Exit.FAULT, Exit.LOST, Exit.NEVER_STARTED)
#: Recoveries of a job that its page sums up.
MOST_PAST = 5


def _read(console: Console, renderer: Renderer, side: RecordsBackend, job_id: str) -> dict[str, Any]:
    """All that the page shows, in a handful of questions."""
    found, now = side.job(job_id), side.now()
    earlier = side.earlier_entries(job_id)
    view = views.job_view(found, now, earlier)
    view["timeline"] = views.whole_timeline(found, earlier)[-600:]
    told = pulses.of_ranks(found, console.snapshots.fleet(side).nodes, side.policy, now)
    return {
        "job": found,
        "handed": handed(side, found),
        "view": view,
        "earlier": earlier,
        "phases": phases(found, now, earlier),
        "lanes": lanes(found, now, earlier),
        "logs": console.logs.sources(side, found),
        "retries": retries_of(side, found),
        "pulses": told,
        "pictures": _pictures(console, side, renderer, found, told, pulses.span_of(found, now), earlier),
    }


async def job(console: Console, renderer: Renderer, args: Mapping[str, str]) -> Fragments:
    data = await console.pool.ask(lambda side: _read(console, renderer, side, args["job_id"]))
    found, view = data["job"], data["view"]
    words = renderer.text
    diagram = svg.state_diagram(
        found,
        renderer.job_label,
        f"{words('State of the job')}: {renderer.job_label(found.status)}",
        words,
        data["earlier"],
    )
    nexts = [(after, edge.why) for (before, after), edge in JOB.items() if before == found.status]
    regions = {
        "head": renderer.render("_job_head.html", job=view),
        "now": _now(renderer, data),
        "nexts": renderer.render("_nexts.html", nexts=nexts),
        "phases": renderer.render("_phases.html", job=view),
        "diagram": diagram,
        "preflight": renderer.render(
            "_preflight.html", job=view, show=found.preflight, steps=_preflight(found)
        ),
        "attempts": renderer.render(
            "_attempts.html",
            legend=_legend(data["lanes"]),
            hidden=sum(map(bool, data["lanes"].values())) - len(svg.chosen_lanes(data["lanes"])),
            picture=svg.attempts_picture(data["phases"], data["lanes"], words, words("Where the time went")),
        ),
        "ranks": renderer.render(
            "_ranks.html",
            job=view,
            held={node.name for node in data["handed"] if node.held},
            pulses=data["pulses"],
            pictures=data["pictures"],
            meanings=pulses.MEANINGS,
        ),
        "story": renderer.render("_story.html", entries=status_text.grouped(view["timeline"]), node=False),
        "facts": renderer.render("_job_facts.html", job=view),
        "order": renderer.render("_job_order.html", job=view, retries=data["retries"]),
    }
    sizes = {log["task"]: [log["rank"], log["attempt"], log["node"], log["size"]] for log in data["logs"]}
    done = view["progress"]
    return regions, {
        "state": {
            "final": view["final"],
            "label": renderer.job_label(found.status),
            "blamed": _blamed(found),
        },
        "logs": sizes,
        "points": [done["steps"], done["lost_steps"], found.attempt],
    }


def _pictures(
    console: Console,
    side: RecordsBackend,
    renderer: Renderer,
    job: Job,
    told: Mapping[int, pulses.RankPulse],
    shown: tuple[datetime, datetime],
    earlier: Sequence[Entry],
) -> dict[int, str]:
    """By rank, what the GPUs of its node did over the last time, and when the job was seen to hang."""
    power = charts.power(console.state, side, job, *shown)
    marks = [at for at in pulses.hangs_seen((*earlier, *job.timeline)) if shown[0] <= at <= shown[1]]
    most = max((value for points in power.values() for value in points.values()), default=0.0)
    found: dict[int, str] = {}
    for rank in job.ranks[: pulses.MOST_CHARTS]:
        points, pulse = power.get(rank.node, {}), told.get(rank.index, pulses.RankPulse())
        if points or pulse.still or marks:
            title = f"{renderer.text('GPU power')}: {rank.node}"
            found[rank.index] = svg.power_picture(points, most, shown, pulse.still, marks, title)
    return found


def handed(side: RecordsBackend, job: Job) -> list[Node]:
    """The nodes that the job waits for while they are repaired, readable or not."""
    names = {rank.node for rank in job.ranks if rank.handed and not job.status.final}
    return [node for node in side.nodes() if node.name in names] if names else []


def _now(renderer: Renderer, data: Mapping[str, Any]) -> str:
    """What is being done, how far the way back is gone, what a person has to do, and what was mended before."""
    found: Job = data["job"]
    way, step = status_text.steps(found)
    broken = [rank.node for rank in found.ranks if rank.node_status in BROKEN]
    asked = status_text.next_step(found.id, broken) if found.status is JobStatus.FAILED else None
    past = status_text.recoveries((*data["earlier"], *found.timeline))[-MOST_PAST:]
    doing = views.doing(found, data["handed"])
    return renderer.render(
        "_now.html", job=data["view"], d=doing, way=way, step=step, asked=asked, broken=broken, past=past
    )


def _blamed(found: Job) -> str:
    """The task whose log tells most: of a job in trouble, the one that did not end as it should."""
    if found.status in (JobStatus.COMPLETE, JobStatus.IN_PROGRESS, JobStatus.RESTARTING):
        return ""
    bad = [rank.task_id for rank in found.ranks if rank.exit in BLAMED and rank.task_id]
    return bad[0] if bad else ""


def _legend(nodes: Mapping[str, Sequence[Stretch]]) -> list[str]:
    """The colours that are on the picture, in the order of the states."""
    seen = {stretch.status for name in svg.chosen_lanes(nodes) for stretch in nodes[name]}
    return [status.value for status in NodeStatus if status in seen]


def _preflight(found: Job) -> list[dict[str, str]]:
    """How far the check of each node is, before the first start."""
    steps = []
    for rank in found.ranks:
        word = "waiting"
        if rank.verdict is Verdict.HEALTHY:
            word = "passed"
        elif rank.verdict is not None:
            word = rank.verdict.value
        elif rank.check_id:
            word = "under check"
        steps.append({"node": rank.node, "word": word, "findings": rank.findings})
    return steps
