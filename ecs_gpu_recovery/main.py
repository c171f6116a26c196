"""`gpu-recovery`: submit jobs, watch them heal, look after nodes."""

from __future__ import annotations

import itertools
import json
import sys
from typing import Annotated

import typer

from . import __version__
from .cli import evidence, fleet, jobs, ledger, letters, nodes, simulate, system
from .core.errors import NotFound, RecoveryError, Refused, Transient
from .serve import console, embedded

#: What a script can rely on. Errors go to standard error: one text, or with --json one object on the last line.
EXIT_CODES = {
    0: "done",
    1: "the job, the check or the demo did not end well",
    2: "wrong usage",
    3: "no such job or node",
    4: "refused; the message says why and what to do",
    5: "not reachable now; try again",
}
#: What to do, where the error itself does not say it.
_HINTS = {
    1: "gpu-recovery doctor",
    2: "gpu-recovery --help   |   gpu-recovery COMMAND --help",
    3: "gpu-recovery jobs   |   gpu-recovery nodes",
    4: "the error says why and what to do",
    5: "try again; if it stays so:  gpu-recovery doctor",
}
app = typer.Typer(
    name="gpu-recovery",
    help="Keeps multi-node GPU training jobs alive: a rank dies, the gang is stopped, every node is examined,"
    " a bad one is rebooted, and the whole job starts again from its checkpoint.",
    epilog="Start here:  gpu-recovery demo   |   then:  gpu-recovery up  and, in another terminal,  "
    "gpu-recovery submit --help\n\nExit codes:  "
    + "   ".join(f"{code}: {meaning.partition(';')[0]}." for code, meaning in EXIT_CODES.items()),
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
jobs.register(app)
nodes.register(app)
fleet.register(app)
embedded.register(app)
evidence.register(app)
system.register(app)
letters.register(app)
ledger.register(app)
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
        sys.exit(app(standalone_mode=not _for_a_script()))
    except typer.TyperException as exc:  # only where a script asks: a person is shown the usage as well
        _complain(exc.format_message(), exc.exit_code)
    except typer.Abort:
        _complain("ended before it was done", 1)
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


def _for_a_script() -> bool:
    """Behind `--` are the words of the job's own command."""
    return "--json" in itertools.takewhile(lambda word: word != "--", sys.argv[1:])


def _complain(what: object, code: int) -> None:
    if _for_a_script():
        told = {"error": str(what), "hint": _HINTS[code], "exit_code": code}
        typer.echo(json.dumps(told, ensure_ascii=False), err=True)
    else:
        more = f". What there is:  {_HINTS[3]}" if code == 3 and "gpu-recovery " not in str(what) else ""
        typer.echo(f"gpu-recovery: {what}{more}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    run()
