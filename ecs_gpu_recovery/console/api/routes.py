"""The HTTP API. Everything the pages show and do can be had here as JSON; errors are problem documents."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query, Request
from starlette.responses import Response, StreamingResponse

from ... import __version__
from ...control.log_search import Search
from ...control.logs import LARGEST_PART, progress_points
from ...control.records import RecordsBackend
from ...core.errors import NotFound
from ...core.model import Job, JobStatus, NodeStatus
from ...metrics.catalogue import METRICS
from .. import forms, views
from ..actions import ActionsArg
from ..context import Console, ConsoleArg, IdentityArg, event_stream
from ..dead_letters import DiscardBody, LetterBody, LetterList, LetterSent, LetterView
from ..problems import RESPONSES
from . import lists, models
from .bodies import AcknowledgeBody, JobBody, NodeBody, OrderBody, ReasonBody, RetryBody

router = APIRouter(prefix="/api", responses=RESPONSES)
Name = Annotated[str, Path(min_length=1, max_length=128)]
Limit = Annotated[int, Query(ge=1, le=200)]
LongLimit = Annotated[int, Query(ge=1, le=1000)]
Place = Annotated[int, Query(ge=0, le=1 << 50)]
After = Annotated[str, Query(max_length=400)]


def _said(data: Any, status: int = 200, **headers: str) -> Response:
    """JSON as it is: answers are not checked a second time on their way out."""
    body = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(
        body.encode(errors="replace"), status_code=status, media_type="application/json", headers=headers
    )


async def _job(console: Console, job: Job, status: int = 200, **headers: str) -> Response:
    return _said(await console.pool.ask(lambda side: views.job_view(job, side.now())), status, **headers)


def _listed(request: Request, data: Any) -> Response:
    """A list that is asked for again and again: unchanged, it is not sent twice."""
    reply = _said(data)
    reply.headers["etag"] = tag = f'"{hashlib.sha256(reply.body).hexdigest()[:24]}"'
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={"etag": tag})
    return reply


def _shape(model: type[Any], status: int = 200, **more: Any) -> dict[str, Any]:
    """What an operation gives, for the description."""
    return {"response_model": None, "responses": {status: {"model": model}, **more}, "status_code": status}


# -- jobs -------------------------------------------------------------------------------------------------


@router.get("/jobs", tags=["jobs"], **_shape(models.JobList))
async def list_jobs(
    request: Request,
    console: ConsoleArg,
    status: JobStatus | None = None,
    limit: Limit = 50,
    after: After = "",
) -> Response:
    """Newest first; `next` asks for the rest."""
    return _listed(
        request, await console.pool.ask(lambda side: views.job_page(side.jobs(status, limit, after)))
    )


_KNOWN_KEY = {"200": {"model": models.JobView, "description": "This key was used before: the same job."}}


@router.post("/jobs", tags=["jobs"], **_shape(models.JobView, 201, **_KNOWN_KEY))
async def submit_job(
    body: JobBody,
    console: ConsoleArg,
    do: ActionsArg,
    idempotency_key: Annotated[str, Header(max_length=200)] = "",
) -> Response:
    """Submit a job. With an `Idempotency-Key`, sending it twice starts it once."""
    job, new = await do.submit(body.given(), idempotency_key)
    return await _job(console, job, 201 if new else 200, location=f"/api/jobs/{job.id}")


@router.post("/jobs/preview", tags=["jobs"], **_shape(models.Preview))
async def preview_job(body: JobBody, console: ConsoleArg) -> Response:
    """What would run, where, with which variables, and the task definition; nothing is kept."""
    return _said(await console.pool.ask(lambda side: forms.preview(side, body.given(), console.desktop)))


@router.get("/jobs/{job_id}", tags=["jobs"], **_shape(models.JobView))
async def get_job(job_id: Name, console: ConsoleArg) -> Response:
    """One job with its ranks, phases, progress and pending orders."""
    return _said(await console.pool.ask(lambda side: views.job_view(side.job(job_id), side.now())))


@router.post("/jobs/{job_id}/stop", tags=["jobs"], **_shape(models.JobView))
async def stop_job(job_id: Name, body: ReasonBody, console: ConsoleArg, do: ActionsArg) -> Response:
    """Stop a job in any state that is not final."""
    job = await do.stop(job_id, body.why)
    return await _job(console, job)


@router.post("/jobs/{job_id}/retry", tags=["jobs"], **_shape(models.JobView, 201))
async def retry_job(job_id: Name, body: RetryBody, console: ConsoleArg, do: ActionsArg) -> Response:
    """Run an ended job again, as a new job, from its last checkpoint."""
    job = await do.retry(job_id, body.nodes)
    return await _job(console, job, 201)


@router.get("/jobs/{job_id}/timeline", tags=["jobs"], **_shape(models.Timeline))
async def job_timeline(
    job_id: Name, console: ConsoleArg, limit: LongLimit = 1000, after: Place = 0
) -> Response:
    """What happened, oldest first, with entries that no longer fit into the record."""

    def read(side: RecordsBackend) -> dict[str, Any]:
        job = side.job(job_id)
        entries = views.whole_timeline(job, side.earlier_entries(job_id))
        return lists.by_place("entries", entries, limit, after)

    return _said(await console.pool.ask(read))


@router.get("/jobs/{job_id}/progress", tags=["jobs"], **_shape(models.ProgressPoints))
async def job_progress(job_id: Name, console: ConsoleArg) -> Response:
    """Step, loss, attempt and time, as the training reported them."""
    return _said(await console.pool.ask(lambda side: progress_points(side.job(job_id))))


# -- logs -------------------------------------------------------------------------------------------------


@router.get("/jobs/{job_id}/logs", tags=["logs"], **_shape(models.LogList))
async def job_logs(job_id: Name, console: ConsoleArg, limit: LongLimit = 1000, after: Place = 0) -> Response:
    """The logs there are: every rank of every attempt."""

    def read(side: RecordsBackend) -> dict[str, Any]:
        return lists.by_place("logs", console.logs.sources(side, side.job(job_id)), limit, after)

    return _said(await console.pool.ask(read))


@router.get("/jobs/{job_id}/logs/{task}", tags=["logs"], **_shape(models.LogPart))
async def read_log(
    job_id: Name,
    task: Name,
    console: ConsoleArg,
    offset: Place = 0,
    limit: Annotated[int, Query(ge=1, le=LARGEST_PART)] = 65536,
    tail: Annotated[int, Query(ge=0, le=LARGEST_PART)] = 0,
) -> Response:
    """Text from a byte position on, or the last `tail` bytes; `next` is where to go on."""
    return _said(
        await console.pool.ask(
            lambda side: console.logs.part(
                side, job_id, task, offset=offset, limit=max(limit, tail), tail=tail
            )
        )
    )


@router.get("/jobs/{job_id}/logs/{task}/search", tags=["logs"], **_shape(models.Hits))
async def search_log(
    job_id: Name,
    task: Name,
    console: ConsoleArg,
    request: Request,
    q: Annotated[str, Query(min_length=1, max_length=200)],
    after: Place = 0,
    offset: Place = 0,
) -> Response:
    """Lines that hold a text, with their numbers, after a line.

    A search ends at its first limit; with `next` as `after`, and `offset`, it goes on from there.
    """
    search = Search(q, after, offset, console.search)
    return _said(
        await console.pool.search(
            lambda side, stopped: console.logs.search(side, job_id, task, search, stopped),
            request.is_disconnected,
        )
    )


@router.get(
    "/jobs/{job_id}/logs/{task}/download",
    tags=["logs"],
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def download_log(job_id: Name, task: Name, console: ConsoleArg) -> Response:
    """The whole log as a file."""
    blocks = await console.pool.ask(lambda side: console.logs.download(side, job_id, task))
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in f"{job_id}-{task}")
    headers = {"content-disposition": f'attachment; filename="{safe}.log"'}
    return StreamingResponse(blocks, media_type="text/plain; charset=utf-8", headers=headers)


# -- nodes ------------------------------------------------------------------------------------------------


@router.get("/nodes", tags=["nodes"], **_shape(models.NodeList))
async def list_nodes(
    request: Request,
    console: ConsoleArg,
    status: NodeStatus | None = None,
    limit: LongLimit = 200,
    after: After = "",
) -> Response:
    """By name; `next` asks for the rest."""
    fleet = await console.pool.ask(console.snapshots.fleet)
    found = [node for node in fleet.nodes if status in (None, node["status"])]
    part = lists.by_name(
        "nodes",
        found,
        limit,
        after,
        name=lambda node: node["name"],
        order=lambda one: (views.in_order(one), one),
    )
    return _listed(request, part)


@router.get("/nodes/{name}", tags=["nodes"], **_shape(models.OneNode))
async def get_node(name: Name, console: ConsoleArg) -> Response:
    """One node, with the report of its last check where it can be read."""

    def read(side: RecordsBackend) -> dict[str, Any]:
        node = side.node(name)
        return {**views.node_view(node), "report": next(iter(side.reports(node, 1)), None)}

    return _said(lists.plain(await console.pool.ask(read)))


@router.get("/nodes/{name}/evidence", tags=["nodes"], **_shape(models.EvidenceList))
async def list_evidence(name: Name, console: ConsoleArg) -> Response:
    """What was kept before this node's reboots, newest first."""
    kept = await console.pool.ask(lambda side: side.evidence(name))
    return _said({"evidence": [one.to_json() for one in kept]})


@router.get(
    "/nodes/{name}/evidence/{file}",
    tags=["nodes"],
    response_class=Response,
    responses={200: {"content": {"application/gzip": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def fetch_evidence(name: Name, file: Name, console: ConsoleArg) -> Response:
    """One archive, a .tar.gz."""
    data = await console.pool.ask(lambda side: side.fetch_evidence(name, file))
    about = {"content-disposition": f'attachment; filename="{file}"'}
    return Response(data, media_type="application/gzip", headers=about)


@router.post("/nodes/{name}/{ask}", tags=["nodes"], **_shape(models.NodeView))
async def ask_node(
    name: Name,
    ask: Literal["drain", "move", "release", "reboot", "check", "spare", "unspare"],
    body: NodeBody,
    do: ActionsArg,
) -> Response:
    """Drain, release, reboot or check a node. All but a check need a reason."""
    node = await do.ask_node(name, ask, body.why, body.level)
    return _said(views.node_view(node))


# -- the system -------------------------------------------------------------------------------------------


@router.get("/alerts", tags=["system"], **_shape(models.AlertList))
async def alerts(console: ConsoleArg, limit: Limit = 50, after: After = "") -> Response:
    """Messages to people, newest first. `state` tells whether the cause is gone, or a person has seen to it."""
    return _said(await console.pool.ask(lambda side: lists.alerts(side, console, limit, after)))


@router.post("/alerts/acknowledge", tags=["system"], **_shape(models.Acknowledged))
async def acknowledge(do: ActionsArg, body: AcknowledgeBody) -> Response:
    """A person has seen to these messages. What is told of the same node or job later is open again."""
    await do.acknowledge(body.keys)
    return _said({"keys": body.keys})


@router.get("/audit", tags=["system"], **_shape(models.AuditList))
async def audit(console: ConsoleArg, limit: Limit = 100, before: Place = 0) -> Response:
    """What people did through this console, newest first; `next` is the `before` of the rest."""
    found = console.audit.entries(limit=limit + 1, before=before)
    more = len(found) > limit
    return _said({"audit": found[:limit], "next": found[limit - 1]["id"] if more else 0})


@router.get("/orders", tags=["system"], **_shape(models.OrderList))
async def orders(console: ConsoleArg, limit: LongLimit = 200, after: After = "") -> Response:
    """Orders that are committed and not yet known to be carried out."""
    found = await console.pool.ask(lists.pending_orders)
    return _said(
        lists.by_name("orders", found, limit, after, name=lambda order: f"{order['record']} {order['key']}")
    )


@router.post("/orders/again", tags=["system"], **_shape(models.SentAgain, 202))
async def send_again(body: OrderBody, do: ActionsArg) -> Response:
    """Make a pending order due now. Orders are safe to send twice."""
    await do.send_again(body.record, body.key)
    return _said({"record": body.record, "key": body.key}, 202)


@router.get("/letters", tags=["system"], **_shape(LetterList))
async def letters(console: ConsoleArg) -> Response:
    """Events that no function could handle, as the queue of the deployment held them within the last minute."""
    return _said(await console.pool.ask(console.letters.listed))


@router.post("/letters/again", tags=["system"], **_shape(LetterSent))
async def send_letter(body: LetterBody, do: ActionsArg) -> Response:
    """Give such an event to its function again. It is safe: one that was applied already changes nothing."""
    return _said(await do.send_letter(body.id))


@router.post("/letters/discard", tags=["system"], **_shape(LetterView))
async def discard_letter(body: DiscardBody, do: ActionsArg) -> Response:
    """Put such an event away unhandled, with a reason."""
    return _said(await do.discard_letter(body.id, body.why))


@router.get("/metrics", tags=["system"], **_shape(models.FleetNumbers))
async def metrics(console: ConsoleArg) -> Response:
    """Counts of now: nodes and jobs by state, GPUs by use, open streams."""
    found = await console.pool.ask(lambda side: lists.numbers(side, console.snapshots))
    return _said({**found, "viewers": console.streams.count})


@router.get("/metrics/history", tags=["system"], **_shape(models.History))
async def metrics_history(
    console: ConsoleArg,
    name: Annotated[str, Query(max_length=100)],
    node: Annotated[str, Query(max_length=128)] = "",
    job: Annotated[str, Query(max_length=128)] = "",
    minutes: Annotated[int, Query(ge=1, le=1440)] = 60,
) -> Response:
    """The last day of one metric, where the embedded control plane keeps it (`gpu-recovery up`)."""
    if name not in METRICS:
        raise NotFound(f"there is no metric {name[:100]}")
    return _said(await console.pool.ask(lambda side: lists.history(side, console, name, node, job, minutes)))


@router.get("/whoami", tags=["system"], **_shape(models.Who))
async def whoami(console: ConsoleArg, who: IdentityArg) -> Response:
    """Who the console takes you for."""
    backend = await console.pool.ask(lambda side: side.name)
    return _said({"name": who.name, "role": who.role, "backend": backend, "version": __version__})


_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


@router.get("/live", tags=["system"], response_class=Response, responses=_STREAM)
async def live(
    request: Request,
    console: ConsoleArg,
    last_event_id: Annotated[str, Header(max_length=60)] = "",
    after: Annotated[str, Query(max_length=60)] = "",
) -> Response:
    """Server-sent events: `snapshot`, then `job`, `node`, `notice`, `trouble`, `well`.

    `Last-Event-ID` goes on without a gap.
    """
    last = last_event_id or after
    return event_stream(request, console, lambda still: console.hub.stream(last, still))
