"""One rank of a real training loop over NCCL that hangs, or pauses, when it is told to. For `tools.hang_trial` only.

Two of these share one GPU: NCCL takes them for two machines that talk over sockets. Rank 0 reads what to do from a file
and tells the others with each step, so that all change at the same step.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

MODES = (
    "train", "asleep", "other-collective", "endless", "evaluation", "checkpoint", "data-stall", "small-model",
    "accumulation", "compilation", "slow-step", "cpu-only", "end",
)  # fmt: skip
PAUSE_S = float(os.environ.get("PAUSE_S") or 45)
#: A step every four minutes and an hour without the GPU, by the trial's window of 20 s instead of 60.
LONG_S = {"slow-step": 80.0, "cpu-only": 300.0}
SIZE, PARAMETERS = 4096, 8


def burn(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10_000))


def compute(weights: list[Any], x: Any, rounds: int = 4) -> None:
    for _ in range(rounds):
        for weight in weights:
            x = torch.tanh(x @ weight)


def hang(mode: str, x: Any) -> None:
    """What rank 1 does instead of coming to the next collective, where rank 0 already waits."""
    if mode == "asleep":
        time.sleep(3600)
    elif mode == "other-collective":
        dist.all_gather([torch.empty_like(x), torch.empty_like(x)], x)
        torch.cuda.synchronize()
    elif mode == "endless":
        torch.cuda._sleep(1 << 60)


def work(seconds: float, once: Callable[[], None]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        once()


def pause(mode: str, rank: int, weights: list[Any], x: Any, folder: Path) -> None:
    """What takes a while and is no hang. Mostly rank 0 is busy, and rank 1 waits for it."""

    def evaluate() -> None:
        compute(weights, x)
        torch.cuda.synchronize()
        time.sleep(0.05)

    def write() -> None:
        with open(folder / "checkpoint.bin", "wb") as file:
            file.write(os.urandom(1 << 20) * 16)
            os.fsync(file.fileno())
        time.sleep(0.5)

    def compile_it() -> None:
        workers = [multiprocessing.Process(target=burn, args=(PAUSE_S,)) for _ in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def accumulate() -> None:
        compute(weights, x, 20)
        torch.cuda.synchronize()

    def prepare() -> None:
        burn(1)

    everyone = {
        "data-stall": lambda: time.sleep(1),
        "accumulation": accumulate,
        "slow-step": accumulate,
        "cpu-only": prepare,
    }
    first = {"evaluation": evaluate, "checkpoint": write, "compilation": compile_it}
    if does := {**everyone, **(first if rank == 0 else {})}.get(mode):
        work(LONG_S.get(mode, PAUSE_S), does)


def main() -> None:
    rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", timeout=timedelta(minutes=60))
    weights = [torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) / 64 for _ in range(PARAMETERS)]
    x = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    what = torch.zeros(1, device="cuda", dtype=torch.int32)
    step = 0
    while True:
        step += 1
        if rank == 0:
            what.fill_(MODES.index((folder / "mode").read_text().strip()))
        dist.broadcast(what, 0)
        mode = MODES[int(what.item())]
        if mode == "end":
            break
        if mode == "small-model":
            (x[:256, :256] @ weights[0][:256, :256]).sum().item()
            time.sleep(0.05)
        else:
            pause(mode, rank, weights, x, folder)
            if rank == 1:
                hang(mode, x)
            compute(weights, x)
            for weight in weights:
                dist.all_reduce(weight.clone())
            torch.cuda.synchronize()
        if step % 10 == 0 or mode not in ("train", "small-model"):
            print(f"rank {rank} step {step} {mode}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
