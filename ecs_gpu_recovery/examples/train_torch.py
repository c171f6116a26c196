"""The same small training with PyTorch: DistributedDataParallel over NCCL on GPUs, over gloo without.

It keeps the contract of train.py: the environment of docs/environment.md, checkpoints by rank 0 that are
there whole or not at all, `resumed from step N`, one line of progress per step. On every node, start plainly

    python train_torch.py --steps 120

or, for one process per GPU, under torchrun:

    torchrun --nnodes $NNODES --node-rank $NODE_RANK --nproc-per-node 8 \\
        --master-addr $MASTER_ADDR --master-port $MASTER_PORT train_torch.py --steps 120

PyTorch is not a dependency of this project; install it yourself.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

INPUTS, HIDDEN = 6, 32
BATCH_PER_RANK = 256
KEPT_CHECKPOINTS = 2
WRONG_USE = 2
DIGEST_BYTES = 32


def say(message: str) -> None:
    print(message, flush=True)


def give_up(message: str, code: int = 1) -> NoReturn:
    say(message)
    sys.exit(code)


def import_torch() -> Any:
    """PyTorch, imported late, so that its absence is one clear line."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the network is tiny; more threads only get in the way
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what makes matrix products repeatable
    try:
        import torch
        import torch.distributed
        import torch.nn.parallel
    except ImportError as error:
        give_up(f"this training needs PyTorch (pip install torch): {error}", WRONG_USE)
    torch.use_deterministic_algorithms(True)
    return torch


def complete_environment() -> None:
    """One process per node is the default: then a node's rank is the process's rank."""
    os.environ.setdefault("RANK", os.environ.get("NODE_RANK", "0"))
    os.environ.setdefault("WORLD_SIZE", os.environ.get("NNODES", "1"))
    os.environ.setdefault("LOCAL_RANK", "0")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    if os.environ.get("IB_DEVICES"):
        os.environ.setdefault("NCCL_IB_HCA", os.environ["IB_DEVICES"])


def batch(torch: Any, seed: int, step: int, rank: int) -> tuple[Any, Any]:
    """This rank's samples of this step. They depend on nothing else, so a restart sees the same ones."""
    chance = torch.Generator().manual_seed((seed * 1_000_003 + step) * 4099 + rank)
    points = torch.rand((BATCH_PER_RANK, INPUTS), generator=chance) * 2 - 1
    wanted = (points[:, 0] * points[:, 1] + points[:, 2] - 0.5 * points[:, 3] ** 2 > 0).float()
    return points, wanted


def save_checkpoint(torch: Any, folder: Path, state: dict[str, Any]) -> None:
    """A digest, then what torch.save makes; written beside its place, forced to disk, then renamed."""
    content = io.BytesIO()
    torch.save(state, content)
    path = folder / f"checkpoint-{state['step']:08d}.pt"
    beside = folder / f".{path.name}.tmp"
    with beside.open("wb") as file:
        file.write(hashlib.sha256(content.getbuffer()).digest() + content.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    for old in sorted(folder.glob("checkpoint-*.pt"), reverse=True)[KEPT_CHECKPOINTS:]:
        old.unlink()


def load_checkpoint(torch: Any, folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is whole. A damaged one is named and passed over."""
    for path in sorted(folder.glob("checkpoint-*.pt"), reverse=True):
        content = path.read_bytes()
        digest, payload = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if hashlib.sha256(payload).digest() == digest:
            loaded: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
            return loaded
        say(f"{path.name} is damaged (its digest differs), trying the one before it")
    return None


class Fence:
    """Keeps an older attempt from writing: one that was lost, with its node, may be alive somewhere out of sight."""

    def __init__(self, folder: Path, job: str, attempt: int) -> None:
        self.path, self.job, self.attempt = folder / ".attempt", job, attempt
        folder.mkdir(parents=True, exist_ok=True)
        if self.holder()[1] == job:  # another job that used this folder before has ended
            self.check()
        beside = folder / f".attempt.{os.getpid()}.tmp"
        beside.write_text(f"{attempt} {job}\n", encoding="utf-8")
        beside.replace(self.path)

    def holder(self) -> tuple[int, str]:
        """The attempt that has the folder, and its job."""
        try:
            number, _, job = self.path.read_text(encoding="utf-8").rstrip("\n").partition(" ")
            return int(number), job
        except (FileNotFoundError, ValueError):
            return self.attempt, self.job

    def check(self) -> None:
        """Before every write. Ends this process if a newer attempt, or another job, has the folder now."""
        attempt, job = self.holder()
        if job != self.job or attempt > self.attempt:
            give_up(f"attempt {attempt} of job {job!r} writes here now: attempt {self.attempt} ends")


class Progress:
    """One line of JSON per step, for those who watch the job."""

    def __init__(self, folder: Path, attempt: int) -> None:
        self.attempt = attempt
        path = folder / "progress.jsonl"
        torn = path.exists() and not path.read_bytes().endswith(b"\n")
        self.file = path.open("a", encoding="utf-8", buffering=1)
        self.file.write("\n" if torn else "")  # the writer before us was killed in the middle of a line

    def add(self, step: int, loss: float) -> None:
        at = datetime.now(UTC).isoformat()
        self.file.write(json.dumps({"at": at, "attempt": self.attempt, "step": step, "loss": loss}) + "\n")


class Training:
    """One rank: its model, its place in the group, and on rank 0 the checkpoints."""

    def __init__(self, torch: Any, options: argparse.Namespace) -> None:
        self.torch, self.options = torch, options
        self.dist = torch.distributed
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.attempt = int(os.environ.get("JOB_ATTEMPT") or 0)
        self.folder = Path(os.environ.get("CHECKPOINT_DIR") or "checkpoints")
        self.fence: Fence | None = None  #: of rank 0, which alone writes
        local = int(os.environ["LOCAL_RANK"])
        on_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(self.device)
        timeout_s = float(os.environ.get("COLLECTIVE_TIMEOUT_S") or 600)
        self.dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            timeout=timedelta(seconds=timeout_s),
            device_id=self.device if on_gpu else None,
        )
        self.check_company()
        torch.manual_seed(options.seed)
        model = torch.nn.Sequential(
            torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1)
        ).to(self.device)
        self.model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local] if on_gpu else None)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.3, momentum=0.9)

    def check_company(self) -> None:
        """A rank left over from another job or attempt must not train with us."""
        mine = (os.environ.get("JOB_ID") or "", self.attempt)
        everybody: list[Any] = [None] * self.world
        self.dist.all_gather_object(everybody, mine)
        if any(other != mine for other in everybody):
            give_up(f"rank {self.rank}: ranks of different jobs or attempts met: {everybody}")

    def restore(self) -> int:
        """Rank 0 reads the checkpoint and gives it to all; the step it was written at."""
        found: list[Any] = [None]
        if self.rank == 0:
            self.fence = Fence(self.folder, os.environ.get("JOB_ID") or "", self.attempt)
            found = [load_checkpoint(self.torch, self.folder)]
        self.dist.broadcast_object_list(found, src=0, device=self.device)
        state = found[0]
        if state is None:
            return 0
        if state["seed"] != self.options.seed:
            give_up("the checkpoint belongs to another training; use another CHECKPOINT_DIR", WRONG_USE)
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])

    def step(self, step: int) -> float:
        """Forward, backward with the gradients averaged by DDP, update; the loss over all ranks."""
        points, wanted = batch(self.torch, self.options.seed, step, self.rank)
        scores = self.model(points.to(self.device)).squeeze(1)
        loss = self.torch.nn.functional.binary_cross_entropy_with_logits(scores, wanted.to(self.device))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        total = loss.detach().clone()
        self.dist.all_reduce(total)
        return float(total) / self.world

    def run(self) -> None:
        first, options = self.restore(), self.options
        say(f"resumed from step {first}" if first else "starting from step 0")
        progress = Progress(self.folder, self.attempt) if self.rank == 0 else None
        for step in range(first + 1, options.steps + 1):
            began = time.monotonic()
            loss = self.step(step)
            time.sleep(max(0.0, began + options.step_seconds - time.monotonic()))
            last = step == options.steps
            if progress and self.fence:
                self.fence.check()
                progress.add(step, loss)
                if last or step % options.log_every == 0:
                    say(f"step {step}/{options.steps} loss {loss:.4f}")
                if last or step % options.checkpoint_every == 0:
                    self.save(step)
        self.dist.barrier()  # no rank is done before the last checkpoint is safe
        say(f"done, weights {self.digest()}")
        self.dist.destroy_process_group()

    def save(self, step: int) -> None:
        state = {"step": step, "seed": self.options.seed, "model": self.model.module.state_dict()}
        save_checkpoint(self.torch, self.folder, {**state, "optimizer": self.optimizer.state_dict()})

    def digest(self) -> str:
        values = [tensor.detach().cpu().flatten().tolist() for tensor in self.model.module.parameters()]
        return hashlib.sha256(repr(values).encode()).hexdigest()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A small PyTorch training to try the recovery with.")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="stretch each step to this duration")
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--log-every", type=int, default=10, help="steps between lines of output")
    parser.add_argument("--seed", type=int, default=0, help="decides the data and the first weights")
    options = parser.parse_args(arguments)
    if min(options.steps, options.checkpoint_every, options.log_every) < 1:
        parser.error("--steps, --checkpoint-every and --log-every must be at least 1")
    complete_environment()
    say(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}")
    Training(import_torch(), options).run()


if __name__ == "__main__":
    main()
