"""Where people hear of what needs them, and where events end that no function could handle."""

from __future__ import annotations

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from ..config import Config
from .naming import accept


class Messages(Construct):
    """The topic, with an e-mail address on it if one was given."""

    def __init__(self, scope: Construct, construct_id: str, *, config: Config) -> None:
        super().__init__(scope, construct_id)
        self.topic = sns.Topic(
            self,
            "Topic",
            topic_name=config.SNS_TOPIC_NAME,
            display_name=config.SNS_TOPIC_DISPLAY_NAME,
            enforce_ssl=True,
        )
        self.topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="AlarmsMaySpeak",
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                actions=["sns:Publish"],
                resources=[self.topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": self.topic.env.account}},
            )
        )
        if config.NOTIFICATION_EMAIL:
            self.topic.add_subscription(subscriptions.EmailSubscription(config.NOTIFICATION_EMAIL))


class DeadLetters(Construct):
    """Events that could not be delivered, or that a function failed on after every retry."""

    def __init__(self, scope: Construct, construct_id: str) -> None:
        super().__init__(scope, construct_id)
        self.queue = sqs.Queue(
            self,
            "Queue",
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            retention_period=Duration.days(14),
            removal_policy=RemovalPolicy.DESTROY,
        )
        accept(self.queue, "SQS3", "This queue is the dead-letter queue; it has none of its own.")
