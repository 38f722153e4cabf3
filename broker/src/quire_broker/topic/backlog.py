"""Measures how far the durable subscriptions of one topic are behind, and evicts messages of those too far behind.

Only the slowest subscription counts; a subscription beyond the evicted messages loses nothing. Readers and the broker's
own cursors are neither counted nor moved. Evicted messages are only acknowledged: trimming does the rest.
"""

from collections.abc import Mapping

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import PeerProtocolError
from quire_broker.managed_ledger.backlog_size import bytes_after, end_of_excess
from quire_broker.managed_ledger.managed_ledger import ManagedLedger
from quire_broker.managed_ledger.position import Position
from quire_broker.policies.backlog_quota import BacklogQuotas
from quire_broker.topic.subscription import Subscription
from quire_broker.wire.entry import entry_time_ms

EVICTED_TO_PERCENT = 90
"""Percentage of the limit: eviction goes a little below the limit, otherwise the next message would exceed it again."""
_NEVER = 1 << 62


@dataclass(slots=True)
class BacklogStats:
    """Counters since the topic was loaded."""

    size_evictions: int = 0
    age_evictions: int = 0


@dataclass(frozen=True, slots=True)
class Oldest:
    """The oldest message that some subscription has not consumed. `time_ms`.

    Latest possible time of its publication.
    """

    subscription: str
    position: Position
    time_ms: int


class Backlog:
    """Measures and evicts the backlog of one topic."""

    def __init__(self, ledger: ManagedLedger, subscriptions: Mapping[str, Subscription]) -> None:
        self.stats = BacklogStats()
        self.quotas = BacklogQuotas()
        """Quotas at the last check."""
        self.oldest: Oldest | None = None
        """Oldest message at the last check; None if there was no backlog, or no check."""
        self._ledger = ledger
        self._subscriptions = subscriptions
        self._published = (Position(-1, -1), 0)  # position and publish time of the entry that was read last

    def _slowest(self) -> Subscription | None:
        durable = (found for found in self._subscriptions.values() if found.durable and not found.closed)
        return min(durable, key=lambda found: found.cursor.mark_delete, default=None)

    @property
    def size_bytes(self) -> int:
        """Estimated bytes of the backlog of the slowest durable subscription; 0 if there is none."""
        slowest = self._slowest()
        return 0 if slowest is None else self.size_of(slowest)

    def size_of(self, subscription: Subscription) -> int:
        """Return the estimated bytes of the backlog of one subscription."""
        return bytes_after(self._ledger.ledgers, subscription.cursor.mark_delete)

    async def find_oldest(self) -> Oldest | None:
        """Find the oldest unconsumed message. Its entry is read only once. Raises errors of reads."""
        slowest = self._slowest()
        if slowest is None or not slowest.cursor.backlog:
            self.oldest = None
            return None
        position = self._ledger.next_position(slowest.cursor.mark_delete)
        if self._published[0] != position:
            self._published = (position, await self._published_ms(position))
        # Publish times are from the producers' clocks, but no message is newer than the close of its ledger.
        time_ms = min(self._published[1], self._closed_ms(position))
        self.oldest = Oldest(slowest.name, position, time_ms) if time_ms < _NEVER else None
        return self.oldest

    async def _published_ms(self, position: Position) -> int:
        entries = await self._ledger.read(position, entries_max=1, bytes_max=1)
        try:
            return entry_time_ms(entries[0].data) if entries else _NEVER
        except PeerProtocolError:
            return _NEVER  # not stored by a Pulsar producer: use the close time of its ledger instead

    def _closed_ms(self, position: Position) -> int:
        ledgers = self._ledger.ledgers
        return next((one.closed_ms or _NEVER for one in ledgers if one.ledger_id == position.ledger_id), _NEVER)

    async def evict_size(self, limit_bytes: int) -> None:
        """Skip messages on each subscription that is too far behind, until its backlog is below the limit."""
        through = end_of_excess(self._ledger.ledgers, limit_bytes * EVICTED_TO_PERCENT // 100)
        for subscription in self._durable():
            if through is not None and subscription.cursor.mark_delete < through:
                await subscription.skip_through(through)
        self.stats.size_evictions += 1

    async def evict_age(self, before_ms: int) -> None:
        """Skip messages published before that time, in ms since the epoch."""
        for subscription in self._durable():
            if subscription.cursor.backlog:
                await subscription.expire(before_ms)
        self.stats.age_evictions += 1

    def _durable(self) -> list[Subscription]:
        return [found for found in self._subscriptions.values() if found.durable and not found.closed]
