"""DynamoDB's calls as the store needs them: errors in our words, answers whole, no write made twice.

It knows tables and items and nothing of jobs and nodes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..core.errors import NotFound, Transient, VersionConflict
from .errors import Cancelled, ConditionFailed, InTheWay, translated
from .items import Item, assignment, number, text, version_of

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

#: What one transaction, or one batch of reads, may hold.
MOST_ACTIONS = 100
#: How many lines are kept beside a node's record before somebody must open it.
LONGEST_STORY = 25
#: How often the rest of a batch is asked for before the table counts as too busy.
BATCH_TRIES = 8


class Dynamo:
    """Some tables, each with one key attribute, through one client."""

    def __init__(self, client: DynamoDBClient, keys: Mapping[str, str]) -> None:
        self._client = client
        self._keys = dict(keys)

    # -- reading ---------------------------------------------------------------------------------------------

    def get(self, table: str, value: str, *, only: tuple[str, ...] = ()) -> Item:
        """One item, consistently; empty if it is not there."""
        with translated(f"read {value}"):
            reply = self._client.get_item(
                TableName=table,
                Key={self._keys[table]: text(value)},
                ConsistentRead=True,
                **_projection(only),
            )
        return dict(reply.get("Item", {}))

    def read(
        self, wanted: Mapping[str, Iterable[str]], *, only: Mapping[str, tuple[str, ...]] | None = None
    ) -> dict[str, dict[str, Item]]:
        """Items of several tables by key, consistently. Those that are not there are left out."""
        found: dict[str, dict[str, Item]] = {table: {} for table in wanted}
        left = iter([(table, value) for table, values in wanted.items() for value in dict.fromkeys(values)])
        while some := list(islice(left, MOST_ACTIONS)):
            ask: dict[str, Any] = {}
            for table, value in some:
                ask.setdefault(table, []).append({self._keys[table]: text(value)})
            for table, keys in ask.items():
                ask[table] = {
                    "Keys": keys,
                    "ConsistentRead": True,
                    **_projection((only or {}).get(table, ())),
                }
            for table, item in self._batch(ask):
                found[table][item[self._keys[table]]["S"]] = item
        return found

    def _batch(self, ask: dict[str, Any]) -> Iterator[tuple[str, Item]]:
        """What a busy table leaves unread is asked for again, a little later each time."""
        for tried in range(BATCH_TRIES):
            with translated("read records"):
                reply = self._client.batch_get_item(RequestItems=ask)
            for table, some in reply.get("Responses", {}).items():
                yield from ((table, dict(item)) for item in some)
            ask = dict(reply.get("UnprocessedKeys") or {})
            if not ask:
                return
            time.sleep(min(0.02 * 2**tried, 1.0))
        raise Transient("read records: the table is busy")

    def query(
        self,
        table: str,
        index: str,
        key: tuple[str, str],
        *,
        up_to: tuple[str, str] | None = None,
        has: str = "",
        same: Mapping[str, str] | None = None,
        **ask: Any,
    ) -> Iterator[Item]:
        """The items of one partition of an index, page after page, as far as the caller goes.

        `up_to` bounds the sort key, `has` is an attribute that must be there, `same` ones that must be equal.
        """
        names, values = {"#key": key[0]}, {":key": text(key[1])}
        where, filters = "#key = :key", []
        if up_to is not None:
            where += " AND #up <= :up"
            names["#up"], values[":up"] = up_to[0], text(up_to[1])
        if has:
            filters.append("attribute_exists(#has)")
            names["#has"] = has
        for name, value in (same or {}).items():
            filters.append(f"#{name} = :{name}")
            names[f"#{name}"], values[f":{name}"] = name, text(value)
        if filters:
            ask["FilterExpression"] = " AND ".join(filters)
        while True:
            with translated(f"list {table}"):
                reply = self._client.query(
                    TableName=table,
                    IndexName=index,
                    KeyConditionExpression=where,
                    ExpressionAttributeNames=names,
                    ExpressionAttributeValues=values,
                    **ask,
                )
            yield from map(dict, reply.get("Items", ()))
            if "LastEvaluatedKey" not in reply:
                return
            ask["ExclusiveStartKey"] = reply["LastEvaluatedKey"]

    # -- writing ---------------------------------------------------------------------------------------------

    def begin(self, table: str, item: Item, what: str, *, sparse: Iterable[str]) -> None:
        """The first record beside what another tool may have written. Raises `ConditionFailed` if there is one."""
        with translated(what):
            self._client.update_item(**self.first(table, item, sparse=sparse)["Update"])

    def move(
        self, table: str, item: Item, what: str, *, sparse: Iterable[str], unless: Item | None = None
    ) -> None:
        """Write version n over version n - 1; see `next` for `unless`.

        A write whose answer got lost is sent again by the client, and then meets itself. `written_by` names
        the very write, so that it is not taken for somebody else's. What stands in the way is handed out with
        the refusal, as an item.
        """
        mine = text(uuid.uuid4().hex)
        update = self.next(table, item | {"written_by": mine}, sparse=sparse, unless=unless)["Update"]
        try:
            with translated(what):
                self._client.update_item(ReturnValuesOnConditionCheckFailure="ALL_OLD", **update)
        except InTheWay as exc:
            raise VersionConflict(f"{what} is being written by somebody else") from exc
        except ConditionFailed as exc:
            if not exc.item:
                raise NotFound(f"no {what}") from exc
            if exc.item.get("written_by") != mine:
                found, expected = version_of(exc.item), version_of(item) - 1
                raise VersionConflict(f"{what} is at version {found}, not {expected}", exc.item) from exc

    def transact(self, actions: Sequence[Item], what: str) -> None:
        """All of them or none. The client adds a token, so one whose answer got lost is not made twice."""
        with translated(what):
            self._client.transact_write_items(TransactItems=list(actions))  # type: ignore[arg-type]

    def write_all(self, actions: Iterable[Item], what: str) -> bool:
        """In as few transactions as hold them. False if someone else was faster with one of them."""
        clean, left = True, iter(actions)
        while some := list(islice(left, MOST_ACTIONS)):
            try:
                self.transact(some, what)
            except Cancelled:
                clean = False
        return clean

    # -- the actions of a transaction ------------------------------------------------------------------------

    def new(self, table: str, item: Item) -> Item:
        condition = f"attribute_not_exists({self._keys[table]})"
        return {"Put": {"TableName": table, "Item": item, "ConditionExpression": condition}}

    def next(self, table: str, item: Item, *, sparse: Iterable[str], unless: Item | None = None) -> Item:
        """Version n over version n - 1, and not over an item that has one of the attributes in `unless`."""
        update = assignment(item, key=self._keys[table], sparse=sparse)
        update["ExpressionAttributeValues"][":before"] = number(version_of(item) - 1)
        where = ["#version = :before"]
        for name, value in (unless or {}).items():
            where.append(f"#{name} <> :not_{name}")
            update["ExpressionAttributeValues"][f":not_{name}"] = value
        return {"Update": {"TableName": table, "ConditionExpression": " AND ".join(where), **update}}

    def first(self, table: str, item: Item, *, sparse: Iterable[str]) -> Item:
        """The first record beside a row that another tool may have written."""
        update = assignment(item, key=self._keys[table], sparse=sparse)
        return {
            "Update": {"TableName": table, "ConditionExpression": "attribute_not_exists(#record)", **update}
        }

    def newer(self, table: str, item: Item, *, fence: str, once: Iterable[str] = ()) -> Item:
        """Only over an item with a smaller number in `fence`, or with none."""
        update = assignment(item, key=self._keys[table], once=once)
        condition = f"attribute_not_exists(#{fence}) OR #{fence} < :{fence}"
        return {"Update": {"TableName": table, "ConditionExpression": condition, **update}}

    def shown(
        self, table: str, item: Item, *, fence: str, same: Item, without: str, format: int, story: Item
    ) -> Item:
        """These attributes over an item with a smaller number in `fence`, and its next version, without reading it.

        What else is in it stays as it is: its `record` is then a version behind. Attributes in `same` must be equal,
        the one named by `without` must not be there, and its `format` must not be a newer one.
        `story` is added to the list of that name, while that is short: whoever opens the record takes it in.
        """
        update = assignment(item, key=self._keys[table])
        values = {":one": number(1), ":format": number(format)}
        values |= {f":{name}": value for name, value in same.items()}
        equal = (f"#{name} = :{name}" for name in same)
        # What is not there is not greater.
        known = ("attribute_exists(#record)", "attribute_not_exists(#without)", "NOT #format > :format")
        where = " AND ".join((*known, f"#{fence} < :{fence}", *equal))
        if story["L"]:
            update["UpdateExpression"] += ", #story = list_append(if_not_exists(#story, :none), :story)"
            update["ExpressionAttributeNames"]["#story"] = "story"
            values |= {":none": {"L": []}, ":story": story, ":most": number(LONGEST_STORY)}
            where = f"{where} AND attribute_not_exists(#story) OR {where} AND size(#story) < :most"
        update["UpdateExpression"] += " ADD #version :one"
        update["ExpressionAttributeNames"] |= {
            "#version": "version",
            "#record": "record",
            "#format": "format",
            "#without": without,
            **{f"#{name}": name for name in same},
        }
        update["ExpressionAttributeValues"] |= values
        return {"Update": {"TableName": table, "ConditionExpression": where, **update}}

    def same_version(self, table: str, item: Item, version: int, what: str, *, sparse: Iterable[str]) -> bool:
        """Change attributes beside a record that is still at this version; False if it is not."""
        update = assignment(item, key=self._keys[table], sparse=sparse)
        update["ExpressionAttributeNames"]["#version"] = "version"
        update.setdefault("ExpressionAttributeValues", {})[":now"] = number(version)
        try:
            with translated(what):
                self._client.update_item(TableName=table, ConditionExpression="#version = :now", **update)
        except (ConditionFailed, InTheWay):
            return False
        return True

    def note(self, table: str, value: str, item: Item, what: str) -> None:
        """Attributes beside a record, in whatever state it is; nothing where there is no such item."""
        key = self._keys[table]
        update = assignment({key: text(value), **item}, key=key)
        with suppress(ConditionFailed), translated(what):
            self._client.update_item(
                TableName=table, ConditionExpression=f"attribute_exists({key})", **update
            )

    def absent(self, table: str, value: str) -> Item:
        key = self._keys[table]
        condition = f"attribute_not_exists({key})"
        return {
            "ConditionCheck": {
                "TableName": table,
                "Key": {key: text(value)},
                "ConditionExpression": condition,
            }
        }


def _projection(names: tuple[str, ...]) -> dict[str, Any]:
    if not names:
        return {}
    return {
        "ProjectionExpression": ", ".join(f"#{name}" for name in names),
        "ExpressionAttributeNames": {f"#{name}": name for name in names},
    }
