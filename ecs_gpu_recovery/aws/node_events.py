"""What events say of nodes: sightings, health, faults that a node's watch saw, and commands on its host."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from ..core.events import GRAVE, FaultSeen, NodeLeaving, NodePulse, NodeSeen
from ..core.model import Leave, Notice
from ..core.node_record import WHOLE_JOB, Wrote
from ..core.witness import STATES
from . import event_fields as read
from . import node_kind
from .event_fields import Malformed
from .parsed import Event, Kind, Parsed, ours, placed, shown
from .reboot_document import is_reboot

#: So long before the end EC2 tells it.
SPOT_NOTICE = timedelta(minutes=2)
#: So long new jobs keep away from an instance that EC2 may need soon.
REBALANCED = timedelta(minutes=50)
#: A watch tells of no more files, and none has been silent, or made a pause, for longer than a month.
_MOST_FILES, _LONGEST_S = 512, 30 * 24 * 3600
_UNDER_WAY = ("Pending", "InProgress", "Delayed", "Cancelling")


def instance(ev: Event) -> Parsed:
    """A sighting. One comes with every placement too, so most of them change nothing."""
    seen, here = placed(ev, Kind.INSTANCE, "container-instance", "containerInstanceArn")
    if not here:
        return seen
    connected, status = ev.detail.get("agentConnected"), read.text(ev.detail.get("status"))
    if not isinstance(connected, bool) or not status:
        raise Malformed("the instance's agentConnected or status is missing")
    gpus, reason = _gpus(ev.detail.get("registeredResources")), read.line(ev.detail.get("statusReason"), 200)
    says = f"the instance is {status}" + (f" ({reason})" if reason else "")
    rows = [row for row in read.members(ev.detail.get("attributes")) if isinstance(row.get("name"), str)]
    said = {str(row["name"]): read.name(row.get("value")) for row in rows}
    fact = NodeSeen(
        at=ev.at,
        node="",
        connected=connected,
        gpus=gpus,
        version=seen.version,
        gone=status in ("INACTIVE", "DEREGISTERING"),
        why="" if status == "ACTIVE" else says,
        instance=seen.instance,
        host=seen.host,
        registered=read.moment(ev.detail.get("registeredAt")),
        called=said.get("node_name", ""),
        address=said.get("ip", ""),
        ibdev=node_kind.devices(said),
        kind=node_kind.kind_of(said, seen.host),
        spare=node_kind.is_spare(said),
        leave=Leave(notice=Notice.SEEN, why=says, at=ev.at) if status == "DRAINING" else None,
    )
    why = f"{says}, its agent {'' if connected else 'not '}connected, GPUs registered: {shown(gpus)}"
    return ours(replace(seen, status=status, facts=(fact,), why=why, called=fact.called or seen.host))


def _gpus(resources: object) -> int | None:
    """How many GPUs the agent registered. A list without any means none: the driver did not come up."""
    rows = read.members(resources)
    for row in rows:
        if row.get("name") == "GPU":
            listed = row.get("stringSetValue")
            return len(set(read.strings(listed))) if isinstance(listed, list) else None
    return 0 if rows else None


def instance_health(ev: Event) -> Parsed:
    """Evidence: it is recorded, and the verdict stays with our check. What ECS says of GPUs, or of the instance as a
    whole, is grave; an agent that is away, or a daemon that does not run, is no fault of a GPU."""
    seen, here = placed(ev, Kind.INSTANCE_HEALTH, "container-instance", "containerInstanceArn")
    if not here:
        return seen
    overall = read.text(ev.detail.get("overallStatus"))
    rows = [row for row in read.members(ev.detail.get("healthChecks")) if row.get("status") == "IMPAIRED"]
    bad = [
        " ".join(filter(None, (read.line(row.get(key), 200) for key in ("type", "status", "statusReason"))))
        for row in rows
    ]
    grave = not rows or any(row.get("type") == "ACCELERATED_COMPUTE" for row in rows)
    if not overall and not bad:
        raise Malformed("the instance's overallStatus is missing")
    if not bad and overall == "IMPAIRED":
        bad = ["instance health IMPAIRED"]
    evidence = read.line("; ".join(bad), 1000)
    why = f"ECS reports {evidence}" if bad else f"ECS reports {overall}: nothing to record"
    facts = (FaultSeen(at=ev.at, node="", evidence=evidence, grave=grave),) if bad else ()
    return ours(replace(seen, status=overall, facts=facts, why=why))


def spot_notice(ev: Event) -> Parsed:
    """EC2 takes a spot instance back, two minutes later; one that is hibernated stops at once."""
    action = read.text(ev.detail.get("instance-action"))
    if not action:
        raise Malformed("it does not say what will be done with the instance")
    until = ev.at + (timedelta(0) if action == "hibernate" else SPOT_NOTICE)
    why = f"EC2 takes its spot instance back ({read.line(action, 20)}) at {until:%H:%M:%S} UTC"
    return _leaves(ev, Leave(notice=Notice.TOLD, why=why, at=ev.at, until=until))


def rebalance(ev: Event) -> Parsed:
    """EC2 takes it for more likely than usual that it will need the instance. It does not say until when."""
    until = ev.at + REBALANCED
    return _leaves(ev, Leave(notice=Notice.MAYBE, why="EC2 recommends to rebalance", at=ev.at, until=until))


def _leaves(ev: Event, leave: Leave) -> Parsed:
    """It names a host of any cluster, or of none: the tables tell whether it is a node."""
    host = read.host(ev.detail.get("instance-id"))
    if not host:
        raise Malformed("its instance-id is missing or no id of an instance")
    fact = NodeLeaving(at=ev.at, node="", leave=leave)
    why = f"{host}: {leave.why}"
    return Parsed(kind=Kind.LEAVING, why=why, may_be_ours=True, at=ev.at, host=host, facts=(fact,))


def _watched(ev: Event, kind: Kind, what: str) -> tuple[Parsed, str, bool]:
    """Which node a watch speaks of: it names its container instance, or else itself. The last: whether it is ours."""
    said, node = ev.detail.get("containerInstanceArn"), read.name(ev.detail.get("node"))
    instance = read.arn(said, "container-instance")
    if not what:
        raise Malformed("it does not say what was seen")
    if instance is None and (said is not None or not node):
        raise Malformed("it names no node, or its containerInstanceArn is no ARN of one")
    cluster = (instance.cluster if instance else "") or read.text(ev.detail.get("cluster"))
    seen = Parsed(kind=kind, why="", at=ev.at, cluster=cluster)
    if ev.cluster and ev.cluster.rpartition("/")[2] != cluster:
        elsewhere = f"happened in cluster {cluster or '(not named)'}, not in {ev.cluster}"
        return replace(seen, why=elsewhere), "", False
    seen = replace(seen, node="" if instance else node, instance=instance.text if instance else "")
    return seen, instance.id if instance else node, True


def fault(ev: Event) -> Parsed:
    """Evidence from a node's own watch."""
    what = read.line(ev.detail.get("what"), 200)
    seen, watch, here = _watched(ev, Kind.FAULT, what)
    seen = replace(seen, status=read.text(ev.detail.get("action")))
    if not here:
        return seen
    line = read.line(ev.detail.get("evidence"), 200)
    fact = FaultSeen(
        at=ev.at,
        node=seen.node,
        evidence=f"{what} | {line}" if line else what,
        application=ev.detail.get("application") is True,
        fatal=ev.detail.get("fatal") is True,
        grave=seen.status in GRAVE,
        boot_id=read.name(ev.detail.get("boot_id")),
    )
    who = "a program at fault" if fact.application else "a fault"
    return ours(replace(seen, facts=(fact,), why=f"the watch on {watch} saw {who}: {what}"))


def pulse(ev: Event) -> Parsed:
    """What a node's own watch saw its GPUs do: one of two witnesses of a hang."""
    what, state = read.line(ev.detail.get("what"), 200), read.text(ev.detail.get("state"))
    seen, watch, here = _watched(ev, Kind.PULSE, what)
    if not here:
        return seen
    since = read.moment(ev.detail.get("since"))
    if state not in STATES or since is None:
        raise Malformed("its state or since is missing, or not understood")
    fact = NodePulse(
        at=ev.at,
        node=seen.node,
        state=state,
        since=since,
        trained=ev.detail.get("moved") is True,
        what=what,
        wrote=_wrote(ev),
    )
    said = f"the watch on {watch} says that its GPUs are {state} since {since:%H:%M:%S}: {what}"
    return ours(replace(seen, status=state, facts=(fact,), why=said))


def _wrote(ev: Event) -> tuple[Wrote, ...]:
    """When ranks were last seen to write. They are counted back from the event, so none wrote in the future.

    What makes no sense is left out: one odd file must not silence what a node says of its GPUs.
    """
    found = []
    for one in read.members(ev.detail.get("wrote"))[:_MOST_FILES]:
        job, rank = read.name(one.get("job")), read.whole(one.get("rank"))
        silent, pause = read.whole(one.get("silent_s")), read.whole(one.get("pause_s"))
        if rank is None or silent is None or pause is None or not job or rank < WHOLE_JOB:
            continue
        if 0 <= silent <= _LONGEST_S and 0 <= pause <= _LONGEST_S:
            found.append(Wrote(job=job, rank=rank, at=ev.at - timedelta(seconds=silent), pause_s=pause))
    return tuple(found)


def command(ev: Event) -> Parsed:
    """A command on a host. It proves nothing by itself; the handler asks the fleet for proof of a reboot."""
    command_id, status = read.text(ev.detail.get("command-id")), read.text(ev.detail.get("status"))
    if not command_id or not status:
        raise Malformed("the command's id or status is missing")
    hosts = {found for arn in ev.resources if (found := read.host(arn.rpartition("/")[2]))}
    host = read.host(ev.detail.get("instance-id")) or (hosts.pop() if len(hosts) == 1 else "")
    document, over = read.text(ev.detail.get("document-name")), status.replace(" ", "") not in _UNDER_WAY
    reboots = is_reboot(document)
    what_next = "ask the fleet whether it proves a reboot of ours" if over else "not over yet"
    return Parsed(
        kind=Kind.REBOOT_COMMAND,
        why=f"command {command_id} on {host or 'an unnamed host'} is {status}: "
        + (what_next if reboots else f"{document or 'its document'} is not what reboots are ordered with"),
        ours=reboots,
        may_be_ours=reboots,
        at=ev.at,
        command_id=command_id,
        host=host,
        status=status,
    )
