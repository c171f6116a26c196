"""What people see of a node on the cluster itself: its status, as an attribute of its container instance."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.errors import Transient
from ..core.node_record import Node
from .errors import code_of, translated
from .event_fields import id_of
from .rate_limit import Pace

if TYPE_CHECKING:
    from mypy_boto3_ecs import ECSClient

log = logging.getLogger("ecs_gpu_recovery")
#: The name under which a node's status shows on its container instance.
STATUS_ATTRIBUTE = "status"
#: PutAttributes says so of an instance that is gone, and of one that has ten attributes of other names.
_NO_LABEL = frozenset({"TargetNotFoundException", "AttributeLimitExceededException"})


class Labels:
    """Of one cluster."""

    def __init__(self, ecs: ECSClient, cluster: str, pace: Pace) -> None:
        self._ecs, self._cluster, self._pace = ecs, cluster, pace

    def put(self, nodes: Sequence[Node]) -> None:
        """Ten attributes a call; each names its own instance. What ECS has forgotten needs no label, and an instance
        that others have given all the attributes it may have goes without."""
        from botocore.exceptions import ClientError

        known = [node for node in nodes if node.instance]
        for start in range(0, len(known), 10):
            some = known[start : start + 10]
            try:
                self._put(some)
            except ClientError as exc:
                if code_of(exc) not in _NO_LABEL:
                    raise
                if len(some) > 1:  # one of them spoils the call for all
                    for node in some:
                        self.put([node])
                else:
                    log.warning("no label", extra={"node": some[0].name, "why": code_of(exc)})

    def _put(self, nodes: Sequence[Node]) -> None:
        self._pace.wait()
        with translated("labelling nodes"):
            self._ecs.put_attributes(
                cluster=self._cluster,
                attributes=[
                    {
                        "name": STATUS_ATTRIBUTE,
                        "value": node.status.value,
                        "targetType": "container-instance",
                        "targetId": id_of(node.instance),
                    }
                    for node in nodes
                ],
            )

    def mend(self, nodes: Sequence[Node], shown: Mapping[str, str]) -> None:
        """A label that was missed, or came late, is put right on the way: the answer shows it. It holds up nothing."""
        wrong = [node for node in nodes if shown.get(node.name, node.status) != node.status.value]
        try:
            self.put(wrong)
        except Transient as exc:
            log.warning("labels put off", extra={"nodes": [node.name for node in wrong], "why": str(exc)})


def shown(reply: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    """What each node's instance says of its status; empty where it says nothing."""
    by_id = {id_of(instance): node for instance, node in names.items()}
    return {
        by_id[id_of(found["containerInstanceArn"])]: next(
            (
                str(a.get("value", ""))
                for a in found.get("attributes", [])
                if a.get("name") == STATUS_ATTRIBUTE
            ),
            "",
        )
        for found in reply.get("containerInstances", [])
        if found.get("status") != "INACTIVE" and id_of(found["containerInstanceArn"]) in by_id
    }
