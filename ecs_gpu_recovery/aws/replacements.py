"""Another machine for a node: its EC2 instance is terminated in its Auto Scaling group, which keeps its size.

The group starts the next one. Terminating the same instance twice is one termination, so the order needs no token.
Machines of ECS Anywhere are not AWS's to replace, nor are instances outside a group: nobody would start another.
What the machine knows is kept before it goes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from ..core.errors import ClusterRefused, Transient
from .errors import code_of, translated
from .last_look import LastLook
from .machines import Machines

#: The group is at work on something else, or the instance is on its way out already.
_NOT_NOW = frozenset({"ScalingActivityInProgress", "ResourceContention"})


class AutoScaling(Protocol):
    """The client, as far as it is used."""

    def terminate_instance_in_auto_scaling_group(
        self, *, InstanceId: str, ShouldDecrementDesiredCapacity: bool
    ) -> Any: ...


class Replacements:
    """Of one cluster."""

    def __init__(self, autoscaling: AutoScaling, look: LastLook, machines: Machines) -> None:
        self._groups, self._look, self._machines = autoscaling, look, machines

    def send(self, host: str, node: str, key: str, now: datetime, *, again: bool) -> str:
        """The archive of what it knew. `again`: it may have been sent before. Then an instance that no group knows may
        be gone already, which EC2 can tell."""
        from botocore.exceptions import ClientError

        if not host.startswith("i-"):
            raise ClusterRefused(node, f"{host or 'its host'} is no EC2 instance: it knows the reboot only")
        kept = self._look.kept(host, node, key, now, again=again)
        if kept is None:
            raise Transient(f"what {node} knows is kept before its machine goes")
        try:
            with translated(f"replacing {node}"):
                self._groups.terminate_instance_in_auto_scaling_group(
                    InstanceId=host, ShouldDecrementDesiredCapacity=False
                )
        except ClientError as exc:
            if code_of(exc) in _NOT_NOW:
                raise Transient(f"replacing {node}: {code_of(exc)}") from exc
            if code_of(exc) != "ValidationError":
                raise
            if not (again and self._machines.leaves(host)):
                why = exc.response["Error"].get("Message", "")
                raise ClusterRefused(
                    node, f"no Auto Scaling group would start another for {host}: {why}"
                ) from exc
        return kept
