"""What each measured number means, and what it should be. One table for all topics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Meaning:
    """One key of build/bench.json. `most` and `least` are the aims; a number without one is told for orientation."""

    topic: str
    what: str
    unit: str = ""
    most: float | None = None
    least: float | None = None

    def holds(self, value: float) -> bool | None:
        """Whether the aim is met; None where there is none."""
        if self.most is None and self.least is None:
            return None
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)

    @property
    def aim(self) -> str:
        if self.most is not None and self.most in (self.least, 0):
            return f"{self.most:g}"
        parts = [f"≤ {self.most:g}"] if self.most is not None else []
        parts += [f"≥ {self.least:g}"] if self.least is not None else []
        return " and ".join(parts)


#: Topics in the order of the page, with a title each.
TOPICS = {
    "aws_calls": "What a recovery costs on AWS",
    "embedded": "The embedded control plane",
    "health": "Verdicts about GPUs",
    "gates": "Nodes that come back",
    "failover": "Ranks that move",
    "hangs": "Jobs that neither train nor die",
    "fleet": "The fleet model",
    "imports": "Starting up",
    "console": "The console",
    "load": "Under load",
    "chaos": "Under fire",
}

FUNCTIONS = ("ecs_task_handler", "dcgm_task_monitor", "ecs_instance_monitor", "recovery_sweeper")


def _of_fleet(
    name: str,
    what: str,
    ours: str = "",
    *,
    most: float | None = None,
    least: float | None = None,
    error: str = "",
) -> dict[str, Meaning]:
    """One question to the fleet model: the answer, its standard error, and that for the first release."""
    told = f"{what}; its standard error; with the first release"
    return {
        f"{name}{ours}": Meaning("fleet", told, most=most, least=least),
        f"{name}{error or f'{ours}_error'}": Meaning("fleet", told),
        f"{name}_first_release": Meaning("fleet", told),
    }


MEANINGS: dict[str, Meaning] = {
    # -- aws_calls
    **{
        f"calls_recovery_{nodes}": Meaning(
            "aws_calls",
            "calls of AWS for one recovery by nodes, if each event comes alone; 25 are the same for any gang: 12 for"
            " the reboot, 5 for the check after it, 8 for the sweep",
            most=8 * nodes + 20,
        )
        for nodes in (2, 8, 32, 256)
    },
    "calls_recovery_cold_32": Meaning("aws_calls", "32 nodes, every event in a new process"),
    **{
        f"calls_queued_{nodes}": Meaning(
            "aws_calls", "the same through the queues, as deployed", most=8 * nodes + 20
        )
        for nodes in (2, 8, 32, 256, 1024)
    },
    "calls_per_node": Meaning("aws_calls", "calls that one more node adds", most=6),
    **{
        f"wcu_recovery_{nodes}": Meaning("aws_calls", "write units of DynamoDB for it")
        for nodes in (2, 8, 32, 256, 1024)
    },
    "wcu_per_node_growth": Meaning("aws_calls", "write units per node, 1,024 nodes over 32", most=1.5),
    "commits_recovery_256": Meaning("aws_calls", "writes of the record of a recovery, 256 nodes", most=60),
    "functions_at_once_256": Meaning("aws_calls", "most functions at once, 256 nodes", most=10),
    "recovery_1024_control_s": Meaning(
        "aws_calls", "all of 1,024 ranks die: until all run again, without checks and reboot", "s", most=120
    ),
    "calls_growth_rows_100k": Meaning(
        "aws_calls", "calls with 100,000 old rows, over calls without", most=1.0
    ),
    "item_kb_256": Meaning("aws_calls", "the item of a running job of 256 nodes", "KB", most=400),
    "item_kb_full_256": Meaning(
        "aws_calls", "on its worst night: every rank failed, every order pending; by nodes", "KB", most=400
    ),
    "item_kb_full_1024": Meaning(
        "aws_calls", "on its worst night: every rank failed, every order pending; by nodes", "KB", most=400
    ),
    "item_kb_aged_1024": Meaning("aws_calls", "the same after a hundred attempts", "KB", most=400),
    "conflicts_256": Meaning("aws_calls", "lost writes when 256 verdicts arrive on 16 threads"),
    "modify_calls_per_s_256": Meaning("aws_calls", "most modifying calls of ECS a second, over 5 s", most=40),
    # -- embedded
    "decide_per_s": Meaning("embedded", "decisions of the pure core, gang of 4", "a second"),
    "sqlite_events_per_s": Meaning("embedded", "facts decided, committed and dispatched", "a second"),
    "sqlite_raw_events_per_s": Meaning(
        "embedded", "the same writes by bare SQLite, one commit each", "a second"
    ),
    "sqlite_ratio_to_raw": Meaning(
        "embedded",
        "ours over bare SQLite; a cheap fsync lets deciding and encoding weigh",
        least=0.5,
    ),
    **{
        f"sqlite_ms_{part}": Meaning(
            "embedded",
            "of one event: the core decides; record, rows and JSON; SQLite with its fsync; the rest",
            "ms",
        )
        for part in ("deciding", "encoding", "writing", "rest")
    },
    "sqlite_cost_growth_100k": Meaning(
        "embedded",
        "cost of an event with 100,000 finished jobs, over that with 10",
        most=1.2,
    ),
    # -- health
    "verdict_cases": Meaning("health", "broken, sound, misused and untestable nodes examined"),
    "verdict_precision": Meaning("health", "share of the nodes called bad that are", least=1.0),
    "verdict_recall": Meaning(
        "health", "share of the bad nodes called bad, with the right remedy", least=1.0
    ),
    "verdict_actions_right": Meaning(
        "health",
        "share of nodes rebooted, set aside or left alone rightly",
        least=1.0,
    ),
    "healthy_condemned": Meaning("health", "sound nodes rebooted or set aside", most=0),
    "reboots_on_inconclusive": Meaning("health", "reboots of nodes that could not be tested", most=0),
    "verdicts_per_s": Meaning("health", "nodes broken, examined and dealt with", "a second"),
    "health_overhead_s": Meaning("health", "CPU time of one quick check of a sound node", "s", most=5),
    # -- gates
    "gate_cases": Meaning(
        "gates", "nodes that come back from a repair, in every order of the news", least=1000
    ),
    "gate_wrong": Meaning(
        "gates", "let back in though not found healthy, or kept out though healthy", most=0
    ),
    # -- failover
    "failover_control_s": Meaning(
        "failover",
        "embedded: from the last check to the last order to start, on a spare",
        "s",
        most=2,
    ),
    "calls_failover_32": Meaning("failover", "calls of AWS, 32 nodes, when a rank moves", most=8 * 32 + 20),
    # -- hangs
    "hang_cases": Meaning("hangs", "gangs that hang, or only seem to, in virtual time", least=200),
    "hang_missed": Meaning("hangs", "hangs that were not found", most=0),
    "hang_false": Meaning("hangs", "gangs that were stopped and did not hang", most=0),
    "hang_told": Meaning("hangs", "others of which a person was told"),
    "hang_seconds_p95": Meaning(
        "hangs", "until a hang is found, over HANG_AFTER_S, the slowest of twenty", most=1.2
    ),
    "agent_cpu_share": Meaning("hangs", "share of one core that the watch takes on a node", most=0.01),
    "agent_rss_mb": Meaning("hangs", "its memory", "MB"),
    # -- fleet
    "fleet_week_16384_s": Meaning("fleet", "CPU time to simulate a week of 16,384 nodes", "s", most=60),
    "fleet_growth": Meaning("fleet", "cost of four times the nodes, over four times the cost", most=1.2),
    **_of_fleet(
        "ettr",
        "effective training time: 128 nodes of RSC-1, 8 jobs, one spare in 32",
        "_default_fleet",
        least=0.985,
    ),
    **_of_fleet(
        "person_per_week",
        "times a week that a job needs a person there",
        "_default_fleet",
        most=0.5,
        error="_error",
    ),
    **_of_fleet(
        "unattended_16x30d", "share of jobs of 16 nodes there that run 30 days without a person", least=0.99
    ),
    **{
        f"unattended_16x30d_sound{which}": Meaning(
            "fleet",
            "the same where no failure asks for a change to the program (0.7 % do); its standard error",
            least=None if which else 0.99,
        )
        for which in ("", "_error")
    },
    # -- imports
    **{
        f"import_ratio_{name}": Meaning(
            "imports", "CPU time to start a function, over boto3 and its clients alone", most=1.35
        )
        for name in FUNCTIONS
    },
    **{f"import_ms_{name}": Meaning("imports", "CPU time to start it", "ms") for name in FUNCTIONS},
    # -- console
    "console_p50_ms": Meaning(
        "console",
        "a page or a list, 1,000 nodes, 10,000 jobs, 50 live viewers: median, slowest of twenty",
        "ms",
    ),
    "console_p95_ms": Meaning(
        "console",
        "a page or a list, 1,000 nodes, 10,000 jobs, 50 live viewers: median, slowest of twenty",
        "ms",
    ),
    "console_cpu_share": Meaning("console", "share of one core with 50 viewers"),
    "console_rss_mb": Meaning("console", "its memory", "MB"),
    "console_rss_growth": Meaning("console", "the same after viewers came and went, over before", most=1.2),
    "recovery_slowdown_with_viewers": Meaning(
        "console", "time of a recovery with 50 viewers, over that without", most=1.1
    ),
    "recovery_cpu_with_viewers": Meaning("console", "the same in its CPU time", most=1.2),
    # -- load
    "load_events_per_s": Meaning("load", "events of a burst of 1,000, 1,000 nodes and 100 jobs", "a second"),
    "load_burst_s": Meaning("load", "how long such a burst takes", "s"),
    "load_p50_ms": Meaning(
        "load", "one event of it once it has its turn: median, slowest of a hundred", "ms"
    ),
    "load_p99_ms": Meaning(
        "load", "one event of it once it has its turn: median, slowest of a hundred", "ms"
    ),
    "load_rss_mb": Meaning("load", "memory of the process", "MB"),
    "load_rss_grown_mb": Meaning("load", "of that, since before the load", "MB"),
    "load_growth": Meaning(
        "load", "CPU time of an event, 1,000 nodes and 100 jobs over 100 and 10", most=1.5
    ),
    "load_growth_nodes": Meaning("load", "the same, ten times the nodes only", most=1.5),
    "load_growth_jobs": Meaning("load", "the same, ten times the jobs only", most=1.5),
    "load_growth_gang": Meaning(
        "load", "the same, gangs of 100 over gangs of 10 (10 would be linear)", most=10
    ),
    "load_growth_look": Meaning(
        "load", "one sweep, ten times as much of everything (10 would be linear)", most=10
    ),
    "load_look_ms": Meaning("load", "CPU time of one sweep, 1,000 nodes and 100 jobs", "ms"),
}
