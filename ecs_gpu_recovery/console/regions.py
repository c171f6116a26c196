"""The parts of each page that change by themselves. A page and its stream are made of the same parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..core.edges import JOB
from ..core.errors import RecoveryError
from ..core.model import Job, JobStatus, NodeStatus, Verdict
from ..jobfile import LEVELS
from ..report import Stretch, lanes, phases
from . import doing, drawings, texts, views
from .auth import Identity
from .context import Console
from .desk import Backend
from .lists import pending_orders
from .snapshot import live_jobs, some_jobs

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

    def node_word(self, node: Mapping[str, Any]) -> str:
        """A node as a person would put it: one that is kept out of use is not called available."""
        status, waits = node["status"], bool(node["job_id"])
        if status == NodeStatus.AVAILABLE and (node["hold"] or waits):
            return self.text("Drained" if node["hold"] else "Healthy, waiting")
        label = self.node_label(status)
        return f"{label} · {self.text('drained')}" if node["hold"] else label

    def verdict(self, verdict: str) -> str:
        return self.text(texts.VERDICTS.get(verdict, verdict))

    def sentence(self, said: doing.Sentence) -> str:
        return self.text(said.key).format(**said.values)

    def render(self, template: str, **values: Any) -> str:
        return ENV.get_template(template).render(
            t=self.text,
            job_label=self.job_label,
            node_label=self.node_label,
            node_word=self.node_word,
            verdict=self.verdict,
            sentence=self.sentence,
            levels=LEVELS,
            level_words=texts.LEVELS,
            chart_words={key: self.text(key) for key in texts.CHARTS},
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
        live, some = live_jobs(side)
        return {
            "warning": side.warning(),
            "live": live,
            "fleet": console.snapshots.fleet(side),
            "jobs": views.job_page(side.jobs(None, 8, ""))["jobs"],
            "doing": [views.doing(found) for found in some],
            "messages": _notices(side, 4),
        }

    data = await console.desk.ask(read)
    fleet = data["fleet"]
    regions = {
        "counts": console.snapshots.rendered(
            ("counts", writer.language, fleet.stamp, data["live"]),
            lambda: writer.render("_counts.html", nodes=fleet.nodes, doing=range(data["live"])),
        ),
        "fleet": console.snapshots.rendered(
            ("fleet", writer.language, fleet.stamp),
            lambda: writer.render("_fleet.html", nodes=fleet.nodes, pick=False),
        ),
        "doing": writer.render("_doing.html", doing=data["doing"], warning=data["warning"]),
        "recent": writer.render("_jobs.html", jobs=data["jobs"], next="", status="", short=True),
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
    fleet = await console.desk.ask(console.snapshots.fleet)
    chosen = {name for name in args.get("nodes", "").split(",") if name}
    picker = console.snapshots.rendered(
        ("picker", writer.language, fleet.stamp, frozenset(chosen)),
        lambda: writer.render("_fleet.html", nodes=fleet.nodes, pick=True, chosen=chosen),
    )
    return {"picker": picker}, {}


async def job(console: Console, writer: Writer, args: Mapping[str, str]) -> Regions:
    job_id = args["job_id"]

    def read(side: Backend) -> dict[str, Any]:
        found, now = side.job(job_id), side.now()
        earlier = views.earlier_entries(side.parts.store, job_id)
        view = views.job_view(found, now, earlier)
        view["timeline"] = views.whole_timeline(found, earlier)[-600:]
        return {
            "job": found,
            "view": view,
            "earlier": earlier,
            "phases": phases(found, now, earlier),
            "lanes": lanes(found, now, earlier),
            "logs": console.logs.sources(side, found),
        }

    data = await console.desk.ask(read)
    found, view = data["job"], data["view"]
    words = writer.text
    diagram = drawings.state_diagram(
        found,
        writer.job_label,
        f"{words('State of the job')}: {writer.job_label(found.status)}",
        words,
        data["earlier"],
    )
    nexts = [(after, edge.why) for (before, after), edge in JOB.items() if before == found.status]
    regions = {
        "head": writer.render("_job_head.html", job=view),
        "now": writer.render("_now.html", job=view, d=views.doing(found)),
        "nexts": writer.render("_nexts.html", nexts=nexts),
        "phases": writer.render("_phases.html", job=view),
        "diagram": diagram,
        "preflight": writer.render(
            "_preflight.html", job=view, show=found.preflight, steps=_preflight(found)
        ),
        "attempts": writer.render(
            "_attempts.html",
            legend=_legend(found, data["lanes"]),
            hidden=sum(map(bool, data["lanes"].values())) - len(drawings.chosen_lanes(data["lanes"])),
            picture=drawings.attempts_picture(
                data["phases"], data["lanes"], words, words("Where the time went")
            ),
        ),
        "ranks": writer.render("_ranks.html", job=view),
        "story": writer.render("_story.html", entries=doing.grouped(view["timeline"]), node=False),
        "facts": writer.render("_job_facts.html", job=view),
        "order": writer.render("_job_order.html", job=view),
    }
    sizes = {log["task"]: [log["rank"], log["attempt"], log["node"], log["size"]] for log in data["logs"]}
    done = view["progress"]
    return regions, {
        "logs": sizes,
        "points": [done["steps"], done["lost_steps"], found.attempt],
        "state": {"final": view["final"]},
    }


def _legend(found: Job, nodes: Mapping[str, Sequence[Stretch]]) -> list[str]:
    """The colours that are on the picture, in the order of the states."""
    seen = {stretch.status for name in drawings.chosen_lanes(nodes) for stretch in nodes[name]}
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


async def node(console: Console, writer: Writer, args: Mapping[str, str]) -> Regions:
    name = args["name"]

    def read(side: Backend) -> dict[str, Any]:
        found = side.node(name)
        lines = side.jobs(None, 60, "").jobs
        records = {record.id: record for record in some_jobs(side, [line.id for line in lines])}
        ran, moves = [], [views.entry_view(entry) for entry in found.timeline]
        for line in lines:
            record = records.get(line.id)
            if record is None:
                continue
            if any(rank.node == name for rank in record.ranks):
                ran.append(views.job_line(line))
                moves += [
                    {**views.entry_view(e), "job": line.id} for e in record.timeline if e.subject == name
                ]
        moves.sort(key=lambda entry: str(entry["at"]))
        return {
            "node": views.node_view(found),
            "reports": views.reports(console.state, found),
            "jobs": ran[:10],
            "moves": moves[-200:],
        }

    data = await console.desk.ask(read)
    deeds = console.memory.audit(limit=20, subject=f"node/{name}")
    regions = {
        "node": writer.render("_node_head.html", node=data["node"]),
        "report": writer.render(
            "_report.html",
            report=(last := next(iter(data["reports"]), None)),
            mended=_mended(last, data["moves"]),
        ),
        "checks": writer.render("_checks.html", reports=data["reports"]),
        "history": writer.render("_story.html", entries=doing.grouped(data["moves"]), node=True),
        "ran": writer.render("_jobs.html", jobs=data["jobs"], next="", status="", short=True),
        "deeds": writer.render("_audit.html", audit=deeds, brief=True),
    }
    return regions, {}


def _mended(report: Mapping[str, Any] | None, moves: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The reboot that came back after a check had asked for it: its verdict is history then."""
    if report is None or report["verdict"] != Verdict.REBOOT:
        return None
    checked = str(report.get("finished_at", ""))
    back = [m for m in moves if (m["before"], m["after"]) == (NodeStatus.REBOOTING, NodeStatus.AVAILABLE)]
    return next((move for move in reversed(back) if str(move["at"]) > checked), None)


async def alerts(console: Console, writer: Writer, args: Mapping[str, str]) -> Regions:
    def read(side: Backend) -> dict[str, Any]:
        moves = []
        for found in some_jobs(side, [line.id for line in side.jobs(None, 15, "").jobs]):
            moves += [{**views.entry_view(e), "job": found.id} for e in found.timeline if e.subject == "job"]
        moves.sort(key=lambda entry: str(entry["at"]), reverse=True)
        return {
            "messages": _notices(side, 50),
            "orders": pending_orders(side),
            "letters": console.letters.look(side),
            "moves": moves[:40],
        }

    data = await console.desk.ask(read)
    before = int(args["before"]) if args.get("before", "").isdigit() else 0
    regions = {
        "notices": writer.render("_notices.html", **data["messages"], brief=False),
        "orders": writer.render("_orders.html", orders=data["orders"]),
        "letters": writer.render("_letters.html", look=data["letters"]).strip(),
        "audit": writer.render(
            "_audit.html", audit=console.memory.audit(limit=50, before=before), brief=False
        ),
        "moves": writer.render("_moves.html", moves=data["moves"]),
    }
    return regions, {}


PAGES = {"overview": overview, "jobs": jobs, "new": new_job, "job": job, "node": node, "alerts": alerts}
