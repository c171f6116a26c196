"""A node's part in the test: do what rank 0 orders, within its deadline, and say how it went."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ecs_gpu_recovery.health.collective import transfer
from ecs_gpu_recovery.health.collective.rendezvous import Line, Message
from ecs_gpu_recovery.health.collective.transfer import LinkError, Place, Step
from ecs_gpu_recovery.health.findings import one_line

_TORCH = (sys.executable, "-m", "ecs_gpu_recovery.health.collective.torch_step")
_LOOK_S = 90.0
_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(slots=True, kw_only=True)
class Member:
    """One node, from its welcome to the end of the test."""

    rank: int
    line: Line
    listener: socket.socket
    bytes_per_s: float | None = None

    def serve(self, patience_s: float) -> Message:
        """Carry out orders until the report comes. TimeoutError or OSError: rank 0 is gone."""
        addresses: dict[int, tuple[str, int]] = {}
        while True:
            order = self.line.receive(patience_s)
            match order.get("do"):
                case "begin":
                    listed = order.get("addresses")
                    given = listed if isinstance(listed, dict) else {}
                    addresses = {int(rank): (str(at[0]), int(at[1])) for rank, at in given.items()}
                case "end":
                    report = order.get("report")
                    return report if isinstance(report, dict) else {}
                case _:
                    self.line.send(self._carry_out(order, addresses))

    def _carry_out(self, order: Message, addresses: dict[int, tuple[str, int]]) -> Message:
        place = Place(
            rank=self.rank, listener=self.listener, addresses=addresses, bytes_per_s=self.bytes_per_s
        )
        try:
            match order.get("do"):
                case "ring":
                    return {"seconds": transfer.ring(place, _ranks(order), _step(order))}
                case "pair":
                    return {"seconds": transfer.exchange(place, _number(order, "with"), _step(order))}
                case "port":
                    return {"port": _free_port()}
                case "torch":
                    return _torch(order)
        except LinkError as error:
            return {"problem": str(error)}
        except (OSError, ValueError) as error:
            return {"problem": one_line(f"{type(error).__name__}: {error}")}
        return {"problem": f"order {order.get('do')!r} is not known here: the nodes run different versions"}


def look_for_torch(backend: str) -> Message:
    """GPUs and NCCL as PyTorch sees them; empty where it is not installed or not wanted."""
    if backend == "tcp" or importlib.util.find_spec("torch") is None:
        return {}
    if backend == "auto" and not _DRIVER.exists():
        return {}
    answer = _run_all([[*_TORCH, "--look"]], _LOOK_S)[0]
    return {key: answer[key] for key in ("gpus", "nccl", "torch") if key in answer}


def _torch(order: Message) -> Message:
    """One process per GPU of this node; the slowest tells the time."""
    each, deadline_s = _number(order, "each"), float(str(order["deadline_s"]))
    commands = []
    for local in range(each):
        given = {
            "backend": order["backend"],
            "master": order["master"],
            "port": order["port"],
            "world": order["world"],
            "rank": _number(order, "first") + local,
            "device": local,
            "size": order["size"],
            "repeats": order["repeats"],
            "timeout": deadline_s,
        }
        arguments = [text for key, value in given.items() for text in (f"--{key}", str(value))]
        commands.append([*_TORCH, *arguments])
    answers = _run_all(commands, deadline_s)
    problems = [str(answer["problem"]) for answer in answers if "problem" in answer]
    if problems:
        return {"problem": problems[0]}
    if not all(answer.get("right") for answer in answers):
        return {"problem": "the sum is wrong: data was altered on the way"}
    return {"seconds": max(float(str(answer["seconds"])) for answer in answers)}


def _run_all(commands: list[list[str]], deadline_s: float) -> list[Message]:
    """Programs side by side, each one's last line of JSON. At the deadline their sessions are killed."""
    until = time.monotonic() + deadline_s
    running = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        for command in commands
    ]
    answers: list[Message] = []
    try:
        for process in running:
            try:
                out, err = process.communicate(timeout=max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                answers.append({"problem": f"no answer within {deadline_s:g} s"})
                continue
            answers.append(_last_line(out, err, process.returncode))
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    return answers


def _last_line(out: str, err: str, code: int) -> Message:
    for line in reversed(out.splitlines()):
        if line.startswith("{"):
            answer = json.loads(line)
            return answer if isinstance(answer, dict) else {}
    said = [line for line in err.splitlines() if line.strip()]
    return {"problem": one_line(said[-1] if said else f"ended with exit code {code} and said nothing")}


def _step(order: Message) -> Step:
    return Step(
        name=str(order["name"]),
        size=_number(order, "size"),
        repeats=_number(order, "repeats"),
        until=time.monotonic() + float(str(order["deadline_s"])),
    )


def _ranks(order: Message) -> list[int]:
    listed = order.get("ranks")
    return [int(rank) for rank in listed] if isinstance(listed, list) else []


def _number(order: Message, key: str) -> int:
    return int(str(order[key]))


def _free_port() -> int:
    with transfer.listen() as listener:
        return int(listener.getsockname()[1])
