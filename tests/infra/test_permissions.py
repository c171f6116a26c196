"""Every right exists, fits its resource, is needed, and no more than needed."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from policy_sentry.querying.actions import get_action_data

from ecs_gpu_recovery.infra import permissions
from ecs_gpu_recovery.infra.node_role import AGENTS
from ecs_gpu_recovery.infra.topic import USES_KEY
from tools import permissions as page
from tools.deploying import DEPLOYING

if TYPE_CHECKING:
    from tests.infra.stacks import Made

ROOT = Path(__file__).resolve().parents[2]
HANDLERS = ("ecs_task_handler", "dcgm_task_monitor", "ecs_instance_monitor", "recovery_sweeper")
#: AWS knows no narrower resource for these.
NO_RESOURCE = {
    *AGENTS,
    "ec2:DescribeInstances",
    "ecs:DescribeTaskDefinition",
    "ecs:ListTasks",
    "ssm:CancelCommand",
    "ssm:DescribeInstanceInformation",
    "ssm:ListCommandInvocations",
}
#: Reachable in the code, but asked for by people: jobs are submitted and nodes added with their own rights.
PEOPLES = {"dynamodb:PutItem"}
#: What resources of the template are called in ARNs.
ARNS = {
    "AWS::DynamoDB::Table": "arn:aws:dynamodb:us-east-1:123456789012:table/name",
    "AWS::ECR::Repository": "arn:aws:ecr:us-east-1:123456789012:repository/name",
    "AWS::KMS::Key": "arn:aws:kms:us-east-1:123456789012:key/name",
    "AWS::IAM::Role": "arn:aws:iam::123456789012:role/name",
    "AWS::Lambda::Function": "arn:aws:lambda:us-east-1:123456789012:function:name",
    "AWS::Logs::LogGroup": "arn:aws:logs:us-east-1:123456789012:log-group:name:log-stream:*",
    "AWS::S3::Bucket": "arn:aws:s3:::name",
    "AWS::SNS::Topic": "arn:aws:sns:us-east-1:123456789012:name",
    "AWS::SQS::Queue": "arn:aws:sqs:us-east-1:123456789012:name",
}
PSEUDO = {"AWS::Partition": "aws", "AWS::Region": "us-east-1", "AWS::AccountId": "123456789012"}


def arn(value: Any, resources: dict[str, Any]) -> str:
    if isinstance(value, str):
        return value
    if "Fn::Join" in value:
        return "".join(arn(part, resources) for part in value["Fn::Join"][1])
    if "Fn::Sub" in value:
        return re.sub(r"\$\{(.+?)\}", lambda found: PSEUDO[found[1]], value["Fn::Sub"])
    name = value["Ref"] if "Ref" in value else value["Fn::GetAtt"][0]
    return PSEUDO.get(name) or ARNS[resources[name]["Type"]]


def statements(made: Made) -> Iterator[tuple[str, dict[str, Any], list[str], list[str]]]:
    """Role, statement, actions and ARNs of everything that is allowed."""
    resources = made.template["Resources"]
    for role, policies in page.roles(made.template):
        for policy in policies:
            for statement in policy["Statement"]:
                assert statement["Effect"] == "Allow"
                actions, places = (
                    value if isinstance(value, list) else [value]
                    for value in (statement["Action"], statement["Resource"])
                )
                yield role, statement, actions, [arn(place, resources) for place in places]


def of(made: Made, function: str) -> set[str]:
    return {
        action
        for role, _, actions, _ in statements(made)
        if role.startswith(f"Functions{function}Role")
        for action in actions
    }


def forms(action: str) -> list[dict[str, Any]]:
    """How AWS documents the action: one entry for each sort of resource, `*` where there is none."""
    service, _, name = action.partition(":")
    found = get_action_data(service, name)
    assert found, f"{action} does not exist"
    return list(found[service])


def fits(place: str, form: str) -> bool:
    """Whether an ARN, wildcards included, is of this sort. Accounts of AWS's own documents are empty."""
    pattern = re.escape(form).replace(r"\$\{Account\}", "[^:]*")
    pattern = re.sub(r"\\\$\\\{(Region|Partition)\\\}", "[^:]*", pattern)
    return re.fullmatch(re.sub(r"\\\$\\\{\w+\\\}", ".+", pattern), place) is not None


def check_known(statement: dict[str, Any], actions: Iterable[str], places: Iterable[str]) -> None:
    """AWS has each action, for such places, and with such conditions."""
    for action in actions:
        known = forms(action)
        for place in places:
            assert place == "*" or any(fits(place, form["resource_arn_format"]) for form in known), (
                f"{action} on {place}"
            )
        keys = {key.replace("${TagKey}", "") for form in known for key in form["condition_keys"]}
        for tests in statement.get("Condition", {}).values():
            for key in tests:
                documented = key in keys or any(k.endswith("/") and key.startswith(k) for k in keys)
                assert documented, f"{action} knows no {key}"


@pytest.mark.parametrize("which", ["stack", "everything"])
def test_every_action_exists_and_fits_its_resources_and_conditions(
    which: str, request: pytest.FixtureRequest
) -> None:
    for _, statement, actions, places in statements(request.getfixturevalue(which)):
        check_known(statement, actions, places)


@pytest.mark.parametrize("which", ["stack", "everything"])
def test_a_lone_star_stands_only_where_there_is_nothing_narrower(
    which: str, request: pytest.FixtureRequest
) -> None:
    for role, _, actions, places in statements(request.getfixturevalue(which)):
        if "*" in places:
            assert set(actions) <= NO_RESOURCE, role
        assert not any("*" in action for action in actions), role


def test_tasks_are_started_and_stopped_on_the_one_cluster_only(stack: Made) -> None:
    for role, statement, actions, _ in statements(stack):
        if set(actions) & {"ecs:StartTask", "ecs:StopTask", "ecs:ListTasks", "ecs:PutAttributes"}:
            condition = statement["Condition"]["ArnEquals"]["ecs:cluster"]
            assert arn(condition, {}).endswith(":cluster/gpu-cluster"), role


def test_roles_are_passed_on_to_ecs_alone_and_only_those_of_tasks(stack: Made, everything: Made) -> None:
    for made, more in ((stack, 0), (everything, 1)):
        passing = [(s, p) for _, s, actions, p in statements(made) if actions == ["iam:PassRole"]]
        assert len(passing) == 4
        for statement, places in passing:
            assert statement["Condition"] == {
                "StringEquals": {"iam:PassedToService": "ecs-tasks.amazonaws.com"}
            }
            assert len(places) == 2 + more
            assert not any("*" in place for place in places)


def test_instances_are_terminated_only_where_that_rung_is_and_in_tagged_groups_only(
    stack: Made, everything: Made
) -> None:
    action = "autoscaling:TerminateInstanceInAutoScalingGroup"
    assert not [actions for _, _, actions, _ in statements(stack) if action in actions]
    allowed = [(s, p) for _, s, actions, p in statements(everything) if actions == [action]]
    assert len(allowed) == 4
    for statement, places in allowed:
        assert statement["Condition"] == {"StringEquals": {"autoscaling:ResourceTag/Fleet": "training"}}
        assert [place.rpartition(":")[2] for place in places] == ["autoScalingGroupName/*"]


def test_commands_are_sent_with_the_stacks_own_document_and_to_tagged_nodes_only(
    stack: Made, everything: Made
) -> None:
    """Whoever takes over a function can reboot the nodes of the cluster, and run nothing on any machine."""
    for made, name, tag, replaces in (
        (stack, "EcsGpuRecoveryStack", {"GpuRecovery": "gpu-cluster"}, 0),
        (everything, "SecondCluster", {"Fleet": "training"}, 4),
    ):
        sending = [(s, p) for _, s, actions, p in statements(made) if actions == ["ssm:SendCommand"]]
        assert len(sending) == 9 + replaces
        document = f"arn:aws:ssm:us-east-1:123456789012:document/{name}"
        named = Counter(place for s, places in sending if "Condition" not in s for place in places)
        wanted = {"RebootNode": 4, "LookAtHang": 1, "LastLook": replaces}
        assert named == Counter({f"{document}-{what}": count for what, count in wanted.items() if count})
        resources = made.template["Resources"].values()
        documents = {one["Properties"]["Name"] for one in resources if one["Type"] == "AWS::SSM::Document"}
        assert documents == {place.rpartition("/")[2] for place in named}
        for statement, places in sending:
            if "Condition" not in statement:
                continue
            ((key, value),) = tag.items()
            assert statement["Condition"] == {"StringEquals": {f"ssm:resourceTag/{key}": value}}
            assert all(place.endswith((":instance/*", ":managed-instance/*")) for place in places)


def test_no_function_can_delete_scan_or_rewrite_a_record(stack: Made) -> None:
    for function in permissions.FUNCTIONS:
        assert not of(stack, function) & {"dynamodb:DeleteItem", "dynamodb:Scan", "dynamodb:PutItem"}


def looked_up(made: Made, function: str) -> set[str]:
    """The indexes that a function may query, and whatever else it might."""
    return {
        place.partition(":table/")[2]
        for role, _, actions, places in statements(made)
        if role.startswith(f"Functions{function}Role") and "dynamodb:Query" in actions
        for place in places
    }


#: What Lambda does with a queue in the name of the function behind it.
TAKING = {"sqs:ReceiveMessage", "sqs:DeleteMessage"}


def test_functions_differ_in_what_they_look_up(stack: Made) -> None:
    offers = {"name/index/by_status", "name/index/by_cluster"}
    assert looked_up(stack, "EcsTaskHandler") == looked_up(stack, "DcgmTaskMonitor") == offers
    assert looked_up(stack, "EcsInstanceMonitor") == offers | {"name/index/by_instance"}
    assert looked_up(stack, "RecoverySweeper") == offers | {
        "name/index/by_instance",
        "name/index/due",
        "name/index/live",
    }
    assert all("ecs:DescribeTasks" in of(stack, f) for f in permissions.FUNCTIONS), "each may stop by token"
    assert "ssm:ListCommandInvocations" not in of(stack, "DcgmTaskMonitor")
    sweeper = of(stack, "RecoverySweeper")
    assert [f for f in permissions.FUNCTIONS if "dynamodb:ConditionCheckItem" in of(stack, f)] == [
        "RecoverySweeper"
    ]
    assert sweeper >= of(stack, "DcgmTaskMonitor") - TAKING


SERVICES = {
    "ec2": "ec2",
    "client": "dynamodb",
    "ecs": "ecs",
    "logs": "logs",
    "ssm": "ssm",
    "sns": "sns",
    "eventbridge": "events",
}
Wanted = tuple[str, str | None]  # a module, and one name of it or all


def source(module: str) -> Path:
    return ROOT / (module.replace(".", "/") + ".py")


def closure(tree: ast.Module, name: str | None) -> list[ast.AST]:
    """What a name at the top of a module consists of: its own statement, and those of the names it uses."""
    if name is None:
        return list(tree.body)
    defined: dict[str, ast.AST] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        for target in targets:
            defined[getattr(target, "id", None) or getattr(target, "name", "")] = node
    reached: dict[str, ast.AST] = {}
    left = [name]
    while left:
        one = left.pop()
        if one in defined and one not in reached:
            reached[one] = defined[one]
            left += [node.id for node in ast.walk(defined[one]) if isinstance(node, ast.Name)]
    return list(reached.values())


def imports(module: str, tree: ast.Module) -> dict[str, Wanted]:
    """What each imported name of ours stands for."""
    found: dict[str, Wanted] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*package, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                found[alias.asname or alias.name] = (
                    (whole, None) if source(whole).exists() else (base, alias.name)
                )
    return {name: wanted for name, wanted in found.items() if source(wanted[0]).exists()}


def look(wanted: Wanted) -> tuple[set[str], set[Wanted]]:
    """The AWS calls of a module or of one name in it, as actions, and what of ours they use."""
    module, name = wanted
    tree = ast.parse(source(module).read_text(encoding="utf-8"))
    known, made, used = imports(module, tree), set(), set()
    for statement in closure(tree, name):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name | ast.alias):
                used.add(known.get(node.id if isinstance(node, ast.Name) else node.asname or node.name))
            elif isinstance(node, ast.Attribute):  # called here, or given to `pages`, which calls it
                holder = ast.unparse(node.value).rpartition(".")[2].strip("_")
                if holder in SERVICES and node.attr != "meta":  # of the client itself: no call
                    words = node.attr.split("_")
                    made.add(f"{SERVICES[holder]}:{''.join(word.capitalize() for word in words)}")
    return made, {one for one in used if one is not None}


def test_the_functions_may_do_all_that_their_code_does_and_nothing_else(stack: Made) -> None:
    made: set[str] = set()
    seen: set[Wanted] = set()
    left: set[Wanted] = {(f"ecs_gpu_recovery.lambdas.{name}", None) for name in HANDLERS}
    while left:
        one = left.pop()
        seen.add(one)
        some, used = look(one)
        made |= some
        left |= used - seen
    assert "dynamodb:TransactWriteItems" in made  # IAM has no such action: it asks for the parts
    made |= {"dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:ConditionCheckItem"}
    made.remove("dynamodb:TransactWriteItems")
    platform = {"iam:PassRole", *USES_KEY}
    platform |= {"s3:PutObject"}  # a host does it, with an address that the function has signed
    platform |= {"sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage", *TAKING}
    allowed = {action for function in permissions.FUNCTIONS for action in of(stack, function)}
    assert allowed - platform == made - PEOPLES


def test_the_page_about_permissions_is_what_the_stack_says(stack: Made) -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(stack.template), (
        "run: python -m tools.permissions"
    )


def test_every_action_of_a_deployment_exists() -> None:
    for kind, actions in DEPLOYING.items():
        for action in actions:
            assert forms(action), f"{kind}: {action}"
