"""A health check's task changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .entry import receive


def lambda_handler(event: dict[str, Any], context: object) -> Mapping[str, Any]:
    return receive(event)
