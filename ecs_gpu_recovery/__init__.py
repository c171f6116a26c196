"""Keeps multi-node GPU training jobs alive on Amazon ECS, and on a laptop."""

from __future__ import annotations

__version__ = "0.1.0"
