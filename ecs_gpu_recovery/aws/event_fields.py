"""Reading fields of JSON that nobody vouches for: each reader gives a value of one type, or none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

_ARN = re.compile(
    r"arn:aws(?:-[a-z]+)*:ecs:[a-z0-9-]+:[0-9]{12}:"
    r"(?P<sort>[a-z-]+)/(?:(?P<cluster>[A-Za-z0-9_-]{1,255})/)?(?P<id>[A-Za-z0-9_-]{1,255})"
)
_HOST = re.compile(r"m?i-[0-9A-Za-z]{4,40}")
#: Times that ECS writes have a date and a time of day; a date alone is no moment.
#: Of times that an event may name: a deadline before or after one of another year could not be counted.
_YEARS = (1970, 2200)
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]+(?:Z|[+-][0-9:]+)?", re.IGNORECASE)


_SORTS: dict[type, str] = {
    type(None): "nothing",
    bool: "true or false",
    str: "text",
    list: "a list",
    dict: "an object",
    int: "a number",
    float: "a fraction",
}


class Malformed(ValueError):
    """The event lacks what its kind must have; the sentence says what."""


@dataclass(frozen=True, slots=True)
class Arn:
    """An ECS name. The old format does not tell the cluster."""

    text: str
    cluster: str
    id: str


def arn(value: object, sort: str) -> Arn | None:
    """An ARN of this sort ("task", "container-instance", "cluster"), in any partition, old or new format."""
    match = _ARN.fullmatch(value) if isinstance(value, str) else None
    if match is None or match["sort"] != sort:
        return None
    return Arn(match[0], match["cluster"] or "", match["id"])


def id_of(arn: object) -> str:
    """The last part of a name that AWS gave; nothing of one that is missing."""
    return str(arn or "").rpartition("/")[2]


def family(task_definition: str) -> str:
    """The family of a task definition that is given as ARN, family:revision or family."""
    return id_of(task_definition).partition(":")[0]


def host(value: object) -> str:
    """An EC2 (i-) or managed (mi-) instance id."""
    return value if isinstance(value, str) and _HOST.fullmatch(value) else ""


def moment(value: object) -> datetime | None:
    """An ISO 8601 time as aware UTC. A time without a zone is UTC. One with which nobody could count is none."""
    if not isinstance(value, str) or len(value) > 40 or not _MOMENT.fullmatch(value):
        return None
    try:
        at = datetime.fromisoformat(value)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        return at if _YEARS[0] <= at.year <= _YEARS[1] else None
    except (ValueError, OverflowError):
        return None


def text(value: object) -> str:
    """A short word of AWS's: a status, a name, a code."""
    return line(value, 512)


def line(value: object, limit: int) -> str:
    """Free text on one line that any table can store: bounded, without broken characters."""
    if not isinstance(value, str):
        return ""
    clean = " ".join(value[: limit * 2].encode(errors="replace").decode().split())
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def name(value: object) -> str:
    """A job's or a node's name; anything else is none."""
    if not isinstance(value, str) or len(value) > 255:
        return ""
    return value if value.isprintable() and value == value.strip() else ""


def digits(value: object) -> int | None:
    """A count that travelled as text."""
    if not isinstance(value, str) or len(value) > 9:
        return None
    return int(value) if value.isascii() and value.isdecimal() else None


def whole(value: object) -> int | None:
    """A whole number of a size that means something; `true` is none."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if abs(value) < 2**53 else None


def member(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def members(value: object) -> list[dict[Any, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def strings(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def sort_of(value: object) -> str:
    """What a value is, in JSON's words."""
    return _SORTS.get(type(value), f"a {type(value).__name__}")
