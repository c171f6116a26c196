"""Everything that can happen next in the modelled world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from ecs_gpu_recovery.core.events import GangStalled, NodeLeaving, NodesOffered, StopAsked
from ecs_gpu_recovery.core.model import JobStatus, Leave, NodeStatus, Notice

from . import clock, replacements, world
from .model import Model
from .state import Learned, Outcome, State
from .world import GPUS, Machine, Run, sight


class Move(NamedTuple):
    """Something that can happen. `kind` says who does it; `helps` that a friendly world does it by itself."""

    kind: str
    act: Callable[[], Iterator[Outcome]]
    helps: bool = False
    name: str = ""


def moves(model: Model, state: State) -> Iterator[Move]:
    """All of them, in an order that is always the same."""
    soon = (
        [Move("resume", lambda: _resume(model, state), name="the stalled process goes on")]
        if state.stalled
        else []
    )
    for i, machine in enumerate(state.machines):
        soon += _progress(model, state, i, machine)
    yield from soon
    yield Move("sweep", lambda: model.sweep(state), name="sweep")
    yield from _clock(model, state, hurried=any(move.helps for move in soon))
    if not state.job.status.final:
        for i, machine in enumerate(state.machines):
            yield from _faults(model, state, i, machine)
    if state.left.steps and world.gang_trains(state.job, state.machines):
        further = replace(state.spend("steps"), steps=(*state.steps, state.job.attempt))
        yield Move("world", _once("the gang trains a step", further))
    if state.left.asks and not state.job.status.final:
        ask = StopAsked(at=state.now, by="ann")
        yield Move(
            "ask",
            lambda: deliver(model, state.spend("asks"), "ann stops the job", (Learned(ask),)),
            name="ann stops the job",
        )
    if state.left.witnesses and not state.job.status.final:
        yield from _witnesses(model, state)
    yield from _leaves(model, state)
    yield from _news(model, state)


def _witnesses(model: Model, state: State) -> Iterator[Move]:
    """They may speak at any moment, of a job in any state: whether the gang truly hangs makes no difference here."""
    since, job = state.now - model.policy.hang_after, state.job
    for attempt in {job.attempt, max(job.attempt - 1, 0)}:
        fact = GangStalled(
            at=state.now,
            attempt=attempt,
            still_since=since,
            still_until=state.now,
            spinning=True,
            odd=(job.ranks[-1].node,),
            silent_since=since,
        )
        name = f"told: attempt {attempt} hangs"
        yield Move(
            "deliver", partial(deliver, model, state.spend("witnesses"), name, (Learned(fact),)), name=name
        )


def _leaves(model: Model, state: State) -> Iterator[Move]:
    """A person wants a node empty, or not any more; and a node is seen to which its rank could go."""
    for rank in () if state.job.status.final else state.job.ranks:
        if rank.leave is None and not state.left.leaves:
            continue
        asked = Leave(notice=Notice.PERSON, why="x", at=state.now) if rank.leave is None else None
        name = f"told: {rank.node} is {'to be' if asked else 'not'} emptied"
        fact = Learned(NodeLeaving(at=state.now, node=rank.node, leave=asked))
        after = state.spend("leaves") if asked else state
        yield Move("deliver", partial(deliver, model, after, name, (fact,)), name=name)
    if state.job.status is JobStatus.IN_PROGRESS and any(rank.leave for rank in state.job.ranks):
        other = replace(
            state.nodes[0], name="n9", status=NodeStatus.AVAILABLE, job_id="", handed="", returned=""
        )
        offer = Learned(NodesOffered(at=state.now, nodes=(*state.nodes, other)))
        name = "told: another node is free"
        yield Move("deliver", partial(deliver, model, state, name, (offer,)), name=name)


def _news(model: Model, state: State) -> Iterator[Move]:
    """Something that was true once is told, for the first time or again."""
    for i, machine in enumerate(state.machines):
        old = model.old_news(state.job, state.nodes[i])
        told = [*world.facts(i, machine, state.now, bounds=model.bounds)]
        if (former := replacements.former(i, machine, state)) is not None:
            told.append((f"n{i} before it is gone", (former,)))
        if model.bounds.forged:
            told += world.forgeries(state.job, state.job.ranks[i], state.now)
        for label, facts in told:
            mark = (label, state.now, machine.version)
            if mark not in old:
                name = f"told: {label}"
                heard = model.addressed(state, facts, own=label.startswith("own"))
                tell = partial(deliver, model, state, name, heard, partial(old.add, mark))
                yield Move("deliver", tell, name=name)
    for fact in world.trained(state.steps, state.now) if not state.job.status.final else ():
        name = f"told: step {len(state.steps)}"
        yield Move("deliver", partial(deliver, model, state, name, (Learned(fact),)), name=name)
    for each in model.missed(state):
        name = f"told: {type(each.fact).__name__} of {getattr(each.fact, 'node', '')}"
        yield Move("deliver", partial(deliver, model, state, name, (each,)), name=name)


def _clock(model: Model, state: State, *, hurried: bool) -> Iterator[Move]:
    """Time passes when nothing else is about to happen; otherwise that is a delay, and they are counted."""
    to = clock.next_moment(state, model.bounds)
    if to is not None and (state.left.delays or not hurried):
        later = clock.advance(state.spend("delays") if hurried else state, to)
        yield Move("advance", lambda: iter([("time passes", later)]))


def deliver(
    model: Model, state: State, label: str, facts: tuple[Learned, ...], idle: Callable[[], None] | None = None
) -> Iterator[Outcome]:
    after, orders = model.hear(state, facts)
    if after is not state:
        yield from model.send(after, orders, (), label, model.as_committed(state, after))
    elif idle is not None:
        idle()


def _resume(model: Model, state: State) -> Iterator[Outcome]:
    stalled = state.stalled
    assert stalled is not None
    yield from model.send(
        replace(state, stalled=None),
        stalled.orders,
        stalled.facts,
        "the stalled process goes on",
        stalled.job,
    )


def _progress(model: Model, state: State, i: int, machine: Machine) -> Iterator[Move]:
    """What the world does by itself, without a fault."""
    for check in machine.checks:
        if check.alive and not machine.down and (check.own or not state.job.status.final):
            yield from (
                _answer(state, i, machine, check, verdict, helps=True) for verdict in model.bounds.verdicts
            )
    for run in machine.runs:
        if run.alive and run.stopping and not machine.down:
            yield _end(state, i, machine, run, "stopped", helps=True)
    for check in machine.checks:
        if check.alive and check.stopping:
            yield _answer(state, i, machine, check, "inconclusive", helps=True)
    for reboot in machine.reboots:
        if not reboot.done and not machine.down and machine.connected:
            yield Move(
                "world",
                _once(
                    f"n{i} goes down for {reboot.key}",
                    state.with_machine(i, world.go_down(machine, state.now, "killed")),
                ),
                helps=True,
            )
        elif not reboot.done and machine.down and not (machine.sight.gone or machine.stranded):
            yield Move(
                "world",
                _once(f"n{i} is back from its reboot", state.with_machine(i, _rebooted(machine, state))),
                helps=True,
            )
    yield from _returns(model, state, i, machine)
    for label, after in replacements.moves(state, i, machine):
        yield Move("world", _once(label, after), helps=True)


def _returns(model: Model, state: State, i: int, machine: Machine) -> Iterator[Move]:
    """A node that was away is back, and its agent tells what it knows, at once or later."""
    away = not machine.connected and not machine.sight.gone
    if away and not machine.down:
        back = sight(_reported(machine, state), connected=True)
        yield Move("world", _once(f"n{i} reconnects", state.with_machine(i, back)), helps=True)
    if away and machine.down and all(r.done for r in machine.reboots):
        back = _come_back(machine, state)
        if model.bounds.slow_reports:
            back = replace(back, runs=machine.runs, back=state.now)
        yield Move("world", _once(f"n{i} comes back", state.with_machine(i, back)))
    if machine.back is not None:
        yield Move(
            "world",
            _once(f"n{i} reports its tasks", state.with_machine(i, _reported(machine, state))),
            helps=True,
        )


def _faults(model: Model, state: State, i: int, machine: Machine) -> Iterator[Move]:
    """Tasks end, checks answer, and what the budget still allows to go wrong."""
    b = model.bounds
    for run in machine.runs:
        if run.alive and not machine.down:
            yield _end(state, i, machine, run, "done")._replace(kind="finish")
            if state.left.failures:
                for end in b.ends:
                    yield _end(state.spend("failures"), i, machine, run, end)
    if state.left.faults and any(run.alive for run in machine.runs) and not machine.down:
        seen = state.spend("faults").with_machine(i, replace(machine, faulty=state.now))
        fault: tuple[Learned, ...] = (Learned(world.fatal(i, state.now)),)
        yield Move("world", lambda: deliver(model, seen, f"n{i} has a fatal fault", fault))
    if state.left.suspects and world.is_ready(state.job, i) and machine.connected and not machine.down:
        struck = state.spend("suspects").with_machine(i, replace(machine, suspect=True))
        grave: tuple[Learned, ...] = (Learned(world.grave(i, machine, state.now)),)
        yield Move("world", lambda: deliver(model, struck, f"n{i} has a fault while its job waits", grave))
    if state.left.flaps and machine.connected and not machine.down:
        flapped = state.spend("flaps").with_machine(i, sight(replace(machine, back=None), connected=False))
        yield Move("world", _once(f"n{i} loses its agent", flapped))
    if state.left.deaths and not machine.down:
        end = "lie" if b.lies else "killed"
        after = state.spend("deaths").with_machine(i, world.go_down(machine, state.now, end))
        if b.noticed:
            sighting = world.seen_now(i, after.machines[i], state.now, blind=b.blind)
            told = model.addressed(after, (sighting,))
            yield Move("world", lambda: deliver(model, after, f"n{i} goes down, and is seen to", told))
        else:
            yield Move("world", _once(f"n{i} goes down", after))
        gone = state.spend("deaths").with_machine(i, replacements.terminated(machine, state))
        yield Move("world", _once(f"n{i} is terminated", gone))
    boots = machine.down and any(not r.done for r in machine.reboots) and not machine.stranded
    if state.left.strands and boots and not machine.sight.gone:
        stays = state.spend("strands").with_machine(i, replace(machine, stranded=True))
        yield Move("world", _once(f"n{i} does not come back from its reboot", stays))
    if b.fewer_gpus and boots and not machine.sight.gone:
        back = sight(_rebooted(machine, state), gpus=GPUS - 1)
        yield Move("world", _once(f"n{i} is back from its reboot without a GPU", state.with_machine(i, back)))


def _end(state: State, i: int, machine: Machine, run: Run, end: str, *, helps: bool = False) -> Move:
    over = run._replace(alive=False, end=end, told=machine.connected, at=state.now)
    runs = tuple(over if r == run else r for r in machine.runs)
    return Move(
        "world",
        _once(f"{run.id} ends: {end}", state.with_machine(i, replace(machine, runs=runs))),
        helps=helps,
    )


def _answer(
    state: State, i: int, machine: Machine, check: world.Check, verdict: str, *, helps: bool = False
) -> Move:
    over = check._replace(alive=False, verdict=verdict, at=state.now)
    checks = tuple(over if c == check else c for c in machine.checks)
    after = replace(machine, checks=checks, suspect=False, proof=machine.proven_by(over))
    return Move(
        "world",
        _once(f"{check.id} finds: {verdict}", state.with_machine(i, after)),
        helps=helps,
    )


def _reported(machine: Machine, state: State) -> Machine:
    runs = (run if run.told else run._replace(told=True, at=state.now) for run in machine.runs)
    return replace(machine, runs=tuple(runs), back=None)


def _come_back(machine: Machine, state: State) -> Machine:
    back = replace(_reported(machine, state), down=False)
    return sight(back, connected=True, boot=machine.sight.boot + 1)


def _rebooted(machine: Machine, state: State) -> Machine:
    back = _come_back(machine, state)
    return replace(
        back,
        reboots=tuple(r if r.done else r._replace(done=True, boot=back.sight.boot) for r in machine.reboots),
    )


def _once(label: str, state: State) -> Callable[[], Iterator[Outcome]]:
    return lambda: iter([(label, state)])
