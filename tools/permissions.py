"""Makes docs/permissions.md from the template: what every role may do, and what a deployment itself needs.

`python -m tools.permissions` writes the page; with `--check` it only says whether the page is up to date.
`python -m tools.permissions --policy operator --account 123456789012 --region us-east-1` prints a policy for people, as
IAM takes it, for the settings in the environment.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ecs_gpu_recovery.config import Config
from ecs_gpu_recovery.infra import people
from tools.deploying import DEPLOYING
from tools.project import ROOT, ProblemError

PAGE = ROOT / "docs" / "permissions.md"
FUNCTIONS = ("EcsTaskHandler", "DcgmTaskMonitor", "EcsInstanceMonitor", "RecoverySweeper")
HEAD = """\
<!-- Made by `python -m tools.permissions`. Change the stack, not this page. -->

# Permissions

- **People** who use the command or the console: [two policies](#what-people-need), which the stack makes or a command
  prints.
- **Whoever deploys**: [the roles of `cdk bootstrap`](#what-the-person-who-deploys-needs).
- **The functions** may start, stop and reboot on one cluster. They may delete no record, scan no table and, unless
  told so, terminate no machine.

From the template with its default settings and names. Resources are those of this account and region.
"Of the cluster": if `ecs:cluster` is `cluster/gpu-cluster`.

## What the roles may do

All four functions run the same engine: whichever event completes the picture sends the orders that follow from it.

- Task definitions: any family may be started again; `TRAINING_TASK_FAMILIES` narrows that.
- Roles: only those that the stack made for tasks may be passed on; `TASK_ROLE_ARNS` adds yours.
- Nodes: only the stack's own document may be sent, which reboots and does nothing else.
- Machines: with `REPAIR_RUNGS=reboot,replace` each function may terminate them in Auto Scaling groups that carry the
  tag in `NODE_TAG` themselves, and send the document that keeps evidence before.
- `*` stands alone where AWS knows no narrower resource.
"""
PEOPLE = """\

## What people need

Commands with `--backend aws`, and a console that somebody starts with it, act with the rights of that person. A
**viewer** lists jobs and asks the doctor; the console shows the rest: its pages, or commands with
`--backend https://CONSOLE`. An **operator** submits, stops, drains, examines and reboots. Only the console gives dead
letters to their functions again: whoever calls a function can tell it anything. Three ways to give the rights:

- `export CREATE_PEOPLE_POLICIES=true`, then `cdk deploy`: two managed policies, the outputs `ViewerPolicyArn` and
  `OperatorPolicyArn`. Attach them to groups, roles or permission sets.
- `python -m tools.permissions --policy operator --account ACCOUNT --region REGION` prints one with the
  resources of each right; add `--role ARN` for each role that tasks get.
- Behind a console with its own sign-in, only the console's role needs them.

What an operator may not send himself (`ecs:StartTask`, `ecs:StopTask`, `ssm:SendCommand`) is recorded, and the
functions carry it out within minutes. Everybody may call `sts:GetCallerIdentity`; the name it gives goes into the
record.
"""
#: Below which line a right of people stands, by who has it.
_WHO = {
    people.ALL: "Viewers, operators and the console",
    people.READS: "Operators and the console",
    people.ACTS: "Operators, and the console that acts for them",
    (people.ACTING,): "The console that acts, alone",
}
#: How a condition is said, where there is a shorter word for it than the condition itself.
_IF = {
    "`ecs:cluster` is `cluster/gpu-cluster`": "of the cluster",
    "`iam:PassedToService` is `ecs-tasks.amazonaws.com`": "to `ecs-tasks.amazonaws.com`",
    "`ssm:resourceTag/GpuRecovery` is `gpu-cluster`": "with the tag in `NODE_TAG`",
    "`events:source` is `gpu-recovery`": "of the source `gpu-recovery`",
}
DEPLOY = """\

## What the person who deploys needs

With the roles that `cdk bootstrap` made, only `sts:AssumeRole` on `arn:aws:iam::ACCOUNT:role/cdk-hnb659fds-*`. `cdk
bootstrap` itself makes roles and a bucket, and is best run once by an administrator.

Without those roles (`-c synthesizer=cli`) you need `cloudformation:*` on the stack, `s3:PutObject` and `s3:GetObject`
on the bootstrap bucket, `ssm:GetParameter` on `/cdk-bootstrap/*`, and what `python -m tools.permissions --deploying`
prints.
"""
_NAMES = ("TableName", "LogGroupName", "TopicName", "FunctionName", "RepositoryName", "QueueName")


def page(template: Mapping[str, Any]) -> str:
    """The whole page."""
    resources = template["Resources"]
    parts = [HEAD]
    given: dict[str, tuple[str, list[str]]] = {}
    for logical_id, policies in roles(template):
        path = resources[logical_id]["Metadata"]["aws:cdk:path"].split("/")
        about = resources[logical_id]["Properties"].get("Description", "")
        rows = [_row(statement, resources) for policy in policies for statement in policy["Statement"]]
        given[path[-2]] = (about, rows)
    who: dict[str, list[str]] = {}
    for function in FUNCTIONS:
        for row in given.pop(f"{function}Role")[1]:
            who.setdefault(row.replace(function, "FUNCTION"), []).append(function)
    rows_of: dict[tuple[str, ...], list[str]] = {}
    for row, functions in who.items():
        rows_of.setdefault(tuple(functions), []).append(row)
    parts += [_section("All four functions", rows_of.pop(FUNCTIONS)), "\n### Some of them\n"]
    parts += [f"\n{', '.join(some)}:\n\n{_lines(rows)}" for some, rows in rows_of.items()]
    parts += [
        _section(f"{name}: {about[:1].lower()}{about[1:]}", rows) for name, (about, rows) in given.items()
    ]
    parts.append(PEOPLE)
    parts += [*map(_people, _WHO), DEPLOY]
    return "".join(parts)


def deploying(template: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """What CloudFormation needs from its caller for what is in the template."""
    return {
        kind: DEPLOYING[kind] for kind in sorted({each["Type"] for each in template["Resources"].values()})
    }


def _section(title: str, rows: Iterable[str]) -> str:
    return f"\n### {title}\n\n{_lines(rows)}"


def _lines(rows: Iterable[str]) -> str:
    return "".join(f"- {row}\n" for row in rows)


def _people(group: tuple[str, ...]) -> str:
    """What each action is for, once. On what, the printed policy says."""
    reasons: dict[str, list[str]] = {}
    for grant in people.GRANTS:
        if grant.who == group:
            said = reasons.setdefault(_actions(grant.actions), [])
            said += [grant.why] if grant.why not in said else []
    rights = (f"{actions}: {'; '.join(said)}" for actions, said in reasons.items())
    return f"\n{_WHO[group]}:\n\n{_lines(rights)}"


def _actions(actions: Iterable[str]) -> str:
    """Those of one service together, as in `s3:GetObject,PutObject`."""
    found: dict[str, list[str]] = {}
    for action in actions:
        service, _, name = action.partition(":")
        found.setdefault(service, []).append(name)
    return ", ".join(f"`{service}:{','.join(names)}`" for service, names in found.items())


def policy(who: str, *, account: str, region: str, partition: str, role_arns: list[str]) -> dict[str, Any]:
    """The policy of a viewer or an operator, for the settings in the environment."""
    config = Config.from_env(os.environ)
    roles = [*role_arns, *(arn for arn in config.TASK_ROLE_ARNS.split(",") if arn)]
    return people.document(who, config, role_arns=roles, account=account, region=region, partition=partition)


def roles(template: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Every role that has rights, with its inline policies and those that were attached to it."""
    resources = template["Resources"]
    for logical_id, resource in resources.items():
        if resource["Type"] != "AWS::IAM::Role":
            continue
        policies = [policy["PolicyDocument"] for policy in resource["Properties"].get("Policies", ())]
        policies += [
            other["Properties"]["PolicyDocument"]
            for other in resources.values()
            if other["Type"] == "AWS::IAM::Policy" and {"Ref": logical_id} in other["Properties"]["Roles"]
        ]
        if policies:
            yield logical_id, policies


def text(value: Any, resources: Mapping[str, Any]) -> str:
    """A value of the template as a person reads it."""
    if isinstance(value, str):
        return value
    if "Ref" in value:
        return _named(value["Ref"], resources) if value["Ref"] in resources else f"${{{value['Ref']}}}"
    if "Fn::GetAtt" in value:
        return _named(value["Fn::GetAtt"][0], resources)
    return "".join(text(part, resources) for part in value["Fn::Join"][1])


def _named(logical_id: str, resources: Mapping[str, Any]) -> str:
    properties = resources[logical_id].get("Properties", {})
    kind = resources[logical_id]["Type"].rpartition("::")[2].lower()
    for name in _NAMES:
        if isinstance(properties.get(name), str):
            return f"{kind} {properties[name]}"
    path: str = resources[logical_id]["Metadata"]["aws:cdk:path"]
    return f"{kind} {'/'.join(path.split('/')[1:-1])}"


def _row(statement: Mapping[str, Any], resources: Mapping[str, Any]) -> str:
    places = [text(place, resources) for place in _many(statement["Resource"])]
    places = [
        place.replace("${AWS::Region}:${AWS::AccountId}:", "").replace("arn:${AWS::Partition}:", "")
        for place in places
    ]
    conditions = [
        f"`{key}` is `{text(wanted, resources).rpartition(':')[2]}`"
        for tests in statement.get("Condition", {}).values()
        for key, wanted in tests.items()
    ]
    only = " and ".join(_IF.get(one, f"if {one}") for one in conditions)
    on = ", ".join(f"`{place}`" for place in places) + (f" {only}" if only else "")
    return f"{_actions(_many(statement['Action']))} on {on}"


def _many(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def synthesized() -> dict[str, Any]:
    """The template with the default settings."""
    from app import make_app

    with tempfile.TemporaryDirectory() as outdir:
        asset = ROOT / "ecs_gpu_recovery" / "lambdas"  # any folder will do: code is no part of the template
        app = make_app({}, outdir=outdir, asset=asset, context={"aws:cdk:enable-path-metadata": True})
        app.synth()
        made: dict[str, Any] = json.loads(
            Path(outdir, "EcsGpuRecoveryStack.template.json").read_text("utf-8")
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools.permissions", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the page is up to date")
    parser.add_argument("--policy", choices=("viewer", "operator"), help="print a policy for people instead")
    parser.add_argument("--account", default="ACCOUNT", help="of the policy")
    parser.add_argument("--region", default="REGION", help="of the policy")
    parser.add_argument("--partition", default="aws", help="aws, aws-cn or aws-us-gov")
    parser.add_argument("--role", action="append", default=[], help="ARN of a role that tasks get")
    parser.add_argument("--deploying", action="store_true", help="print what a deployment needs instead")
    asked = parser.parse_args()
    if asked.deploying:
        print(json.dumps(deploying(synthesized()), indent=2))
        return
    if asked.policy:
        where = {"account": asked.account, "region": asked.region, "partition": asked.partition}
        print(json.dumps(policy(asked.policy, **where, role_arns=asked.role), indent=2))
        return
    wanted = page(synthesized())
    if not asked.check:
        PAGE.write_text(wanted, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
        raise ProblemError("docs/permissions.md is not what the stack says. Run: python -m tools.permissions")


if __name__ == "__main__":
    try:
        main()
    except ProblemError as problem:
        sys.exit(str(problem))
