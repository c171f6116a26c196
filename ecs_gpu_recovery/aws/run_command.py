"""What SSM Run Command knows of the commands that were sent with a document of ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .pages import pages

if TYPE_CHECKING:
    from mypy_boto3_ssm import SSMClient
    from mypy_boto3_ssm.type_defs import CommandFilterTypeDef

SUCCESS = "Success"
#: Nothing more becomes of a command that is called so.
OVER = frozenset(
    {
        *(SUCCESS, "Failed", "TimedOut", "Cancelled", "Undeliverable", "Terminated"),
        *("DeliveryTimedOut", "ExecutionTimedOut"),
    }
)


def recent(document: str, since: datetime) -> list[CommandFilterTypeDef]:
    """The filters for commands with this document that are not older."""
    return [
        {"key": "DocumentName", "value": document},
        {"key": "InvokedAfter", "value": since.strftime("%Y-%m-%dT%H:%M:%SZ")},
    ]


def sent(ssm: SSMClient, document: str, host: str, since: datetime) -> Iterator[Mapping[str, Any]]:
    """Those on one host, page by page."""
    for page in pages(
        f"looking for what {document} did on {host}",
        ssm.list_command_invocations,
        following="NextToken",
        InstanceId=host,
        MaxResults=50,
        Filters=recent(document, since),
    ):
        yield from (dict(found) for found in page.get("CommandInvocations", []))
