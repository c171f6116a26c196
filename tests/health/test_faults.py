"""docs/faults.md is true: each fault, put in by the injector, leads to the verdict written there."""

from __future__ import annotations

import re

import pytest

from ecs_gpu_recovery.local import gpus
from ecs_gpu_recovery.local.files import write_json

from .conftest import ROOT, Node

PAGE = (ROOT / "docs" / "faults.md").read_text()
TABLE = PAGE.partition("<!-- faults -->")[2].partition("<!-- /faults -->")[0]
ROWS = [[cell.strip() for cell in row.strip("|").split("|")] for row in TABLE.strip().splitlines()[2:]]
AROUND = {"no-cure", "no-return", "lost", "xid"}
"""Faults that change what comes after, or that no check on the node itself could find."""


def test_every_fault_that_can_be_injected_has_its_row() -> None:
    listed = {row[0] for row in ROWS if not row[0].startswith("xid ")}
    assert listed == set(gpus.FAULTS) - AROUND


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_fault_leads_to_the_verdict_written_in_the_docs(node: Node, row: list[str]) -> None:
    fault, verdict, exit_code, _ = row
    name, _, xid = fault.partition(" ")
    folder = str(node.folder)
    write_json(f"{folder}/gpus.json", gpus.simulated("n1", 2))
    gpus.inject(folder, name, 0, int(xid) if xid else None, 0.2, 4711)
    ran = node.check("--expect-gpus", "2", "--deadline", "2" if name == "driver-hang" else "20")
    assert str(ran.exit_code) == exit_code, ran.out
    assert ran.report["verdict"] == verdict.partition(",")[0]
    assert ran.report["application_fault"] is ("program" in verdict)


def test_a_hanging_question_costs_its_deadline_and_no_more(node: Node) -> None:
    node.write("gpus.json", {**gpus.simulated("n1", 2), "driver_hung": True})
    ran = node.check("--deadline", "1")
    (driver,) = [check for check in ran.report["checks"] if check["name"] == "driver"]
    assert driver["status"] == "hung"
    assert 2.0 <= driver["seconds"] < 20.0, (
        "asked twice, one second each, and some patience for a busy machine"
    )


def test_the_reason_is_a_sentence_for_people(node: Node) -> None:
    write_json(str(node.folder / "gpus.json"), gpus.simulated("n1", 2))
    gpus.inject(str(node.folder), "off-bus", 0, None, 1.0, 4711)
    why = node.check("--expect-gpus", "2").report["why"]
    assert why == "1 of 2 GPUs found; Xid 79 on GPU 0000:01:00 (fallen off the bus)"
    assert not re.search(r"[a-z]+-[a-z]+\)", why), "no rule ids"
