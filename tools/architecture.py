"""The picture of the architecture, made from the synthesized template, so that it shows what is deployed.

`python -m tools.architecture TEMPLATE` writes docs/architecture.md; a test holds the page against the stack.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.project import ROOT

PAGE = ROOT / "docs" / "architecture.md"
HEAD = """<!-- Made by `tools/architecture.py` from the stack's template. Change the stack, not this page. -->

# The architecture, as it is deployed

Arrows show which way news and orders go. What each part is for: [deployment](deployment.md#what-is-deployed).
What happens in a recovery: [workflow](workflow.md).

```mermaid
flowchart LR
"""
#: What is shown, in which shape, and where its name stands.
_SHAPES = {
    "AWS::Events::Rule": ('[/"{}"/]', "rule"),
    "AWS::Scheduler::Schedule": ('[/"{}"/]', "clock"),
    "AWS::SQS::Queue": ('[["{}"]]', "queue"),
    "AWS::Lambda::Function": ('("{}")', "function"),
    "AWS::DynamoDB::Table": ('[("{}")]', "table"),
    "AWS::SNS::Topic": ('>"{}"]', "topic"),
    "AWS::S3::Bucket": ('[("{}")]', "bucket"),
}
#: What all others treat alike.
_GROUPS = {"functions": "AWS::Lambda::Function", "tables": "AWS::DynamoDB::Table"}
_NAMES = ("FunctionName", "QueueName", "TableName", "TopicName", "Name")
#: What the functions act on, known from the variables that they are told.
_ACTED_ON = {
    "ECS_CLUSTER_NAME": ("cluster", "ECS cluster: nodes, ranks, health checks"),
    "EVIDENCE_BUCKET": ("ssm", "SSM: reboots, and what they would wipe"),
}
_SOURCES = {"aws.ecs": "cluster", "aws.ec2": "cluster", "gpu-recovery.watch": "cluster", "aws.ssm": "ssm"}


def page(template: Mapping[str, Any]) -> str:
    resources: Mapping[str, Any] = {_short(name): one for name, one in template["Resources"].items()}
    lines = [f"    {key}{{{{{json.dumps(text)}}}}}" for key, text in _ACTED_ON.values()]
    for group, kind in _GROUPS.items():
        lines += [f"    subgraph {group}", *(f"    {line}" for line in _shown(resources, kind)), "    end"]
    for kind in _SHAPES:
        lines += _shown(resources, kind) if kind not in _GROUPS.values() else []
    alarms = sum(one["Type"] == "AWS::CloudWatch::Alarm" for one in resources.values())
    lines += [f'    alarms["{alarms} alarms, a dashboard"]', '    people(("people"))']
    arrows = dict.fromkeys(
        arrow for name, one in resources.items() for arrow in _arrows(name, one, resources)
    )
    return HEAD + "\n".join([*lines, *(f"    {arrow}" for arrow in arrows)]) + "\n```\n"


def _shown(resources: Mapping[str, Any], kind: str) -> list[str]:
    shape, word = _SHAPES[kind]
    return [
        f"    {name}{shape.format(f'{word}: {_called(name, one)}')}"
        for name, one in resources.items()
        if one["Type"] == kind
    ]


def _arrows(name: str, one: Mapping[str, Any], resources: Mapping[str, Any]) -> Iterator[str]:
    kind, properties = one["Type"], one["Properties"]
    if kind == "AWS::Events::Rule":
        yield from (f"{_SOURCES[source]} --> {name}" for source in properties["EventPattern"]["source"])
        yield from (f"{name} --> {_leads_to(target['Arn'])}" for target in properties["Targets"])
    elif kind == "AWS::Scheduler::Schedule":
        yield f"{name} --> {_leads_to(properties['Target']['Arn'])}"
    elif kind == "AWS::Lambda::EventSourceMapping":
        yield f"{_leads_to(properties['EventSourceArn'])} --> {_leads_to(properties['FunctionName'])}"
    elif kind == "AWS::SQS::Queue" and "RedrivePolicy" in properties:
        yield f"{name} -. not handled .-> {_leads_to(properties['RedrivePolicy']['deadLetterTargetArn'])}"
    elif kind == "AWS::Lambda::Function":  # all of them are told the same
        told = properties["Environment"]["Variables"]
        yield from (f"functions --> {key}" for variable, (key, _) in _ACTED_ON.items() if variable in told)
        for value in told.values():
            to = _leads_to(value) if isinstance(value, dict) else ""
            there = resources[to]["Type"] if to in resources else ""
            if there in ("AWS::DynamoDB::Table", "AWS::SNS::Topic"):
                yield f"functions --> {'tables' if there == _GROUPS['tables'] else to}"
    elif kind == "AWS::CloudWatch::Alarm":
        yield from (f"alarms --> {_leads_to(to)}" for to in properties.get("AlarmActions", []))
    elif kind == "AWS::SNS::Topic":
        yield f"{name} --> people"
    elif kind == "AWS::S3::Bucket":
        yield f"ssm --> {name}"


def _short(name: str) -> str:
    return re.sub(r"[0-9A-F]{8}$", "", name)


def _leads_to(value: Any) -> str:
    return _short(str(value.get("Ref") or value["Fn::GetAtt"][0]))


def _called(name: str, one: Mapping[str, Any]) -> str:
    """As people know it: by its name, else by what it is in the stack."""
    if one["Type"] == "AWS::Events::Rule":
        return str(one["Properties"]["Description"])
    given = next(
        (one["Properties"][key] for key in _NAMES if isinstance(one["Properties"].get(key), str)), ""
    )
    return re.sub(r"^EcsGpuRecoveryStack-", "", given) or name


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), encoding="utf-8")
