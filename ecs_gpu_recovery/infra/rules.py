"""Which events reach which function.

Every rule names the cluster by its full ARN, so that `name-2` is not `name`. A task's family is told by the
ARN of its task definition up to the colon before the revision: `group` would be simpler, but the starter of a
task may set it. Tasks of services are no training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aws_cdk import Duration
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from ..aws import reboot_document
from ..aws.parse import PULSE_TYPE, REBALANCE_TYPE, SPOT_TYPE, WATCH_SOURCE, WATCH_TYPE
from ..config import Config
from . import places
from .naming import Name
from .permissions import CHECK_MONITOR, INSTANCE_MONITOR, TASK_HANDLER

#: A task that waits, or winds down, tells us nothing that these two do not.
TELLING = ["RUNNING", "STOPPED"]
#: While a command is in one of these, it can't be the proof of a reboot.
NOT_OVER = ["Pending", "InProgress", "In Progress", "Delayed", "Cancelling"]
RETRIES = 30
OLDEST = Duration.hours(1)


class Rules(Construct):
    """Each rule delivers to the queue of its function, for an hour, and then leaves the event with the dead letters.

    The watches speak on a bus of the stack's own: on the default bus anybody who may put an event there could speak for
    them.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: Config,
        queues: Mapping[str, sqs.IQueue],
        dead_letters: sqs.IQueue,
    ) -> None:
        super().__init__(scope, construct_id)
        (name,) = places.watch_bus(config)
        watches = events.EventBus(self, "WatchBus", event_bus_name=name.resource.rpartition("/")[2])
        for rule_id, (function, description, pattern) in patterns(config).items():
            rule = events.Rule(
                self,
                rule_id,
                description=description,
                event_pattern=_pattern(pattern),
                event_bus=watches if pattern["source"] == [WATCH_SOURCE] else None,
            )
            rule.add_target(
                targets.SqsQueue(
                    queues[function],
                    dead_letter_queue=dead_letters,
                    retry_attempts=RETRIES,
                    max_event_age=OLDEST,
                )
            )


def patterns(config: Config) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Rule, function, description and pattern."""
    here = [name.arn for name in places.cluster(config)]
    check = {"prefix": Name("ecs", f"task-definition/{config.check_family}:").arn}
    absent = {"exists": False}  # `anything-but` wants the field to be there, and some events leave it out
    return {
        "TrainingTask": (
            TASK_HANDLER,
            f"A training task in {config.ECS_CLUSTER_NAME} runs or has stopped",
            {
                "source": ["aws.ecs"],
                "detail-type": ["ECS Task State Change"],
                "detail": {
                    "clusterArn": here,
                    "lastStatus": TELLING,
                    "taskDefinitionArn": [absent, {"anything-but": check}],
                    "group": [absent, {"anything-but": {"prefix": "service:"}}],
                },
            },
        ),
        "HealthCheck": (
            CHECK_MONITOR,
            f"A health check in {config.ECS_CLUSTER_NAME} runs or has stopped",
            {
                "source": ["aws.ecs"],
                "detail-type": ["ECS Task State Change"],
                "detail": {"clusterArn": here, "lastStatus": TELLING, "taskDefinitionArn": [check]},
            },
        ),
        "ContainerInstance": (
            INSTANCE_MONITOR,
            f"A container instance of {config.ECS_CLUSTER_NAME} changed",
            {
                "source": ["aws.ecs"],
                "detail-type": [
                    "ECS Container Instance State Change",
                    "ECS Container Instance Health Change",
                ],
                "detail": {"clusterArn": here},
            },
        ),
        "GpuFault": (
            INSTANCE_MONITOR,
            f"The watch on a node of {config.ECS_CLUSTER_NAME} saw a GPU fault, or GPUs that stand still",
            {
                "source": [WATCH_SOURCE],
                "detail-type": [WATCH_TYPE, PULSE_TYPE],
                "detail": {"cluster": [config.ECS_CLUSTER_NAME]},
            },
        ),
        "Leaving": (
            INSTANCE_MONITOR,
            "EC2 takes an instance away, or may do so soon; whether it is a node, the tables tell",
            {
                "source": ["aws.ec2"],
                "detail-type": [SPOT_TYPE, REBALANCE_TYPE],
                "detail": {"instance-id": [{"exists": True}]},
            },
        ),
        "Command": (
            INSTANCE_MONITOR,
            f"A reboot of a node of {config.ECS_CLUSTER_NAME} is over",
            {
                "source": ["aws.ssm"],
                "detail-type": [
                    "EC2 Command Status-change Notification",
                    "EC2 Command Invocation Status-change Notification",
                ],
                "detail": {
                    "document-name": [reboot_document.name(config.STACK_NAME)],
                    "status": [{"anything-but": NOT_OVER}],
                },
            },
        ),
    }


def _pattern(pattern: dict[str, Any]) -> events.EventPattern:
    return events.EventPattern(
        source=pattern["source"], detail_type=pattern["detail-type"], detail=pattern["detail"]
    )
