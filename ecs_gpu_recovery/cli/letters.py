"""Commands about dead letters: events that no function could handle. Only AWS has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import Refused
from .opened import opened
from .options import BackendOption, JsonOption, refuse_lost_options
from .terminal import emit_json, printable

if TYPE_CHECKING:
    from ..control.backend import Letter, Sent

letters_app = typer.Typer(
    help="Events that no function could handle (AWS). List them, send them again, or put them away.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
NONE_HERE = (
    "No dead letters here: the embedded control plane has no queue, and its sweeper sends stuck orders again by itself."
    " For those of a deployment:  gpu-recovery letters --backend aws, or --backend https://HOST of its console"
)


def register(app: typer.Typer) -> None:
    app.add_typer(letters_app, name="letters")


def letter_json(letter: Letter) -> dict[str, Any]:
    told = {"from" if key == "sender" else key: value for key, value in letter.to_json().items()}
    return {**told, "event": letter.event}


@letters_app.callback()
def list_letters(
    ctx: typer.Context,
    as_json: JsonOption = False,
    backend: BackendOption = "local",
) -> None:
    """List the events that no function could handle: who left them, the error, and what the event says."""
    from . import render

    if ctx.invoked_subcommand is not None:
        refuse_lost_options(ctx)
        return
    if backend == "local":
        emit_json({"letters": [], "more": 0, "hint": NONE_HERE}) if as_json else print(NONE_HERE)
        return
    with opened(backend, None) as side:
        seen = side.letters()
        if seen is None:
            raise Refused(NONE_HERE)
        if as_json:
            emit_json({"letters": [letter_json(one) for one in seen.letters], "more": seen.more})
            return
        for one in seen.letters:
            left = render.ago(one.at, side.now()) if one.at else "at an unknown time"
            print(f"{one.id}  {left}, from {printable(one.sender or 'an unknown sender')}")
            for name, text in (("error", one.error), ("event", one.understood), ("for", one.function)):
                print(f"    {name:6} {printable(text or '-')}")
        if seen.more:
            print(
                f"About {seen.more} more are in the queue, or in another reader's hands: look again in half a minute."
            )
        elif not seen.letters:
            print("No dead letters: every event was handled.")
        if seen.letters:
            print(f"To send one again:  gpu-recovery letters resend ID --backend {backend}   (or --all)")


@letters_app.command("resend")
def resend(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Ids, or their beginnings.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every letter that is found, oldest first.")
    ] = False,
    as_json: JsonOption = False,
    backend: BackendOption = "local",
) -> None:
    """Give events to their functions again; what is done leaves the queue, what fails stays.

    It is safe: an event that was applied already changes nothing. The exit code is 1 if a function failed.
    """

    if bool(names) is everything:
        raise typer.BadParameter("give the ids of letters, or --all")
    if backend == "local":
        emit_json({"sent": [], "hint": NONE_HERE}) if as_json else print(NONE_HERE)
        return
    with opened(backend, None) as side:
        sent = side.send_letters_again(*(names or ()))
    _tell(sent, as_json)
    raise typer.Exit(0 if all(one.done for one in sent) else 1)


def _tell(sent: Sequence[Sent], as_json: bool) -> None:

    if as_json:
        told = [
            {"id": one.letter.id, "function": one.letter.function, "done": one.done, "said": one.said}
            for one in sent
        ]
        emit_json({"sent": told})
        return
    for one in sent:
        print(f"{one.letter.id}  {'done, ' if one.done else 'kept: '}{printable(one.said)}")
    if not sent:
        print("No dead letters: every event was handled.")


@letters_app.command("discard")
def discard(
    name: Annotated[str, typer.Argument(metavar="ID", help="The letter, or the beginning of its id.")],
    why: Annotated[str, typer.Option("--why", help="The reason; all who hear of failures are told it.")],
    as_json: JsonOption = False,
    backend: BackendOption = "local",
) -> None:
    """Put a letter away unhandled. Who and why goes to the topic of messages, and into the audit of a console.

    The letter is printed, since nothing else keeps it; with its event, unless it came through a console.
    """

    if not why.strip():
        raise typer.BadParameter("--why: the person who misses the event will ask for the reason")
    if backend == "local":
        emit_json({"discarded": None, "hint": NONE_HERE}) if as_json else print(NONE_HERE)
        return
    with opened(backend, None) as side:
        by = side.who()
        gone = letter_json(side.discard_letter(name, by=by, why=why))
    if not as_json:
        print(f"{gone['id']}  discarded by {by}: {why}. It said:")
    emit_json({"discarded": gone, "by": by, "why": why} if as_json else gone)
