"""What every node of the cluster runs beside its tasks.

ECS keeps a daemon service on each EC2 instance. It has none for ECS Anywhere: there the sweeper starts the same
task definition (`aws.metric_agents`).
"""

from __future__ import annotations

from aws_cdk import Aws, Stack
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from constructs import Construct, IDependable

from ..aws.parse import PULSE_TYPE, WATCH_SOURCE, WATCH_TYPE
from ..config import Config
from . import places
from .containers import ecs_tasks, host_volume, lossy_logging, mount, variables
from .dashboard import node_dashboard
from .naming import Name, accept
from .task_definitions import SHARED, Image, TaskDefinitions

_Definition = ecs.CfnTaskDefinition
#: How full a file system is, any folder on it tells: where the container sees one, and which of the host it is. Of the
#: host's own disk that is an empty one, so that nothing else there can be read.
_DISKS = {"root": ("/host/root", "/var/lib/gpu-recovery/disk"), "fsx": ("/host/fsx", SHARED)}
#: Where the watch remembers, on the node, what it has told: its container may be replaced at any time. A folder of its
#: own: the markers of reboots lie beside it.
_MEMORY = "/var/lib/gpu-recovery/watch"
#: Where the watch sees the folder in which ranks write.
_PROGRESS = "/host/progress"
_COMMAND = "gpu-health watch --ecs --metrics --pulse --disk /host/root --disk /host/fsx --eventbridge"


def watch_family(stack: str) -> str:
    """What the tasks of the stack's watch are called, by which a host finds its image."""
    return f"{stack}-watch"


def daemon_service(
    scope: Construct, *, config: Config, definition: ecs.CfnTaskDefinition, after: IDependable | None
) -> ecs.CfnService:
    """One on every EC2 instance. `after` is the cluster, where the stack makes one."""
    service = ecs.CfnService(
        scope,
        "Daemon",
        cluster=config.ECS_CLUSTER_NAME,
        task_definition=definition.ref,
        launch_type="EC2",
        scheduling_strategy="DAEMON",
        enable_ecs_managed_tags=True,
        propagate_tags="TASK_DEFINITION",
    )
    if after is not None:
        service.node.add_dependency(after)
    return service


class NodeWatch(Construct):
    """`gpu-health watch` on every node: a GPU fault is on the bus the moment the kernel log has it.

    It runs from the health check's image, reads the kernel log through one device and one capability, and may put two
    kinds of events on the stack's own bus: faults, and GPUs that stand still. Its log holds the node's numbers, of
    which CloudWatch makes metrics. It reserves no GPU: the container runtime shows it all of them, to look at only.
    `family` is what the sweeper starts on external nodes; `roles` are those that it must pass on for that.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: Config,
        image: Image,
        tasks: TaskDefinitions,
        after: IDependable | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        self.family = watch_family(Stack.of(self).stack_name)
        (bus,) = places.watch_bus(config)
        self._progress = config.PROGRESS_DIR
        task = self._task_role(bus)
        self.roles = [task.role_arn, tasks.execution.role_arn]
        self.definition = self._definition(image, tasks, task, bus)
        daemon_service(self, config=config, definition=self.definition, after=after)
        node_dashboard(self, config)

    def _task_role(self, bus: Name) -> iam.Role:
        """One source and its two kinds of events, on one bus."""
        tell = iam.PolicyStatement(
            actions=["events:PutEvents"],
            resources=[bus.arn],
            conditions={
                "StringEquals": {
                    "events:source": WATCH_SOURCE,
                    "events:detail-type": [WATCH_TYPE, PULSE_TYPE],
                }
            },
        )
        return iam.Role(
            self,
            "TaskRole",
            assumed_by=ecs_tasks(),
            description="What the watch on a node may do",
            inline_policies={"Tell": iam.PolicyDocument(statements=[tell])},
        )

    def _definition(
        self, image: Image, tasks: TaskDefinitions, role: iam.Role, bus: Name
    ) -> ecs.CfnTaskDefinition:
        seen = dict(_DISKS)
        command = [*_COMMAND.split(), bus.resource.rpartition("/")[2]]
        if self._progress:
            seen["progress"] = (_PROGRESS, self._progress)
            command += ["--progress", _PROGRESS]
        made = _Definition(
            self,
            "Watch",
            family=self.family,
            requires_compatibilities=["EC2", "EXTERNAL"],
            network_mode="host",  # the ECS agent answers on the host's own address only
            task_role_arn=role.role_arn,
            execution_role_arn=tasks.execution.role_arn,
            volumes=[
                host_volume("memory", _MEMORY),
                *(host_volume(name, outside) for name, (_, outside) in seen.items()),
            ],
            container_definitions=[
                _Definition.ContainerDefinitionProperty(
                    name="watch",
                    image=image.uri,
                    command=[*command, "--state", f"{_MEMORY}/told.json"],
                    essential=True,
                    cpu=32,
                    memory_reservation=96,
                    memory=256,
                    readonly_root_filesystem=True,
                    environment=variables(
                        {"AWS_DEFAULT_REGION": Aws.REGION, "NVIDIA_VISIBLE_DEVICES": "all"}
                    ),
                    linux_parameters=tasks.kernel_log(),
                    mount_points=[
                        mount("memory", _MEMORY),
                        *(mount(name, inside, read_only=True) for name, (inside, _) in seen.items()),
                    ],
                    log_configuration=lossy_logging(tasks.log, "watch"),
                )
            ],
        )
        accept(made, "ECS2", "The region and which GPUs it sees, which are no secrets.")
        return made
