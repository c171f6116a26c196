"""The policies for people as a part of the stack; what they allow is in `people`."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import Aws, CfnOutput
from aws_cdk import aws_iam as iam
from constructs import Construct

from ..config import Config
from . import people
from .naming import accept_wildcard


class People(Construct):
    """Two managed policies, to be attached to groups, roles or permission sets."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: Config,
        made: people.Made,
        role_arns: Sequence[str],
    ) -> None:
        super().__init__(scope, construct_id)
        for who in people.ROLES:
            allowed = people.document(
                who,
                config,
                role_arns=role_arns,
                account=Aws.ACCOUNT_ID,
                region=Aws.REGION,
                partition=Aws.PARTITION,
                made=made,
            )
            policy = iam.ManagedPolicy(
                self,
                who.capitalize(),
                description=f"GPU recovery on {config.ECS_CLUSTER_NAME}: what a {who} of the command needs",
                document=iam.PolicyDocument.from_json(allowed),
            )
            for shown, why in people.wildcards(who, config, made):
                accept_wildcard(policy, shown, why)
            output = CfnOutput(self, f"{who}Arn", value=policy.managed_policy_arn)
            output.override_logical_id(f"{who.capitalize()}PolicyArn")
