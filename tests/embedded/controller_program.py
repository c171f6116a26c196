"""The embedded control plane as a program that can be told to die: kill -9, by its own hand, at an operation.

An operation is a write to the store or an order to the cluster. `--die-at 7` dies before the 4th of them, and
`--die-at 8` right after it; so every gap between "decided", "committed", "sent" and "noted" can be hit.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from ecs_gpu_recovery.local.cluster import Cluster
from ecs_gpu_recovery.local.controller import Controller, NodeWish
from ecs_gpu_recovery.local.store import SqliteStore
from ecs_gpu_recovery.local.wiring import LOCAL_POLICY

#: Short waits where a test would only sit them out. Silence is judged patiently: the machine may be busy.
#: What breaks many nodes on purpose must not be taken for a storm.
POLICY = replace(
    LOCAL_POLICY, lease=timedelta(seconds=1), backoff_first=timedelta(seconds=0.1), freeze_nodes=1000
)
BOOT_SECONDS = 0.3
OPERATIONS = (
    (SqliteStore, "write"),
    (Cluster, "start_task"),
    (Cluster, "stop_task"),
    (Cluster, "reboot"),
    (Cluster, "power_on"),
)


class Fuse:
    """Counts operations, two per call: one before it and one after it."""

    def __init__(self, die_at: int) -> None:
        self.left = die_at
        self.lock = threading.Lock()

    def burn(self) -> None:
        with self.lock:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **more: Any) -> Any:
            self.burn()
            result = call(*args, **more)
            self.burn()
            return result

        return wrapped


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("state", type=Path)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--die-at", type=int, default=0)
    parser.add_argument("--only", default="", help="count only operations of this name")
    options = parser.parse_args()
    if options.die_at:
        fuse = Fuse(options.die_at)
        for owner, name in OPERATIONS:
            if options.only in ("", name):
                setattr(owner, name, fuse.around(getattr(owner, name)))
    wishes = [NodeWish(name=f"node-{i + 1}", boot_seconds=BOOT_SECONDS) for i in range(options.nodes)]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Controller(options.state, nodes=wishes, policy=POLICY, poll_s=0.03) as controller:
        controller.run(stop)


if __name__ == "__main__":
    main()
