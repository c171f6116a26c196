"""nvidia-smi in its dialects: XML (-q -x), text (-q), tables (--query-gpu ... --format=csv), the overview.

XML is what the live check asks for. The others are read because that is what people keep from a bad night.
All are brought to one flat form first; `smi_fields` knows what the names mean.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass

# Expat neither fetches what a DOCTYPE points to nor, since 2.4.1, expands entities without bound.
from xml.etree import ElementTree

from ecs_gpu_recovery.health import smi_fields
from ecs_gpu_recovery.health.gpus import GpuState
from ecs_gpu_recovery.health.kernel_log import bus_id

_CLOSING = "</nvidia_smi_log>"
_LOST = re.compile(
    r"Unable to determine the device handle for GPU\s*(?P<gpu>[0-9A-Fa-f:.]*?)\s*:\s*"
    r"(?P<text>(?:GPU is lost|Unknown Error|GPU requires reset)[^\n]*)",
    re.IGNORECASE,
)
_NO_DRIVER = re.compile(
    r"couldn't communicate with the NVIDIA driver|Failed to initialize NVML[^\n]*"
    r"|Driver/library version mismatch|command not found|Insufficient Permissions",
    re.IGNORECASE,
)
_NO_DEVICES = re.compile(r"No devices were found", re.IGNORECASE)
_GPU_LINE = re.compile(
    r"^GPU\s+([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-9])?)\s*$", re.MULTILINE
)
_OVERVIEW = re.compile(
    r"^\|\s*([0-9]{1,3})\s+(\S.*?)\s+(?:On|Off|N/A)\s*\|"
    r"\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9])\s+\S+\s*\|\s*([0-9]{1,9}|N/A|Off|ERR!)\s*\|",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmiOutput:
    """What one run of nvidia-smi told: the GPUs, or why there are none."""

    gpus: tuple[GpuState, ...] = ()
    problem: str | None = None
    """Set when the output says nothing about GPUs."""
    no_devices: bool = False
    """The driver works and has no GPU at all."""


def parse(text: str) -> SmiOutput:
    """Whatever of these it is; anything else is a problem, not a GPU without faults."""
    text = text.replace("\x00", "")
    start = text.find("<nvidia_smi_log")
    if start >= 0:
        gpus, problem = _xml(text[start:])
    elif _GPU_LINE.search(text):
        gpus, problem = tuple(_long_text(text)), "nvidia-smi text without a GPU"
    elif rows := _OVERVIEW.findall(text):
        gpus, problem = tuple(map(_overview, rows)), ""
    else:
        gpus, problem = _table(text)
    known = {gpu.bus_id for gpu in gpus}
    every = (*gpus, *(gpu for gpu in _lost_gpus(text) if gpu.bus_id is None or gpu.bus_id not in known))
    if every:
        return SmiOutput(gpus=every)
    if _NO_DEVICES.search(text) or re.search(r"<attached_gpus>\s*0\s*<", text):
        return SmiOutput(problem="nvidia-smi shows no GPU", no_devices=True)
    words = _NO_DRIVER.search(text)
    return SmiOutput(problem=f"nvidia-smi: {words[0].strip()}" if words else problem)


def _lost_gpus(text: str) -> Iterator[GpuState]:
    """GPUs that nvidia-smi only complains about; the list it prints leaves them out."""
    for found in _LOST.finditer(text):
        device = bus_id(found["gpu"])
        if smi_fields.RESET_WORDS.search(found["text"]):
            yield GpuState(bus_id=device, reset_required=True)
        else:
            yield GpuState(bus_id=device, lost=" ".join(found[0].split()))


def _xml(text: str) -> tuple[tuple[GpuState, ...], str]:
    end = text.rfind(_CLOSING)
    try:
        root = ElementTree.fromstring(text[: end + len(_CLOSING)] if end >= 0 else text)  # noqa: S314
    except ElementTree.ParseError as error:
        return (), f"nvidia-smi XML cannot be read: {error}"
    gpus = []
    for index, element in enumerate(root.iter("gpu")):
        flat = {"bus id": element.get("id", "")}
        _flatten(element, "", flat)
        gpus.append(smi_fields.state(flat, index))
    return tuple(gpus), "nvidia-smi XML without a GPU"


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
    flat: dict[str, str] | None = None
    stack: list[tuple[int, str]] = []
    index = 0
    for line in text.splitlines():
        if found := _GPU_LINE.match(line.strip()):
            if flat is not None:
                yield smi_fields.state(flat, index)
                index += 1
            flat, stack = {"bus id": found[1]}, []
        elif flat is not None:
            _text_line(line, stack, flat)
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


def _overview(row: tuple[str, str, str, str]) -> GpuState:
    """The picture that plain `nvidia-smi` draws: of a GPU's health it knows the uncorrected errors only."""
    index, name, device, errors = row
    if errors == "ERR!":
        return GpuState(
            index=int(index),
            name=name.strip(),
            bus_id=bus_id(device),
            error="nvidia-smi shows ERR! for the memory",
        )
    flat = {"index": index, "name": name, "bus id": device, "ecc.errors.uncorrected.volatile.total": errors}
    return smi_fields.state(flat, int(index))


def _table(text: str) -> tuple[tuple[GpuState, ...], str]:
    """--format=csv with its header line; without one nobody can tell what the numbers are."""
    lines = [line for line in text.splitlines() if line.strip()]
    for place, line in enumerate(lines):
        names = [re.sub(r"\s*\[[^\]]*\]\s*$", "", name.strip()).lower() for name in line.split(",")]
        if smi_fields.COLUMNS.isdisjoint(names):
            continue
        try:
            rows = list(csv.reader(lines[place + 1 :], skipinitialspace=True))
        except csv.Error as error:
            return (), f"nvidia-smi table cannot be read: {error}"
        full = [[cell.strip() for cell in row] for row in rows if len(row) == len(names)]
        states = [smi_fields.state(dict(zip(names, row, strict=True)), None) for row in full]
        if not any(name.startswith(smi_fields.HEALTH_COLUMNS) for name in names):
            states = [state for state in states if state.lost or state.error]
            return tuple(states), "the table lists GPUs and says nothing about their health"
        return tuple(states), "nvidia-smi table without a row"
    return (), "this is not the output of nvidia-smi -q -x, nvidia-smi -q or nvidia-smi --query-gpu"
