"""The AWS side: the same runtime as the functions', with the credentials and the region of the caller."""

from __future__ import annotations

import os
import posixpath
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ..aws import wiring
from ..aws.dead_letters import DeadLetters, Letter, Seen, Sent
from ..aws.discover import Sighting, discover
from ..aws.errors import ForeignRecord
from ..aws.letters import put_away
from ..aws.node_numbers import NodeNumbers, Numbers, Wanted
from ..aws.pages import pages
from ..aws.reads import DynamoReads
from ..aws.shell_document import FOLDER
from ..aws.task_definition import log_stream
from ..core.errors import JobExists, NotFound, Refused, Transient
from ..core.model import Job, JobSpec
from ..core.node_record import Node
from ..engine.reads import NodeChanges
from ..environment import telling
from ..jobfile import JobRequest
from ..slow_nodes import BUSY, CLOCK, HOUR, POWER, Hours
from . import aws_logs, aws_settings
from .aws_definitions import Definitions
from .aws_errors import Where, explained, of_answer
from .backend import Bundle, Enough, LogSource, NotAllowed, never, whoami
from .records import RecordsBackend
from .submission import choose_nodes, claimed, must_be_new, must_be_unshared, new_job_id, with_failover

DEFAULT_PORT = 29500
#: How long a look at the whole cluster is good for.
LOOK_AGAIN = timedelta(minutes=1)
#: By which a gang is compared, as the watch calls them.
_MEASURES = {"GpuUtilization": BUSY, "GpuPower": POWER, "GpuClock": CLOCK}


class _OneByOne:
    """Makes one client at a time: sessions of boto3 are not for several threads, and a console has them."""

    def __init__(self, session: Any) -> None:
        self._session, self._lock = session, threading.Lock()
        self.region_name = session.region_name

    def client(self, service: str, **options: Any) -> Any:
        with self._lock:
            return self._session.client(service, **options)


class AwsBackend(RecordsBackend):
    """Reads and writes the deployed tables. Whatever a command leaves undone is done by the deployed functions."""

    name = "aws"
    poll_s = 2.0  #: every look is a call

    def __init__(self) -> None:
        self._session = _OneByOne(aws_settings.session(os.environ))
        settings = aws_settings.settings(os.environ, self._session)
        self.where = Where(
            region=str(self._session.region_name),
            cluster=settings.ECS_CLUSTER_NAME,
            tables=(settings.JOB_TABLE_NAME, settings.TASK_TABLE_NAME, settings.NODE_TABLE_NAME),
        )
        self._settings = settings
        self._letters: DeadLetters | None = None
        self._looked: tuple[datetime, list[Sighting]] | None = None
        self._clients: dict[str, Any] = {}
        self._kept: dict[str, tuple[datetime, Sequence[Bundle]]] = {}
        self._who = ""
        self._numbers = NodeNumbers(lambda: self.client("cloudwatch"), settings.ECS_CLUSTER_NAME, self.now)
        with self.plainly():
            # People have no right to the turns of the functions, and few calls to make.
            own = replace(settings, CALL_TABLE_NAME="")
            parts = wiring.build(os.environ, now=self.now, session=self._session, settings=own)
        keeps = parts.runtime.policy.keeps_evidence
        super().__init__(parts.store, DynamoReads(parts.store, keeps_evidence=keeps), parts.runtime)
        self._parts = parts
        self._definitions = Definitions(self.client, self.where.region)

    def plainly(self) -> AbstractContextManager[None]:
        return explained(self.where)

    def client(self, service: str) -> Any:
        """Made once. Two threads that ask at the same time may make two, which does no harm."""
        if service not in self._clients:
            self._clients[service] = self._session.client(service)
        return self._clients[service]

    def close(self) -> None:
        """Nothing is kept open."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def who(self) -> str:
        """Who did it, for the record: the name under which AWS knows the caller."""
        if not self._who:
            with self.plainly():
                arn = str(self.client("sts").get_caller_identity()["Arn"])
            self._who = f"{whoami()} ({arn.rpartition(':')[2]})"
        return self._who

    # -- nodes -------------------------------------------------------------------------------------------------

    def discover(self) -> list[Sighting]:
        """Bring new nodes of the cluster into the table; what the cluster shows of all of them."""
        with self.plainly():
            found = discover(
                self.client("ecs"), self.client("ssm"), self._parts.store, self.where.cluster, self.now()
            )
        self._looked = (self.now(), found)
        return found

    def nodes(self) -> Sequence[Node]:
        """What is recorded, after a look for new ones. Who may only read sees what others have recorded."""
        self._look_for_new()
        return super().nodes()

    def _look_for_new(self) -> None:
        if self._looked is None or self.now() - self._looked[0] >= LOOK_AGAIN:
            try:
                self.discover()
            except (NotAllowed, Transient) as exc:
                self._looked = (self.now(), [])
                self.remark = f"new nodes of the cluster are not shown: {exc}"

    def changed_nodes(self, known: Mapping[str, int]) -> NodeChanges:
        self._look_for_new()
        return super().changed_nodes(known)

    def _unknown(self, exc: NotFound, what: str, name: str) -> NotFound:
        if isinstance(exc, ForeignRecord):
            return exc
        where = f" in cluster {self.where.cluster}" if what == "job" else ""
        return NotFound(f"no {what} {name}{where}. Those that are known: gpu-recovery {what}s --backend aws")

    # -- jobs --------------------------------------------------------------------------------------------------

    def submit(self, request: JobRequest) -> Job:
        """Nodes from the cluster, a task definition if none is named, then all tasks or none."""
        with self.plainly():
            job_id = request.job_id or new_job_id(request.spec.name)
            self._must_be_new(job_id)
            overrides = self._first_overrides(request)
            whole = self._definitions.completed(request)
            return claimed(whole, lambda: self._submit(job_id, whole, overrides))

    def _submit(self, job_id: str, request: JobRequest, overrides: Sequence[str]) -> Job:
        standing = {s.node.name: s.trouble for s in self.discover()}
        known = {node.name: node for node in self._store.nodes()}
        gone = {name: "it is not in the cluster any more" for name in known if name not in standing}
        names = choose_nodes(request, list(known.values()), standing | gone)
        self._must_be_unshared(request, {node.job_id for node in known.values() if node.job_id})
        return self._submitted(job_id, request, [known[name] for name in names], overrides)

    def _submitted(
        self, job_id: str, request: JobRequest, nodes: Sequence[Node], overrides: Sequence[str]
    ) -> Job:
        """A task definition that was made for a job which then is refused is taken back."""
        gpus = request.spec.gpus_per_node or min(node.gpus for node in nodes)
        definition = request.spec.task_def or self._definitions.register(request, gpus)
        spec = self._whole(with_failover(request, self._runtime.policy), definition, gpus)
        runtime, at = self._runtime, self.now()
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
                    restart_when_healthy=request.restart_when_healthy,
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
        return self._store.job(job_id)

    def _whole(self, spec: JobSpec, definition: str, gpus: int) -> JobSpec:
        return replace(
            spec,
            task_def=definition,
            env={
                **telling(
                    self._definitions.variables(definition, spec.container) | set(spec.env),
                    folder=self._definitions.own_tmp(definition, spec.container),
                ),
                **spec.env,
            },
            gpus_per_node=gpus,
            container=self._definitions.container(definition, spec.container),
            submitted_by=spec.submitted_by or self.who(),
            master_port=spec.master_port or DEFAULT_PORT,
        )

    def _must_be_new(self, job_id: str) -> None:
        try:
            self._store.job(job_id)
        except ForeignRecord as exc:
            raise JobExists(
                f"the job was not submitted: another tool has recorded a job {job_id}; choose another id"
            ) from exc
        except NotFound:
            return
        must_be_new(self._store, job_id)

    def _first_overrides(self, request: JobRequest) -> tuple[str, ...]:
        """What another tool started its ranks with, to be used again: each has a command and variables of its own."""
        if not request.spec.retry_of:
            return ()
        old = self._store.job(request.spec.retry_of)
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
        others = [job for job in self._reads.some_jobs(live) if not job.status.final]
        theirs = {
            job.id: self._definitions.checkpoints(JobRequest(spec=job.spec))
            for job in others
            if job.spec.checkpoint_dir and posixpath.normpath(job.spec.checkpoint_dir) == called
        }
        must_be_unshared(mine, theirs)

    def _recorded(self, job_id: str) -> bool:
        try:
            self._store.job(job_id)
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

    # -- what was written --------------------------------------------------------------------------------------

    def read_log(
        self, job: Job, source: LogSource, position: str, *, enough: Enough = never
    ) -> tuple[list[str], str]:
        with self.plainly():
            container = job.spec.container or self._definitions.container(job.spec.task_def, "")
            place = log_stream(self._definitions.get(job.spec.task_def), container, source.task_id)
            if place is None:
                raise Refused(
                    f"the tasks of {job.id} don't write to CloudWatch: submit with a log group (--log-group), or"
                    " look where the image logs to"
                )
            return aws_logs.read(self.client("logs"), place, position, self.where.region, enough)

    def log_since(self, source: LogSource, at: datetime) -> str:
        return aws_logs.since(at)

    def numbers(
        self, metrics: Sequence[str], nodes: Mapping[str, str], since: datetime, until: datetime
    ) -> Numbers:
        with self.plainly():
            return self._numbers.read(Wanted(tuple(metrics), tuple(sorted(nodes.items())), since, until))

    def hours(self, nodes: Mapping[str, str], since: datetime, until: datetime) -> Hours:
        places = tuple(sorted((name, place) for name, place in nodes.items() if place))
        with self.plainly():
            told = self._numbers.read(Wanted(tuple(_MEASURES), places, since, until, every_s=int(HOUR)))
        return {measure: told[metric] for metric, measure in _MEASURES.items()}

    def evidence(self, node: str) -> Sequence[Bundle]:
        """A page asks again and again, so a look is good for a minute."""
        looked, known = self._kept.get(node, (None, ()))
        if looked is not None and self.now() - looked < LOOK_AGAIN:
            return known
        bucket, prefix = self._bucket(), f"{FOLDER}/{node}/"
        with self.plainly():
            listed = pages(
                f"listing what {node} kept",
                self.client("s3").list_objects_v2,
                following="NextContinuationToken",
                sent="ContinuationToken",
                Bucket=bucket,
                Prefix=prefix,
            )
            kept = [one for page in listed for one in page.get("Contents", [])]
        found = [
            Bundle(node=node, name=one["Key"].removeprefix(prefix), at=one["LastModified"], size=one["Size"])
            for one in kept
        ]
        known = sorted(found, key=lambda bundle: bundle.at, reverse=True)
        self._kept[node] = (self.now(), known)
        return known

    def fetch_evidence(self, node: str, name: str) -> bytes:
        hints = {"NoSuchKey": f"node {node} has kept no {name}"}
        with explained(replace(self.where, hints=hints)):
            kept = self.client("s3").get_object(Bucket=self._bucket(), Key=f"{FOLDER}/{node}/{name}")
            return bytes(kept["Body"].read())

    def _bucket(self) -> str:
        if not self._settings.EVIDENCE_BUCKET:
            raise Refused(
                "this deployment keeps nothing before a reboot: set EVIDENCE_DAYS and deploy it again"
            )
        return self._settings.EVIDENCE_BUCKET

    # -- events that no function could handle -----------------------------------------------------------------------

    def letters(self) -> Seen:
        with self.plainly():
            return self._queue().seen()

    def send_letters_again(self, *ids: str) -> Sequence[Sent]:
        """Who may not call a function, or delete a letter, is told so; the letter stays."""
        with self.plainly():
            return self._queue().send_again(*ids)

    def discard_letter(self, name: str, *, why: str, by: str) -> Letter:
        """The people who hear of failures hear of this too, before it is done: nothing else of the account keeps it."""
        tell = self._runtime.notifier.notify
        with self.plainly():
            return self._queue().discard(name, lambda letter: tell(put_away(letter, by, why)))

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
