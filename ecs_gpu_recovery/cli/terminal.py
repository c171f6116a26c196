"""What leaves for a terminal, a script or a line of a log: JSON, and texts of other people and programs."""

from __future__ import annotations

import json
import re
from typing import Any

#: What moves the cursor, changes the title, hides or turns text around, or begins a line of its own.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The reason of a stop or a line of a kernel log may hold anything: shown, it does nothing and stays one line."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def emit_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
