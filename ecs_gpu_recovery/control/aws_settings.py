"""Which deployment a command acts on: told by variables, or asked of the deployment itself.

A person's command decides and records like the functions do, so it must do so with their policy and their tables. What
they were deployed with is in the environment of any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..aws.event_fields import family
from ..aws.explain import Rules
from ..config import Config
from ..core.errors import Refused
from ..core.policy import Policy
from ..core.setting import rows
from ..settings import LambdaSettings, lambda_settings, policy_from
from .aws_errors import NO_REGION, Where, explained

#: Nothing can stand in for these; where all are set, AWS is not asked.
NEEDED = tuple(row.name for row in rows(LambdaSettings) if row.needed)
#: The function whose environment is read; all four have the same.
ASKED = "EcsTaskHandler"
#: Where events end that no function could handle. It is asked for only to look at them.
QUEUE = "DEAD_LETTER_QUEUE_URL"


def session(env: Mapping[str, str]) -> Any:
    """boto3 by itself reads AWS_DEFAULT_REGION only; the AWS command and CloudShell set AWS_REGION."""
    import boto3

    with explained(Where()):
        made = boto3.session.Session(region_name=env.get("AWS_REGION") or None)
    if not made.region_name:
        raise Refused(NO_REGION)
    return made


def stack_name(env: Mapping[str, str]) -> str:
    return env.get("STACK_NAME", "").strip() or Config.STACK_NAME


def settings(env: Mapping[str, str], made: Any) -> LambdaSettings:
    """Variables of the person come before what the deployment says."""
    if all(env.get(name, "").strip() for name in NEEDED):
        return lambda_settings(env)
    mine = {
        row.name: env[name]
        for row in (*rows(LambdaSettings), *rows(Policy))
        for name in reversed((row.name, *row.older))
        if env.get(name, "").strip()
    }
    return lambda_settings({**deployed(made, stack_name(env)), **mine})


def rules_of(env: Mapping[str, str], backend: str) -> Rules:
    """What events are judged by: the deployment's own word, or what can be known without asking AWS."""
    here = [row.name for row in rows(Policy) if env.get(row.name, "").strip()]
    mine = f"variables of this shell ({', '.join(here)})" if here else ""
    if backend != "aws":
        built_in = "the built-in one; for a deployment's own: --backend aws"
        return Rules(policy=policy_from(env), source=mine or built_in)
    told = settings(env, session(env))
    stack = "" if all(env.get(name, "").strip() for name in NEEDED) else f"the stack {stack_name(env)}"
    source = ", ".join(filter(None, (mine, stack))) or "the built-in one, with the cluster named by variables"
    return Rules(
        cluster=told.ECS_CLUSTER_NAME,
        check_family=family(told.DCGM_HEALTH_CHECK_TASK),
        policy=told.policy,
        source=source,
    )


def dead_letter_queue(env: Mapping[str, str], made: Any) -> str:
    """The address of the queue: the person's variable, or what the deployment says."""
    stack = stack_name(env)
    url = env.get(QUEUE, "").strip() or deployed(made, stack).get(QUEUE, "").strip()
    if not url:
        raise Refused(
            f"the stack {stack} does not tell where its dead letters are: deploy it again, or set {QUEUE} to its"
            f" output DeadLetterQueueUrl (aws cloudformation describe-stacks --stack-name {stack})"
        )
    return url


def deployed(made: Any, stack: str) -> dict[str, str]:
    """The environment of a deployed function."""
    region = str(made.region_name)
    missing = (
        f"no stack {stack} was found in {region}: deploy it (docs/deployment.md), choose its region with"
        " AWS_REGION or its name with STACK_NAME."
        f" Or name the parts yourself: set {', '.join(NEEDED[:-1])} and {NEEDED[-1]}"
    )
    hints = {"ResourceNotFoundException": missing}
    with explained(Where(region=region, hints=hints)):
        found = made.client("lambda").get_function_configuration(FunctionName=f"{stack}-{ASKED}")
    variables = found.get("Environment", {}).get("Variables", {})
    return {str(name): str(value) for name, value in variables.items()}
