"""The command line: exit codes, reports, tables."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from ecs_gpu_recovery.health import main
from ecs_gpu_recovery.health.sources import gpus
from tests.programs import python

from .conftest import ROOT, Bench, Explain, Node, a_gpu
from .test_dcgm import v4
from .test_nvidia_smi import xml

SCHEMA: dict[str, Any] = json.loads((ROOT / "docs" / "health-report.schema.json").read_text())
XID_79 = "2026-11-15T02:00:00+00:00 kernel: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n"


def misfits(report: dict[str, Any]) -> list[str]:
    """Everything in which it differs from its schema."""
    checker = jsonschema_rs.validator_for(SCHEMA, validate_formats=True)
    return [f"{error.instance_path}: {error.message}" for error in checker.iter_errors(report)]


#: Lines that nobody can carry out, by the exit code they end with.
WRONG = {
    3: [
        "--bogus",
        "check --level 9",
        "--expect-gpus many",
        "--expect-gpus -1",
        "--since yesterday",
        "surprise",
    ],
    2: ["explain", "explain --json", "explain --bogus", "explain --kernel-log /", "rules --bogus"],
}
WRONG[3] += ["--deadline 0", "--deadline nan", "--peer nowhere", "--require luck", "--policy /no/such/file"]
WRONG[2] += ["explain --kernel-log /no/file", "explain --policy /no/such/file --kernel-log /dev/null"]


@pytest.mark.parametrize(("code", "line"), [(code, line) for code, lines in WRONG.items() for line in lines])
def test_a_typing_error_never_reads_as_a_verdict(
    code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(line.split()) == code
    assert capsys.readouterr().err


def broken(*_: object, **__: object) -> None:
    raise RuntimeError("a bug")


def test_an_error_of_ours_is_3_and_not_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main.check, "examine", broken)
    assert main.run([]) == 3
    assert "a bug" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "code", "why"),
    [
        (["--level", "9"], 3, "argument --level: invalid choice: '9'"),
        (["--policy", "/no/such/file"], 3, "policy: /no/such/file: cannot be read"),
        (["explain"], 2, "give at least one of --kernel-log"),
        ([], 3, "RuntimeError: a bug"),
    ],
    ids=str,
)
def test_a_script_that_asked_for_json_hears_of_an_error_in_json(
    argv: list[str],
    code: int,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(main.check, "examine", broken)
    assert main.run([*argv, "--json"]) == code
    said = capsys.readouterr()
    told = json.loads(said.err)
    assert (said.out, told["exit_code"]) == ("", code)
    assert why in told["error"]


def test_an_installation_that_does_not_import_is_3(tmp_path: Path) -> None:
    (tmp_path / "tomllib.py").write_text("raise ImportError('broken installation')")
    done = python("-m", "ecs_gpu_recovery.health", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (3, "")
    assert "could not start" in done.stderr


CODES = ("0  healthy", "1  a GPU fault", "2  a GPU fault", "3  could not be tested", "explain", "rules")


@pytest.mark.parametrize(
    ("argv", "words"), [(["--help"], CODES), (["explain", "--help"], ()), (["rules", "--help"], ())]
)
def test_help_teaches(argv: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(argv) == 0
    text = capsys.readouterr().out
    assert [word for word in ("gpu-health", *words) if word not in text] == []


def test_the_report_is_written_whole_and_fits_its_schema(node: Node) -> None:
    node.write("gpus.json", {"gpus": [a_gpu(0, throttled=True), a_gpu(1, recovery_action="gpu_reset")]})
    node.write("kmsg", XID_79)
    file = node.folder / "deep" / "report.json"
    ran = node.check(
        "--report", str(file), "--disk", "/", "--shared-dir", str(node.folder), "--peer", "127.0.0.1:1"
    )
    written = json.loads(file.read_text())
    assert written == ran.report
    assert misfits(written) == []
    assert [p.name for p in file.parent.iterdir()] == ["report.json"]
    assert written["exit_code"] == ran.exit_code == 1


def test_the_report_says_how_far_a_training_has_come_and_the_verdict_does_not_care(node: Node) -> None:
    said = {"at": "2026-03-01T00:00:00+00:00", "attempt": 2, "step": 70}
    (node.folder / "progress.jsonl").write_text(json.dumps(said) + "\n")
    told = node.check("--checkpoints", str(node.folder))
    reached = {"step": 70, "checkpoint": "", "attempt": 2, "reached": said["at"]}
    assert told.report["progress"] == reached
    assert misfits(told.report) == []
    nowhere = node.check("--checkpoints", str(node.folder / "nowhere"))
    assert "progress" not in nowhere.report
    assert (told.exit_code, nowhere.exit_code) == (0, 0)


def test_a_live_report_fits_the_schema(bench: Bench) -> None:
    bench.prints("nvidia-smi", xml(volatile="1", fabric="Completed", fabric_status="Success"))
    ran = bench.check("--json", "--level", "1")
    assert misfits(ran.report) == []


def test_explained_recordings_fit_the_schema(explain: Explain) -> None:
    answer = explain(kernel_log=XID_79, dcgm_diag=v4(85), dcgm_health="{}", nvidia_smi=xml())
    assert misfits(answer) == []
    assert (answer["source"], answer["verdict"]) == ("recorded", "reboot")


def test_the_schema_knows_every_field_of_a_gpu() -> None:
    listed = SCHEMA["properties"]["gpus"]["items"]["properties"]
    assert set(listed) == set(gpus.GpuState.__dataclass_fields__)


def test_a_report_that_cannot_be_written_does_not_change_the_verdict(node: Node) -> None:
    node.write("kmsg", XID_79)
    (node.folder / "file").write_text("in the way")
    ran = node.check("--report", str(node.folder / "file" / "report.json"))
    assert ran.exit_code == 1
    assert "could not be written" in ran.err


def test_a_reader_who_leaves_does_not_change_the_verdict(node: Node) -> None:
    node.write("kmsg", XID_79)
    reader, writer = os.pipe()
    os.close(reader)
    env = {**os.environ, "GPU_HEALTH_SIMULATED": str(node.folder)}
    done = python("-m", "ecs_gpu_recovery.health", env=env, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_table_says_the_verdict_first(node: Node) -> None:
    node.write("kmsg", XID_79)
    ran = node.bench.check(GPU_HEALTH_SIMULATED=str(node.folder))
    assert ran.out.startswith("REBOOT  (exit code 1)\n")
    for word in ("xid-off-bus", "0000:01:00", "kernel-log", "Simulated H100"):
        assert word in ran.out


def test_an_explained_table_does_not_claim_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text(XID_79)
    assert main.run(["explain", "--kernel-log", str(tmp_path / "log")]) == 0
    assert capsys.readouterr().out.startswith("REBOOT  (a check would end with exit code 1)")


def test_the_rule_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["rules"]) == 0
    text = capsys.readouterr().out
    assert "xid-off-bus" in text
    assert "126-135" in text
    assert main.run(["rules", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"id", "source", "codes", "action", "why"} <= set(listed[0])


def test_an_own_policy_changes_the_verdict(node: Node) -> None:
    own = node.folder / "own.toml"
    own.write_text(
        'version = 1\n[[rule]]\nid = "calm"\nsource = "xid"\ncodes = [79]\naction = "watch"\nwhy = "x"\n'
        '[[group.hot.rule]]\nid = "strict"\nsource = "xid"\ncodes = [79]\naction = "replace"\nwhy = "x"\n'
    )
    node.write("kmsg", XID_79)
    assert node.check().exit_code == 1
    assert node.check("--policy", str(own)).exit_code == 0
    ran = node.check("--policy", str(own), "--group", "hot")
    assert (ran.exit_code, ran.report["policy"]["group"]) == (2, "hot")


def test_the_program_needs_nothing_but_the_standard_library() -> None:
    program = (
        "import sys\nbefore = set(sys.modules)\n"
        "import ecs_gpu_recovery.health.main, ecs_gpu_recovery.health.judge.explain\n"
        "names = {m.partition('.')[0] for m in set(sys.modules) - before}\n"
        "print(sorted(n for n in names if n not in sys.stdlib_module_names and n != 'ecs_gpu_recovery'))\n"
        "print(sorted(m for m in sys.modules if m.startswith('ecs_gpu_recovery.') and '.health' not in m))"
    )
    assert python("-c", program).stdout == "[]\n[]\n"


def test_an_earlier_report_that_is_none_is_told_and_ignored(node: Node) -> None:
    node.write("kmsg", XID_79)
    ran = node.check("--previous-report", str(node.folder / "missing.json"))
    assert ran.exit_code == 1
    assert "no earlier report" in ran.err


def test_the_last_line_of_a_log_is_the_report_and_people_read_a_table(node: Node) -> None:
    node.write("kmsg", XID_79)
    ran = node.bench.check("--json-line", "--level", "quick", GPU_HEALTH_SIMULATED=str(node.folder))
    assert ran.out.startswith("REBOOT")
    last = json.loads(ran.out.splitlines()[-1])
    assert (last["verdict"], misfits(last)) == ("reboot", [])
