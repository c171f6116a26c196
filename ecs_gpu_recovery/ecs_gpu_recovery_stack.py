"""The whole deployment on one page. What each part is, and why, is in `infra`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aws_cdk import CfnOutput, Stack, Tags
from aws_cdk import aws_ecs as ecs
from constructs import Construct

from .config import Config
from .infra.alarms import Alarms
from .infra.console import Console
from .infra.daemons import NodeWatch
from .infra.dashboard import Dashboard
from .infra.evidence import Evidence
from .infra.functions import Functions
from .infra.image_build import ImageBuild
from .infra.logs import timeline_group
from .infra.optional import AnywhereRole, GpuNode, NodeNetwork, SharedStorage
from .infra.people import Made
from .infra.people_policies import People
from .infra.permissions import SWEEPER, Permissions
from .infra.queues import Queues
from .infra.reboot_document import RebootDocument
from .infra.rules import Rules
from .infra.schedule import Minute
from .infra.tables import Tables
from .infra.task_definitions import Image, TaskDefinitions
from .infra.topic import DeadLetters, Messages


class EcsGpuRecoveryStack(Stack):
    """Tables, functions, rules, a clock, a topic, and task definitions, for one cluster."""

    def __init__(
        self, scope: Construct, construct_id: str, *, config: Config, asset: Path, arch: str, **kwargs: Any
    ) -> None:
        super().__init__(scope, construct_id, **kwargs)
        self._config = config
        tables = Tables(self, "Tables", config=config)
        messages = Messages(self, "Messages", config=config)
        dead_letters = DeadLetters(self, "DeadLetters").queue
        timeline = timeline_group(self, "Timeline", config)
        image = Image(self, "Image", config=config)
        if config.BUILD_IMAGE and image.repository:
            ImageBuild(self, "ImageBuild", config=config, repository=image.repository)
        tasks = TaskDefinitions(self, "Tasks", config=config, image=image)
        cluster = self._cluster()
        daemons = self._daemons(image, tasks, cluster)
        evidence = Evidence(self, "Evidence", config=config) if config.EVIDENCE_DAYS else None
        RebootDocument(self, "Reboots", config=config, bucket=evidence.bucket.bucket_name if evidence else "")
        roles = [*tasks.roles, *(arn for arn in config.TASK_ROLE_ARNS.split(",") if arn)]
        allowed = Permissions(
            config=config,
            tables=tables,
            topic_arn=messages.topic.topic_arn,
            key_arn=messages.key.key_arn,
            timeline_arn=timeline.log_group_arn,
            evidence=evidence,
            role_arns=roles,
            daemons=daemons,
        )
        environment = {
            **config.told(),
            "TASK_TABLE_NAME": tables.tasks.table_name,
            "JOB_TABLE_NAME": tables.jobs.table_name,
            "NODE_TABLE_NAME": tables.nodes.table_name,
            "CALL_TABLE_NAME": tables.calls.table_name,
            "GUARD_TABLE_NAME": tables.guard.table_name,
            "ECS_CLUSTER_NAME": config.ECS_CLUSTER_NAME,
            "DCGM_HEALTH_CHECK_TASK": tasks.check,
            "SNS_TOPIC_ARN": messages.topic.topic_arn,
            "DEAD_LETTER_QUEUE_URL": dead_letters.queue_url,
            "TIMELINE_LOG_GROUP": timeline.log_group_name,
            "INCIDENT_BUS": "default",
        }
        if evidence:
            environment["EVIDENCE_BUCKET"] = evidence.bucket.bucket_name
        if daemons:
            environment["NODE_DAEMON_TASKS"] = ",".join(daemon.family for daemon in daemons)
        queues = Queues(self, "Queues", config=config, dead_letters=dead_letters)
        made = Functions(
            self,
            "Functions",
            config=config,
            asset=asset,
            arch=arch,
            environment=environment,
            allowed=allowed,
            queues=queues,
        )
        functions = made.by_name
        rules = Rules(self, "Rules", config=config, queues=queues.by_function, dead_letters=dead_letters)
        for daemon in daemons:  # what is put on a bus that is not there yet, or that nobody reads, is lost
            daemon.definition.node.add_dependency(rules)
        Minute(self, "Minute", function=functions[SWEEPER], dead_letters=dead_letters)
        Alarms(
            self,
            "Alarms",
            config=config,
            functions=functions,
            dead_letters=dead_letters,
            topic=messages.topic,
        )
        Dashboard(
            self,
            "Dashboard",
            config=config,
            tables=tables,
            functions=functions,
            queues=queues.by_function,
            dead_letters=dead_letters,
        )
        names = Made(
            topic=messages.topic.topic_arn,
            key=messages.key.key_arn,
            queue=dead_letters.queue_arn,
            bucket=evidence.bucket.bucket_arn if evidence else "",
            archives=evidence.archives if evidence else "",
            wildcards=[evidence.wildcard] if evidence else [],
        )
        if config.CREATE_PEOPLE_POLICIES:
            People(self, "People", config=config, made=names, role_arns=roles)
        if config.CONSOLE_IMAGE:
            Console(
                self,
                "Console",
                config=config,
                environment=environment,
                made=names,
                role_arns=roles,
                after=cluster,
            )
        self._optional_parts()
        outputs = {
            **{f"{name}Function": function.function_name for name, function in functions.items()},
            "TaskTable": tables.tasks.table_name,
            "JobTable": tables.jobs.table_name,
            "NodeTable": tables.nodes.table_name,
            "NotificationTopicArn": messages.topic.topic_arn,
            "DeadLetterQueueUrl": dead_letters.queue_url,
            "EvidenceBucket": evidence.bucket.bucket_name if evidence else "",
            "HealthCheckTaskDefinition": tasks.check,
            "TrainingTaskDefinition": tasks.training,
            "ImageRepositoryUri": image.repository.repository_uri if image.repository else "",
        }
        for name, value in outputs.items():
            if value:
                CfnOutput(self, name, value=value)
        Tags.of(self).add("Project", "ecs-gpu-recovery")
        Tags.of(self).add("EcsCluster", config.ECS_CLUSTER_NAME)

    def _cluster(self) -> ecs.CfnCluster | None:
        if not self._config.CREATE_ECS_CLUSTER:
            return None
        insights = ecs.CfnCluster.ClusterSettingsProperty(name="containerInsights", value="enabled")
        name = self._config.ECS_CLUSTER_NAME
        return ecs.CfnCluster(self, "Cluster", cluster_name=name, cluster_settings=[insights])

    def _daemons(
        self, image: Image, tasks: TaskDefinitions, cluster: ecs.CfnCluster | None
    ) -> list[NodeWatch]:
        if not self._config.watches_nodes:
            return []
        return [NodeWatch(self, "Watch", config=self._config, image=image, tasks=tasks, after=cluster)]

    def _optional_parts(self) -> None:
        config = self._config
        if config.CREATE_EC2_INSTANCE or config.CREATE_FSX:
            network = NodeNetwork(self, "Network", config=config)
            storage = (
                SharedStorage(self, "Storage", config=config, network=network) if config.CREATE_FSX else None
            )
            if config.CREATE_EC2_INSTANCE:
                GpuNode(self, "Node", config=config, network=network, storage=storage)
        if config.CREATE_ECS_ANYWHERE_ROLE:
            AnywhereRole(self, "Anywhere", config=config)
