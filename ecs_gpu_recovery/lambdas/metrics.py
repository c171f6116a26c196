"""Metrics in the embedded metric format: a line in the log that CloudWatch turns into numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from ..aws.errands import Answer
from ..core.model import Job, JobStatus, NodeStatus
from ..engine.sweeper import Report

if TYPE_CHECKING:
    from aws_lambda_powertools.metrics import Metrics

NAMESPACE = "EcsGpuRecovery"


@cache
def _metrics() -> Metrics:
    from aws_lambda_powertools.metrics import Metrics

    return Metrics(namespace=NAMESPACE, service="ecs-gpu-recovery")


def of(stack: str, cluster: str) -> None:
    """Whose numbers these are: other stacks in the account, or on the cluster, count under the same names."""
    metrics = _metrics()
    metrics.clear_default_dimensions()
    metrics.clear_metrics()
    metrics.set_default_dimensions(**dimensions(stack, cluster))


def dimensions(stack: str, cluster: str) -> dict[str, str]:
    return {"stack": stack, "cluster": cluster}


def _add(name: str, value: float = 1) -> None:
    from aws_lambda_powertools.metrics import MetricUnit

    _metrics().add_metric(name=name, unit=MetricUnit.Count, value=value)


def events_taken(answers: Sequence[Answer | Exception]) -> None:
    """How many events were for us, how many were not, and how many could not be handled."""
    failed = sum(isinstance(answer, Exception) for answer in answers)
    taken = sum(isinstance(answer, Answer) and answer.taken for answer in answers)
    counts = {"EventsTaken": taken, "EventsDropped": len(answers) - taken - failed, "EventsFailed": failed}
    for name, count in counts.items():
        if count:
            _add(name, count)


def job_moved(before: Job | None, job: Job) -> None:
    """What operators watch: failures, recoveries, reboots, and how long a job has been in trouble."""
    if before is not None and before.status is job.status:
        return
    if job.status is JobStatus.FAILED:
        _add("JobsFailed")
    elif job.status is JobStatus.COMPLETE:
        _add("JobsCompleted")
    elif job.status is JobStatus.PENDING_RESTART:
        _add("RecoveriesStarted")
        _add("NodesRebooted", sum(rank.node_status is NodeStatus.REBOOTING for rank in job.ranks))
    if bad := sum(rank.node_status is NodeStatus.FAILED for rank in job.ranks):
        _add("NodesFailed", bad)


def swept(report: Report) -> None:
    """How things stand after a sweep; the alarms watch these."""
    _add("LiveJobs", report.live)
    _add("StuckJobs", report.stuck)
    _add("UnhealthyNodes", report.unhealthy)
    _add("HeldReboots", report.held)
    _add("GpusTraining", report.training)
    _add("GpusNotTraining", report.idle)
    _add("BrokenInvariants", report.broken)
    _add("BadRecords", len(report.bad))


def flush() -> None:
    """Write what was counted, if anything was."""
    metrics = _metrics()
    if metrics.metric_set:
        metrics.flush_metrics()
