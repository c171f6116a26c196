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


@pytest.mark.parametrize(
    ("exit_code", "reason", "stop_code", "exit"),
    [
        pytest.param(0, TEXT, EXITED, Exit.DONE, id="success"),
        pytest.param(1, TEXT, EXITED, Exit.SUSPECT, id="the code a GPU fault leaves"),
        pytest.param(2, TEXT, EXITED, Exit.FAULT, id="a usage error of the program"),
        pytest.param(139, TEXT, EXITED, Exit.FAULT, id="a crash of the program"),
        pytest.param(134, TEXT, EXITED, Exit.FAULT, id="an abort of the program"),
        pytest.param(127, TEXT, EXITED, Exit.FAULT, id="no such command"),
        pytest.param(137, TEXT, EXITED, Exit.FAULT, id="killed by nobody knows whom, not out of memory"),
        pytest.param(143, TEXT, EXITED, Exit.FAULT, id="terminated, but not by the cluster"),
        pytest.param(
            255, TEXT, EXITED, Exit.FAULT, id="dead when the daemon came back, on a node nobody saw restart"
        ),
        pytest.param(137, OOM, EXITED, Exit.OUT_OF_MEMORY, id="out of memory as everybody expects it"),
        pytest.param(1, OOM, EXITED, Exit.OUT_OF_MEMORY, id="out of memory with exit code 1"),
        pytest.param(None, OOM, EXITED, Exit.OUT_OF_MEMORY, id="out of memory without an exit code"),
        pytest.param(
            0, OOM, EXITED, Exit.OUT_OF_MEMORY, id="the reason speaks before the exit code, even a 0"
        ),
        pytest.param(
            None, "Task failed to start", "TaskFailedToStart", Exit.NEVER_STARTED, id="failed to start"
        ),
        pytest.param(
            None, "CannotPullContainerError: x", "TaskFailedToStart", Exit.NEVER_STARTED, id="no image"
        ),
        pytest.param(
            None,
            "CannotPullContainerError: x",
            "",
            Exit.NEVER_STARTED,
            id="no image, before stop codes existed",
        ),
        pytest.param(
            None, "ResourceInitializationError: x", "TaskFailedToStart", Exit.NEVER_STARTED, id="no secret"
        ),
        pytest.param(None, "RESOURCE:GPU", "TaskFailedToStart", Exit.NEVER_STARTED, id="no room"),
        pytest.param(
            1,
            "TaskFailedToStart",
            "TaskFailedToStart",
            Exit.NEVER_STARTED,
            id="the stop code speaks before the exit code",
        ),
        pytest.param(143, our_reason("j", 0, "x"), "UserInitiated", Exit.STOPPED_BY_US, id="our own stop"),
        pytest.param(
            0, our_reason("j", 0, "x"), "UserInitiated", Exit.STOPPED_BY_US, id="our own stop, taken well"
        ),
        pytest.param(
            137,
            our_reason("j", 0, "x"),
            "UserInitiated",
            Exit.STOPPED_BY_US,
            id="our own stop, after the grace",
        ),
        pytest.param(
            1,
            our_reason("j", 0, "x"),
            "UserInitiated",
            Exit.STOPPED_BY_US,
            id="our own stop made it exit with 1",
        ),
        pytest.param(
            None,
            our_reason("j", 0, "x"),
            "UserInitiated",
            Exit.STOPPED_BY_US,
            id="our own stop before it ran",
        ),
        pytest.param(
            137,
            our_reason("j", 0, OOM),
            "UserInitiated",
            Exit.STOPPED_BY_US,
            id="our own stop quotes another rank",
        ),
        pytest.param(
            143, "Task stopped by user", "UserInitiated", Exit.STOPPED_BY_PERSON, id="a person in the console"
        ),
        pytest.param(
            1,
            "debugging",
            "UserInitiated",
            Exit.STOPPED_BY_PERSON,
            id="a person, and the program exits with 1",
        ),
        pytest.param(
            0, "", "UserInitiated", Exit.STOPPED_BY_PERSON, id="a person, and the program exits with 0"
        ),
        pytest.param(None, "Your Spot Task was interrupted.", "SpotInterruption", Exit.LOST, id="spot"),
        pytest.param(
            None,
            "Your Spot Task was interrupted.",
            "TerminationNotice",
            Exit.LOST,
            id="spot, as it used to be",
        ),
        pytest.param(
            0,
            "Your Spot Task was interrupted.",
            "SpotInterruption",
            Exit.LOST,
            id="spot, and the program took it well",
        ),
        pytest.param(None, "Host EC2 (instance i-0abc) terminated.", "", Exit.LOST, id="the host is gone"),
        pytest.param(None, TEXT, EXITED, Exit.LOST, id="an end without an exit code"),
    ],
)
def test_what_an_end_means(exit_code: int | None, reason: str, stop_code: str, exit: Exit) -> None:
    assert meaning(exit_code, reason, stop_code) is exit


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
