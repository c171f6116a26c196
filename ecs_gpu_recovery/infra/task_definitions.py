"""Task definitions for EC2 and external instances alike: the health check, and an example of a training task.

Both use the host's network, the one mode that every kind of instance has and that collectives are fastest on.
"""

from __future__ import annotations

from typing import Any

from aws_cdk import CfnDeletionPolicy, RemovalPolicy, Stack
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from constructs import Construct

from ..config import Config
from .containers import ecs_tasks, execution_role, host_volume, lossy_logging, mount
from .logs import log_group
from .naming import Name

_Definition = ecs.CfnTaskDefinition
#: Where shared storage is on the nodes, and in the tasks.
SHARED = "/fsx"


class Image(Construct):
    """A repository for the image built from docker/Dockerfile, unless another image was named."""

    def __init__(self, scope: Construct, construct_id: str, *, config: Config) -> None:
        super().__init__(scope, construct_id)
        self.repository: ecr.Repository | None = None
        self.uri = config.IMAGE
        self.pulled_from = Name(
            "ecr", "repository/*", why="IMAGE names an image; its repository may be any of the account's."
        )
        if not config.IMAGE:
            self.repository = ecr.Repository(
                self,
                "Repository",
                repository_name=config.REPOSITORY_NAME,
                image_scan_on_push=True,
                empty_on_delete=True,
                removal_policy=RemovalPolicy.DESTROY,
                lifecycle_rules=[ecr.LifecycleRule(max_image_count=10)],
            )
            self.uri = self.repository.repository_uri_for_tag(config.IMAGE_TAG)
            self.pulled_from = Name("ecr", f"repository/{config.REPOSITORY_NAME}")


class TaskDefinitions(Construct):
    """`check` is what the functions start; `roles` are those that they may pass on for it.

    What else runs from the same image, the watch, borrows `execution`, `kernel_log` and `log`.
    """

    def __init__(self, scope: Construct, construct_id: str, *, config: Config, image: Image) -> None:
        super().__init__(scope, construct_id)
        self._config, self._image = config, image
        self.log = log_group(self, "Log", f"/ecs/{Stack.of(self).stack_name}", config)
        self.execution = execution_role(
            self, "What the agent does to start a task", images=image.pulled_from, log=self.log
        )
        self.training_role = iam.Role(
            self,
            "TrainingRole",
            assumed_by=ecs_tasks(),
            description="What training code may do; grant it what yours needs",
        )
        self.roles = [self.execution.role_arn, self.training_role.role_arn]
        self.check = config.DCGM_HEALTH_CHECK_TASK.rpartition("/")[2]  # one of this account and region
        if config.makes_check_task:
            self.check = self._health_check().ref
        self.training = self._training().ref if config.CREATE_TRAINING_TASK else ""

    def _health_check(self) -> ecs.CfnTaskDefinition:
        """It reads the kernel log through one device and one capability, and needs no privilege beyond that.

        The host's DCGM engine is used where it has one: its socket's folder is mounted. So is the shared storage, to
        read how far a training has come.
        """
        engine = "/run/nvidia-dcgm"
        return self._definition(
            "HealthCheck",
            family=self._config.check_family,
            name="gpu-health",
            command=["gpu-health-task"],
            memory_mib=1024,
            volumes={"dcgm": engine, "shared": SHARED},
            linux_parameters=self.kernel_log(),
            mount_points=[mount("dcgm", engine), mount("shared", SHARED, read_only=True)],
        )

    def _training(self) -> ecs.CfnTaskDefinition:
        """The sample trainer, with what real ones need: shared and locked memory, storage, time to stop.

        A job is started again from the revision that it was submitted with, weeks later, so a deployment that makes a
        new revision leaves the old one in use: ECS starts nothing from one that was retired.
        """
        made = self._definition(
            "Training",
            family=self._config.TRAINING_TASK,
            name="train",
            command=[
                "python",
                "-m",
                "ecs_gpu_recovery.examples.train",
                "--steps",
                "600",
                "--step-seconds",
                "1",
            ],
            memory_mib=2048,
            volumes={"shared": SHARED},
            task_role_arn=self.training_role.role_arn,
            stop_timeout=120,
            linux_parameters=_Definition.LinuxParametersProperty(
                init_process_enabled=True, shared_memory_size=8192
            ),
            mount_points=[mount("shared", SHARED)],
            ulimits=[
                _Definition.UlimitProperty(name="memlock", soft_limit=-1, hard_limit=-1),
                _Definition.UlimitProperty(name="stack", soft_limit=67108864, hard_limit=67108864),
            ],
        )
        made.cfn_options.deletion_policy = CfnDeletionPolicy.DELETE
        made.cfn_options.update_replace_policy = CfnDeletionPolicy.RETAIN
        return made

    def _definition(
        self,
        construct_id: str,
        *,
        family: str,
        name: str,
        command: list[str],
        memory_mib: int,
        volumes: dict[str, str],
        task_role_arn: str | None = None,
        **container: Any,
    ) -> ecs.CfnTaskDefinition:
        return _Definition(
            self,
            construct_id,
            family=family,
            requires_compatibilities=["EC2", "EXTERNAL"],
            network_mode="host",
            execution_role_arn=self.execution.role_arn,
            task_role_arn=task_role_arn,
            volumes=[host_volume(volume, path) for volume, path in volumes.items()],
            container_definitions=[
                _Definition.ContainerDefinitionProperty(
                    name=name,
                    image=self._image.uri,
                    command=command,
                    essential=True,
                    memory_reservation=memory_mib,
                    resource_requirements=[
                        _Definition.ResourceRequirementProperty(
                            type="GPU", value=str(self._config.GPUS_PER_NODE)
                        )
                    ],
                    log_configuration=lossy_logging(self.log, name),
                    **container,
                )
            ],
        )

    @staticmethod
    def kernel_log() -> ecs.CfnTaskDefinition.LinuxParametersProperty:
        """The right to read the kernel log: one device, one capability."""
        device = _Definition.DeviceProperty(
            host_path="/dev/kmsg", container_path="/dev/kmsg", permissions=["read"]
        )
        return _Definition.LinuxParametersProperty(
            capabilities=_Definition.KernelCapabilitiesProperty(add=["SYSLOG"]), devices=[device]
        )
