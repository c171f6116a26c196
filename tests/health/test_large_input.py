"""Long and odd input is read in time that grows with its length and no faster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT

KINDS = ("kernel-log", "dcgm-diag", "dcgm-health", "nvidia-smi", "training-log")
SIZE = 2_000_000
DEADLINE_S = 120.0
PIECES = {
    "one word": "a",
    "blanks behind a table's edge": " ",
    "braces": "{",
    "open objects": '{"a":',
    "openings of XML": "<nvidia_smi_log>",
    "roots": '"DCGM Diagnostic": {',
    "messages in one line": "NVRM: Xid (PCI:0000:cb:00): 154, changed from ",
    "rows": "0, 00000000:10:00.0, 0\n",
    "training": "INFO step 100 loss: 2.31 lr 0.0003 tokens/s 12345\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("piece", PIECES)
def test_it_ends(kind: str, piece: str, tmp_path: Path) -> None:
    """The deadline is some fifty times what it takes; a reader that looks back at every step needs hours."""
    head = "|0 a" if piece.startswith("blanks") else "index, pci.bus_id, remapped_rows.pending\n"
    file = tmp_path / "input"
    file.write_text(head + PIECES[piece] * (SIZE // len(PIECES[piece])))
    argv = [sys.executable, "-m", "ecs_gpu_recovery.health", "explain", f"--{kind}", str(file), "--json"]
    ran = subprocess.run(argv, cwd=ROOT, capture_output=True, check=False, timeout=DEADLINE_S)
    assert (ran.returncode, ran.stderr) == (0, b"")
