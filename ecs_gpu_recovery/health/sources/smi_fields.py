"""Where each fact about a GPU stands in the output of nvidia-smi.

Names changed with driver generations and differ between XML, text and table: `smi_fields.toml` lists every name that a
field has had, and the first that holds a value counts. N/A and its kin are no value.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from ecs_gpu_recovery.health.sources import recovery
from ecs_gpu_recovery.health.sources.gpus import GpuState
from ecs_gpu_recovery.health.sources.kernel_log import bus_id

Fields = Mapping[str, str]
"""Path of lower-case words -> text, for one GPU."""

_NO_VALUE = frozenset({"N/A", "NOT SUPPORTED", "UNKNOWN ERROR", "UNKNOWN", "INSUFFICIENT PERMISSIONS", "-"})

#: Every name that a field has had, by how its value is read.
_NAMES: dict[str, dict[str, list[str]]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
_BUS_IDS = ("bus id", "pci.bus_id", "gpu_bus_id", "pci/pci bus id", "pci/bus id")

IDENTITIES = ("pci.bus_id", "gpu_bus_id", "uuid", "gpu_uuid", "index")
COLUMNS = frozenset({*IDENTITIES, "gpu_name", "name"})
"""A table whose header holds one of these speaks of GPUs."""

HEALTH_COLUMNS = ("ecc.errors.uncorrected.", "remapped_rows.", "retired_pages.", "gpu_recovery_action")
"""A table without any of these lists GPUs and says nothing about their health."""

_HEALTH_PARTS = ("ecc errors/", "remapped rows/", "retired pages/", "gpu recovery action")
"""The same in the long forms."""

NOT_GPUS = frozenset({"retired_pages.address", "retired_pages.cause", "pid", "used_gpu_memory"})
"""A table with one of these has a row for each page or program, and not for each GPU."""

LOST_WORDS = re.compile(r"gpu is lost|fallen off the bus", re.IGNORECASE)
RESET_WORDS = re.compile(r"gpu requires reset|reset required|gpu reset must occur", re.IGNORECASE)
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,6})?")


def state(flat: Fields, index: int | None) -> GpuState:
    """One GPU. `index` is its place in the output, used when the output does not give one."""
    everything = " ".join(flat.values())
    lost = LOST_WORDS.search(everything)
    action = first(flat, "gpu recovery action", "gpu_recovery_action")
    values: dict[str, object] = {"index": index}
    values |= {field: first(flat, *keys) for field, keys in _NAMES["words"].items()}
    values |= {field: _yes(flat, *keys) for field, keys in _NAMES["flags"].items()}
    values |= {field: number(first(flat, *keys)) for field, keys in _NAMES["measures"].items()}
    counts = {field: _integer(flat, *keys) for field, keys in _NAMES["counts"].items()}
    values |= {field: count for field, count in counts.items() if count is not None}
    values |= _fabric(flat)
    values |= {
        "bus_id": bus_id(first(flat, *_BUS_IDS) or ""),
        "lost": lost[0] if lost else None,
        "error": None if lost else _error(flat),
        "reset_required": _reset(flat, everything),
        "recovery_action": recovery.from_words(action) if action else None,
        "ecc_uncorrectable": _uncorrectable(flat, "volatile"),
        "ecc_uncorrectable_ever": _uncorrectable(flat, "aggregate"),
        "ecc_mode_pending": _ecc_mode_pending(flat),
        "clocks_held_by": tuple(_held(flat)),
        "idle": _idle(flat),
    }
    return GpuState.from_json(values)


def first(flat: Fields, *keys: str) -> str | None:
    """The first of these fields that holds a value."""
    for key in keys:
        value = flat.get(key, "").strip()
        if value and value.strip("[]").upper() not in _NO_VALUE:
            return value
    return None


def number(text: str | None) -> float | None:
    """The number at the start of "16x", "3 bank(s)", "34 C"."""
    found = _NUMBER.match((text or "").strip())
    return float(found[0]) if found else None


def _integer(flat: Fields, *keys: str) -> int | None:
    value = number(first(flat, *keys))
    return int(value) if value is not None else None


def _yes(flat: Fields, *keys: str) -> bool | None:
    value = first(flat, *keys)
    return value.lower() in ("yes", "true", "1", "pending") if value is not None else None


def _reset(flat: Fields, everything: str) -> bool | None:
    flags = [
        _yes(flat, "gpu reset status/reset required"),
        _yes(flat, "gpu reset status/drain and reset recommended"),
    ]
    if any(flags) or RESET_WORDS.search(everything):
        return True
    return False if False in flags else None


def _error(flat: Fields) -> str | None:
    """A GPU that answers several questions with an error, or one about its health. Else it is a missing sensor."""
    bad = [key for key, value in flat.items() if value.strip("[]").lower() in ("unknown error", "err!")]
    grave = len(bad) > 2 or any(key.startswith((*HEALTH_COLUMNS, *_HEALTH_PARTS)) for key in bad)
    return f"nvidia-smi shows an error for {', '.join(bad[:5])}" if grave else None


def _uncorrectable(flat: Fields, span: str) -> int | None:
    """The sum of the parts. A table may hold a total that contains them, and old drivers only know totals."""
    table, tree = f"ecc.errors.uncorrected.{span}.", f"ecc errors/{span}/"
    total = _integer(flat, f"{table}total", f"{tree}double bit/total")
    if total is not None:
        return total
    parts = [
        _integer(flat, key)
        for key in flat
        if key.startswith((f"{tree}sram uncorrectable", f"{tree}dram uncorrectable", table))
    ]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _ecc_mode_pending(flat: Fields) -> bool | None:
    current = first(flat, "ecc mode/current ecc", "ecc mode/current", "ecc.mode.current")
    pending = first(flat, "ecc mode/pending ecc", "ecc mode/pending", "ecc.mode.pending")
    return current.lower() != pending.lower() if current and pending else None


def _idle(flat: Fields) -> bool | None:
    pstate = first(flat, "performance state", "pstate")
    return pstate not in ("P0", "P1", "P2") if pstate else None


def _held(flat: Fields) -> Iterator[str]:
    """The reasons for which clocks are held down now: hw_slowdown, sw_power_cap ..."""
    for key, value in flat.items():
        path, _, reason = key.replace("_", " ").rpartition("/" if "/" in key else ".")
        if path in ("clocks throttle reasons", "clocks event reasons") and value.lower() == "active":
            reason = reason.removeprefix("clocks event reason ").removeprefix("clocks throttle reason ")
            yield reason.strip().replace(" ", "_")


def _fabric(flat: Fields) -> dict[str, object]:
    where = first(flat, "fabric/state", "fabric.state")
    status = first(flat, "fabric/status", "fabric.status")
    bad = []
    for key, value in flat.items():
        name, word = key.removeprefix("fabric/health/"), value.lower()
        unwell = (name == "summary" and word == "unhealthy") or (name == "route unhealthy" and word == "true")
        if key.startswith("fabric/health/") and unwell:
            bad.append(f"{name} {word}")
    return {
        "fabric_state": where.lower().replace(" ", "_") if where else None,
        "fabric_status": status.lower() if status else None,
        "fabric_health": ", ".join(bad) or None,
    }
