"""These tests run the embedded control plane with real processes, and leave none behind."""

from __future__ import annotations

import sys

import pytest

if not sys.platform.startswith("linux"):
    pytest.skip("the embedded cluster supervises processes through Linux's /proc", allow_module_level=True)
