"""What each function may do, and nothing else. docs/permissions.md is made from the result.

All four run the same engine: whichever event completes a picture sends the orders that follow from it. So all
may start, stop, reboot and tell. They differ in what they may read: what each looks up for its own events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aws_cdk import aws_iam as iam

from ..aws.tables import BY_CLUSTER, BY_INSTANCE, BY_STATUS, DUE, JOBS, LIVE, NODES, TASKS, Table
from ..config import Config
from . import places
from .evidence import Evidence
from .naming import Name
from .places import Places
from .tables import Tables

TASK_HANDLER, CHECK_MONITOR = "EcsTaskHandler", "DcgmTaskMonitor"
INSTANCE_MONITOR, SWEEPER = "EcsInstanceMonitor", "RecoverySweeper"

_NO_RESOURCE = (
    "ecs:ListTasks by startedBy, ecs:DescribeTaskDefinition, ssm:DescribeInstanceInformation, ec2:DescribeInstances, "
    "ssm:ListCommandInvocations and ssm:CancelCommand take no narrower resource. The first is bound to the cluster by "
    "a condition; the next four read. With the last one the sweeper calls back reboots that were given up."
)
#: Any function: load a record, move it with a condition, and bring the rows up to it.
_ENGINE: Mapping[Table, tuple[str, ...]] = {
    JOBS: ("GetItem", "UpdateItem"),
    TASKS: ("BatchGetItem", "UpdateItem"),
    NODES: ("BatchGetItem", "GetItem", "UpdateItem"),
}
#: Any function: whoever frees a node looks for the jobs that wait for one, and whoever moves a job to where it needs
#: other nodes looks for free ones.
_OFFERS = ((JOBS, BY_STATUS), (NODES, BY_CLUSTER))


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What one function needs beyond the engine."""

    records: Mapping[Table, tuple[str, ...]] = field(default_factory=dict)
    indexes: tuple[tuple[Table, str], ...] = ()
    sees_commands: bool = False
    calls_back: bool = False
    hears_ranks: bool = False
    meets_nodes: bool = False  #: it records nodes that it sees for the first time
    counts_nodes: bool = False  #: and looks for those of which no event came
    asks_ec2: bool = False  #: of machines that ECS does not hear from


FUNCTIONS: Mapping[str, Needs] = {
    # It finds the job of a task by the task's row, and takes over jobs that another tool recorded.
    TASK_HANDLER: Needs(records={TASKS: ("GetItem",)}),
    CHECK_MONITOR: Needs(),
    # An event names a container instance, which may be a known host's new one, and a command may be the reboot that
    # some job waits for.
    INSTANCE_MONITOR: Needs(indexes=((NODES, BY_INSTANCE),), sees_commands=True, meets_nodes=True),
    # It looks for what is due, compares what is live with the cluster, takes over jobs that no event led to, and
    # frees claims of no job.
    SWEEPER: Needs(
        records={JOBS: ("ConditionCheckItem",)},
        indexes=((JOBS, DUE), (JOBS, LIVE), (NODES, BY_INSTANCE)),
        sees_commands=True,
        calls_back=True,
        hears_ranks=True,
        meets_nodes=True,
        counts_nodes=True,
        asks_ec2=True,
    ),
}


class Daemon(Protocol):
    """Something that every node runs: its task definition, and the roles that starting it passes on."""

    family: str
    roles: Sequence[str]


class Permissions:
    """Statements for each function, and the wildcards in them with their reasons."""

    def __init__(
        self,
        *,
        config: Config,
        tables: Tables,
        topic_arn: str,
        key_arn: str,
        timeline_arn: str,
        evidence: Evidence | None = None,
        role_arns: Sequence[str],
        daemons: Sequence[Daemon] = (),
    ) -> None:
        self._config, self._tables, self._roles = config, tables, role_arns
        self._topic, self._key, self._timeline = topic_arn, key_arn, timeline_arn
        self._evidence = evidence
        self._daemons = daemons

    def of(self, function: str) -> list[iam.PolicyStatement]:
        needs = FUNCTIONS[function]
        keeping = self._keeping() if function == SWEEPER and self._daemons else []
        return [
            *self._records(needs),
            *self._cluster(),
            *keeping,
            *self._newcomers(needs),
            *self._hosts(needs),
            *self._messages(),
            *([self._ranks()] if needs.hears_ranks else []),
        ]

    def wildcards(self) -> Iterable[tuple[str, str]]:
        """Each wildcard that `of` grants, as the checker spells it, and why it must be one."""
        of = (
            places.definitions,
            places.tasks,
            places.instances,
            places.hosts,
            places.training_logs,
            places.training_groups,
            *([places.groups] if self._config.policy.may_replace else []),
        )
        names = [*self._daemon_names(), *(name for on in of for name in on(self._config))]
        yield from ((name.shown, name.why) for name in names if "*" in name.resource)
        if self._evidence:
            yield self._evidence.wildcard
        yield "*", _NO_RESOURCE

    def _arns(self, on: Places) -> list[str]:
        return [name.arn for name in on(self._config)]

    def _here(self) -> dict[str, object]:
        return {"ArnEquals": {"ecs:cluster": self._arns(places.cluster)[0]}}

    def _ranks(self) -> iam.PolicyStatement:
        """Whether ranks still write. The question for several streams is one to their group."""
        return _allow("logs:{FilterLogEvents}", self._arns(places.training_groups))

    # -- records ---------------------------------------------------------------------------------------------

    def _records(self, needs: Needs) -> list[iam.PolicyStatement]:
        statements = []
        for table in (JOBS, TASKS, NODES):
            actions = sorted({*_ENGINE[table], *needs.records.get(table, ())})
            statements.append(_allow(f"dynamodb:{{{','.join(actions)}}}", [self._tables.of(table).table_arn]))
        statements.append(_allow("dynamodb:{UpdateItem}", [self._tables.calls.table_arn]))
        statements.append(_allow("dynamodb:{GetItem,UpdateItem}", [self._tables.guard.table_arn]))
        indexes = (*needs.indexes, *_OFFERS)
        arns = [f"{self._tables.of(table).table_arn}/index/{index}" for table, index in indexes]
        statements.append(_allow("dynamodb:{Query}", arns))
        return statements

    # -- the cluster -----------------------------------------------------------------------------------------

    def _cluster(self) -> list[iam.PolicyStatement]:
        here, to_ecs = self._here(), {"StringEquals": {"iam:PassedToService": "ecs-tasks.amazonaws.com"}}
        return [
            _allow("ecs:{StartTask}", self._arns(places.definitions), here),
            _allow("iam:{PassRole}", self._roles, to_ecs),
            _allow("ecs:{DescribeTasks,StopTask}", self._arns(places.tasks), here),
            _allow("ecs:{DescribeContainerInstances,PutAttributes}", self._arns(places.instances), here),
            _allow("ecs:{ListTasks}", ["*"], here),
            _allow("ecs:{DescribeTaskDefinition}", ["*"]),
        ]

    def _keeping(self) -> list[iam.PolicyStatement]:
        """What it takes to keep one daemon on each external node, beside what the sweeper may do anyway."""
        here, to_ecs = self._here(), {"StringEquals": {"iam:PassedToService": "ecs-tasks.amazonaws.com"}}
        roles = list(dict.fromkeys(role for daemon in self._daemons for role in daemon.roles))
        return [
            _allow("ecs:{StartTask}", [name.arn for name in self._daemon_names()], here),
            _allow("iam:{PassRole}", roles, to_ecs),
        ]

    def _newcomers(self, needs: Needs) -> list[iam.PolicyStatement]:
        """Nodes that nobody has recorded yet: which there are, and which of them have the tag. And of those that are
        missed, whether they are still there."""
        count = _allow("ecs:{ListContainerInstances}", self._arns(places.cluster))
        meet = _allow("ssm:{DescribeInstanceInformation}", ["*"])
        ask = _allow("ec2:{DescribeInstances}", ["*"])
        return [
            *([count] if needs.counts_nodes else []),
            *([meet] if needs.meets_nodes else []),
            *([ask] if needs.asks_ec2 else []),
        ]

    def _daemon_names(self) -> list[Name]:
        why = "The newest revision is to run, on this cluster only."
        return [Name("ecs", f"task-definition/{daemon.family}:*", why=why) for daemon in self._daemons]

    # -- hosts and people ------------------------------------------------------------------------------------

    def _hosts(self, needs: Needs) -> list[iam.PolicyStatement]:
        key, value = self._config.node_tag
        tagged = {"StringEquals": {f"ssm:resourceTag/{key}": value}}
        looks = needs.hears_ranks and self._evidence  # whoever finds a hang has it looked at
        return [
            _allow("ssm:{SendCommand}", self._arns(places.document)),
            _allow("ssm:{SendCommand}", self._arns(places.hosts), tagged),
            *self._replacements(),
            *([_allow("ssm:{ListCommandInvocations}", ["*"])] if needs.sees_commands else []),
            *([_allow("ssm:{CancelCommand}", ["*"])] if needs.calls_back else []),
            *([_allow("ssm:{SendCommand}", self._arns(places.hang_document))] if looks else []),
            # Not used by the functions themselves: the address that a host is given is signed with it.
            *([_allow("s3:{PutObject}", [self._evidence.archives])] if self._evidence else []),
        ]

    def _replacements(self) -> list[iam.PolicyStatement]:
        """Only where that rung is, and in groups with the stack's own tag. What a machine knows is kept before."""
        if not self._config.policy.may_replace:
            return []
        key, value = self._config.node_tag
        tagged = {"StringEquals": {f"autoscaling:ResourceTag/{key}": value}}
        ends = "autoscaling:{TerminateInstanceInAutoScalingGroup}"
        looks = [_allow("ssm:{SendCommand}", self._arns(places.last_look))] if self._evidence else []
        return [_allow(ends, self._arns(places.groups), tagged), *looks]

    def _messages(self) -> list[iam.PolicyStatement]:
        """The topic is encrypted: a publisher uses its key. What the records have no room for goes to a log, and what a
        failed rank wrote last is read from its own."""
        return [
            _allow("sns:{Publish}", [self._topic]),
            _allow("kms:{Decrypt,GenerateDataKey}", [self._key]),
            _allow("logs:{CreateLogStream,PutLogEvents}", [self._timeline]),
            _allow("logs:{GetLogEvents}", self._arns(places.training_logs)),
            _allow("events:{PutEvents}", self._arns(places.bus), places.incidents_only()),
        ]


def _allow(
    what: str, resources: Sequence[str], conditions: Mapping[str, object] | None = None
) -> iam.PolicyStatement:
    """`service:{Action,Action}` on resources."""
    service, _, actions = what.partition(":")
    names = [f"{service}:{action}" for action in actions.strip("{}").split(",")]
    return iam.PolicyStatement(actions=names, resources=list(resources), conditions=conditions)
