"""Samples of the GPUs every few seconds, asked by one child that stays, because any question may hang.

The child is asked nothing: it streams. One that falls silent is stuck in the driver: it is ended and begun again. If it
can't be ended it is left alone, since a second one would only get stuck beside it, until it has ended after all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ecs_gpu_recovery.health.sources import probe
from ecs_gpu_recovery.health.sources.probe import Emit, Probe, Running, Work

EVERY_S = 5.0
_SILENT_S = 30.0
#: Where the child ends by itself there is no driver, or no binding: that may change, but not soon.
_AGAIN_S = 300.0
_INFINIBAND = Path("/sys/class/infiniband")
#: Counters of a port and how many bytes one of them counts: InfiniBand counts words of four, EFA bytes.
_OF_A_PORT = {
    "counters/port_xmit_data": 4,
    "counters/port_rcv_data": 4,
    "hw_counters/tx_bytes": 1,
    "hw_counters/rx_bytes": 1,
}
Round = list[dict[str, object]]


class Sampler:
    """`read` is done by the child: it sends up one `sample` message per GPU and then one `round`, again and again."""

    def __init__(self, read: Work, silent_s: float = _SILENT_S, again_s: float = _AGAIN_S) -> None:
        self._read, self._silent_s, self._again_s = read, silent_s, again_s
        self._child: Running | None = None
        self._stuck: Running | None = None
        self._heard = self._next = 0.0
        self._round: Round = []

    def rounds(self) -> Iterator[Round]:
        """Those that are complete since the last call. It never waits."""
        if self._child is None:
            if self._stuck is not None and probe.ended(self._stuck):
                self._stuck = None
            if self._stuck is not None or time.monotonic() < self._next:
                return
            self._heard = time.monotonic()
            self._next = self._heard + self._again_s  # if it can't be begun
            self._child = probe.start(Probe(name="samples", deadline_s=float("inf"), work=self._read))
        messages, open_still = probe.take(self._child)
        for message in messages:
            if isinstance(told := message.get("sample"), dict):
                self._round.append(told)
            elif "round" in message:
                self._heard = time.monotonic()
                done, self._round = self._round, []
                yield done
        if not open_still or time.monotonic() - self._heard > self._silent_s:
            self._next = time.monotonic() + (self._again_s if not open_still else 0.0)
            self.close()

    @property
    def listens(self) -> bool:
        """Whether a child is being heard: what it told last still holds."""
        return self._child is not None

    def close(self) -> None:
        if self._child is not None:
            self._stuck = None if probe.kill(self._child) else self._child
            self._child, self._round = None, []


def stream(one_round: Callable[[Emit], None], emit: Emit, every_s: float = EVERY_S) -> None:
    """One round after the other, until nobody listens any more."""
    while True:
        one_round(emit)
        emit({"round": time.time()})
        time.sleep(every_s)


def infiniband_bytes(root: Path = _INFINIBAND) -> int:
    """What all InfiniBand and EFA ports have moved since they came up."""
    total = 0
    for port in root.glob("*/ports/*"):
        for name, size in _OF_A_PORT.items():
            try:
                total += int((port / name).read_text(encoding="ascii")) * size
            except (OSError, ValueError):
                continue  # the other kind of port, or one that does not count this
    return total
