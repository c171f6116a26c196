"""Commands about jobs: submit, jobs, job, logs, stop, retry."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .job_options import merged, names, with_job_options
from .opened import opened, remark
from .options import BackendOption, JobArgument, JsonOption, StateOption, WhyOption, moment
from .terminal import emit_json

if TYPE_CHECKING:
    from ..control.backend import Backend
    from ..core.model import Job
    from ..jobfile import JobRequest
    from .tail import Tail


def register(app: typer.Typer) -> None:
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": False})(submit)
    app.command("jobs")(list_jobs)
    app.command("job")(show_job)
    app.command()(logs)
    app.command()(stop)
    app.command()(retry)


@with_job_options
def submit(
    *,
    command: Annotated[
        list[str] | None, typer.Argument(help="The program and its arguments, after --.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", help="A job file (TOML or JSON; - is standard input); options below win over it."
        ),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Wait until enough nodes are free for --any, and stay until the job has ended; exit 0 only if it"
            " is COMPLETE.",
        ),
    ] = False,
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
    **given: Any,
) -> None:
    """Submit a job on chosen nodes. They are examined first; the job starts only if all pass.

    Example:  gpu-recovery submit --any 2 -- python train.py --epochs 3

    On AWS:  gpu-recovery submit --backend aws --nodes i-0a1,i-0b2 --image IMAGE --mount /fsx:/fsx
    --checkpoint-dir /fsx/run7 --log-group /gpu/train -- torchrun train.py
    """
    from ..core.errors import RecoveryError
    from . import render

    request = _request(file, {**given, "command": command}, here=backend == "local")
    with opened(backend, state) as side:
        job = _submitted_when_free(side, request) if wait and request.any_nodes else side.submit(request)
        remark(side)
        if as_json and not wait:
            emit_json(render.job_json(job, side.now()))
        else:
            print(
                f"submitted {job.id} on {', '.join(r.node for r in job.ranks)}",
                file=sys.stderr if as_json else sys.stdout,
            )
            if not wait and not _refused_start(job):
                _say_how_to_follow(job.id, backend, state)
        if not wait and (why := _refused_start(job)):
            raise RecoveryError(f"{job.id} could not be started: {why}")
        if wait:
            _watch(side, job.id, quiet=as_json)
            job = side.job(job.id)
            if as_json:
                emit_json(render.job_json(job, side.now()))
            raise typer.Exit(render.final_code(job.status))


def _request(file: Path | None, given: dict[str, Any], *, here: bool) -> JobRequest:
    """What the file and the options ask for, with every problem at once."""
    from .. import jobfile, own_script
    from ..core.errors import Refused

    try:
        taken = own_script.taken(given, here=here)
        asked = merged(jobfile.read_file(file) if file is not None else {}, taken)
        request = jobfile.parse(asked, python=sys.executable if here else "python3", local_files=here)
    except Refused as exc:
        raise Refused(f"{exc}\nOptions, keys of a job file, examples:  gpu-recovery submit --help") from exc
    if here and request.container != jobfile.ContainerRequest():
        print(
            "gpu-recovery: there are no containers here: image, mounts and the like do nothing",
            file=sys.stderr,
        )
    return request


def _submitted_when_free(side: Backend, request: JobRequest) -> Job:
    """Nothing is kept of a job that waits here: it is this command that waits, and Ctrl-C ends it."""
    from ..control.submission import waiting_for
    from ..core.errors import Refused, Transient

    told = ""
    while True:
        lacks = waiting_for(request, side.nodes())
        if not lacks:
            try:
                return side.submit(request)
            except (Refused, Transient):
                lacks = waiting_for(request, side.nodes())
                if not lacks:  # it was not another job that took them
                    raise
        if lacks != told:
            print(f"gpu-recovery: the job {lacks}", file=sys.stderr, flush=True)
            told = lacks
        time.sleep(side.poll_s)


def _say_how_to_follow(job_id: str, backend: str, state: Path | None) -> None:
    there = f" --state {state}" if state is not None else ""
    there = there if backend == "local" else f" --backend {backend}"
    print(f"follow it:  gpu-recovery job {job_id} --watch{there}   |   gpu-recovery logs {job_id} -f{there}")


def _refused_start(job: Job) -> str:
    """Why a job is over before it began, if the cluster would not start it."""
    return job.ending.why if job.ending else job.outcome if job.status.final else ""


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

    if status and status.upper() not in list(JobStatus):
        raise typer.BadParameter(f"--status {status}: use one of {', '.join(JobStatus)}")
    with opened(backend, state) as side:
        wanted = JobStatus(status.upper()) if status else None
        page = side.jobs(wanted, limit, after)
        if as_json:
            emit_json(render.jobs_json(page))
        else:
            render.print_jobs(page, side.now(), wanted)


def show_job(
    called: JobArgument,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Print every change until the job has ended.")
    ] = False,
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Show one job: ranks, nodes, verdicts, and why every decision was taken."""
    from ..control.job_names import find_job, retries_of
    from . import render

    with opened(backend, state) as side:
        job = find_job(side, called)
        if watch:
            _watch(side, job.id, quiet=as_json)
            job = side.job(job.id)
        retries = retries_of(side, job)
        if as_json:
            emit_json({**render.job_json(job, side.now()), "retried_as": list(retries)})
        elif not watch:
            handed = [side.node(rank.node) for rank in job.ranks if rank.handed and not job.status.final]
            render.print_job(job, side.now(), retries, handed)
        if watch:
            raise typer.Exit(render.final_code(job.status))


def _watch(side: Backend, job_id: str, *, quiet: bool) -> None:
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
        time.sleep(side.poll_s)


def logs(  # noqa: PLR0913, PLR0917 (each is an option)
    called: JobArgument,
    rank: Annotated[
        int, typer.Option("--rank", help="Only this rank; all by default.", min=-1, show_default=False)
    ] = -1,
    attempt: Annotated[
        int,
        typer.Option(
            "--attempt", help="Only this attempt; the last one by default.", min=-1, show_default=False
        ),
    ] = -1,
    every: Annotated[bool, typer.Option("--all", help="Every attempt.")] = False,
    last: Annotated[
        int | None,
        typer.Option("--tail", "-n", min=0, help="Of each rank only the last lines.", show_default=False),
    ] = None,
    since: Annotated[
        str,
        typer.Option(
            "--since",
            help="Only what was written since: 10m, 2h, 7d before now, or a time. In the embedded mode whole logs"
            " that were written to since then, because their lines have no times.",
        ),
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object per line, with rank, attempt, node and task."),
    ] = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Print what the ranks wrote, each line with its rank. On AWS it comes from CloudWatch."""
    from ..control.job_names import find_job
    from ..core.errors import Refused
    from .tail import Tail

    with opened(backend, state) as side:
        job = find_job(side, called)
        job_id = job.id
        begin = moment("--since", since, side.now()) if since else None
        if rank >= len(job.ranks):
            raise Refused(f"{job_id} has no rank {rank}: its ranks are 0 to {len(job.ranks) - 1}")
        if attempt > job.attempt and not follow:
            raise Refused(f"{job_id} has had no attempt {attempt} yet: the last one is {job.attempt}")
        tail = Tail(
            side,
            job_id,
            rank=rank,
            attempt=attempt,
            every=every or (follow and last is None),
            as_json=as_json,
            last=last,
            since=begin,
        )
        if not _print_all(side, job, tail, follow=follow) and not follow:
            yet, more = ("", "; earlier attempts: --all") if job.status.final else (" yet", "")
            print(f"nothing was written{yet}{more if job.attempt and not every else ''}", file=sys.stderr)


def _print_all(side: Backend, job: Job, tail: Tail, *, follow: bool) -> bool:
    """Whether anything was written."""
    found = tail.pump()
    while job.status.final and not follow and tail.pump():
        """A long log comes in parts."""
    while follow:
        over = side.job(job.id).status.final
        found = tail.pump() or found
        if over:
            break
        time.sleep(side.poll_s)
    return found


def stop(
    called: JobArgument,
    why: WhyOption = "",
    wait: Annotated[bool, typer.Option("--wait", help="Stay until every task has stopped.")] = False,
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Stop a job in any state. It is USER_STOPPED once all its tasks have ended."""
    from ..control.job_names import find_job
    from . import render

    with opened(backend, state) as side:
        job_id = find_job(side, called).id
        job = side.stop(job_id, why=why)
        remark(side)
        if not as_json:
            print(f"stopping {job.id}")
        if wait:
            _watch(side, job_id, quiet=as_json)
        if as_json:
            emit_json(render.job_json(side.job(job_id), side.now()))


def retry(
    called: JobArgument,
    nodes: Annotated[str, typer.Option("--nodes", help="Other nodes; the same ones by default.")] = "",
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Run an ended job again, as a new job, from its last checkpoint."""
    from ..control.backend import whoami
    from ..control.job_names import find_job
    from ..control.submission import retry as run_again
    from . import render

    with opened(backend, state) as side:
        job_id = find_job(side, called).id
        job = run_again(
            side,
            job_id,
            by=whoami(),
            nodes=names(nodes),
            not_ended=f". To end it: gpu-recovery stop {job_id}",
        )
        remark(side)
        if as_json:
            emit_json(render.job_json(job, side.now()))
        else:
            print(f"submitted {job.id}: the work of {job_id}, from its last checkpoint")
            _say_how_to_follow(job.id, backend, state)
