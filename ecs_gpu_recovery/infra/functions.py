"""The four functions: one asset, four handlers, each with a role and a log of its own."""

from __future__ import annotations

from pathlib import Path

from aws_cdk import Duration, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_lambda_destinations as destinations
from aws_cdk import aws_logs as logs
from constructs import Construct

from ..config import Config
from . import permissions
from .logs import log_group
from .naming import accept, accept_wildcard
from .permissions import Permissions
from .queues import Queues

#: Each function with its handler and what it is for.
HANDLERS = {
    permissions.TASK_HANDLER: ("ecs_task_handler", "A training task started or ended"),
    permissions.CHECK_MONITOR: ("dcgm_task_monitor", "A health check answered"),
    permissions.INSTANCE_MONITOR: ("ecs_instance_monitor", "A node went, came back or was rebooted"),
    permissions.SWEEPER: ("recovery_sweeper", "Every minute: deadlines, unsent orders, missed events"),
}
ARCHITECTURES = {"arm64": lambda_.Architecture.ARM_64, "x86_64": lambda_.Architecture.X86_64}
#: After the platform has ended a function, its orders may be taken over by the sweeper.
_LEASE_MARGIN_S = 30


class Functions(Construct):
    """`by_name` holds them under the names that others look for."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: Config,
        asset: Path,
        arch: str,
        environment: dict[str, str],
        allowed: Permissions,
        queues: Queues,
    ) -> None:
        super().__init__(scope, construct_id)
        self._config, self._arch, self._allowed = config, ARCHITECTURES[arch], allowed
        self._environment = {**environment, **function_policy(config), "LOG_LEVEL": config.LOG_LEVEL}
        self._queues = queues
        code = lambda_.Code.from_asset(str(asset))
        self.by_name = {name: self._function(name, code) for name in HANDLERS}
        queues.lead_to(self.by_name)

    def _function(self, name: str, code: lambda_.Code) -> lambda_.Function:
        handler, description = HANDLERS[name]
        full_name = f"{Stack.of(self).stack_name}-{name}"
        log = log_group(self, f"{name}Log", f"/aws/lambda/{full_name}", self._config)
        function = lambda_.Function(
            self,
            name,
            function_name=full_name,
            description=description,
            runtime=lambda_.Runtime.PYTHON_3_13,
            architecture=self._arch,
            handler=f"ecs_gpu_recovery.lambdas.{handler}.lambda_handler",
            code=code,
            timeout=Duration.seconds(self._config.LAMBDA_TIMEOUT_SECONDS),
            memory_size=self._config.LAMBDA_MEMORY_SIZE,
            environment=self._environment,
            log_group=log,
            reserved_concurrent_executions=self._reserved(name),
            role=self._role(name, log),
        )
        function.configure_async_invoke(
            retry_attempts=2,
            max_event_age=Duration.hours(1),
            on_failure=destinations.SqsDestination(self._queues.dead_letters),
        )
        accept(
            function,
            "L1",
            "Python 3.13 is what the project is tested on; the asset's byte code is made for it.",
        )
        return function

    def _reserved(self, name: str) -> int | None:
        """However busy the account is, there is room for the sweeper. The others are few by their queues."""
        return (self._config.SWEEPER_CONCURRENCY or None) if name == permissions.SWEEPER else None

    def _role(self, name: str, log: logs.ILogGroup) -> iam.Role:
        """Its own log group by name, instead of the managed policy that opens all of them."""
        write = iam.PolicyStatement(
            actions=["logs:CreateLogStream", "logs:PutLogEvents"], resources=[log.log_group_arn]
        )
        statements = [*self._allowed.of(name), *self._queues.reading(name), write]
        role = iam.Role(
            self,
            f"{name}Role",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            description=f"What {name} may do",
            inline_policies={"Recovery": iam.PolicyDocument(statements=statements, minimize=False)},
        )
        for resource, why in self._allowed.wildcards():
            accept_wildcard(role, resource, why)
        return role


def function_policy(config: Config) -> dict[str, str]:
    """The policy's numbers as the functions read them.

    An order belongs to the function that committed it until that function is surely over; a function that may
    run longer needs a longer lease, or the sweeper would send the order beside it.
    """
    surely_over = config.LAMBDA_TIMEOUT_SECONDS + _LEASE_MARGIN_S
    lease = max(config.policy.lease.total_seconds(), surely_over)
    return {**config.policy_texts, "DISPATCH_LEASE_S": f"{lease:g}"}
