"""A folder of recorded outputs is judged file by file, whatever is in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.aws.strangers import STRANGERS
from tools import try_samples

OWN = Path(__file__).parent / "samples"
#: Complaints that name no command, and texts that are nothing of the kind that they were given for.
NOT_TOLD = {
    "already-running",
    "another-programs-output",
    "dmesg-refused",
    "journal-without-entries",
    "kernel-line-in-between",
    "mig",
    "no-host-engine",
    "no-kernel-log-at-all",
    "nothing-wrong",
    "query-without-header",
    "watches-not-enabled",
}


def test_every_recording_of_ours_is_recognised_and_gets_its_verdict() -> None:
    judged = try_samples.judge_folder(OWN)
    assert len(judged) > 60
    missed = {Path(one.path).stem for one in judged if Path(one.path).parts[:2] != (one.verdict, one.kind)}
    assert missed == NOT_TOLD


def test_the_summary_counts_and_what_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(OWN / "reboot/kernel-log/xid-48.txt", tmp_path / "night.log")
    deeper = tmp_path / "a" / "b"
    deeper.mkdir(parents=True)
    made = [json.dumps(event) for event, _ in STRANGERS.values()]
    (deeper / "one.json").write_text(made[-1])
    (deeper / "night.ndjson").write_text("\n".join(made))
    (deeper / "answer.json").write_text(made[0])
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n\x00\xff")
    (tmp_path / "pipe.log").symlink_to("/proc/self/mem")  # there, and nobody reads it
    assert try_samples.main([str(tmp_path)]) == 0
    *lines, _, summary = capsys.readouterr().out.splitlines()
    told = {line.partition(": ")[0].split()[-1]: line for line in lines}
    assert told["night.log"].startswith("kernel-log    reboot")
    assert "nothing to record" in told["a/b/one.json"]
    assert told["a/b/night.ndjson"].startswith("event         understood")
    assert told["a/b/answer.json"].startswith("unknown")
    assert told["photo.png"].startswith("unknown")
    assert told["pipe.log"].startswith("unreadable")
    assert summary == "6 file(s): 2 event understood, 1 kernel-log reboot, 2 unknown, 1 unreadable"


def test_a_crash_is_told_with_its_place_the_others_are_judged_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.log", "b.log"):
        shutil.copy(OWN / "reboot/kernel-log/xid-48.txt", tmp_path / name)
    judge = try_samples.judge_file

    def breaks(path: Path) -> tuple[str, str, str]:
        return judge(path) if path.name == "b.log" else (_ for _ in ()).throw(ZeroDivisionError("a bug"))

    monkeypatch.setattr(try_samples, "judge_file", breaks)
    assert try_samples.main([str(tmp_path), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [(one["path"], one["kind"]) for one in told["files"]] == [
        ("a.log", "crashed"),
        ("b.log", "kernel-log"),
    ]
    assert "ZeroDivisionError: a bug" in told["files"][0]["why"]
    assert told["summary"] == {"crashed": 1, "kernel-log reboot": 1}
