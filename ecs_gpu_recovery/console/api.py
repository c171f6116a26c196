"""The HTTP API. Everything the pages show and do can be had here as JSON; errors are problem documents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr
from starlette.responses import JSONResponse, Response, StreamingResponse

from ..core.model import JobStatus, NodeStatus
from . import forms, views
from .actions import Actions
from .context import ConsoleArg, IdentityArg
from .desk import Backend, pending_orders
from .logs import LARGEST_PART, progress_points
from .problems import RESPONSES

router = APIRouter(prefix="/api", responses=RESPONSES)
Name = Annotated[str, Path(min_length=1, max_length=128)]
Limit = Annotated[int, Query(ge=1, le=200)]
Text = Annotated[StrictStr, Field(max_length=4096)]


class JobBody(BaseModel):
    """A job, with the keys of a job file."""

    model_config = ConfigDict(extra="forbid")

    name: Text | None = None
    id: Text | None = None
    command: Annotated[list[StrictStr], Field(max_length=1000)] | None = None
    script: Text | None = None
    script_text: Annotated[StrictStr, Field(max_length=forms.LARGEST_SCRIPT)] | None = None
    args: Annotated[list[StrictStr], Field(max_length=1000)] | None = None
    nodes: Annotated[list[StrictStr], Field(max_length=4096)] | None = None
    any_nodes: StrictInt | None = None
    env: dict[StrictStr, StrictStr] | None = None
    workdir: Text | None = None
    checkpoint_dir: Text | None = None
    port: StrictInt | None = None
    gpus_per_node: StrictInt | None = None
    memory_mib: StrictInt | None = None
    check: Text | None = None
    max_retries: StrictInt | None = None
    task_definition: Text | None = None
    container: Text | None = None
    image: Text | None = None

    def given(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class ReasonBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    why: Annotated[StrictStr, Field(max_length=400)] = ""


class NodeBody(ReasonBody):
    level: Literal["quick", "1", "2", "3", "4"] = "quick"


class RetryBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    nodes: Annotated[list[StrictStr], Field(max_length=4096)] = Field(default_factory=list)


class OrderBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    record: Annotated[StrictStr, Field(pattern=r"^(job|node)/.{1,128}$")]
    key: Annotated[StrictStr, Field(max_length=400)]


# -- jobs -------------------------------------------------------------------------------------------------


@router.get("/jobs", tags=["jobs"])
async def list_jobs(
    console: ConsoleArg,
    status: JobStatus | None = None,
    limit: Limit = 50,
    after: Annotated[str, Query(max_length=400)] = "",
) -> dict[str, Any]:
    """Newest first; `next` asks for the rest."""
    return await console.desk.ask(lambda side: views.job_page(side.jobs(status, limit, after)))


@router.post(
    "/jobs",
    status_code=201,
    tags=["jobs"],
    responses={200: {"description": "This key was used before: the same job."}},
)
async def submit_job(
    body: JobBody,
    request: Request,
    console: ConsoleArg,
    who: IdentityArg,
    idempotency_key: Annotated[str, Header(max_length=200)] = "",
) -> Response:
    """Submit a job. With an `Idempotency-Key`, sending it twice starts it once."""
    job, new = await Actions(console, who, request).submit(body.given(), idempotency_key)
    view = await console.desk.ask(lambda side: views.job_view(job, side.now()))
    return JSONResponse(view, status_code=201 if new else 200, headers={"location": f"/api/jobs/{job.id}"})


@router.post("/jobs/preview", tags=["jobs"])
async def preview_job(body: JobBody, console: ConsoleArg) -> dict[str, Any]:
    """What would run, where, with which variables, and the task definition; nothing is kept."""
    return await console.desk.ask(lambda side: forms.preview(side, body.given(), console.desktop))


@router.get("/jobs/{job_id}", tags=["jobs"])
async def get_job(job_id: Name, console: ConsoleArg) -> dict[str, Any]:
    """One job with its ranks, phases, progress and pending orders."""
    return await console.desk.ask(lambda side: views.job_view(side.job(job_id), side.now()))


@router.post("/jobs/{job_id}/stop", tags=["jobs"])
async def stop_job(
    job_id: Name, body: ReasonBody, request: Request, console: ConsoleArg, who: IdentityArg
) -> dict[str, Any]:
    """Stop a job in any state that is not final."""
    job = await Actions(console, who, request).stop(job_id, body.why)
    return await console.desk.ask(lambda side: views.job_view(job, side.now()))


@router.post("/jobs/{job_id}/retry", status_code=201, tags=["jobs"])
async def retry_job(
    job_id: Name, body: RetryBody, request: Request, console: ConsoleArg, who: IdentityArg
) -> dict[str, Any]:
    """Run an ended job again, as a new job, from its last checkpoint."""
    job = await Actions(console, who, request).retry(job_id, body.nodes)
    return await console.desk.ask(lambda side: views.job_view(job, side.now()))


@router.get("/jobs/{job_id}/timeline", tags=["jobs"])
async def job_timeline(job_id: Name, console: ConsoleArg) -> dict[str, Any]:
    """What happened, oldest first, with entries that no longer fit into the record."""

    def read(side: Backend) -> dict[str, Any]:
        job = side.job(job_id)
        old = views.archived_timeline(side.parts.store, job_id)
        return {"entries": [*old, *map(views.entry_view, job.timeline)]}

    return await console.desk.ask(read)


@router.get("/jobs/{job_id}/progress", tags=["jobs"])
async def job_progress(job_id: Name, console: ConsoleArg) -> dict[str, Any]:
    """Step, loss, attempt and time, as the training reported them."""
    return await console.desk.ask(lambda side: progress_points(side.job(job_id)))


# -- logs -------------------------------------------------------------------------------------------------


@router.get("/jobs/{job_id}/logs", tags=["logs"])
async def job_logs(job_id: Name, console: ConsoleArg) -> dict[str, Any]:
    """The logs there are: every rank of every attempt."""
    return await console.desk.ask(lambda side: {"logs": console.logs.sources(side, side.job(job_id))})


@router.get("/jobs/{job_id}/logs/{task}", tags=["logs"])
async def read_log(
    job_id: Name,
    task: Name,
    console: ConsoleArg,
    offset: Annotated[int, Query(ge=0, le=1 << 50)] = 0,
    limit: Annotated[int, Query(ge=1, le=LARGEST_PART)] = 65536,
    tail: Annotated[int, Query(ge=0, le=LARGEST_PART)] = 0,
) -> dict[str, Any]:
    """Text from a byte position on, or the last `tail` bytes; `next` is where to go on."""
    return await console.desk.ask(
        lambda side: console.logs.part(side, job_id, task, offset=offset, limit=max(limit, tail), tail=tail)
    )


@router.get("/jobs/{job_id}/logs/{task}/search", tags=["logs"])
async def search_log(
    job_id: Name, task: Name, console: ConsoleArg, q: Annotated[str, Query(min_length=1, max_length=200)]
) -> dict[str, Any]:
    """Lines that hold a text, with their numbers."""
    return await console.desk.ask(lambda side: console.logs.search(side, job_id, task, q))


@router.get("/jobs/{job_id}/logs/{task}/download", tags=["logs"], response_class=Response)
async def download_log(job_id: Name, task: Name, console: ConsoleArg) -> Response:
    """The whole log as a file."""
    blocks = await console.desk.ask(lambda side: console.logs.download(side, job_id, task))
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in f"{job_id}-{task}")
    headers = {"content-disposition": f'attachment; filename="{safe}.log"'}
    return StreamingResponse(blocks, media_type="text/plain; charset=utf-8", headers=headers)


# -- nodes ------------------------------------------------------------------------------------------------


@router.get("/nodes", tags=["nodes"])
async def list_nodes(console: ConsoleArg, status: NodeStatus | None = None) -> dict[str, Any]:
    return await console.desk.ask(
        lambda side: {"nodes": [views.node_view(n) for n in side.nodes() if status in (None, n.status)]}
    )


@router.get("/nodes/{name}", tags=["nodes"])
async def get_node(name: Name, console: ConsoleArg) -> dict[str, Any]:
    """One node, with the report of its last check where it can be read."""
    return await console.desk.ask(
        lambda side: {
            **views.node_view(node := side.node(name)),
            "report": views.last_report(console.state, node),
        }
    )


@router.post("/nodes/{name}/{ask}", tags=["nodes"])
async def ask_node(
    name: Name,
    ask: Literal["drain", "release", "reboot", "check"],
    body: NodeBody,
    request: Request,
    console: ConsoleArg,
    who: IdentityArg,
) -> dict[str, Any]:
    """Drain, release, reboot or check a node. All but a check need a reason."""
    return views.node_view(await Actions(console, who, request).ask_node(name, ask, body.why, body.level))


# -- the system -------------------------------------------------------------------------------------------


@router.get("/alerts", tags=["system"])
async def alerts(console: ConsoleArg, limit: Limit = 50) -> dict[str, Any]:
    """Messages to people, newest first."""
    return await console.desk.ask(lambda side: {"alerts": list(side.notices(limit))})


@router.get("/audit", tags=["system"])
async def audit(
    console: ConsoleArg, limit: Limit = 100, before: Annotated[int, Query(ge=0, le=1 << 50)] = 0
) -> dict[str, Any]:
    """What people did through this console, newest first."""
    return {"audit": console.memory.audit(limit=limit, before=before)}


@router.get("/orders", tags=["system"])
async def orders(console: ConsoleArg) -> dict[str, Any]:
    """Orders that are committed and not yet known to be carried out."""
    return {"orders": await console.desk.ask(pending_orders)}


@router.post("/orders/again", status_code=202, tags=["system"])
async def send_again(
    body: OrderBody, request: Request, console: ConsoleArg, who: IdentityArg
) -> dict[str, Any]:
    """Make a pending order due now. Orders are safe to send twice."""
    await Actions(console, who, request).send_again(body.record, body.key)
    return {"record": body.record, "key": body.key}


@router.get(
    "/live", tags=["system"], response_class=Response, responses={200: {"content": {"text/event-stream": {}}}}
)
async def live(
    console: ConsoleArg,
    last_event_id: Annotated[str, Header(max_length=60)] = "",
    after: Annotated[str, Query(max_length=60)] = "",
) -> Response:
    """Server-sent events: `snapshot`, then `job`, `node`, `notice`, `trouble`, `well`.

    `Last-Event-ID` goes on without a gap.
    """
    return StreamingResponse(
        console.hub.stream(last_event_id or after),
        media_type="text/event-stream",
        headers={"x-accel-buffering": "no"},
    )
