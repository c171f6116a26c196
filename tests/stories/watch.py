"""Looks at the simulated cluster after every call: what must never happen there, whatever the records say."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import Any

from ecs_gpu_recovery.aws import reboot_document
from testbed.aws.cloud import Cloud
from testbed.aws.model import Task


class Watch:
    """Collects what went wrong; a story asks for it at its end."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self.wrong: list[str] = []
        self.owners: dict[
            str, tuple[str, str, str]
        ] = {}  #: adopted tasks: id, and their job, attempt and rank
        self.reboots: Counter[str] = Counter()
        self.modified_at: list[float] = []  #: when calls were made that share the account's limit

    def called(self, service: str, action: str, request: dict[str, Any]) -> None:
        if action in ("start_task", "stop_task", "put_attributes"):
            self.modified_at.append(self._cloud.agenda.now())
        if action == "start_task":
            self._started()
        elif action == "send_command":
            self._reboot_ordered(request)

    def _whose(self, task: Task) -> tuple[str, str, str] | None:
        if task.id in self.owners:
            return self.owners[task.id]
        if task.env.get("GPU_RECOVERY_KIND") != "train":
            return None
        return task.env["JOB_ID"], task.env["JOB_ATTEMPT"], task.env["NODE_RANK"]

    def _started(self) -> None:
        """At most one live task per rank, and never two attempts of one job alive.

        Of an instance that its host has forgotten, ECS shows tasks for ever: there, what counts is what really runs.
        """
        live = [
            mine
            for task in self._cloud.cluster.tasks.values()
            if not (task.over or (task.node.forgotten and task.process == "dead"))
            and (mine := self._whose(task))
        ]
        for (job, rank), count in Counter((job, rank) for job, _, rank in live).items():
            if count > 1:
                self.wrong.append(f"{count} live tasks of rank {rank} of {job}")
        for job in {job for job, _, _ in live}:
            attempts = {attempt for owner, attempt, _ in live if owner == job}
            if len(attempts) > 1:
                self.wrong.append(f"attempts {sorted(attempts)} of {job} alive at once")

    def _reboot_ordered(self, request: dict[str, Any]) -> None:
        """Only over a quiet node."""
        if not reboot_document.is_reboot(request["DocumentName"]):
            self.wrong.append(f"a command that is no reboot order: {request['DocumentName']}")
            return
        self.reboots[request["Parameters"]["marker"][0]] += 1
        for host in request["InstanceIds"]:
            node = self._cloud.cluster.node(host)
            assert node is not None
            busy = [task.id for task in self._cloud.cluster.live_on(node) if task.desired == "RUNNING"]
            if busy:
                self.wrong.append(f"{node.name} is rebooted under {busy}")

    def most_in_a_second(self, over: float = 1.0) -> float:
        """Calls that change the cluster, in the worst second of the night, or in the mean of the worst few."""
        times = sorted(self.modified_at)
        most = max(
            (bisect_right(times, at + over - 1e-6) - number for number, at in enumerate(times)), default=0
        )
        return most / over

    def check(self, *, spontaneous: int = 0) -> None:
        """Each order rebooted its host once; `spontaneous` reboots were nobody's order."""
        self.wrong += [f"{key} was ordered {count} times" for key, count in self.reboots.items() if count > 1]
        for node in self._cloud.cluster.nodes.values():
            if node.boots - 1 > len(node.markers) + spontaneous:
                self.wrong.append(
                    f"{node.name} booted {node.boots - 1} times for {sorted(node.reboot_keys.values())}"
                )
        assert not self.wrong, self.wrong
