"""What people read instead of the names in records. The English words are keys of the catalogues."""

from __future__ import annotations

JOB_LABELS = {
    "IN_PROGRESS": "Running",
    "PENDING_HEALTHCHECK": "Checking nodes",
    "PENDING_RESTART": "Waiting for nodes",
    "RESTARTING": "Restarting",
    "COMPLETE": "Complete",
    "FAILED": "Failed",
    "USER_STOPPED": "Stopped",
    "TERMINATED": "Terminated",  # of a task
}
NODE_LABELS = {
    "AVAILABLE": "Available",
    "UNKNOWN": "Not heard from",
    "ASSIGNED": "Assigned",
    "IN_PROGRESS": "Running",
    "PENDING": "Stopping",
    "PENDING_HEALTHCHECK": "Under check",
    "REBOOTING": "Rebooting",
    "FAILED": "Failed",
}
#: Where a node stands, see `standing`.
STANDINGS = {"free": "Free", "busy": "Busy", "drained": "Drained", "bad": "Bad"}

#: Orders that wait to be carried out, by their kind.
ORDERS = {
    "StartTask": "start a rank",
    "StopTask": "stop a rank",
    "CheckNode": "check the node",
    "RebootNode": "reboot the node",
    "ReplaceNode": "replace the machine",
    "Notify": "send a message",
    "Archive": "keep old history",
}
#: What the check of a node said, as people say it.
VERDICTS = {
    "healthy": "healthy",
    "reboot": "needs a reboot",
    "replace": "must be replaced",
    "inconclusive": "inconclusive",
    "lost": "lost",
}
