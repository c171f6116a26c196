"""The driver's own word that an Xid happened, for machines whose kernel log cannot be read.

NVML's wait may never return, so a child process waits and streams what it hears. When the child dies, the
watch goes on without it and says so.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

from ecs_gpu_recovery.health.sources import nvml
from ecs_gpu_recovery.health.sources.kernel_log import bus_id

_WAIT_MS = 1000
_XID_EVENT = 0x8


class DriverEvents:
    """A child that waits for the driver. `lines` tells them as the kernel log would."""

    name = "the driver"

    def __init__(self) -> None:
        self._data = b""
        self._ended = ""
        reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(reader)
            _child(writer)
        os.close(writer)
        os.set_blocking(reader, False)
        self._pipe = reader

    @property
    def ended(self) -> str:
        """Why the child stopped; empty while it listens."""
        return self._ended

    def lines(self) -> Iterator[str]:
        while not self._ended:
            try:
                chunk = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                return
            if not chunk:
                self._ended = "it stopped"
                return
            *whole, self._data = (self._data + chunk).split(b"\n")
            for line in whole:
                told = json.loads(line)
                if "problem" in told:
                    self._ended = str(told["problem"])
                else:
                    yield f"NVRM: Xid (PCI:{told['gpu']}): {told['xid']}, reported by the driver"

    def close(self) -> None:
        os.close(self._pipe)
        try:
            os.kill(self._pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        os.waitpid(self._pid, os.WNOHANG)


def available() -> bool:
    """True where NVML can be asked at all."""
    return nvml.available()


def _child(writer: int) -> NoReturn:
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _listen(writer)
    except BaseException as error:  # noqa: BLE001 (told to the parent; a child must not unwind into it)
        _send(writer, {"problem": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(0)


def _listen(writer: int) -> None:
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
        _send(writer, {"xid": int(event.eventData), "gpu": bus_id(text) or "0000:00:00"})


def _send(writer: int, message: dict[str, object]) -> None:
    os.write(writer, json.dumps(message).encode() + b"\n")
