"""The scheduler's minute: deadlines, unsent orders, and what no event told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .entry import receive


def lambda_handler(event: dict[str, Any], context: object) -> Mapping[str, Any]:
    return receive(event)
