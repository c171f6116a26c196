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
        1, whole(0, 100), "restarts of a job in a row that bring no progress", name="MAX_RETRIES"
    )
    max_attempts: int = setting(100, whole(0, 10_000), "restarts of a job in all", name="MAX_ATTEMPTS")
    retry_refill: str = setting(
        PROGRESS,
        one_of(PROGRESS, NEVER),
        "what gives restarts back: `progress`, or `never`",
        name="RETRY_REFILL",
    )
    refill_after: timedelta = duration(
        "REFILL_AFTER_S",
        1800,
        1800,
        "until a job that tells no progress, restarted after a repair, has its restarts back",
    )
    restart_when_healthy: str = setting(
        PROGRESS,
        one_of(PROGRESS, NEVER),
        "restart a job whose nodes are all healthy: after `progress`, or `never`; jobs of other tools: never",
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
        "examine a node that is new, or given back, before a job gets it",
        name="ADMISSION_CHECK",
        embedded=False,
    )
    check_level_before: str = setting(
        "1",
        one_of(*LEVELS),
        "depth of the check before a job starts, and of a new node",
        name="CHECK_LEVEL_BEFORE",
        embedded="quick",
    )
    check_level_after: str = setting(
        "2",
        one_of(*LEVELS),
        "the same after a failure, or a fault that was seen",
        name="CHECK_LEVEL_AFTER",
        embedded="quick",
    )
    check_level_gate: str = setting(
        "2",
        one_of(*LEVELS),
        "the same, at least, before a node returns from repair",
        name="CHECK_LEVEL_GATE",
        embedded="quick",
    )
    check_tries: int = setting(2, whole(1, 5), "tries of an inconclusive check", name="CHECK_TRIES")
    start_timeout: timedelta = duration("START_TIMEOUT_S", 1200, 60, "until a task must run")
    stop_timeout: timedelta = duration("STOP_TIMEOUT_S", 300, 30, "until a stopped task must end")
    check_timeout: timedelta = duration(
        "CHECK_TIMEOUT_S",
        1800,
        120,
        "until a check must answer; at least its DCGM tests and 5 min",
    )
    reboot_timeout: timedelta = duration(
        "REBOOT_TIMEOUT_S", 1800, 120, "until a rebooting or lost node must be back"
    )
    node_lost_after: timedelta = duration("NODE_LOST_AFTER_S", 600, 10, "until a silent node is lost")
    fault_grace: timedelta = duration(
        "FAULT_GRACE_S",
        120,
        10,
        "after a fatal GPU fault: until a rank that gets no further has its gang stopped and examined",
    )
    failover: str = setting(
        "auto",
        one_of("auto", "any", "spares", "none"),
        "where ranks go whose node is repaired: `any` free node of the kind, `spares`, `none`; `auto`: spares"
        " for jobs that named their nodes, else any",
        name="FAILOVER",
    )
    failover_lost_after: timedelta = duration(
        "FAILOVER_LOST_AFTER_S",
        900,
        30,
        "until a rank leaves a lost node, whose task may still run",
    )
    leave_grace: timedelta = duration(
        "LEAVE_GRACE_S",
        75,
        3,
        "a gang whose node is to be taken away is stopped this long before, even in the middle of a step",
    )
    leave_within: timedelta = duration(
        "LEAVE_WITHIN_S",
        600,
        30,
        "until a node that is to go at no certain time is left, if no step ends before",
    )
    wait_for_nodes: timedelta = duration(
        "WAIT_FOR_NODES_S",
        43_200,
        43_200,
        "until a job that waits for nodes ends",
        (60, 2_592_000),
    )
    wait_told_after: timedelta = timedelta(minutes=15)  #: a person is told that a job waits for nodes
    agent_report: timedelta = duration(
        "AGENT_REPORT_S",
        120,
        5,
        "until an agent that is back has told how its tasks ended",
        (0, 3600),
    )
    hang_after: timedelta = duration("HANG_AFTER_S", 600, 120, "until still GPUs and silent ranks are a hang")
    first_progress: timedelta = duration(
        "FIRST_PROGRESS_S", 1800, 600, "until a person is told that a job does not train"
    )
    on_hang: str = setting(
        "recover",
        one_of("recover", "notify"),
        "after a hang: `recover`, or only `notify`",
        name="ON_HANG",
    )
    backoff_first: timedelta = duration(
        "BACKOFF_FIRST_S", 10, 0.5, "wait before an order is sent again; doubles", (0.01, 3600)
    )
    backoff_most: timedelta = duration("BACKOFF_MOST_S", 120, 5, "the longest such wait", (0.01, 3600))
    lease: timedelta = duration(
        "DISPATCH_LEASE_S", 180, 5, "how long an order belongs to who committed it", (0, 3600)
    )
    repair_rungs: str = setting(
        "reboot",
        one_of("reboot", "reboot,replace"),
        "`reboot,replace`: an EC2 instance that no reboot cures, or that does not come back from one, is terminated in"
        " its Auto Scaling group, which starts another",
        name="REPAIR_RUNGS",
    )
    replace_timeout: timedelta = duration(
        "REPLACE_TIMEOUT_S",
        3600,
        60,
        "until a replaced machine is gone, and again until its successor is there",
    )
    repairs: str = setting(
        "auto",
        one_of("auto", "ask"),
        "`ask`: each repair waits for a person's yes",
        name="REPAIRS",
    )
    freeze_nodes: int = setting(
        3,
        whole(1, 10_000),
        "more nodes to repair within `FREEZE_WITHIN_S` freeze the fleet",
        name="FREEZE_NODES",
    )
    freeze_jobs: int = setting(
        2,
        whole(1, 10_000),
        "more jobs to stop in that time though no rank of theirs has ended (hangs, faults) freeze it too",
        name="FREEZE_JOBS",
    )
    freeze_within: timedelta = duration(
        "FREEZE_WITHIN_S", 600, 600, "the time in which the guard counts, and gives permits after a thaw"
    )
    alarm_tries: int = 12  #: an order that failed this often is told to a person
    timeline_limit: int = 100
    keeps_evidence: bool = (
        True  #: nodes keep something before a repair and of a hang, which people can be told of
    )
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
