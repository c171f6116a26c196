"""One page that tells how the fleet and the recovery itself are doing."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from ..config import Config
from ..health.watch.node_metrics import NAMESPACE as NODES
from .alarms import own_metric
from .tables import Tables

#: As DynamoDB spells them in its metrics.
_OPERATIONS = ("GetItem", "UpdateItem", "TransactWriteItems", "Query")
_FIVE_MINUTES = Duration.minutes(5)
#: What the nodes tell of themselves: the metric, the statistic, and the title of its graph.
NODE_GRAPHS = (
    ("GpuUtilization", "Average", "GPU utilisation, %"),
    ("GpuMemory", "Maximum", "Fullest GPU memory, %"),
    ("GpuTemperature", "Maximum", "Hottest GPU, °C"),
    ("GpuPower", "Average", "Power of all GPUs, W"),
    ("GpuClock", "Minimum", "Clock of the slowest GPU, MHz"),
    ("Cpu", "Average", "CPU in use, %"),
    ("Memory", "Average", "Memory in use, %"),
    ("Disk", "Maximum", "Disk in use, %"),
    ("DiskMoved", "Sum", "Disk read and written, bytes"),
    ("NetworkReceived", "Sum", "Network received, bytes"),
    ("NetworkSent", "Sum", "Network sent, bytes"),
    ("NetworkErrors", "Sum", "Network errors"),
)


class Dashboard(Construct):
    """Jobs and nodes first, machinery below."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: Config,
        tables: Tables,
        functions: Mapping[str, lambda_.Function],
        queues: Mapping[str, sqs.IQueue],
        dead_letters: sqs.IQueue,
    ) -> None:
        super().__init__(scope, construct_id)
        made = cloudwatch.Dashboard(
            self, "Dashboard", dashboard_name=Stack.of(self).stack_name, default_interval=Duration.hours(12)
        )
        made.add_widgets(
            cloudwatch.TextWidget(
                markdown=f"# GPU recovery of cluster {config.ECS_CLUSTER_NAME}", width=24, height=1
            )
        )
        made.add_widgets(
            _graph(
                "Now",
                _own(config, "LiveJobs", "StuckJobs", "UnhealthyNodes", "HeldReboots", statistic="Maximum"),
            ),
            _graph("GPUs of jobs", _own(config, "GpusTraining", "GpusNotTraining", statistic="Average")),
            _graph("Jobs", _own(config, "JobsCompleted", "JobsFailed", "RecoveriesStarted")),
            _graph("Nodes", _own(config, "NodesRebooted", "NodesFailed")),
        )
        made.add_widgets(
            _graph("Calls", [f.metric_invocations(label=name) for name, f in functions.items()]),
            _graph("Errors", [f.metric_errors(label=name) for name, f in functions.items()]),
            _graph(
                "Duration", [f.metric_duration(label=name, statistic="p90") for name, f in functions.items()]
            ),
        )
        letters = dead_letters.metric_approximate_number_of_messages_visible(
            period=_FIVE_MINUTES, label="waiting"
        )
        waits = [
            queue.metric_approximate_age_of_oldest_message(period=_FIVE_MINUTES, label=f"{name} waits")
            for name, queue in queues.items()
        ]
        throttled = [
            table.metric_throttled_requests_for_operation(operation, label=f"{name} {operation}")
            for name, table in (("job", tables.jobs), ("task", tables.tasks), ("node", tables.nodes))
            for operation in _OPERATIONS
        ]
        made.add_widgets(
            _graph("Dead letters, and seconds that events wait", [letters, *waits]),
            _graph("Events", _own(config, "EventsTaken", "EventsDropped", "EventsFailed")),
            _graph("Throttled requests", throttled),
        )


def _graph(title: str, metrics: list[cloudwatch.IMetric]) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=metrics, width=8, height=6)


def _own(config: Config, *names: str, statistic: str = "Sum") -> list[cloudwatch.IMetric]:
    return [own_metric(config, name, period=_FIVE_MINUTES, statistic=statistic) for name in names]


def node_dashboard(scope: Construct, config: Config) -> None:
    """Searches instead of metrics: a node that comes tomorrow is on the page tomorrow."""
    name = f"{Stack.of(scope).stack_name}-nodes"
    page = cloudwatch.Dashboard(scope, "Nodes", dashboard_name=name, default_interval=Duration.hours(3))
    title = f"# Nodes of cluster {config.ECS_CLUSTER_NAME}"
    page.add_widgets(cloudwatch.TextWidget(markdown=title, width=24, height=1))
    by_host = "${PROP('Dim.Node')}"
    minute = {"using_metrics": {}, "label": by_host, "period": Duration.minutes(1)}
    graphs = [
        _graph(title, [cloudwatch.MathExpression(expression=search(metric, statistic, config), **minute)])
        for metric, statistic, title in NODE_GRAPHS
    ]
    for first in range(0, len(graphs), 3):
        page.add_widgets(*graphs[first : first + 3])


def search(metric: str, statistic: str, config: Config) -> str:
    """Finds one line for each node."""
    what = f'Namespace="{NODES}" MetricName="{metric}" Cluster="{config.ECS_CLUSTER_NAME}"'
    return f"SEARCH('{what}', '{statistic}', 60)"
