"""The words of training programs: none is lost to the quick look, and each blames the right one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecs_gpu_recovery.health.judge import training_log

SAID = {
    "could not synchronize on CUDA context: CUDA_ERROR_ECC_UNCORRECTABLE": "gpu-memory",
    "NCCL WARN Cuda failure 214 'uncorrectable ECC error encountered'": "gpu-memory",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE": "gpu-link",
    "pynvml.NVMLError_GpuIsLost: GPU is lost": "gpu-gone",
    "nvidia-container-cli: device error: GPU-5a1c7f9e: unknown device: unknown": "gpu-gone",
    "failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=GPU-5a1c7f9e": "gpu-gone",
    "NVML: GPU requires reset": "gpu-gone",
    "XlaRuntimeError: INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS": "bad-access",
    "CUDA_ERROR_LAUNCH_FAILED": "gpu-hint",
    "RuntimeError: CUDA driver error: unknown error": "gpu-hint",
    "nvidia-container-cli: detection error: driver error: timed out: unknown": "gpu-hint",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.": "out-of-memory",
    "Killed": "killed",
    "Loss is nan, stopping": "numbers",
    "ERROR: Unexpected bus error encountered in worker.": "program",
    "OSError: [Errno 5] Input/output error": "storage",
    "NCCL WARN NET/IB : mlx5_3:1 Got async event : port error": "network",
}


@pytest.mark.parametrize(("line", "code"), SAID.items())
def test_a_complaint_is_known_by_its_words(line: str, code: str) -> None:
    assert training_log.signature(line) == code


@pytest.mark.parametrize("line", ["step 100 loss 2.31", "INFO loss: 2.31 information", "", "epoch 3, room 2"])
def test_a_line_without_a_complaint_has_none(line: str) -> None:
    assert training_log.signature(line) is None


@pytest.mark.parametrize(("code", "pattern"), training_log._SIGNATURES)
@settings(max_examples=8)
@given(data=st.data())
def test_the_quick_look_lets_every_signature_pass(
    code: str, pattern: re.Pattern[str], data: st.DataObject
) -> None:
    line = data.draw(st.from_regex(pattern))
    assert training_log.signature(line) is not None, code
