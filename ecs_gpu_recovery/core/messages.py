"""The texts people get. One message per incident: what happened, the evidence, what was done, what to do next.

Each ends with its page in docs/runbooks, as the alarms do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from . import keys
from .effects import Notify
from .errors import NewerRecord, Unreadable
from .guard import FleetGuard, Request, in_common
from .model import Exit, NodeStatus, Rank, Verdict
from .node_record import REPLACED_BY, Node, successor

#: Amazon SNS takes 100 characters, and none beyond ASCII: there the mark of a cut is three dots.
LONGEST_SUBJECT = 100
#: What ECS and embedded nodes write for every end; it says nothing.
NO_NEWS = ("Essential container in task exited", "the program exited")


def headline(text: str) -> str:
    """A subject that is short enough, cut between two words if it has to be."""
    if len(text) <= LONGEST_SUBJECT:
        return text
    kept = text[: LONGEST_SUBJECT - 2]  # the mark, and a look at whether a word ends there
    head, space, _ = kept.rpartition(" ")
    return (head.rstrip(" ,;:") if space else kept[:-1]) + "…"


def job_failed(
    job_id: str, attempt: int, why: str, ranks: Sequence[Rank], *, keeps_evidence: bool = True
) -> Notify:
    """The job has ended and a person is needed."""
    came = {r.node: by for r in ranks if (by := _successor(r))}
    out = (NodeStatus.FAILED, NodeStatus.UNKNOWN)
    bad = [r for r in ranks if r.node_status in out and r.node not in came]
    told = [r for r in ranks if r.verdict is not None or r.exit_reason]
    evidence = [
        f"{r.node}: {_examined(r)}" for r in sorted(told, key=_innocent)
    ]  # what is cut off is at the end
    # A reboot helps where none has been tried since the task ran.
    curable = [r.node for r in bad if r.verdict is Verdict.REBOOT and r.task_attempt == attempt]
    broken = [r.node for r in bad if r.node not in curable]
    advice = [_reboot(curable)] if curable else []
    advice += [f"Wait until {by} is examined: gpu-recovery node show {by}." for by in came.values()]
    if broken:
        advice.append(f"Look at {', '.join(broken)}. {_mended(broken[0])}")
    if keeps_evidence and (broken or came) and attempt:
        advice.append(f"What nodes kept before a repair: gpu-recovery evidence {job_id}.")
    elif keeps_evidence and any(r.hung for r in ranks):
        advice.append(_stood(job_id))
    if not bad and not came:
        advice.append(f"Read the logs: gpu-recovery logs {job_id}.")
    there = f" --nodes {','.join(came.get(r.node, r.node) for r in ranks)}" if came else ""
    advice.append(f"Then run the job again: gpu-recovery retry {job_id}{there}.")
    return Notify(
        key=keys.job_failed(job_id),
        subject=headline(f"Job {job_id} failed: {why}"),
        happened=f"Job {job_id} failed in {f'attempt {attempt}' if attempt else 'its first run'}: {why}.",
        evidence="; ".join(evidence)[:4000],
        done=_done(ranks, came),
        next=f"{' '.join(advice)} More: docs/runbooks/job-failed.md",
        node=(*(r.node for r in bad), *came.values(), "")[0],
    )


def _successor(rank: Rank) -> str:
    """The node whose machine came for its own, as its record has told the job; empty if none did."""
    return successor(rank.findings) if rank.node_status is NodeStatus.FAILED else ""


def _reboot(nodes: Sequence[str]) -> str:
    """A node that is only released still has its fault, and the next job meets it."""
    return (
        f"Reboot {', '.join(nodes)} once: gpu-recovery node reboot {nodes[0]} --why '...' --wait."
        f" Then check it: gpu-recovery node check {nodes[0]} --wait."
        " If the fault is there again, or it does not come back, have it replaced."
    )


def _mended(node: str) -> str:
    """Only a check proves a repair; what a person gives back is examined before a job gets it, where that is asked."""
    return (
        f"When it is repaired or replaced and has booted, check it: gpu-recovery node check {node} --why '...' --wait."
        f" Then give it back, which clears its past: gpu-recovery node release {node} --why '...'."
    )


def _innocent(rank: Rank) -> bool:
    return rank.exit is Exit.STOPPED_BY_US and rank.verdict in (None, Verdict.HEALTHY)


def without(reason: str, *words: str) -> str:
    """What it says beyond these words, with which it may begin or end."""
    for said in words:
        reason = reason.removeprefix(said).removesuffix(said).strip(" ;:")
    return reason


def _examined(rank: Rank) -> str:
    parts = []
    if rank.verdict is not None:
        parts.append(f"verdict {rank.verdict}" + (f" ({rank.findings})" if rank.findings else ""))
    if rank.exit is not None:
        code = "" if rank.exit_code is None else f" with exit code {rank.exit_code}"
        ours = rank.exit is Exit.STOPPED_BY_US  # and was said already
        why = "" if ours else without(rank.exit_reason, *NO_NEWS)
        parts.append(f"rank {rank.index} {rank.exit}{code}" + (f" ({why})" if why else ""))
    if rank.last_words:
        parts.append(f"it wrote last: {rank.last_words}")
    return ", ".join(parts)


def _done(ranks: Sequence[Rank], came: Mapping[str, str]) -> str:
    said = [f"{node} was {REPLACED_BY}{by}" for node, by in came.items()]
    for status, words in (
        (NodeStatus.AVAILABLE, "released"),
        (NodeStatus.FAILED, "marked failed"),
        (NodeStatus.UNKNOWN, "not heard from"),
        (NodeStatus.REBOOTING, "still in repair"),
    ):
        names = [r.node for r in ranks if r.node_status is status and r.node not in came]
        if names:
            said.append(f"{', '.join(names)} {words}")
    return "All tasks were stopped; " + "; ".join(said) + "."


def job_waits(job_id: str, attempt: int, since: datetime, ranks: Sequence[Rank], size: int) -> Notify:
    """The job can't go on before it has nodes, and a person may be able to give it some."""
    names = ", ".join(r.node for r in ranks)
    return Notify(
        key=keys.job_waits(job_id, attempt),
        subject=headline(f"Job {job_id} waits for {len(ranks)} of {size} nodes"),
        happened=f"Job {job_id} waits for {len(ranks)} of {size} nodes since {since:%Y-%m-%d %H:%M} UTC.",
        evidence="; ".join(f"{r.node}: {r.findings or r.node_status}" for r in ranks)[:4000],
        done=f"{names} may come back from repair; each node that becomes free is offered to the job.",
        next="Release a repaired node, or add a spare: gpu-recovery node spare NODE --why '...'."
        f" To end it: gpu-recovery stop {job_id}. More: docs/runbooks/job-waits.md",
        node=ranks[0].node,
    )


def node_unresponsive(job_id: str, ranks: Sequence[Rank]) -> Notify:
    """The job ended as asked, but a node left its task running."""
    names = ", ".join(r.node for r in ranks)
    return Notify(
        key=keys.nodes_unresponsive(job_id),
        subject=headline(f"Nodes did not stop their tasks: {names}"),
        happened=f"Job {job_id} was ended, but {names} never confirmed that the task has stopped.",
        evidence="; ".join(f"{r.node}: task {r.task_id or 'unknown'}" for r in ranks)[:4000],
        done="The nodes are marked UNKNOWN and are not used until they answer.",
        node=ranks[0].node,
        next="Check that the machines are up and that the task is gone. More: docs/runbooks/tasks-not-stopped.md",
    )


def gang_stuck(job_id: str, ranks: Sequence[Rank]) -> Notify:
    """Several tasks of a job end at no signal: the fault is most likely in what they share."""
    names = ", ".join(r.node for r in ranks)
    return Notify(
        key=keys.gang_stuck(job_id),
        subject=headline(
            f"Tasks of job {job_id} cannot be stopped on {len(ranks)} nodes: is its storage well?"
        ),
        happened=f"Job {job_id} is being recovered, and its tasks on {names} end at no signal.",
        evidence="; ".join(f"{r.node}: task {r.task_id or 'unknown'}" for r in ranks)[:4000],
        done="No node is rebooted: several at once most likely wait for storage that they share.",
        node=ranks[0].node,
        next="Look at the shared file system. When it answers the tasks end and the job goes on. If it is well:"
        f" gpu-recovery stop {job_id}, then reboot the nodes. More: docs/runbooks/tasks-not-stopped.md",
    )


def _stood(job_id: str) -> str:
    """What is kept of a gang that spins, before anything is stopped."""
    return f"Where its ranks stood: gpu-recovery evidence {job_id}."


def job_may_hang(
    job_id: str, attempt: int, since: str, evidence: str, done: str, *, looked_at: bool
) -> Notify:
    """A job that runs and does not seem to train."""
    stood = f" {_stood(job_id)}" if looked_at else ""
    return Notify(
        key=keys.job_may_hang(job_id, attempt),
        subject=headline(f"Job {job_id} may hang: {since}"),
        happened=f"Job {job_id} runs (attempt {attempt}), but {since}.",
        evidence=evidence[:4000],
        done=f"{done[:1].upper()}{done[1:]}.",
        next=f"Look at its page or its logs: gpu-recovery logs {job_id}.{stood} If it hangs, stop it and run it again:"
        f" gpu-recovery stop {job_id}; gpu-recovery retry {job_id}. More: docs/runbooks/job-hangs.md",
    )


def job_trains_again(job_id: str, attempt: int, evidence: str) -> Notify:
    """After a message that it may hang."""
    return Notify(
        key=keys.job_trains_again(job_id, attempt),
        subject=headline(f"Job {job_id} trains again"),
        happened=f"Job {job_id} (attempt {attempt}) seemed to hang, and trains again.",
        evidence=evidence,
        done="Nothing was stopped.",
        next="Nothing has to be done. If it pauses so long by design, HANG_AFTER_S can be longer. "
        "More: docs/runbooks/job-hangs.md",
    )


def node_failed(node: Node, why: str) -> Notify:
    """A node that no job holds needs a person. If it was rebooted, there is more to look at than the verdict."""
    advice = _reboot([node.name]) if node.curable else _mended(node.name)
    kept = f"What it kept before its repair: gpu-recovery evidence {node.name}. " if node.kept else ""
    return Notify(
        key=keys.node_failed(node.name, node.errands),
        subject=headline(f"Node {node.name} failed: {why}"),
        happened=f"Node {node.name} is out of use: {why}.",
        evidence=f"verdict {node.verdict}" if node.verdict else why,
        done="The node is marked FAILED; no job will be placed on it.",
        node=node.name,
        next=f"{kept}{advice} More: docs/runbooks/unhealthy-nodes.md",
    )


def node_replaced(old: Node, by: str, evidence: str) -> Notify:
    """For whoever pays for the machines, or knows the old one by name. The new one may have that name too."""
    node = old.name
    who, stays = by, f" The record of {node} stays for those who look for it."
    if by == node:
        who, stays = "another machine of the same name", ""
    kept = f" What {node} knew of its fault was kept: gpu-recovery evidence {node}." if old.kept else ""
    return Notify(
        key=keys.node_failed(node, old.errands),
        subject=headline(f"Node {node} was {REPLACED_BY}{who}"),
        happened=f"Node {node} had a fault that no reboot cured. Its instance was terminated, and {who} came for it.",
        evidence=evidence,
        done=f"The new machine is examined before its first job.{stays}",
        node=node,
        next=f"Nothing, unless such faults come often: gpu-recovery report.{kept}",
    )


def node_in_company(node: str, who: str, what: str, errand: int) -> Notify:
    """Its reboot or its replacement waits for a task that is none of ours."""
    return Notify(
        key=keys.node_failed(node, errand),
        subject=headline(f"Node {node} waits for its {what}: somebody else's task runs there"),
        happened=f"Node {node} has a fault and waits for its {what}. For an hour now {who} has been running there.",
        evidence=who,
        done=f"The {what} waits; no job will be placed on the node.",
        node=node,
        next="End that task, or wait. A family that need not be waited for: REBOOT_BESIDE.",
    )


def fleet_frozen(guard: FleetGuard) -> Notify:
    """Too much at once: one message, however many orders wait."""
    why = guard.frozen.why if guard.frozen else ""
    waiting = guard.waiting
    names = list(dict.fromkeys(each.node or each.job for each in waiting))
    cases = [each for each in guard.requests if not each.person and not each.thawed]
    told = [f"{each.node or each.job}: {each.why or 'no evidence'}" for each in cases]
    return Notify(
        key=keys.frozen(guard.cluster, guard.trips),
        subject=headline(f"The fleet {guard.cluster} is frozen: {why}"),
        happened=f"There were {why}. No node is repaired until a person thaws the fleet.",
        evidence=f"{in_common(cases)}. {'; '.join(told)}"[:4000],
        done=f"These wait for a permit: {', '.join(names)}. Everything else goes on."[:2000],
        next="Find out what they have in common. Then: gpu-recovery fleet thaw --why '...'."
        " One at a time: gpu-recovery allow NODE, or refuse NODE --why '...'. More: docs/runbooks/frozen-fleet.md",
    )


_DONE = {"reboot": "rebooted", "replace": "replaced by another machine", "stop": "stopped"}


def permit_wanted(request: Request) -> Notify:
    """Each destructive order waits for a person's yes."""
    name = request.node or request.job
    return Notify(
        key=keys.permit_wanted(request.key),
        subject=headline(f"{name} waits for your yes to its {request.what}"),
        happened=f"{name} shall be {_DONE[request.what]}, and REPAIRS=ask.",
        evidence=request.why or "none is recorded",
        done="Nothing yet: the order waits.",
        next=f"gpu-recovery allow {name}, or gpu-recovery refuse {name} --why '...'."
        " More: docs/runbooks/frozen-fleet.md",
        node=request.node,
    )


def stuck_order(subject: str, key: str, error: str) -> Notify:
    """An order could not be carried out many times in a row."""
    return Notify(
        key=keys.stuck(key),
        subject=headline(f"An order of {subject} keeps failing"),
        happened=f"The order {key} could not be carried out.",
        evidence=error[:4000],
        done="It is kept and tried again.",
        next="Check the service that the error names. More: docs/runbooks/order-keeps-failing.md",
    )


def bad_records(records: Sequence[tuple[str, str]], why: str, exc: Exception) -> Notify:
    """Records that this program can't read or sweep; each is named by its kind and its name."""
    (kind, name), more = records[0], len(records) - 1
    if isinstance(exc, NewerRecord):
        done = "It is not changed: what happens to it waits for the newer release. All other records go on."
    elif isinstance(exc, Unreadable):
        done = "It is not changed. All other records go on."
    else:
        done = "It is tried again with every sweep. All other records go on."
    return Notify(
        key=keys.bad_record(kind, name, why),
        subject=headline(
            f"The record of {kind} {name}{f' and {more} more' if more else ''} cannot be worked on"
        ),
        happened=f"The control plane leaves out: {', '.join(map(' '.join, records))}."[:4000],
        evidence=str(exc)[:4000],
        done=done,
        next="Restore the record, or deploy the release that wrote it. More: docs/runbooks/bad-records.md",
        node=name if kind == "node" else "",
    )
