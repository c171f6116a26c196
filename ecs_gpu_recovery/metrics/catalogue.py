"""Every metric that there is, with its kind, its labels and a sentence. All else is held against this."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "gpu_recovery_"


class Kind(StrEnum):
    """How a metric behaves over time."""

    GAUGE = "gauge"  # goes up and down
    COUNTER = "counter"  # only grows, until its source starts again


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. Its name ends in its unit, and in `_total` if it is a counter."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


def _gauge(name: str, labels: str, text: str) -> Metric:
    return Metric(name=PREFIX + name, kind=Kind.GAUGE, labels=tuple(labels.split()), help=text)


def _counter(name: str, labels: str, text: str) -> Metric:
    return Metric(name=PREFIX + name, kind=Kind.COUNTER, labels=tuple(labels.split()), help=text)


HOST = (
    _gauge("host_cpu_ratio", "host", "Share of all processor time that was in use since the last sample."),
    _gauge("host_memory_used_bytes", "host", "Memory that programs can't get without swapping."),
    _gauge("host_memory_total_bytes", "host", "Memory of the machine."),
    _gauge("host_disk_used_bytes", "host", "Space in use on the file system of the state folder."),
    _gauge("host_disk_total_bytes", "host", "Size of the file system of the state folder."),
    _counter("host_disk_read_bytes_total", "host", "Bytes read from all disks since boot."),
    _counter("host_disk_written_bytes_total", "host", "Bytes written to all disks since boot."),
    _counter("host_network_received_bytes_total", "host", "Bytes received on all interfaces but loopback."),
    _counter("host_network_sent_bytes_total", "host", "Bytes sent on all interfaces but loopback."),
)
NODE = (
    _gauge("node_status", "node status", "1 for the status that the node has."),
    _gauge("node_connected", "node", "1 while the node's agent answers."),
    _gauge("node_cpu_cores", "node", "Processor cores that the node's processes kept busy."),
    _gauge("node_memory_bytes", "node", "Resident memory of the node's processes."),
    _gauge("node_gpus_expected", "node", "GPUs that the node was registered with."),
    _gauge("node_gpus_seen", "node", "GPUs that the node saw at its last boot."),
    _counter("node_reboots_total", "node", "Reboots that were ordered for the node."),
    _gauge("node_driver_answers", "node", "1 while the GPU driver answers questions."),
)
GPU = (
    _gauge("gpu_present", "node gpu", "1 while the GPU is on the bus."),
    _gauge("gpu_utilization_ratio", "node gpu", "Share of the time in which a kernel ran."),
    _gauge("gpu_memory_used_bytes", "node gpu", "GPU memory in use."),
    _gauge("gpu_memory_total_bytes", "node gpu", "GPU memory."),
    _gauge("gpu_temperature_celsius", "node gpu", "Temperature of the GPU."),
    _gauge("gpu_power_watts", "node gpu", "Power that the GPU draws."),
    _gauge("gpu_throttled", "node gpu", "1 while the hardware holds the GPU's clocks down."),
    _gauge(
        "gpu_ecc_uncorrectable_errors", "node gpu", "Uncorrectable memory errors since the driver started."
    ),
    _gauge("gpu_action_wanted", "node gpu", "1 while the driver asks for a reset, a reboot or a drain."),
    _counter(
        "gpu_xid_errors_total", "node gpu xid", "Xid messages of the driver in the kernel log, by code."
    ),
)
JOB = (
    _gauge("job_info", "job name", "1; carries the name that people gave the job."),
    _gauge("job_status", "job status", "1 for the status that the job has."),
    _gauge("job_attempt", "job", "Which attempt of the job runs; 0 is the first."),
    _gauge("job_step", "job", "The furthest step that the training has reported."),
    _gauge("job_loss", "job", "The loss that the training reported last."),
    _gauge("job_lost_steps", "job", "Steps that had to be trained more than once."),
    _gauge(
        "job_effective_training_ratio", "job", "Time of the steps that count over all time since submission."
    ),
    _gauge(
        "job_phase_seconds",
        "job phase",
        "Time that the job has spent running, checking, rebooting, restarting.",
    ),
)
CONTROL = (
    _gauge("build_info", "version", "1; carries the version of the control plane."),
    _gauge("jobs", "status", "Jobs in each state, ended ones too."),
    _gauge("nodes", "status", "Nodes in each state."),
    _counter("job_restarts_total", "", "Automatic restarts of all jobs so far."),
    _counter("notices_total", "", "Messages that were sent to people."),
    _gauge("outbox_orders", "", "Orders that are committed and not yet known to be carried out."),
    _gauge("outbox_overdue_seconds", "", "How long the oldest of those orders has been due."),
    _counter("sweeps_total", "", "Looks at all records and all nodes."),
    _counter("sweep_seconds_total", "", "Time that all of these looks took."),
    _gauge("sweep_slowest_seconds", "", "The slowest look since the last sample."),
    _gauge("sample_seconds", "", "Time that taking the sample before this one took."),
    _gauge("sample_age_seconds", "", "How old these numbers are; told alone when they are too old."),
    _counter("sample_failures_total", "part", "Parts of a sample that could not be taken."),
    _gauge("series_kept", "", "Time series in the store of the last day."),
)
GROUPS = {
    "The machine": HOST,
    "Nodes": NODE,
    "GPUs": GPU,
    "Jobs": JOB,
    "The control plane itself": CONTROL,
}
METRICS: dict[str, Metric] = {metric.name: metric for group in GROUPS.values() for metric in group}


def table() -> str:
    """The tables of docs/metrics.md."""
    parts = []
    for title, group in GROUPS.items():
        lines = [f"### {title}", "", "| metric | kind | labels | meaning |", "|---|---|---|---|"]
        for metric in group:
            labels = ", ".join(metric.labels) or "none"
            lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"
