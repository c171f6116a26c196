"""The bucket for what nodes keep before they are rebooted: private, encrypted, and emptied by itself."""

from __future__ import annotations

from typing import cast

from aws_cdk import Duration, RemovalPolicy, Stack
from aws_cdk import aws_s3 as s3
from constructs import Construct

from ..aws.shell_document import FOLDER
from ..config import Config
from .naming import accept


class Evidence(Construct):
    """Archives of nodes. Functions may put objects there and people may read them; nodes have no right to it at all."""

    def __init__(self, scope: Construct, construct_id: str, *, config: Config) -> None:
        super().__init__(scope, construct_id)
        self.bucket = s3.Bucket(
            self,
            "Bucket",
            encryption=s3.BucketEncryption.S3_MANAGED,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            removal_policy=RemovalPolicy.RETAIN,
            lifecycle_rules=[
                s3.LifecycleRule(
                    expiration=Duration.days(config.EVIDENCE_DAYS),
                    abort_incomplete_multipart_upload_after=Duration.days(1),
                )
            ],
        )
        accept(self.bucket, "S1", "Who read an archive is in CloudTrail, where an account wants to know it.")

    @property
    def archives(self) -> str:
        """All objects, as policies name them."""
        return self.bucket.arn_for_objects(f"{FOLDER}/*")

    @property
    def wildcard(self) -> tuple[str, str]:
        """The same as the checker of the template spells it, and why it must be one."""
        made = cast("s3.CfnBucket", self.bucket.node.default_child)
        spelled = f"<{Stack.of(self).get_logical_id(made)}.Arn>/{FOLDER}/*"
        return spelled, "Each reboot has an archive of its own."
