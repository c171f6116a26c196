"""Three kinds of failure, three fates.

`Refused`   the world, or a rule, said no: the asker is told, nothing changed.
`Transient` it may work later: the order stays in the outbox with a later due time.
`Bug`       it can never be right: it crashes loudly, to the dead-letter queue and an alarm.
"""

from __future__ import annotations


class RecoveryError(Exception):
    """The root of every error this project raises on purpose."""


class Refused(RecoveryError):
    """A request that can't be granted; the message says why and what to do instead."""


class NotFound(Refused):
    """No such job, task or node."""


class NodesTaken(Refused):
    """At least one chosen node can't be claimed, so none was."""

    def __init__(self, reasons: dict[str, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__("; ".join(f"{node}: {why}" for node, why in sorted(reasons.items())))


class JobExists(Refused):
    """A job with this id is already recorded."""


class ClusterRefused(Refused):
    """The cluster would not carry out an order now. `reason` is in ECS's own words (AGENT, RESOURCE:GPU, ...)."""

    def __init__(self, node: str, reason: str) -> None:
        self.node, self.reason = node, reason
        super().__init__(f"{node}: {reason}")


class Transient(RecoveryError):
    """The outside world did not answer; the same order may succeed later."""


class BadRecord(RecoveryError):
    """One record that this program can't work on. Everything else goes on without it."""

    version = 0  #: of the record, where it is kept beside it

    def __init__(self, kind: str, name: str, why: str) -> None:
        self.kind, self.name, self.why = kind, name, why
        super().__init__(f"the record of {kind} {name} cannot be read: {why}")


class Unreadable(BadRecord, Refused):
    """It is damaged: nothing of ours can have written it so. A person must look at it."""


class NewerRecord(BadRecord, Transient):
    """A newer release has written it. It is left as it is; what was to be done with it waits for that release."""


class VersionConflict(RecoveryError):
    """Someone else moved the record first: load it again and decide again.

    `newest` is the record as it was found, where the store learned it with the refusal.
    """

    def __init__(self, message: str = "", newest: object = None) -> None:
        self.newest = newest
        super().__init__(message)


class Bug(RecoveryError):
    """An impossible state. Never caught, so that nobody builds on it."""
