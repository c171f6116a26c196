"""`gpu-recovery simulate`: what recovery is worth on a fleet of this size, and what one change would gain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import Refused
from .options import JsonOption

MOST_NODES = 16_384


def register(app: typer.Typer) -> None:
    app.command("simulate")(simulate)


def simulate(  # noqa: PLR0913, PLR0917 (each is an option of the command)
    nodes: Annotated[int, typer.Option(help="Nodes of the fleet, 8 GPUs each.", min=1, max=MOST_NODES)] = 128,
    job_nodes: Annotated[int, typer.Option(help="Nodes of one job.", min=1)] = 16,
    weeks: Annotated[float, typer.Option(help="Virtual time of one run.", min=0.1, max=520)] = 4.0,
    rate: Annotated[
        str, typer.Option(help="Failures per node and day: rsc1, rsc2, llama3, jobs, or a number.")
    ] = "rsc1",
    retries: Annotated[int, typer.Option(help="Recoveries before a person is needed.", min=0)] = 1,
    checkpoint: Annotated[float, typer.Option(help="Minutes between checkpoints.", min=1)] = 60.0,
    reboot: Annotated[float, typer.Option(help="Minutes a reboot takes.", min=0)] = 8.0,
    spares: Annotated[int, typer.Option(help="Nodes that take over at once.", min=0)] = 0,
    lemons: Annotated[
        float, typer.Option(help="Share of nodes that fail ten times as often.", min=0, max=0.5)
    ] = 0.0,
    by_hand: Annotated[bool, typer.Option("--by-hand", help="A person starts every recovery.")] = False,
    runs: Annotated[int, typer.Option(help="Runs with different luck.", min=1, max=1000)] = 8,
    seed: Annotated[int, typer.Option(help="Luck of the first run.")] = 1,
    check: Annotated[
        bool, typer.Option("--validate", help="Compare the model with published figures.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Folder for two pictures (SVG).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Weigh recovery policies on a simulated fleet, from published failure rates."""
    if job_nodes > nodes:
        raise Refused(f"a job of {job_nodes} nodes does not fit on {nodes}")
    from ..fleet_model.fleet import Scenario
    from ..fleet_model.policies import FleetPolicy
    from ..fleet_model.rates import incident_causes
    from . import simulate_report

    if check:
        simulate_report.agreement(as_json)
        return
    policy = FleetPolicy(
        automatic=not by_hand, max_retries=retries, checkpoint=checkpoint, reboot=reboot, spares=spares
    )
    base = Scenario(
        nodes=nodes,
        job_nodes=job_nodes,
        per_node_day=simulate_report.rate_of(rate),
        policy=policy,
        weeks=weeks,
        causes=incident_causes(),
        lemons=lemons,
        seed=seed,
    )
    simulate_report.study(base, runs=runs, plot=plot, as_json=as_json)
