"""Whether a node stands out in its gang, for its page. An hour that is over stays as it was: each is asked for once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from datetime import timedelta

from ..control.backend import NotAllowed
from ..control.records import RecordsBackend
from ..core.errors import Transient
from ..core.model import Job
from ..slow_nodes import HOUR, Slow

#: As far as the embedded history goes.
LOOK_BACK = timedelta(days=1)
_KEPT = 256


class SlowNodes:
    """Safe for many threads: two that ask at once may ask twice, which does no harm."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str, float], Sequence[Slow]] = OrderedDict()

    def of(self, side: RecordsBackend, node: str, job: Job | None) -> Sequence[Slow]:
        """In the gang that holds it now. Nothing where that can't be told: the rest of the page stands."""
        if job is None:
            return ()
        now = side.now()
        key = node, job.id, now.timestamp() // HOUR
        if key in self._known:
            return self._known[key]
        try:
            told = side.slow_nodes([job], now - LOOK_BACK, now, near=node)
        except (NotAllowed, Transient):
            return ()
        found = [each for each in told if each.node == node]
        with self._lock:
            self._known[key] = found
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return found
