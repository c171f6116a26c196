"""`gpu-recovery`: submit jobs, watch them heal, look after nodes.

Exit codes: 0 done, 1 the job (or the demo) did not end well, 2 wrong usage, 3 no such job or node, 4 refused,
5 not reachable now.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .. import __version__
from ..core.errors import NotFound, RecoveryError, Refused, Transient
from . import console, control, jobs, letters, nodes, simulate

app = typer.Typer(
    name="gpu-recovery",
    help="Keeps multi-node GPU training jobs alive: a rank dies, the gang is stopped, every node is examined,"
    " a bad one is rebooted, and the whole job starts again from its checkpoint.",
    epilog="Start here:  gpu-recovery demo   |   then:  gpu-recovery up  and, in another terminal,  "
    "gpu-recovery submit --help",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
jobs.register(app)
nodes.register(app)
control.register(app)
letters.register(app)
console.register(app)
simulate.register(app)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"gpu-recovery {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Keeps multi-node GPU training jobs alive.

    A rank dies, the gang is stopped, every node is examined, a bad one is rebooted, and the whole job starts
    again from its checkpoint.
    """


def run() -> None:
    """The entry point: errors we raise on purpose become one clear line and an exit code."""
    try:
        app()
    except NotFound as exc:
        _complain(exc, 3)
    except Refused as exc:
        _complain(exc, 4)
    except Transient as exc:
        _complain(exc, 5)
    except RecoveryError as exc:
        _complain(exc, 1)
    except OSError as exc:
        _complain(exc, 5)


def _complain(exc: Exception, code: int) -> None:
    typer.echo(f"gpu-recovery: {exc}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    run()
