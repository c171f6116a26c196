"""Records as plain JSON values and back. Fields that hold their default are left out, to keep a large job small."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache, lru_cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from .effects import EFFECTS
from .errors import Bug
from .model import Entry, Job, Node

T = TypeVar("T")
_EFFECT_BY_NAME = {kind.__name__: kind for kind in EFFECTS}


def dump(value: Any) -> Any:
    """A record as dicts, lists, strings and numbers."""
    kind = type(value)
    writer = _WRITERS.get(kind)
    if writer is None:
        writer = _WRITERS[kind] = _writer(kind)
    return writer(value)


def _writer(kind: type) -> Callable[[Any], Any]:
    """How a value of this type is written; looked up once per type."""
    if issubclass(kind, Enum):
        return _value_of
    if issubclass(kind, datetime):
        return datetime.isoformat
    if issubclass(kind, tuple | list):
        return lambda value: [dump(item) for item in value]
    if issubclass(kind, Mapping):
        return lambda value: {key: dump(item) for key, item in value.items()}
    if is_dataclass(kind):
        return _record_writer(kind)
    raise Bug(f"cannot write a {kind.__name__} into a record")


def _record_writer(kind: type) -> Callable[[Any], Any]:
    rows = _defaults(kind)
    name = kind.__name__ if kind in EFFECTS else ""

    def write(value: Any) -> dict[str, Any]:
        out = {}
        for field, default in rows:
            item = getattr(value, field)
            if item is not default and item != default:
                out[field] = dump(item)
        if name:
            out["do"] = name
        return out

    return write if kind is not Entry else cache_of(write)


def cache_of(write: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Timeline entries never change and are written again with every version of their record."""
    return lru_cache(maxsize=8192)(write)


def _value_of(value: Any) -> Any:
    return value.value


def _same(value: Any) -> Any:
    return value


_WRITERS: dict[type, Callable[[Any], Any]] = dict.fromkeys((type(None), bool, int, float, str), _same)


def load_job(data: Mapping[str, Any]) -> Job:
    return _load(Job, data)


def load_node(data: Mapping[str, Any]) -> Node:
    return _load(Node, data)


def load_entry(data: Mapping[str, Any]) -> Entry:
    return _load(Entry, data)


@cache
def _defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    rows = []
    for f in fields(kind):
        default = (
            f.default
            if f.default is not MISSING
            else f.default_factory()
            if f.default_factory is not MISSING
            else MISSING
        )
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


def _effect(value: Mapping[str, Any]) -> Any:
    kind = _EFFECT_BY_NAME.get(str(value.get("do")))
    if kind is None:
        raise Bug(f"unknown order {value.get('do')!r} in an outbox")
    return _load(kind, value)


def whole(value: Any) -> Any:
    """A record as JSON values with every field: a script must not have to know the defaults."""
    if is_dataclass(value) and not isinstance(value, type):
        out = {f.name: whole(getattr(value, f.name)) for f in fields(value)}
        return {"do": type(value).__name__, **out} if isinstance(value, EFFECTS) else out
    if isinstance(value, tuple | list):
        return [whole(item) for item in value]
    return dump(value)
