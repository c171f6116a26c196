"""What the containers do. A test writes it down before; unscripted training runs until it is stopped."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from .logs import report
from .model import OUT_OF_MEMORY, Knobs, Outcome, Task

#: A task that carries this in its environment overrides is a health check.
CHECK = ("GPU_RECOVERY_KIND", "check")
IDLE = "GPU_HEALTH_EXPECT_IDLE"
OUTCOME_WORDS = frozenset(field.name for field in fields(Outcome))


@dataclass(slots=True, kw_only=True)
class Rule:
    """Tasks like this one end like that. Empty fields match everything; `times` None is for ever."""

    outcome: Outcome
    env: dict[str, str] = field(default_factory=dict)  #: overrides that the task must carry
    node: str = ""  #: name of the node
    family: str = ""
    times: int | None = 1

    def matches(self, task: Task) -> bool:
        return (
            self.times != 0
            and self.node in ("", task.node.name)
            and self.family in ("", str(task.definition["family"]))
            and all(task.env.get(name) == value for name, value in self.env.items())
        )


class Script:
    """The rules, oldest first, and what happens where none matches."""

    def __init__(self, knobs: Knobs) -> None:
        self._knobs = knobs
        self.rules: list[Rule] = []

    def outcome(self, task: Task) -> Outcome:
        """How this task will go. Asked once, when its containers are about to start."""
        for rule in self.rules:
            if rule.matches(task):
                if rule.times is not None:
                    rule.times -= 1
                return rule.outcome
        if is_check(task, self._knobs):
            code = verdict(task)
            said = (report(task, code),) if code else ()
            return Outcome(exit_code=code, after_s=self._knobs.check_s, lines=said)
        return Outcome()


def is_check(task: Task, knobs: Knobs) -> bool:
    family = str(task.definition["family"])
    return task.env.get(CHECK[0]) == CHECK[1] or bool(knobs.check_family and family == knobs.check_family)


def verdict(task: Task) -> int:
    """The next verdict in the queue; with the queue empty, how the node really is.

    One that wants the GPUs idle can't tell while a task runs there that the agent knows nothing of.
    """
    node = task.node
    if node.verdicts:
        return node.verdicts.popleft()
    used = task.env.get(IDLE) and any(orphan.process == "alive" for orphan in node.orphans)
    return 3 if used else node.health


def outcome_from(data: dict[str, Any]) -> Outcome:
    """An outcome in the words of the control interface: its fields, or one of the usual accidents."""
    words = {name: value for name, value in data.items() if name in OUTCOME_WORDS}
    accident = data.get("accident")
    if accident == "oom":
        words = {"exit_code": 137, "reason": OUT_OF_MEMORY, **words}
    elif accident == "cannot pull":
        error = "CannotPullContainerError: pull image manifest has been retried 5 time(s): not found"
        words = {"start_error": error, **words}
    elif accident is not None:
        raise ValueError(f"no such accident: {accident}")
    if words.get("exit_code") is not None:
        words.setdefault("after_s", 0.0)
    return Outcome(**words)
