"""The parts of each page that change by themselves. A page and its stream are made of the same parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ... import status_text
from ...control.backend import Bundle
from ...control.records import RecordsBackend
from ...core.codec import whole
from ...core.errors import RecoveryError, Refused, Transient
from ...core.model import Job, JobStatus, NodeStatus, Verdict
from ...core.node_record import Node
from ...report import lanes
from ...standing import BAD
from .. import incidents, pulses, views
from ..api.lists import pending_orders
from ..context import Console
from ..headlines import Seen, headlines
from ..live.snapshot import live_jobs
from . import svg
from .job_fragments import handed, job
from .render import Fragments, Renderer

#: Jobs that the overview tells about; those that recover come first.
MOST_SHOWN = 12
#: Messages that the page of alerts tells, and that the overview looks through for what is open.
MOST_NOTICES, MOST_LOOKED_AT = 50, 20
#: Checks of a node that its page tells of.
MOST_REPORTS = 12


def _notices(
    console: Console, side: RecordsBackend, limit: int, nodes: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The messages as incidents, each with how its node is now; or where else they go."""
    known = {node["name"]: node for node in nodes}
    try:
        told = incidents.with_states(side, side.notices(limit), nodes, console.acknowledged)
    except RecoveryError as exc:
        return {"incidents": [], "elsewhere": str(exc)}
    found = []
    for message in told:
        node = str(message.get("node", ""))
        step = status_text.next_step(message["job"], [node] if node else [])
        found.append({**message, "now": known.get(node), "step": step})
    return {"incidents": incidents.grouped(found), "elsewhere": ""}


def _waiting(found: Sequence[incidents.Incident]) -> int:
    """Incidents that wait for a person, and that no node in the picture tells of by itself."""
    return sum(one.state == incidents.OPEN and not one.subject.startswith("node/") for one in found)


def _still(
    side: RecordsBackend, jobs: Sequence[Job], nodes: Sequence[Mapping[str, Any]]
) -> dict[str, datetime]:
    """Jobs that run and none of whose GPUs works."""
    running = (job for job in jobs if job.status is JobStatus.IN_PROGRESS)
    found = ((job.id, pulses.still_since(job, nodes, side.policy, side.now())) for job in running)
    return {job_id: since for job_id, since in found if since is not None}


def _guard(side: RecordsBackend) -> Mapping[str, Any] | None:
    """What the guard of the fleet says; nothing where there is none, or where it can't be asked now."""
    try:
        return side.fleet()
    except RecoveryError:
        return None


def _permits(side: RecordsBackend, node: Node) -> list[Mapping[str, Any]]:
    """What of this node waits for a yes."""
    guard = _guard(side) if node.held else None
    return [one for one in guard["waiting"] if one["node"] == node.name] if guard else []


async def overview(console: Console, renderer: Renderer, args: Mapping[str, str]) -> Fragments:
    def read(side: RecordsBackend) -> dict[str, Any]:
        live, some = live_jobs(side)
        fleet = console.snapshots.fleet(side)
        doing = [views.doing(found, handed(side, found)) for found in some]
        told = _notices(console, side, MOST_LOOKED_AT, fleet.nodes)
        guard = _guard(side)
        return {
            "warning": side.warning(),
            "live": live,
            "fleet": fleet,
            "jobs": views.job_page(side.jobs(None, 8, ""))["jobs"],
            "doing": sorted(doing, key=lambda d: bool(d["calm"])),
            "headline": headlines(
                Seen(
                    live,
                    some,
                    fleet.nodes,
                    _waiting(told["incidents"]),
                    _still(side, some, fleet.nodes),
                    guard["frozen"]["why"] if guard and guard["frozen"] else "",
                )
            ),
            "messages": told,
            "guard": guard,
        }

    data = await console.pool.ask(read)
    fleet = data["fleet"]
    regions = {
        "counts": console.snapshots.rendered(
            ("counts", renderer.language, fleet.stamp, data["live"]),
            lambda: renderer.render(
                "_counts.html", nodes=fleet.nodes, live=data["live"], care=len(views.in_care(fleet.nodes))
            ),
        ),
        "fleet": console.snapshots.rendered(
            ("fleet", renderer.language, fleet.stamp),
            lambda: renderer.render(
                "_fleet.html", nodes=fleet.nodes, pick=False, local=console.state is not None
            ),
        ),
        "guard": renderer.render("_guard.html", guard=data["guard"], care=views.care(fleet.nodes)),
        "headline": renderer.render("_headline.html", headline=data["headline"], warning=data["warning"]),
        "doing": renderer.render(
            "_doing.html",
            doing=data["doing"][:MOST_SHOWN],
            more=data["live"] - len(data["doing"][:MOST_SHOWN]),
        ),
        "recent": renderer.render(
            "_jobs.html", jobs=data["jobs"], next="", later=False, status="", short=True, invite=True
        ),
        "notices": renderer.render("_notices.html", **data["messages"], brief=True),
    }
    return regions, {}


async def jobs(console: Console, renderer: Renderer, args: Mapping[str, str]) -> Fragments:
    status = JobStatus(args["status"]) if args.get("status") in {s.value for s in JobStatus} else None
    page = await console.pool.ask(
        lambda side: views.job_page(side.jobs(status, 50, args.get("after", "")[:400]))
    )
    shown = renderer.render(
        "_jobs.html",
        jobs=page["jobs"],
        bad=page["bad"],
        next=page["next"],
        later=bool(args.get("after")),
        status=status.value if status else "",
        short=False,
        invite=not status,
    )
    return {"jobs": shown}, {}


async def new_job(console: Console, renderer: Renderer, args: Mapping[str, str]) -> Fragments:
    fleet = await console.pool.ask(console.snapshots.fleet)
    chosen = {name for name in args.get("nodes", "").split(",") if name}
    picker = console.snapshots.rendered(
        ("picker", renderer.language, fleet.stamp, frozenset(chosen)),
        lambda: renderer.render(
            "_fleet.html", nodes=fleet.nodes, pick=True, chosen=chosen, local=console.state is not None
        ),
    )
    free = status_text.Sentence(
        status_text.Said.FREE, {"free": sum(node["free"] for node in fleet.nodes), "all": len(fleet.nodes)}
    )
    return {"picker": picker, "free": f'<p class="hint">{renderer.sentence(free)}</p>'}, {}


async def node(console: Console, renderer: Renderer, args: Mapping[str, str]) -> Fragments:
    name = args["name"]

    def read(side: RecordsBackend) -> dict[str, Any]:
        found = side.node(name)
        lines = side.jobs(None, 60, "").jobs
        ids = dict.fromkeys([line.id for line in lines] + [found.job_id] * bool(found.job_id))
        records = {record.id: record for record in side.some_jobs(list(ids))}
        earlier = side.earlier_entries(f"node/{name}")
        ran = [
            views.job_line(line)
            for line in lines
            if (record := records.get(line.id)) and name in lanes(record, record.updated_at)
        ]
        moves = [whole(entry) for entry in (*earlier, *found.timeline)]
        moves.sort(key=lambda entry: str(entry["at"]))
        return {
            "node": views.node_view(found),
            "slow": console.slow.of(side, name, records.get(found.job_id)),
            "waits": _permits(side, found),
            "reports": side.reports(found, MOST_REPORTS),
            "kept": _kept(side, name, moves),
            "jobs": ran[:10],
            "moves": moves[-200:],
        }

    data = await console.pool.ask(read)
    deeds = console.audit.entries(limit=20, subject=f"node/{name}")
    regions = {
        "title": renderer.render("_node_title.html", node=data["node"]),
        "node": renderer.render("_node_head.html", node=data["node"], slow=data["slow"], waits=data["waits"]),
        "life": svg.node_diagram(
            data["node"]["status"],
            data["moves"],
            renderer.node_label,
            renderer.text("Life of the node"),
        ),
        "report": renderer.render(
            "_report.html",
            report=(last := next(iter(data["reports"]), None)),
            mended=_mended(last, data["moves"]),
        ),
        "checks": renderer.render("_checks.html", reports=data["reports"]),
        "kept": renderer.render("_evidence.html", kept=data["kept"]),
        "history": renderer.render("_story.html", entries=status_text.grouped(data["moves"]), node=True),
        "ran": renderer.render(
            "_jobs.html", jobs=data["jobs"], next="", later=False, status="", short=True, invite=False
        ),
        "deeds": renderer.render("_audit.html", audit=deeds, brief=True),
    }
    bad = data["node"]["standing"]["word"] == BAD
    curable = data["node"]["status"] == NodeStatus.FAILED and data["node"]["curable"]
    return regions, {
        "usual": "release" if data["node"]["hold"] else "reboot" if curable else "check" if bad else "drain",
        "spare": data["node"]["spare"],
    }


def _kept(side: RecordsBackend, name: str, moves: Sequence[Mapping[str, Any]]) -> Sequence[Bundle]:
    """Asked for if the node was ever rebooted, or its job stopped, which may have hung. Empty where it can't be told
    now: the rest of the page stands."""
    if all(move["after"] not in (NodeStatus.REBOOTING, NodeStatus.PENDING) for move in moves):
        return []
    try:
        return side.evidence(name)[:MOST_REPORTS]
    except (Refused, Transient):
        return []


def _mended(report: Mapping[str, Any] | None, moves: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The reboot that came back after a check had asked for it: its verdict is history then."""
    if report is None or report["verdict"] != Verdict.REBOOT:
        return None
    checked = str(report.get("finished_at", ""))
    back = [m for m in moves if (m["before"], m["after"]) == (NodeStatus.REBOOTING, NodeStatus.AVAILABLE)]
    return next((move for move in reversed(back) if str(move["at"]) > checked), None)


async def alerts(console: Console, renderer: Renderer, args: Mapping[str, str]) -> Fragments:
    def read(side: RecordsBackend) -> dict[str, Any]:
        moves = []
        for found in side.some_jobs([line.id for line in side.jobs(None, 15, "").jobs]):
            moves += [{**whole(e), "job": found.id} for e in found.timeline if e.subject == "job"]
        moves.sort(key=lambda entry: str(entry["at"]), reverse=True)
        return {
            "messages": _notices(console, side, MOST_NOTICES, console.snapshots.fleet(side).nodes),
            "orders": pending_orders(side),
            "letters": console.letters.look(side),
            "moves": moves[:40],
        }

    data = await console.pool.ask(read)
    before = int(args["before"]) if args.get("before", "").isdigit() else 0
    regions = {
        "notices": renderer.render("_notices.html", **data["messages"], brief=False),
        "orders": renderer.render("_orders.html", orders=data["orders"]),
        "letters": renderer.render("_letters.html", look=data["letters"]).strip(),
        "audit": renderer.render(
            "_audit.html", audit=console.audit.entries(limit=50, before=before), brief=False
        ),
        "moves": renderer.render("_moves.html", moves=data["moves"]),
    }
    return regions, {}


PAGES = {"overview": overview, "jobs": jobs, "new": new_job, "job": job, "node": node, "alerts": alerts}
