"""What a neighbour in the account makes the cluster tell: a task that says it is ours, and in one thing is not."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from random import Random

from ecs_gpu_recovery.core.effects import CheckNode, StartTask
from ecs_gpu_recovery.core.events import CheckStarted, NodeChecked, Origin, TaskEnded, TaskFact, TaskStarted
from ecs_gpu_recovery.core.model import Job, Verdict
from ecs_gpu_recovery.core.node_record import Node

_VERDICTS = (Verdict.HEALTHY, Verdict.REBOOT, Verdict.REPLACE)


def forgery(rng: Random, job: Job | None, node: Node, order: StartTask | CheckNode, at: datetime) -> TaskFact:
    """Right in all that can be read or guessed, but for the token, or the instance, or the family."""
    check = isinstance(order, CheckNode)
    origin = Origin(
        token=order.token, instance=node.instance, family="" if job is None or check else job.spec.family
    )
    wrong = rng.choice(("token", "instance") if check else ("token", "instance", "family"))
    origin = replace(origin, **{wrong: f"forged-{rng.randrange(1_000_000)}"})
    name = f"x{rng.randrange(1_000_000)}"
    if isinstance(order, CheckNode):
        if rng.random() < 0.3:
            return CheckStarted(
                at=at, node=node.name, check_id=name, check_try=order.check_try, origin=origin
            )
        return NodeChecked(
            at=at,
            node=node.name,
            check_id=name,
            check_try=order.check_try,
            verdict=rng.choice(_VERDICTS),
            origin=origin,
        )
    if rng.random() < 0.3:
        return TaskStarted(
            at=at, task_id=name, attempt=order.attempt, rank=order.rank, running=True, origin=origin
        )
    return TaskEnded(
        at=at,
        task_id=name,
        attempt=order.attempt,
        rank=order.rank,
        exit_code=rng.choice((0, 1, 139)),
        stop_code="EssentialContainerExited",
        origin=origin,
    )
