"""The driver's own word that an Xid happened, for machines whose kernel log cannot be read.

NVML's wait may never return, so a child process waits and streams what it hears. When the child dies, the
watch goes on without it and says so.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any

from ecs_gpu_recovery.health.sources import probe
from ecs_gpu_recovery.health.sources.kernel_log import bus_id
from ecs_gpu_recovery.health.sources.probe import Emit, Probe

_WAIT_MS = 1000
_XID_EVENT = 0x8


class DriverEvents:
    """A child that waits for the driver. `lines` tells them as the kernel log would."""

    name = "the driver"

    def __init__(self) -> None:
        self.ended = ""  #: why the child stopped; empty while it listens
        self._child = probe.start(Probe(name=self.name, deadline_s=float("inf"), work=_listen))

    def lines(self) -> Iterator[str]:
        if self.ended:
            return
        messages, open_still = probe.take(self._child)
        for told in messages:
            if "probe" in told:
                self.ended = str(told.get("problem", "it stopped"))
            else:
                yield f"NVRM: Xid (PCI:{told['gpu']}): {told['xid']}, reported by the driver"
        if not open_still:
            self.ended = self.ended or "it stopped"

    def close(self) -> None:
        probe.kill(self._child)


def _listen(emit: Emit) -> None:
    library: Any = importlib.import_module("pynvml")
    library.nvmlInit()
    events = library.nvmlEventSetCreate()
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        library.nvmlDeviceRegisterEvents(handle, _XID_EVENT, events)
    parent = os.getppid()
    while os.getppid() == parent:
        try:
            event = library.nvmlEventSetWait_v2(events, _WAIT_MS)
        except library.NVMLError_Timeout:
            continue
        pci = library.nvmlDeviceGetPciInfo(event.device).busId
        text = pci.decode(errors="replace") if isinstance(pci, bytes) else str(pci)
        emit({"xid": int(event.eventData), "gpu": bus_id(text) or "0000:00:00"})
