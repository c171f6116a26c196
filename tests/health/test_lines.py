"""Single lines, as many as we could think of: what each leads to, when it was written, which error it tells of."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from ecs_gpu_recovery.health.sources import dcgm_codes, kernel_log

from .conftest import ROOT
from .test_other_samples import judged

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
MESSAGE = "NVRM: Xid (PCI:0000:4f:00): 79, pid=77, name=python3, GPU has fallen off the bus."


def rows(name: str) -> list[tuple[str, str]]:
    text = (ROOT / "tests" / "health" / "lines" / name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    cut = [line.partition("|") for line in lines]
    return [
        (wanted.strip(), line.removeprefix(" ").replace(r"\x1b", "\x1b").replace(r"\r", "\r"))
        for wanted, _, line in cut
    ]


@pytest.mark.parametrize(("wanted", "line"), rows("kernel-lines.txt"))
def test_a_line_leads_to_its_verdict(wanted: str, line: str, tmp_path: Path) -> None:
    said, _, why = judged("kernel-log", f"{line}\n".encode(), tmp_path)
    assert said == wanted, why


@pytest.mark.parametrize(("wanted", "before"), rows("times.txt"))
def test_the_time_is_read_in_every_form(wanted: str, before: str) -> None:
    event = kernel_log.parse_line(f"{before.rstrip()} {MESSAGE}", NOW)
    assert event is not None
    assert event.at == (None if wanted == "-" else datetime.fromisoformat(f"{wanted}+00:00"))


@pytest.mark.parametrize(("number", "words"), rows("dcgm-messages.txt"))
def test_a_message_of_dcgm_is_known_without_its_number(number: str, words: str) -> None:
    assert dcgm_codes.codes_in(words) == [int(number)]
