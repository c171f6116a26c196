"""Numbers of the nodes themselves, in CloudWatch: the agent on every node, and a page that finds them all.

EC2 nodes get the agent from a daemon service. ECS Anywhere has none: there `aws.metric_agents` starts it.
"""

from __future__ import annotations

import json

from aws_cdk import Aws, Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from aws_cdk import aws_ssm as ssm
from constructs import Construct, IDependable

from ..config import Config
from ..metrics import cloudwatch_agent as agent
from .containers import ecs_tasks, execution_role, host_volume, lossy_logging, mount, variables
from .daemons import daemon_service
from .logs import log_group
from .naming import Name, accept, accept_wildcard

_Definition = ecs.CfnTaskDefinition
_WIDTH, _ACROSS = 8, 3


class NodeMetrics(Construct):
    """`family` is what `ensure_agents` starts; `roles` are those that its caller must pass on.

    `agent_image` must be there before the stack is made, or the service never becomes stable: build it from
    docker/metrics-agent.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: Config,
        agent_image: str,
        after: IDependable | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        stack = Stack.of(self).stack_name
        self.family = f"{stack}-metrics-agent"
        self._log = log_group(self, "Log", f"/ecs/{stack}/metrics-agent", config)
        told = json.dumps(agent.configuration(config.ECS_CLUSTER_NAME, Aws.REGION), separators=(",", ":"))
        self.parameter = ssm.StringParameter(
            self,
            "Configuration",
            parameter_name=f"/{stack}/metrics-agent",
            string_value=told,
            description="What the CloudWatch agent measures on the GPU nodes",
        )
        task = self._task_role()
        execution = execution_role(
            self,
            "What ECS does to start the metrics agent",
            images=Name("ecr", "repository/*", "The image is named by the deployment, in any repository."),
            log=self._log,
            more=[
                iam.PolicyStatement(actions=["ssm:GetParameters"], resources=[self.parameter.parameter_arn])
            ],
        )
        self.roles = [task.role_arn, execution.role_arn]
        self.definition = self._definition(agent_image, task, execution)
        daemon_service(self, config=config, definition=self.definition, after=after)
        self._dashboard(config, f"{stack}-nodes")

    def _definition(self, image: str, task: iam.Role, execution: iam.Role) -> ecs.CfnTaskDefinition:
        """It reserves no GPU: the container runtime shows it all of them, to look at only."""
        made = _Definition(
            self,
            "Agent",
            family=self.family,
            requires_compatibilities=["EC2", "EXTERNAL"],
            network_mode="host",
            task_role_arn=task.role_arn,
            execution_role_arn=execution.role_arn,
            volumes=[
                host_volume(inside.rpartition("/")[2], outside) for inside, outside in agent.DISKS.items()
            ],
            container_definitions=[
                _Definition.ContainerDefinitionProperty(
                    name="metrics-agent",
                    image=image,
                    essential=True,
                    cpu=64,
                    memory_reservation=128,
                    memory=512,
                    environment=variables(_ENVIRONMENT),
                    secrets=[
                        _Definition.SecretProperty(
                            name="CW_CONFIG_CONTENT", value_from=self.parameter.parameter_arn
                        )
                    ],
                    mount_points=[
                        mount(inside.rpartition("/")[2], inside, read_only=True) for inside in agent.DISKS
                    ],
                    log_configuration=lossy_logging(self._log, "agent"),
                )
            ],
        )
        accept(
            made, "ECS2", "Three switches of the agent, none of them secret; the rest is in the parameter."
        )
        return made

    def _task_role(self) -> iam.Role:
        """It may write metrics into one namespace and do nothing else."""
        write = iam.PolicyStatement(
            actions=["cloudwatch:PutMetricData"],
            resources=["*"],
            conditions={"StringEquals": {"cloudwatch:namespace": agent.NAMESPACE}},
        )
        role = iam.Role(
            self,
            "TaskRole",
            assumed_by=ecs_tasks(),
            description="What the metrics agent may do",
            inline_policies={"Write": iam.PolicyDocument(statements=[write])},
        )
        accept_wildcard(role, "*", "cloudwatch:PutMetricData takes no resource; the namespace is the limit.")
        return role

    def _dashboard(self, config: Config, name: str) -> None:
        """Searches instead of metrics: a node that comes tomorrow is on the page tomorrow."""
        page = cloudwatch.Dashboard(self, "Nodes", dashboard_name=name, default_interval=Duration.hours(3))
        title = f"# Nodes of cluster {config.ECS_CLUSTER_NAME}"
        page.add_widgets(cloudwatch.TextWidget(markdown=title, width=24, height=1))
        widgets = [
            cloudwatch.GraphWidget(
                title=graph.title,
                left=[
                    cloudwatch.MathExpression(
                        expression=agent.search(graph, config.ECS_CLUSTER_NAME),
                        using_metrics={},
                        label="",
                        period=Duration.seconds(agent.INTERVAL_S),
                    )
                ],
                width=_WIDTH,
                height=6,
            )
            for graph in agent.GRAPHS
        ]
        for begin in range(0, len(widgets), _ACROSS):
            page.add_widgets(*widgets[begin : begin + _ACROSS])


#: Only where the agent believes to be in AWS does it take its credentials from the task's role.
_ENVIRONMENT = {
    "RUN_IN_AWS": "True",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "utility",
}
