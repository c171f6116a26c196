"""The methods that dataclasses write for themselves, compiled when the functions are built.

`dataclasses` puts `__init__`, `__eq__` and their like together as text and compiles it, for each of some fifty classes
and at every start; no byte code on disk spares it that. So the build keeps what came out (`record`), and a function
that starts looks it up (`ready_made`). A text that is not known there is compiled as ever.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import marshal
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

_FILE = os.path.join(os.path.dirname(__file__), "methods.bin")
#: Whose byte code it is.
_TAG = sys.implementation.cache_tag or ""


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@contextmanager
def ready_made() -> Iterator[None]:
    """Classes that are made in here take their methods from the file, if the build left one for this Python."""
    try:
        with open(_FILE, "rb") as file:
            tag, known = marshal.load(file)  # noqa: S302 - a part of what is deployed, like the code beside it
    except FileNotFoundError:
        tag, known = "", {}
    if tag != _TAG:
        yield
        return

    def run(text: str, names: dict[str, Any], made: dict[str, Any]) -> None:
        exec(known.get(_key(text), text), names, made)  # noqa: S102 - what dataclasses does itself

    with _instead_of_exec(run):
        yield


def record(path: str = _FILE) -> int:
    """Loads what the functions load, and keeps the methods that were compiled on the way. For the build."""
    known: dict[bytes, CodeType] = {}

    def run(text: str, names: dict[str, Any], made: dict[str, Any]) -> None:
        known[_key(text)] = code = compile(text, "<string>", "exec")
        exec(code, names, made)  # noqa: S102

    with _instead_of_exec(run):
        for name in ("aws.wiring", "lambdas.metrics"):
            importlib.import_module(f"{__name__.partition('.')[0]}.{name}")
    with open(path, "wb") as file:
        # The second format has no references in it, which depend on chance: the same build gives the same bytes.
        marshal.dump((_TAG, dict(sorted(known.items()))), file, 2)
    return len(known)


@contextmanager
def _instead_of_exec(run: Any) -> Iterator[None]:
    """A global name comes before a built-in one."""
    dataclasses.exec = run  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del dataclasses.exec  # type: ignore[attr-defined]
