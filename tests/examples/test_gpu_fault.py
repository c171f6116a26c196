"""The program that faults on purpose: what can be seen of it without a GPU. On one, tools/real_gpu runs it."""

from __future__ import annotations

import ctypes

import pytest

from ecs_gpu_recovery.examples import gpu_fault


class FakeDriver:
    """A `libcuda` whose calls succeed, but for the one that is told to fail."""

    def __init__(self, fails: str = "", code: int = 0) -> None:
        self.fails, self.code = fails, code
        self.loaded = ""

    def __getattr__(self, name: str) -> object:
        def call(*arguments: object) -> int:
            if name == "cuModuleLoadData":
                kernel = arguments[1]
                assert isinstance(kernel, ctypes.c_char_p)
                self.loaded = (kernel.value or b"").decode()
            return self.code if name == self.fails else 0

        return call


def test_without_a_driver_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(SystemExit) as ended:
        gpu_fault.main(["trap"])
    assert ended.value.code == gpu_fault.NOT_TRIED
    assert "no NVIDIA driver here" in capsys.readouterr().err


@pytest.mark.parametrize("fault", sorted(gpu_fault.KERNELS))
def test_a_fault_ends_it_as_a_training_would_end(
    fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = FakeDriver("cuCtxSynchronize", 700)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    assert gpu_fault.main([fault]) == gpu_fault.FAULTED
    assert "CUDA error: " in capsys.readouterr().out
    assert ".visible .entry fault()" in driver.loaded


def test_a_kernel_that_does_nothing_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver())
    assert gpu_fault.main(["trap"]) == gpu_fault.NOT_TRIED


def test_a_driver_that_does_not_start_is_told_apart_from_a_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver("cuInit", 100))
    with pytest.raises(SystemExit) as ended:
        gpu_fault.main(["trap"])
    assert ended.value.code == gpu_fault.NOT_TRIED
    assert "cuInit" in capsys.readouterr().err
