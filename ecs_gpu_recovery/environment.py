"""What a training script is told, on both backends. docs/environment.md explains it to its authors."""

from __future__ import annotations

from collections.abc import Container

from .core.model import Job, Rank

#: Where the NCCL of a rank says which rank it waits for.
RAS_PORT = 28028
#: How the files of PyTorch's flight recorder begin: the rank follows, and with a pipe also `.pipe`.
DUMP, PIPE = "nccl_trace_rank_", "nccl_trace_pipe_rank_"

#: What has two names in PyTorch, which warns of the older one.
_SAME = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "TORCH_FR_DUMP_TEMP_FILE",
}


def telling(known: Container[str], port: int = RAS_PORT, folder: str = "") -> dict[str, str]:
    """What makes NCCL and PyTorch tell what a rank waits for, if it ever hangs; without what is `known` to be set.

    Where PyTorch can't make its pipe it ends the training. So it is told of one only in a `folder` that is the task's
    own, and that it can write to.
    """
    wanted = {
        "NCCL_RAS_ADDR": f"localhost:{port}",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    if folder:
        wanted["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] = f"{folder}/{DUMP}"
        wanted["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = f"{folder}/{PIPE}"
    for name, other in _SAME.items():
        if other in known:
            wanted.pop(name, None)
    return {name: value for name, value in wanted.items() if name not in known}


def training_environment(job: Job, rank: Rank) -> dict[str, str]:
    """The rank's variables. What the person set stands, except for what must be right for the gang to meet.

    One process per node, so the world is as large as the gang; a launcher tells its own processes otherwise.
    """
    world = str(len(job.ranks))
    told = {
        **job.spec.env,
        "MASTER_ADDR": job.ranks[0].address or job.ranks[0].node,
        "MASTER_PORT": str(job.spec.master_port),
        "NNODES": world,
        "NODE_RANK": str(rank.index),
        "WORLD_SIZE": world,
        "RANK": str(rank.index),
        "LOCAL_RANK": "0",
        "JOB_ID": job.id,
        "JOB_ATTEMPT": str(job.attempt),
        "GPU_RECOVERY_KIND": "train",
        "GPU_RECOVERY_NODE": rank.node,
    }
    if job.spec.checkpoint_dir:
        told["CHECKPOINT_DIR"] = job.spec.checkpoint_dir
    if rank.ibdev:
        told["IB_DEVICES"] = rank.ibdev
        told.setdefault("NCCL_IB_HCA", rank.ibdev)
    return told
