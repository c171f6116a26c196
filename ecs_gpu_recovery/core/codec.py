"""Records as JSON and back. Fields that hold their default are left out, to keep a large job small.

Two releases may work on the same records: docs/decisions/0013-the-format-of-records.md.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from datetime import datetime
from enum import Enum
from functools import cache, lru_cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from .effects import EFFECTS
from .errors import Bug, NewerRecord, Unreadable
from .guard import FleetGuard
from .model import Entry, Job
from .node_record import Node

T = TypeVar("T")
#: What older records may still have in their outbox.
_NO_ORDERS = ("WriteRows", "LabelNodes")
Owed = tuple[tuple[int, int], ...]
#: Written into every record. It is raised only when an older release must not touch a record any more: a field that
#: an older release may leave as it is needs no new number. A record without a number is of format 1. In format 2 jobs
#: hand nodes over, whose own records decide then.
FORMAT = 2
#: In what is written, and no field of a record: the kind of an order, the format of a record.
_DO, _FORMAT = "do", "format"
#: The field of every part that holds what this release does not know of it.
_REST = "unknown_fields"
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
        out = json.loads(value.unknown_fields) if value.unknown_fields else {}
        for field, default in rows:
            item = getattr(value, field)
            if item is not default and item != default:
                out[field] = dump(item)
        if name:
            out[_DO] = name
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


def to_text(value: Any) -> str:
    return json.dumps(dump(value), separators=(",", ":"))


def told_job(data: Mapping[str, Any]) -> Job:
    """As a console tells it, with more beside the fields of the record, which is for people."""
    return replace(_load(Job, data), unknown_fields="")


def told_node(data: Mapping[str, Any]) -> Node:
    return replace(_load(Node, data), unknown_fields="")


def load_entry(data: Mapping[str, Any]) -> Entry:
    return _load(Entry, data)


class Codec:
    """How one release writes jobs and nodes and reads them again. Tests make another release's."""

    def __init__(self, job: type[Job] = Job, node: type[Node] = Node, format: int = FORMAT) -> None:
        self._job, self._node, self.format = job, node, format

    def text(self, record: Job | Node | FleetGuard) -> str:
        return json.dumps({_FORMAT: self.format, **dump(record)}, separators=(",", ":"))

    def job(self, name: str, text: str | bytes, owed: Owed = ()) -> Job:
        """`owed` is kept beside the record, see `Job.owed`. Raises `Unreadable`, or `NewerRecord`."""
        return self._read(
            "job", name, text, lambda data: _load(self._job, _orders_known(_with_owed(data, owed)))
        )

    def node(self, name: str, text: str | bytes) -> Node:
        return self._read("node", name, text, lambda data: _load(self._node, _orders_known(data)))

    def guard(self, cluster: str, text: str | bytes) -> FleetGuard:
        return self._read("fleet", cluster, text, lambda data: _load(FleetGuard, data))

    def _read(self, kind: str, name: str, text: str | bytes, load: Callable[[dict[str, Any]], T]) -> T:
        try:
            data = json.loads(text)
            written = data.pop(_FORMAT, 1)
            if written <= self.format:
                return load(data)
        except (ValueError, TypeError, KeyError, AttributeError, Bug) as exc:
            raise Unreadable(kind, name, f"{type(exc).__name__}: {exc}") from exc
        raise NewerRecord(kind, name, f"its format is {written}, and this release knows {self.format}")


CODEC = Codec()


def _with_owed(data: dict[str, Any], owed: Owed) -> dict[str, Any]:
    """In older records the rows that are owed are an order in the outbox, which does not always say whose."""
    if any(order["effect"].get(_DO) == "WriteRows" for order in data.get("outbox", ())):
        owed = tuple((index, data.get("version", 0)) for index in range(len(data["ranks"])))
    return {**data, "owed": owed} if owed else data


def _orders_known(data: dict[str, Any]) -> dict[str, Any]:
    """Rows and labels are orders no more: rows are owed, and the sweeper puts right whatever a label says."""
    outbox = data.get("outbox", ())
    return {**data, "outbox": [order for order in outbox if order["effect"].get(_DO) not in _NO_ORDERS]}


@cache
def _defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    rows = []
    for f in fields(kind):
        if f.name == _REST:
            continue
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
    known = {name: readers[name](value) for name, value in data.items() if name in readers}
    if len(known) < len(data):
        rest = {name: value for name, value in data.items() if name not in known and name != _DO}
        if rest:
            known[_REST] = json.dumps(rest, separators=(",", ":"))
    return kind(**known)


@cache
def _readers(kind: type) -> dict[str, Callable[[Any], Any]]:
    hints = get_type_hints(kind)
    return {f.name: _reader(hints[f.name]) for f in fields(kind) if f.name != _REST}


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
    kind = _EFFECT_BY_NAME.get(str(value.get(_DO)))
    if kind is None:
        raise Bug(f"unknown order {value.get(_DO)!r} in an outbox")
    return _load(kind, value)


def whole(value: Any) -> Any:
    """A record as JSON values with every field: a script must not have to know the defaults."""
    if is_dataclass(value) and not isinstance(value, type):
        out = {f.name: whole(getattr(value, f.name)) for f in fields(value) if f.name != _REST}
        return {_DO: type(value).__name__, **out} if isinstance(value, EFFECTS) else out
    if isinstance(value, tuple | list):
        return [whole(item) for item in value]
    return dump(value)
