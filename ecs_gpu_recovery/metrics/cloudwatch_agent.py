"""What the CloudWatch agent measures on a node, as data, and the searches that find it again.

The agent names a metric by a prefix and a measurement, and adds the host's name to everything. No dimension
of EC2 is asked for: external nodes have none, and asking for one takes the host's name away. The cluster's
name is added, so that a search finds the nodes of one cluster, those of tomorrow too.

The agent reads utilisation, memory, temperature and power of GPUs through nvidia-smi. It knows no ECC
counters; those are the health check's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NAMESPACE = "EcsGpuRecovery/Nodes"
CLUSTER = "Cluster"
INTERVAL_S = 60
#: How full a file system is, any folder on it tells: where the agent's container sees one, and which of the host it is.
#: Of the host's own disk that is an empty one, so that the agent can read nothing else there.
DISKS = {"/host/root": "/var/lib/gpu-recovery/disk", "/host/fsx": "/fsx"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One part of the agent: what it measures, and how the metrics are called in CloudWatch."""

    measures: tuple[str, ...]
    prefix: str
    more: Mapping[str, Any]

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}_{name}" for name in self.measures)


PLUGINS: dict[str, Plugin] = {
    "cpu": Plugin(
        measures=("usage_active", "usage_iowait"), prefix="cpu", more={"totalcpu": True, "resources": []}
    ),
    "mem": Plugin(measures=("used_percent", "available"), prefix="mem", more={}),
    "disk": Plugin(
        measures=("used_percent",),
        prefix="disk",
        more={"resources": list(DISKS), "drop_device": True},
    ),
    "diskio": Plugin(
        measures=("read_bytes", "write_bytes", "io_time"), prefix="diskio", more={"resources": ["*"]}
    ),
    "net": Plugin(
        measures=("bytes_recv", "bytes_sent", "err_in", "err_out"), prefix="net", more={"resources": ["*"]}
    ),
    "nvidia_gpu": Plugin(
        measures=(
            "utilization_gpu",
            "utilization_memory",
            "memory_used",
            "memory_total",
            "temperature_gpu",
            "power_draw",
            "pcie_link_width_current",
        ),
        prefix="nvidia_smi",
        more={},
    ),
}


def configuration(cluster: str, region: str, interval_s: int = INTERVAL_S) -> dict[str, Any]:
    """The agent's own JSON. An external node can't tell its region, so the region is told."""
    return {
        "agent": {
            "metrics_collection_interval": interval_s,
            "region": region,
            "omit_hostname": False,
            "logfile": "",
        },
        "metrics": {
            "namespace": NAMESPACE,
            "force_flush_interval": interval_s,
            "metrics_collected": {
                name: {
                    "measurement": list(plugin.measures),
                    "append_dimensions": {CLUSTER: cluster},
                    **plugin.more,
                }
                for name, plugin in PLUGINS.items()
            },
        },
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """One widget of the dashboard."""

    title: str
    metric: str
    #: The agent sends what was added since its last round, so bytes are summed.
    statistic: str = "Average"


GRAPHS: tuple[Graph, ...] = (
    Graph(title="GPU utilisation, %", metric="nvidia_smi_utilization_gpu"),
    Graph(title="GPU memory in use, MiB", metric="nvidia_smi_memory_used", statistic="Maximum"),
    Graph(title="GPU temperature, °C", metric="nvidia_smi_temperature_gpu", statistic="Maximum"),
    Graph(title="GPU power, W", metric="nvidia_smi_power_draw"),
    Graph(title="CPU in use, %", metric="cpu_usage_active"),
    Graph(title="Memory in use, %", metric="mem_used_percent"),
    Graph(title="Disk in use, %", metric="disk_used_percent", statistic="Maximum"),
    Graph(title="Disk read, bytes", metric="diskio_read_bytes", statistic="Sum"),
    Graph(title="Disk written, bytes", metric="diskio_write_bytes", statistic="Sum"),
    Graph(title="Network received, bytes", metric="net_bytes_recv", statistic="Sum"),
    Graph(title="Network sent, bytes", metric="net_bytes_sent", statistic="Sum"),
    Graph(title="Network errors", metric="net_err_in", statistic="Sum"),
)


def search(graph: Graph, cluster: str, period_s: int = INTERVAL_S) -> str:
    """Finds one line per node (and GPU, disk, interface), whatever further dimensions the agent adds."""
    what = f'Namespace="{NAMESPACE}" MetricName="{graph.metric}" {CLUSTER}="{cluster}"'
    return f"SEARCH('{what}', '{graph.statistic}', {period_s})"
