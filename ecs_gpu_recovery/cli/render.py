"""How records look in a terminal. Colour only says again what the words say."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..core.codec import whole
from ..core.effects import Order
from ..core.model import Entry, Job, JobStatus, NodeStatus, Rank
from ..core.node_record import Node
from ..engine.ports import Page
from ..masks import command_line, masked_command, masked_record
from ..progress import progress_of
from ..report import phases, runs
from ..standing import standing, standing_view
from ..status_text import deadline, now_doing
from .terminal import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

STYLE = {
    "IN_PROGRESS": "green",
    "COMPLETE": "bold green",
    "FAILED": "bold red",
    "USER_STOPPED": "yellow",
    "PENDING_HEALTHCHECK": "cyan",
    "PENDING_RESTART": "magenta",
    "RESTARTING": "blue",
    "AVAILABLE": "green",
    "UNKNOWN": "yellow",
    "ASSIGNED": "blue",
    "PENDING": "cyan",
    "REBOOTING": "magenta",
    "TERMINATED": "red",
    "free": "green",
    "busy": "blue",
    "drained": "yellow",
    "bad": "bold red",
}


def console() -> Console:
    from rich.console import Console

    # Into a file or a pipe nothing is folded: a name that is cut in two can't be searched for.
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 200
    return Console(highlight=False, soft_wrap=True, width=width)


def styled(text: str) -> str:
    style = STYLE.get(text)
    return f"[{style}]{text}[/]" if style else text


def table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in columns:
        made.add_column(name, overflow="fold")
    return made


def ago(then: datetime, now: datetime) -> str:
    seconds = max(0, int((now - then).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def plain(text: str) -> str:
    """Text of people and programs: what looks like a style in it is none."""
    from rich.markup import escape

    return escape(printable(text))


def jobs_json(page: Page) -> dict[str, Any]:
    bad = [{"id": exc.name, "why": exc.why} for exc in page.bad]
    return {"jobs": [whole(line) for line in page.jobs], "next": page.next, "bad": bad}


def print_jobs(page: Page, now: datetime, status: JobStatus | None = None) -> None:
    for exc in page.bad:
        print(f"left out: {exc}", file=sys.stderr)
    if not page.jobs:
        print(
            f"No job is {status}." if status else "No jobs yet. Submit one with  gpu-recovery submit --help"
        )
        return
    made = table("job", "state", "attempt", "nodes", "submitted", "last change")
    for line in page.jobs:
        made.add_row(
            line.id,
            styled(line.status),
            str(line.attempt),
            str(line.nodes),
            ago(line.created_at, now),
            ago(line.updated_at, now),
        )
    console().print(made)
    if page.next:
        print(f"More: gpu-recovery jobs --after '{page.next}'")


def job_json(job: Job, now: datetime) -> dict[str, Any]:
    data = masked_record(job)
    data["phases"] = [
        {"name": p.name, "status": p.status.value, "attempt": p.attempt, "seconds": round(p.seconds, 3)}
        for p in phases(job, now)
    ]
    data["progress"] = whole(progress_of(job))
    return data


def print_job(job: Job, now: datetime, retries: Sequence[str] = (), handed: Sequence[Node] = ()) -> None:
    out = console()
    waits = job.status is JobStatus.PENDING_RESTART
    said = runs(job.attempt, job.restarts_left, ended=job.status.final, waits=waits)
    which = ", ".join(text.format(count=count) for text, count in said)
    out.print(f"[bold]{job.id}[/]  {styled(job.status)}  {which}")
    if job.outcome:
        out.print(f"  {job.outcome}", markup=False)
    elif job.ending:
        out.print(f"  ending: {job.ending.why}", markup=False)
    if not job.status.final:
        doing = now_doing(job, handed)
        end = deadline(job, handed)
        until = f" At the latest {end:%H:%M:%S} UTC, in {_until(end, now)}." if end else ""
        out.print(f"  now          {doing.key.format(**doing.values)}{until}", markup=False)
    if job.spec.retry_of:
        out.print(f"  repeats      {job.spec.retry_of}", markup=False)
    if retries:
        out.print(f"  repeated by  {', '.join(retries)}", markup=False)
    out.print(f"  command      {command_line(masked_command(job.spec.command))}", markup=False)
    out.print(f"  checkpoints  {job.spec.checkpoint_dir}", markup=False)
    done = progress_of(job)
    if done.steps:
        loss = "" if done.loss is None else f", loss {done.loss:.4f}"
        out.print(f"  progress     step {done.steps}{loss}, {done.lost_steps} steps trained twice")
    held = {node.name for node in handed if node.held}
    made = table("rank", "node", "node state", "task", "exit", "verdict")
    for rank in job.ranks:
        code = "" if rank.exit_code is None else str(rank.exit_code)
        verdict = "" if rank.verdict is None else f"{rank.verdict} {rank.findings}".strip()
        made.add_row(
            str(rank.index),
            plain(rank.node),
            styled("waits for a permit" if rank.node in held else _node_state(job, rank)),
            styled(rank.task_status or "-"),
            f"{rank.exit or ''} {code}".strip(),
            plain(verdict),
        )
    out.print(made)
    print_timeline(out, job.timeline)
    print_orders(out, job.outbox)


def _node_state(job: Job, rank: Rank) -> str:
    """AVAILABLE would sound as if another job could have it."""
    if rank.node_status is not NodeStatus.AVAILABLE:
        return rank.node_status
    return "released" if job.status.final else "waiting"


def _until(end: datetime, now: datetime) -> str:
    seconds = max(0, int((end - now).total_seconds()))
    return f"{seconds // 60} min" if seconds >= 120 else f"{seconds} s"


def print_orders(out: Console, orders: Sequence[Order]) -> None:
    for order in orders:
        out.print(
            f"  waiting to be sent: {order.key}"
            + (f" (tried {order.tries} times: {order.error})" if order.tries else ""),
            markup=False,
        )


def print_timeline(out: Console, entries: Sequence[Entry]) -> None:
    """Each day is named once: a job may run for weeks."""
    day = ""
    for entry in entries:
        if day != (day := f"{entry.at:%Y-%m-%d}"):
            out.print(f"  {day} (UTC)", markup=False, highlight=False)
        out.print(f"  {entry.at:%H:%M:%S}  {story(entry)}", markup=False)


def story(entry: Entry) -> str:
    """One line of the timeline in words."""
    move = entry.after if entry.before in ("", entry.after) else f"{entry.before} -> {entry.after}"
    evidence = f" [{entry.evidence}]" if entry.evidence else ""
    holder = f" (job {entry.job})" if entry.job and entry.job not in entry.why else ""
    return printable(f"{entry.subject}: {move}: {entry.why}{evidence}{holder}")


def node_json(node: Node) -> dict[str, Any]:
    return {
        **whole(node),
        "free": node.claimable,
        "refusal": node.refusal,
        "standing": standing_view(node),
    }


def print_nodes(nodes: Sequence[Node], now: datetime) -> None:
    if not nodes:
        print("No nodes. Start an embedded cluster with  gpu-recovery up --nodes 4")
        return
    made = table("node", "state", "why", "GPUs", "job", "last change")
    for node in nodes:
        said = standing(node)
        made.add_row(
            plain(node.name),
            styled(said.word),
            plain(said.why),
            str(node.gpus),
            node.job_id or "-",
            ago(node.updated_at, now),
        )
    console().print(made)


def print_node(node: Node, now: datetime) -> None:
    print_nodes([node], now)
    console().print(f"  status {node.status}" + (f", {node.findings}" if node.findings else ""), markup=False)
    print_timeline(console(), node.timeline)
    print_orders(console(), node.outbox)


def final_code(status: JobStatus) -> int:
    """The exit code of a command that waited for a job."""
    return 0 if status is JobStatus.COMPLETE else 1
