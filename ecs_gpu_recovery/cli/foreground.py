"""`gpu-recovery up`: the embedded control plane in the foreground."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from ..core.errors import Refused
from ..local.controller import Controller, NodeWish


class StoryFormatter(logging.Formatter):
    """One line per transition, for a person."""

    def format(self, record: logging.LogRecord) -> str:
        fields = record.__dict__
        if record.msg == "moved":
            move = (
                fields["to"]
                if fields["from"] in ("", fields["to"])
                else f"{fields['from']} -> {fields['to']}"
            )
            evidence = f" [{fields['evidence']}]" if fields["evidence"] else ""
            return f"{self.formatTime(record, '%H:%M:%S')}  {fields['record']}  {fields['subject']}: {move}: {fields['why']}{evidence}"
        extra = {
            key: fields[key] for key in ("subject", "next", "why", "job", "node", "what") if key in fields
        }
        return f"{self.formatTime(record, '%H:%M:%S')}  {record.levelname.lower()}: {record.msg} {json.dumps(extra, ensure_ascii=False) if extra else ''}".rstrip()


def log_to_terminal() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(StoryFormatter())
    logger = logging.getLogger("ecs_gpu_recovery")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def wishes(*, nodes: int, gpus: int, real: bool, boot_seconds: float) -> list[NodeWish]:
    if not real:
        return [NodeWish(name=f"node-{i + 1}", gpus=gpus, boot_seconds=boot_seconds) for i in range(nodes)]
    from ..local.gpus import real_gpus

    found = real_gpus()
    if not found:
        raise Refused(
            "no real GPU was found through NVML: install nvidia-ml-py and the driver, or leave out --real"
        )
    return [NodeWish(name="node-1", gpus=len(found), kind="real", boot_seconds=boot_seconds)]


def run_up(state: Path, *, nodes: int, gpus: int, real: bool, boot_seconds: float, keep_nodes: bool) -> int:
    log_to_terminal()
    stop = threading.Event()

    def ask_to_stop(signum: int, frame: FrameType | None) -> None:
        stop.set()

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, ask_to_stop)
    with Controller(
        state, nodes=wishes(nodes=nodes, gpus=gpus, real=real, boot_seconds=boot_seconds)
    ) as controller:
        print(f"control plane on {state}; Ctrl-C ends it. In another terminal:", flush=True)
        print(
            f"  gpu-recovery nodes --state {state}\n  gpu-recovery submit --state {state} --any 2 -- python your_training.py",
            flush=True,
        )
        controller.run(stop)
        if not keep_nodes:
            print("powering the nodes off; jobs are kept and go on at the next start", flush=True)
            controller.parts.cluster.shutdown()
    return 0
