"""Both ways round: what the functions ask for over all stories is granted, and what is granted is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.infra.grants import Grant, grants
from tests.infra.recorded import FUNCTIONS, Need, all_needs
from tools import permissions as page

if TYPE_CHECKING:
    from tests.infra.stacks import Made

_LOG = "Lambda writes the log, not our code"
_FAILED = "Lambda sends what failed to the dead-letter queue, not our code"
_QUEUE = "Lambda takes messages from the queue, and looks after both queues, in the function's name"
_ENCRYPTED = "SNS uses the topic's key in the publisher's name"
#: Granted, and yet no story's call needs it: by function ("" for all) and action, with the reason. Of what our own code
#: may do there is nothing that no story does.
UNUSED: dict[tuple[str, str], str] = {
    ("", "logs:CreateLogStream"): _LOG,
    ("", "logs:PutLogEvents"): _LOG,
    ("", "logs:GetLogEvents"): "the end of a failed rank's log: the ranks of the stories log nowhere",
    ("", "logs:FilterLogEvents"): "whether ranks still write: those of the stories log nowhere",
    ("", "events:PutEvents"): "incidents on the bus: the stories name none",
    ("", "kms:Decrypt"): _ENCRYPTED,
    ("", "s3:PutObject"): "a host puts its evidence there, with an address that the function has signed",
    ("", "kms:GenerateDataKey"): _ENCRYPTED,
    ("RecoverySweeper", "ssm:SendCommand"): "a look at a hang: no gang of the recorded stories stands still",
    (
        "EcsInstanceMonitor",
        "dynamodb:GetItem",
    ): "the guard is read where another process asked meanwhile, or a rank is to move: others do it too",
    (
        "EcsInstanceMonitor",
        "ecs:DescribeTasks",
    ): "who else is on a node that is to reboot: in the stories nobody",
    (
        "RecoverySweeper",
        "dynamodb:Query",
    ): "a new node of which no event came: the story of that is told apart",
    ("", "sqs:GetQueueAttributes"): _QUEUE,
    ("", "sqs:DeleteMessage"): _QUEUE,
    ("", "sqs:ReceiveMessage"): _QUEUE,
    ("", "sqs:GetQueueUrl"): _FAILED,
    ("", "sqs:SendMessage"): _FAILED,
}


@pytest.fixture(scope="module")
def asked() -> set[Need]:
    return all_needs()


@pytest.fixture(scope="module")
def granted(stack: Made) -> set[Grant]:
    rows = [
        (role, statement)
        for role, policies in page.roles(stack.template)
        for policy in policies
        for statement in policy["Statement"]
    ]
    return set(grants(stack, rows))


def test_every_call_of_every_story_is_granted_to_the_function_that_makes_it(
    asked: set[Need], granted: set[Grant]
) -> None:
    assert {need.function for need in asked} == set(FUNCTIONS.values())
    refused = [need for need in asked if not any(grant.covers(need) for grant in granted)]
    assert not refused, "\n".join(sorted(map(str, refused)))


def test_every_right_is_used_by_some_story_or_has_its_reason(asked: set[Need], granted: set[Grant]) -> None:
    idle = {
        (grant.function, grant.action, grant.resource)
        for grant in granted
        if not any(grant.covers(need) for need in asked)
    }
    unexplained = {one for one in idle if (one[0], one[1]) not in UNUSED and ("", one[1]) not in UNUSED}
    assert not unexplained, "\n".join(sorted(map(str, unexplained)))


def test_every_reason_is_still_needed(asked: set[Need], granted: set[Grant]) -> None:
    """A right that a story now uses must not stay on the list of those that none uses."""
    for function, action in UNUSED:
        some = [g for g in granted if g.action == action and function in ("", g.function)]
        assert some, f"{action} is not granted any more"
        assert not all(any(g.covers(need) for need in asked) for g in some), f"{action} is used"


def test_a_story_that_asks_for_more_would_be_noticed(granted: set[Grant]) -> None:
    for action, resource in (
        ("dynamodb:Scan", "arn:aws:dynamodb:us-east-1:123456789012:table/ecs_job"),
        ("dynamodb:UpdateItem", "arn:aws:dynamodb:us-east-1:123456789012:table/other"),
        ("ecs:StopTask", "arn:aws:ecs:us-east-1:123456789012:task/another/1"),
    ):
        need = Need("RecoverySweeper", action, resource)
        assert not any(grant.covers(need) for grant in granted), need
