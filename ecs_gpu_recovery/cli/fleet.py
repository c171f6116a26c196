"""Commands about permits: fleet, fleet freeze|thaw, permits, allow, refuse."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from . import complete
from .opened import opened
from .options import BackendOption, JsonOption, StateOption, WhyOption, refuse_lost_options
from .terminal import emit_json

fleet_app = typer.Typer(
    help="Whether nodes are repaired; freeze it all, or thaw it.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
NameArgument = Annotated[
    str,
    typer.Argument(metavar="NODE|KEY", help="The node, or the order's key.", autocompletion=complete.nodes),
]


def register(app: typer.Typer) -> None:
    app.add_typer(fleet_app, name="fleet")
    app.command()(permits)
    app.command()(allow)
    app.command()(refuse)


@fleet_app.callback()
def fleet(
    ctx: typer.Context,
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Whether nodes are repaired without asking, and whether the fleet is frozen: since when, and why."""
    if ctx.invoked_subcommand is not None:
        refuse_lost_options(ctx)
        return
    _show(backend, state, as_json=as_json)


@fleet_app.command()
def freeze(why: WhyOption = "", backend: BackendOption = "local", state: StateOption = None) -> None:
    """Repair no node until the fleet is thawed. Jobs go on; what needs a repair waits."""
    _ask("freeze", "", why, backend, state)


@fleet_app.command()
def thaw(why: WhyOption = "", backend: BackendOption = "local", state: StateOption = None) -> None:
    """Let the repairs that wait go, oldest first and few at a time. What waited long is examined again first."""
    _ask("thaw", "", why, backend, state)


def permits(as_json: JsonOption = False, backend: BackendOption = "local", state: StateOption = None) -> None:
    """List the repairs that wait for a permit, oldest first, each with its evidence."""
    _show(backend, state, as_json=as_json, each=True)


def allow(
    name: NameArgument, why: WhyOption = "", backend: BackendOption = "local", state: StateOption = None
) -> None:
    """Say yes to one repair that waits, whatever it waits for."""
    _ask("allow", name, why, backend, state)


def refuse(
    name: NameArgument, why: WhyOption = "", backend: BackendOption = "local", state: StateOption = None
) -> None:
    """Say no to one repair that waits. Its node is FAILED until it is released."""
    _ask("refuse", name, why, backend, state)


def _ask(ask: str, name: str, why: str, backend: str, state: Path | None) -> None:

    if ask != "allow" and not why.strip():
        raise typer.BadParameter("say why: --why '...'")
    with opened(backend, state) as side:
        _say(side.ask_fleet(ask, name=name, why=why), each=bool(name))


def _show(backend: str, state: Path | None, *, as_json: bool, each: bool = False) -> None:

    with opened(backend, state) as side:
        found = side.fleet()
    if as_json:
        emit_json(found)
    else:
        _say(found, each=each)


def _say(found: Mapping[str, Any], *, each: bool) -> None:
    frozen, waiting = found["frozen"], found["waiting"]
    if frozen:
        print(f"frozen since {frozen['at'][:19]} by {frozen['by'] or 'the control plane'}: {frozen['why']}")
    elif found["repairs"] == "ask":
        print("not frozen; each repair waits for a person's yes (REPAIRS=ask)")
    else:
        print("not frozen; nodes are repaired without asking (REPAIRS=auto)")
    if not waiting:
        print("no repair waits for a permit")
        return
    for one in waiting if each else ():
        print(f"{one['node'] or one['job']}  since {one['at'][:19]}  waits for {one['waits_for']}")
        print(f"    {one['what']} {one['key']}: {one['why'] or 'no evidence is recorded'}")
    names = ", ".join(dict.fromkeys(one["node"] or one["job"] for one in waiting))
    if not each:
        print(f"{len(waiting)} wait for a permit: {names}\nmore:  gpu-recovery permits")
    elif frozen:
        print("to let them go:  gpu-recovery fleet thaw --why '...'   |   one:  gpu-recovery allow NODE")
