"""What wakes a person, each with a page in docs/runbooks that says what to do."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from ..config import Config
from ..lambdas.entry import SERVICE
from ..lambdas.metrics import NAMESPACE, dimensions
from .permissions import SWEEPER

MISSING_IS_FINE = cloudwatch.TreatMissingData.NOT_BREACHING
MISSING_IS_BAD = cloudwatch.TreatMissingData.BREACHING
#: What the functions count themselves: the metric, the page for it, its statistic, how often in a row, what it means.
COUNTED = (
    ("StuckJobs", "stuck-jobs", "Maximum", 3, "A job is past its deadline and does not move."),
    ("UnhealthyNodes", "unhealthy-nodes", "Maximum", 3, "A node is out of use and waits for a person."),
    ("BrokenInvariants", "broken-invariants", "Sum", 1, "A record says what must never be true."),
    ("BadRecords", "bad-records", "Maximum", 3, "A record cannot be read or swept, and is left out."),
)


class Alarms(Construct):
    """Few, and each about something that does not heal by itself."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: Config,
        functions: Mapping[str, lambda_.Function],
        dead_letters: sqs.IQueue,
        topic: sns.ITopic,
    ) -> None:
        super().__init__(scope, construct_id)
        self._topic, self._cluster = topic, config.ECS_CLUSTER_NAME
        minutes = Duration.minutes
        letters = dead_letters.metric_approximate_number_of_messages_visible(
            period=minutes(1), statistic="Maximum"
        )
        self._alarm(
            "DeadLetters", "dead-letters", letters, "An event could not be handled, even after retries."
        )
        for name, function in functions.items():
            errors = function.metric_errors(period=minutes(5), statistic="Sum")
            self._alarm(f"{name}Errors", "function-errors", errors, f"{name} fails.", above=2, periods=2)
        failed = own_metric(config, "EventsFailed", period=minutes(5), statistic="Sum")
        self._alarm(
            "EventsFailed",
            "function-errors",
            failed,
            "Single events can't be handled; they are tried again.",
            above=2,
            periods=2,
        )
        runs = functions[SWEEPER].metric_invocations(period=minutes(5), statistic="Sum")
        self._alarm(
            "SweeperNotRunning",
            "sweeper-not-running",
            runs,
            "The sweeper has not been called for ten minutes: deadlines pass unseen.",
            below=1,
            periods=2,
            missing=MISSING_IS_BAD,
        )
        for name, runbook, statistic, periods, text in COUNTED:
            counted = own_metric(config, name, period=minutes(5), statistic=statistic)
            self._alarm(name, runbook, counted, text, periods=periods)

    def _alarm(
        self,
        name: str,
        runbook: str,
        metric: cloudwatch.IMetric,
        text: str,
        *,
        above: int = 0,
        below: int | None = None,
        periods: int = 1,
        missing: cloudwatch.TreatMissingData = MISSING_IS_FINE,
    ) -> None:
        comparison = cloudwatch.ComparisonOperator
        alarm = cloudwatch.Alarm(
            self,
            name,
            alarm_name=f"{Stack.of(self).stack_name}-{name}",
            alarm_description=f"{self._cluster}: {text} What to do: docs/runbooks/{runbook}.md",
            metric=metric,
            threshold=above if below is None else below,
            comparison_operator=comparison.GREATER_THAN_THRESHOLD
            if below is None
            else comparison.LESS_THAN_THRESHOLD,
            evaluation_periods=periods,
            treat_missing_data=missing,
        )
        alarm.add_alarm_action(actions.SnsAction(self._topic))


def own_metric(config: Config, name: str, *, period: Duration, statistic: str) -> cloudwatch.Metric:
    """One that the functions of this stack count themselves."""
    return cloudwatch.Metric(
        namespace=NAMESPACE,
        metric_name=name,
        dimensions_map={"service": SERVICE, **dimensions(config.STACK_NAME, config.ECS_CLUSTER_NAME)},
        period=period,
        statistic=statistic,
    )
