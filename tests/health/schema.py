"""As much of JSON Schema as the report's schema uses, so that checking it needs no library."""

from __future__ import annotations

from datetime import datetime
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}
KNOWN = {
    "$schema",
    "title",
    "description",
    "type",
    "required",
    "properties",
    "additionalProperties",
    "items",
    "enum",
    "const",
    "minimum",
    "format",
}


def problems(value: Any, schema: dict[str, Any], where: str = "report") -> list[str]:
    """Everything in which the value differs from the schema."""
    assert set(schema) <= KNOWN, f"{where}: this checker does not know {set(schema) - KNOWN}"
    found = []
    if "const" in schema and value != schema["const"]:
        found.append(f"{where}: {value!r} is not {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where}: {value!r} is not one of {schema['enum']}")
    if "type" in schema and not any(_is(value, name) for name in _names(schema["type"])):
        return [*found, f"{where}: {value!r} is no {schema['type']}"]
    if "minimum" in schema and value is not None and value < schema["minimum"]:
        found.append(f"{where}: {value!r} is below {schema['minimum']}")
    if schema.get("format") == "date-time" and value is not None:
        assert datetime.fromisoformat(value).tzinfo is not None
    if isinstance(value, dict):
        found += _object(value, schema, where)
    if isinstance(value, list) and "items" in schema:
        for place, item in enumerate(value):
            found += problems(item, schema["items"], f"{where}[{place}]")
    return found


def _object(value: dict[str, Any], schema: dict[str, Any], where: str) -> list[str]:
    properties = schema.get("properties", {})
    found = [f"{where}: {key} is missing" for key in schema.get("required", []) if key not in value]
    for key, item in value.items():
        if key in properties:
            found += problems(item, properties[key], f"{where}.{key}")
        elif schema.get("additionalProperties") is False:
            found.append(f"{where}: {key} is not in the schema")
    return found


def _names(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def _is(value: Any, name: str) -> bool:
    return isinstance(value, TYPES[name]) and not (isinstance(value, bool) and name in ("integer", "number"))
