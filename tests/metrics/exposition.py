"""A strict reader of Prometheus's text format 0.0.4. What a real scraper would refuse, it refuses."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(,|$)')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


@dataclass
class Family:
    help: str
    kind: str = ""
    samples: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)


def parse(text: str) -> dict[str, Family]:
    """Every family of metrics; raises on whatever the format does not allow."""
    assert text == "" or text.endswith("\n"), "the last line has no end"
    families: dict[str, Family] = {}
    current = ""
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            name, _, told = line[7:].partition(" ")
            assert re.fullmatch(_NAME, name), line
            assert name not in families, f"{name} comes twice"
            families[name], current = Family(told), name
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert name == current, f"the type of {name} does not follow its help"
            assert not families[name].kind, line
            assert not families[name].samples, line
            assert kind in ("counter", "gauge", "histogram", "summary", "untyped"), line
            families[name].kind = kind
        else:
            found = _SAMPLE.fullmatch(line)
            assert found, f"not a sample: {line!r}"
            assert found[1] == current, f"{found[1]} stands outside its family"
            labels = _labels(found[2]) if found[2] is not None else ()
            assert labels not in families[current].samples, f"twice: {line}"
            families[current].samples[labels] = float(found[3].replace("Inf", "inf"))
    assert all(family.kind and family.samples for family in families.values())
    return families


def _labels(text: str) -> tuple[tuple[str, str], ...]:
    found, at = [], 0
    while at < len(text):
        match = _LABEL.match(text, at)
        assert match, f"not labels: {text!r}"
        found.append((match[1], re.sub(r"\\.", lambda escape: _ESCAPES[escape[0]], match[2])))
        at = match.end()
    names = [name for name, _ in found]
    assert len(set(names)) == len(names), f"a label comes twice: {text}"
    return tuple(found)
