"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BackendOption = Annotated[
    str,
    typer.Option(
        "--backend",
        envvar="GPU_RECOVERY_BACKEND",
        help="Where to act: local, aws, or a console's address (https://HOST).",
    ),
]
StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        envvar="GPU_RECOVERY_STATE",
        help="Folder of the embedded control plane [default: ~/.gpu-recovery].",
        show_default=False,
        readable=False,  # whether it can be used is said in our own words
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
WhyOption = Annotated[str, typer.Option("--why", help="The reason; it is kept in the record.")]


def refuse_lost_options(ctx: typer.Context) -> None:
    """An option before a command below would be lost: each command has its own."""
    for name in ctx.params:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.removeprefix('as_')}"
            raise typer.BadParameter(
                f"write {option} behind the command: {ctx.info_name} {ctx.invoked_subcommand} {option} ..."
            )
