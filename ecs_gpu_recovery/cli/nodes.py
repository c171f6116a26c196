"""Commands about nodes: nodes, nodes check, node drain|spare|release|reboot|check|inject."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import complete
from .opened import opened, remark
from .options import BackendOption, JsonOption, NodeArgument, StateOption, WhyOption, refuse_lost_options
from .terminal import emit_json

if TYPE_CHECKING:
    from ..core.node_record import Node

nodes_app = typer.Typer(
    help="List the nodes, or examine all free ones.", invoke_without_command=True, rich_markup_mode=None
)
node_app = typer.Typer(help="Look after one node.", no_args_is_help=True, rich_markup_mode=None)
NameArgument = NodeArgument
LevelOption = Annotated[str, typer.Option("--level", help="quick, or a DCGM level from 1 to 4.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Stay until it has finished.")]


def register(app: typer.Typer) -> None:
    app.add_typer(nodes_app, name="nodes")
    app.add_typer(node_app, name="node")


@nodes_app.callback()
def list_nodes(
    ctx: typer.Context,
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """List the nodes: state, who holds them, why they are out of use."""
    from . import render

    if ctx.invoked_subcommand is not None:
        refuse_lost_options(ctx)
        return
    with opened(backend, state) as side:
        found = side.nodes()
        remark(side)
        if as_json:
            emit_json({"nodes": [render.node_json(node) for node in found]})
        elif not found and side.name == "aws":
            print("No nodes: the cluster has no container instances. Add some: docs/deployment.md")
        else:
            render.print_nodes(found, side.now())


@nodes_app.command("check")
def check_nodes(
    all_idle: Annotated[bool, typer.Option("--all-idle", help="Every node that no job holds.")] = False,
    level: LevelOption = "quick",
    wait: WaitOption = False,
    why: WhyOption = "",
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Examine all free nodes. With --wait: each verdict, and exit code 1 if any node failed."""
    from ..core.errors import Refused
    from ..core.model import NodeStatus
    from . import render

    if not all_idle:
        raise typer.BadParameter("say --all-idle; one node by its name: gpu-recovery node check NAME")
    _must_be_level(level)
    with opened(backend, state) as side:
        asked = []
        for node in side.nodes():
            if node.job_id or node.status is not NodeStatus.AVAILABLE:
                continue
            try:
                asked.append(side.ask_node(node.name, "check", why=why, level=level))
            except Refused as exc:  # a job took it in this moment
                print(f"{node.name}: left out: {exc}", file=sys.stderr)
        remark(side)
        unfinished = (NodeStatus.PENDING_HEALTHCHECK, NodeStatus.REBOOTING)
        while wait and any(node.status in unfinished for node in asked):
            time.sleep(side.poll_s)
            asked = [side.node(node.name) for node in asked]
    if as_json:
        emit_json({"nodes": [render.node_json(node) for node in asked]})
    elif not asked:
        print("no node is free: nothing was asked for")
    for node in [] if as_json else asked:
        # A repaired node has no verdict any more.
        since = node.timeline[-1].why if wait else "check asked for"
        verdict = node.verdict.value if node.verdict else since
        print(f"{node.name}: {verdict}{f': {node.findings}' if node.findings else ''}")
    raise typer.Exit(1 if wait and any(node.status is NodeStatus.FAILED for node in asked) else 0)


#: What an order comes to, and how it is undone.
_NOTED = {
    "drain": "drained, no new job gets it (back with: gpu-recovery node release {name} --why WHY)",
    "move": "drained, and a job on it moves to another node, if it may and one is free"
    " (back with: gpu-recovery node release {name} --why WHY)",
    "release": "released",
    "spare": "kept as a spare, no new job gets it (back with: gpu-recovery node spare {name} --off --why WHY)",
    "unspare": "no longer a spare",
    "reboot": "will be rebooted",
    "check": "will be checked",
}


#: What `node inject` takes beside the faults.
_TAKEN_BACK = {"clear": "takes all faults back", "power-on": "brings a lost node back"}


def _no_news(node: Node, ask: str) -> str:
    """What to say if the node is already as it is asked to be."""
    if ask == "release" and not node.engaged:
        return "free already, nothing to release"
    if ask == "unspare" and not node.spare:
        return "no spare already"
    return "a spare already" if ask == "spare" and node.spare else ""


def _must_be_level(level: str) -> None:
    if level not in ("quick", "1", "2", "3", "4"):
        raise typer.BadParameter(f"--level {level}: use quick, 1, 2, 3 or 4")


@node_app.command()
def show(
    name: NameArgument,
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Show one node and its history."""
    from . import render

    with opened(backend, state) as side:
        node = side.node(name)
        if as_json:
            emit_json(render.node_json(node))
        else:
            render.print_node(node, side.now())


def _ask(
    name: str,
    ask: str,
    why: str,
    backend: str,
    state: Path | None,
    *,
    level: str = "quick",
    wait: bool = False,
    as_json: bool = False,
) -> None:
    from ..control.records import lacks_reason
    from ..core.model import NodeStatus
    from . import render

    if lacks_reason(ask, why):
        raise typer.BadParameter(f"--why: give a reason; the next person who looks at {name} will ask for it")
    _must_be_level(level)
    with opened(backend, state) as side:
        old = side.node(name)
        before = _no_news(old, ask)
        node = side.ask_node(name, ask, why=why, level=level)
        remark(side)
        if not as_json:
            print(f"{name}: {before or _NOTED[ask].format(name=name)}")
        while wait and node.status in (NodeStatus.PENDING_HEALTHCHECK, NodeStatus.REBOOTING):
            time.sleep(side.poll_s)
            node = side.node(name)
        if as_json:
            emit_json(render.node_json(node))
        elif wait:
            news = tuple(line for line in node.timeline if line not in old.timeline)
            render.print_node(replace(node, timeline=news), side.now())
        if wait:
            raise typer.Exit(1 if node.status is NodeStatus.FAILED else 0)


@node_app.command()
def drain(
    name: NameArgument,
    why: WhyOption,
    move: Annotated[
        bool, typer.Option("--move", help="A job that runs on it goes to another node, uncharged.")
    ] = False,
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Keep new jobs off a node. A job that runs on it is left alone, unless you say --move."""
    _ask(name, "move" if move else "drain", why, backend, state, as_json=as_json)


@node_app.command()
def spare(
    name: NameArgument,
    why: WhyOption,
    off: Annotated[bool, typer.Option("--off", help="No longer: new jobs may have it again.")] = False,
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Keep a node for ranks whose own node fails. No new job gets it."""
    _ask(name, "unspare" if off else "spare", why, backend, state, as_json=as_json)


@node_app.command()
def release(
    name: NameArgument,
    why: WhyOption,
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Give a drained or failed node back into use."""
    _ask(name, "release", why, backend, state, as_json=as_json)


@node_app.command()
def reboot(
    name: NameArgument,
    why: WhyOption,
    wait: WaitOption = False,
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Reboot a node that no job holds."""
    _ask(name, "reboot", why, backend, state, wait=wait, as_json=as_json)


@node_app.command()
def check(
    name: NameArgument,
    why: WhyOption = "",
    level: LevelOption = "quick",
    wait: WaitOption = False,
    as_json: JsonOption = False,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Examine a node that no job holds."""
    _ask(name, "check", why, backend, state, level=level, wait=wait, as_json=as_json)


@node_app.command()
def inject(
    name: NameArgument,
    fault: Annotated[
        str,
        typer.Argument(
            help="What to break; without it the faults are listed. 'clear' takes them back, 'power-on' brings"
            " a lost node back.",
            show_default=False,
            autocompletion=complete.faults,
        ),
    ] = "list",
    gpu: Annotated[int, typer.Option("--gpu", help="Which GPU.", min=0)] = 0,
    xid: Annotated[
        int | None, typer.Option("--xid", help="The Xid, with the fault 'xid'.", min=0, show_default=False)
    ] = None,
    as_json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Break a simulated node on purpose, to see it heal. Embedded mode only."""
    from ..control.local_backend import FAULTS, LocalBackend

    if fault == "list":
        if as_json:
            emit_json({"faults": FAULTS})
        for known, sentence in () if as_json else (FAULTS | _TAKEN_BACK).items():
            print(f"{known:13} {sentence}")
        return
    if xid is not None and fault != "xid":
        raise typer.BadParameter(f"--xid belongs to the fault 'xid', not to {fault!r}")
    with opened("local", state) as side:
        assert isinstance(side, LocalBackend)
        try:
            side.inject(name, fault, gpu=gpu, xid=xid)
        except ValueError as exc:
            raise typer.BadParameter(str(exc)) from exc
        emit_json({"node": name, "done": fault}) if as_json else print(f"{name}: {fault} done")
