"""The policies for people are in the stack if they are asked for, and say what the list says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ecs_gpu_recovery.infra import people

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
