"""A small data-parallel training that is real in everything but size, with the standard library only.

Several processes train one network together: each works on its share of the batch, the gradients are summed
over TCP, and all apply the same update. So it behaves like a big job: a dead or frozen rank stalls all others
until a timeout, and a restart goes on from the last checkpoint. It is deterministic: however often it was
interrupted, the final weights have the digest of an undisturbed run.

It reads the environment described in docs/environment.md and is started the same way on every rank:

    python -m ecs_gpu_recovery.examples.train --steps 120 --checkpoint-every 20
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import socket
import struct
import sys
import time
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

INPUTS, HIDDEN = 6, 10
WEIGHTS = INPUTS * HIDDEN + HIDDEN + HIDDEN + 1
BATCH_PER_RANK = 48
LEARNING_RATE = 0.1
MOMENTUM = 0.9
KEPT_CHECKPOINTS = 2
WRONG_USE = 2


class PeerLost(Exception):
    """Another rank has gone or does not answer, so the collective can never complete."""


def say(message: str) -> None:
    print(message, flush=True)


def give_up(message: str, code: int = 1) -> NoReturn:
    say(message)
    sys.exit(code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Who this process is in its job, read from the environment once."""

    rank: int
    world: int
    address: str
    port: int
    job: str
    attempt: int
    checkpoints: Path
    collective_timeout_s: float
    start_timeout_s: float

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Place:
        return cls(
            rank=int(env.get("RANK") or env.get("NODE_RANK") or 0),
            world=int(env.get("WORLD_SIZE") or env.get("NNODES") or 1),
            address=env.get("MASTER_ADDR") or "127.0.0.1",
            port=int(env.get("MASTER_PORT") or 29500),
            job=env.get("JOB_ID") or "",
            attempt=int(env.get("JOB_ATTEMPT") or 0),
            checkpoints=Path(env.get("CHECKPOINT_DIR") or "checkpoints"),
            collective_timeout_s=float(env.get("COLLECTIVE_TIMEOUT_S") or 600),
            start_timeout_s=float(env.get("START_TIMEOUT_S") or 120),
        )


class Gpu:
    """The simulated GPU of this rank, which is told what it is given to do. Without the variable there is none."""

    COMPUTE, COLLECTIVE, HOST = b"k", b"c", b"h"

    def __init__(self, env: Mapping[str, str]) -> None:
        path = env.get("SIMULATED_GPU_LOAD")
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600) if path else None

    def does(self, what: bytes) -> None:
        if self._file is not None:
            os.pwrite(self._file, what, 0)


# The network: one hidden layer, trained to tell which side of a curved surface a point lies on.


def first_weights(seed: int) -> array[float]:
    chance = random.Random(f"{seed}/weights")
    return array("d", (chance.gauss(0.0, 0.5) for _ in range(WEIGHTS)))


def batch(seed: int, step: int, rank: int) -> Iterator[tuple[list[float], float]]:
    """This rank's samples of this step. They depend on nothing else, so a restart sees the same ones."""
    chance = random.Random(f"{seed}/{step}/{rank}")
    for _ in range(BATCH_PER_RANK):
        point = [chance.uniform(-1.0, 1.0) for _ in range(INPUTS)]
        yield point, 1.0 if point[0] * point[1] + point[2] - 0.5 * point[3] ** 2 > 0.0 else 0.0


def gradient(weights: array[float], seed: int, step: int, rank: int) -> array[float]:
    """Sum of the gradients over this rank's samples; the last element is the sum of their losses."""
    total = array("d", bytes(8 * (WEIGHTS + 1)))
    bias, out = INPUTS * HIDDEN, INPUTS * HIDDEN + HIDDEN
    for point, wanted in batch(seed, step, rank):
        hidden = [
            math.tanh(weights[bias + unit] + sum(weights[unit * INPUTS + i] * x for i, x in enumerate(point)))
            for unit in range(HIDDEN)
        ]
        score = weights[WEIGHTS - 1] + sum(weights[out + unit] * h for unit, h in enumerate(hidden))
        guess = 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, score))))
        total[WEIGHTS] -= math.log(max(1e-12, guess if wanted else 1.0 - guess))
        error = guess - wanted
        total[WEIGHTS - 1] += error
        for unit, h in enumerate(hidden):
            total[out + unit] += error * h
            back = error * weights[out + unit] * (1.0 - h * h)
            total[bias + unit] += back
            for i, x in enumerate(point):
                total[unit * INPUTS + i] += back * x
    return total


def update(weights: array[float], speeds: array[float], summed: array[float], samples: int) -> None:
    """One step of gradient descent with momentum, the same on every rank."""
    for i in range(WEIGHTS):
        speeds[i] = MOMENTUM * speeds[i] - LEARNING_RATE * summed[i] / samples
        weights[i] += speeds[i]


# The group: rank 0 is the root, every other rank holds one connection to it.


def send(peer: socket.socket, step: int, payload: bytes) -> None:
    peer.sendall(struct.pack("!qI", step, len(payload)) + payload)


def receive(peer: socket.socket, step: int) -> bytes:
    """The peer's message for this step. Ranks at different steps must never be mixed."""
    got, size = struct.unpack("!qI", receive_exactly(peer, 12))
    if got != step:
        raise PeerLost(f"it is at step {got} and we are at {step}")
    return receive_exactly(peer, size)


def receive_exactly(peer: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = peer.recv(size - len(data))
        if not part:
            raise PeerLost("it closed the connection")
        data += part
    return bytes(data)


def greeting(place: Place) -> dict[str, Any]:
    return {"job": place.job, "attempt": place.attempt, "world": place.world}


class Group:
    """The ranks of this attempt of this job, and no others."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.peers: dict[int, socket.socket] = {}
        self.waiting_since = time.monotonic()
        deadline = self.waiting_since + place.start_timeout_s
        if place.rank != 0:
            self._join(deadline)
        elif place.world > 1:
            self._gather(deadline)
        for peer in self.peers.values():
            peer.settimeout(place.collective_timeout_s)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _listen(self, deadline: float) -> socket.socket:
        """Bind, patiently: the port may still belong to a rank 0 that is being stopped."""
        loopback = self.place.address in ("127.0.0.1", "localhost")
        while True:
            server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind(("127.0.0.1" if loopback else "", self.place.port))
                server.listen(self.place.world)
                return server
            except OSError as error:
                server.close()
                if time.monotonic() > deadline:
                    give_up(f"rank 0: port {self.place.port} cannot be used: {error}")
                time.sleep(0.1)

    def _gather(self, deadline: float) -> None:
        with self._listen(deadline) as server:
            while len(self.peers) < self.place.world - 1:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    missing = sorted(set(range(1, self.place.world)) - set(self.peers))
                    give_up(f"rank 0: ranks {missing} did not come")
                self._admit(peer)

    def _admit(self, peer: socket.socket) -> None:
        """Let a rank of this job and attempt in. Anybody else is told why not and sent away."""
        peer.settimeout(5.0)
        try:
            hello = json.loads(receive(peer, -1))
            rank = int(hello.pop("rank"))
            refused = hello != greeting(self.place) or rank in self.peers or not 0 < rank < self.place.world
            send(peer, -1, json.dumps({"refused": refused, **greeting(self.place)}).encode())
        except (OSError, PeerLost, ValueError, TypeError, LookupError, AttributeError) as error:
            say(f"rank 0: sent a stranger away: {error!r}")
            peer.close()
            return
        if refused:
            say(f"rank 0: sent rank {rank} of job {hello.get('job')!r} attempt {hello.get('attempt')} away")
            peer.close()
        else:
            self.peers[rank] = peer

    def _join(self, deadline: float) -> None:
        while True:
            try:
                self.peers[0] = self._try_to_join()
                return
            except (OSError, PeerLost, ValueError) as error:
                if time.monotonic() > deadline:
                    give_up(f"rank {self.place.rank}: cannot join rank 0: {error}")
                time.sleep(0.1)

    def _try_to_join(self) -> socket.socket:
        root = socket.create_connection((self.place.address, self.place.port), timeout=5.0)
        try:
            send(root, -1, json.dumps({"rank": self.place.rank, **greeting(self.place)}).encode())
            reply = json.loads(receive(root, -1))
            if reply["refused"]:
                raise PeerLost(f"it runs job {reply['job']!r} attempt {reply['attempt']}")
        except BaseException:
            root.close()
            raise
        return root

    def _exchange(self, rank: int, step: int, payload: bytes | None) -> bytes:
        """Send to a peer, or receive from it when there is nothing to send; name it when it fails."""
        try:
            if payload is None:
                return receive(self.peers[rank], step)
            send(self.peers[rank], step, payload)
        except (OSError, PeerLost) as error:
            raise PeerLost(f"lost rank {rank} at step {step}: {error}") from error
        return b""

    def broadcast(self, step: int, payload: bytes) -> bytes:
        """What rank 0 holds, on every rank."""
        self.waiting_since = time.monotonic()
        if self.place.rank != 0:
            return self._exchange(0, step, None)
        for rank in sorted(self.peers):
            self._exchange(rank, step, payload)
        return payload

    def sum(self, step: int, mine: array[float]) -> array[float]:
        """The element-wise sum over all ranks, added in the order of ranks so that it never differs."""
        self.waiting_since = time.monotonic()
        if self.place.rank != 0:
            self._exchange(0, step, mine.tobytes())
        else:
            for rank in sorted(self.peers):
                theirs = array("d", self._exchange(rank, step, None))
                mine = array("d", map(float.__add__, mine, theirs))
        return array("d", self.broadcast(step, mine.tobytes()))


# Checkpoints: rank 0 writes and reads them, the others get the state from rank 0.


def checkpoint_files(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted(folder.glob("checkpoint-*.json"), reverse=True)


def seal(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Written beside its place, forced to disk, then renamed: it is there whole or not at all."""
    path = folder / f"checkpoint-{state['step']:08d}.json"
    beside = folder / f".{path.name}.tmp"
    with beside.open("w", encoding="utf-8") as file:
        json.dump({**state, "digest": seal(state)}, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    directory = os.open(folder, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    for old in checkpoint_files(folder)[KEPT_CHECKPOINTS:]:
        old.unlink()


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is whole. A damaged one is named and passed over."""
    for path in checkpoint_files(folder):
        try:
            state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if state.pop("digest") == seal(state):
                return state
            say(f"{path.name} is damaged (its digest differs), trying the one before it")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            say(f"{path.name} is damaged ({error}), trying the one before it")
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


def first_state(place: Place, seed: int) -> dict[str, Any]:
    """Where rank 0 starts from: the last good checkpoint of this very training, or the beginning."""
    state = load_checkpoint(place.checkpoints)
    if state is None:
        return {"step": 0, "seed": seed, "weights": list(first_weights(seed)), "speeds": [0.0] * WEIGHTS}
    if state["seed"] != seed or len(state["weights"]) != WEIGHTS:
        give_up("the checkpoint belongs to another training; use another CHECKPOINT_DIR", WRONG_USE)
    return state


def train(place: Place, group: Group, options: argparse.Namespace) -> None:
    """The loop every rank runs. Rank 0 also writes checkpoints and progress."""
    root = place.rank == 0
    fence = Fence(place.checkpoints, place.job, place.attempt) if root else None
    state = first_state(place, options.seed) if root else None
    state = json.loads(group.broadcast(0, json.dumps(state).encode()))
    first, weights, speeds = int(state["step"]), array("d", state["weights"]), array("d", state["speeds"])
    say(f"resumed from step {first}" if first else "starting from step 0")
    progress = Progress(place.checkpoints, place.attempt) if root else None
    samples, gpu = BATCH_PER_RANK * place.world, Gpu(os.environ)
    for step in range(first + 1, options.steps + 1):
        began = time.monotonic()
        gpu.does(Gpu.COMPUTE)
        mine = gradient(weights, options.seed, step, place.rank)
        gpu.does(Gpu.COLLECTIVE)
        summed = group.sum(step, mine)
        gpu.does(Gpu.COMPUTE)
        update(weights, speeds, summed, samples)
        time.sleep(max(0.0, began + options.step_seconds - time.monotonic()))
        last = step == options.steps
        if progress and fence:
            fence.check()
            loss = summed[WEIGHTS] / samples
            progress.add(step, loss)
            if last or step % options.log_every == 0:
                say(f"step {step}/{options.steps} loss {loss:.4f}")
            if last or step % options.checkpoint_every == 0:
                state = {"step": step, "seed": options.seed, "weights": list(weights), "speeds": list(speeds)}
                gpu.does(Gpu.HOST)
                save_checkpoint(place.checkpoints, state)
    # No rank is done before the last checkpoint is safe and all ranks hold the same weights.
    digest = hashlib.sha256(weights.tobytes()).hexdigest()
    if group.broadcast(options.steps + 1, digest.encode()).decode() != digest:
        give_up(f"rank {place.rank}: the weights differ from those of rank 0")
    say(f"done, weights {digest}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A small data-parallel training to try the recovery with.")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="stretch each step to this duration")
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--log-every", type=int, default=10, help="steps between lines of output")
    parser.add_argument("--seed", type=int, default=0, help="decides the data and the first weights")
    options = parser.parse_args(arguments)
    if min(options.steps, options.checkpoint_every, options.log_every) < 1:
        parser.error("--steps, --checkpoint-every and --log-every must be at least 1")
    try:
        place = Place.from_env(os.environ)
    except ValueError as error:
        parser.error(f"the environment is not understood: {error}")
    say(f"rank {place.rank} of {place.world}, job {place.job!r}, attempt {place.attempt}")
    group = Group(place)
    try:
        train(place, group, options)
    except PeerLost as error:
        # A real collective would not even notice. It blocks, and its timeout ends it.
        timeout_s = place.collective_timeout_s
        say(f"rank {place.rank}: {error}; waiting for the collective to time out ({timeout_s:g} s)")
        time.sleep(max(0.0, group.waiting_since + timeout_s - time.monotonic()))
        give_up(f"rank {place.rank}: the collective timed out")


if __name__ == "__main__":
    main()
