"""Licences and versions of everything that is shipped: docs/licences.md, made from the locks and what is installed.

python -m tools.licences            write the page
python -m tools.licences --check    is it current, and is every licence one that we accept?
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "licences.md"
VENDORED = ROOT / "ecs_gpu_recovery" / "console" / "static" / "lib"
LOCKS = {
    "requirements/runtime.txt": "command, console",
    "requirements/console.txt": "console image",
    "requirements/lambda.txt": "functions",
    "requirements.txt": "deployment",
}
#: Licences that ask for no more than to be named.
ACCEPTED = frozenset(
    {"0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "PSF-2.0"}
)
#: What packages write where the name of a licence belongs, and what they mean.
NAMES = {
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd license": "BSD",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mit no attribution license (mit-0)": "MIT-0",
    "python software foundation license": "PSF-2.0",
}
#: How a licence text begins, for what comes as files.
TEXTS = {
    "Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee": "0BSD",
    "Permission is hereby granted, free of charge, to any person obtaining a copy of this software": "MIT",
}
_LOCKED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)([^\\\n]*)", re.MULTILINE)
_VERSION = re.compile(r"(?:version\s*[:=]\s*[\"']|\(v)(\d+\.\d+\.\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing that is shipped."""

    name: str
    version: str
    licences: tuple[str, ...]
    used_by: str

    @property
    def problem(self) -> str:
        strange = [one for one in self.licences if one not in ACCEPTED]
        if not self.licences:
            return f"{self.name} {self.version}: its licence is not known"
        return f"{self.name} {self.version}: {', '.join(strange)} is not accepted" if strange else ""


def licences_of(told: Mapping[str, list[str]]) -> tuple[str, ...]:
    """The licences in a package's metadata: as an expression, else as classifiers, else as it likes to say it."""
    for expression in told.get("License-Expression", []):
        return tuple(re.split(r"\s+(?:AND|OR)\s+", expression.strip("()")))
    known = [_name(c.rpartition("::")[2]) for c in told.get("Classifier", []) if c.startswith("License ::")]
    named = [name for name in known if name != "OSI Approved"]
    free = [
        _name(text) for text in told.get("License", []) if text and "\n" not in text and text != "UNKNOWN"
    ]
    return tuple(dict.fromkeys(named or free))


def _name(text: str) -> str:
    return NAMES.get(text.strip().lower(), text.strip())


def locked(text: str) -> list[tuple[str, str]]:
    """Names and versions of a lock, without those that are for Windows only: nothing of us runs there."""
    return [(name, version) for name, version, more in _LOCKED.findall(text) if "win32" not in more]


def packages() -> list[Part]:
    used: dict[tuple[str, str], list[str]] = {}
    for path, place in LOCKS.items():
        for found in locked((ROOT / path).read_text()):
            used.setdefault(found, []).append(place)
    parts = []
    for (name, version), places in used.items():
        told = metadata.metadata(name)
        if told["Version"] != version:
            raise SystemExit(f"{name} {told['Version']} is installed, and {version} is locked: run make env")
        every = {key: told.get_all(key) or [] for key in ("License-Expression", "License", "Classifier")}
        parts.append(Part(name=name, version=version, licences=licences_of(every), used_by=", ".join(places)))
    return parts


def vendored(folder: Path = VENDORED) -> list[Part]:
    """What lies in the package as files: each folder with its licence."""
    parts = []
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        text = " ".join((place / "LICENSE").read_text().split()) if (place / "LICENSE").exists() else ""
        licences = tuple(name for words, name in TEXTS.items() if words in text)
        scripts = [path.read_text(errors="replace") for path in sorted(place.glob("*.js"))]
        versions = [found[1] for script in scripts if (found := _VERSION.search(script))]
        version = versions[0] if versions else "unknown"
        parts.append(Part(name=place.name, version=version, licences=licences, used_by="console, as files"))
    return parts


def page(parts: Iterable[Part]) -> str:
    lines = [
        "<!-- Made by `python -m tools.licences` from the locks and the installed packages. -->",
        "",
        "# Licences",
        "",
        "Everything that is shipped or installed along, with its exact version. The project itself is MIT-0.",
        "What only the tests use is not listed. Accepted are: " + ", ".join(sorted(ACCEPTED)) + ".",
    ]
    rows = sorted(parts, key=lambda part: (part.used_by, part.licences, part.name.lower()))
    for used_by, group in groupby(rows, key=lambda part: part.used_by):
        lines += ["", f"## Used by: {used_by}", ""]
        for licences, some in groupby(group, key=lambda part: part.licences):
            lines.append(
                f"- {', '.join(licences)}: {', '.join(f'{part.name} {part.version}' for part in some)}"
            )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    parts = [*packages(), *vendored()]
    problems = [part.problem for part in parts if part.problem]
    text = page(parts)
    if check and (not PAGE.exists() or PAGE.read_text() != text):
        problems.append(f"{PAGE.relative_to(ROOT)} is not current. Run: python -m tools.licences")
    elif not check:
        PAGE.write_text(text)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
