"""The commands' AWS side: the same runtime as the functions', with the credentials and the region of the caller."""

from __future__ import annotations

import functools
import os
import posixpath
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..aws.dead_letters import DeadLetters, Letter, Seen, Sent
from ..aws.discover import Sighting, discover
from ..aws.errors import ForeignRecord
from ..aws.letters import put_away
from ..aws.task_definition import log_stream
from ..core import messages
from ..core.effects import Notify
from ..core.errors import JobExists, NodesTaken, NotFound, Refused, Transient
from ..core.events import NodeAsked
from ..core.model import Job, JobSpec, JobStatus, Node, NodeStatus
from ..engine.ports import Page
from ..jobfile import JobRequest
from . import aws_logs, aws_settings
from .aws_definitions import Definitions
from .aws_errors import NotAllowed, Where, explained, of_answer
from .backend import (
    CLAIM_TRIES,
    LogSource,
    choose_nodes,
    must_be_new,
    must_be_unshared,
    new_job_id,
    not_submitted,
    whoami,
)

DEFAULT_PORT = 29500
#: How long a look at the whole cluster is good for.
LOOK_AGAIN = timedelta(minutes=1)
P = ParamSpec("P")
T = TypeVar("T")


def _plainly(
    method: Callable[Concatenate[AwsBackend, P], T],
) -> Callable[Concatenate[AwsBackend, P], T]:
    """What AWS refuses is told in words that a person can act on."""

    @functools.wraps(method)
    def told(self: AwsBackend, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with explained(self.where):
            return method(self, *args, **kwargs)

    return told


class _OneByOne:
    """Makes one client at a time: sessions of boto3 are not for several threads, and a console has them."""

    def __init__(self, session: Any) -> None:
        self._session, self._lock = session, threading.Lock()
        self.region_name = session.region_name

    def client(self, service: str, **options: Any) -> Any:
        with self._lock:
            return self._session.client(service, **options)


class AwsBackend:
    """Reads and writes the deployed tables. Whatever a command leaves undone is done by the deployed functions."""

    name = "aws"
    local_files = False
    poll_s = 2.0  #: every look is a call

    def __init__(self) -> None:
        from ..aws import wiring

        self._session = _OneByOne(aws_settings.session(os.environ))
        settings = aws_settings.settings(os.environ, self._session)
        self.where = Where(
            region=str(self._session.region_name),
            cluster=settings.ECS_CLUSTER_NAME,
            tables=(settings.JOB_TABLE_NAME, settings.TASK_TABLE_NAME, settings.NODE_TABLE_NAME),
        )
        self._settings = settings
        self._letters: DeadLetters | None = None
        self.remark = ""
        self._looked: tuple[datetime, list[Sighting]] | None = None
        self._clients: dict[str, Any] = {}
        self._notices: dict[str, tuple[datetime, Notify]] = {}
        self._who = ""
        with explained(self.where):
            self.parts = wiring.build(os.environ, now=self.now, session=self._session, settings=settings)
        self._definitions = Definitions(self.client, self.where.region)

    def client(self, service: str) -> Any:
        """Made once. Two threads that ask at the same time may make two, which does no harm."""
        if service not in self._clients:
            self._clients[service] = self._session.client(service)
        return self._clients[service]

    def close(self) -> None:
        """Nothing is kept open."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def warning(self) -> str:
        return ""

    def who(self) -> str:
        """Who did it, for the record: the name under which AWS knows the caller."""
        if not self._who:
            with explained(self.where):
                arn = str(self.client("sts").get_caller_identity()["Arn"])
            self._who = f"{whoami()} ({arn.rpartition(':')[2]})"
        return self._who

    # -- nodes -------------------------------------------------------------------------------------------------

    @_plainly
    def discover(self) -> list[Sighting]:
        """Bring new nodes of the cluster into the table; what the cluster shows of all of them."""
        found = discover(
            self.client("ecs"), self.client("ssm"), self.parts.store, self.where.cluster, self.now()
        )
        self._looked = (self.now(), found)
        return found

    @_plainly
    def nodes(self) -> Sequence[Node]:
        """What is recorded, after a look for new ones. Who may only read sees what others have recorded."""
        if self._looked is None or self.now() - self._looked[0] >= LOOK_AGAIN:
            try:
                self.discover()
            except (NotAllowed, Transient) as exc:
                self._looked = (self.now(), [])
                self.remark = f"new nodes of the cluster are not shown: {exc}"
        return self.parts.store.nodes()

    @_plainly
    def node(self, name: str) -> Node:
        try:
            return self.parts.store.node(name)
        except ForeignRecord:
            raise
        except NotFound:
            raise NotFound(
                f"no node {name}. Those that are known: gpu-recovery nodes --backend aws"
            ) from None

    @_plainly
    def ask_node(self, name: str, ask: str, why: str, level: str) -> Node:
        self.node(name)
        fact = NodeAsked(at=self.now(), node=name, ask=ask, by=self.who(), why=why, level=level)
        self._act(lambda: self.parts.runtime.handle_node(name, [fact]), lambda: self._asked(name, fact))
        return self.parts.store.node(name)

    def _asked(self, name: str, fact: NodeAsked) -> bool:
        return self.parts.store.node(name).updated_at >= fact.at

    # -- jobs --------------------------------------------------------------------------------------------------

    @_plainly
    def submit(self, request: JobRequest) -> Job:
        """Nodes from the cluster, a task definition if none is named, then all tasks or none."""
        job_id = request.job_id or new_job_id(request.spec.name)
        self._must_be_new(job_id)
        overrides = self._first_overrides(request)
        request = self._definitions.completed(request)
        for _ in range(CLAIM_TRIES):
            standing = {s.node.name: s.trouble for s in self.discover()}
            known = {node.name: node for node in self.parts.store.nodes()}
            gone = {name: "it is not in the cluster any more" for name in known if name not in standing}
            names = choose_nodes(request, list(known.values()), standing | gone)
            self._must_be_unshared(request, {node.job_id for node in known.values() if node.job_id})
            try:
                return self._submitted(job_id, request, [known[name] for name in names], overrides)
            except NodesTaken as exc:
                if request.nodes:
                    raise Refused(not_submitted(exc.reasons)) from exc
        raise Transient("the job was not submitted: others took the free nodes each time; try again")

    def _submitted(
        self, job_id: str, request: JobRequest, nodes: Sequence[Node], overrides: Sequence[str]
    ) -> Job:
        """A task definition that was made for a job which then is refused is taken back."""
        gpus = request.spec.gpus_per_node or min(node.gpus for node in nodes)
        definition = request.spec.task_def or self._definitions.register(request, gpus)
        spec = self._whole(request.spec, definition, gpus)
        runtime, at = self.parts.runtime, self.now()
        try:
            self._act(
                lambda: runtime.submit(
                    job_id=job_id,
                    cluster=self.where.cluster,
                    spec=spec,
                    nodes=[node.name for node in nodes],
                    at=at,
                    check=request.check,
                    max_retries=request.max_retries,
                    overrides=overrides,
                ),
                lambda: self._recorded(job_id),
            )
        except Refused:
            if not request.spec.task_def:
                self._definitions.drop(definition)
            raise
        if text := self._definitions.doubt(definition, spec):
            self.remark = text
        return self.parts.store.job(job_id)

    def _whole(self, spec: JobSpec, definition: str, gpus: int) -> JobSpec:
        return replace(
            spec,
            task_def=definition,
            gpus_per_node=gpus,
            container=self._definitions.container(definition, spec.container),
            submitted_by=spec.submitted_by or self.who(),
            master_port=spec.master_port or DEFAULT_PORT,
        )

    def _must_be_new(self, job_id: str) -> None:
        try:
            self.parts.store.job(job_id)
        except ForeignRecord as exc:
            raise JobExists(
                f"the job was not submitted: another tool has recorded a job {job_id}; choose another id"
            ) from exc
        except NotFound:
            return
        must_be_new(self.parts.store, job_id)

    def _first_overrides(self, request: JobRequest) -> tuple[str, ...]:
        """What another tool started its ranks with, to be used again: each has a command and variables of its own."""
        if not request.spec.retry_of:
            return ()
        old = self.parts.store.job(request.spec.retry_of)
        if not old.spec.task_def:
            raise Refused(
                f"{old.id} was started by another tool, and its task definition is not on record: start it again"
                " there, or submit it anew with --task-definition"
            )
        first = tuple(rank.overrides for rank in old.ranks)
        if any(first) and request.nodes != tuple(rank.node for rank in old.ranks):
            raise Refused(
                f"{old.id} was started by another tool, each rank with a command and variables for its own node:"
                " it can be run again on the same nodes only. Leave --nodes out, or start it again there"
            )
        return first

    def _must_be_unshared(self, request: JobRequest, live: Iterable[str]) -> None:
        """Jobs that call the place the same are looked at closely; a few reads, and only here."""
        mine = request.spec.checkpoint_dir and self._definitions.checkpoints(request)
        if not mine:
            return
        called = posixpath.normpath(request.spec.checkpoint_dir)
        others = [job for job in self.parts.store.some_jobs(live) if not job.status.final]
        theirs = {
            job.id: self._definitions.checkpoints(JobRequest(spec=job.spec))
            for job in others
            if job.spec.checkpoint_dir and posixpath.normpath(job.spec.checkpoint_dir) == called
        }
        must_be_unshared(mine, theirs)

    def _recorded(self, job_id: str) -> bool:
        try:
            self.parts.store.job(job_id)
        except NotFound:
            return False
        return True

    def _act(self, act: Callable[[], object], recorded: Callable[[], bool]) -> None:
        """Record it and send what follows. What this person may not send is sent by the functions."""
        from botocore.exceptions import ClientError

        try:
            act()
        except ClientError as exc:
            why = of_answer(exc, self.where)
            if not recorded():
                raise why from exc
            self.remark = f"it is recorded, and the deployed functions carry it out within minutes: {why}"

    @_plainly
    def job(self, job_id: str) -> Job:
        try:
            return self.parts.store.job(job_id)
        except ForeignRecord:
            raise
        except NotFound:
            raise NotFound(
                f"no job {job_id} in cluster {self.where.cluster}. Those that are known:"
                " gpu-recovery jobs --backend aws"
            ) from None

    @_plainly
    def jobs(self, status: JobStatus | None, limit: int, after: str) -> Page:
        return self.parts.store.jobs(status=status, limit=limit, after=after)

    @_plainly
    def stop(self, job_id: str, why: str) -> Job:
        self.job(job_id)
        by, at = self.who(), self.now()
        self._act(
            lambda: self.parts.runtime.stop(job_id, by=by, why=why, at=at),
            lambda: (found := self.job(job_id)).status.final or found.ending is not None,
        )
        return self.job(job_id)

    # -- what was written and told -----------------------------------------------------------------------------

    def log_sources(self, job: Job) -> Sequence[LogSource]:
        return aws_logs.sources(job)

    @_plainly
    def read_log(self, job: Job, source: LogSource, position: str) -> tuple[list[str], str]:
        """New lines of a task's stream, and where to go on."""
        container = job.spec.container or self._definitions.container(job.spec.task_def, "")
        place = log_stream(self._definitions.get(job.spec.task_def), container, source.task_id)
        if place is None:
            raise Refused(
                f"the tasks of {job.id} don't write to CloudWatch: submit with a log group (--log-group), or look"
                " where the image logs to"
            )
        return aws_logs.read(self.client("logs"), place, position, self.where.region)

    @_plainly
    def notices(self, limit: int) -> Sequence[dict[str, Any]]:
        """What people are needed for, from the records. The messages themselves went to the topic."""
        for line in self.parts.store.jobs(status=JobStatus.FAILED, limit=limit).jobs:
            if line.id not in self._notices:
                job = self.parts.store.job(line.id)
                told = messages.job_failed(job.id, job.attempt, job.outcome, job.ranks)
                self._notices[line.id] = (job.updated_at, told)
        found = list(self._notices.values())
        for node in self.parts.store.nodes():
            if node.status is NodeStatus.FAILED:
                why = node.findings or "it failed"
                found.append(
                    (node.updated_at, messages.node_failed(node.name, why, node.verdict, node.errands))
                )
        found.sort(key=lambda pair: pair[0], reverse=True)
        return [{"at": at.isoformat(), **_as_dict(message)} for at, message in found[:limit]]

    # -- events that nobody could handle -----------------------------------------------------------------------

    @_plainly
    def letters(self) -> Seen:
        return self._queue().seen()

    @_plainly
    def send_letters_again(self, *ids: str) -> Sequence[Sent]:
        """These, or all. Who may not call a function, or delete a letter, is told so; the letter stays."""
        return self._queue().send_again(*ids)

    @_plainly
    def discard_letter(self, name: str, *, by: str, why: str) -> Letter:
        """Whoever hears of failures hears of this too, before it is done: nothing else of the account keeps it."""
        notifier = self.parts.runtime.notifier
        return self._queue().discard(name, lambda letter: notifier.notify(put_away(letter, by, why)))

    def _queue(self) -> DeadLetters:
        """Looked for when it is first needed: most commands never ask."""
        if self._letters is None:
            self._letters = DeadLetters(
                self.client("sqs"),
                self.client("lambda"),
                aws_settings.dead_letter_queue(os.environ, self._session),
                stack=aws_settings.stack_name(os.environ),
                cluster=self._settings.ECS_CLUSTER_NAME,
                check_family=self._settings.DCGM_HEALTH_CHECK_TASK,
            )
        return self._letters


def _as_dict(message: Notify) -> dict[str, str]:
    parts = ("subject", "happened", "evidence", "done", "next", "node", "key")
    return {name: str(getattr(message, name)) for name in parts}
