"""nvidia-smi in its dialects: XML (-q -x), text (-q), tables (--query-gpu ... --format=csv), the overview.

XML is what the live check asks for. The others are read because that is what people keep from a bad night.
All are brought to one flat form first; `smi_fields` knows what the names mean.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

# Expat neither fetches what a DOCTYPE points to nor, since 2.4.1, expands entities without bound.
from xml.etree import ElementTree

from ecs_gpu_recovery.health.sources import smi_fields
from ecs_gpu_recovery.health.sources.gpus import GpuState
from ecs_gpu_recovery.health.sources.kernel_log import bus_id

_OPENING, _CLOSING = "<nvidia_smi_log", "</nvidia_smi_log>"
_COMPLAINT = re.compile(
    r"Unable to determine the device handle for GPU\s*(?:(?P<index>[0-9]{1,3})(?::\s+|(?=:)))?"
    r"(?P<gpu>[0-9A-Fa-f:.]*?)\s*:\s*(?P<text>(?![0-9A-F]{2}:)[A-Z][^\n]{0,200})",
    re.IGNORECASE,
)
_ALL_LOST = re.compile(r"Failed to initialize NVML: GPU is lost[^\n]{0,200}", re.IGNORECASE)
_GONE = re.compile(r"GPU is lost|Unknown Error", re.IGNORECASE)
_REFUSED = re.compile(
    r"access blocked|Insufficient Permissions|No Permission|Driver Not Loaded", re.IGNORECASE
)
_NO_DRIVER = re.compile(
    r"couldn't communicate with the NVIDIA driver|couldn't find libnvidia-ml|Failed to initialize NVML[^\n]{0,200}"
    r"|Driver/library version mismatch|command not found|executable file not found|Insufficient Permissions"
    r"|GPU access blocked by the operating system|No devices (?:were )?found[^\n]{0,200}",
    re.IGNORECASE,
)
_NO_DEVICES = re.compile(r"No devices were found(?!\. Please make sure)")
_ATTACHED = re.compile(r"<attached_gpus>\s*([0-9]{1,4})\s*<|^Attached GPUs\s+:\s*([0-9]{1,4})", re.MULTILINE)
_VERSION = re.compile(r"(?:<driver_version>|Driver Version\s{0,60}:)\s{0,9}([0-9][0-9.]{0,20})")
_GPU_LINE = re.compile(
    r"^GPU\s+([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-9])?)\s*$", re.MULTILINE
)
_OVERVIEW = re.compile(
    r"\|\s*([0-9]{1,3})\s+(\S.*?)\s+(?:On|Off|N/A|ERR!|TCC|WDDM|MCDM)\s*\|"
    r"\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9]|ERR!)\s+\S+\s*\|(?:\s*([0-9]{1,9})\s*\|)?"
)
_BROKEN = re.compile(r"ERR!|Unknown Error", re.IGNORECASE)
_DRAWN = re.compile(r"[|+][-=+]")
_WIDEST = 300
_BRACKETED = re.compile(r"\[GPU (?:is lost|requires reset)\]", re.IGNORECASE)
_VOLATILE = "ecc.errors.uncorrected.volatile.total"
_MOST_DOCUMENTS = 1000
_LONGEST = 4000
_ENOUGH = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SmiOutput:
    """What one run of nvidia-smi told: the GPUs, or why there are none."""

    gpus: tuple[GpuState, ...] = ()
    problem: str | None = None
    """Set when the output says nothing about GPUs."""
    no_devices: bool = False
    """The driver works and has no GPU at all."""
    in_part: bool = False
    """Only some of the GPUs were asked about, so their number says nothing."""
    driver: str = ""
    """Its version, where that is told."""


def parse(text: str) -> SmiOutput:
    """Whatever of these it is; anything else is a problem, not a GPU without faults."""
    text = text.replace("\x00", "")
    gpus, problem = _xml(text)
    gpus = _merged(gpus, _long_text(text), _overview(text))
    if not gpus:
        gpus, of_table = _table(text)
        problem = problem or of_table
    gpus = _merged(_complaints(text), gpus)
    if gpus:
        attached = [int(found[1] or found[2]) for found in _ATTACHED.finditer(text)]
        version = _VERSION.search(text[:_ENOUGH])
        driver = version[1] if version else ""
        return SmiOutput(gpus=gpus, in_part=bool(attached) and attached[-1] > len(gpus), driver=driver)
    start = text[:_ENOUGH]
    if _NO_DEVICES.search(start) or re.search(r"<attached_gpus>\s*0\s*<", start):
        return SmiOutput(problem="nvidia-smi shows no GPU", no_devices=True)
    words = _NO_DRIVER.search(start)
    return SmiOutput(problem=f"nvidia-smi: {words[0].strip()}" if words else problem)


def _merged(*sources: Iterable[GpuState]) -> tuple[GpuState, ...]:
    """Each GPU once: as the first source tells of it that knows it, and of several looks the last."""
    known: dict[str, GpuState] = {}
    nameless: list[GpuState] = []
    for source in sources:
        latest: dict[str, GpuState] = {}
        for gpu in source:
            if gpu.label is None:
                nameless.append(gpu)
            else:
                latest[gpu.label] = gpu
        known = {**latest, **known}
    return (*known.values(), *nameless)


def _complaints(text: str) -> Iterator[GpuState]:
    """GPUs that nvidia-smi only complains about; the list it prints leaves them out."""
    for found in _COMPLAINT.finditer(text) if "device handle" in text else ():
        words = found["text"]
        device = bus_id(found["gpu"])
        index = int(found["index"]) if found["index"] and device is None else None
        said = " ".join(found[0].split())
        if smi_fields.RESET_WORDS.search(words):
            yield GpuState(bus_id=device, index=index, reset_required=True)
        elif _GONE.search(words):
            yield GpuState(bus_id=device, index=index, lost=said)
        elif not _REFUSED.search(words):
            yield GpuState(bus_id=device, index=index, error=said)
    if "initialize NVML" in text and (all_lost := _ALL_LOST.search(text)):
        yield GpuState(lost=all_lost[0].strip())


def _xml(text: str) -> tuple[tuple[GpuState, ...], str]:
    """Every document in the text. One that is cut off counts for nothing, and is told if there is no other."""
    gpus: list[GpuState] = []
    problem = ""
    for part in text.split(_OPENING)[1:][-_MOST_DOCUMENTS:]:
        try:
            root = ElementTree.fromstring(_OPENING + part.partition(_CLOSING)[0] + _CLOSING)  # noqa: S314
        except ElementTree.ParseError as error:
            problem = f"nvidia-smi XML cannot be read: {error}"
            continue
        problem = problem or "nvidia-smi XML without a GPU"
        for index, element in enumerate(root.iter("gpu")):
            flat = {"bus id": element.get("id", "")}
            _flatten(element, "", flat)
            gpus.append(smi_fields.state(flat, index))
    return tuple(gpus), problem


def _flatten(element: ElementTree.Element, path: str, into: dict[str, str]) -> None:
    for child in element:
        name = child.tag.replace("_", " ").lower()
        here = f"{path}/{name}" if path else name
        if len(child):
            _flatten(child, here, into)
        else:
            into.setdefault(here, (child.text or "").strip())


def _long_text(text: str) -> Iterator[GpuState]:
    """`nvidia-smi -q`: names and values, nesting by indentation."""
    if not _GPU_LINE.search(text):
        return
    flat: dict[str, str] | None = None
    stack: list[tuple[int, str]] = []
    index = 0
    for line in text.splitlines():
        if found := _GPU_LINE.match(line.strip()[:40]):
            if flat is not None:
                yield smi_fields.state(flat, index)
                index += 1
            flat, stack = {"bus id": found[1]}, []
        elif flat is not None and line.strip():
            _text_line(line[:_LONGEST], stack, flat)
    if flat is not None:
        yield smi_fields.state(flat, index)


def _text_line(line: str, stack: list[tuple[int, str]], flat: dict[str, str]) -> None:
    name, colon, value = line.partition(" : ")
    key = name.strip().lower()
    depth = len(line) - len(line.lstrip())
    while stack and stack[-1][0] >= depth:
        stack.pop()
    if colon:
        flat.setdefault("/".join([*(outer for _, outer in stack), key]), value.strip())
    elif key:
        stack.append((depth, key))


def _overview(text: str) -> Iterator[GpuState]:
    """The picture that plain `nvidia-smi` draws: of a GPU's health it knows the uncorrected errors only.

    What the driver answers with an error is shown as ERR!, and a GPU that waits for a reset says so in a cell of its
    rows. A GPU has two rows or three, up to the next line that is drawn.
    """
    lines = text.splitlines()
    for place, line in enumerate(lines):
        found = _OVERVIEW.search(line[:_WIDEST]) if "|" in line else None
        if found is None:
            continue
        below = takewhile(_is_same_gpu, (row[:_WIDEST] for row in lines[place + 1 : place + 6]))
        rows = [line[:_WIDEST], *below]
        index, name, device, errors = found.groups()
        flat = {"index": index, "name": name.strip(), "bus id": device, _VOLATILE: errors or ""}
        state = smi_fields.state(flat | {"rows": " ".join(rows)}, int(index))
        broken = sum(len(_BROKEN.findall(row)) for row in rows)
        if broken and not state.reset_required and not state.lost:
            state = replace(state, error=f"nvidia-smi shows ERR! in {broken} cell(s)")
        yield state


def _is_same_gpu(line: str) -> bool:
    """Neither a line that is drawn between GPUs nor the first row of the next."""
    return not _DRAWN.match(line.strip()) and not _OVERVIEW.search(line)


def _table(text: str) -> tuple[tuple[GpuState, ...], str]:
    """--format=csv with its header line; without one the numbers mean nothing, and only a lost GPU is told."""
    lines = [line[:_LONGEST] for line in text.splitlines() if "," in line]
    for place, line in enumerate(lines):
        names = _names(line)
        if smi_fields.COLUMNS.isdisjoint(names):
            continue
        if not smi_fields.NOT_GPUS.isdisjoint(names):
            return (), "the table has a row for each page or program, and says nothing about the GPUs"
        try:
            rows = list(csv.reader(lines[place + 1 :], skipinitialspace=True))
        except csv.Error as error:
            return (), f"nvidia-smi table cannot be read: {error}"
        full = [row for row in rows if len(row) == len(names) and row[0].strip().lower() != names[0]]
        states = [smi_fields.state(row, None) for row in _latest(names, full)]
        if not any(name.startswith(smi_fields.HEALTH_COLUMNS) for name in names):
            states = [state for state in states if state.lost or state.error or state.reset_required]
            return tuple(states), "the table lists GPUs and says nothing about their health"
        return tuple(states), "nvidia-smi table without a row"
    states = [smi_fields.state({"": line}, None) for line in lines if _BRACKETED.search(line)]
    return tuple(
        states
    ), "this is not the output of nvidia-smi -q -x, nvidia-smi -q or nvidia-smi --query-gpu"


def _latest(names: list[str], rows: list[list[str]]) -> list[dict[str, str]]:
    """The last row of each GPU: people let nvidia-smi write one every second, for days."""
    own = next((names.index(name) for name in smi_fields.IDENTITIES if name in names), None)
    last = {row[own].strip() if own is not None else str(place): row for place, row in enumerate(rows)}
    return [dict(zip(names, map(str.strip, row), strict=True)) for row in last.values()]


def _names(line: str) -> list[str]:
    return [re.sub(r"\s*\[[^\]]*\]\s*$", "", name.strip()).lower() for name in line.split(",")]
