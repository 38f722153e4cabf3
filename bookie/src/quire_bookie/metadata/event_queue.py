"""The reader's side of a watch, shared by the store's implementations. Bounded: a reader that falls behind loses the
events and receives a RESYNC."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from quire_bookie.limits import METADATA_WATCH_EVENTS_MAX
from quire_bookie.metadata.store import Event, EventKind


class EventQueue:
    """Implements `Watch`. One task reads it."""

    def __init__(self, prefix: str, events_max: int = METADATA_WATCH_EVENTS_MAX) -> None:
        self.prefix = prefix
        self._events_max = events_max
        self._events: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the reader closed the watch."""
        return self._closed

    def offer(self, event: Event) -> None:
        """Queue an event under the prefix."""
        if self._closed:
            return
        if len(self._events) >= self._events_max:
            self.resync()
            return
        self._events.append(event)
        self._changed.set()

    def resync(self) -> None:
        """Drop the queued events, because others were lost, and queue a RESYNC."""
        self._events.clear()
        self._events.append(Event(EventKind.RESYNC, self.prefix))
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield events until closed."""
        while True:
            while self._events and not self._closed:
                yield self._events.popleft()
            if self._closed:
                return
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """End the stream; drop queued events."""
        self._closed = True
        self._changed.set()
