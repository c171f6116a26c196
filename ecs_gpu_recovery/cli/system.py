"""Commands about the system itself: explain-event, notices, prune, doctor."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from .opened import opened
from .options import BackendOption, JsonOption, StateOption, length
from .terminal import emit_json, printable


def register(app: typer.Typer) -> None:
    app.command("explain-event")(explain_event)
    app.command()(notices)
    app.command()(prune)
    app.command()(doctor)


def explain_event(
    file: Annotated[
        Path,
        typer.Argument(
            help="An EventBridge event as JSON, several as NDJSON or a list; - for standard input."
        ),
    ],
    as_json: JsonOption = False,
    backend: BackendOption = "local",
) -> None:
    """How an EventBridge event is understood, without touching anything.

    With --backend aws by the cluster, the check and the policy of the deployment, which is asked for them. Else an
    event of any cluster may be ours, and the policy is the built-in one with the policy variables that are set here.
    """
    from ..control.explain import explain_file, explain_text, rules_of
    from ..core.errors import Refused

    rules = rules_of(os.environ, backend)
    try:
        found = explain_text(sys.stdin.read(), rules) if str(file) == "-" else explain_file(file, rules)
    except UnicodeDecodeError as exc:
        raise Refused("what was piped in is not UTF-8 text; save the event as JSON in UTF-8") from exc
    if as_json:
        emit_json(found)
        return
    for one in found if isinstance(found, list) else [found]:
        mine = "ours" if one["ours"] else "not ours"
        print(f"{one['kind']}, {mine}: {printable(one['why'])}")
        for key in ("job", "attempt", "rank", "task", "node", "instance", "exit", "verdict", "at"):
            if one.get(key) is not None:
                print(f"  {key:9} {printable(str(one[key]))}")
    print(f"by policy {rules.policy.version}: {rules.source}")


def notices(
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000)] = 20,
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Messages to people, newest first."""

    with opened(backend, state) as side:
        found = side.notices(limit)
        if as_json:
            emit_json({"notices": list(found)})
        elif not found:
            print("No messages: nobody is needed.")
        for message in [] if as_json else found:
            print(f"{message['at'][:19]}  {printable(message['subject'])}")
            for part in ("happened", "evidence", "done", "next"):
                print(f"    {part:9} {printable(message[part])}")


def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", help="Jobs that ended so long ago: 12h, 30d.")
    ] = "30d",
    checkpoints: Annotated[
        bool,
        typer.Option("--checkpoints", help="Their checkpoints too, where the folder was made for the job."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; else it only says what it would do.")] = False,
    as_json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Let go of old jobs of the embedded mode: records, logs and messages. It may run beside the control plane."""
    from ..control.backend import default_state
    from ..control.local_backend import LocalBackend

    age = length("--older-than", older_than)
    with closing(LocalBackend((state or default_state()).resolve())) as side:
        done = side.prune(side.now() - age, checkpoints=checkpoints, really=yes)
    if as_json:
        emit_json({"jobs": done.jobs, "bytes": done.bytes, "done": yes})
        return
    size = f"{done.bytes / (1 << 20):.1f} MiB"
    jobs = "1 job" if done.jobs == 1 else f"{done.jobs} jobs"
    what = "logs and checkpoints" if checkpoints else "logs"
    if yes:
        print(f"let go of {jobs}: {size} of {what} are free again")
    else:
        print(f"{jobs} ended more than {older_than} ago: {size} of {what}. To let go: --yes")


def doctor(as_json: JsonOption = False, backend: BackendOption = "local", state: StateOption = None) -> None:
    """Check that this machine and this state folder can do the work; exit 1 if something is wrong."""
    from ..control.backend import default_state
    from ..control.doctor import examine

    findings = examine((state or default_state()).resolve(), backend)
    if as_json:
        emit_json(
            {
                "ok": all(f.ok for f in findings),
                "checks": [{"name": f.name, "ok": f.ok, "found": f.found, "do": f.do} for f in findings],
            }
        )
    for f in [] if as_json else findings:
        print(
            f"{'ok  ' if f.ok else 'FAIL'}  {f.name:16} {f.found}" + (f"\n      do: {f.do}" if f.do else "")
        )
    raise typer.Exit(0 if all(f.ok for f in findings) else 1)
