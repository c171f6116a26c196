"""Empty tables on the local AWS, and the way to them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

from ecs_gpu_recovery.aws.tables import JOBS, NODES, TABLES, TASKS, Table

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


def dynamodb(url: str, *, attempts: int = 4) -> DynamoDBClient:
    """A client that can't reach anything but the local AWS."""
    retries: dict[str, Any] = {"mode": "standard", "total_max_attempts": attempts}
    config = Config(retries=retries, max_pool_connections=32, connect_timeout=20, read_timeout=60)
    return boto3.client(
        "dynamodb",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        config=config,
    )


@contextmanager
def fresh_tables(client: DynamoDBClient) -> Iterator[dict[str, str]]:
    """Three empty tables under names of their own, as the arguments that the store takes."""
    mark = uuid.uuid4().hex[:8]
    names = {table: f"{table.name}_{mark}" for table in TABLES}
    for table, name in names.items():
        client.create_table(**table.definition(name))
    try:
        yield {role: names[table] for role, table in _ROLES.items()}
    finally:
        for name in names.values():
            client.delete_table(TableName=name)


_ROLES: dict[str, Table] = {"job_table": JOBS, "task_table": TASKS, "node_table": NODES}
