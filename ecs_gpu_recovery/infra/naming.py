"""Names of things in AWS, in any partition, and why some of them may hold a wildcard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from constructs import IConstruct


@dataclass(frozen=True, slots=True)
class Name:
    """An ARN of this account and region, or `*` where there is no service. `why` wherever it holds a wildcard."""

    service: str
    resource: str
    why: str = ""

    @property
    def arn(self) -> str:
        from aws_cdk import Aws  # the document of a policy is made without CDK

        return self.spelled(Aws.PARTITION, Aws.REGION, Aws.ACCOUNT_ID)

    @property
    def shown(self) -> str:
        """As the checker of the template spells it."""
        return self.spelled("<AWS::Partition>", "<AWS::Region>", "<AWS::AccountId>")

    def spelled(self, partition: str, region: str, account: str) -> str:
        if not self.service:
            return self.resource
        where = (
            ":" if self.service == "s3" else f"{region}:{account}"
        )  # buckets have names of the whole world
        return f"arn:{partition}:{self.service}:{where}:{self.resource}"


def accept(construct: IConstruct, rule: str, why: str) -> None:
    """A finding that stands, with the reason. One at a time: nothing is waved through in bulk."""
    import aws_cdk as cdk

    cdk.Validations.of(construct).acknowledge(cdk.Acknowledgment(id=f"AwsSolutions-{rule}", reason=why))


def accept_wildcard(construct: IConstruct, resource: str, why: str) -> None:
    accept(construct, f"IAM5[Resource::{resource}]", why)
