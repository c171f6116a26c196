"""How the embedded control plane is left: jobs run on without it, or everything is powered off."""

from __future__ import annotations

import os
from pathlib import Path

from ..core.errors import Refused
from ..local.cluster import Cluster
from ..local.controller import take_lock
from ..local.wiring import Embedded


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
    """The whole of `down`; how many nodes there were."""
    if not (state / "nodes").is_dir():
        raise Refused(f"there is no control plane in {state}: nothing runs there")
    lock = take_lock(state)
    try:
        cluster = Cluster(state)
        cluster.shutdown()
        return len(cluster.nodes())
    finally:
        os.close(lock)
