"""First sight: container instances that nobody has recorded yet become nodes, without anybody opening a page.

An event names one; the sweeper looks for those of which no event came. Only machines with GPUs and with the tag that
lets them be repaired are taken: a cluster is shared, and other machines in it are none of our business.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ..core.events import Tick
from ..core.node_record import Node
from ..engine.runtime import Runtime
from .discover import described, listed, record, sighting
from .pages import pages

if TYPE_CHECKING:
    from mypy_boto3_ecs import ECSClient
    from mypy_boto3_ssm import SSMClient

log = logging.getLogger("ecs_gpu_recovery")
#: One that is not taken is looked at again after this time: its GPUs or its tag may come later.
LOOK_AGAIN = timedelta(minutes=10)


class Newcomers:
    """Remembers which instances are known, so that most looks cost one list call."""

    def __init__(self, ecs: ECSClient, ssm: SSMClient, cluster: str, tag: tuple[str, str]) -> None:
        self._ecs, self._ssm, self._cluster, self._tag = ecs, ssm, cluster, tag
        self._known: set[str] = set()
        self._left_out: dict[str, datetime] = {}

    def look(self, runtime: Runtime, at: datetime) -> list[Node]:
        """Record what the cluster has and the table has not."""
        there = listed(self._ecs, self._cluster)
        self._known &= set(there)
        strangers = [arn for arn in there if arn not in self._known]
        if strangers:
            self._known |= {node.instance for node in runtime.store.nodes()} & set(there)
        return self.take([arn for arn in strangers if arn not in self._known], runtime, at)

    def take(self, instances: Sequence[str], runtime: Runtime, at: datetime) -> list[Node]:
        """Record those of these that are ours, and have them examined before they are first used."""
        self._left_out = {arn: until for arn, until in self._left_out.items() if until > at}
        asked = [arn for arn in instances if arn not in self._left_out]
        if not asked:
            return []
        seen = [
            sighting(instance, self._cluster, at) for instance in described(self._ecs, self._cluster, asked)
        ]
        usable = [s for s in seen if s.node.gpus and not s.trouble]
        where = self._tagged() if usable else {}
        ours = [s for s in usable if s.node.host in where]
        shown = record(runtime.store, ours, lambda hosts: where, at)
        taken = [s.node for s in shown if not s.trouble]
        self._left_out.update(dict.fromkeys(set(asked) - {node.instance for node in taken}, at + LOOK_AGAIN))
        self._known |= {node.instance for node in taken}
        for node in taken:
            log.info("first sight", extra={"node": node.name, "instance": node.instance})
            runtime.handle_node(node.name, [Tick(at=at)])
        return taken

    def _tagged(self) -> dict[str, str]:
        """The addresses of all machines with the tag. SSM lets no other filter stand beside that of a tag."""
        found: dict[str, str] = {}
        key, value = self._tag
        for page in pages(
            "asking SSM which machines are ours",
            self._ssm.describe_instance_information,
            following="NextToken",
            Filters=[{"Key": f"tag:{key}", "Values": [value]}],
            MaxResults=50,
        ):
            rows = page.get("InstanceInformationList", [])
            found.update({str(row["InstanceId"]): str(row.get("IPAddress", "")) for row in rows})
        return found
