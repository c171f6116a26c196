"""Skies with a name: nights in which one kind of trouble is likely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

from .weather import DELIVERY, HARDWARE, PROCESS, Weather, apart, draw, old_news


def any_night(rng: Random, more: Random) -> Weather:
    """Any of the older troubles, and in some nights something about the records. That has a chance of its own."""
    weather, chance = draw(rng, more), apart(more)
    weather = _two_releases(weather, chance) if chance.random() < 0.1 else weather
    weather = _one_bad_record(weather, chance) if chance.random() < 0.1 else weather
    weather = _guarded(weather, chance) if chance.random() < 0.3 else weather
    new = apart(more, "newcomers")
    weather = replace(weather, newcomers=new.uniform(0.5, 2.0)) if new.random() < 0.1 else weather
    weather = _with_spares(weather, chance) if chance.random() < 0.2 else weather
    chance = apart(more, "leaves")
    return replace(weather, leaves=chance.uniform(0.2, 1.0)) if chance.random() < 0.2 else weather


def _with_spares(weather: Weather, more: Random) -> Weather:
    """Ranks may move. Several jobs may want the same node, and some wait in vain."""
    spares = more.choice((0, 1, 1, 1, 2))
    policy = replace(
        weather.policy,
        max_retries=max(1, weather.policy.max_retries),
        failover_lost_after=timedelta(minutes=more.choice((5, 15, 20))),
        wait_for_nodes=timedelta(minutes=more.choice((40, 240))),
    )
    return replace(
        weather,
        spares=spares,
        odd=spares > 1 and more.random() < 0.5,
        failover=more.choice(("any", "spares")) if spares else "any",
        dead_gpus=max(weather.dead_gpus, more.uniform(0.1, 0.5)),
        policy=policy,
    )


def spares(rng: Random, more: Random) -> Weather:
    """Nodes break for good or are lost, and others take their places. In half of the nights nothing else happens."""
    weather, chance = draw(rng, more), apart(more)
    if chance.random() < 0.5:
        calm: dict[str, Any] = dict.fromkeys((*DELIVERY, *PROCESS), 0.0)
        weather = replace(weather, **calm, skew_s=0.0, jolt_s=0.0)
        weather = replace(weather, reordered=0.0, throttles=0.0, late_functions=0.0)
    weather = replace(weather, power_cuts=max(weather.power_cuts, chance.choice((0.0, 0.5))))
    weather = replace(weather, flaps=max(weather.flaps, chance.choice((0.0, 2.0))))
    return _with_spares(weather, chance)


def leaves(rng: Random, more: Random) -> Weather:
    """Nodes are taken away, with notice; also those of jobs that recover from something else."""
    weather = spares(rng, more)
    chance = apart(more, "leaves")
    fewer: dict[str, Any] = {name: 0.5 * getattr(weather, name) for name in HARDWARE}
    fewer |= {"leaves": chance.uniform(0.5, 1.5), "spares": chance.choice((1, 2, 2)), "dead_gpus": 0.1}
    return replace(weather, **fewer, skew_s=0.0, jolt_s=0.0)


def contest(rng: Random, more: Random) -> Weather:
    """Several jobs wait for one spare, and whoever looks at it for them stands still before the claim is made."""
    weather = spares(rng, more)
    return replace(
        weather,
        nodes=4,
        jobs=4,
        apart=True,
        spares=1,
        odd=False,
        failover="spares",
        trouble_s=1500.0,
        sweepers=2,
        stall=0.15,
        stall_s=60.0,
        crash=0.0,
        sweep_s=60.0,
        ordered=True,
        skew_s=0.0,
        late_functions=0.0,
        gpu_faults=2.0,
        dead_gpus=0.0,
        frozen_gpus=0.0,
        slow_reboot=0.5,
        policy=replace(weather.policy, max_retries=3, wait_for_nodes=timedelta(hours=4), freeze_nodes=100),
    )


def _two_releases(weather: Weather, more: Random) -> Weather:
    """What an older release must not touch, it can't bring to an end either."""
    breaking = more.random() < 0.4
    deployed = breaking or more.random() < 0.5
    return replace(weather, mixed=more.uniform(0.2, 0.8), breaking=breaking, deployed=deployed)


def _one_bad_record(weather: Weather, more: Random) -> Weather:
    return replace(weather, poisoned=1.0, restored=more.random() < 0.5)


def _guarded(weather: Weather, more: Random) -> Weather:
    """Few reboots are too many, and people have a say in each, or freeze the fleet for reasons of their own."""
    policy = replace(
        weather.policy,
        freeze_nodes=more.choice((1, 1, 2)),
        freeze_within=timedelta(minutes=more.choice((10, 30))),
        repairs=more.choice(("auto", "auto", "ask")),
    )
    return replace(weather, policy=policy, freezes=more.choice((0.0, 0.0, 1.0)))


def storms(rng: Random, more: Random) -> Weather:
    """Many nodes need a reboot or break for good, one after the other and at once. In some nights there are spares."""
    weather, chance = _guarded(draw(rng, more), apart(more)), apart(more, "storms")
    weather = replace(weather, gpu_faults=max(weather.gpu_faults, 2.0), skew_s=0.0, jolt_s=0.0)
    if chance.random() < 0.5:
        return weather
    weather = _with_spares(replace(weather, nodes=max(weather.nodes, 3)), chance)
    return replace(weather, dead_gpus=chance.uniform(0.5, 1.5), odd=False)


def shared(rng: Random, more: Random) -> Weather:
    """A cluster that others use too: their tasks run on nodes that need a reboot."""
    weather = draw(rng, more)
    return replace(weather, strangers=2.0, gpu_faults=max(weather.gpu_faults, 1.0))


def newcomers(rng: Random, more: Random) -> Weather:
    """Machines join. Some are bad, jobs want them at once, and ranks that have lost their node may take them. Clocks
    agree."""
    weather, chance = draw(rng, more), apart(more, "newcomers")
    weather = _with_spares(replace(weather, newcomers=chance.uniform(1.0, 3.0)), chance)
    return replace(weather, spares=0, odd=False, failover="any", skew_s=0.0, jolt_s=0.0)


def rungs(rng: Random, more: Random) -> Weather:
    """Machines that no reboot cures, or that do not come back from it, are replaced, where they are in a group. In some
    nights each waits for a person's yes. Clocks agree."""
    weather, chance, later = draw(rng, more), apart(more, "rungs"), apart(more, "silent")
    weather = _with_spares(weather, chance) if chance.random() < 0.5 else weather
    policy = replace(
        weather.policy,
        repair_rungs=chance.choice(("reboot", *["reboot,replace"] * 5)),
        replace_timeout=timedelta(minutes=chance.choice((20, 60))),
        post_reboot_check=True,
        freeze_nodes=chance.choice((1, 3, 100)),
        repairs=later.choice((*["auto"] * 4, "ask")),
    )
    return replace(
        weather,
        no_return=max(weather.no_return, later.choice((0.0, 0.0, 0.5))),
        slow_reboot=max(weather.slow_reboot, later.choice((0.0, 0.0, 0.5))),
        grouped=chance.random() < 0.85,
        strangers=chance.choice((0.0, 0.0, 1.0)),
        dead_gpus=chance.uniform(0.3, 1.0),
        gpu_faults=max(weather.gpu_faults, 0.5),
        no_cure=chance.choice((0.0, 0.5)),
        skew_s=0.0,
        jolt_s=0.0,
        policy=policy,
    )


def releases(rng: Random, more: Random) -> Weather:
    """A deployment and perhaps a rollback in the middle of it all: functions of two releases on the same records."""
    return _two_releases(draw(rng, more), apart(more))


def poison(rng: Random, more: Random) -> Weather:
    """One record can't be read any more, for a while or for good."""
    return _one_bad_record(draw(rng, more), apart(more))


def late_news(rng: Random, more: Random) -> Weather:
    """News is minutes old when it comes, senders stand still, and the cluster has room for a second start."""
    return replace(old_news(draw(rng, more)), watched=False)


def late_functions(rng: Random, more: Random) -> Weather:
    """Functions are throttled for minutes up to an hour, and whatever happened meanwhile is told at the end of it."""
    weather = draw(rng, more)
    return replace(
        weather,
        late_functions=3.0,
        stop_s=120.0,
        gpu_faults=max(weather.gpu_faults, 1.0),
        skew_s=0.0,
        jolt_s=0.0,
    )


def anew(rng: Random, more: Random) -> Weather:
    """As on ECS, machines register with the cluster; agents go, and come back without their memory."""
    weather = draw(rng, more)
    return replace(
        weather,
        forgetful=True,
        blind=True,
        lies=0.0,
        rows_in_commit=False,
        flaps=max(weather.flaps, 1.0),
        power_cuts=max(weather.power_cuts, 0.6),
    )


def hangs(rng: Random, more: Random) -> Weather:
    """Jobs stand still without an end, and their witnesses are as bad as the rest of the night. Clocks agree."""
    weather = draw(rng, more)
    fewer: dict[str, Any] = {name: 0.2 * getattr(weather, name) for name in HARDWARE}
    fewer |= {"terminations": 0.0, "frozen_gpus": 0.0}
    return replace(
        weather,
        **fewer,
        nodes=max(weather.nodes, 3),
        jobs=1,
        hangs=more.uniform(0.2, 0.6),
        pauses=more.uniform(0.3, 1.0),
        false_witness=more.uniform(0.2, 0.8) * (more.random() < 0.7),
        mute=more.random() < 0.5,
        deaf_watch=more.choice((0.0, 0.0, 1.0)),
        skew_s=0.0,
        jolt_s=0.0,
        work_s=max(weather.work_s, 1200.0),
        sweep_s=60.0,
        policy=replace(weather.policy, on_hang=more.choice(("recover", "recover", "recover", "notify"))),
        files=more.random() < 0.6,
    )


def together(rng: Random, more: Random) -> Weather:
    """As on ECS, news waits in a queue, and a function takes all that has gathered: one commit for each record."""
    return replace(draw(rng, more), together=True)


def restarts(rng: Random, more: Random) -> Weather:
    """As on ECS, nodes tell no boot id. Hosts restart under their tasks, which then say exit code 0, and for a while
    the cluster calls them running though their agents are back. All news arrives: a restart that nobody could have
    noticed is not the question."""
    weather = draw(rng, more)
    quiet: dict[str, Any] = dict.fromkeys(
        (*DELIVERY, *PROCESS, "reordered", "throttles", "late_functions"), 0.0
    )
    return replace(
        weather,
        **quiet,
        skew_s=0.0,
        jolt_s=0.0,
        blind=True,
        lies=1.0,
        report_s=100.0,
        sweep_s=60.0,
        power_cuts=max(weather.power_cuts, 1.0),
        policy=replace(weather.policy, max_retries=3),
    )


#: Skies with a name, for those who look for one kind of trouble.
SKIES: dict[str, Callable[[Random, Random], Weather]] = {
    "any": any_night,
    "late-news": late_news,
    "late-functions": late_functions,
    "anew": anew,
    "restarts": restarts,
    "together": together,
    "hangs": hangs,
    "releases": releases,
    "poison": poison,
    "storms": storms,
    "shared": shared,
    "newcomers": newcomers,
    "rungs": rungs,
    "spares": spares,
    "leaves": leaves,
    "contest": contest,
}
