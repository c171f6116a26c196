"""Live streams, and how many of them there may be. A stream is cheap; ten thousand of them are an attack."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from ...core.errors import RecoveryError

#: Of all viewers together, and of one person or address.
MOST_STREAMS, MOST_STREAMS_EACH = 256, 64
#: Who does not take what was sent for so long is gone, whatever the network says.
SEND_S = 30.0


class TooManyStreams(RecoveryError):
    """Too many watch already."""


class StreamLimits:
    """Counts open streams."""

    def __init__(self, most: int = MOST_STREAMS, each: int = MOST_STREAMS_EACH) -> None:
        self._most, self._each = most, each
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        return self._taken.total()

    def take(self, who: str) -> Callable[[], None]:
        """A way to give the place back, once. Raises `TooManyStreams`."""
        with self._lock:
            if self._taken.total() >= self._most:
                raise TooManyStreams(
                    f"{self._most} live streams are open, and that is all there may be: close some"
                )
            if self._taken[who] >= self._each:
                raise TooManyStreams(
                    f"you have {self._each} live streams open, and that is all: close some tabs"
                )
            self._taken[who] += 1
        left = [who]

        def release() -> None:
            with self._lock:
                if left:
                    self._taken[left.pop()] -= 1
                    self._taken += Counter()  # forgets those who have none

        return release


class EventStream(StreamingResponse):
    """Server-sent events. The place is given back however the stream ends, also before it began."""

    def __init__(self, content: AsyncIterator[str], release: Callable[[], None]) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def patient(message: Message) -> None:
            await asyncio.wait_for(send(message), SEND_S)
            await asyncio.sleep(0)  # a burst must not outrun the news that the viewer has gone

        try:
            with _ended_by_silence():
                await super().__call__(scope, receive, patient)
        finally:
            self._release()


@contextmanager
def _ended_by_silence() -> Iterator[None]:
    """A viewer who no longer reads is no error of ours."""
    try:
        yield
    except TimeoutError:
        return
    except BaseExceptionGroup as group:
        if group.split(TimeoutError)[1] is not None:
            raise
