"""Where things are in this project, and which lock files it has."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".tools"
UV_LOCK = "uv"


class ProblemError(Exception):
    """Something a person has to see to. The text says what is missing and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """One lock file: the exact versions and hashes of everything some purpose needs."""

    name: str
    file: str
    extras: tuple[str, ...]
    requirements: tuple[str, ...]
    same_as: str | None
    python: str

    @property
    def path(self) -> Path:
        return ROOT / self.file

    @property
    def holds_the_package(self) -> bool:
        """A lock made from extras is for an environment that the package itself is installed into."""
        return bool(self.extras)

    def covers(self, other: Lock) -> bool:
        """Whether an environment with this lock can do all that one with the other can."""
        return bool(other.extras) and set(other.extras) <= set(self.extras)

    def inputs(self) -> str:
        """A digest of what was asked for. It changes when the lock has to be made again."""
        asked = [self.python, self.same_as, sorted(self.requirements)]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def settings() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def locks(pyproject: dict[str, Any] | None = None) -> dict[str, Lock]:
    """The locks that pyproject.toml declares, in its order: a lock follows the one it takes versions from."""
    pyproject = pyproject or settings()
    table: dict[str, Any] = pyproject["tool"]["locks"]
    return {
        name: _lock(name, entry, python=table["python"], project=pyproject["project"])
        for name, entry in table.items()
        if isinstance(entry, dict)
    }


def _lock(name: str, entry: dict[str, Any], *, python: str, project: dict[str, Any]) -> Lock:
    extras = tuple(entry.get("extras", ()))
    of_extras = [one for extra in extras for one in project["optional-dependencies"][extra]]
    return Lock(
        name=name,
        file=entry["file"],
        extras=extras,
        requirements=(*project["dependencies"], *of_extras) if extras else tuple(entry["requirements"]),
        same_as=entry.get("same-as"),
        python=python,
    )
