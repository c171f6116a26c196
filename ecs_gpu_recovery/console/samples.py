"""Starts for the two fields in which people say what shall run: a command, or a script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Template:
    """A start for the field of a command, or of a script."""

    key: str
    label: str
    text: str
    kind: str = "command"


def _script(name: str) -> str:
    return (Path(__file__).parent / "scripts" / f"{name}.py.txt").read_text(encoding="utf-8")


_TORCHRUN = (
    "torchrun --nnodes=$NNODES --node-rank=$NODE_RANK --nproc-per-node=gpu"
    " --rdzv-backend=static --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT"
)
_ACCELERATE = (
    "accelerate launch --multi_gpu --num_machines $NNODES --machine_rank $NODE_RANK"
    " --num_processes $((NNODES * $(nvidia-smi -L | wc -l))) --main_process_ip $MASTER_ADDR"
    " --main_process_port $MASTER_PORT"
)
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
    Template("plain", "Small training loop, no packages needed", _script("plain"), "script"),
    Template("ddp", "PyTorch DDP with checkpoints", _script("ddp"), "script"),
    Template("shell", "Shell script around torchrun", _SHELL, "script"),
)
