"""Records as plain JSON values and back. Fields that hold their default are left out, to keep a large job small."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from .effects import EFFECTS
from .errors import Bug
from .model import Job, Node

T = TypeVar("T")
_EFFECT_BY_NAME = {kind.__name__: kind for kind in EFFECTS}


def dump(value: Any) -> Any:
    """A record as dicts, lists, strings and numbers."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple | list):
        return [dump(item) for item in value]
    if isinstance(value, Mapping):
        return {key: dump(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        out = {name: dump(item) for name, default in _defaults(type(value)) if (item := getattr(value, name)) != default}
        if isinstance(value, EFFECTS):
            out["do"] = type(value).__name__
        return out
    raise Bug(f"cannot write a {type(value).__name__} into a record")


def load_job(data: Mapping[str, Any]) -> Job:
    return _load(Job, data)


def load_node(data: Mapping[str, Any]) -> Node:
    return _load(Node, data)


@cache
def _defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    rows = []
    for f in fields(kind):
        default = f.default if f.default is not MISSING else f.default_factory() if f.default_factory is not MISSING else MISSING
        rows.append((f.name, default))
    return tuple(rows)


def _load(kind: type[T], data: Mapping[str, Any]) -> T:
    readers = _readers(kind)  # type: ignore[arg-type]
    return kind(**{name: readers[name](value) for name, value in data.items() if name in readers})


@cache
def _readers(kind: type) -> dict[str, Callable[[Any], Any]]:
    hints = get_type_hints(kind)
    return {f.name: _reader(hints[f.name]) for f in fields(kind)}


def _reader(hint: Any) -> Callable[[Any], Any]:
    """How a field of this type is read back."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        options = [arg for arg in get_args(hint) if arg is not type(None)]
        if all(isinstance(option, type) and option in EFFECTS for option in options):
            return _effect
        inner = _reader(options[0])
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        item = _reader(get_args(hint)[0])
        return lambda value: tuple(map(item, value))
    if origin is not None and issubclass(origin, Mapping):
        return dict
    if hint is datetime:
        return datetime.fromisoformat
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value: _load(hint, value)
    return _same


def _same(value: Any) -> Any:
    return value


def _effect(value: Mapping[str, Any]) -> Any:
    kind = _EFFECT_BY_NAME.get(str(value.get("do")))
    if kind is None:
        raise Bug(f"unknown order {value.get('do')!r} in an outbox")
    return _load(kind, value)
