"""The command that tells where the time went."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import BackendOption, JsonOption, StateOption

if TYPE_CHECKING:
    from ..control.backend import Backend
    from ..core.model import Job
    from ..ledger import Ledger

_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
#: So many jobs are asked for at once.
_PAGE = 200


def register(app: typer.Typer) -> None:
    app.command()(report)


def report(
    job_id: Annotated[
        str, typer.Argument(metavar="[JOB]", help="One job; without it all of them.", show_default=False)
    ] = "",
    since: Annotated[
        str, typer.Option("--since", help="Only this stretch of time: 12h, 7d, 4w. All of it for one job.")
    ] = "",
    write_s: Annotated[
        float, typer.Option("--checkpoint-seconds", help="How long your job writes a checkpoint.", min=0.01)
    ] = 60.0,
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Where the time went, in GPU hours: training, stopping, checking, repairing, starting; and what it was lost to.

    From the records alone. A rank that hung unnoticed counts as training.
    """
    from ..ledger import account
    from . import render
    from .opened import opened

    back = _stretch(since or ("" if job_id else "7d"))
    with opened(backend, state) as side:
        now = side.now()
        begin = now - back if back else None
        jobs = [side.job(job_id)] if job_id else [job for job in _all(side) if not _before(job, begin)]
    ledger = account(jobs, now, begin)
    render.emit_json(_json(ledger, write_s)) if as_json else _tell(ledger, write_s)


def _stretch(text: str) -> timedelta | None:
    if not text:
        return None
    found = re.fullmatch(r"([0-9]{1,4})([hdw])", text)
    if not found or not int(found[1]):
        raise typer.BadParameter(f"--since {text}: use 12h, 7d or 4w")
    return int(found[1]) * _UNITS[found[2]]


def _all(side: Backend) -> list[Job]:
    found, after = [], ""
    while True:
        page = side.jobs(None, _PAGE, after)
        found += [side.job(line.id) for line in page.jobs]
        after = page.next
        if not after:
            return found


def _before(job: Job, begin: Any) -> bool:
    return begin is not None and job.status.final and job.updated_at < begin


def _json(ledger: Ledger, write_s: float) -> dict[str, Any]:
    mean, low, high = ledger.mean_time_to_failure()
    return {
        "jobs": ledger.jobs,
        "gpu_hours": {kind: round(hours, 4) for kind, hours in ledger.hours.items()},
        "effective": ledger.effective,
        "failures": len(ledger.failures),
        "causes": [
            {"cause": cause, "node": node, "times": times, "gpu_hours": round(hours, 4)}
            for cause, node, times, hours in ledger.causes
        ],
        "node_hours_between_failures": {"mean": mean, "low": low, "high": high},
        "checkpoint_every_s": ledger.checkpoint_interval(write_s),
        "spares": ledger.spares(),
    }


def _tell(ledger: Ledger, write_s: float) -> None:
    print(f"{ledger.jobs} jobs, {ledger.total:,.1f} GPU hours")
    for kind, hours in ledger.hours.items():
        if hours:
            print(f"  {hours:12,.2f}  {hours / ledger.total:6.1%}  {kind}")
    print(f"stopped {len(ledger.failures)} times")
    for cause, node, times, hours in ledger.causes:
        print(f"  {hours:12,.2f} GPU hours  {times} x {cause}" + (f" ({node})" if node else ""))
    mean, low, high = ledger.mean_time_to_failure()
    if mean is None:
        print(f"no failure: a node runs {low:,.0f} hours or more between two, most likely (95 %)")
        return
    most = f"{high:,.0f}" if high is not None else "any number of"
    print(f"a node runs {mean:,.0f} hours between two failures, {low:,.0f} to {most} most likely (95 %)")
    every = ledger.checkpoint_interval(write_s)
    if every is not None:
        print(f"a checkpoint that takes {write_s:g} s loses least every {every / 60:,.0f} minutes")
    print(f"spare nodes that cover repairs 99 % of the time: {ledger.spares()}")
