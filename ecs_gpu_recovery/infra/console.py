"""The web console as a service, for those who ask for it: one small task behind a load balancer that signs people in.

Only the balancer reaches the task, and it lets only people through who have signed in with your
provider. The console checks the balancer's signature on top of that. Without operators named, it may only look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aws_cdk import Aws, CfnOutput, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_elasticloadbalancingv2 as elb
from aws_cdk import aws_iam as iam
from constructs import Construct

from ..aws.tables import DUE, LIVE
from ..config import Config
from . import people
from .containers import ecs_tasks, execution_role, logging, mount, variables
from .functions import function_policy
from .logs import log_group
from .naming import Name, accept, accept_wildcard

PORT = 8080
#: Where the console keeps what is its own: on the task's own disk, and gone with the task.
DATA = "/data"
USER = "10001:10001"
_Definition = ecs.CfnTaskDefinition
_HEALTH = f"import urllib.request as u; u.urlopen('http://127.0.0.1:{PORT}/health', timeout=3)"


def extra_grants(config: Config) -> list[tuple[tuple[str, ...], list[Name]]]:
    """What the console asks for beside the commands: it reads many records at once, so that pages stay cheap."""
    tables = [Name("dynamodb", f"table/{config.JOB_TABLE_NAME}")]
    indexes = [
        Name("dynamodb", f"table/{config.JOB_TABLE_NAME}/index/{LIVE}"),
        Name("dynamodb", f"table/{config.JOB_TABLE_NAME}/index/{DUE}"),
        Name("dynamodb", f"table/{config.NODE_TABLE_NAME}/index/{DUE}"),
    ]
    return [(("dynamodb:BatchGetItem",), tables), (("dynamodb:Query",), indexes)]


class Console(Construct):
    """The balancer, the task and its rights."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: Config,
        environment: Mapping[str, str],
        made: people.Made,
        role_arns: Sequence[str],
        after: ecs.CfnCluster | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        self._config = config
        self._subnets = config.CONSOLE_SUBNET_IDS.split(",")
        door, inside = self._groups()
        balancer = self._balancer(door)
        target = self._target()
        listener = self._listener(balancer, target)
        role = self._role(made, role_arns)
        definition = self._task(balancer, role, environment)
        service = self._service(definition, target, inside)
        service.node.add_dependency(listener)
        if after is not None:
            service.node.add_dependency(after)
        address = CfnOutput(self, "Address", value=f"https://{balancer.attr_dns_name}")
        address.override_logical_id("ConsoleAddress")

    # -- the way in ------------------------------------------------------------------------------------------

    def _groups(self) -> tuple[ec2.CfnSecurityGroup, ec2.CfnSecurityGroup]:
        """People reach the balancer, the balancer reaches the task, and nothing else reaches either."""
        config = self._config
        out = ec2.CfnSecurityGroup.EgressProperty(
            ip_protocol="tcp",
            from_port=443,
            to_port=443,
            cidr_ip="0.0.0.0/0",
            description="AWS, and the provider",
        )
        door = ec2.CfnSecurityGroup(
            self,
            "Door",
            vpc_id=config.CONSOLE_VPC_ID,
            group_description="The load balancer of the console",
            security_group_egress=[out],
            security_group_ingress=[
                ec2.CfnSecurityGroup.IngressProperty(
                    ip_protocol="tcp", from_port=443, to_port=443, cidr_ip=cidr, description="people"
                )
                for cidr in config.CONSOLE_ALLOWED_CIDRS.split(",")
            ],
        )
        inside = ec2.CfnSecurityGroup(
            self,
            "Inside",
            vpc_id=config.CONSOLE_VPC_ID,
            group_description="The task of the console",
            security_group_egress=[out],
        )
        ports = {"ip_protocol": "tcp", "from_port": PORT, "to_port": PORT, "description": "the console"}
        ec2.CfnSecurityGroupIngress(
            self, "In", group_id=inside.attr_group_id, source_security_group_id=door.attr_group_id, **ports
        )
        ec2.CfnSecurityGroupEgress(
            self,
            "Out",
            group_id=door.attr_group_id,
            destination_security_group_id=inside.attr_group_id,
            **ports,
        )
        if "0.0.0.0/0" in config.CONSOLE_ALLOWED_CIDRS:
            accept(door, "EC23", "CONSOLE_ALLOWED_CIDRS says so; a visitor has to sign in first.")
        return door, inside

    def _balancer(self, door: ec2.CfnSecurityGroup) -> elb.CfnLoadBalancer:
        attributes = {
            "routing.http.drop_invalid_header_fields.enabled": "true",
            "routing.http.desync_mitigation_mode": "strictest",
            "idle_timeout.timeout_seconds": "120",
        }
        made = elb.CfnLoadBalancer(
            self,
            "Balancer",
            type="application",
            scheme="internet-facing" if self._config.CONSOLE_INTERNET_FACING else "internal",
            subnets=self._subnets,
            security_groups=[door.attr_group_id],
            load_balancer_attributes=[
                elb.CfnLoadBalancer.LoadBalancerAttributeProperty(key=key, value=value)
                for key, value in attributes.items()
            ],
        )
        accept(
            made, "ELB2", "The console writes down every action with its person; a bucket is yours to choose."
        )
        return made

    def _target(self) -> elb.CfnTargetGroup:
        return elb.CfnTargetGroup(
            self,
            "Target",
            target_type="ip",
            protocol="HTTP",
            port=PORT,
            vpc_id=self._config.CONSOLE_VPC_ID,
            health_check_path="/health",
            health_check_interval_seconds=15,
            target_group_attributes=[
                elb.CfnTargetGroup.TargetGroupAttributeProperty(
                    key="deregistration_delay.timeout_seconds", value="15"
                )
            ],
        )

    def _listener(self, balancer: elb.CfnLoadBalancer, target: elb.CfnTargetGroup) -> elb.CfnListener:
        """There is one way in: signed in, over TLS."""
        config = self._config
        provider = elb.CfnListener.AuthenticateOidcConfigProperty(
            issuer=config.CONSOLE_OIDC_ISSUER,
            authorization_endpoint=config.CONSOLE_OIDC_AUTHORIZATION_URL,
            token_endpoint=config.CONSOLE_OIDC_TOKEN_URL,
            user_info_endpoint=config.CONSOLE_OIDC_USER_INFO_URL,
            client_id=config.CONSOLE_OIDC_CLIENT_ID,
            # Resolved by CloudFormation when it deploys; the secret is in no template.
            client_secret=f"{{{{resolve:secretsmanager:{config.CONSOLE_OIDC_SECRET}:SecretString}}}}",
            scope="openid email",
            session_timeout="28800",
            on_unauthenticated_request="authenticate",
        )
        return elb.CfnListener(
            self,
            "Listener",
            load_balancer_arn=balancer.ref,
            port=443,
            protocol="HTTPS",
            ssl_policy="ELBSecurityPolicy-TLS13-1-2-2021-06",
            certificates=[
                elb.CfnListener.CertificateProperty(certificate_arn=config.CONSOLE_CERTIFICATE_ARN)
            ],
            default_actions=[
                elb.CfnListener.ActionProperty(
                    type="authenticate-oidc", order=1, authenticate_oidc_config=provider
                ),
                elb.CfnListener.ActionProperty(type="forward", order=2, target_group_arn=target.ref),
            ],
        )

    # -- the task --------------------------------------------------------------------------------------------

    def _role(self, made: people.Made, role_arns: Sequence[str]) -> iam.Role:
        """What it takes to show everything, and to act where a person may."""
        config = self._config
        who = people.ACTING if config.CONSOLE_OPERATORS else people.SHOWING
        where = {"account": Aws.ACCOUNT_ID, "region": Aws.REGION, "partition": Aws.PARTITION}
        allowed = people.document(who, config, role_arns=role_arns, made=made, **where)
        for actions, places in extra_grants(config):
            named = [place.arn for place in places]
            allowed["Statement"].append({"Effect": "Allow", "Action": list(actions), "Resource": named})
        role = iam.Role(
            self,
            "Role",
            assumed_by=ecs_tasks(),
            description="What the console shows, and does for those who may act",
            inline_policies={"Console": iam.PolicyDocument.from_json(allowed)},
        )
        for shown, why in people.wildcards(who, config, made):
            accept_wildcard(role, shown, why)
        return role

    def _task(
        self, balancer: elb.CfnLoadBalancer, role: iam.Role, environment: Mapping[str, str]
    ) -> ecs.CfnTaskDefinition:
        config = self._config
        name = Stack.of(self).stack_name
        log = log_group(self, "Log", f"/ecs/{name}/console", config)
        command = ["gpu-recovery", "console", "--backend", "aws", "--host", "0.0.0.0", "--port", str(PORT)]  # noqa: S104
        command += ["--data", DATA, "--audit-log", "--proxy-signer", balancer.ref]
        command += ["--proxy", "0.0.0.0/0"]  # the security group lets the balancer in, and no other address
        if config.CONSOLE_OPERATORS:
            command += ["--operators", config.CONSOLE_OPERATORS]
        told = {
            **environment,
            **function_policy(config),
            "AWS_REGION": Aws.REGION,
            "HOME": DATA,
            "TMPDIR": DATA,
        }
        images = Name("ecr", "repository/*", "CONSOLE_IMAGE may be in any repository of the account.")
        execution = execution_role(self, "What ECS does to start the console", images=images, log=log)
        made = _Definition(
            self,
            "Task",
            family=f"{name}-console",
            requires_compatibilities=["FARGATE"],
            network_mode="awsvpc",
            cpu="512",
            memory="1024",
            task_role_arn=role.role_arn,
            execution_role_arn=execution.role_arn,
            volumes=[_Definition.VolumeProperty(name="data")],
            container_definitions=[
                _Definition.ContainerDefinitionProperty(
                    name="console",
                    image=config.CONSOLE_IMAGE,
                    command=command,
                    essential=True,
                    user=USER,
                    readonly_root_filesystem=True,
                    environment=variables(told),
                    mount_points=[mount("data", DATA)],
                    port_mappings=[_Definition.PortMappingProperty(container_port=PORT, protocol="tcp")],
                    linux_parameters=_Definition.LinuxParametersProperty(
                        init_process_enabled=True,
                        capabilities=_Definition.KernelCapabilitiesProperty(drop=["ALL"]),
                    ),
                    health_check=_Definition.HealthCheckProperty(
                        command=["CMD", "python", "-c", _HEALTH], interval=15, retries=3, start_period=30
                    ),
                    log_configuration=logging(log, "console"),
                )
            ],
        )
        accept(made, "ECS2", "The variables are names of tables, a cluster and a topic, and no secret.")
        return made

    def _service(
        self, definition: ecs.CfnTaskDefinition, target: elb.CfnTargetGroup, inside: ec2.CfnSecurityGroup
    ) -> ecs.CfnService:
        """One task: what it remembers beside the records (open streams, submissions) is its own."""
        network = ecs.CfnService.AwsVpcConfigurationProperty(
            subnets=self._subnets,
            security_groups=[inside.attr_group_id],
            assign_public_ip="ENABLED" if self._config.CONSOLE_PUBLIC_IP else "DISABLED",
        )
        return ecs.CfnService(
            self,
            "Service",
            cluster=self._config.ECS_CLUSTER_NAME,
            service_name=f"{Stack.of(self).stack_name}-console",
            task_definition=definition.ref,
            launch_type="FARGATE",
            desired_count=1,
            health_check_grace_period_seconds=60,
            network_configuration=ecs.CfnService.NetworkConfigurationProperty(awsvpc_configuration=network),
            load_balancers=[
                ecs.CfnService.LoadBalancerProperty(
                    container_name="console", container_port=PORT, target_group_arn=target.ref
                )
            ],
            deployment_configuration=ecs.CfnService.DeploymentConfigurationProperty(
                minimum_healthy_percent=0,
                maximum_percent=100,
                deployment_circuit_breaker=ecs.CfnService.DeploymentCircuitBreakerProperty(
                    enable=True, rollback=True
                ),
            ),
            enable_ecs_managed_tags=True,
            propagate_tags="SERVICE",
        )
