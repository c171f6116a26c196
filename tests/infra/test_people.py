"""The policies for people are in the stack if they are asked for, and say what the list says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ecs_gpu_recovery.config import Config
from ecs_gpu_recovery.infra import people

#: Characters that IAM takes in a managed policy, white space aside.
MOST = 6144

if TYPE_CHECKING:
    from tests.infra.stacks import Made


def test_nobody_gets_rights_that_nobody_asked_for(stack: Made) -> None:
    assert stack.properties("AWS::IAM::ManagedPolicy") == []


def test_both_policies_are_made_and_their_names_told(everything: Made) -> None:
    made = everything.properties("AWS::IAM::ManagedPolicy")
    told = [
        {
            action
            for statement in policy["PolicyDocument"]["Statement"]
            for action in (
                [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
            )
        }
        for policy in made
    ]
    assert sorted(told, key=len) == [people.actions(who) for who in people.ROLES]
    assert {"ViewerPolicyArn", "OperatorPolicyArn"} <= set(everything.template["Outputs"])
    assert not any(policy.get("Users") or policy.get("Groups") or policy.get("Roles") for policy in made)


def test_the_larger_policy_fits_where_names_are_long_and_roles_many() -> None:
    """IAM counts characters. A template with a policy that is too long is made, and then fails to deploy."""
    env = {
        "ECS_CLUSTER_NAME": "training-production-frankfurt-01",
        "STACK_NAME": "EcsGpuRecovery-production-frankfurt-01",
        "JOB_TABLE_NAME": "production_frankfurt_ecs_job",
        "TASK_TABLE_NAME": "production_frankfurt_ecs_task",
        "NODE_TABLE_NAME": "production_frankfurt_ecs_node",
        "NODE_TAG": "GpuRecovery=yes",
    }
    role = "arn:aws-us-gov:iam::123456789012:role/EcsGpuRecovery-TasksExecutionRoleF507B5D7-AbCdEfGhIjKl"
    made = people.document(
        people.OPERATOR,
        Config.from_env(env),
        role_arns=[role] * 8,
        account="123456789012",
        region="us-gov-west-1",
        partition="aws-us-gov",
    )
    assert len(json.dumps(made, separators=(",", ":"))) <= MOST
