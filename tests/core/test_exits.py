"""What the end of a task means. Every trap that an exit code sets is a row here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ecs_gpu_recovery.core.events import TaskEnded
from ecs_gpu_recovery.core.exits import classify, is_passing, our_reason
from ecs_gpu_recovery.core.model import Exit, Verdict
from tests.core.story import OOM, POLICY, T0

EXITED = "EssentialContainerExited"
TEXT = "Essential container in task exited"


def meaning(
    exit_code: int | None, reason: str = "", stop_code: str = EXITED, *, doubted: bool = False
) -> Exit:
    ended = TaskEnded(
        at=T0, task_id="t", attempt=0, rank=0, exit_code=exit_code, reason=reason, stop_code=stop_code
    )
    return classify(ended, doubted=doubted, policy=POLICY)


RUNTIME = "CannotStartContainerError: Error response from daemon: nvidia-container-cli: "


@pytest.mark.parametrize(
    "words",
    [
        "device error: GPU-5a1c7f9e: unknown device: unknown",
        "initialization error: nvml error: gpu is lost: unknown",
        "detection error: nvml error: unknown error: unknown",
        "initialization error: driver rpc error: timed out: unknown",
        "unresolvable CDI devices nvidia.com/gpu=GPU-5a1c7f9e: unknown",
    ],
)
@pytest.mark.parametrize("stop_code", ["TaskFailedToStart", ""])
def test_a_task_that_found_no_gpu_to_start_on_has_its_node_examined(words: str, stop_code: str) -> None:
    assert meaning(None, RUNTIME + words, stop_code) is Exit.SUSPECT
    assert meaning(None, f"{RUNTIME}load library failed: libcuda.so.1", stop_code) is Exit.NEVER_STARTED


UNSTARTED, STOPPED = "TaskFailedToStart", "UserInitiated"
OURS, SPOT = our_reason("j", 0, "x"), "Your Spot Task was interrupted."
NO_IMAGE = "CannotPullContainerError: x"
ENDS: dict[Exit, dict[str, tuple[int | None, str, str]]] = {
    Exit.DONE: {
        "success": (0, TEXT, EXITED),
    },
    Exit.SUSPECT: {
        "the code a GPU fault leaves": (1, TEXT, EXITED),
    },
    Exit.FAULT: {
        "a usage error of the program": (2, TEXT, EXITED),
        "a crash of the program": (139, TEXT, EXITED),
        "an abort of the program": (134, TEXT, EXITED),
        "no such command": (127, TEXT, EXITED),
        "killed by nobody knows whom, not out of memory": (137, TEXT, EXITED),
        "terminated, but not by the cluster": (143, TEXT, EXITED),
        "dead when the daemon came back, on a node nobody saw restart": (255, TEXT, EXITED),
    },
    Exit.OUT_OF_MEMORY: {
        "out of memory as everybody expects it": (137, OOM, EXITED),
        "out of memory with exit code 1": (1, OOM, EXITED),
        "out of memory without an exit code": (None, OOM, EXITED),
        "the reason speaks before the exit code, even a 0": (0, OOM, EXITED),
    },
    Exit.NEVER_STARTED: {
        "failed to start": (None, "Task failed to start", UNSTARTED),
        "no image": (None, NO_IMAGE, UNSTARTED),
        "no image, before stop codes existed": (None, NO_IMAGE, ""),
        "no secret": (None, "ResourceInitializationError: x", UNSTARTED),
        "no room": (None, "RESOURCE:GPU", UNSTARTED),
        "the stop code speaks before the exit code": (1, UNSTARTED, UNSTARTED),
    },
    Exit.STOPPED_BY_US: {
        "our own stop": (143, OURS, STOPPED),
        "our own stop, taken well": (0, OURS, STOPPED),
        "our own stop, after the grace": (137, OURS, STOPPED),
        "our own stop made it exit with 1": (1, OURS, STOPPED),
        "our own stop before it ran": (None, OURS, STOPPED),
        "our own stop quotes another rank": (137, our_reason("j", 0, OOM), STOPPED),
    },
    Exit.STOPPED_BY_PERSON: {
        "a person in the console": (143, "Task stopped by user", STOPPED),
        "a person, and the program exits with 1": (1, "debugging", STOPPED),
        "a person, and the program exits with 0": (0, "", STOPPED),
    },
    Exit.LOST: {
        "spot": (None, SPOT, "SpotInterruption"),
        "spot, as it used to be": (None, SPOT, "TerminationNotice"),
        "spot, and the program took it well": (0, SPOT, "SpotInterruption"),
        "the host is gone": (None, "Host EC2 (instance i-0abc) terminated.", ""),
        "an end without an exit code": (None, TEXT, EXITED),
    },
}


@pytest.mark.parametrize(
    ("ended", "exit"),
    [pytest.param(row, exit, id=name) for exit, rows in ENDS.items() for name, row in rows.items()],
)
def test_what_an_end_means(ended: tuple[int | None, str, str], exit: Exit) -> None:
    assert meaning(*ended) is exit


@pytest.mark.parametrize("exit_code", [0, 137, 143, 255])
def test_a_code_that_a_reboot_leaves_behind_proves_nothing_when_the_node_may_have_restarted(
    exit_code: int,
) -> None:
    assert meaning(exit_code, TEXT, doubted=True) is Exit.LOST


def test_a_restart_does_not_excuse_a_code_that_only_the_program_gives() -> None:
    assert meaning(1, TEXT, doubted=True) is Exit.SUSPECT
    assert meaning(139, TEXT, doubted=True) is Exit.FAULT


def test_a_person_is_a_person_on_a_doubted_node_too() -> None:
    assert meaning(143, "Task stopped by user", "UserInitiated", doubted=True) is Exit.STOPPED_BY_PERSON


def test_the_codes_to_examine_are_a_matter_of_policy() -> None:
    policy = replace(POLICY, healthcheck_exit_codes=frozenset({1, 139}))
    crashed = TaskEnded(at=T0, task_id="t", attempt=0, rank=0, exit_code=139)
    assert classify(crashed, doubted=False, policy=policy) is Exit.SUSPECT


@pytest.mark.parametrize(
    ("reason", "passes"),
    [
        ("AGENT", True),
        ("RESOURCE:GPU", True),
        ("RESOURCE:MEMORY", True),
        ("TaskFailedToStart: RESOURCE:GPU", True),
        ("TaskFailedToStart: AGENT", True),
        ("ATTRIBUTE", False),
        ("MISSING", False),
        ("INACTIVE", False),
        ("CannotPullContainerError: AGENT of chaos", False),
        ("", False),
    ],
)
def test_which_refusals_pass_by_themselves(reason: str, passes: bool) -> None:
    assert is_passing(reason) is passes


def test_our_reason_fits_what_the_cluster_keeps() -> None:
    assert len(our_reason("j" * 100, 3, "x" * 1000)) <= 255


@pytest.mark.parametrize(
    ("exit_code", "verdict"),
    [(0, Verdict.HEALTHY), (1, Verdict.REBOOT), (2, Verdict.REPLACE)]
    + [(code, Verdict.INCONCLUSIVE) for code in (3, 4, 125, 137, 143, 205, 226, 255, -1, None)],
)
def test_what_a_check_says(exit_code: int | None, verdict: Verdict) -> None:
    assert Verdict.from_exit_code(exit_code) is verdict
