"""The rate at which messages may be delivered: of a subscription, a topic, a broker, or a resource group.

A dispatcher asks before it reads, reads no more entries than may pass, and counts the delivered ones. One delivery may
exceed the rate, by an entry that is larger; the next one waits longer for that. Deliveries of other dispatchers in
between count too. Nothing is kept for later: what waits stays in the ledger.
"""

import asyncio
from collections.abc import Callable, Sequence

from quire_bookie.env.rate_limit import RateLimit
from quire_broker.policies.rates import DispatchRate

PAUSE_S = 0.05
"""Added to each pause: after it several messages pass, not one for each timer."""
_NO_LIMIT = float("inf")


class DispatchLimit:
    """Counts deliveries. `use` changes the rate at any time; the caller then wakes dispatchers that wait."""

    __slots__ = ("_messages", "_size_bytes", "active", "charged", "rate")

    def __init__(self, rate: DispatchRate | None = None) -> None:
        self.charged = (0, 0)
        """Messages and bytes that were counted."""
        self._set(rate or DispatchRate())

    def _set(self, rate: DispatchRate) -> None:
        self.rate = rate
        self.active = rate.messages > 0 or rate.size_bytes > 0
        """Whether there is a limit. A plain attribute: it is read for each delivery."""
        self._messages = RateLimit(rate.messages / rate.period_s, rate.period_s)
        self._size_bytes = RateLimit(rate.size_bytes / rate.period_s, rate.period_s)

    def use(self, rate: DispatchRate) -> None:
        """Apply another rate. One that replaces a limit begins without a burst: it may change with each measurement."""
        if rate == self.rate:
            return
        limited = self.active
        self._set(rate)
        if limited:
            self._messages.reserve(rate.messages)
            self._size_bytes.reserve(rate.size_bytes)

    def charge(self, messages: int, size_bytes: int) -> None:
        """Count delivered messages."""
        self.charged = self.charged[0] + messages, self.charged[1] + size_bytes
        self._messages.reserve(messages)
        self._size_bytes.reserve(size_bytes)

    def room(self) -> tuple[float, float]:
        """Return how many messages and bytes may be delivered now."""
        return self._messages.saved(), self._size_bytes.saved()

    def waits_s(self) -> tuple[float, float]:
        """Return for how long no message, and no byte, may be delivered; 0: some may be now."""
        return self._messages.wait_s(), self._size_bytes.wait_s()


class Rationing:
    """The limits that apply to one dispatcher together, and its timer for the end of a wait."""

    def __init__(self) -> None:
        self.limits: Sequence[DispatchLimit] = ()
        self.messages = self.size_bytes = _NO_LIMIT
        """Messages and bytes that may be delivered, as `waits` found."""
        self.times = [0] * 8
        """How often delivery had to wait for messages and bytes of the first limit, the second one, and so on."""
        self._timer: asyncio.TimerHandle | None = None

    def is_unlimited(self) -> bool:
        """Return whether no limit applies, and note that: everything may be delivered."""
        for limit in self.limits:
            if limit.active:
                return False
        self.messages = self.size_bytes = _NO_LIMIT
        return True

    def waits(self, wake: Callable[[], None]) -> bool:
        """Return whether nothing may be delivered now; then `wake` is called when something may be."""
        if self.is_unlimited():
            return False
        active = [limit for limit in self.limits if limit.active]
        waits_s = [wait_s for limit in self.limits for wait_s in limit.waits_s()]
        if any(waits_s):
            for place, wait_s in enumerate(waits_s):
                self.times[place] += wait_s > 0
            self.cancel()
            self._timer = asyncio.get_running_loop().call_later(max(waits_s) + PAUSE_S, wake)
            return True
        rooms = [limit.room() for limit in active]
        self.messages, self.size_bytes = (min(each) for each in zip(*rooms, strict=True))
        return False

    def entries(self, entries_max: int, messages_per_entry: float) -> int:
        """Return how many entries may be delivered at once, at least one and at most `entries_max`."""
        if self.messages == _NO_LIMIT:
            return entries_max
        return min(entries_max, max(1, int(self.messages / max(1.0, messages_per_entry))))

    def bytes_at_once(self, bytes_max: int) -> int:
        """Return how many bytes to read at once, at least one and at most `bytes_max`."""
        return bytes_max if self.size_bytes == _NO_LIMIT else min(bytes_max, max(1, int(self.size_bytes)))

    def charge(self, messages: int, size_bytes: int) -> None:
        """Count delivered messages."""
        for limit in self.limits:
            if limit.active:
                limit.charge(messages, size_bytes)

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
