"""Commands about jobs: submit, jobs, job, logs, stop, retry."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import BackendOption, JsonOption, StateOption, WhyOption

POLL_S = 0.3


def register(app: typer.Typer) -> None:
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": False})(submit)
    app.command("jobs")(list_jobs)
    app.command("job")(show_job)
    app.command()(logs)
    app.command()(stop)
    app.command()(retry)


def submit(
    command: Annotated[
        list[str] | None, typer.Argument(help="The program and its arguments, after --.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="A job file (TOML or JSON); options below win over it."),
    ] = None,
    nodes: Annotated[str, typer.Option("--nodes", help="Names of the nodes, separated by commas.")] = "",
    any_nodes: Annotated[int, typer.Option("--any", help="Or: take this many free nodes.", min=0)] = 0,
    name: Annotated[str, typer.Option("--name", help="A short name for the job.")] = "",
    job_id: Annotated[str, typer.Option("--id", help="Choose the id: the same id is never run twice.")] = "",
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE for every rank; may be repeated.")
    ] = None,
    workdir: Annotated[str, typer.Option("--workdir", help="Where the program starts.")] = "",
    checkpoint_dir: Annotated[str, typer.Option("--checkpoint-dir", help="Where checkpoints are kept.")] = "",
    port: Annotated[int, typer.Option("--port", help="Rendezvous port; a free one by default.")] = 0,
    gpus: Annotated[int, typer.Option("--gpus", help="GPUs per node; all of them by default.")] = 0,
    max_retries: Annotated[
        int, typer.Option("--max-retries", help="Automatic restarts; the policy's by default.")
    ] = -1,
    check: Annotated[
        str, typer.Option("--check", help="Examine the nodes first: quick, 1 to 4, or none.")
    ] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Stay until the job has ended; exit 0 only if it is COMPLETE.")
    ] = False,
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Submit a job on chosen nodes. They are examined first; the job starts only if all pass.

    Example:  gpu-recovery submit --any 2 -- python train.py --epochs 3
    """
    from .. import jobfile
    from . import render
    from .backend import opened

    data: dict[str, Any] = jobfile.read_file(file) if file is not None else {}
    given = {"name": name, "id": job_id, "workdir": workdir, "checkpoint_dir": checkpoint_dir, "port": port, "gpus_per_node": gpus,
             "any_nodes": any_nodes, "check": check, "nodes": [n.strip() for n in nodes.split(",") if n.strip()], "command": list(command or [])}  # fmt: skip
    data.update({key: value for key, value in given.items() if value})
    if max_retries >= 0:
        data["max_retries"] = max_retries
    if nodes:
        data.pop("any_nodes", None)
    elif any_nodes:
        data.pop("nodes", None)
    for pair in env or []:
        key, sign, value = pair.partition("=")
        if not sign:
            raise typer.BadParameter(f"--env {pair}: use NAME=VALUE")
        data["env"] = {**data.get("env", {}), key: value}
    request = jobfile.parse(data, python=sys.executable)
    with opened(backend, state) as side:
        job = side.submit(request)
        if as_json and not wait:
            render.emit_json(render.job_json(job, side.now()))
        else:
            print(
                f"submitted {job.id} on {', '.join(r.node for r in job.ranks)}",
                file=sys.stderr if as_json else sys.stdout,
            )
            if not wait:
                print(f"follow it:  gpu-recovery job {job.id} --watch   |   gpu-recovery logs {job.id} -f")
        if wait:
            _watch(side, job.id, quiet=as_json)
            job = side.job(job.id)
            if as_json:
                render.emit_json(render.job_json(job, side.now()))
            raise typer.Exit(render.final_code(job.status))


def list_jobs(
    status: Annotated[str, typer.Option("--status", help="Only jobs in this state, e.g. IN_PROGRESS.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many.")] = 20,
    after: Annotated[
        str, typer.Option("--after", help="Continue a list; the value comes from its last line.")
    ] = "",
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """List jobs, newest first."""
    from ..core.model import JobStatus
    from . import render
    from .backend import opened

    if status and status.upper() not in list(JobStatus):
        raise typer.BadParameter(f"--status {status}: use one of {', '.join(JobStatus)}")
    with opened(backend, state) as side:
        page = side.jobs(JobStatus(status.upper()) if status else None, limit, after)
        if as_json:
            render.emit_json(render.jobs_json(page))
        else:
            render.print_jobs(page, side.now())


def show_job(
    job_id: Annotated[str, typer.Argument(help="The job.")],
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Print every change until the job has ended.")
    ] = False,
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Show one job: ranks, nodes, verdicts, and why every decision was taken."""
    from . import render
    from .backend import opened

    with opened(backend, state) as side:
        if watch:
            _watch(side, job_id, quiet=as_json)
        job = side.job(job_id)
        if as_json:
            render.emit_json(render.job_json(job, side.now()))
        elif not watch:
            render.print_job(job, side.now())
        if watch:
            raise typer.Exit(render.final_code(job.status))


def _watch(side: Any, job_id: str, *, quiet: bool) -> None:
    """Print the timeline as it grows, until the job is over."""
    from . import render

    shown = None
    while True:
        job = side.job(job_id)
        fresh = [e for e in job.timeline if shown is None or e not in shown]
        shown = set(job.timeline)
        if not quiet:
            for entry in fresh:
                print(f"{entry.at:%H:%M:%S}  {render.story(entry)}", flush=True)
        if job.status.final:
            return
        time.sleep(POLL_S)


def logs(
    job_id: Annotated[str, typer.Argument(help="The job.")],
    rank: Annotated[int, typer.Option("--rank", help="Only this rank.")] = -1,
    attempt: Annotated[
        int, typer.Option("--attempt", help="Only this attempt; the last one by default.")
    ] = -1,
    every: Annotated[bool, typer.Option("--all", help="Every attempt.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Print what the ranks wrote, each line with its rank."""
    from .backend import opened
    from .tail import Tail

    with opened(backend, state) as side:
        tail = Tail(side, job_id, rank=rank, attempt=attempt, every=every or follow)
        found = tail.pump()
        while follow:
            over = side.job(job_id).status.final
            found = tail.pump() or found
            if over:
                break
            time.sleep(POLL_S)
        if not found and not follow:
            print("nothing was written yet", file=sys.stderr)


def stop(
    job_id: Annotated[str, typer.Argument(help="The job.")],
    why: WhyOption = "",
    wait: Annotated[bool, typer.Option("--wait", help="Stay until every task has stopped.")] = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Stop a job in any state. It is USER_STOPPED once all its tasks have ended."""
    from .backend import opened

    with opened(backend, state) as side:
        job = side.stop(job_id, why)
        print(f"stopping {job.id}")
        if wait:
            _watch(side, job_id, quiet=False)


def retry(
    job_id: Annotated[str, typer.Argument(help="A job that has ended.")],
    nodes: Annotated[str, typer.Option("--nodes", help="Other nodes; the same ones by default.")] = "",
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Run an ended job again, as a new job, from its last checkpoint."""
    from dataclasses import replace

    from ..core.errors import Refused
    from ..jobfile import JobRequest
    from . import render
    from .backend import new_job_id, opened, whoami

    with opened(backend, state) as side:
        old = side.job(job_id)
        if not old.status.final:
            raise Refused(
                f"{job_id} is {old.status}: it has not ended. To end it: gpu-recovery stop {job_id}"
            )
        chosen = tuple(n.strip() for n in nodes.split(",") if n.strip()) or tuple(r.node for r in old.ranks)
        spec = replace(old.spec, retry_of=old.id, submitted_by=whoami())
        job = side.submit(
            JobRequest(spec=spec, nodes=chosen, max_retries=old.max_retries, job_id=new_job_id(spec.name))
        )
        if as_json:
            render.emit_json(render.job_json(job, side.now()))
        else:
            print(f"submitted {job.id}: the work of {old.id}, from its last checkpoint")
