"""The time of one state folder: UTC that never jumps while something waits.

Deadlines are moments in the records. If a person sets the machine's clock an hour ahead, or a laptop wakes up, every
wait would be over at once and jobs would fail of nothing; set back, they would hang for an hour. So time is taken from
the clock that only ever runs forward, which all processes of a machine share, and the folder keeps the difference to
UTC. Once nothing waits, the controller takes the difference anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from .files import DamagedFile, changed_at, read_json, write_json
from .processes import host_boot_id

log = logging.getLogger("ecs_gpu_recovery")
FILE = "clock.json"
#: What the two clocks may differ by unnoticed.
TOLERANCE_S = 2.0
ASK_EVERY_S = 1.0


def wall() -> float:
    """Seconds since 1970 by the clock that people set."""
    return time.time()


class Clock:
    """Cheap: it reads its file again only when that has changed."""

    def __init__(self, state: Path) -> None:
        self._path = str(state / FILE)
        self._mark = (-1, -1)
        self._offset: float | None = None
        self._asked_at = -ASK_EVERY_S

    def now(self) -> datetime:
        offset = self._known()
        return datetime.fromtimestamp(wall() if offset is None else time.monotonic() + offset, UTC)

    def keep(self, waits: Callable[[], bool], lives: Callable[[], object]) -> None:
        """For the controller, again and again: take the difference anew, unless it is good or something waits.

        A record's time never goes back, so as long as a job lives only a clock that was set ahead is followed.
        """
        now = time.monotonic()
        if now < self._asked_at + ASK_EVERY_S:
            return
        self._asked_at = now
        offset, actual = self._known(), wall() - now
        off_by = 0.0 if offset is None else actual - offset
        if offset is not None and (abs(off_by) <= TOLERANCE_S or waits() or (off_by < 0 and lives())):
            return
        if offset is not None:
            log.info("the clock of this machine was moved", extra={"why": f"by {off_by:.0f} seconds"})
        write_json(self._path, {"host_boot_id": host_boot_id(), "offset": actual})

    def _known(self) -> float | None:
        """The difference that was kept in this boot of the machine."""
        mark = changed_at(self._path)
        if mark != self._mark:
            try:
                record = read_json(self._path) or {}
            except DamagedFile as exc:
                log.warning("the machine's own clock is used", extra={"why": str(exc)})
                record = {}
            offset = record.get("offset")
            good = isinstance(offset, int | float) and record.get("host_boot_id") == host_boot_id()
            self._offset = float(offset) if good and offset is not None else None
            self._mark = mark
        return self._offset
