"""The machine, and each node's share of it.

Embedded nodes are processes on one machine. So processors, disks and network are the machine's, under the
label `host`; a node has what its own processes use, found by the marker in their environment.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from ..local import processes
from .sample import Sample

#: A younger process may still be between fork and exec, where its environment says nothing yet.
_SETTLED_S = 10.0


class HostReader:
    """Remembers the last look, because shares of time need two."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._host = socket.gethostname()
        self._looked = False

    def read(self, sample: Sample) -> None:
        """Without psutil, which comes with the extra `local`, only these numbers are left out."""
        import psutil

        host = self._host
        busy = psutil.cpu_percent(None) / 100
        sample.put("host_cpu_ratio", busy if self._looked else None, host=host)
        self._looked = True
        memory = psutil.virtual_memory()
        sample.put("host_memory_used_bytes", memory.total - memory.available, host=host)
        sample.put("host_memory_total_bytes", memory.total, host=host)
        disk = psutil.disk_usage(str(self._folder))
        sample.put("host_disk_used_bytes", disk.used, host=host)
        sample.put("host_disk_total_bytes", disk.total, host=host)
        moved = psutil.disk_io_counters()
        if moved is not None:
            sample.put("host_disk_read_bytes_total", moved.read_bytes, host=host)
            sample.put("host_disk_written_bytes_total", moved.write_bytes, host=host)
        links = [link for name, link in psutil.net_io_counters(pernic=True).items() if name != "lo"]
        sample.put("host_network_received_bytes_total", sum(link.bytes_recv for link in links), host=host)
        sample.put("host_network_sent_bytes_total", sum(link.bytes_sent for link in links), host=host)


class NodeUse:
    """What the processes of each node use. One pass over all processes, however many nodes there are."""

    def __init__(self, nodes: Path) -> None:
        self._root = os.path.realpath(nodes) + os.sep
        self._tick = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._nodes: dict[tuple[int, int], str] = {}
        self._busy: dict[tuple[int, int], int] = {}
        self._at = 0.0

    def read(self, sample: Sample, names: list[str]) -> None:
        now = time.monotonic()
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
        cores, memory = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
        nodes, busy = {}, {}
        for pid in processes.all_pids():
            found = _stat(pid)
            if found is None:
                continue
            started, ticks, pages = found
            process = (pid, started)
            name = self._nodes.get(process)
            if name is None:
                name = self._node_of(pid)
                if not name and uptime - started / self._tick < _SETTLED_S:
                    continue
            nodes[process] = name
            if name in memory:
                busy[process] = ticks
                memory[name] += pages * self._page
                cores[name] += (ticks - self._busy.get(process, 0 if self._at else ticks)) / self._tick
        for name in names:
            sample.put("node_memory_bytes", memory[name], node=name)
            if self._at:
                sample.put("node_cpu_cores", cores[name] / max(now - self._at, 0.001), node=name)
        self._nodes, self._busy, self._at = nodes, busy, now

    def _node_of(self, pid: int) -> str:
        """Empty for a process of no node of ours."""
        folder = processes.marker_of(pid, processes.NODE_MARKER) or ""
        return folder[len(self._root) :] if folder.startswith(self._root) else ""


def _stat(pid: int) -> tuple[int, int, int] | None:
    """Start time, processor time and resident pages of a process; None when it has ended."""
    fields = processes.stat_fields(pid)
    return (int(fields[19]), int(fields[11]) + int(fields[12]), int(fields[21])) if fields else None
