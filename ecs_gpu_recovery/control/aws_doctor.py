"""`gpu-recovery doctor --backend aws`: is the deployment whole, and may this person use it? It only reads.

Each check says what it found and what to do. What a check needs and could not be had is said once, by the check before.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from ..aws.dead_letters import FUNCTIONS
from ..aws.definitions import start_command
from ..aws.discover import instances, registered_gpus
from ..aws.errors import code_of
from ..aws.pages import pages
from ..aws.tables import GUARD, JOBS, NODES, TASKS, Table
from ..core.errors import RecoveryError
from ..settings import LambdaSettings
from . import aws_settings
from .aws_errors import Where, explained
from .doctor import Finding

#: An image in ECR: account, repository, tag.
_OWN_REGISTRY = re.compile(r"(\d{12})\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?/([^:@]+):([^:@]+)")
DEPLOY = "deploy the stack again: cdk deploy (docs/deployment.md)"


def examine(env: Mapping[str, str]) -> list[Finding]:
    """In the order in which one thing needs the other."""
    findings: list[Finding] = []
    name = "region"
    try:
        session = aws_settings.session(env)
        findings.append(Finding(name, True, str(session.region_name)))
        name = "credentials"
        findings.append(Finding(name, True, _who(session)))
        name = "settings"
        settings = aws_settings.settings(env, session)
    except RecoveryError as exc:
        return [*findings, Finding(name, False, str(exc))]
    said = f"cluster {settings.ECS_CLUSTER_NAME}, check {settings.DCGM_HEALTH_CHECK_TASK}"
    findings.append(Finding(name, True, said))
    checks = _Checks(session, aws_settings.stack_name(env), settings)
    looks: dict[str, Callable[[], list[Finding]]] = {
        "tables": checks.tables,
        "cluster": checks.cluster,
        "replacements": checks.replacements,
        "health check": checks.health_check,
        "messages": checks.messages,
        "functions": checks.functions,
    }
    for name, look in looks.items():
        try:
            findings += checks.asked(look)
        except RecoveryError as exc:
            findings.append(Finding(name, False, str(exc)))
    return findings


def _who(session: Any) -> str:
    with explained(Where(region=str(session.region_name))):
        found = session.client("sts").get_caller_identity()
    return f"{found['Arn']} in account {found['Account']}"


def _lacks(group: Mapping[str, Any], key: str, value: str) -> str:
    """What is missing of the nodes' tag on a group. Without it nothing may be terminated there."""
    tags = [one for one in group.get("Tags", ()) if (one["Key"], one.get("Value")) == (key, value)]
    if not tags:
        return f"carries no tag {key}={value}: none of its machines may be terminated"
    unless = "unless its launch template sets that, new machines never become nodes"
    return "" if tags[0]["PropagateAtLaunch"] else f"does not pass its tag {key}={value} on: {unless}"


class _Checks:
    """One method per check, each a few calls that change nothing."""

    def __init__(self, session: Any, stack: str, settings: LambdaSettings) -> None:
        self._session, self._stack, self.settings = session, stack, settings
        self._region = str(session.region_name)
        self._seen: list[Mapping[str, Any]] = []  #: the cluster's container instances

    def asked(self, look: Callable[[], list[Finding]]) -> list[Finding]:
        with explained(Where(region=self._region, cluster=self.settings.ECS_CLUSTER_NAME)):
            return look()

    def tables(self) -> list[Finding]:
        dynamodb, found = self._session.client("dynamodb"), []
        s = self.settings
        names: dict[str, Table] = {s.JOB_TABLE_NAME: JOBS, s.TASK_TABLE_NAME: TASKS, s.NODE_TABLE_NAME: NODES}
        if s.GUARD_TABLE_NAME:
            names[s.GUARD_TABLE_NAME] = GUARD
        else:
            said = "there is no table of permits: nodes are rebooted without any, however many at once"
            found.append(Finding("guard", False, said, DEPLOY))
        for name, table in names.items():
            try:
                with explained(Where(region=self._region, tables=(name,))):
                    shown = dynamodb.describe_table(TableName=name)["Table"]
            except RecoveryError as exc:
                found.append(Finding(f"table {name}", False, str(exc)))
                continue
            key = next((k["AttributeName"] for k in shown["KeySchema"] if k["KeyType"] == "HASH"), "")
            have = {index["IndexName"] for index in shown.get("GlobalSecondaryIndexes", [])}
            lacks = [index.name for index in table.indexes if index.name not in have]
            wrong = [f"its key is {key}, not {table.key}"] if key != table.key else []
            wrong += [f"it lacks the indexes {', '.join(lacks)}"] if lacks else []
            if shown.get("TableStatus") not in ("ACTIVE", "UPDATING"):
                wrong.append(f"it is {shown.get('TableStatus')}")
            said = "; ".join(wrong) or f"{shown.get('ItemCount', 0)} items, about"
            do = "see docs/upgrade.md, or choose other table names" if wrong else ""
            found.append(Finding(f"table {name}", not wrong, said, do))
        return found

    def cluster(self) -> list[Finding]:
        """The nodes are the cluster's; what is recorded of them is told by `gpu-recovery nodes`."""
        name = self.settings.ECS_CLUSTER_NAME
        seen = self._seen = list(instances(self._session.client("ecs"), name))
        away = [str(i["ec2InstanceId"]) for i in seen if not i.get("agentConnected")]
        without = [
            str(i["ec2InstanceId"]) for i in seen if i.get("agentConnected") and not registered_gpus(i)
        ]
        said = f"{len(seen)} nodes in {name}"
        said += f"; not connected: {', '.join(away)}" if away else ", all connected" if seen else ""
        said += f"; no GPUs registered: {', '.join(without)}" if without else ""
        do = ""
        if not seen:
            do = "add container instances with GPUs: docs/deployment.md, docs/ecs-anywhere.md"
        elif without:
            do = "set ECS_ENABLE_GPU_SUPPORT=true on the node and start its agent again"
        return [Finding("cluster", bool(seen) and not without, said, do), *self._reachable(seen)]

    def _reachable(self, seen: list[Mapping[str, Any]]) -> list[Finding]:
        """A node that SSM does not reach can't be rebooted, and that shows in the worst moment."""
        hosts = [str(i["ec2InstanceId"]) for i in seen if i.get("ec2InstanceId")]
        if not hosts:
            return []
        ssm, online = self._session.client("ssm"), set()
        for start in range(0, len(hosts), 50):
            reply = ssm.describe_instance_information(
                Filters=[{"Key": "InstanceIds", "Values": hosts[start : start + 50]}], MaxResults=50
            )
            for row in reply.get("InstanceInformationList", []):
                if row.get("PingStatus") == "Online":
                    online.add(str(row["InstanceId"]))
        lost = [host for host in hosts if host not in online]
        if not lost:
            return [Finding("reboots", True, f"SSM reaches all {len(hosts)} nodes")]
        do = "give the node's role AmazonSSMManagedInstanceCore and see that amazon-ssm-agent runs"
        return [Finding("reboots", False, f"SSM does not reach {', '.join(lost)}", do)]

    def replacements(self) -> list[Finding]:
        """A group must carry the nodes' tag, and pass it on to the machines that it starts."""
        hosts = {str(i.get("ec2InstanceId", "")) for i in self._seen if registered_gpus(i)}
        if not self.settings.policy.may_replace or not any(host.startswith("i-") for host in hosts):
            return []
        ask = self._session.client("autoscaling").describe_auto_scaling_groups
        key, value = self.settings.node_tag
        found = {
            str(group["AutoScalingGroupName"]): _lacks(group, key, value)
            for page in pages("listing Auto Scaling groups", ask, following="NextToken", MaxRecords=100)
            for group in page["AutoScalingGroups"]
            if any(one["InstanceId"] in hosts for one in group.get("Instances", ()))
        }
        lacks = sorted(name for name, what in found.items() if what)
        if not lacks:
            said = f"{', '.join(sorted(found))}: new machines get the tag {key}={value}"
            return [Finding("replacements", True, said)] if found else []
        said = "; ".join(f"{name} {found[name]}" for name in lacks)
        about = f"ResourceType=auto-scaling-group,Key={key},Value={value},PropagateAtLaunch=true"
        tags = " ".join(shlex.quote(f"ResourceId={name},{about}") for name in lacks)
        return [Finding("replacements", False, said, f"aws autoscaling create-or-update-tags --tags {tags}")]

    def health_check(self) -> list[Finding]:
        ecs, name = self._session.client("ecs"), self.settings.DCGM_HEALTH_CHECK_TASK
        hints = {"ClientException": f"there is no task definition {name} in {self._region}: {DEPLOY}"}
        with explained(Where(region=self._region, hints=hints)):
            found = ecs.describe_task_definition(taskDefinition=name)["taskDefinition"]
        images = [str(container.get("image")) for container in found["containerDefinitions"]]
        active = found.get("status", "ACTIVE") == "ACTIVE"
        said = f"{name} runs {', '.join(images)}" + ("" if active else f"; it is {found['status']}")
        made = Finding("health check", active, said, "" if active else DEPLOY)
        pushed = [finding for image in images for finding in self._pushed(image)]
        return [made, *self._roles(found), *pushed]

    def _roles(self, definition: Mapping[str, Any]) -> list[Finding]:
        """A check whose roles the functions may not pass on is never started, and that shows in the worst moment."""
        wanted = {str(definition[key]) for key in ("executionRoleArn", "taskRoleArn") if definition.get(key)}
        wanted -= set(self.settings.TASK_ROLE_ARNS.split(","))
        lacks = sorted(role for role in wanted if not role.rpartition("/")[2].startswith(f"{self._stack}-"))
        if not lacks:
            return []
        said = f"the functions may not start it with its own role {', '.join(lacks)}"
        do = f"add to TASK_ROLE_ARNS: {','.join(lacks)}; then {DEPLOY}"
        return [Finding("roles of the health check", False, said, do)]

    def _pushed(self, image: str) -> list[Finding]:
        """Whether an image is there, where the registry is an account's own. Without it no check starts."""
        parts = _OWN_REGISTRY.fullmatch(image)
        if parts is None:
            return []
        account, repository, tag = parts.groups()
        from botocore.exceptions import ClientError

        wanted: Any = {"registryId": account, "repositoryName": repository, "imageIds": [{"imageTag": tag}]}
        try:
            there = self._session.client("ecr").describe_images(**wanted)["imageDetails"]
        except ClientError as exc:
            if code_of(exc) not in ("ImageNotFoundException", "RepositoryNotFoundException"):
                raise
            there = []
        if not there:
            do = f"push it, or deploy with BUILD_IMAGE=true and build it:  {start_command(self._stack)}"
            return [Finding("image", False, f"{repository}:{tag} is not there, so no check can start", do)]
        return [Finding("image", True, f"{repository}:{tag} is there")]

    def messages(self) -> list[Finding]:
        topic = self.settings.SNS_TOPIC_ARN
        hints = {
            "NotFound": f"there is no topic {topic}: {DEPLOY}",
            "NotFoundException": f"there is no topic {topic}: {DEPLOY}",
        }
        with explained(Where(region=self._region, hints=hints)):
            found = self._session.client("sns").get_topic_attributes(TopicArn=topic)["Attributes"]
        heard, waiting = (int(found.get(f"Subscriptions{x}", 0)) for x in ("Confirmed", "Pending"))
        said = f"{topic.rpartition(':')[2]}: {heard} subscribers" + (
            f", {waiting} unconfirmed" if waiting else ""
        )
        do = (
            ""
            if heard
            else f"nobody hears of failures:  aws sns subscribe --topic-arn {topic} --protocol email"
        )
        return [
            Finding("messages", bool(heard), said, do and f"{do} --notification-endpoint YOU@EXAMPLE.COM")
        ]

    def functions(self) -> list[Finding]:
        """Whether all are there, and the sweeper swept: without it nothing that was missed is ever found."""
        client, missing, different = self._session.client("lambda"), [], []
        for name in FUNCTIONS:
            full = f"{self._stack}-{name}"
            try:
                found = client.get_function_configuration(FunctionName=full)
            except client.exceptions.ResourceNotFoundException:
                missing.append(full)
                continue
            cluster = found.get("Environment", {}).get("Variables", {}).get("ECS_CLUSTER_NAME", "")
            if cluster != self.settings.ECS_CLUSTER_NAME:
                different.append(f"{full} watches {cluster or 'no cluster'}")
        if missing:
            do = f"{DEPLOY}, or set STACK_NAME to the name of your stack"
            return [Finding("functions", False, f"not there: {', '.join(missing)}", do)]
        if different:
            do = "set ECS_CLUSTER_NAME to the cluster of the stack, or STACK_NAME to that of the cluster"
            return [Finding("functions", False, "; ".join(different), do)]
        return [Finding("functions", True, f"all {len(FUNCTIONS)} of {self._stack}")]
