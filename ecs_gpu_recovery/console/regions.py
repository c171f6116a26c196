"""The parts of each page that change by themselves. A page and its stream are made of the same parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..core.edges import JOB
from ..core.errors import RecoveryError
from ..core.model import Job, JobStatus, Verdict
from . import drawings, texts, views
from .auth import Identity
from .context import Console
from .desk import Backend, pending_orders

ENV = Environment(
    loader=PackageLoader("ecs_gpu_recovery.console"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENV.filters["duration"] = drawings.duration
Regions = tuple[dict[str, str], dict[str, Any]]


def clock(value: str | datetime) -> str:
    """A time as pages show it before a script tells how long ago it was."""
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


ENV.filters["clock"] = clock


@dataclass(frozen=True, slots=True)
class Writer:
    """Renders for one language and one person."""

    language: str
    who: Identity | None
    theme: str = "auto"

    def text(self, key: str) -> str:
        return texts.translator(self.language)(key)

    def job_label(self, status: str) -> str:
        return self.text(texts.JOB_LABELS.get(status, status))

    def node_label(self, status: str) -> str:
        return self.text(texts.NODE_LABELS.get(status, status))

    def render(self, template: str, **values: Any) -> str:
        return ENV.get_template(template).render(
            t=self.text,
            job_label=self.job_label,
            node_label=self.node_label,
            who=self.who,
            lang=self.language,
            theme=self.theme,
            languages=texts.LANGUAGES,
            **values,
        )


def _notices(side: Backend, limit: int) -> dict[str, Any]:
    """The messages, or where else they go."""
    try:
        return {"notices": list(side.notices(limit)), "elsewhere": ""}
    except RecoveryError as exc:
        return {"notices": [], "elsewhere": str(exc)}


async def overview(console: Console, writer: Writer, args: Mapping[str, str]) -> Regions:
    def read(side: Backend) -> dict[str, Any]:
        page = side.jobs(None, 8, "")
        live = [line.id for status in views.live_states() for line in side.jobs(status, 20, "").jobs]
        return {
            "warning": side.warning(),
            "nodes": [views.node_view(node) for node in side.nodes()],
            "jobs": views.job_page(page)["jobs"],
            "doing": [views.doing(side.job(job_id)) for job_id in live],
            "messages": _notices(side, 4),
        }

    data = await console.desk.ask(read)
    regions = {
        "counts": writer.render("_counts.html", **data),
        "fleet": writer.render("_fleet.html", nodes=data["nodes"], pick=False),
        "doing": writer.render("_doing.html", doing=data["doing"], warning=data["warning"]),
        "recent": writer.render("_jobs.html", jobs=data["jobs"], next="", status=""),
        "notices": writer.render("_notices.html", **data["messages"], brief=True),
    }
    return regions, {}


async def jobs(console: Console, writer: Writer, args: Mapping[str, str]) -> Regions:
    status = JobStatus(args["status"]) if args.get("status") in {s.value for s in JobStatus} else None
    page = await console.desk.ask(
        lambda side: views.job_page(side.jobs(status, 50, args.get("after", "")[:400]))
    )
    shown = writer.render(
        "_jobs.html", jobs=page["jobs"], next=page["next"], status=status.value if status else ""
    )
    return {"jobs": shown}, {}


async def new_job(console: Console, writer: Writer, args: Mapping[str, str]) -> Regions:
    nodes = await console.desk.ask(lambda side: [views.node_view(node) for node in side.nodes()])
    chosen = {name for name in args.get("nodes", "").split(",") if name}
    return {"picker": writer.render("_fleet.html", nodes=nodes, pick=True, chosen=chosen)}, {}


async def job(console: Console, writer: Writer, args: Mapping[str, str]) -> Regions:
    job_id = args["job_id"]

    def read(side: Backend) -> dict[str, Any]:
        found, now = side.job(job_id), side.now()
        view = views.job_view(found, now)
        old = views.archived_timeline(side.parts.store, job_id) if len(found.timeline) >= 60 else []
        view["timeline"] = [*old, *view["timeline"]][-300:]
        return {"job": found, "now": now, "view": view, "logs": console.logs.sources(side, found)}

    data = await console.desk.ask(read)
    found, now, view = data["job"], data["now"], data["view"]
    words = writer.text
    diagram = drawings.state_diagram(
        found, writer.job_label, f"{words('State of the job')}: {writer.job_label(found.status)}"
    )
    nexts = [(after, edge.why) for (before, after), edge in JOB.items() if before == found.status]
    regions = {
        "head": writer.render("_job_head.html", job=view),
        "nexts": writer.render("_nexts.html", nexts=nexts),
        "phases": writer.render("_phases.html", job=view),
        "diagram": diagram,
        "preflight": writer.render(
            "_preflight.html", job=view, show=found.preflight, steps=_preflight(found)
        ),
        "attempts": writer.render(
            "_attempts.html",
            job=view,
            picture=drawings.attempts_picture(found, now, words, words("Where the time went")),
        ),
        "ranks": writer.render("_ranks.html", job=view),
        "story": writer.render("_story.html", entries=view["timeline"], node=False),
        "facts": writer.render("_job_facts.html", job=view),
    }
    sizes = {log["task"]: [log["rank"], log["attempt"], log["node"], log["size"]] for log in data["logs"]}
    done = view["progress"]
    return regions, {
        "logs": sizes,
        "points": [done["steps"], done["lost_steps"], found.attempt],
        "state": {"final": view["final"]},
    }


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


async def node(console: Console, writer: Writer, args: Mapping[str, str]) -> Regions:
    name = args["name"]

    def read(side: Backend) -> dict[str, Any]:
        found = side.node(name)
        # Remote records cost a request each.
        lines = side.jobs(None, 60 if side.name == "local" else 15, "").jobs
        ran, moves = [], [views.entry_view(entry) for entry in found.timeline]
        for line in lines:
            record = side.job(line.id)
            if any(rank.node == name for rank in record.ranks):
                ran.append(views.job_line(line))
                moves += [
                    {**views.entry_view(e), "job": line.id} for e in record.timeline if e.subject == name
                ]
        moves.sort(key=lambda entry: str(entry["at"]))
        return {
            "node": views.node_view(found),
            "report": views.last_report(console.state, found),
            "jobs": ran[:10],
            "moves": moves[-200:],
        }

    data = await console.desk.ask(read)
    deeds = console.memory.audit(limit=20, subject=f"node/{name}")
    regions = {
        "node": writer.render("_node_head.html", node=data["node"]),
        "report": writer.render("_report.html", report=data["report"]),
        "history": writer.render("_story.html", entries=data["moves"], node=True),
        "ran": writer.render("_jobs.html", jobs=data["jobs"], next="", status=""),
        "deeds": writer.render("_audit.html", audit=deeds, brief=True),
    }
    return regions, {}


async def alerts(console: Console, writer: Writer, args: Mapping[str, str]) -> Regions:
    def read(side: Backend) -> dict[str, Any]:
        moves = []
        for line in side.jobs(None, 15, "").jobs:
            moves += [
                {**views.entry_view(e), "job": line.id}
                for e in side.job(line.id).timeline
                if e.subject == "job"
            ]
        moves.sort(key=lambda entry: str(entry["at"]), reverse=True)
        return {"messages": _notices(side, 50), "orders": pending_orders(side), "moves": moves[:40]}

    data = await console.desk.ask(read)
    before = int(args["before"]) if args.get("before", "").isdigit() else 0
    regions = {
        "notices": writer.render("_notices.html", **data["messages"], brief=False),
        "orders": writer.render("_orders.html", orders=data["orders"]),
        "audit": writer.render(
            "_audit.html", audit=console.memory.audit(limit=50, before=before), brief=False
        ),
        "moves": writer.render("_moves.html", moves=data["moves"]),
    }
    return regions, {}


PAGES = {"overview": overview, "jobs": jobs, "new": new_job, "job": job, "node": node, "alerts": alerts}
