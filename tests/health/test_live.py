"""A machine, with stand-ins for nvidia-smi and dcgmi."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ecs_gpu_recovery.health.sources.machine import booted_at

from .conftest import Bench, patiently
from .test_dcgm import diag, health, v4
from .test_nvidia_smi import xml


def quiet_log(bench: Bench) -> tuple[str, str]:
    """A kernel log of our own: the machine under test may have one that says anything."""
    file = bench.folder / "kernel.log"
    if not file.exists():
        file.write_text("[1.0] kernel: nothing happened\n")
    return "--kernel-log", str(file)


def check(bench: Bench, *argv: str) -> tuple[int, dict[str, Any]]:
    ran = bench.check("--json", *quiet_log(bench), *argv)
    assert ran.err == ""
    return ran.exit_code, ran.report


def within(
    bench: Bench, gpus: str, answered: Callable[[dict[str, Any]], object], *deadlines: float
) -> tuple[int, dict[str, Any]]:
    def ask(deadline: float) -> tuple[int, dict[str, Any]]:
        return check(bench, "--expect-gpus", gpus, "--deadline", str(deadline))

    return patiently(ask, lambda found: answered(found[1]), *deadlines)


def told(report: dict[str, Any], name: str, what: str = "status") -> str:
    found: str = next(c[what] for c in report["checks"] if c["name"] == name)
    return found


@pytest.fixture
def sound(quick_bench: Bench) -> Bench:
    """A machine whose driver has nothing to complain of."""
    quick_bench.prints("nvidia-smi", xml())
    return quick_bench


def test_a_machine_without_gpus_is_inconclusive(quick_bench: Bench) -> None:
    exit_code, report = check(quick_bench)
    assert exit_code == 3
    assert "nvidia-smi" in report["why"]


def test_a_sound_machine_is_healthy_without_dcgm_and_says_that_dcgm_is_missing(bench: Bench) -> None:
    bench.prints("nvidia-smi", xml())
    exit_code, report = check(bench, "--expect-gpus", "1")
    assert exit_code == 0
    assert told(report, "dcgm-health") == told(report, "dcgm-diag") == "not_tested"
    assert "no GPU fault found; not tested: DCGM (dcgmi is not installed)" in report["why"]
    assert report["gpus"][0]["bus_id"] == "0000:4f:00"
    assert report["driver"] == "580.00"
    assert check(bench, "--require", "dcgm")[0] == 3


def test_a_fault_that_nvidia_smi_shows(quick_bench: Bench) -> None:
    quick_bench.prints("nvidia-smi", xml(recovery="Reset"))
    assert check(quick_bench)[0] == 1


DBE = "NVRM: Xid (PCI:0000:4f:00): 48, DBE"


def xid_48(at: datetime) -> str:
    return f"{at.isoformat()} kernel: {DBE}\n"


def test_a_fault_in_the_kernel_log_beside_a_sound_driver(sound: Bench) -> None:
    now = datetime.now(UTC)
    (sound.folder / "kernel.log").write_text(xid_48(now))
    assert check(sound)[0] == 1
    assert check(sound, "--since", (now + timedelta(seconds=1)).isoformat())[0] == 0


def boot_id_of_this_machine() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")


@pytest.mark.parametrize(
    ("line", "exit_code"),
    [
        (xid_48(booted_at() - timedelta(minutes=5)), 0),
        (xid_48(booted_at() + timedelta(seconds=5)), 1),
        (f"[    1.5] {DBE}", 1),
        (f"[999999999.5] {DBE}", 0),
        (f'{{"_BOOT_ID":"{"a" * 32}","MESSAGE":"{DBE}"}}', 0),
        (f'{{"_BOOT_ID":"{boot_id_of_this_machine()}","MESSAGE":"{DBE}"}}', 1),
    ],
    ids=["before the boot", "since", "soon after", "longer up than it", "another boot", "this boot"],
)
def test_no_machine_is_condemned_for_what_an_earlier_boot_saw(
    sound: Bench, line: str, exit_code: int
) -> None:
    (sound.folder / "kernel.log").write_text(line)
    ended, report = check(sound)
    assert ended == exit_code, report["why"]
    assert exit_code or "1 of an earlier boot left out" in told(report, "kernel-log", "detail")


def test_a_kernel_log_that_cannot_be_read_is_no_verdict(sound: Bench) -> None:
    ran = sound.check("--json", "--kernel-log", str(sound.folder / "missing"))
    assert (ran.exit_code, told(ran.report, "kernel-log")) == (0, "not_tested")
    ran = sound.check("--json", "--kernel-log", str(sound.folder / "missing"), "--require", "kernel-log")
    assert ran.exit_code == 3


def test_a_driver_that_is_not_loaded_is_inconclusive_even_when_gpus_are_expected(quick_bench: Bench) -> None:
    text = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    quick_bench.prints("nvidia-smi", text, exit_code=9)
    assert check(quick_bench, "--expect-gpus", "8")[0] == 3


def test_a_working_driver_without_its_gpus_asks_for_a_reboot(quick_bench: Bench) -> None:
    quick_bench.prints("nvidia-smi", "No devices were found", exit_code=6)
    assert check(quick_bench, "--expect-gpus", "8")[0] == 1


def test_a_hanging_nvidia_smi_is_a_finding(bench: Bench) -> None:
    bench.command("nvidia-smi", "sleep 1000")
    exit_code, report = check(bench, "--expect-gpus", "8", "--deadline", "1")
    assert exit_code == 1
    assert report["findings"][0]["rule"] == "driver-hang-confirmed"


@pytest.mark.slow
def test_a_driver_that_was_only_slow_once_is_not_blamed(bench: Bench) -> None:
    mark, kept = bench.folder / "asked", bench.folder / "smi.xml"
    kept.write_text(xml())
    bench.command("nvidia-smi", f"if [ -e {mark} ]; then cat {kept}; else : > {mark}; sleep 1000; fi")
    exit_code, report = check(bench, "--expect-gpus", "1", "--deadline", "10")
    assert exit_code == 0
    assert "driver-slow" in [f["rule"] for f in report["findings"]]


def test_dcgm_that_cannot_be_reached_is_never_a_bad_gpu(sound: Bench) -> None:
    sound.prints(
        "dcgmi", "Error: unable to establish a connection to the specified host: localhost", exit_code=235
    )
    exit_code, report = check(sound, "--level", "2")
    assert exit_code == 0
    assert told(report, "dcgm-health") == told(report, "dcgm-diag") == "not_tested"
    assert "not tested: DCGM (Error: unable to establish a connection" in report["why"]


def dcgmi(bench: Bench, health_text: str, diag_text: str = "", diag_exit: int = 0) -> None:
    (bench.folder / "health.json").write_text(health_text)
    (bench.folder / "diag.json").write_text(diag_text)
    bench.command(
        "dcgmi",
        f'if [ "$1" = health ]; then cat {bench.folder}/health.json; exit 0; fi\n'
        f'echo "$@" > {bench.folder}/diag.argv; cat {bench.folder}/diag.json; exit {diag_exit}',
    )


def test_dcgm_health_that_fails_is_believed_although_its_exit_code_is_0(sound: Bench) -> None:
    text = "Detected 1 volatile double-bit ECC error(s) in GPU 0."
    dcgmi(sound, health("Failure", ("Memory system", "Failure", [text]), gpu="0"))
    exit_code, report = check(sound)
    assert exit_code == 1
    assert report["findings"][0]["gpu"] == "0000:4f:00", "DCGM's index was brought to the PCI id"


@pytest.mark.parametrize(
    ("text", "dcgm_exit", "exit_code"),
    [
        (v4(52), 205, 2),
        (v4(126), 205, 1),
        (v4(85), 226, 1),
        (v4(29), 226, 0),
        (v4(50), 226, 3),
        (v4(29, status="Pass"), 0, 0),
        ("nothing useful", 205, 1),
        ("nothing useful", 226, 3),
        ("nothing useful", 217, 0),
        ("nothing useful", 0, 0),
    ],
)
def test_the_diagnostic_at_a_chosen_level(sound: Bench, text: str, dcgm_exit: int, exit_code: int) -> None:
    dcgmi(sound, health("Healthy"), text, dcgm_exit)
    assert check(sound, "--level", "2")[0] == exit_code
    assert (sound.folder / "diag.argv").read_text() == "diag -r 2 -j\n"


@pytest.mark.parametrize(
    ("options", "level", "asked"),
    [
        ([], "1", "diag -r 1 -j\n"),
        (["--level", "quick"], "quick", None),
        (["--dcgm-host", "unix:///run/x"], "1", "diag --host unix:///run/x -r 1 -j\n"),
    ],
    ids=["default", "quick", "of another host engine"],
)
def test_dcgm_is_asked_by_default(sound: Bench, options: list[str], level: str, asked: str | None) -> None:
    dcgmi(sound, health("Healthy"), v4(29, status="Pass"))
    ended, report = check(sound, *options)
    argv = sound.folder / "diag.argv"
    assert (argv.read_text() if argv.exists() else None) == asked
    assert (ended, report["why"], report["level"]) == (0, "no GPU fault found", level)


def test_the_sentence_names_what_dcgm_could_not_test(sound: Bench) -> None:
    skipped = {"name": "pcie", "results": [{"entity_group": "GPU", "entity_id": 0, "status": "Skip"}]}
    passed = {"name": "software", "results": [{"entity_group": "GPU", "entity_id": 0, "status": "Pass"}]}
    dcgmi(sound, "Error: Health watches not enabled. Please enable watches.", diag(skipped, passed))
    _, report = check(sound)
    assert report["why"].startswith(
        "no GPU fault found; not tested: DCGM (pcie was skipped), DCGM's watches ("
    )
    dcgmi(sound, health("Healthy"), v4(56, "Couldn't allocate at least 95.0% of GPU memory on GPU 3"), 226)
    _, report = check(sound)
    assert "not tested: DCGM (memory failed: MEMORY_ALLOC: Couldn't allocate" in report["why"]


def test_dcgms_watches_are_asked_again_behind_its_tests(sound: Bench) -> None:
    """Those that were just switched on have seen nothing yet, and a test may break what was sound."""
    broken = health("Failure", ("Memory system", "Failure", ["Detected 1 volatile double-bit ECC error(s)"]))
    (sound.folder / "before").write_text(health("Healthy"))
    (sound.folder / "behind").write_text(broken)
    (sound.folder / "diag").write_text(v4(29, status="Pass"))
    sound.command(
        "dcgmi",
        f"cd {sound.folder}\n"
        'if [ "$1" = diag ]; then cat diag; : > tested; elif [ -e tested ]; then cat behind; else cat before; fi',
    )
    ended, report = check(sound)
    assert (ended, [c["name"] for c in report["checks"]].count("dcgm-health")) == (1, 1)


def test_the_diagnostic_is_left_out_when_a_fault_is_already_proven(quick_bench: Bench) -> None:
    quick_bench.prints("nvidia-smi", xml(recovery="Reboot"))
    dcgmi(quick_bench, health("Healthy"), v4(52), 205)
    assert check(quick_bench, "--level", "3")[0] == 1
    assert not (quick_bench.folder / "diag.argv").exists()


def test_a_diagnostic_that_hangs_is_suspicious_and_no_more(bench: Bench) -> None:
    bench.prints("nvidia-smi", xml())
    bench.command("dcgmi", f'[ "$1" = diag ] && sleep 1000; cat {bench.folder}/none')
    exit_code, report = check(bench, "--level", "1", "--diag-deadline", "1")
    assert (exit_code, told(report, "dcgm-diag")) == (3, "hung")


def test_host_problems_never_reboot(bench: Bench, tmp_path: Path) -> None:
    bench.prints("nvidia-smi", xml())
    missing = str(tmp_path / "no" / "such" / "dir")
    exit_code, report = check(bench, "--shared-dir", missing, "--peer", "127.0.0.1:1")
    assert (exit_code, report["verdict"], report["host_ok"]) == (0, "healthy", False)
    assert {"shared-dir-unusable", "peer-unreachable"} <= {f["code"] for f in report["findings"]}
    assert check(bench, "--shared-dir", missing, "--require", "host")[0] == 3
