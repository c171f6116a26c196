"""Names of things in AWS, in any partition, and why some of them may hold a wildcard."""

from __future__ import annotations

from dataclasses import dataclass

import aws_cdk as cdk
from constructs import IConstruct


@dataclass(frozen=True, slots=True)
class Name:
    """An ARN of this account and region. `why` is given wherever it holds a wildcard."""

    service: str
    resource: str
    account: bool = True
    region: bool = True
    why: str = ""

    @property
    def arn(self) -> str:
        return self._spelled(cdk.Aws.PARTITION, cdk.Aws.REGION, cdk.Aws.ACCOUNT_ID)

    @property
    def shown(self) -> str:
        """As the checker of the template spells it."""
        return self._spelled("<AWS::Partition>", "<AWS::Region>", "<AWS::AccountId>")

    def _spelled(self, partition: str, region: str, account: str) -> str:
        where = f"{region if self.region else ''}:{account if self.account else ''}"
        return f"arn:{partition}:{self.service}:{where}:{self.resource}"


def accept(construct: IConstruct, rule: str, why: str) -> None:
    """A finding that stands, with the reason. One at a time: nothing is waved through in bulk."""
    cdk.Validations.of(construct).acknowledge(cdk.Acknowledgment(id=f"AwsSolutions-{rule}", reason=why))


def accept_wildcard(construct: IConstruct, resource: str, why: str) -> None:
    accept(construct, f"IAM5[Resource::{resource}]", why)
