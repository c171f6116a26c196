"""What the clock does for nodes on which nothing is wrong: it records new ones, forgets those that are gone, keeps
daemons where ECS keeps none, and has free ones examined.

The last two are off unless the deployment asks for them. None of it may hold up a recovery: it comes after the sweep.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from ..core.errors import Transient
from ..engine.idle_checks import IdleChecks
from ..engine.runtime import Runtime
from ..settings import LambdaSettings
from .metric_agents import ensure_agents
from .newcomers import Newcomers
from .retired import Retired

if TYPE_CHECKING:
    from mypy_boto3_ecs import ECSClient

log = logging.getLogger("ecs_gpu_recovery")


class Upkeep:
    """Keeps nothing between looks."""

    def __init__(
        self, ecs: ECSClient, settings: LambdaSettings, newcomers: Newcomers, retired: Retired
    ) -> None:
        self._newcomers, self._retired = newcomers, retired
        self._ecs, self._cluster, self._families = ecs, settings.ECS_CLUSTER_NAME, settings.node_daemons
        every = settings.idle_check_every
        self._idle = IdleChecks(every, level=settings.IDLE_CHECK_LEVEL) if every else None

    def look(self, runtime: Runtime, at: datetime) -> None:
        """One look a minute. What did not answer is asked again by the next one."""
        self._patiently("new nodes", partial(self._newcomers.look, runtime, at))
        self._patiently("machines that are gone", partial(self._retired.look, runtime, at))
        for family in self._families:
            self._patiently(family, partial(self._keep, family, at))
        if self._idle is not None:
            self._patiently("idle checks", partial(self._idle.look, runtime, at))

    def _keep(self, family: str, at: datetime) -> None:
        done = ensure_agents(self._ecs, self._cluster, family, at)
        if done.started or done.stopped or done.refused:
            counts = {"started": len(done.started), "stopped": len(done.stopped)}
            nodes = {"refused": list(done.refused), "failing": list(done.failing)}
            log.log(
                logging.WARNING if done.failing else logging.INFO,
                "daemons kept",
                extra={"family": family, **counts, **nodes},
            )

    def _patiently(self, what: str, act: Callable[[], object]) -> None:
        try:
            act()
        except Transient as exc:
            log.warning("put off", extra={"what": what, "why": str(exc)})
