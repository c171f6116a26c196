"""The pages for people. Each is a frame around its regions; what people press is an action like the API's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ... import own_script
from ...control.accounts import WEEK, ledger_of
from ...core.errors import NotFound, RecoveryError, Transient
from ...core.model import JobStatus
from ...jobkeys import LEVELS
from ...ledger import view
from .. import forms
from ..access.audit import AuditEntry
from ..access.auth import Identity
from ..access.guard import fields
from ..access.owner import cookie_name
from ..access.sessions import COOKIE, SESSION_HOURS, session_token
from ..actions import ActionsArg
from ..context import Console, ConsoleArg, IdentityArg, address_of, event_stream
from ..live.stream import page_stream
from ..problems import BadField, of_error
from . import fragments, sharing
from .language import LANGUAGES, preferred
from .render import Renderer

router = APIRouter(include_in_schema=False)
#: The stretches of time that the report offers, and how long a checkpoint is taken to last.
STRETCHES, CHECKPOINT_S = {"1d": "1 day", WEEK: "7 days", "4w": "4 weeks"}, 60.0
#: For a viewer who follows an old link to the form.
NO_FORM = "You may look, and an operator may submit jobs. Ask one of them, or for their role."


def renderer_of(request: Request) -> Renderer:
    language = preferred(request.cookies.get("lang", ""), request.headers.get("accept-language", ""))
    theme = request.cookies.get("theme", "auto")
    who: Identity | None = getattr(request.state, "identity", None)
    return Renderer(language, who, theme if theme in ("light", "dark") else "auto")


async def _form_of(request: Request) -> dict[str, list[str]]:
    return fields(await request.body())


FormArg = Annotated[dict[str, list[str]], Depends(_form_of)]


def said(form: Mapping[str, list[str]], key: str, most: int = 400, default: str = "") -> str:
    """What a field holds, cut where no sensible text goes on."""
    return form.get(key, [default])[-1][:most]


def see(path: str) -> Response:
    """After a change the browser is sent to look at the result."""
    return RedirectResponse(path, status_code=303)


async def show(
    request: Request,
    console: Console,
    page: str,
    template: str,
    args: Mapping[str, str],
    *,
    status: int = 200,
    **more: Any,
) -> Response:
    """A page with its regions. A backend that does not answer leaves the frame standing, with the reason."""
    renderer = renderer_of(request)
    trouble, facts = "", dict[str, Any]()
    try:
        parts, facts = await sharing.shared(console, renderer, page, args)
        found = sharing.own(parts, renderer)
    except Transient as exc:
        found, trouble, status = {}, str(exc), 503
    found["trouble"] = renderer.render("_trouble.html", detail=trouble)
    query = {key: value for key, value in args.items() if value}
    html = renderer.render(
        template,
        page=page,
        regions=found,
        facts=facts,
        stream=f"/live/{page}?{urlencode(query)}",
        path=request.url.path,
        **{**args, **more},
    )
    return HTMLResponse(html, status_code=status)


def still(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """A page that does not change by itself."""
    html = renderer_of(request).render(template, regions={}, stream="", path=request.url.path, **values)
    return HTMLResponse(html, status_code=status)


def error_page(request: Request, status: int, detail: str) -> Response:
    title = {404: "This page does not exist", 503: "The control plane does not answer"}.get(
        status, "It was refused" if status < 500 else "Something went wrong"
    )
    return still(request, "error.html", status=status, page="", title=title, detail=detail)


# -- looking ----------------------------------------------------------------------------------------------


@router.get("/")
async def overview(request: Request, console: ConsoleArg) -> Response:
    return await show(request, console, "overview", "overview.html", {})


@router.get("/jobs")
async def jobs(request: Request, console: ConsoleArg, status: str = "", after: str = "") -> Response:
    return await show(
        request,
        console,
        "jobs",
        "jobs.html",
        {"status": status, "after": after},
        statuses=[s.value for s in JobStatus],
    )


@router.get("/jobs/{job_id}")
async def job(request: Request, console: ConsoleArg, job_id: str) -> Response:
    if job_id == "new":
        who: Identity | None = getattr(request.state, "identity", None)
        if who is None or not who.may_act:
            return error_page(request, 403, renderer_of(request).text(NO_FORM))
        return await _form(request, console, dict(forms.EMPTY), {})
    here = console.state is not None  # else no one tells how long a log has become
    return await show(request, console, "job", "job.html", {"job_id": job_id}, poll_s=0 if here else 5)


@router.get("/nodes/{name}")
async def node(request: Request, console: ConsoleArg, name: str) -> Response:
    return await show(request, console, "node", "node.html", {"name": name}, problem="")


@router.get("/alerts")
async def alerts(request: Request, console: ConsoleArg, before: str = "") -> Response:
    return await show(request, console, "alerts", "alerts.html", {"before": before})


@router.get("/report")
async def report(request: Request, console: ConsoleArg, since: str = WEEK) -> Response:
    """Where the time went. Not live: it reads every job of the stretch."""
    since = since if since in STRETCHES else WEEK
    found = view(await console.pool.ask(lambda side: ledger_of(side, since=since)), CHECKPOINT_S)
    return still(request, "report.html", page="report", ledger=found, since=since, stretches=STRETCHES)


@router.get("/live/{page}")
async def live(request: Request, console: ConsoleArg, page: str) -> Response:
    """The page's one stream."""
    if page not in fragments.PAGES:
        raise HTTPException(404, "no such page")
    args = {key: request.query_params[key] for key in sharing.ARGS[page] if key in request.query_params}
    if any(key not in args for key in {"job": ["job_id"], "node": ["name"]}.get(page, [])):
        raise HTTPException(404, "no such page")
    renderer = renderer_of(request)
    return event_stream(
        request,
        console,
        lambda still: page_stream(
            lambda: sharing.shared(console, renderer, page, args),
            trouble=lambda detail: renderer.render("_trouble.html", detail=detail),
            last=request.headers.get("last-event-id", ""),
            closing=console.hub.closing,
            every_s=console.tick_s,
            csrf=renderer.who.csrf if renderer.who else "",
            still=still,
        ),
    )


# -- a new job --------------------------------------------------------------------------------------------


async def _form(
    request: Request,
    console: Console,
    values: dict[str, str],
    problems: dict[str, list[str]],
    *,
    chosen: str = "",
    status: int = 200,
) -> Response:
    return await show(
        request,
        console,
        "new",
        "new.html",
        {"nodes": chosen},
        status=status,
        values=values,
        problems=problems,
        templates=forms.TEMPLATES,
        largest=own_script.LARGEST,
        local=console.state is not None,
        inputs=forms.inputs(local=console.state is not None),
    )


def _values(form: Mapping[str, list[str]]) -> dict[str, str]:
    return {key: form[key][-1] if form.get(key) else default for key, default in forms.EMPTY.items()}


@router.post("/jobs/new")
async def submit(request: Request, console: ConsoleArg, do: ActionsArg, form: FormArg) -> Response:
    once = said(form, "once", 100)
    try:
        made, _ = await do.submit(forms.from_form(form), once)
    except RecoveryError as exc:
        lines = [line.strip() for line in forms.refusal_of(exc).splitlines() if line.strip()]
        problems = exc.fields if isinstance(exc, BadField) else {"": lines}
        chosen = ",".join(form.get("nodes", []))
        return await _form(request, console, _values(form), problems, chosen=chosen, status=of_error(exc)[0])
    return see(f"/jobs/{quote(made.id)}")


@router.post("/jobs/new/preview")
async def preview(request: Request, console: ConsoleArg, form: FormArg) -> Response:
    renderer = renderer_of(request)
    try:
        data = forms.from_form(form)
        found = await console.pool.ask(lambda side: forms.preview(side, data, console.desktop))
    except RecoveryError as exc:
        fields = exc.fields if isinstance(exc, BadField) else {"": [str(exc)]}
        return HTMLResponse(renderer.render("_preview.html", preview=None, problems=fields))
    return HTMLResponse(renderer.render("_preview.html", preview=found, problems={}))


# -- acting -----------------------------------------------------------------------------------------------


@router.post("/jobs/{job_id}/stop")
async def stop(do: ActionsArg, form: FormArg, job_id: str) -> Response:
    await do.stop(job_id, said(form, "why"))
    return see(f"/jobs/{quote(job_id)}")


@router.post("/jobs/{job_id}/retry")
async def retry(do: ActionsArg, job_id: str) -> Response:
    made = await do.retry(job_id)
    return see(f"/jobs/{quote(made.id)}")


@router.post("/nodes/{name}/ask")
async def ask_node(
    request: Request, console: ConsoleArg, do: ActionsArg, form: FormArg, name: str
) -> Response:
    ask, why = said(form, "ask"), said(form, "why")
    level = said(form, "level", default="quick")
    if level not in LEVELS or level == "none":
        level = "quick"
    try:
        await do.ask_node(name, ask, why, level)
    except NotFound:
        raise
    except RecoveryError as exc:
        return await show(
            request, console, "node", "node.html", {"name": name}, status=of_error(exc)[0], problem=str(exc)
        )
    return see(f"/nodes/{quote(name)}")


@router.post("/fleet/{ask}")
async def ask_fleet(do: ActionsArg, form: FormArg, ask: str) -> Response:
    await do.ask_fleet(ask, said(form, "name"), said(form, "why"))
    return see("/")


@router.post("/orders/again")
async def again(do: ActionsArg, form: FormArg) -> Response:
    await do.send_again(said(form, "record"), said(form, "key"))
    return see("/alerts")


@router.post("/alerts/acknowledge")
async def acknowledge(do: ActionsArg, form: FormArg) -> Response:
    await do.acknowledge([key[:500] for key in form.get("key", [])[:200]])
    return see("/alerts")


@router.post("/letters/again")
async def letter_again(do: ActionsArg, form: FormArg) -> Response:
    await do.send_letter(said(form, "id", 100))
    return see("/alerts")


@router.post("/letters/discard")
async def letter_away(do: ActionsArg, form: FormArg) -> Response:
    letter, why = said(form, "id", 100), said(form, "why")
    await do.discard_letter(letter, why)
    return see("/alerts")


# -- coming and going -------------------------------------------------------------------------------------


def _inside(path: str) -> str:
    """A path of this console, never another site."""
    plain = path.startswith("/") and not path.startswith("//") and path.isprintable() and "\\" not in path
    return path if plain else "/"


@router.get("/signin")
async def sign_in_page(request: Request, console: ConsoleArg, next: str = "/") -> Response:
    if getattr(request.state, "identity", None) is not None:
        return see(_inside(next))
    return _sign_in(request, next, "", 200, own=console.door.owner is not None)


def _sign_in(request: Request, next: str, problem: str, status: int, *, own: bool = False) -> Response:
    shown = {"next": _inside(next), "own": own, "problem": problem}
    return still(request, "signin.html", status=status, page="signin", **shown)


@router.post("/signin")
async def sign_in(request: Request, console: ConsoleArg, form: FormArg) -> Response:
    name, password = said(form, "name", 64), said(form, "password", 1024)
    next = _inside(said(form, "next", 2000, "/"))
    door, address = console.door, address_of(request)
    if door.owner is not None:
        return _sign_in(request, next, "", 401, own=True)
    keys = (f"address {address}", f"name {name}")
    if (wait := door.attempts.wait_s(*keys)) > 0:
        response = _sign_in(request, next, "Too many tries. Wait a few minutes.", 429)
        response.headers["retry-after"] = str(int(wait) + 1)
        return response
    users = door.users()
    if not await door.passwords.right(users, name, password):
        door.attempts.failed(*keys)
        console.audit.note(
            AuditEntry(who=name, role="", action="sign in", outcome="refused", address=address)
        )
        return _sign_in(request, next, "The name or the password is wrong.", 401)
    door.attempts.worked(*keys)
    token, _ = console.door.sessions.open(name)
    console.audit.note(AuditEntry(who=name, role=users.role(name), action="sign in", address=address))
    response = see(next)
    secure = request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
    response.set_cookie(
        COOKIE, token, max_age=SESSION_HOURS * 3600, httponly=True, samesite="strict", secure=secure, path="/"
    )
    return response


@router.post("/signout")
async def sign_out(request: Request, console: ConsoleArg, who: IdentityArg) -> Response:
    for name in (COOKIE, cookie_name(request.headers)):
        console.door.sessions.end(session_token(request.headers, name))
    console.audit.note(
        AuditEntry(who=who.name, role=who.role, action="sign out", address=address_of(request))
    )
    response = see("/signin")
    for name in (COOKIE, cookie_name(request.headers)):
        response.delete_cookie(name, path="/")
    return response


@router.get("/lang/{language}")
async def choose_language(language: str, next: str = "/") -> Response:
    response = see(_inside(next))
    if language in LANGUAGES:
        response.set_cookie("lang", language, max_age=31536000, samesite="lax", path="/")
    return response


@router.get("/health")
async def health() -> dict[str, str]:
    """For a load balancer: the console itself answers."""
    return {"status": "ok"}
