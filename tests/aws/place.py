"""A DynamoDB store with tables of its own, over a wire that can be cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ecs_gpu_recovery.aws.store import DynamoStore
from tests.aws.ministack import dynamodb, fresh_tables
from tests.aws.wire import Wire
from tests.contract.worlds import CLUSTER

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


@dataclass(frozen=True, slots=True)
class Place:
    client: DynamoDBClient
    names: dict[str, str]
    store: DynamoStore
    wire: Wire

    def another(self, *, cluster: str = CLUSTER, attempts: int = 1) -> Place:
        """A second client on the same tables. With more attempts, it sends again what was not answered."""
        return _place(dynamodb(self.client.meta.endpoint_url, attempts=attempts), self.names, cluster)


@contextmanager
def a_place(url: str) -> Iterator[Place]:
    client = dynamodb(url, attempts=1)
    with fresh_tables(client) as names:
        yield _place(client, names, CLUSTER)
    client.close()


def _place(client: DynamoDBClient, names: dict[str, str], cluster: str) -> Place:
    return Place(client, names, DynamoStore(client, cluster=cluster, **names), Wire(client))
