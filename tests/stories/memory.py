"""Tables and a topic in memory, with the calls that the store and the notifier make, and no others.

A story over HTTP takes seconds; a story here takes milliseconds, so that every call of it can be made to fail. What an
expression means is held against a local AWS by `test_memory.py`. One lock makes every call atomic, as DynamoDB does.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from ecs_gpu_recovery.aws.tables import CALLS, GUARD, JOBS, NODES, TASKS, Table

Item = dict[str, Any]
#: The table in which functions take turns, as a deployment names it.
TURNS = f"EcsGpuRecoveryStack-{CALLS.name}"
GUARDED = f"EcsGpuRecoveryStack-{GUARD.name}"
_ATOM = re.compile(
    r"(?P<call>attribute_(?:not_)?exists)\((?P<of>#?\w+)\)"
    r"|(?:size\((?P<size>#\w+)\)|(?P<left>#\w+)) (?P<op>=|<=|<>|<|>) (?P<right>:\w+)"
)
_SET = re.compile(r"(#\w+) = (?:if_not_exists\((#\w+), (:\w+)\)|(:\w+))")
_APPEND = re.compile(r"(#\w+) = list_append\(if_not_exists\(\1, :none\), (:\w+)\)")


class Tables:
    """What `boto3.client("dynamodb")` is to the store."""

    def __init__(self, names: Mapping[str, Table] | None = None) -> None:
        records = {table.name: table for table in (JOBS, TASKS, NODES)}
        self._schema = dict(names or {**records, TURNS: CALLS, GUARDED: GUARD})
        self._rows: dict[str, dict[str, Item]] = {name: {} for name in self._schema}
        self._lock = threading.RLock()

    # -- reading -----------------------------------------------------------------------------------------------

    def get_item(self, *, TableName: str, Key: Item, ConsistentRead: bool, **ask: Any) -> Item:
        with self._lock:
            row = self._rows[TableName].get(self._key(TableName, Key))
            return {"Item": _shown(row, ask)} if row is not None else {}

    def batch_get_item(self, *, RequestItems: dict[str, Any]) -> Item:
        if not 1 <= sum(len(ask["Keys"]) for ask in RequestItems.values()) <= 100:
            raise error("ValidationException", "1 to 100 keys")
        with self._lock:
            found: dict[str, list[Item]] = {}
            for table, ask in RequestItems.items():
                keys = [self._key(table, key) for key in ask["Keys"]]
                if len(set(keys)) < len(keys):
                    raise error("ValidationException", "Provided list of item keys contains duplicates")
                rows = [self._rows[table][key] for key in keys if key in self._rows[table]]
                found[table] = [_shown(row, ask) for row in rows]
            return {"Responses": found, "UnprocessedKeys": {}}

    def query(
        self,
        *,
        TableName: str,
        IndexName: str,
        KeyConditionExpression: str,
        ExpressionAttributeNames: Item,
        ExpressionAttributeValues: Item,
        FilterExpression: str = "",
        Limit: int = 1000,
        ScanIndexForward: bool = True,
        ExclusiveStartKey: Item | None = None,
    ) -> Item:
        index = next(i for i in self._schema[TableName].indexes if i.name == IndexName)
        table_key = self._schema[TableName].key

        def place(row: Item) -> tuple[str, ...]:
            return (*(row[name]["S"] for name in index.keys[1:]), row[table_key]["S"])

        with self._lock:
            there = [row for row in self._rows[TableName].values() if all(key in row for key in index.keys)]
            names, values = ExpressionAttributeNames, ExpressionAttributeValues
            rows = [row for row in there if holds(KeyConditionExpression, row, names, values)]
            rows.sort(key=place, reverse=not ScanIndexForward)
            if ExclusiveStartKey is not None:
                start = place(ExclusiveStartKey)
                rows = [
                    row for row in rows if (place(row) > start if ScanIndexForward else place(row) < start)
                ]
            page, more = rows[:Limit], rows[Limit:]
            carried = (
                None
                if index.carries == ("*",)
                else {self._schema[TableName].key, *index.keys, *index.carries}
            )
            shown = [
                {k: v for k, v in row.items() if carried is None or k in carried}
                for row in page
                if not FilterExpression or holds(FilterExpression, row, names, values)
            ]
            last = {name: page[-1][name] for name in (*index.keys, table_key)} if more else None
            return {"Items": shown, **({"LastEvaluatedKey": last} if last else {})}

    # -- writing -----------------------------------------------------------------------------------------------

    def put_item(self, **put: Any) -> Item:
        with self._lock:
            self._check(put, put["Item"])
            self._apply({"Put": put})
            return {}

    def update_item(self, *, ReturnValuesOnConditionCheckFailure: str = "NONE", **update: Any) -> Item:
        with self._lock:
            self._check(update, update["Key"], ReturnValuesOnConditionCheckFailure)
            self._apply({"Update": update})
            return {}

    def transact_write_items(self, *, TransactItems: list[Item]) -> Item:
        """All of them or none, each item at most once."""
        if not 1 <= len(TransactItems) <= 100:
            raise error("ValidationException", "1 to 100 actions")
        with self._lock:
            codes, places = [], []
            for action in TransactItems:
                ((kind, what),) = action.items()
                key = self._key(what["TableName"], what["Item" if kind == "Put" else "Key"])
                places.append((what["TableName"], key))
                row = self._rows[what["TableName"]].get(key, {})
                fits = holds(what["ConditionExpression"], row, *_words(what))
                codes.append("None" if fits else "ConditionalCheckFailed")
            if len(set(places)) < len(places):
                raise error(
                    "ValidationException",
                    "Transaction request cannot include multiple operations on one item",
                )
            if set(codes) != {"None"}:
                raise error(
                    "TransactionCanceledException", CancellationReasons=[{"Code": code} for code in codes]
                )
            for action in TransactItems:
                self._apply(action)
            return {}

    def _check(self, what: Item, keyed: Item, shown: str = "NONE") -> None:
        row = self._rows[what["TableName"]].get(self._key(what["TableName"], keyed), {})
        if not holds(what["ConditionExpression"], row, *_words(what)):
            found = {"Item": dict(row)} if shown == "ALL_OLD" and row else {}
            raise error("ConditionalCheckFailedException", **found)

    def _apply(self, action: Item) -> None:
        ((kind, what),) = action.items()
        if kind == "ConditionCheck":
            return
        table = what["TableName"]
        if kind == "Put":
            row = dict(what["Item"])
        else:
            old = self._rows[table].get(self._key(table, what["Key"]), what["Key"])
            row = _updated(dict(old), what["UpdateExpression"], *_words(what))
        for name in {key for index in self._schema[table].indexes for key in index.keys}:
            if name in row and (set(row[name]) != {"S"} or not row[name]["S"]):
                raise error(
                    "ValidationException",
                    f"{name} is the key of an index and must be a text that is not empty",
                )
        self._rows[table][self._key(table, row)] = row

    def _key(self, table: str, item: Item) -> str:
        return str(item[self._schema[table].key]["S"])

    # -- what other tools do -----------------------------------------------------------------------------------

    def write(self, table: str, row: Item) -> None:
        """Put a row there without asking."""
        with self._lock:
            self._apply({"Put": {"TableName": table, "Item": row}})

    def rows(self, table: str) -> dict[str, Item]:
        with self._lock:
            return {key: dict(row) for key, row in self._rows[table].items()}


class Topic:
    """What `boto3.client("sns")` is to the notifier."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def publish(self, **message: Any) -> Item:
        if not 1 <= len(message["Subject"]) <= 100 or not message["Subject"].isascii():
            raise error("InvalidParameter", "Invalid parameter: Subject")
        self.messages.append(message)
        return {"MessageId": str(len(self.messages))}


def error(code: str, message: str = "", **more: Any) -> ClientError:
    """As boto3 raises it."""
    response: Any = {
        "Error": {"Code": code, "Message": message or code},
        "ResponseMetadata": {"HTTPStatusCode": 400},
        **more,
    }
    return ClientError(response, "Call")


def holds(expression: str, row: Item, names: Item, values: Item) -> bool:
    """A condition of atoms joined by OR and AND, as DynamoDB reads it: AND binds closer."""
    return any(
        all(_atom(part, row, names, values) for part in some.split(" AND "))
        for some in expression.split(" OR ")
    )


def _atom(text: str, row: Item, names: Item, values: Item) -> bool:
    if text.startswith("NOT "):
        return not _atom(text.removeprefix("NOT "), row, names, values)
    match = _ATOM.fullmatch(text)
    if match is None:
        raise NotImplementedError(f"these tables do not understand {text!r}")
    if match["call"]:
        return (names.get(match["of"], match["of"]) in row) == (match["call"] == "attribute_exists")
    name, wanted = names[match["left"] or match["size"]], values[match["right"]]
    if match["size"]:
        return name in row and len(row[name]["L"]) < int(wanted["N"])
    if name not in row or set(row[name]) != set(wanted):
        return False
    ((kind, raw),) = row[name].items()
    have, want = (int(raw), int(wanted["N"])) if kind == "N" else (raw, wanted[kind])
    compared = {"=": have == want, "<>": have != want, "<": have < want, "<=": have <= want, ">": have > want}
    return bool(compared[match["op"]])


def _updated(row: Item, expression: str, names: Item, values: Item) -> Item:
    expression, _, adds = expression.partition(" ADD ")
    sets, _, removes = f" {expression}".removeprefix(" SET ").partition(" REMOVE ")
    for name, value in _APPEND.findall(sets):
        before = row.get(names[name], {"L": []})
        row[names[name]] = {"L": [*before["L"], *values[value]["L"]]}
    sets = _APPEND.sub("", sets).removesuffix(", ")
    if len(_SET.findall(sets)) != sets.count(" = "):
        raise NotImplementedError(f"these tables do not understand {expression!r}")
    for name, kept, default, value in _SET.findall(sets):
        if kept and names[kept] in row:
            continue
        row[names[name]] = values[default or value]
    for name in filter(None, removes.split(", ")):
        row.pop(names[name], None)
    for name, value in (pair.split(" ") for pair in filter(None, adds.split(", "))):
        before = int(row.get(names[name], {"N": "0"})["N"])
        row[names[name]] = {"N": str(before + int(values[value]["N"]))}
    return row


def _words(what: Item) -> tuple[Item, Item]:
    return what.get("ExpressionAttributeNames", {}), what.get("ExpressionAttributeValues", {})


def _shown(row: Item, ask: Item) -> Item:
    names = ask.get("ExpressionAttributeNames", {})
    wanted = [names[part] for part in ask.get("ProjectionExpression", "").split(", ") if part]
    return {k: v for k, v in row.items() if not wanted or k in wanted}
