"""The commands about what nodes kept before they were repaired: to fetch it, and to tell a vendor."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.keys import HANG_ARCHIVE
from .opened import opened, remark
from .options import BackendOption, JsonOption, StateOption
from .terminal import emit_json

if TYPE_CHECKING:
    from ..control.backend import Backend, Bundle

#: A repair that a job caused may be carried out a little after the job has ended.
_AFTERWARDS = timedelta(hours=1)


def register(app: typer.Typer) -> None:
    app.command()(evidence)
    app.command()(ticket)


def evidence(
    name: Annotated[str, typer.Argument(metavar="NODE|JOB", help="A node, or a job for all of its nodes.")],
    fetch: Annotated[
        Path | None, typer.Option("--fetch", metavar="FOLDER", help="Bring the archives here.")
    ] = None,
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """What was kept before a repair or of a hang: kernel log, driver, DCGM, reports, last lines and stacks of ranks.

    An archive for each repair, newest first. With --fetch they are brought into a folder. To look at one:
    tar -tzf ARCHIVE
    """

    with opened(backend, state) as side:
        found = _of(side, name)
        remark(side)
        if fetch is not None:
            fetch.mkdir(parents=True, exist_ok=True)
            for one in found:
                (fetch / one.name).write_bytes(side.fetch_evidence(one.node, one.name))
    if as_json:
        emit_json({"evidence": [one.to_json() for one in found]})
        return
    for one in found:
        where = fetch / one.name if fetch is not None else one.name
        print(f"{one.at:%Y-%m-%d %H:%M:%S}  {one.node}  {one.size / 1024:.0f} KiB  {where}")
    if not found:
        print(f"nothing was kept of {name}: it is kept before a repair, and when a job hangs")
    elif fetch is None:
        print(f"to bring them here:  gpu-recovery evidence {name} --fetch FOLDER")


def ticket(
    name: Annotated[str, typer.Argument(metavar="NODE", help="The node.")],
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Write what a vendor wants to know of a node: machine, GPUs and serial numbers, faults, repairs, driver lines.

    From the node's record and from what was kept before its last repair. Paste it into the ticket, or:
    gpu-recovery ticket NODE > ticket.txt
    """
    from ..ticket import ticket as written

    with opened(backend, state) as side:
        node = side.node(name)
        names = [one.name for one in side.evidence(name)]
        kept = [one for one in names if not one.endswith(HANG_ARCHIVE)] or names
        archive = side.fetch_evidence(name, kept[0]) if kept else b""
        text = written(node, side.now(), kept, archive)
        remark(side)
    emit_json({"node": name, "ticket": text}) if as_json else print(text, end="")


def _of(side: Backend, name: str) -> Sequence[Bundle]:
    """Of a node all, of a job what its nodes kept in its time."""
    from ..control.job_names import find_job
    from ..core.errors import NotFound

    try:
        side.node(name)
    except NotFound:
        try:
            job = find_job(side, name)
        except NotFound as exc:
            raise NotFound(f"no node {name}, and {exc}") from exc
    else:
        return side.evidence(name)
    end = job.updated_at + _AFTERWARDS if job.status.final else side.now()
    kept = [one for rank in job.ranks for one in side.evidence(rank.node) if job.created_at <= one.at <= end]
    return sorted(kept, key=lambda one: one.at, reverse=True)
