"""The words of docs/reliability.md. Numbers stand in build/proof.json; here is what they are numbers of."""

from __future__ import annotations

#: Title, its number, the number of what went wrong with it, and how it is made.
KINDS: tuple[tuple[str, str, str, str], ...] = (
    (
        "nights simulated",
        "seeds_run",
        "seeds_failed",
        "the real runtime, sweeper and rules in a hostile world, judged after every step",
    ),
    (
        "troubles in them",
        "troubles",
        "",
        "faults, lost and late news, crashes, stalls, people; counted below",
    ),
    (
        "states searched",
        "model_states",
        "model_failed",
        "all that can happen in {model_worlds} small worlds ({model_worlds_cut_short} cut short); each state comes to"
        " an end",
    ),
    (
        "processes killed",
        "kills",
        "kills_failed",
        "`kill -9` of controllers, agents, supervisors, ranks and writers",
    ),
    (
        "deaths at a chosen call",
        "crash_points",
        "crash_points_failed",
        "a function dies after its k-th call of a simulated AWS, for every k of whole stories",
    ),
    (
        "malformed events",
        "bad_inputs",
        "bad_inputs_failed",
        "every field of every kind of event missing, empty or of a wrong type",
    ),
    (
        "forged events",
        "forgeries",
        "forgeries_taken",
        "what a neighbour can choose, chosen badly in every state of a job",
    ),
    (
        "nodes examined",
        "verdict_cases",
        "verdict_wrong",
        "broken, sound, misused and untestable embedded nodes (`make bench`)",
    ),
)

#: The invariants of the design, and what holds the code against them.
PROMISES: tuple[tuple[str, str], ...] = (
    (
        "At most one live task per rank, and never two attempts of a job at once",
        "nights, search, kills, crash points",
    ),
    ("A node is held by one job at most; a job that ended holds none", "nights, search, kills, crash points"),
    (
        "No reboot without a verdict of the failed attempt, never two for one, never under a task that is meant to run",
        "nights, search, kills, crash points",
    ),
    (
        "No more than `MAX_RETRIES` restarts in a row without progress, and only progress gives them back",
        "nights, search",
    ),
    ("No reboot without a permit, and none while the fleet is frozen", "nights, search"),
    (
        "A rank moves only to a sound node that nobody holds, when its old task is gone or its node was given up",
        "nights, search",
    ),
    ("A gang is stopped as hung only if two witnesses say so of all of it", "nights, search"),
    ("A job that has ended stays so, unless a person acts", "nights, search"),
    ("Every wait has a deadline: a job comes to its end, whatever gets lost", "nights, search, crash points"),
    (
        "What was decided is carried out, though processes die in between",
        "nights, search, kills, crash points",
    ),
    (
        "Whoever must know of a failed job is told once (twice only if the process died right after it had told them)",
        "nights, search, crash points",
    ),
    ("A commit that was acknowledged is never lost", "kills"),
    ("What a later release wrote into a record stays there, whichever release writes it next", "nights"),
    ("A record that cannot be read stops nothing else, and people are told of it", "nights"),
    ("A malformed event moves no job and stops no function", "malformed events"),
    (
        "No verdict, no reboot and no end is taken from a task that the job did not start",
        "nights, search, forged events",
    ),
    (
        "A node counts as lost only if it was away, or kept its task after it was asked to stop",
        "nights, search",
    ),
)

LIMITS: tuple[str, ...] = (
    "AWS itself was not there: ECS, SSM and DynamoDB are simulated after their documentation.",
    "In the nights a process stands still while others run to their end. The search takes every order, in small"
    " worlds.",
    "Leases hold only between clocks that agree within 45 s; the nights keep to that.",
    "A task that could not be told to stop within its deadline is given up, and people are told. Until the stop gets"
    " through it may share its node with another job's task.",
    "A start that is withdrawn while its sender stands still can get through. Such a task is stopped when it is seen;"
    " until then the next attempt may begin beside it.",
    "The rates of trouble were raised until every planted bug was found. They say that the nights can see such bugs,"
    " not how likely another one is.",
)

#: Below the chart of what struck.
HOW_NIGHTS_WORK: tuple[str, ...] = (
    "A night runs in virtual time, and its seed draws everything: nodes, jobs, which troubles exist and how often. A",
    "judge that knows nothing of the rules watches tasks, reboots, commits and messages after every step; in the end",
    "every job has ended, every order is carried out, every node is free and everyone was told once. A night that ends",
    "badly is kept in `tests/nights/regressions.txt` and can be seen again:",
    "",
    "    python -m testbed.nights --seed 118",
    "    python -m testbed.nights --sky late-news --seeds 0:300      # --help lists the skies",
)

#: The troubles of a night in words, in the order of the weather.
TROUBLES: dict[str, str] = {
    "lost": "news lost",
    "repeated": "news repeated",
    "late": "news late",
    "reordered": "news out of order",
    "forged": "tasks of a neighbour that say they are ours",
    "late_functions": "functions invoked minutes up to an hour late",
    "crash": "process dies",
    "stall": "process stands still",
    "transient": "call fails",
    "unanswered": "answer lost",
    "throttles": "call throttled",
    "skew_s": "sweeper's clock jumps",
    "jolt_s": "clock of the news jumps",
    "gpu_faults": "GPU fault",
    "dead_gpus": "GPU dead for good",
    "crashes": "program crashes",
    "other_exits": "other bad exit",
    "power_cuts": "power cut",
    "flaps": "agent flaps",
    "terminations": "instance terminated",
    "lies": "exit 0 of a dead task",
    "refused": "start refused",
    "no_cure": "reboot cures nothing",
    "slow_reboot": "reboot takes long",
    "no_return": "node never returns",
    "fewer_gpus": "GPU missing after reboot",
    "reboot_fails": "reboot fails",
    "hung_check": "check hangs",
    "broken_check": "check can't run",
    "wrong_check": "check is wrong",
    "deaf": "task ignores its stop",
    "stops": "person stops a job",
    "task_stops": "person stops a task",
    "node_asks": "person asks a node",
    "mixed": "functions of a later release on the same records",
    "poisoned": "a record damaged",
    "frozen_gpus": "GPU fault freezes the program",
    "freezes": "person freezes the fleet",
    "hangs": "rank stands still for good",
    "pauses": "gang stands still for a while",
    "false_witness": "false sign of a hang",
    "deaf_watch": "watch of a node dies",
    "strangers": "somebody else's task on a node",
    "leaves": "a node that is announced to be taken away, and is, or is not",
    "newcomers": "machine that joins in the night",
}
