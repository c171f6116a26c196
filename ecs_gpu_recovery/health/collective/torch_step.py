"""One process of an all-reduce with PyTorch: `python -m ecs_gpu_recovery.health.collective.torch_step`.

NCCL may hang in ways that only a kill ends, so it never runs inside the program that keeps the deadlines.
The answer is one line of JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any


def look() -> dict[str, object]:
    """What this node could use."""
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    gpus = int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
    return {"torch": str(torch.__version__), "gpus": gpus, "nccl": bool(distributed.is_nccl_available())}


def measure(options: argparse.Namespace) -> dict[str, object]:
    """All-reduce a buffer some times and tell the best; the sum is checked."""
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    on_gpu = options.backend == "nccl"
    device = torch.device("cuda", options.device) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    distributed.init_process_group(
        options.backend,
        init_method=f"tcp://{options.master}:{options.port}",
        world_size=options.world,
        rank=options.rank,
        timeout=timedelta(seconds=options.timeout),
        device_id=device if on_gpu else None,
    )
    count = options.size // 4
    best = float("inf")
    for _ in range(options.repeats + 1):  # the first one sets up the connections
        data = torch.full((count,), float(options.rank + 1), device=device)
        began = _now(torch, on_gpu)
        distributed.all_reduce(data)
        best = min(best, _now(torch, on_gpu) - began)
    wanted = options.world * (options.world + 1) / 2
    right = bool((data == wanted).all())
    distributed.destroy_process_group()
    return {"seconds": best, "right": right}


def _now(torch: Any, on_gpu: bool) -> float:
    """A GPU works on after the call returns; only when it has finished does the clock count."""
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="torch_step", description=__doc__)
    parser.add_argument("--look", action="store_true")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="gloo")
    parser.add_argument("--master", default="127.0.0.1")
    for name in ("port", "world", "rank", "device", "size", "repeats"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=60.0)
    options = parser.parse_args(argv)
    print(json.dumps(look() if options.look else measure(options)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
