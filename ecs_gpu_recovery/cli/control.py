"""Commands about the system itself: demo, up, explain-event, doctor, notices."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from .options import BackendOption, JsonOption, StateOption

FAULTS = ("none", "app", "gpu", "gpu-permanent", "node-lost", "oom")


def register(app: typer.Typer) -> None:
    app.command()(demo)
    app.command()(up)
    app.command()(down)
    app.command("explain-event")(explain_event)
    app.command()(notices)
    app.command()(doctor)


def demo(
    fault: Annotated[
        str, typer.Option("--fault", help=f"What goes wrong halfway: {', '.join(FAULTS)}.")
    ] = "gpu",
    nodes: Annotated[
        int, typer.Option("--nodes", min=2, max=16, help="How many simulated nodes the job runs on.")
    ] = 4,
    steps: Annotated[int, typer.Option("--steps", min=20, max=100_000, help="How long to train.")] = 160,
    state: Annotated[
        Path | None, typer.Option("--state", help="Keep everything in this folder, to look at it afterwards.")
    ] = None,
    console: Annotated[
        int | None,
        typer.Option(
            "--console",
            min=0,
            max=65535,
            metavar="PORT",
            help="Serve the web console here along with it; a port that is taken is replaced by a free one.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Watch a multi-node training job break and heal, on this machine, in under a minute.

    The exit code says whether the job ended as it should have.
    """
    from .demo import run_demo

    if fault not in FAULTS:
        raise typer.BadParameter(f"--fault {fault}: use one of {', '.join(FAULTS)}")
    raise typer.Exit(
        run_demo(fault=fault, nodes=nodes, steps=steps, state=state, as_json=as_json, console_port=console)
    )


def up(  # noqa: PLR0913, PLR0917 (each is an option)
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            min=1,
            max=64,
            help="How many simulated nodes to have [default: those that are there, or 4].",
            show_default=False,
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", min=1, max=16, help="GPUs of each new node [default: 2].", show_default=False),
    ] = None,
    real: Annotated[
        bool, typer.Option("--real", help="One node with this machine's real GPUs instead.")
    ] = False,
    boot_seconds: Annotated[
        float,
        typer.Option("--boot-seconds", min=0.1, max=600, help="How long a simulated node takes to boot."),
    ] = 2.0,
    keep_nodes: Annotated[
        bool, typer.Option("--keep-nodes", help="Leave free nodes running too when this ends.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port", min=0, max=65535, help="Serve metrics for Prometheus here; 0 picks a free port."
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="On which address; there is no password.")
    ] = "127.0.0.1",
    console: Annotated[
        int | None,
        typer.Option(
            "--console",
            min=0,
            max=65535,
            metavar="PORT",
            help="Serve the web console here, for this machine only; 0 picks a free port.",
        ),
    ] = None,
    check_idle_every: Annotated[
        float | None,
        typer.Option(
            "--check-idle-every",
            min=0.01,
            metavar="MINUTES",
            help="Examine free nodes this often [default: never].",
            show_default=False,
        ),
    ] = None,
    state: StateOption = None,
) -> None:
    """Run the embedded control plane in the foreground, until Ctrl-C.

    Killed, crashed or ended, it goes on where it was when it is started again: nothing is lost, nothing runs twice.
    Nodes that a job holds stay on without it, and the job runs on.
    """
    from .backend import default_state
    from .foreground import run_up

    folder = (state or default_state()).resolve()
    raise typer.Exit(
        run_up(
            folder,
            nodes=nodes,
            gpus=gpus,
            real=real,
            boot_seconds=boot_seconds,
            keep_nodes=keep_nodes,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
            console_port=console,
            check_idle_every=check_idle_every,
        )
    )


def down(as_json: JsonOption = False, state: StateOption = None) -> None:
    """Power off every node of a state folder on which no control plane runs.

    Jobs that ran there are lost ranks to the next `up`: they go on from their checkpoints, for one retry.
    """
    from . import render
    from .backend import default_state
    from .shutdown import power_off

    count = power_off((state or default_state()).resolve())
    render.emit_json({"powered_off": count}) if as_json else print(f"nodes powered off: {count}")


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
    from ..aws.explain import explain_file, explain_text
    from ..core.errors import Refused
    from . import render
    from .aws_settings import rules_of
    from .terminal import printable

    rules = rules_of(os.environ, backend)
    try:
        found = explain_text(sys.stdin.read(), rules) if str(file) == "-" else explain_file(file, rules)
    except UnicodeDecodeError as exc:
        raise Refused("what was piped in is not UTF-8 text; save the event as JSON in UTF-8") from exc
    if as_json:
        render.emit_json(found)
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
    from . import render
    from .backend import opened
    from .terminal import printable

    with opened(backend, state) as side:
        found = side.notices(limit)
        if as_json:
            render.emit_json({"notices": list(found)})
        elif not found:
            print("No messages: nobody is needed.")
        for message in [] if as_json else found:
            print(f"{message['at'][:19]}  {printable(message['subject'])}")
            for part in ("happened", "evidence", "done", "next"):
                print(f"    {part:9} {printable(message[part])}")


def doctor(as_json: JsonOption = False, backend: BackendOption = "local", state: StateOption = None) -> None:
    """Check that this machine and this state folder can do the work; exit 1 if something is wrong."""
    from . import render
    from .backend import default_state
    from .doctor import examine

    findings = examine((state or default_state()).resolve(), backend)
    if as_json:
        render.emit_json(
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
