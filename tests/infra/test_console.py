"""The web console as a service: signed in or not at all, with no more rights than a person has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ecs_gpu_recovery.config import CONSOLE_NEEDS, Config, ConfigError
from ecs_gpu_recovery.infra import people
from tests.infra.stacks import Made, faults, synthesize
from tests.programs import python

ROOT = Path(__file__).resolve().parents[2]
IMAGE = ROOT / "docker" / "console" / "Dockerfile"
CONSOLE = {
    "CONSOLE_IMAGE": "example.com/team/console:3",
    "CONSOLE_VPC_ID": "vpc-0123456789abcdef0",
    "CONSOLE_SUBNET_IDS": "subnet-0123456789abcdef0,subnet-0123456789abcdef1",
    "CONSOLE_CERTIFICATE_ARN": "arn:aws:acm:us-east-1:123456789012:certificate/0123-abcd",
    "CONSOLE_OIDC_ISSUER": "https://idp.example",
    "CONSOLE_OIDC_AUTHORIZATION_URL": "https://idp.example/authorize",
    "CONSOLE_OIDC_TOKEN_URL": "https://idp.example/token",
    "CONSOLE_OIDC_USER_INFO_URL": "https://idp.example/userinfo",
    "CONSOLE_OIDC_CLIENT_ID": "console",
    "CONSOLE_OIDC_SECRET": "console/oidc",
    "CONSOLE_OPERATORS": "olga@example.com,1234",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """With a console, checked against the AWS Solutions rules while it is made."""
    return synthesize(tmp_path_factory.mktemp("console"), {**CONSOLE, "CREATE_ECS_CLUSTER": "true"}, nag=True)


@pytest.fixture(scope="module")
def looking(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A console on which nobody may act, open to the internet."""
    env = {**CONSOLE, "CONSOLE_OPERATORS": "", "CONSOLE_INTERNET_FACING": "true"}
    return synthesize(
        tmp_path_factory.mktemp("looking"), {**env, "CONSOLE_ALLOWED_CIDRS": "0.0.0.0/0"}, nag=True
    )


def _task(made: Made) -> dict[str, Any]:
    (found,) = [d for d in made.properties("AWS::ECS::TaskDefinition") if d["Family"].endswith("-console")]
    return found


def test_nobody_has_a_console_who_did_not_ask_for_one(stack: Made) -> None:
    assert stack.all("AWS::ElasticLoadBalancingV2::LoadBalancer") == {}
    assert stack.all("AWS::ECS::Service") == {}


def test_the_one_way_in_is_signed_in_and_over_tls(made: Made) -> None:
    (listener,) = made.properties("AWS::ElasticLoadBalancingV2::Listener")
    assert (listener["Protocol"], listener["Port"]) == ("HTTPS", 443)
    assert "TLS13" in listener["SslPolicy"]
    first, second = sorted(listener["DefaultActions"], key=lambda action: action["Order"])
    assert (first["Type"], second["Type"]) == ("authenticate-oidc", "forward")
    provider = first["AuthenticateOidcConfig"]
    assert provider["OnUnauthenticatedRequest"] == "authenticate"
    assert provider["ClientSecret"] == "{{resolve:secretsmanager:console/oidc:SecretString}}"
    assert made.all("AWS::ElasticLoadBalancingV2::ListenerRule") == {}


def test_people_reach_the_balancer_and_only_the_balancer_reaches_the_task(made: Made) -> None:
    groups = made.all("AWS::EC2::SecurityGroup")
    door = next(name for name in groups if "Door" in name)
    inside = next(name for name in groups if "Inside" in name)
    assert {rule["FromPort"] for rule in groups[door]["Properties"]["SecurityGroupIngress"]} == {443}
    assert "SecurityGroupIngress" not in groups[inside]["Properties"]
    (way,) = made.properties("AWS::EC2::SecurityGroupIngress")
    assert (made.name(way["GroupId"]), made.name(way["SourceSecurityGroupId"])) == (inside, door)
    (service,) = made.properties("AWS::ECS::Service")
    network = service["NetworkConfiguration"]["AwsvpcConfiguration"]
    assert network["AssignPublicIp"] == "DISABLED"
    assert [made.name(group) for group in network["SecurityGroups"]] == [inside]
    (balancer,) = made.properties("AWS::ElasticLoadBalancingV2::LoadBalancer")
    assert balancer["Scheme"] == "internal"
    attributes = {a["Key"]: a["Value"] for a in balancer["LoadBalancerAttributes"]}
    assert attributes["routing.http.drop_invalid_header_fields.enabled"] == "true"


def test_the_console_checks_who_the_balancer_is(made: Made) -> None:
    (container,) = _task(made)["ContainerDefinitions"]
    command = container["Command"]
    (balancer,) = made.all("AWS::ElasticLoadBalancingV2::LoadBalancer")
    assert command[command.index("--proxy-signer") + 1] == {"Ref": balancer}
    assert command[command.index("--operators") + 1] == CONSOLE["CONSOLE_OPERATORS"]
    assert "--audit-log" in command
    assert "--proxy" in command, "the audit has the address of the person, not of the balancer"


def test_the_command_is_one_that_the_console_knows(made: Made) -> None:
    (container,) = _task(made)["ContainerDefinitions"]
    words = [word if isinstance(word, str) else "arn" for word in container["Command"]]
    told = python("-m", "ecs_gpu_recovery.main", *words[1:], "--help")
    assert told.returncode == 0, told.stderr


def test_the_task_has_no_root_and_writes_only_its_own_folder(made: Made) -> None:
    definition = _task(made)
    assert definition["RequiresCompatibilities"] == ["FARGATE"]
    (container,) = definition["ContainerDefinitions"]
    assert container["User"] == "10001:10001"
    assert container["ReadonlyRootFilesystem"] is True
    assert container["LinuxParameters"]["Capabilities"] == {"Drop": ["ALL"]}
    assert [mount["ContainerPath"] for mount in container["MountPoints"]] == ["/data"]
    assert "/health" in container["HealthCheck"]["Command"][-1]
    assert "Secrets" not in container
    log = made.template["Resources"][container["LogConfiguration"]["Options"]["awslogs-group"]["Ref"]]
    assert log["Properties"]["RetentionInDays"] == 90


def test_the_task_is_told_what_the_functions_are_told(made: Made) -> None:
    (container,) = _task(made)["ContainerDefinitions"]
    told = {pair["Name"]: pair["Value"] for pair in container["Environment"]}
    function = made.functions()["EcsTaskHandler"]["Environment"]["Variables"]
    policy = {"JOB_TABLE_NAME", "NODE_TABLE_NAME", "ECS_CLUSTER_NAME", "SNS_TOPIC_ARN", "DISPATCH_LEASE_S"}
    policy |= {"DEAD_LETTER_QUEUE_URL"}
    assert {name: told[name] for name in policy} == {name: function[name] for name in policy}


def _statements(made: Made) -> list[dict[str, Any]]:
    role = made.template["Resources"][_task(made)["TaskRoleArn"]["Fn::GetAtt"][0]]["Properties"]
    return [one for policy in role["Policies"] for one in policy["PolicyDocument"]["Statement"]]


def _actions(made: Made) -> set[str]:
    given = [statement["Action"] for statement in _statements(made)]
    return {action for some in given for action in ([some] if isinstance(some, str) else some)}


def test_it_may_do_what_an_operator_may_and_send_dead_letters_again(made: Made) -> None:
    assert _actions(made) == people.actions(people.OPERATOR) | {"lambda:InvokeFunction"}


def test_it_may_touch_no_queue_but_that_of_dead_letters(made: Made) -> None:
    places = [one["Resource"] for one in _statements(made) if "sqs:" in str(one["Action"])]
    assert places
    assert all(place == {"Fn::GetAtt": [made.dead_letters(), "Arn"]} for place in places)


@pytest.mark.slow
def test_without_operators_it_may_only_look(looking: Made) -> None:
    actions = _actions(looking)
    assert actions == people.actions(people.SHOWING) | {"dynamodb:BatchGetItem"}
    looking_at_letters = {"sqs:ChangeMessageVisibility", "sqs:ReceiveMessage"}
    verbs = {action.partition(":")[2] for action in actions - looking_at_letters}
    assert all(verb.startswith(("BatchGet", "Describe", "Get", "List", "Query")) for verb in verbs)
    (container,) = _task(looking)["ContainerDefinitions"]
    assert "--operators" not in container["Command"]
    (balancer,) = looking.properties("AWS::ElasticLoadBalancingV2::LoadBalancer")
    assert balancer["Scheme"] == "internet-facing"


def test_the_service_waits_for_the_way_in(made: Made) -> None:
    (service,) = made.all("AWS::ECS::Service").values()
    waits = service["DependsOn"]
    (listener,) = made.all("AWS::ElasticLoadBalancingV2::Listener")
    assert listener in waits
    assert set(made.all("AWS::ECS::Cluster")) <= set(waits)
    assert service["Properties"]["LaunchType"] == "FARGATE"
    assert "ConsoleAddress" in made.template["Outputs"]


@pytest.mark.slow
@pytest.mark.parametrize("made_with", ["made", "looking"])
def test_the_linter_of_templates_has_nothing_to_say(request: pytest.FixtureRequest, made_with: str) -> None:
    assert faults(request.getfixturevalue(made_with).path) == ""


@pytest.mark.parametrize("missing", CONSOLE_NEEDS)
def test_a_console_that_would_be_open_or_unreachable_is_not_made(missing: str) -> None:
    with pytest.raises(ConfigError, match=f"CONSOLE_IMAGE needs {missing}"):
        Config.from_env({**CONSOLE, missing: ""})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CONSOLE_SUBNET_IDS", "subnet-0123456789abcdef0"),
        ("CONSOLE_OIDC_ISSUER", "http://idp.example"),
        ("CONSOLE_OIDC_TOKEN_URL", "https://idp.example/x y"),
        ("CONSOLE_CERTIFICATE_ARN", "mine"),
        ("CONSOLE_ALLOWED_CIDRS", "everyone"),
        ("CONSOLE_OIDC_SECRET", "a}}b"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Config.from_env({**CONSOLE, name: value})


def test_the_template_holds_no_secret(made: Made) -> None:
    text = json.dumps(made.template)
    assert len(re.findall(r"resolve:secretsmanager", text)) == 1


# -- the image --------------------------------------------------------------------------------------------


def test_the_image_is_nobody_s_root_and_stands_on_that_of_the_checks() -> None:
    text = IMAGE.read_text()
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    first = (ROOT / "docker" / "Dockerfile").read_text()
    assert re.findall(r"^FROM .*", first, re.MULTILINE) == re.findall(r"^FROM .*", text, re.MULTILINE)


def test_the_image_holds_what_the_console_imports() -> None:
    wanted = re.findall(r"-r (\S+)", IMAGE.read_text())
    locked = "".join((ROOT / path).read_text() for path in wanted)
    for name in ("fastapi", "jinja2", "uvicorn", "typer", "boto3"):
        assert re.search(rf"^{name}==", locked, re.MULTILINE), name
    ignored = (IMAGE.parent / "Dockerfile.dockerignore").read_text().split()
    copied = re.findall(r"^COPY (.+) \S+$", IMAGE.read_text(), re.MULTILINE)
    for source in " ".join(copied).split():
        assert f"!{source}" in ignored, source
        assert (ROOT / source).exists()
