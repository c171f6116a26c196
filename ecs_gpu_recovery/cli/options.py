"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from . import complete

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
JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="Its id, the beginning of it, or its name.", autocompletion=complete.jobs
    ),
]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="The node.", autocompletion=complete.nodes)]
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


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def length(option: str, text: str) -> timedelta:
    """How long: 90s, 10m, 2h or 7d."""
    found = re.fullmatch(r"([0-9]{1,6})([smhd])", text.strip())
    if not found:
        raise typer.BadParameter(f"{option} {text}: use a number with a unit, such as 90s, 10m, 2h or 7d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def moment(option: str, text: str, now: datetime) -> datetime:
    """A length before now, or a time with its zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return now - length(option, text)
    if at.tzinfo is None:
        raise typer.BadParameter(f"{option} {text}: say the zone too, such as {text}Z")
    return at
