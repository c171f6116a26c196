"""What a record keeps of a health check's report: one sentence, with the GPUs that it is about."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

#: How the first key of a report reads; the number behind it is the report's version.
SCHEMA = "gpu-health-report/"
_VERSION = re.compile(r"[0-9][0-9.]{0,20}")
#: A record is read often, and keeps no more of a sentence than this.
MOST = 500


def is_report(data: object) -> bool:
    return isinstance(data, Mapping) and str(data.get("schema", "")).startswith(SCHEMA)


def sentence(report: Mapping[str, object]) -> str:
    """Why the check came to its verdict, and what a vendor asks for: the UUIDs of the GPUs at fault, and the driver.

    Findings name a GPU by its PCI id or its number; both may change with the next boot, the UUID does not.
    """
    why = str(report.get("why") or "")
    bad = [row for row in _members(report.get("findings")) if row.get("action") in ("reboot", "replace")]
    at_fault = {finding["gpu"] for finding in bad if finding.get("gpu")}
    uuids = [
        str(gpu["uuid"])
        for gpu in _members(report.get("gpus"))
        if gpu.get("uuid")
        and not at_fault.isdisjoint({gpu.get("bus_id"), str(gpu.get("index")), gpu["uuid"]})
    ]
    named = f" [{', '.join(uuids)}]" if uuids else ""
    version = _VERSION.fullmatch(str(report.get("driver")))
    named += f" (driver {version[0]})" if version and bad else ""
    return why[: MOST - len(named)] + named if len(named) < MOST else why[:MOST]


def _members(value: object) -> Sequence[Mapping[str, object]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
