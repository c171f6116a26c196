"""The command that tells where the time went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .opened import opened, remark
from .options import BackendOption, JsonOption, StateOption
from .terminal import emit_json

if TYPE_CHECKING:
    from ..ledger import Ledger


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
    """Where the time went, in GPU hours: training, standing still, stopping, checking, repairing, starting; and why.

    From the records alone. A standstill for which nobody stopped the job counts as training.
    """
    from ..control.accounts import ledger_of, stretch
    from ..core.errors import Refused
    from ..ledger import view

    try:
        stretch(since)
    except Refused as exc:
        raise typer.BadParameter(f"--{exc}") from exc
    with opened(backend, state) as side:
        ledger = ledger_of(side, job_id, since)
        remark(side)
    emit_json(view(ledger, write_s)) if as_json else _tell(ledger, write_s)


def _tell(ledger: Ledger, write_s: float) -> None:
    print(f"{ledger.jobs} {'job' if ledger.jobs == 1 else 'jobs'}, {ledger.total:,.1f} GPU hours")
    for kind, hours in ledger.hours.items():
        if hours:
            print(f"  {hours:12,.2f}  {hours / ledger.total:6.1%}  {kind}")
    times = len(ledger.failures)
    print(f"stopped {times} {'time' if times == 1 else 'times'}")
    for row in ledger.causes:
        where = ", ".join(filter(None, (row.node, row.rule, row.gpu)))
        print(
            f"  {row.gpu_hours:12,.2f} GPU hours  {row.times} x {row.cause}"
            + (f" ({where})" if where else "")
        )
    for slow in ledger.slow:
        lasted = f"{slow.hours} {'hour' if slow.hours == 1 else 'hours'}"
        print(f"{slow.node} stands out in {slow.job}: {slow}; {lasted}, until {slow.until:%d %b %H:%M} UTC")
    mean, low, high = ledger.mean_time_to_failure()
    if not ledger.telling:
        print("how often a node fails: too little data yet")
        return
    if mean is None:
        print(f"no failure: a node runs {low:,.0f} hours or more between two, most likely (95 %)")
        return
    most = f"{high:,.0f}" if high is not None else "any number of"
    print(f"a node runs {mean:,.0f} hours between two failures, {low:,.0f} to {most} most likely (95 %)")
    every = ledger.checkpoint_interval(write_s)
    if every is not None:
        print(f"a checkpoint that takes {write_s:g} s loses least every {every / 60:,.0f} minutes")
    print(f"spare nodes that cover repairs 99 % of the time: {ledger.spares()}")
