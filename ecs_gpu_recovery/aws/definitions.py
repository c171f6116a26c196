"""Task definitions as ECS has them, looked up once in ten minutes: a family may get a new revision."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from .errors import translated
from .task_definition import log_stream, training_container

if TYPE_CHECKING:
    from mypy_boto3_ecs import ECSClient

#: How long a look is trusted.
TRUSTED_FOR = timedelta(minutes=10)


class Definitions:
    """What the fleet needs to know of a definition: which container does the work, and where it writes its log."""

    def __init__(self, ecs: ECSClient, now: Callable[[], datetime]) -> None:
        self._ecs, self._now = ecs, now
        self._known: dict[str, tuple[datetime, Mapping[str, Any]]] = {}
        self._looking = threading.Lock()

    def container(self, name: str) -> str:
        return str(training_container(self._of(name))["name"])

    def log_of(self, name: str, task_id: str, container: str = "") -> tuple[str, str] | None:
        """Group and stream of a task's log, if it goes to CloudWatch."""
        return log_stream(self._of(name), container or self.container(name), task_id)

    def forget(self, name: str) -> None:
        self._known.pop(name, None)

    def _of(self, name: str) -> Mapping[str, Any]:
        with self._looking:  # of those who ask at once, the others wait for the first
            seen, definition = self._known.get(name, (None, {}))
            if seen is None or abs(self._now() - seen) >= TRUSTED_FOR:
                with translated(f"reading task definition {name}"):
                    reply = self._ecs.describe_task_definition(taskDefinition=name)
                definition = dict(reply["taskDefinition"])
                self._known[name] = (self._now(), definition)
        return definition


def build_project(stack: str) -> str:
    """The CodeBuild project that builds the image of the check, where a deployment asked for it."""
    return f"{stack}-image"


def start_command(stack: str) -> str:
    return f"aws codebuild start-build --project-name {build_project(stack)}"
