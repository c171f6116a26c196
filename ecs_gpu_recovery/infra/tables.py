"""The tables. Keys and indexes come from `aws.tables`, which the code that reads them uses too."""

from __future__ import annotations

from aws_cdk import RemovalPolicy
from aws_cdk import aws_dynamodb as dynamodb
from constructs import Construct

from ..aws import tables as schema
from ..config import Config
from .naming import accept


class Tables(Construct):
    """Records of jobs, tasks, nodes and of the guard: encrypted, restorable to any second of the last 35 days."""

    def __init__(self, scope: Construct, construct_id: str, *, config: Config) -> None:
        super().__init__(scope, construct_id)
        self._protected = config.DELETION_PROTECTION
        self.jobs = self._table(schema.JOBS, config.JOB_TABLE_NAME)
        self.tasks = self._table(schema.TASKS, config.TASK_TABLE_NAME)
        self.nodes = self._table(schema.NODES, config.NODE_TABLE_NAME)
        self.guard = self._table(schema.GUARD, f"{config.STACK_NAME}-{schema.GUARD.name}")
        self.calls = self._turns(f"{config.STACK_NAME}-{schema.CALLS.name}")

    def of(self, table: schema.Table) -> dynamodb.Table:
        return {schema.JOBS.name: self.jobs, schema.TASKS.name: self.tasks, schema.NODES.name: self.nodes}[
            table.name
        ]

    def _table(self, table: schema.Table, name: str) -> dynamodb.Table:
        made = dynamodb.Table(
            self,
            table.name,
            table_name=name,
            partition_key=_text(table.key),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            encryption=dynamodb.TableEncryption.AWS_MANAGED,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            deletion_protection=self._protected,
            removal_policy=RemovalPolicy.RETAIN if self._protected else RemovalPolicy.DESTROY,
            time_to_live_attribute=schema.FORGET_AT if table is schema.NODES else None,
        )
        for index in table.indexes:
            projection = index.projection
            made.add_global_secondary_index(
                index_name=index.name,
                partition_key=_text(index.partition),
                sort_key=_text(index.sort) if index.sort else None,
                projection_type=dynamodb.ProjectionType[projection["ProjectionType"]],
                non_key_attributes=projection.get("NonKeyAttributes"),
            )
        return made

    def _turns(self, name: str) -> dynamodb.Table:
        """One row that is worth nothing a second later. It goes with the stack."""
        made = dynamodb.Table(
            self,
            schema.CALLS.name,
            table_name=name,
            partition_key=_text(schema.CALLS.key),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            encryption=dynamodb.TableEncryption.AWS_MANAGED,
            removal_policy=RemovalPolicy.DESTROY,
        )
        accept(made, "DDB3", "It holds one number that is worth nothing a second later.")
        return made


def _text(name: str) -> dynamodb.Attribute:
    return dynamodb.Attribute(name=name, type=dynamodb.AttributeType.STRING)
