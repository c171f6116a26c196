"""The AWS side end to end, in one process: the handlers' intake, the real adapters, and a simulated ECS and SSM whose
time the test lets pass. Events arrive as the deployment's rules and Lambda deliver them.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random
from typing import Any

from ecs_gpu_recovery.aws import reboot_document, wiring
from ecs_gpu_recovery.aws.discover import discover
from ecs_gpu_recovery.core.codec import CODEC, Codec
from ecs_gpu_recovery.core.errors import BadRecord
from ecs_gpu_recovery.core.invariants import broken
from ecs_gpu_recovery.core.model import Job, JobSpec
from ecs_gpu_recovery.core.policy import Policy
from ecs_gpu_recovery.engine.troubles import Record
from ecs_gpu_recovery.lambdas.entry import EventClock, newest
from ecs_gpu_recovery.settings import LambdaSettings
from testbed.aws.cloud import Cloud
from testbed.aws.model import Knobs
from tests.stories.account import Account, Died, InMemory, Session, Wire, in_time_of, over_http
from tests.stories.arrivals import Event, a_tick, passes_rules
from tests.stories.memory import GUARDED, TURNS
from tests.stories.watch import Watch

CLUSTER = "gpus"
CHECK = "gpu-dcgm-health-check"
TRAIN = "train"
DOCUMENT = reboot_document.name("EcsGpuRecoveryStack")
#: As in the original state graphs: a job ends when no node is at fault, and a new node is used at once.
POLICY = Policy(restart_when_healthy="never", admission_check=False)
_LOG = {"awslogs-group": "/ecs/EcsGpuRecoveryStack", "awslogs-stream-prefix": "gpu-health"}
LOGGED = {"logConfiguration": {"logDriver": "awslogs", "options": _LOG}}


def container(name: str, gpus: int) -> dict[str, Any]:
    need = [{"type": "GPU", "value": str(gpus)}]
    return {"name": name, "image": f"{name}:1", "cpu": 1024, "memory": 4096, "resourceRequirements": need}


@dataclass
class World:
    """One account with one cluster, and the events on their way to the handlers."""

    cloud: Cloud
    account: Account
    settings: LambdaSettings
    queue: deque[Event] = field(default_factory=deque)
    wire: Wire = field(default_factory=Wire)
    deliver_all: bool = False  #: not only what the deployment's rules let through
    events: bool = True  #: False: every event is lost, only the clock is left
    twice: bool = False  #: every event is delivered twice
    batches: Random | None = None  #: events that wait are delivered together, as many as chance will have it
    concurrent: bool = False  #: every event has a process of its own, and one that waits holds up no other
    invocations: int = 3  #: how often Lambda tries an event in all
    retry_after_s: float = 0.0  #: how long Lambda waits before it tries a failed invocation again
    dead_letters: list[Event] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)  #: what left a handler
    bad: list[dict[Record, Exception]] = field(default_factory=list)  #: what each sweep left out
    release: Codec = CODEC  #: of which release the functions are
    rules_broken: list[str] = field(default_factory=list)
    _wrong: dict[str, tuple[str, str]] = field(default_factory=dict)
    seen: list[Event] = field(default_factory=list)  #: what was delivered, for late repeats
    gathered: list[Event] = field(default_factory=list)  #: for the next batch
    late: deque[tuple[Event, int]] = field(
        default_factory=deque
    )  #: invocations to be tried again, and how often

    def __post_init__(self) -> None:
        self.session = Session(self.cloud, self.account, self.wire)
        self.untouched = self.deliver  #: where a story puts something else in its place
        self.clock = EventClock()
        self.new_process()
        self.watch = Watch(self.cloud)
        self.wire.after.append(self.watch.called)
        self.cloud.subscribe(self.queue.append)

    def new_process(self) -> None:
        self.side = self.a_process()

    def a_process(self) -> wiring.AwsSide:
        side = wiring.build(
            {},
            now=self.clock.now,
            session=self.session,
            settings=self.settings,
            on_commit=self._committed,
            clock=self.now,
        )
        side.store._codec = self.release
        in_time_of(self.cloud, side, self._sleep)
        return side

    def _sleep(self, seconds: float) -> None:
        """A process that waits lets others have theirs; where there is one only, its waits take no time."""
        if not self.concurrent:
            return
        mine, now = self.side, self.clock.now()
        self.pass_time(seconds)
        self.side = mine
        self.clock.set({"time": now.isoformat()})

    def _committed(self, old: Job | None, new: Job) -> None:
        self.rules_broken += [f"{new.id} at version {new.version}: {what}" for what in broken(new)]
        if old is not None and (
            new.attempt < old.attempt or (old.status.final and new.status is not old.status)
        ):
            self.rules_broken.append(
                f"{new.id} went back: {old.status}/{old.attempt} -> {new.status}/{new.attempt}"
            )

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.cloud.agenda.now(), UTC)

    # -- what people and tools do ------------------------------------------------------------------------------

    def add_nodes(self, count: int, *, gpus: int = 8, first: int = 0, alike: bool = False) -> list[str]:
        """Every other one is an EC2 instance, the rest are ECS Anywhere; or all are of one kind."""
        names = [f"n{i}" for i in range(first, first + count)]
        kind = {"ecs.instance-type": "p5.48xlarge", "ecs.availability-zone": "us-east-1a"} if alike else {}
        for i, name in enumerate(names):
            self.cloud.control.add_node(
                name=name,
                cluster=CLUSTER,
                gpus=gpus,
                external=bool(i % 2) and not alike,
                attributes={"node_name": name, **kind},
            )
        self.pump()
        discover(self.cloud.client("ecs"), self.cloud.client("ssm"), self.side.store, CLUSTER, self.now())
        return names

    def joins(self, name: str, *, tag: str = CLUSTER, gpus: int = 8, health: int = 0) -> None:
        """A machine that nobody has recorded; `health` is what its first check says."""
        self.cloud.control.add_node(name=name, cluster=CLUSTER, gpus=gpus, attributes={"node_name": name})
        self.cloud.control.tag_host(name, {"GpuRecovery": tag} if tag else {})
        self.cloud.control.health(name, health)

    def submit(
        self,
        names: list[str],
        *,
        check: bool = False,
        job_id: str = "j1",
        task_def: str = f"{TRAIN}:1",
        container_name: str = "main",
        checkpoints: str = "",
        restart_when_healthy: str | None = None,
        failover: str = "",
    ) -> str:
        spec = JobSpec(
            name="train",
            task_def=task_def,
            container=container_name,
            checkpoint_dir=checkpoints,
            failover=failover,
        )
        self.clock.set({"time": self.now().isoformat()})
        self.side.runtime.submit(
            job_id=job_id,
            cluster=CLUSTER,
            spec=spec,
            nodes=names,
            at=self.now(),
            check=check,
            restart_when_healthy=restart_when_healthy,
        )
        self.pass_time(2)
        return job_id

    def begin(self, nodes: int = 2, *, check: bool = False) -> list[str]:
        """A job that runs on new nodes."""
        names = self.add_nodes(nodes)
        self.submit(names, check=check)
        return names

    def stop(self, job_id: str = "j1") -> None:
        """A person whose command died asks again."""
        try:
            self.side.runtime.stop(job_id, by="ann", why="enough", at=self.now())
        except Died:
            self.new_process()
            self.side.runtime.stop(job_id, by="ann", why="enough", at=self.now())

    def records(self) -> wiring.DynamoStore:
        """A store of its own, whose calls nobody counts or disturbs."""
        return wiring.DynamoStore(
            self.account.client("dynamodb"), cluster=CLUSTER, codec=self.release, **self.account.tables
        )

    def job(self, job_id: str = "j1") -> Job:
        return self.records().job(job_id)

    def task_of(self, rank: int, job_id: str = "j1") -> str:
        return self.job(job_id).ranks[rank].task_id

    def fail_rank(self, rank: int, code: int = 1, reason: str = "") -> None:
        assert self.cloud.control.exit_task(self.task_of(rank), code, reason)

    def finish_attempt(self, attempt: int, *, after_s: float = 30.0) -> None:
        """Tasks of this attempt will end with success."""
        self.cloud.control.script(
            env={"JOB_ATTEMPT": str(attempt)}, family=TRAIN, times=None, exit_code=0, after_s=after_s
        )

    # -- time and events ---------------------------------------------------------------------------------------

    def deliver(self, event: Event, tries: int = 0) -> None:
        """As Lambda does: an invocation that failed is tried twice more, and then goes to the dead letters."""
        self.seen.append(event)
        tries = tries or self.invocations
        while tries:
            tries -= 1
            if self.concurrent:
                self.new_process()
            self.clock.set(event)
            try:
                answer = self.side.intake.take(event)
                if answer.report is not None:
                    self.bad.append(dict(answer.report.bad))
                    answer.report.raise_unforeseen()
                return
            except Died:
                self.new_process()
            except Exception as exc:  # noqa: BLE001 - Lambda catches whatever a function raises
                self.errors.append(exc)
            if self.retry_after_s and tries:
                left = tries
                self.cloud.agenda.after(self.retry_after_s, lambda n=left: self.late.append((event, n)))
                return
        self.dead_letters.append(event)

    def redrive(self) -> None:
        """An operator sends the dead letters again."""
        again, self.dead_letters = self.dead_letters, []
        for event in again:
            self.deliver(event)
        self.pump()

    def pump(self) -> None:
        while self.late:
            self.deliver(*self.late.popleft())
        while self.queue:
            event = self.queue.popleft()
            if self.events and (self.deliver_all or passes_rules(event)):
                for _ in range(2 if self.twice else 1):
                    self.deliver(event) if self.batches is None else self.gathered.append(event)
        if self.gathered and self.batches is not None and self.batches.random() < 0.3:
            self.deliver_together()

    def deliver_together(self) -> None:
        """What has gathered, as a queue hands it over; what failed comes again by itself."""
        some, self.gathered = self.gathered, []
        self.seen += some
        self.clock.set(newest(some))
        for event, answer in zip(some, self.side.intake.take_all(some), strict=True):
            if isinstance(answer, Exception):
                self.deliver(event)

    def pass_time(self, seconds: float) -> None:
        """Events are delivered as they come."""
        agenda, end = self.cloud.agenda, self.cloud.agenda.now() + seconds
        self.pump()
        while (due := agenda.due()) is not None and due <= end:
            with self.cloud.lock:
                agenda.step()
            self.pump()
        self.cloud.advance(max(0.0, end - agenda.now()))
        self.pump()
        while self.gathered:
            self.deliver_together()
            self.pump()

    def _check_labels(self) -> None:
        """While nothing is waiting to be sent, every instance says what its node's row says, or will after one sweep.

        A process may die before it puts a label, and one that stood still may put an old one over a new one.
        """
        rows = self.account.rows("job_table")
        try:
            if not isinstance(self.account, InMemory) or any(
                "version" not in row or "rows_owed" in row or self.job(key).outbox
                for key, row in rows.items()
            ):
                return
        except BadRecord:
            return
        for node in self.records().nodes():
            ranks = self.job(node.job_id).ranks if node.job_id in rows else ()
            handed = any(rank.handed for rank in ranks if rank.node == node.name)
            if node.outbox or (handed and not node.own):  # a job that has not heard yet that the node is back
                return
        known, labels = self.node_statuses(), self.labels()
        gone = {node["name"] for node in self.cloud.control.nodes() if node["status"] == "INACTIVE"}
        wrong = {
            name: (status, labels[name])
            for name, status in known.items()
            if name not in gone and labels[name] not in ("", status)
        }
        before, self._wrong = self._wrong, wrong
        if (still := wrong.items() & before.items()) and not self.wire.fail_all:
            self.rules_broken.append(f"at {self.now():%H:%M:%S} rows and labels differ: {still}")

    def tick(self) -> None:
        self._check_labels()
        self.deliver(a_tick(self.now()))
        self.pump()

    def until(self, holds: Callable[[], bool], *, minutes: int = 240, step: float = 10.0) -> None:
        """The sweeper comes every minute."""
        for _ in range(int(minutes * 60 / step)):
            if holds():
                return
            self.pass_time(step)
            if self.cloud.agenda.now() % 60 < step:
                self.tick()
        raise AssertionError(f"never came true: {self.account.rows('job_table')}"[:2000])

    def run(self, job_id: str = "j1", *, minutes: int = 240) -> Job:
        """Until the job has ended and nothing is left to send."""

        def over() -> bool:
            if "version" not in self.account.rows("job_table")[job_id]:
                return False  # another tool's, and not taken over yet
            job = self.job(job_id)
            if not job.status.final or job.outbox or job.owed:
                return False
            return not any(node.outbox for node in self.records().nodes())  # a node sends its own orders

        self.until(over, minutes=minutes)
        return self.job(job_id)

    # -- what can be seen --------------------------------------------------------------------------------------

    def node_statuses(self) -> dict[str, str]:
        return {name: row["node_status"] for name, row in self.account.rows("node_table").items()}

    def labels(self) -> dict[str, str]:
        """What each container instance says of itself, as far as ECS still knows it."""
        shown = {node["name"]: node["shown"]["attributes"] for node in self.cloud.control.nodes()}
        return {
            name: next((a["value"] for a in rows if a["name"] == "status"), "")
            for name, rows in shown.items()
        }

    def messages(self) -> list[str]:
        return self.account.messages()

    def tasks(self, kind: str = "train", *, live: bool = False) -> list[dict[str, Any]]:
        found = [t for t in self.cloud.control.tasks() if t["env"].get("GPU_RECOVERY_KIND") == kind]
        return [t for t in found if not live or t["lastStatus"] != "STOPPED"]

    def sent(self, action: str) -> int:
        """How often an action of ECS or SSM was called."""
        return int(self.cloud.control.calls()["calls"].get(action, 0))


@contextmanager
def a_world(
    url: str = "", *, seed: int = 0, policy: Policy = POLICY, knobs: Knobs | None = None
) -> Iterator[World]:
    """Tables in memory, or, with an address, in the local AWS there."""
    cloud = Cloud(seed=seed, knobs=knobs or Knobs(check_s=5.0, reboot_s=60.0, stop_s=1.0, start_s=0.5))
    ecs = cloud.client("ecs")
    ecs.create_cluster(clusterName=CLUSTER)
    ecs.register_task_definition(family=TRAIN, containerDefinitions=[container("main", 8)])
    ecs.register_task_definition(family=CHECK, containerDefinitions=[container("check", 8) | LOGGED])
    content = json.dumps(reboot_document.content())
    cloud.client("ssm").create_document(Name=DOCUMENT, Content=content, DocumentType="Command")
    if url:
        with over_http(url) as account:
            yield _world(cloud, account, policy)
    else:
        yield _world(cloud, InMemory(), policy)


def _world(cloud: Cloud, account: Account, policy: Policy) -> World:
    settings = LambdaSettings(
        ECS_CLUSTER_NAME=CLUSTER,
        DCGM_HEALTH_CHECK_TASK=CHECK,
        SNS_TOPIC_ARN=account.topic,
        policy=policy,
        CALL_TABLE_NAME=TURNS if isinstance(account, InMemory) else "",
        GUARD_TABLE_NAME=GUARDED if isinstance(account, InMemory) else "",
        **{f"{role.upper()}_NAME": name for role, name in account.tables.items()},
    )
    return World(cloud, account, settings)


def with_policy(**changes: Any) -> Policy:
    return replace(POLICY, **changes)
