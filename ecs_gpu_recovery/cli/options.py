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
