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


def diag(text: str) -> dict[str, object] | None:
    """The table of `dcgmi diag`, or None if there is none in the text."""
    if not _HEADING.search(text):
        return None
    tests: list[dict[str, object]] = []
    said: list[str] = []
    gpus: dict[str, str] = {}
    for name, value in _rows(text):
        status = _STATUS.fullmatch(value)
        one = _ONE_GPU.match(value)
        word = name.lower()
        if name and status and not word.startswith(("warning", "error", "info")):
            said, gpus = [], {}
            tests.append(_test(name, status, said, gpus))
        elif word.startswith(("warning", "error")) and tests:
            device = re.search(r"GPU\s*([0-9]{1,3})", name)
            said.append(f"GPU {device[1]} {value}" if device else value)
        elif word.startswith("info"):
            said = []  # what follows belongs to it, and complains of nothing
        elif not name and one and tests:
            gpus[one[1]] = one[2]
        elif not name and said:
            said[-1] = f"{said[-1]} {value}"
    return {"DCGM Diagnostic": {"test_categories": [{"tests": [_finished(test) for test in tests]}]}}


def _test(name: str, status: re.Match[str], said: list[str], gpus: dict[str, str]) -> dict[str, object]:
    which = ", ".join(re.findall(r"[0-9]+", status[2] or "")) if "gpu" in (status[2] or "").lower() else ""
    return {"name": name, "status": status[1], "which": which, "said": said, "gpus": gpus}


def _finished(test: dict[str, object]) -> dict[str, object]:
    """One result for the test, or one for each GPU where the table lists them."""
    gpus, said, which = test["gpus"], test["said"], test["which"]
    results: list[dict[str, object]] = [{"status": test["status"], "warnings": said}]
    if which:
        results[0]["gpu_ids"] = which
    if isinstance(gpus, dict) and isinstance(said, list) and gpus:
        results = [
            {"status": status, "gpu_id": gpu, "warnings": [t for t in said if _about(t, gpu)]}
            for gpu, status in gpus.items()
        ]
    return {"name": test["name"], "results": results}


def _about(text: str, gpu: str) -> bool:
    named = re.search(r"\bGPU\s*([0-9]{1,3})\b", text)
    return named is None or named[1] == gpu


def health(text: str) -> dict[str, object] | None:
    """The table of `dcgmi health -c`, or None if there is none in the text."""
    overall = _OVERALL.search(text)
    if overall is None:
        return None
    devices: dict[str, dict[str, object]] = {}
    texts: list[str] = []
    systems: dict[str, dict[str, object]] = {}
    for name, value in _rows(text):
        device, inline = _DEVICE.fullmatch(name), _INLINE.match(value)
        if device:
            systems, texts = {}, []
            devices[device[1]] = {"value": value, "children": {"Errors": {"children": systems}}}
        elif not name and inline:
            texts = [inline[3]]
            systems[inline[1]] = {"value": inline[2], "overflow": texts}
        elif not name:
            texts.append(value)
        elif (system := _SYSTEM.fullmatch(name)) and value.split(" ", 1)[0].lower() in _BAD and devices:
            texts = [value.partition(" ")[2]] if " " in value else []
            systems[system[1]] = {"value": value.split(" ", 1)[0], "overflow": texts}
        else:
            texts = []
    return {"body": {"Overall Health": {"value": overall[1]}, "GPU": {"children": devices}}}


def _rows(text: str) -> Iterator[tuple[str, str]]:
    """Name and value of every row with two cells; a row whose name is empty goes on with the one before."""
    for line in text.splitlines():
        row = line.strip()
        if row.startswith("|") and row.endswith("|") and not row.startswith(("|--", "|==")):
            cells = [cell.strip() for cell in row[1:-1].split("|", 1)]
            if len(cells) == 2 and any(cells):
                yield cells[0], cells[1].rstrip("| ")
