"""How patient, how strict, how deep: the numbers people may change. Data only; `config` reads it from outside.

A field that people may set is one row: its default, how it is read, what it is for, its variable.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import lru_cache

from .setting import boolean, duration, exit_codes, one_of, rows, setting, whole

#: What refills a budget, and when a job is restarted on healthy nodes.
PROGRESS, NEVER = "progress", "never"
#: How deep a node is examined, from shallow to deep, and the time that DCGM's tests of that depth may take.
LEVELS = ("quick", "1", "2", "3", "4")
_TESTS_TAKE = {
    level: timedelta(seconds=s) for level, s in (("1", 300), ("2", 900), ("3", 3600), ("4", 14_400))
}
#: What a check needs besides.
_BESIDES = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Every wait has an end, and every end is here."""

    max_retries: int = setting(
        1, whole(0, 100), "automatic restarts of a job in a row that bring no progress", name="MAX_RETRIES"
    )
    max_attempts: int = setting(
        100, whole(0, 10_000), "automatic restarts of a job in all", name="MAX_ATTEMPTS"
    )
    retry_refill: str = setting(
        PROGRESS,
        one_of(PROGRESS, NEVER),
        "what gives a job its restarts back: `progress`, or `never`",
        name="RETRY_REFILL",
    )
    refill_after: timedelta = duration(
        "REFILL_AFTER_S",
        1800,
        1800,
        "a job that tells no progress, and was restarted after a repair, has its restarts back after this time",
    )
    restart_when_healthy: str = setting(
        PROGRESS,
        one_of(PROGRESS, NEVER),
        "whether a job whose nodes are all healthy is restarted: if it made `progress`, or `never`;"
        " jobs of other tools never are",
        name="RESTART_WHEN_HEALTHY",
    )
    healthcheck_exit_codes: frozenset[int] = setting(
        frozenset({1}), exit_codes, "exit codes that start a health check", name="HEALTHCHECK_EXIT_CODES"
    )
    post_reboot_check: bool = setting(
        True, boolean, "examine a node again after its reboot", name="POST_REBOOT_CHECK"
    )
    admission_check: bool = setting(
        True,
        boolean,
        "examine a node that is new, or that a person gives back, before a job gets it; a job that takes it earlier"
        " does that itself",
        name="ADMISSION_CHECK",
        embedded=False,
    )
    check_level_before: str = setting(
        "1",
        one_of(*LEVELS),
        "how deep a node is examined before a job starts on it, and before it is first used",
        name="CHECK_LEVEL_BEFORE",
        embedded="quick",
    )
    check_level_after: str = setting(
        "2",
        one_of(*LEVELS),
        "how deep a node is examined after a failure, and after a fault that was seen on it",
        name="CHECK_LEVEL_AFTER",
        embedded="quick",
    )
    check_level_gate: str = setting(
        "2",
        one_of(*LEVELS),
        "how deep a node is examined at least before it comes back from a repair",
        name="CHECK_LEVEL_GATE",
        embedded="quick",
    )
    check_tries: int = setting(
        2, whole(1, 5), "how often an inconclusive check is tried in all", name="CHECK_TRIES"
    )
    start_timeout: timedelta = duration("START_TIMEOUT_S", 1200, 60, "a task must run within this time")
    stop_timeout: timedelta = duration("STOP_TIMEOUT_S", 300, 30, "a stopped task must end within this time")
    check_timeout: timedelta = duration(
        "CHECK_TIMEOUT_S",
        1800,
        120,
        "a health check must answer within this time, or within that of its DCGM tests and five minutes",
    )
    reboot_timeout: timedelta = duration(
        "REBOOT_TIMEOUT_S", 1800, 120, "a rebooting or lost node must be back within this time"
    )
    node_lost_after: timedelta = duration(
        "NODE_LOST_AFTER_S", 600, 10, "a node that is silent for longer is lost"
    )
    fault_grace: timedelta = duration(
        "FAULT_GRACE_S",
        120,
        10,
        "a rank that neither ends nor gets further for so long after a fatal GPU fault is frozen, and its gang is"
        " stopped and examined",
    )
    failover: str = setting(
        "auto",
        one_of("auto", "any", "spares", "none"),
        "where ranks go whose node has to be repaired: any free node of the same kind, spares only, or none;"
        " auto is any for jobs that took any nodes, and spares for those that named theirs",
        name="FAILOVER",
    )
    failover_lost_after: timedelta = duration(
        "FAILOVER_LOST_AFTER_S",
        900,
        30,
        "a rank leaves a lost node, whose task may still run, after this time",
    )
    leave_grace: timedelta = duration(
        "LEAVE_GRACE_S",
        75,
        3,
        "so long before its node is taken away, a gang that has not come to its next step is stopped",
    )
    leave_within: timedelta = duration(
        "LEAVE_WITHIN_S",
        600,
        30,
        "a node that is to be taken away at no certain time is left at the next step, or after this time",
    )
    wait_for_nodes: timedelta = duration(
        "WAIT_FOR_NODES_S",
        43_200,
        43_200,
        "a job that waits for other nodes ends after this time",
        (60, 2_592_000),
    )
    wait_told_after: timedelta = timedelta(minutes=15)  #: a person is told that a job waits for nodes
    agent_report: timedelta = duration(
        "AGENT_REPORT_S",
        120,
        5,
        "an agent that is back has told within this time how its tasks ended; until then no success is sure",
        (0, 3600),
    )
    hang_after: timedelta = duration(
        "HANG_AFTER_S", 600, 120, "GPUs that stand still and ranks that write nothing for longer are a hang"
    )
    first_progress: timedelta = duration(
        "FIRST_PROGRESS_S", 1800, 600, "a job that has not trained after this time is told to a person"
    )
    on_hang: str = setting(
        "recover",
        one_of("recover", "notify"),
        "what follows a hang: a recovery, or only a message",
        name="ON_HANG",
    )
    backoff_first: timedelta = duration(
        "BACKOFF_FIRST_S", 10, 0.5, "the wait before an order is sent again; it doubles", (0.01, 3600)
    )
    backoff_most: timedelta = duration("BACKOFF_MOST_S", 120, 5, "the longest such wait", (0.01, 3600))
    lease: timedelta = duration(
        "DISPATCH_LEASE_S", 180, 5, "how long an order belongs to the process that committed it", (0, 3600)
    )
    repair_rungs: str = setting(
        "reboot",
        one_of("reboot", "reboot,replace"),
        "how a bad node is repaired: `reboot`; with `reboot,replace` an EC2 instance that no reboot cures is also"
        " terminated in its Auto Scaling group, which starts another one",
        name="REPAIR_RUNGS",
    )
    replace_timeout: timedelta = duration(
        "REPLACE_TIMEOUT_S",
        3600,
        60,
        "a machine that is replaced must be gone within this time, and its successor there within as long again",
    )
    repairs: str = setting(
        "auto",
        one_of("auto", "ask"),
        "auto: nodes are repaired without asking; ask: each reboot waits for a person's yes",
        name="REPAIRS",
    )
    freeze_nodes: int = setting(
        3,
        whole(1, 10_000),
        "more nodes to repair within FREEZE_WITHIN_S freeze the fleet",
        name="FREEZE_NODES",
    )
    freeze_jobs: int = setting(
        2,
        whole(1, 10_000),
        "more jobs to stop, of which no rank has ended, within FREEZE_WITHIN_S freeze the fleet",
        name="FREEZE_JOBS",
    )
    freeze_within: timedelta = duration(
        "FREEZE_WITHIN_S", 600, 600, "the time in which the guard counts, and gives permits after a thaw"
    )
    alarm_tries: int = 12  #: an order that failed this often is told to a person
    timeline_limit: int = 100
    labels: bool = False  #: the cluster has a place where it shows the status of a node

    @classmethod
    def embedded(cls) -> Policy:
        """Local processes answer in seconds, so the patience is shorter than on AWS."""
        return cls(**{row.attribute: row.embedded for row in rows(cls) if row.embedded is not None})

    @property
    def may_replace(self) -> bool:
        return "replace" in self.repair_rungs.split(",")

    @property
    def version(self) -> str:
        """Changes whenever a number does, so a timeline entry says under which policy it was written."""
        return _digest(self)

    @property
    def silent_after(self) -> timedelta:
        """Nobody is called silent before. Five minutes, unless people are more or less patient with a hang."""
        return self.hang_after / 2

    @property
    def witness_age(self) -> timedelta:
        """What a node said before is no witness any more: three of its minutes."""
        return self.hang_after * 3 / 10

    def check_wait(self, level: str) -> timedelta:
        """A check of this depth must answer within this time: its tests are not cut off."""
        tests = _TESTS_TAKE.get(level)
        return max(self.check_timeout, tests + _BESIDES) if tests else self.check_timeout

    def backoff(self, tries: int) -> timedelta:
        """10 s, 20 s, 40 s ... up to the most."""
        longer: timedelta = self.backoff_first * int(2 ** min(tries, 16))
        return min(longer, self.backoff_most)


@lru_cache(maxsize=64)
def _digest(policy: Policy) -> str:
    text = ";".join(f"{f.name}={_stable(getattr(policy, f.name))}" for f in fields(policy))
    return "p" + hashlib.sha256(text.encode()).hexdigest()[:8]


def _stable(value: object) -> str:
    return ",".join(map(str, sorted(value))) if isinstance(value, frozenset) else str(value)
