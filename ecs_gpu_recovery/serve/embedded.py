"""Commands that run the embedded control plane here: demo, up, down."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..cli.options import JsonOption, StateOption
from ..cli.terminal import emit_json

FAULTS = (
    *("none", "app", "freeze", "gpu", "gpu-permanent", "hang", "idle-gpu"),
    *("kill", "node-lost", "two-nodes", "oom", "storm"),
)


def register(app: typer.Typer) -> None:
    app.command()(demo)
    app.command()(up)
    app.command()(down)


def demo(
    fault: Annotated[
        str, typer.Option("--fault", help=f"What goes wrong halfway: {', '.join(FAULTS)}.")
    ] = "gpu",
    spares: Annotated[
        int | None,
        typer.Option(
            "--spares",
            min=0,
            max=4,
            help="How many nodes to keep as spares [default: as the story needs].",
            show_default=False,
        ),
    ] = None,
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
    from .scenarios import SCENARIOS

    if fault not in FAULTS:
        each = "".join(f"\n  {name:15}{SCENARIOS[name].says}" for name in FAULTS)
        raise typer.BadParameter(f"--fault {fault}: use one of {', '.join(FAULTS)}{each}")
    raise typer.Exit(
        run_demo(
            fault=fault,
            nodes=nodes,
            spares=spares,
            steps=steps,
            state=state,
            as_json=as_json,
            console_port=console,
        )
    )


def up(  # noqa: PLR0913, PLR0917 (each is an option)
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            min=1,
            max=64,
            help="How many simulated nodes to have, not fewer than are there [default: those, or 4].",
            show_default=False,
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus",
            min=1,
            max=16,
            help="GPUs of each node [default: 2]. Nodes that are there keep theirs: another number is refused.",
            show_default=False,
        ),
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
    from ..control.backend import default_state
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
    from ..control.backend import default_state
    from .foreground import power_off

    count = power_off((state or default_state()).resolve())
    emit_json({"powered_off": count}) if as_json else print(f"nodes powered off: {count}")
