"""Events as they arrive at the functions."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from ecs_gpu_recovery.aws import reboot_document

Event = dict[str, Any]


def a_tick(at: datetime | None = None) -> Event:
    """A minute is over: at that time, or now."""
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "source": "aws.scheduler",
        "detail-type": "Scheduled Event",
        "time": (at or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "account": "123456789012",
        "region": "us-east-1",
        "resources": [],
        "detail": "{}",
    }


def passes_rules(event: Event) -> bool:
    """What the deployment's rules let through: tasks that run or stopped, all instances, ended commands."""
    status = event["detail"].get("lastStatus") or event["detail"].get("status")
    if event["detail-type"] == "ECS Task State Change":
        return status in ("RUNNING", "STOPPED")
    if event["source"] == "aws.ssm":
        ours = reboot_document.is_reboot(event["detail"]["document-name"])
        return ours and status not in ("Pending", "InProgress", "In Progress", "Delayed", "Cancelling")
    return True
