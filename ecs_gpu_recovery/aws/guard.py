"""The record of the fleet's guard: one item for each cluster, in a table of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..core.codec import CODEC
from ..core.errors import VersionConflict
from ..core.guard import FleetGuard
from .errors import ConditionFailed, translated
from .items import number, text
from .tables import GUARD

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


class DynamoGuard:
    """Whoever comes too late is told the newest record by the refusal."""

    def __init__(self, client: DynamoDBClient, table: str, cluster: str) -> None:
        self._client, self._table, self.cluster = client, table, cluster

    def _in(self, item: Mapping[str, Any]) -> FleetGuard:
        if "record" not in item:
            return FleetGuard(cluster=self.cluster)
        return CODEC.guard(self.cluster, item["record"]["S"])

    def guard(self) -> FleetGuard:
        with translated("read the guard"):
            reply = self._client.get_item(
                TableName=self._table, Key={GUARD.key: text(self.cluster)}, ConsistentRead=True
            )
        return self._in(reply.get("Item", {}))

    def commit_guard(self, guard: FleetGuard) -> None:
        first = guard.version == 1
        known = {} if first else {":before": number(guard.version - 1)}
        try:
            with translated("write the guard"):
                self._client.update_item(
                    TableName=self._table,
                    Key={GUARD.key: text(self.cluster)},
                    UpdateExpression="SET #version = :version, #record = :record",
                    ConditionExpression="attribute_not_exists(#version)" if first else "#version = :before",
                    ExpressionAttributeNames={"#version": "version", "#record": "record"},
                    ExpressionAttributeValues={
                        ":version": number(guard.version),
                        ":record": text(CODEC.text(guard)),
                        **known,
                    },
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
        except ConditionFailed as exc:
            raise VersionConflict("the guard was moved by somebody else", self._in(exc.item)) from exc
