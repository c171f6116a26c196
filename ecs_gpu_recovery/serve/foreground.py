"""`gpu-recovery up`: the embedded control plane in the foreground; and how it is left, with its nodes or without."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import FrameType

from ..cli.terminal import printable
from ..core.errors import Refused
from ..engine.idle_checks import IdleChecks
from ..local.cluster import Cluster
from ..local.controller import Controller, NodeWish, known_nodes, take_lock
from ..local.views import NodeState
from ..local.wiring import Embedded
from ..metrics.collector import Collector
from ..metrics.prometheus import Endpoint
from .beside import ConsoleBeside

#: What a state folder without nodes gets.
NEW_NODES, NEW_GPUS = 4, 2


class StoryFormatter(logging.Formatter):
    """One line per transition, for a person."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(self._line(record))

    def _line(self, record: logging.LogRecord) -> str:
        fields = record.__dict__
        if record.msg == "moved":
            move = (
                fields["to"]
                if fields["from"] in ("", fields["to"])
                else f"{fields['from']} -> {fields['to']}"
            )
            evidence = f" [{fields['evidence']}]" if fields["evidence"] else ""
            who = f"{fields['record']}  {fields['subject']}"
            return f"{self.formatTime(record, '%H:%M:%S')}  {who}: {move}: {fields['why']}{evidence}"
        extra = {
            key: fields[key] for key in ("subject", "next", "why", "job", "node", "what") if key in fields
        }
        more = f" {json.dumps(extra, ensure_ascii=False)}" if extra else ""
        return f"{self.formatTime(record, '%H:%M:%S')}  {record.levelname.lower()}: {record.msg}{more}"


def log_to_terminal() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(StoryFormatter())
    logger = logging.getLogger("ecs_gpu_recovery")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def wishes(
    state: Path, *, nodes: int | None, gpus: int | None, real: bool, boot_seconds: float
) -> list[NodeWish]:
    """The nodes that were asked for. Those that are there stay as they are, whatever the defaults say."""
    known = {view.name: view for view in known_nodes(state)}
    if real:
        return [NodeWish(name="node-1", gpus=_count_real(), kind="real", boot_seconds=boot_seconds)]
    if nodes is not None and nodes < len(known):
        raise Refused(
            f"{state} has {len(known)} nodes already, you asked for {nodes}:"
            " leave --nodes out, or choose another --state"
        )
    count = nodes if nodes is not None else 0 if known else NEW_NODES
    asked = [f"node-{i + 1}" for i in range(count)]
    if gpus is not None:
        asked += [name for name in known if name not in asked]
    return [
        NodeWish(
            name=name,
            gpus=gpus or (known[name].gpus_expected if name in known else NEW_GPUS),
            kind=known[name].kind if name in known and gpus is None else "simulated",
            boot_seconds=boot_seconds,
        )
        for name in asked
    ]


def _count_real() -> int:
    from ..local.gpus import NvmlUnavailable, count_real

    try:
        found = count_real()
    except NvmlUnavailable as exc:
        raise Refused(f"{exc}: leave out --real to have simulated GPUs") from exc
    if not found:
        raise Refused("the NVIDIA driver shows no GPU: leave out --real to have simulated ones")
    return found


def run_up(  # noqa: PLR0913 (each is an option of the command)
    state: Path,
    *,
    nodes: int | None,
    gpus: int | None,
    real: bool,
    boot_seconds: float,
    keep_nodes: bool,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
    console_port: int | None = None,
    check_idle_every: float | None = None,
) -> int:
    log_to_terminal()
    stop = threading.Event()

    def ask_to_stop(signum: int, frame: FrameType | None) -> None:
        stop.set()

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, ask_to_stop)
    asked = wishes(state, nodes=nodes, gpus=gpus, real=real, boot_seconds=boot_seconds)
    with ExitStack() as running:
        endpoint = None
        if metrics_port is not None:
            endpoint = running.enter_context(Endpoint(metrics_host, metrics_port))
        beside = None
        if console_port is not None:
            beside = running.enter_context(ConsoleBeside(state, console_port))
        idle = IdleChecks(timedelta(minutes=check_idle_every)) if check_idle_every else None
        controller = running.enter_context(Controller(state, nodes=asked, idle_checks=idle))
        collector = running.enter_context(Collector(controller.parts, controller.looks))
        if endpoint is not None:
            endpoint.latest = lambda: collector.latest
            print(f"metrics for Prometheus: {endpoint.url}", flush=True)
        if beside is not None:
            beside.open()
            print(f"console: {beside.link.page()}", flush=True)
        count = len(controller.parts.cluster.nodes())
        print(
            f"control plane on {state} with {count} nodes; Ctrl-C ends it. In another terminal:", flush=True
        )
        print(f"  gpu-recovery nodes --state {state}", flush=True)
        print(
            f"  gpu-recovery submit --state {state} --any {min(2, count)} --"
            " python -m ecs_gpu_recovery.examples.train",
            flush=True,
        )
        controller.run(stop)
        leave(controller.parts, keep_nodes=keep_nodes)
    return 0


def leave(parts: Embedded, *, keep_nodes: bool) -> None:
    """The end of `up`. A control plane that goes must not cost a job its run: nodes that a job holds stay on.

    The next `up` finds them as it does after a crash. Free nodes are powered off, unless they shall stay too.
    """
    held = sorted({node.job_id for node in parts.store.nodes() if node.job_id})
    if not keep_nodes:
        parts.cluster.shutdown(keep={node.name for node in parts.store.nodes() if node.job_id})
    if held:
        print(
            f"{', '.join(held)} {'run' if len(held) > 1 else 'runs'} on without the control plane."
            " A fault heals only once it is back:",
            flush=True,
        )
        print(f"  gpu-recovery up --state {parts.state}", flush=True)
        print(f"  gpu-recovery down --state {parts.state}    powers the nodes off instead", flush=True)
    elif not keep_nodes:
        print("the nodes are powered off; the next start has them again", flush=True)


def power_off(state: Path) -> int:
    """The whole of `down`; how many nodes were on."""
    if not (state / "nodes").is_dir():
        raise Refused(f"there is no control plane in {state}: nothing runs there")
    lock = take_lock(state)
    try:
        cluster = Cluster(state)
        count = sum(node.state is not NodeState.OFF for node in cluster.nodes())
        cluster.shutdown()
        return count
    finally:
        os.close(lock)
