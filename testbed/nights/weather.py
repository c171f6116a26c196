"""How hostile one night is. The seed draws it, and most seeds switch most faults off.

A fault that is always mixed with all the others hides behind them. So the seed draws first which faults exist
at all, and only then how often they strike.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from random import Random

from ecs_gpu_recovery.core.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Rates are chances per occasion unless said otherwise; 0 means that there is no such fault tonight."""

    nodes: int
    jobs: int
    work_s: float  #: how long a gang must run undisturbed
    sweep_s: float
    trouble_s: float  #: after this long no new fault begins; what has begun goes on
    # Deliveries.
    lost: float = 0.0
    repeated: float = 0.0
    late: float = 0.0
    late_s: float = 60.0
    reordered: float = 0.0  #: a piece of news waits until the next one about the same node has been told
    forged: float = 0.0  #: right after an order was carried out a neighbour's task says that it is the one
    # Processes.
    crash: float = 0.0
    stall: float = 0.0
    stall_s: float = 30.0
    transient: float = 0.0  #: a call gets no answer and nothing happened
    unanswered: float = 0.0  #: a call gets no answer, but it did happen
    late_functions: float = (
        0.0  #: mean number of stretches, up to an hour, at whose end all processes are invoked
    )
    throttles: float = 0.0  #: mean number of stretches, a night, in which most calls are refused
    retried: float = 0.0  #: an invocation that died is tried again
    skew_s: float = 0.0  #: how far the sweeper's clock may jump
    jolt_s: float = 0.0  #: how far the clock that stamps the news may jump
    sweepers: int = 1  #: how many sweep beside each other
    # Nodes and tasks; means per node and night.
    gpu_faults: float = 0.0
    dead_gpus: float = 0.0
    frozen_gpus: float = 0.0  #: a fatal fault that freezes the program instead of ending it
    crashes: float = 0.0  #: the program fails with exit code 1 on healthy hardware
    other_exits: float = 0.0
    power_cuts: float = 0.0
    flaps: float = 0.0
    terminations: float = 0.0
    leaves: float = 0.0  #: it is announced that a node will be taken away, or may be; not all of them are
    lies: float = 0.0  #: a task that died with its node says exit code 0
    report_s: float = 0.0  #: up to so long after it is back, an agent tells how its tasks ended meanwhile
    refused: float = 0.0  #: a start is refused, or fails after it was accepted
    # Hangs.
    hangs: float = 0.0  #: a rank stands still some time after it began
    pauses: float = 0.0  #: all stand still for a while, or all but one, and go on
    false_witness: float = (
        0.0  #: a watch says that nothing works, or a job writes nothing, though all is well
    )
    mute: bool = False  #: the second of these
    deaf_watch: float = 0.0  #: mean deaths of a watch in an hour
    files: bool = False  #: watches see when ranks write, and say it with their pulse
    strangers: float = 0.0  #: others run tasks on a node
    newcomers: float = 0.0  #: machines that join, in all
    # Repairs.
    no_cure: float = 0.0
    slow_reboot: float = 0.0
    no_return: float = 0.0
    fewer_gpus: float = 0.0
    reboot_fails: float = 0.0
    hung_check: float = 0.0
    broken_check: float = 0.0
    wrong_check: float = 0.0
    stop_s: float = 30.0  #: a task that is stopped ends within this time
    deaf: float = 0.0  #: a task ignores its stop for a long time
    # People; means per night.
    stops: float = 0.0
    task_stops: float = 0.0
    node_asks: float = 0.0
    freezes: float = 0.0  #: a person freezes the fleet
    # Records.
    mixed: float = 0.0  #: an invocation is of a later release
    breaking: bool = False  #: that release writes a newer format
    deployed: bool = False  #: after the troubled hours it is that release alone; else it was taken back
    poisoned: float = 0.0  #: the chance that one record is damaged
    restored: bool = False  #: ... and later put back as it was
    # What jobs tell.
    reports: str = ""  #: they tell steps with the attempt, or only the names of checkpoints; empty: nothing
    # Other nodes.
    spares: int = 0  #: nodes that are kept for ranks that lose theirs
    odd: bool = False  #: the first of them is of another kind than all the others
    failover: str = ""  #: of every job
    apart: bool = False  #: each job has one node, and no two the same
    # Which kind of place.
    blind: bool = False  #: nodes don't tell their boot id
    ordered: bool = True  #: sightings carry a version; otherwise they are made fresh when they are told
    rows_in_commit: bool = True
    rows_travel: bool = False  #: where rows are not part of the commit, some may go with it
    roomy: bool = (
        False  #: jobs leave room beside them, so that the cluster would start a second task on the same node
    )
    tombstones: bool = True  #: a stop that came first keeps its task from ever starting
    together: bool = False  #: news waits for company, as in a queue, and is told in one go
    forgetful: bool = False  #: an agent that comes back may have lost its memory: its machine registers anew
    watched: bool = False  #: nodes tell of their faults at once
    grouped: bool = False  #: machines are in a group that starts another one for each that is taken away
    policy: Policy = field(default_factory=Policy)

    @property
    def rows_fit(self) -> int | None:
        """Of how many ranks the rows fit into a commit: all, or fewer than the largest gang has, or none."""
        return None if self.rows_in_commit else 3 if self.rows_travel else 0

    def __str__(self) -> str:
        """Only what is not zero."""
        shown = [
            f"{f.name}={_short(getattr(self, f.name))}"
            for f in fields(self)
            if f.name != "policy" and getattr(self, f.name)
        ]
        return " ".join(shown) + f" retries={self.policy.max_retries}"


#: Every trouble that a night can have, as it is counted when it strikes.
TROUBLES = (
    *("lost", "repeated", "late", "reordered", "late_functions", "crash", "stall", "transient", "unanswered"),
    *("throttles", "forged"),
    *("skew_s", "jolt_s", "gpu_faults", "dead_gpus", "crashes", "other_exits", "power_cuts", "flaps"),
    *("terminations", "lies", "refused", "no_cure", "slow_reboot", "no_return", "fewer_gpus", "reboot_fails"),
    *("hung_check", "broken_check", "wrong_check", "deaf", "stops", "task_stops", "node_asks"),
    *("mixed", "poisoned", "frozen_gpus", "freezes"),
    *("hangs", "pauses", "false_witness", "deaf_watch", "strangers", "newcomers", "leaves"),
)


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


#: name: the highest rate that is drawn.
DELIVERY = {"lost": 0.6, "repeated": 0.5, "late": 0.6}
PROCESS = {"crash": 0.05, "stall": 0.1, "transient": 0.08, "unanswered": 0.05}
HARDWARE = {
    "gpu_faults": 2.5,
    "dead_gpus": 0.2,
    "crashes": 0.4,
    "other_exits": 0.2,
    "power_cuts": 1.2,
    "flaps": 4.0,
    "terminations": 0.1,
    "refused": 0.15,
}
_REPAIR = {
    "no_cure": 0.6,
    "slow_reboot": 0.5,
    "no_return": 0.4,
    "fewer_gpus": 0.4,
    "reboot_fails": 0.2,
    "hung_check": 0.3,
    "broken_check": 0.4,
    "wrong_check": 0.1,
    "deaf": 0.2,
}
_PEOPLE = {"stops": 0.6, "task_stops": 0.4, "node_asks": 1.5}


def draw(rng: Random, more: Random) -> Weather:
    """The night's troubles. What was added later is drawn from `more`, so that older seeds keep their nights."""
    weather = _first_draw(rng)
    if more.random() < 0.5:
        weather = replace(
            weather,
            reordered=more.uniform(0.05, 0.5) * (more.random() < 0.4),
            throttles=more.uniform(0.5, 3.0) * (more.random() < 0.4),
            jolt_s=more.choice((0.0, 0.0, 5.0, 30.0)),
            sweepers=2 if more.random() < 0.3 else 1,
        )
    weather = old_news(weather) if more.random() < 0.1 else weather
    weather = replace(weather, rows_travel=not weather.rows_in_commit and more.random() < 0.5)
    if more.random() < 0.2:
        weather = replace(weather, forged=more.uniform(0.2, 1.0))
    if more.random() < 0.2:
        weather = replace(weather, late_functions=more.uniform(0.5, 3.0), stop_s=120.0)
    weather = _progress(weather, apart(more, "progress"))
    return replace(weather, watched=apart(more, "nodes").random() < 0.6)


def _progress(weather: Weather, more: Random) -> Weather:
    """Whether jobs tell how far they have come, and what follows from it."""
    policy = replace(
        weather.policy,
        retry_refill=more.choice(("progress", "progress", "never")),
        restart_when_healthy=more.choice(("progress", "never")),
    )
    frozen = more.uniform(0.3, 1.5) if more.random() < 0.3 else 0.0
    reports = more.choice(("", "steps", "checkpoints"))
    return replace(weather, reports=reports, frozen_gpus=frozen, policy=policy)


def apart(more: Random, what: str = "records") -> Random:
    """Another stream of the same seed, that leaves this one where it is."""
    peek = Random()  # noqa: S311
    peek.setstate(more.getstate())
    return Random(f"{what} {peek.random()}")  # noqa: S311


def _first_draw(rng: Random) -> Weather:
    """Each group is absent in many nights; within a group each fault is drawn for itself."""
    rates: dict[str, float] = {}
    for group, there in (
        (DELIVERY, 0.6),
        (PROCESS, 0.7),
        (HARDWARE, 0.95),
        (_REPAIR, 0.6),
        (_PEOPLE, 0.4),
    ):
        if rng.random() < there:
            rates |= {
                name: rng.uniform(0.1, 1.0) * most for name, most in group.items() if rng.random() < 0.4
            }
    if rng.random() < 0.6:
        rates["gpu_faults"] = rng.uniform(0.3, 2.0)  # what the whole thing is for
    if rates.get("lost") and rng.random() < 0.1:
        rates["lost"] = 1.0  # nothing is ever told: the sweeper is alone
    blind = rng.random() < 0.5
    ordered = rng.random() < 0.7
    return Weather(
        nodes=(nodes := rng.choice((2, 2, 3, 3, 4))),
        jobs=rng.choice((1, 1, 2, 2, 3)) if nodes > 2 else rng.choice((1, 2)),
        work_s=rng.uniform(600, 3600),
        sweep_s=rng.choice((60.0, 120.0, 180.0, 300.0)),
        trouble_s=rng.uniform(1200, 5400),
        late_s=rng.choice((5.0, 60.0, 600.0)),
        stall_s=rng.choice((10.0, 60.0, 115.0)),
        retried=rng.choice((0.0, 0.5, 1.0)),
        skew_s=rng.choice((0.0, 0.0, 0.0, 30.0, 1200.0)),
        lies=0.0 if blind else rng.choice((0.0, 0.5, 1.0)),
        blind=blind,
        ordered=ordered,
        rows_in_commit=rng.random() < 0.5,
        roomy=rng.random() < 0.3,
        tombstones=rng.random() < 0.5,
        policy=Policy(
            max_retries=rng.choice((0, 1, 1, 2, 3)),
            post_reboot_check=rng.random() < 0.3,
            check_timeout=timedelta(minutes=rng.choice((10, 30))),
            reboot_timeout=timedelta(minutes=rng.choice((15, 30))),
            labels=True,
        ),
        sweepers=1,
        rows_travel=False,
        together=False,
        forgetful=False,
        watched=False,
        grouped=False,
        breaking=False,
        deployed=False,
        restored=False,
        reports="",
        odd=False,
        apart=False,
        spares=0,
        failover="",
        mute=False,
        files=False,
        **rates,
    )


def old_news(weather: Weather) -> Weather:
    return replace(
        weather,
        late=0.6,
        late_s=600.0,
        lost=0.0,
        stall=0.15,
        stall_s=115.0,
        crash=0.0,
        skew_s=0.0,
        sweep_s=60.0,
        gpu_faults=1.5,
        roomy=True,
        ordered=True,
    )
