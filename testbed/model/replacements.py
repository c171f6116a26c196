"""Machines that are taken away by their group, and those that come for them.

An instance is terminated once, however often that is asked for. The next one comes at any time, or never: under the
same name, where an operator gives names, or under one of its own, as a node that nobody has seen before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

from ecs_gpu_recovery.core.effects import ReplaceNode
from ecs_gpu_recovery.core.events import NodeReplaced, NodeSeen
from ecs_gpu_recovery.core.model import NodeStatus
from ecs_gpu_recovery.core.node.replacement import successors
from ecs_gpu_recovery.core.node_record import Node

from . import monitors, world
from .state import Learned, Outcome, State
from .world import GPUS, Machine, instance_name, node_name, sight


def take_away(state: State, order: ReplaceNode, patience: timedelta, *, wanted: bool) -> State:
    """`patience` is what a reboot has before its machine counts as one that did not come back."""
    i = int(order.node[1:])
    machine = state.machines[i]
    if machine.sight.gone or not means(state, i, wanted=wanted):
        return state
    monitors.before_replacement(state.nodes[i], order, machine, state.now, patience)
    return state.with_machine(i, replace(machine, taken=order.key))


def means(state: State, i: int, *, wanted: bool) -> bool:
    """Whether an order is for the machine that has the name now. It names the instance that the record knows; one that
    nobody wants any more was for the machine before."""
    life = state.machines[i].sight.life
    return not life or (wanted and state.nodes[i].instance == instance_name(i, life))


def moves(state: State, i: int, machine: Machine) -> Iterator[Outcome]:
    """What the group does by itself."""
    gone = machine.sight.gone
    if machine.taken and not gone:
        yield f"n{i} is taken away", state.with_machine(i, terminated(machine, state))
    if gone and not machine.followed and state.left.comers:
        left = state.spend("comers")
        yield f"another machine comes as n{i}", left.with_machine(i, _under_its_name(machine))
        comes = left.with_machine(i, replace(machine, followed=True))
        yield f"n{len(state.machines)} comes for n{i}", comes.joined_by(_met(len(state.machines), state))


def terminated(machine: Machine, state: State) -> Machine:
    """Everything on it ends with it, and the cluster knows at once."""
    down = world.go_down(machine, state.now, "host gone", told=True)
    return replace(down, sights=(*down.sights[:-1], down.sight._replace(gone=True)))


def _under_its_name(machine: Machine) -> Machine:
    fresh = replace(machine, down=False, stranded=False, taken="", proof="", reboots=())
    return sight(fresh, connected=True, gone=False, boot=machine.sight.boot + 1, life=machine.sight.life + 1)


def _met(i: int, state: State) -> Node:
    """First sight, after every fault that was found before: the clock of the model has few moments."""
    now = state.now + timedelta(seconds=1)
    return Node(
        name=node_name(i),
        cluster="c",
        created_at=now,
        updated_at=now,
        gpus=GPUS,
        gpus_seen=GPUS,
        seen_version=1,
        boot_id="boot0",
        instance=instance_name(i),
        host=instance_name(i),
        connected=True,
        status=NodeStatus.AVAILABLE,
        kind="alike",
        fresh=True,
    )


def former(i: int, machine: Machine, state: State) -> NodeSeen | None:
    """What the cluster answers whoever asks for the machine that had the name before."""
    if not machine.sight.life:
        return None
    before = instance_name(i, machine.sight.life - 1)
    return NodeSeen(at=state.now, node=node_name(i), connected=False, gone=True, instance=before, host=before)


def who_came(state: State) -> list[Learned]:
    """As the sweeper tells it, from the records alone."""
    return [
        Learned(NodeReplaced(at=state.now, node=old.name, by=new.name), int(old.name[1:]))
        for old, new in successors(state.nodes)
    ]
