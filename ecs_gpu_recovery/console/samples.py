"""Starts for the two fields in which people say what shall run: a command, or a script."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Template:
    """A start for the field of a command, or of a script."""

    key: str
    label: str
    text: str
    kind: str = "command"


_TORCHRUN = (
    "torchrun --nnodes=$NNODES --node-rank=$NODE_RANK --nproc-per-node=gpu"
    " --rdzv-backend=static --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT"
)
_ACCELERATE = (
    "accelerate launch --multi_gpu --num_machines $NNODES --machine_rank $NODE_RANK"
    " --num_processes $((NNODES * $(nvidia-smi -L | wc -l))) --main_process_ip $MASTER_ADDR"
    " --main_process_port $MASTER_PORT"
)
_PLAIN = '''"""A training loop without packages: it goes on from its checkpoint and reports its progress."""
import json
import os
import time
from datetime import datetime, timezone
from pathlib import Path

rank = int(os.environ["NODE_RANK"])
attempt = int(os.environ["JOB_ATTEMPT"])
folder = Path(os.environ["CHECKPOINT_DIR"])
kept = folder / f"rank-{rank}.json"
step = json.loads(kept.read_text())["step"] if kept.exists() else 0
print(f"rank {rank} of {os.environ['NNODES']}, attempt {attempt}, starting after step {step}", flush=True)

while step < 300:
    step += 1
    loss = 1 / (1 + step / 40)
    time.sleep(0.1)  # your work
    if rank == 0:
        with open(folder / "progress.jsonl", "a") as report:
            at = datetime.now(timezone.utc).isoformat()
            print(json.dumps({"at": at, "attempt": attempt, "step": step, "loss": loss}), file=report)
    if step % 20 == 0:
        part = kept.with_suffix(".part")
        part.write_text(json.dumps({"step": step}))
        part.replace(kept)  # never half a checkpoint
        print(f"step {step} loss {loss:.4f}", flush=True)
'''
_DDP = '''"""PyTorch DDP, started by torchrun on every node; goes on from the newest checkpoint.

Put this into your image or a shared folder and start it with the command of the template "torchrun".
To try it on one process of each node, run it as it is.
"""
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

os.environ.setdefault("RANK", os.environ["NODE_RANK"])
os.environ.setdefault("WORLD_SIZE", os.environ["NNODES"])
os.environ.setdefault("LOCAL_RANK", "0")
cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
kept = Path(os.environ["CHECKPOINT_DIR"]) / "newest.pt"

model = DistributedDataParallel(torch.nn.Linear(1024, 1024).to(device))
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
first = 0
if kept.exists():
    state = torch.load(kept, map_location=device, weights_only=True)
    model.module.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    first = state["step"]

for step in range(first + 1, 1001):
    batch = torch.randn(32, 1024, device=device)
    loss = (model(batch) - batch).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if step % 50 == 0 and dist.get_rank() == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
        part = kept.with_suffix(".part")
        torch.save(
            {"model": model.module.state_dict(), "optimiser": optimiser.state_dict(), "step": step}, part
        )
        part.replace(kept)
dist.destroy_process_group()
'''
_SHELL = f"""#!/usr/bin/env bash
# Runs on every node. An exit code 1 of torchrun has the nodes examined; others end the job.
set -euo pipefail
export NCCL_ASYNC_ERROR_HANDLING=1
cd /path/to/your/code
exec {_TORCHRUN} train.py --resume "$CHECKPOINT_DIR"
"""
TEMPLATES = (
    Template(
        "example",
        "Built-in example (no GPU needed)",
        "python -m ecs_gpu_recovery.examples.train --steps 400 --step-seconds 0.05 --checkpoint-every 20",
    ),
    Template("torchrun", "torchrun (DDP, FSDP)", f"bash -c 'exec {_TORCHRUN} train.py'"),
    Template("accelerate", "Hugging Face Accelerate", f"bash -c 'exec {_ACCELERATE} train.py'"),
    Template("deepspeed", "DeepSpeed", f"bash -c 'exec {_TORCHRUN} train.py --deepspeed ds_config.json'"),
    Template("plain", "Small training loop, no packages needed", _PLAIN, "script"),
    Template("ddp", "PyTorch DDP with checkpoints", _DDP, "script"),
    Template("shell", "Shell script around torchrun", _SHELL, "script"),
)
