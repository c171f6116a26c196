"""The options of `submit`, one for each key of a job that has one, and a job file with the options over it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Annotated, Any

import typer

from ..jobkeys import KEYS, JobKey


def with_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each key, behind its own first two; they arrive as further arguments."""
    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    options = [
        Parameter(key.name, Parameter.KEYWORD_ONLY, default=None, annotation=_option(key))
        for key in KEYS.values()
        if key.option
    ]
    command.__signature__ = signature.replace(parameters=[*own[:2], *options, *own[2:]])  # type: ignore[attr-defined]
    anywhere, on_aws = ([key.name for key in KEYS.values() if key.aws is aws] for aws in (False, True))
    keys = f"Keys of a job file: {', '.join(anywhere)}; on AWS also {', '.join(on_aws)}."
    command.__doc__ = f"{inspect.cleandoc(command.__doc__ or '')}\n\n{keys}"
    return command


def _option(key: JobKey) -> Any:
    """Names are one text with commas; everything else that is a list or a table is given again and again."""
    kind: Any = key.kind.type
    how = ""
    if key.name == "nodes":
        kind, how = str, ", with commas"
    elif kind in (list, dict):
        kind, how = list[str], "; may be repeated" if kind is list else ", NAME=VALUE; may be repeated"
    text = f"{key.about[0].upper()}{key.about[1:]}{how}."
    return Annotated[kind | None, typer.Option(*key.option.split(), help=text, show_default=False)]


def merged(data: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A job file with the options over it. An option also puts out the keys that say the same otherwise."""
    chosen = {**given, "nodes": names(given.get("nodes") or ""), "env": None}
    chosen = {name: value for name, value in chosen.items() if value not in (None, "", [])}
    replaced = {other for name in chosen for other in KEYS[name].replaces}
    data = {**{name: value for name, value in data.items() if name not in replaced}, **chosen}
    variables = data.get("env", {})
    for pair in given.get("env") or []:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise typer.BadParameter(f"--env {pair}: use NAME=VALUE")
        if isinstance(variables, dict):  # if it is something else, that is told with all other problems
            variables = data["env"] = {**variables, name: value}
    return data


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
