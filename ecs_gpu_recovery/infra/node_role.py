"""What a node may do in AWS: what its two agents need, on its own cluster, and not what AWS's managed policies add.

Those let a node act for every cluster of the account, read every parameter of the account and write every log. So could
a program on the node that reaches the instance's role.
"""

from __future__ import annotations

from collections.abc import Iterator

from aws_cdk import aws_iam as iam
from constructs import Construct

from ..config import Config
from . import places
from .naming import Name, accept_wildcard

_STAR = "The agents of ECS and SSM: these actions know no resource; ecr:GetAuthorizationToken neither."
#: Actions of the two agents that know no resource.
AGENTS = (
    "ecs:DiscoverPollEndpoint",
    "ssm:ListAssociations",
    *(f"ssmmessages:{verb}{kind}Channel" for verb in ("Create", "Open") for kind in ("Control", "Data")),
    *(
        f"ec2messages:{action}"
        for action in (
            "AcknowledgeMessage",
            "DeleteMessage",
            "FailMessage",
            "GetEndpoint",
            "GetMessages",
            "SendReply",
        )
    ),
    "ecr:GetAuthorizationToken",
)
_PULL = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")


def node_role(
    scope: Construct, *, config: Config, principal: iam.ServicePrincipal, machines: Name
) -> iam.Role:
    """`machines`: what the nodes with this role are to SSM."""
    made = list(_statements(config, machines))
    statements = [
        iam.PolicyStatement(actions=list(actions), resources=[n.arn for n in on]) for actions, on in made
    ]
    statements.append(iam.PolicyStatement(actions=list(AGENTS), resources=["*"]))
    role = iam.Role(
        scope,
        "Role",
        assumed_by=principal,
        description=f"What a node of {config.ECS_CLUSTER_NAME} may do",
        inline_policies={"Node": iam.PolicyDocument(statements=statements, minimize=False)},
    )
    for place in [name for _, on in made for name in on if "*" in name.resource]:
        accept_wildcard(role, place.shown, place.why)
    accept_wildcard(role, "*", _STAR)
    return role


def _statements(config: Config, machines: Name) -> Iterator[tuple[tuple[str, ...], list[Name]]]:
    submits = ("SubmitAttachmentStateChanges", "SubmitContainerStateChange", "SubmitTaskStateChange")
    joins = ("DeregisterContainerInstance", "RegisterContainerInstance", *submits)
    yield tuple(f"ecs:{action}" for action in joins), places.cluster(config)
    why = "A node does not know its own id before it has joined; only those of this cluster are meant."
    instances = Name("ecs", f"container-instance/{config.ECS_CLUSTER_NAME}/*", why=why)
    yield ("ecs:Poll", "ecs:StartTelemetrySession", "ecs:UpdateContainerInstancesState"), [instances]
    yield ("ssm:ListInstanceAssociations", "ssm:UpdateInstanceInformation"), [machines]
    images = Name("ecr", "repository/*", why="Training images are in any repository of the account.")
    yield _PULL, [images]
    yield ("logs:CreateLogStream", "logs:PutLogEvents"), places.training_logs(config)
