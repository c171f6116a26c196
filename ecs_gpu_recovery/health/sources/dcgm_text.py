"""dcgmi's tables for people, brought into the shape of its JSON, so that both are judged by one reader.

What a table does not say stays out: a status in another place, or a table cut off, is no result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_STATUS = re.compile(r"(pass|fail|warn|skip)(?:ed|ure|ing|ped)?\b\s*(?:-\s*(.*))?", re.IGNORECASE)
_ONE_GPU = re.compile(r"GPU\s*([0-9]{1,3})\s*:\s*(pass|fail|warn|skip)\w*\b", re.IGNORECASE)
_HEADING = re.compile(r"\|\s*Diagnostic\s*\|\s*Result\s*\|", re.IGNORECASE)
_OVERALL = re.compile(r"\|\s*Overall Health\s*[:|]\s*(Healthy|Warning|Failure)\b", re.IGNORECASE)
_DEVICE = re.compile(r"(?:->\s*|GPU(?: ID)?:?\s*)([0-9]{1,3})")
_SYSTEM = re.compile(r"(?:->\s*)?([\w /]*\w)\s*(?:system)?", re.IGNORECASE)
_INLINE = re.compile(r"([\w /]+?system)s?:\s*(Failure|Warning)\s*-\s*(.*)", re.IGNORECASE)
_BAD = ("failure", "warning")
_LONGEST = 2000


class _Test:
    """One row of the table with the rows that belong to it."""

    def __init__(self, name: str, status: str, which: str) -> None:
        self.name = name
        self.results: list[tuple[str, str]] = [(status, which)]
        """Status and GPUs."""
        self.said: list[str] = []

    def to_json(self) -> dict[str, object]:
        """The rows of single GPUs are the results; the row of the test sums them up, and may know more than they do."""
        each = [(status, which) for status, which in self.results if which]
        results: list[dict[str, object]] = []
        for status, which in each or self.results:
            result: dict[str, object] = {
                "status": status,
                "warnings": [t for t in self.said if _about(t, which)],
            }
            if which:
                result["gpu_ids"] = which
            results.append(result)
        worst = next(
            (s for s in ("fail", "warn") for status, _ in self.results if status.lower().startswith(s)), ""
        )
        summary: dict[str, object] = {"status": worst, "warnings": self.said} if each else {}
        return {"name": self.name, "results": results, "test_summary": summary}


def diag(text: str) -> dict[str, object] | None:
    """The table of `dcgmi diag` as the JSON would have it, or None if there is none in the text."""
    if not _HEADING.search(text):
        return None
    tests: list[_Test] = []
    said: list[str] = []
    for name, value in _rows(text):
        status, one, word = _STATUS.fullmatch(value.strip()), _ONE_GPU.match(value.strip()), name.lower()
        if word.startswith(("warning", "error")):
            if not tests or (word.startswith("error") and not _complains(tests[-1])):
                tests.append(_Test("deployment", "fail" if word.startswith("error") else "warn", ""))
            device = re.search(r"GPU\s*([0-9]{1,3})", name)
            said = tests[-1].said
            said.append(f"GPU {device[1]} {value}" if device else value)
        elif word.startswith("info"):
            said = []  # what follows belongs to it, and complains of nothing
        elif status and (name or tests):
            if name:
                tests.append(_Test(name, status[1], _numbers(status)))
            else:  # the same test, for the other GPUs
                tests[-1].results.append((status[1], _numbers(status)))
            said = []
        elif not name and one and tests:
            tests[-1].results.append((one[2], one[1]))
        elif not name and said:
            said[-1] = _joined(said[-1], value)
    return {"test_categories": [{"tests": [test.to_json() for test in tests]}]}


def _complains(test: _Test) -> bool:
    return any(status.lower().startswith(("fail", "warn")) for status, _ in test.results)


def _numbers(status: re.Match[str]) -> str:
    after = status[2] or ""
    return ", ".join(re.findall(r"[0-9]+", after)) if "gpu" in after.lower() else ""


def _about(text: str, which: str) -> bool:
    named = re.search(r"\bGPU\s*([0-9]{1,3})\b", text)
    return named is None or not which or named[1] in which.split(", ")


def health(text: str) -> dict[str, object] | None:
    """The table of `dcgmi health -c` as the JSON's body, or None if there is none in the text."""
    overall = _OVERALL.search(text)
    if overall is None:
        return None
    devices: dict[str, dict[str, object]] = {}
    texts: list[str] = []
    systems: dict[str, dict[str, object]] = {}
    for name, value in _rows(text):
        device, inline = _DEVICE.fullmatch(name), _INLINE.match(value.strip())
        value = value if not name else value.strip()
        if device:
            systems, texts = {}, []
            devices[device[1]] = {"value": value, "children": {"Errors": {"children": systems}}}
        elif not name and inline:
            texts = [inline[3]]
            systems[inline[1]] = {"value": inline[2], "overflow": texts}
        elif not name:
            texts[:] = [_joined(texts[0], value)] if texts else [value.strip()]
        elif (system := _SYSTEM.fullmatch(name)) and value.split(" ", 1)[0].lower() in _BAD and devices:
            texts = [value.partition(" ")[2]] if " " in value else []
            systems[system[1]] = {"value": value.split(" ", 1)[0], "overflow": texts}
        else:
            texts = []
    return {"Overall Health": {"value": overall[1]}, "GPU": {"children": devices}}


def _joined(before: str, more: str) -> str:
    """Cells are cut at a fixed width, often in the middle of a word. The reader of messages minds no blanks."""
    return f"{before}{'' if more.startswith(' ') else ' '}{more}"[:_LONGEST]


def _rows(text: str) -> Iterator[tuple[str, str]]:
    """Name and value of every row with two cells; a row whose name is empty goes on with the one before."""
    for line in text.splitlines():
        row = line[:_LONGEST].strip()
        if row.startswith("|") and row.endswith("|") and not row.startswith(("|--", "|==")):
            name, _, cell = row[1:-1].partition("|")
            if name.strip() or cell.strip():
                yield name.strip(), cell.removeprefix(" ").rstrip("| ")
