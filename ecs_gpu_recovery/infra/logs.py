"""Log groups that keep their lines for as long as the configuration says and go with the stack, and one that stays."""

from __future__ import annotations

from typing import cast

from aws_cdk import RemovalPolicy
from aws_cdk import aws_logs as logs
from constructs import Construct

from ..config import Config
from ..settings import timeline_group as timeline_group_name


def log_group(scope: Construct, construct_id: str, name: str, config: Config) -> logs.LogGroup:
    made = logs.LogGroup(scope, construct_id, log_group_name=name, removal_policy=RemovalPolicy.DESTROY)
    cast("logs.CfnLogGroup", made.node.default_child).retention_in_days = config.LOG_RETENTION_DAYS
    return made


def timeline_group(scope: Construct, construct_id: str, config: Config) -> logs.LogGroup:
    """The older lines of timelines: records, like the tables, and kept like them. Nothing in it expires."""
    return logs.LogGroup(
        scope,
        construct_id,
        log_group_name=timeline_group_name(config.STACK_NAME),
        retention=logs.RetentionDays.INFINITE,
        removal_policy=RemovalPolicy.RETAIN if config.DELETION_PROTECTION else RemovalPolicy.DESTROY,
    )
