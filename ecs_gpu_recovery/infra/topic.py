"""Where people hear of what needs them, and where events end that no function could handle."""

from __future__ import annotations

from aws_cdk import Aws, CfnOutput, Duration, RemovalPolicy
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from ..aws import incidents
from ..config import Config

#: What it takes to publish to a topic that is encrypted.
USES_KEY = ("kms:Decrypt", "kms:GenerateDataKey")


class Messages(Construct):
    """The topic, encrypted with a key of its own, with an e-mail address on it if one was given.

    A publisher needs the key too. CloudWatch can't use the key that AWS keeps for topics: hence one of ours.
    """

    def __init__(self, scope: Construct, construct_id: str, *, config: Config) -> None:
        super().__init__(scope, construct_id)
        self.key = kms.Key(
            self,
            "Key",
            description=f"Messages of {config.STACK_NAME} to people",
            enable_key_rotation=True,
            removal_policy=RemovalPolicy.DESTROY,
        )
        alarms = {
            "principals": [iam.ServicePrincipal("cloudwatch.amazonaws.com")],
            "conditions": {"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
        }
        self.key.add_to_resource_policy(
            iam.PolicyStatement(sid="AlarmsMaySpeak", actions=list(USES_KEY), resources=["*"], **alarms)
        )
        self.topic = sns.Topic(
            self,
            "Topic",
            topic_name=config.SNS_TOPIC_NAME,
            display_name=config.SNS_TOPIC_DISPLAY_NAME,
            enforce_ssl=True,
            master_key=self.key,
        )
        self.topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="AlarmsMaySpeak", actions=["sns:Publish"], resources=[self.topic.topic_arn], **alarms
            )
        )
        if config.NOTIFICATION_EMAIL:
            self.topic.add_subscription(subscriptions.EmailSubscription(config.NOTIFICATION_EMAIL))
        if config.CHAT_TOPIC_NAME:
            self._for_chat(config)

    def _for_chat(self, config: Config) -> None:
        """A second topic with the same messages in the form that a chat takes. Mail could not be read in it."""
        topic = sns.Topic(
            self, "Chat", topic_name=config.CHAT_TOPIC_NAME, enforce_ssl=True, master_key=self.key
        )
        rule = events.Rule(
            self,
            "ChatRule",
            description=f"Messages of {config.STACK_NAME} for a chat",
            event_pattern=events.EventPattern(
                source=[incidents.SOURCE],
                detail_type=[incidents.TYPE],
                detail={"stack": [config.STACK_NAME], "cluster": [config.ECS_CLUSTER_NAME]},
            ),
        )
        said = events.RuleTargetInput.from_event_path(f"$.detail.{incidents.CHAT}")
        rule.add_target(targets.SnsTopic(topic, message=said))
        self.key.add_to_resource_policy(
            iam.PolicyStatement(
                sid="TheRuleMaySpeak",
                actions=list(USES_KEY),
                resources=["*"],
                principals=[iam.ServicePrincipal("events.amazonaws.com")],
                conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
            )
        )
        CfnOutput(self, "ChatTopicArn", value=topic.topic_arn).override_logical_id("ChatTopicArn")


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
