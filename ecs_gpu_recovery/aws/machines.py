"""What EC2 says of machines that ECS does not hear from: one that is off can't be running anything."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from ..core.events import Fact, NodeSeen, TaskEnded
from ..core.model import Job, MachineRecord, Rank
from ..core.node_record import Node
from .pages import pages

log = logging.getLogger("ecs_gpu_recovery")
#: Agents are away for a moment several times an hour: EC2 is asked of those only that stay away.
ASKED_AFTER = timedelta(minutes=1)
#: In these nothing runs any more. One that is stopping, or shutting down, may still have something to write.
_OFF = frozenset({"terminated", "stopped"})
_LEAVING = frozenset({"shutting-down", "terminated"})
_AT_ONCE = 100


class Machines:
    """Hosts by their ids. Those of ECS Anywhere (mi-...) are none of EC2's."""

    def __init__(self, ec2: Any) -> None:
        self._ec2 = ec2

    def off(self, hosts: Iterable[str]) -> dict[str, str]:
        """Those on which nothing can run, and what they are instead."""
        return {host: state for host, state in self._all_states(hosts).items() if state in _OFF}

    def gone(self, hosts: Iterable[str]) -> set[str]:
        """Those that never come back. EC2 forgets them about an hour after their end."""
        return {host for host, state in self._all_states(hosts).items() if state in ("", "terminated")}

    def _all_states(self, hosts: Iterable[str]) -> dict[str, str]:
        """Of each; empty where EC2 knows none of that name. It is one witness more: while it is silent, all stays."""
        ids = sorted({host for host in hosts if host.startswith("i-")})
        parts = (ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE))
        try:
            known = {host: state for part in parts for host, state in self._states(part)}
        except Exception as exc:  # noqa: BLE001 - whatever it is, nobody needs to wait for it
            log.warning("EC2 could not be asked", extra={"hosts": ids, "why": str(exc)})
            return {}
        return dict.fromkeys(ids, "") | known

    def leaves(self, host: str) -> bool:
        """Whether it is on its way out for good, or gone so long that EC2 has forgotten it."""
        return dict(self._states([host])).get(host, "terminated") in _LEAVING

    def _states(self, ids: Sequence[str]) -> Iterator[tuple[str, str]]:
        """By a filter: asked for by its id, one that EC2 has forgotten would refuse them all."""
        named, doing = [{"Name": "instance-id", "Values": list(ids)}], f"asking EC2 of {', '.join(ids[:3])}"
        for page in pages(doing, self._ec2.describe_instances, following="NextToken", Filters=named):
            for reservation in page.get("Reservations", []):
                for one in reservation.get("Instances", []):
                    yield one["InstanceId"], one["State"]["Name"]

    def word_on_replaced(self, nodes: Iterable[Node], at: datetime) -> Iterator[NodeSeen]:
        """Machines that are being replaced and are gone. ECS keeps one for ever whose agent was away when it went."""
        silent = {node.host: node for node in nodes if is_silent(node, at)}
        leaving = {host: state for host, state in self.off(silent).items() if state in _LEAVING}
        for host, state in leaving.items():
            node, why = silent[host], f"EC2 says that {host} is {state}"
            yield NodeSeen(at=at, node=node.name, connected=False, gone=True, why=why, instance=node.instance)

    def word_on(self, job: Job, at: datetime) -> Iterator[Fact]:
        """What it means for a job that a machine of it is off: its rank has ended, and need not be waited for."""
        ranks = [rank for rank in job.ranks if _is_missed(rank, at)]
        off = self.off(rank.host for rank in ranks)
        for rank in ranks:
            if rank.host not in off:
                continue
            why = f"EC2 says that {rank.host} is {off[rank.host]}"
            if not rank.handed:
                yield NodeSeen(
                    at=at, node=rank.node, connected=False, gone=True, why=why, instance=rank.instance
                )
            yield TaskEnded(
                at=at,
                task_id=rank.task_id,
                attempt=rank.task_attempt,
                rank=rank.index,
                exit_code=None,
                reason=f"Host EC2 (instance {rank.host}) terminated. {why}",
                stop_code="TerminationNotice",
            )


def is_silent(machine: MachineRecord, at: datetime) -> bool:
    """For so long that EC2 is worth asking."""
    return machine.away_since is not None and at - machine.away_since >= ASKED_AFTER


def _is_missed(rank: Rank, at: datetime) -> bool:
    """Its task is not known to have ended, and its node has been silent for a while."""
    return is_silent(rank, at) and not rank.quiet and not rank.anew
