"""Commands of the web console: console, console-user."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..cli.options import BackendOption, StateOption


def register(app: typer.Typer) -> None:
    app.command()(console)
    app.command("console-user")(console_user)


def console(  # noqa: PLR0913, PLR0917 (each is an option of the command)
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8080,
    host: Annotated[
        str,
        typer.Option("--host", help="Where to listen. Anything but this machine needs --users or --proxy."),
    ] = "127.0.0.1",
    users: Annotated[
        Path | None,
        typer.Option("--users", help="File of NAME:ROLE:HASH lines; see console-user.", show_default=False),
    ] = None,
    proxy: Annotated[
        str, typer.Option("--proxy", help="Addresses of a load balancer that signs people in, with commas.")
    ] = "",
    proxy_header: Annotated[
        str, typer.Option("--proxy-header", help="The header in which it names them.")
    ] = "x-amzn-oidc-identity",
    operators: Annotated[
        str, typer.Option("--operators", help="Who of them may act, with commas; all others may look.")
    ] = "",
    proxy_signer: Annotated[
        str,
        typer.Option(
            "--proxy-signer",
            help="ARN of the load balancer, whose signature on the person's data is checked.",
        ),
    ] = "",
    hosts: Annotated[
        str, typer.Option("--hosts", help="Names the console answers to, with commas; any by default.")
    ] = "",
    audit_log: Annotated[
        bool, typer.Option("--audit-log", help="Also print every action as a line of JSON, to be collected.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="The console's own folder [default: STATE/console].", show_default=False),
    ] = None,
    backend: BackendOption = "local",
    state: StateOption = None,
) -> None:
    """Serve the web console, until Ctrl-C."""
    from .beside import must_be_installed

    must_be_installed()
    from ..console.access.auth import Proxy
    from ..console.app import Settings, prepare
    from ..control.backend import default_state, open_records
    from ..core.errors import Refused
    from ..local.wiring import DATABASE

    folder = (state or default_state()).resolve()
    local = backend == "local"

    if backend not in ("local", "aws"):
        raise Refused(f"a console can't be served for {backend!r}: use --backend local or --backend aws")
    trusted = None
    if proxy or proxy_signer:
        trusted = Proxy.parse(proxy_header, proxy.split(","), operators.split(","), proxy_signer)
    if audit_log:
        _print_audit()
    settings = Settings(
        data=data or folder / "console",
        host=host,
        port=port,
        users_file=users,
        proxy=trusted,
        hosts=frozenset(name.strip().lower() for name in hosts.split(",") if name.strip()),
        state=folder if local else None,
        tick_s=1.0 if local else 5.0,
    )
    served = prepare(lambda: open_records(backend, folder), settings)
    if local and not (folder / DATABASE).exists():
        print(
            f"no control plane is in {folder} yet: start one with  gpu-recovery up --state {folder}",
            flush=True,
        )
    if local:
        os.nice(5)  # where the processor is short, a recovery on this machine comes first
    print(f"console on {served.link.page()}  (Ctrl-C ends it)", flush=True)
    served.server.run(sockets=[served.socket])


def _print_audit() -> None:
    """One line of JSON for each action, on standard output, where a container's log is collected from."""
    import json
    import logging

    class AsJson(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return json.dumps({"audit": getattr(record, "deed", {})}, ensure_ascii=False)

    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(AsJson())
    audit = logging.getLogger("ecs_gpu_recovery.console.audit")
    audit.addHandler(handler)
    audit.setLevel(logging.INFO)
    audit.propagate = False


def console_user(
    name: Annotated[str, typer.Argument(help="Who shall sign in.")],
    role: Annotated[str, typer.Option("--role", help="viewer or operator.")] = "viewer",
    token: Annotated[
        bool, typer.Option("--token", help="For a program: make a token, shown once, on standard error.")
    ] = False,
) -> None:
    """Make a line for the console's users file; the password is asked for, or read from standard input."""
    import getpass

    from ..console.access.auth import ROLES, Users, hash_password, new_token

    if role not in ROLES:
        raise typer.BadParameter(f"--role {role}: use {' or '.join(ROLES)}")
    if token:
        secret, kept = new_token()
        Users.parse(f"{name}:{role}:{kept}")
        print(f"{name}:{role}:{kept}")
        print(f"the token of {name}, shown only now: {secret}", file=sys.stderr)
        return
    password = getpass.getpass("Password: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    line = f"{name}:{role}:{hash_password(password)}"
    Users.parse(line)
    print(line)
