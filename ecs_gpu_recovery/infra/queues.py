"""The queues between the rules and the functions: what arrives together is taken together, by few at once.

Why, and where the numbers come from, is in docs/decisions/0012-events-wait-in-queues.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import Duration, RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from ..aws import queues as numbers
from ..config import Config
from .permissions import CHECK_MONITOR, INSTANCE_MONITOR, TASK_HANDLER

#: The functions that take events. The sweeper has the clock, and nothing stands in its way.
TAKERS = (TASK_HANDLER, CHECK_MONITOR, INSTANCE_MONITOR)


class Queues(Construct):
    """One for each function, under its name, so that a dead letter tells whose it was."""

    def __init__(
        self, scope: Construct, construct_id: str, *, config: Config, dead_letters: sqs.IQueue
    ) -> None:
        super().__init__(scope, construct_id)
        self.dead_letters = dead_letters
        self.by_function = {
            name: sqs.Queue(
                self,
                name,
                queue_name=f"{Stack.of(self).stack_name}-{name}",
                encryption=sqs.QueueEncryption.SQS_MANAGED,
                enforce_ssl=True,
                visibility_timeout=Duration.seconds(config.LAMBDA_TIMEOUT_SECONDS + numbers.MARGIN_S),
                retention_period=Duration.days(4),
                removal_policy=RemovalPolicy.DESTROY,
                dead_letter_queue=sqs.DeadLetterQueue(max_receive_count=numbers.TRIES, queue=dead_letters),
            )
            for name in TAKERS
        }

    def reading(self, function: str) -> list[iam.PolicyStatement]:
        """What Lambda does with the queue in the function's name."""
        if function not in self.by_function:
            return []
        actions = [f"sqs:{action}" for action in ("DeleteMessage", "GetQueueAttributes", "ReceiveMessage")]
        return [iam.PolicyStatement(actions=actions, resources=[self.by_function[function].queue_arn])]

    def lead_to(self, functions: Mapping[str, lambda_.Function]) -> None:
        for name, queue in self.by_function.items():
            lambda_.EventSourceMapping(
                self,
                f"{name}Batches",
                target=functions[name],
                event_source_arn=queue.queue_arn,
                batch_size=numbers.MOST_AT_ONCE,
                max_batching_window=Duration.seconds(numbers.WINDOW_S),
                max_concurrency=numbers.FUNCTIONS_AT_ONCE,
                report_batch_item_failures=True,
            )
