"""ECS and SSM behind the fleet port: one method per order, its key passed on, errors translated. It decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..core import keys
from ..core.effects import CheckNode, RebootNode, ReplaceNode, StartTask, StopTask
from ..core.errors import ClusterRefused
from ..core.events import (
    CheckStarted,
    Fact,
    NodeChecked,
    NodeSeen,
    OrderSent,
    RebootFailed,
    TaskEnded,
    TaskStarted,
)
from ..core.model import Job, NodeStatus, Rank
from ..core.node_record import Node
from ..core.witness import Named
from ..engine.dispatch import node_of
from ..environment import training_environment
from ..settings import REBOOT_DELIVERY
from .check_log import CheckLog
from .definitions import Definitions
from .errors import code_of, translated
from .event_fields import family, id_of
from .hang_look import HangLook
from .labels import Labels, shown
from .machines import Machines
from .observe import checks_as_facts, instances_as_facts, origin_of, tasks_as_facts
from .overrides import commanded, overrides_of
from .pages import pages
from .rate_limit import Pace
from .reboots import CALLED_BACK_FOR, Command, Reboots, outcome
from .replacements import Replacements
from .run_command import SUCCESS
from .silence import LogSilence
from .task_end import CHECK_TRY, CHECKPOINTS, JOB, NODE, ROLE

if TYPE_CHECKING:
    from mypy_boto3_ecs import ECSClient
    from mypy_boto3_logs import CloudWatchLogsClient

log = logging.getLogger("ecs_gpu_recovery")
#: The checks of so many ranks look how far the training has come: one answers even if the other's node is lost.
LOOKERS = 2
#: StartTask says no in two ways: `failures` in an answer, and these. Nothing that is sent again changes them.
_NO = frozenset(
    {"ClientException", "InvalidParameterException", "UnsupportedFeatureException", "BlockedException"}
)


class EcsFleet:
    """The cluster as ECS and SSM show it."""

    def __init__(  # noqa: PLR0913 - all by name
        self,
        *,
        ecs: ECSClient,
        reboots: Reboots,
        replacements: Replacements,
        looks: HangLook,
        logs: CloudWatchLogsClient,
        machines: Machines,
        cluster: str,
        check_task: str,
        now: Callable[[], datetime],
        pace: Pace,
    ) -> None:
        self._ecs, self._cluster, self._check_task, self._now = ecs, cluster, check_task, now
        self._reboots, self._replacements = reboots, replacements
        self._looks, self._machines = looks, machines
        self._pace = pace
        self.definitions = Definitions(ecs, now)
        self._check_log = CheckLog(logs, self.definitions, check_task)
        self.silence = LogSilence(logs, self.definitions).since
        self._labels = Labels(ecs, cluster, pace)
        self._hosts: dict[str, str] = {}
        self._sent: dict[str, Command] = {}  #: orders to reboot that this process has sent

    # -- orders ------------------------------------------------------------------------------------------------

    def start_task(self, job: Job, order: StartTask, *, again: bool) -> Iterable[Fact]:
        rank = job.ranks[order.rank]
        task_id = self._find_any(order.token, rank.instance, job.spec.family) if again else ""
        if not task_id:
            container = job.spec.container or self.definitions.container(job.spec.task_def)
            task_id = self._start(
                job.spec.task_def,
                rank.instance,
                rank.node,
                order.token,
                container,
                training_environment(job, rank),
                rank.overrides or commanded(container, job.spec.command),
                adopted=bool(rank.overrides) or job.spec.adopted,
            )
        return [TaskStarted(at=self._now(), task_id=task_id, attempt=order.attempt, rank=order.rank)]

    def check_node(self, job: Job | None, node: Node, order: CheckNode, *, again: bool) -> Iterable[Fact]:
        task_id = self._find_any(order.token, node.instance, family(self._check_task)) if again else ""
        if not task_id:
            env = {
                ROLE: "check",
                JOB: job.id if job is not None else "",
                NODE: node.name,
                CHECK_TRY: str(order.check_try),
                "GPU_HEALTH_LEVEL": order.level,
                "GPU_HEALTH_EXPECT_GPUS": str(node.gpus or ""),
                "GPU_HEALTH_EXPECT_IDLE": "1" if order.idle else "",
            }
            if job is not None and not job.preflight and 0 <= order.rank < LOOKERS:
                env[CHECKPOINTS] = job.spec.checkpoint_dir
            env = {key: value for key, value in env.items() if value}
            task_id = self._start(
                self._check_task,
                node.instance,
                node.name,
                order.token,
                self.definitions.container(self._check_task),
                env,
            )
        return [CheckStarted(at=self._now(), node=node.name, check_id=task_id, check_try=order.check_try)]

    def _start(
        self,
        task_def: str,
        instance: str,
        node: str,
        started_by: str,
        container: str,
        env: Mapping[str, str],
        first: str = "",
        *,
        adopted: bool = False,
    ) -> str:
        """Start one task on one instance. HTTP success may still carry a refusal."""
        overrides = overrides_of(first, container, env, adopted=adopted)
        from botocore.exceptions import ClientError

        self._pace.wait()
        try:
            with translated(f"starting {started_by} on {node}"):
                reply = self._ecs.start_task(
                    cluster=self._cluster,
                    taskDefinition=task_def,
                    containerInstances=[instance],
                    startedBy=started_by,
                    overrides=overrides,  # type: ignore[arg-type]
                )
        except ClientError as exc:
            self.definitions.forget(task_def)
            if code_of(exc) not in _NO:
                raise
            raise ClusterRefused(node, f"{code_of(exc)}: {exc.response['Error'].get('Message', '')}") from exc
        if reply.get("failures") or not reply.get("tasks"):
            failure = (reply.get("failures") or [{"reason": "no task and no reason"}])[0]
            detail = f" ({failure['detail']})" if failure.get("detail") else ""
            raise ClusterRefused(node, f"{failure.get('reason', 'unknown')}{detail}")
        return id_of(reply["tasks"][0]["taskArn"])

    def _find(self, started_by: str, instance: str, of: str = "") -> str:
        """The task that carries this token, if it was started before. AWS allows no other filter beside it."""
        with translated(f"looking for {started_by}"):
            found = self._ecs.list_tasks(cluster=self._cluster, startedBy=started_by).get("taskArns", [])
        return _first(self._describe([id_of(arn) for arn in found]), started_by, instance, of)

    def _find_any(self, started_by: str, instance: str, of: str) -> str:
        """The same among tasks that have ended: ECS remembers them for an hour, and lists them by instance only.

        One that ended before its start was recorded would be started a second time if nobody looked here.
        """
        if running := self._find(started_by, instance, of):
            return running
        for task_ids in self._listed(
            f"looking for {started_by} among what has ended",
            containerInstance=instance,
            desiredStatus="STOPPED",
        ):
            if task_id := _first(self._describe(task_ids), started_by, instance, of):
                return task_id
        return ""

    def _listed(self, doing: str, **filters: str) -> Iterator[list[str]]:
        """The ids of tasks, page by page."""
        for page in pages(doing, self._ecs.list_tasks, cluster=self._cluster, **filters):
            yield [id_of(arn) for arn in page.get("taskArns", [])]

    def stop_task(self, job_id: str, order: StopTask) -> Iterable[Fact]:
        """Stop by id, else by token. What ECS does not know any more has ended."""
        task_id = order.task_id or self._find(order.token, order.instance)
        gone = TaskEnded(
            at=self._now(),
            task_id=order.task_id,
            attempt=order.attempt,
            rank=order.rank,
            exit_code=None,
            reason=order.reason,
            stop_code="UserInitiated",
        )
        if not task_id:
            return [gone] if order.rank >= 0 else []
        self._pace.wait()
        from botocore.exceptions import ClientError

        try:
            with translated(f"stopping {task_id}"):
                self._ecs.stop_task(cluster=self._cluster, task=task_id, reason=order.reason)
        except ClientError as exc:
            if "not found" not in str(exc).lower():
                raise
            return [gone] if order.rank >= 0 else []
        if order.rank >= 0 and not order.task_id:
            return [TaskStarted(at=self._now(), task_id=task_id, attempt=order.attempt, rank=order.rank)]
        return []

    def reboot_node(self, node: Node, order: RebootNode, *, again: bool) -> Iterable[Fact]:
        """SSM has no token either: the key travels in the comment and in the script, and the host keeps a marker."""
        host = self.host_of(node)
        if not host:
            why = "the host behind this container instance is unknown"
            return [RebootFailed(at=self._now(), node=node.name, key=order.key, reason=why)]
        if not (again and self._reboots.find(host, order.key, self._now()) is not None):
            sent = self._reboots.send(host, node.name, order.key)
            self._sent[sent.command_id] = sent
        return [OrderSent(at=self._now(), key=order.key, kept=self._reboots.kept(node.name, order.key))]

    def replace_node(self, node: Node, order: ReplaceNode, *, again: bool) -> Iterable[Fact]:
        kept = self._replacements.send(self.host_of(node), node.name, order.key, self._now(), again=again)
        return [OrderSent(at=self._now(), key=order.key, kept=kept)]

    def keep_hang(self, job: Job, ranks: Sequence[Rank], *, last: bool) -> None:
        for rank in ranks:
            key = keys.hang_look(job.id, job.attempt, rank.node, last=last)
            self._looks.send(key, rank.node, self.host_of(rank), rank.task_id)

    def waited_for(self, job: Job, ranks: Sequence[Rank], since: datetime) -> Named | None:
        """Those that seem to be waited for are asked last: a rank that is stopped answers nothing."""
        places = ((self.host_of(rank), rank.task_id) for rank in reversed(ranks))
        return self._looks.named(places, job.ranks, since)

    def company(self, node: Node) -> Sequence[str]:
        """Tasks that are meant to run there, but for our checks, daemons, and the one that its job could not stop."""
        if not node.instance:
            return []
        there = self._listed(f"looking who runs on {node.name}", containerInstance=node.instance)
        found = [task_id for page in there for task_id in page if task_id != node.task]
        ours = {family(self._check_task), *self._reboots.beside}
        tasks = [(family(str(task.get("taskDefinitionArn", ""))), task) for task in self._describe(found)]
        return [
            f"task {id_of(task['taskArn'])} of {of}"
            for of, task in tasks
            if of not in ours and task.get("lastStatus") not in ("MISSING", "STOPPED")
        ]

    def host_of(self, of: Node | Rank) -> str:
        """The machine behind a node, which its record knows unless it is older than that knowledge."""
        if of.host or not of.instance:
            return of.host
        if of.instance not in self._hosts:
            with translated(f"describing {of.instance}"):
                found = self._ecs.describe_container_instances(
                    cluster=self._cluster, containerInstances=[of.instance]
                )
            self._note_hosts(found)
        return self._hosts.get(of.instance, "")

    def _note_hosts(self, reply: Mapping[str, Any]) -> None:
        for instance in reply.get("containerInstances", []):
            if instance.get("ec2InstanceId"):
                self._hosts[str(instance["containerInstanceArn"])] = str(instance["ec2InstanceId"])

    def label_nodes(self, nodes: Sequence[Node]) -> None:
        self._labels.put(nodes)

    # -- what can be seen --------------------------------------------------------------------------------------

    def observe_job(self, job: Job) -> Iterable[Fact]:
        shown: dict[str, str] = {}
        held = [rank for rank in job.ranks if not rank.handed]
        yield from self.see_instances({r.instance: r.node for r in held if r.instance}, shown)
        self._labels.mend([node_of(job, rank) for rank in held], shown)
        yield from self._see_tasks(job)
        yield from self._machines.word_on(job, self._now())

    def observe_nodes(self, nodes: Sequence[Node]) -> Iterable[tuple[str, Fact]]:
        """An order to reboot a node that has been given up since is called back: it could be carried out when a person
        has let the node in again."""
        by_instance = {node.instance: node for node in nodes if node.instance}
        shown: dict[str, str] = {}
        away: set[str] = set()
        names = {instance: node.name for instance, node in by_instance.items()}
        for fact in self.see_instances(names, shown):
            if isinstance(fact, NodeSeen) and not fact.connected:
                away.add(fact.node)
            yield getattr(fact, "node", ""), fact
        self._labels.mend(list(by_instance.values()), shown)
        checking = {
            node.check_id: node
            for node in nodes
            if node.status is NodeStatus.PENDING_HEALTHCHECK and node.check_id
        }
        for fact in checks_as_facts(
            self._describe(list(checking)),
            {cid: (n.name, n.check_try) for cid, n in checking.items()},
            self._now(),
        ):
            yield fact.node, self.explained(fact)
        for node in nodes:
            if node.status is NodeStatus.FAILED and node.updated_at > self._now() - CALLED_BACK_FOR:
                self._reboots.call_back(self.host_of(node), self._now())
            waits = node.status is NodeStatus.REBOOTING and not node.rebooted and node.reboot_key
            young = node.name in away and self._is_young(node.away_since)
            if waits and not (young or node.being_replaced):
                for told in self.see_reboot(node):
                    yield node.name, told
        replaced = [node for node in nodes if node.being_taken_away]
        yield from ((told.node, told) for told in self._machines.word_on_replaced(replaced, self._now()))

    def _is_young(self, absence: datetime | None) -> bool:
        """Of a node that is on its way down or up there is nothing to learn yet."""
        return absence is None or absence > self._now() - REBOOT_DELIVERY

    def see_instances(self, names: Mapping[str, str], labels: dict[str, str] | None = None) -> Iterator[Fact]:
        """`names` by instance; `labels` is filled with what each node's instance says of its status."""
        arns = list(names)
        for start in range(0, len(arns), 100):
            with translated("describing container instances"):
                reply = self._ecs.describe_container_instances(
                    cluster=self._cluster, containerInstances=arns[start : start + 100]
                )
            self._note_hosts(reply)
            if labels is not None:
                labels.update(shown(reply, names))
            yield from instances_as_facts(reply, names, self._now())

    def _see_tasks(self, job: Job) -> Iterator[Fact]:
        """Known tasks by id, awaited ones by token; checks that have not answered."""
        known: dict[str, Rank] = {}
        for rank in job.ranks:
            if rank.quiet:
                continue
            token = keys.start_token(job.id, rank, job.salt)
            task_id = rank.task_id or self._find(token, rank.instance, job.spec.family)
            if task_id:
                known[task_id] = rank
        yield from tasks_as_facts(self._describe(list(known)), known, job, self._now())
        checks = {r.check_id: (r.node, r.check_try) for r in job.ranks if r.check_id and r.verdict is None}
        yield from map(self.explained, checks_as_facts(self._describe(list(checks)), checks, self._now()))

    def explained(self, fact: Fact) -> Fact:
        """A verdict with what its check reported beside it, where that matters; any other fact as it is."""
        return self._check_log.explain(fact) if isinstance(fact, NodeChecked) else fact

    def _describe(self, task_ids: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        for start in range(0, len(task_ids), 100):
            some = list(task_ids[start : start + 100])
            with translated("describing tasks"):
                reply = self._ecs.describe_tasks(cluster=self._cluster, tasks=some)
            yield from (dict(task) for task in reply.get("tasks", []))
            for failure in reply.get("failures", []):
                if failure.get("reason") == "MISSING":
                    yield {"taskArn": failure.get("arn", ""), "lastStatus": "MISSING"}

    def see_reboot(self, node: Node) -> Iterator[Fact]:
        """Whether the reboot that a node waits for is proven, or has failed."""
        host, key = self.host_of(node), node.reboot_key
        found = self._reboots.find(host, key, self._now()) if host else None
        fact = outcome(found, node.name, key, self._now()) if found else None
        if fact is not None:
            yield fact

    def commands(self, command_id: str, status: str = "") -> Sequence[Command]:
        """What SSM knows of a command of ours, once per host it was sent to.

        `status` is what an event said. Of a command that this very process has sent, a success is believed.
        """
        if status == SUCCESS and command_id in self._sent:
            return [replace(self._sent[command_id], status=status)]
        return self._reboots.look(command_id)


def _first(tasks: Iterable[Mapping[str, Any]], token: str, instance: str, of: str) -> str:
    """The oldest task that is what was ordered. Whoever copies its token comes later."""
    mine = []
    for task in tasks:
        told = origin_of(task)
        if told.has_token(token) and told.is_on(instance) and told.is_of(of):
            mine.append((str(task.get("createdAt", "")), id_of(task["taskArn"])))
    return min(mine, default=("", ""))[1]
