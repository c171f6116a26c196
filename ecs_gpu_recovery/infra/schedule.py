"""The clock: the sweeper runs every minute, whatever events arrive."""

from __future__ import annotations

from aws_cdk import Aws, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from .naming import Name

#: The group that every account has.
_GROUP = "default"


class Minute(Construct):
    """A minute that was missed is not worth much: the next one does its work. So the retries are few.

    No input is given: then the scheduler sends an event with the time it was meant for, the sweeper's now.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, function: lambda_.Function, dead_letters: sqs.IQueue
    ) -> None:
        super().__init__(scope, construct_id)
        name = f"{Stack.of(self).stack_name}-RecoverySweeper"
        # The scheduler speaks for a group. A role that trusts a single schedule is refused when that is made.
        only_this = {
            "StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID},
            "ArnEquals": {"aws:SourceArn": Name("scheduler", f"schedule-group/{_GROUP}").arn},
        }
        role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("scheduler.amazonaws.com", conditions=only_this),
            description="Lets the schedule call the sweeper",
            inline_policies={
                "Call": iam.PolicyDocument(
                    statements=[
                        iam.PolicyStatement(
                            actions=["lambda:InvokeFunction"], resources=[function.function_arn]
                        ),
                        iam.PolicyStatement(actions=["sqs:SendMessage"], resources=[dead_letters.queue_arn]),
                    ]
                )
            },
        )
        scheduler.CfnSchedule(
            self,
            "Schedule",
            name=name,
            group_name=_GROUP,
            description="Deadlines, unsent orders and missed events",
            schedule_expression="rate(1 minute)",
            flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
            state="ENABLED",
            target=scheduler.CfnSchedule.TargetProperty(
                arn=function.function_arn,
                role_arn=role.role_arn,
                retry_policy=scheduler.CfnSchedule.RetryPolicyProperty(
                    maximum_retry_attempts=2, maximum_event_age_in_seconds=120
                ),
                dead_letter_config=scheduler.CfnSchedule.DeadLetterConfigProperty(arn=dead_letters.queue_arn),
            ),
        )
