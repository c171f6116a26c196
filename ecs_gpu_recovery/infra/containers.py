"""What all our task definitions have in common: who takes their roles, what it takes to start them, where they log."""

from __future__ import annotations

from aws_cdk import Aws
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from .naming import Name, accept_wildcard

_Definition = ecs.CfnTaskDefinition


def ecs_tasks() -> iam.ServicePrincipal:
    only_this_account = {"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}}
    return iam.ServicePrincipal("ecs-tasks.amazonaws.com", conditions=only_this_account)


def execution_role(scope: Construct, description: str, *, images: Name, log: logs.ILogGroup) -> iam.Role:
    """What ECS does to start a task: pull its image, write its log."""
    pull = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
    write = ["logs:CreateLogStream", "logs:PutLogEvents"]
    statements = [
        iam.PolicyStatement(actions=["ecr:GetAuthorizationToken"], resources=["*"]),
        iam.PolicyStatement(actions=pull, resources=[images.arn]),
        iam.PolicyStatement(actions=write, resources=[log.log_group_arn]),
    ]
    role = iam.Role(
        scope,
        "ExecutionRole",
        assumed_by=ecs_tasks(),
        description=description,
        inline_policies={"Start": iam.PolicyDocument(statements=statements, minimize=False)},
    )
    accept_wildcard(role, "*", "ecr:GetAuthorizationToken takes no narrower resource.")
    if images.why:
        accept_wildcard(role, images.shown, images.why)
    return role


def logging(
    log: logs.ILogGroup, prefix: str, **options: str
) -> ecs.CfnTaskDefinition.LogConfigurationProperty:
    told = {
        "awslogs-group": log.log_group_name,
        "awslogs-region": Aws.REGION,
        "awslogs-stream-prefix": prefix,
    }
    return _Definition.LogConfigurationProperty(log_driver="awslogs", options={**told, **options})


def lossy_logging(log: logs.ILogGroup, prefix: str) -> ecs.CfnTaskDefinition.LogConfigurationProperty:
    """On a GPU node: lines may be lost rather than hold up a training step."""
    return logging(log, prefix, **{"mode": "non-blocking", "max-buffer-size": "4m"})


def variables(given: dict[str, str]) -> list[ecs.CfnTaskDefinition.KeyValuePairProperty]:
    return [_Definition.KeyValuePairProperty(name=name, value=value) for name, value in given.items()]


def host_volume(name: str, path: str) -> ecs.CfnTaskDefinition.VolumeProperty:
    """A folder of the node."""
    return _Definition.VolumeProperty(
        name=name, host=_Definition.HostVolumePropertiesProperty(source_path=path)
    )


def mount(volume: str, path: str, *, read_only: bool = False) -> ecs.CfnTaskDefinition.MountPointProperty:
    return _Definition.MountPointProperty(source_volume=volume, container_path=path, read_only=read_only)
