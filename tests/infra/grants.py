"""What the functions may do, by the template."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.infra.recorded import ACCOUNT, FUNCTIONS, PLACE, ROLES, Need
from tests.infra.stacks import Made
from tests.stories.world import CLUSTER


@dataclass(frozen=True)
class Grant:
    """One action on one resource, with its conditions."""

    function: str
    action: str
    resource: str
    conditions: tuple[tuple[str, str, str], ...] = ()

    def covers(self, need: Need) -> bool:
        if (self.function, self.action) != (need.function, need.action):
            return False
        told = dict(need.told)
        return _matches(self.resource, need.resource) and all(
            told.get(key) == value for _, key, value in self.conditions
        )


def _matches(pattern: str, resource: str) -> bool:
    wild = re.escape(pattern).replace(r"\*", ".*")
    return re.fullmatch(wild, resource) is not None


def grants(made: Made, statements: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[Grant]:
    """Of the four functions, in the world's words: its cluster, its tables, its topic, the tasks' roles."""
    for role, statement in statements:
        function = next((f for f in FUNCTIONS.values() if role.startswith(f"Functions{f}Role")), "")
        for action in _list(statement["Action"]) if function else ():
            for place in _list(statement["Resource"]):
                conditions = tuple(
                    (test, key, _said(value, made))
                    for test, keys in statement.get("Condition", {}).items()
                    for key, value in keys.items()
                )
                yield Grant(function, action, _said(place, made), conditions)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _said(value: Any, made: Made) -> str:
    """A value of the template as it would be after the deployment of the world that the stories play in."""
    pseudo = {"AWS::Partition": "aws", "AWS::Region": "us-east-1", "AWS::AccountId": ACCOUNT}
    if isinstance(value, str):
        return re.sub(r"\b(cluster|task|container-instance)/gpu-cluster\b", rf"\1/{CLUSTER}", value)
    if "Fn::Join" in value:
        return _said("".join(_said(part, made) for part in value["Fn::Join"][1]), made)
    name = value["Ref"] if "Ref" in value else value["Fn::GetAtt"][0]
    if name in pseudo:
        return pseudo[name]
    resource = made.template["Resources"][name]
    kind, about = resource["Type"], resource.get("Properties", {})
    if kind == "AWS::DynamoDB::Table":
        return f"arn:aws:dynamodb:{PLACE}:table/{about['TableName']}"
    if kind == "AWS::SNS::Topic":
        return "the topic"
    if kind == "AWS::IAM::Role":
        return next((role for role in ROLES if name.startswith(role.rpartition("/")[2])), name)
    return f"{kind} {name}"
