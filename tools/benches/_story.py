"""A whole recovery as a list of facts, for benchmarks: a gang of four, one bad GPU, reboot, restart, success."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from ecs_gpu_recovery.core.effects import (
    Archive,
    CheckNode,
    Notify,
    RebootNode,
    ReplaceNode,
    StartTask,
    StopTask,
)
from ecs_gpu_recovery.core.events import (
    CheckStarted,
    Fact,
    NodeChecked,
    NodeRepaired,
    TaskEnded,
    TaskStarted,
)
from ecs_gpu_recovery.core.exits import our_reason
from ecs_gpu_recovery.core.model import Job, MachineRecord, NodeStatus, Rank, Verdict
from ecs_gpu_recovery.core.node_record import Node

T0 = datetime(2026, 1, 1, tzinfo=UTC)
RANKS = 4


def nodes(job: int, count: int = RANKS) -> list[Node]:
    return [
        Node(
            name=f"j{job}-n{i}",
            cluster="bench",
            created_at=T0,
            updated_at=T0,
            status=NodeStatus.AVAILABLE,
            gpus=8,
        )
        for i in range(count)
    ]


def facts(job_id: str, number: int) -> list[Fact]:
    """Everything the outside world tells about one recovery, in order."""
    at = T0
    told: list[Fact] = []

    def tell(fact: Fact) -> None:
        told.append(fact)

    def later() -> datetime:
        nonlocal at
        at += timedelta(seconds=1)
        return at

    for attempt in (0, 1):
        for rank in range(RANKS):
            tell(
                TaskStarted(
                    at=later(), task_id=f"{job_id}-{attempt}-{rank}", attempt=attempt, rank=rank, running=True
                )
            )
        if attempt:
            break
        tell(TaskEnded(at=later(), task_id=f"{job_id}-0-2", attempt=0, rank=2, exit_code=1))
        for rank in (0, 1, 3):
            tell(
                TaskEnded(
                    at=later(),
                    task_id=f"{job_id}-0-{rank}",
                    attempt=0,
                    rank=rank,
                    exit_code=143,
                    stop_code="UserInitiated",
                    reason=our_reason(job_id, 0, "another rank failed"),
                )
            )
        for rank in range(RANKS):
            node = f"j{number}-n{rank}"
            tell(CheckStarted(at=later(), node=node, check_id=f"c{rank}", check_try=1))
            verdict = Verdict.REBOOT if rank == 2 else Verdict.HEALTHY
            tell(
                NodeChecked(
                    at=later(),
                    node=node,
                    check_id=f"c{rank}",
                    check_try=1,
                    verdict=verdict,
                    findings="Xid 79",
                )
            )
        repaired = MachineRecord(gpus=8, connected=True)
        tell(NodeRepaired(at=later(), node=f"j{number}-n2", key=f"{job_id}/1/2/reboot", machine=repaired))
    for rank in range(RANKS):
        tell(TaskEnded(at=later(), task_id=f"{job_id}-1-{rank}", attempt=1, rank=rank, exit_code=0))
    return told


class SilentFleet:
    """Takes every order and says nothing: the facts come from the story."""

    def start_task(self, job: Job, order: StartTask, *, again: bool) -> Iterable[Fact]:
        return ()

    def stop_task(self, job_id: str, order: StopTask) -> Iterable[Fact]:
        return ()

    def check_node(self, job: Job | None, node: Node, order: CheckNode, *, again: bool) -> Iterable[Fact]:
        return ()

    def silence(self, job: Job, since: datetime) -> None:
        return None

    def keep_hang(self, job: Job, ranks: Sequence[Rank], *, last: bool) -> None:
        """Nobody reads it here."""

    def waited_for(self, job: Job, ranks: Sequence[Rank], since: datetime) -> None:
        """Nobody is asked."""

    def reboot_node(self, node: Node, order: RebootNode, *, again: bool) -> Iterable[Fact]:
        return ()

    def replace_node(self, node: Node, order: ReplaceNode, *, again: bool) -> Iterable[Fact]:
        return ()

    def company(self, node: Node) -> Sequence[str]:
        return ()

    def label_nodes(self, nodes: Sequence[Node]) -> None:
        return None

    def observe_job(self, job: Job) -> Iterable[Fact]:
        return ()

    def observe_nodes(self, nodes: Sequence[Node]) -> Iterable[tuple[str, Fact]]:
        return ()


class SilentNotifier:
    def notify(self, message: Notify) -> None:
        return None

    def resolved(self, message: Notify) -> None:
        return None

    def archive(self, record: str, order: Archive) -> None:
        return None
