"""The commands' AWS side: the same runtime as the functions', with the credentials and the region of the caller."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ..core.errors import Refused
from ..core.events import NodeAsked
from ..core.model import Job, JobStatus, Node
from ..jobfile import JobRequest
from ..ports import Page
from .backend import LogSource, choose_nodes, new_job_id, whoami

DEFAULT_PORT = 29500


class AwsBackend:
    """Reads and writes the deployed tables; what follows is done by the deployed functions."""

    name = "aws"
    local_files = False

    def __init__(self) -> None:
        import boto3

        from ..aws import wiring

        self._session = boto3.session.Session()
        if not self._session.region_name:
            raise Refused("no AWS region: set AWS_DEFAULT_REGION, or a region in your AWS profile")
        self.parts = wiring.build(os.environ, now=self.now, session=self._session)
        self._ecs = self._session.client("ecs")
        self._definitions: dict[str, dict[str, Any]] = {}

    def close(self) -> None:
        """Nothing is kept open."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def warning(self) -> str:
        return ""

    def discover(self) -> int:
        from ..aws.discover import discover

        return discover(
            self._ecs, self._session.client("ssm"), self.parts.store, self.parts.settings.cluster, self.now()
        )

    def submit(self, request: JobRequest) -> Job:
        """Nodes from the cluster, a task definition if none is named, then all tasks or none."""
        self.discover()
        names = choose_nodes(request, self.nodes())
        known = {node.name: node for node in self.nodes()}
        job_id = request.job_id or new_job_id(request.spec.name)
        gpus = request.spec.gpus_per_node or min(known[name].gpus for name in names)
        definition = request.spec.task_def or self._register(request, gpus)
        spec = replace(
            request.spec,
            task_def=definition,
            gpus_per_node=gpus,
            container=request.spec.container or self._container(definition),
            submitted_by=request.spec.submitted_by or whoami(),
            master_port=request.spec.master_port or DEFAULT_PORT,
        )
        return self.parts.runtime.submit(
            job_id=job_id,
            cluster=self.parts.settings.cluster,
            spec=spec,
            nodes=names,
            at=self.now(),
            check=request.check,
            max_retries=request.max_retries,
        )

    def _register(self, request: JobRequest, gpus: int) -> str:
        from ..aws.errors import translated
        from ..aws.task_definition import template

        made = template(request, gpus=gpus, region=str(self._session.region_name))
        with translated("registering the task definition"):
            reply = self._ecs.register_task_definition(**made)
        return str(reply["taskDefinition"]["taskDefinitionArn"])

    def _definition(self, name: str) -> dict[str, Any]:
        from ..aws.errors import translated

        if name not in self._definitions:
            with translated(f"reading task definition {name}"):
                self._definitions[name] = dict(
                    self._ecs.describe_task_definition(taskDefinition=name)["taskDefinition"]
                )
        return self._definitions[name]

    def _container(self, definition: str) -> str:
        found = self._definition(definition)["containerDefinitions"]
        with_gpu = [
            c for c in found if any(r.get("type") == "GPU" for r in c.get("resourceRequirements", []))
        ]
        return str((with_gpu or found)[0]["name"])

    def job(self, job_id: str) -> Job:
        return self.parts.store.job(job_id)

    def jobs(self, status: JobStatus | None, limit: int, after: str) -> Page:
        return self.parts.store.jobs(status=status, limit=limit, after=after)

    def stop(self, job_id: str, why: str) -> Job:
        return self.parts.runtime.stop(job_id, by=whoami(), why=why, at=self.now())

    def nodes(self) -> Sequence[Node]:
        return self.parts.store.nodes()

    def node(self, name: str) -> Node:
        return self.parts.store.node(name)

    def ask_node(self, name: str, ask: str, why: str, level: str) -> Node:
        self.parts.runtime.handle_node(
            name, [NodeAsked(at=self.now(), node=name, ask=ask, by=whoami(), why=why, level=level)]
        )
        return self.node(name)

    def log_sources(self, job: Job) -> Sequence[LogSource]:
        """Every attempt's tasks, as the record remembers them."""
        found = []
        for rank in job.ranks:
            for entry in (
                *rank.past_tasks,
                *([f"{rank.task_attempt}/{rank.task_id}"] if rank.task_id else []),
            ):
                attempt, _, task_id = entry.partition("/")
                found.append(
                    LogSource(rank=rank.index, attempt=int(attempt), node=rank.node, task_id=task_id)
                )
        return sorted(found, key=lambda source: (source.attempt, source.rank))

    def read_log(self, job: Job, source: LogSource, position: str) -> tuple[list[str], str]:
        """New lines of a task's stream, and where to go on."""
        from ..aws.errors import translated
        from ..aws.task_definition import log_stream

        place = log_stream(self._definition(job.spec.task_def), job.spec.container, source.task_id)
        if place is None:
            raise Refused(
                f"the tasks of {job.id} don't write to CloudWatch: set log_group in the job,"
                " or look where the image logs to"
            )
        logs = self._session.client("logs")
        lines: list[str] = []
        for _ in range(100):
            more: dict[str, Any] = {"nextToken": position} if position else {"startFromHead": True}
            with translated(f"reading {place[1]}"):
                try:
                    reply = logs.get_log_events(logGroupName=place[0], logStreamName=place[1], **more)
                except logs.exceptions.ResourceNotFoundException:
                    return lines, position
            lines += [str(event["message"]) for event in reply["events"]]
            if reply["nextForwardToken"] == position:
                break
            position = str(reply["nextForwardToken"])
        return lines, position

    def notices(self, limit: int) -> Sequence[dict[str, Any]]:
        raise Refused("on AWS messages go to the SNS topic; subscribe to it, or read the jobs' timelines")
