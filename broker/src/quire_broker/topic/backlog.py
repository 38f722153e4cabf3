"""How far the durable subscriptions of one topic are behind, and what they lose when that is too far.

Only the slowest count: a subscription that is nearer to the end than what is taken away loses nothing. Readers and the
broker's own cursors are neither counted nor moved. What is taken away is acknowledged, no more: trimming does the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from quire_bookie.errors import PeerProtocolError
from quire_broker.managed_ledger.backlog_size import bytes_after, end_of_excess
from quire_broker.managed_ledger.managed_ledger import ManagedLedger
from quire_broker.managed_ledger.position import Position
from quire_broker.policies.backlog_quota import BacklogQuotas
from quire_broker.topic.subscription import Subscription
from quire_broker.wire.entry import peek

EVICTED_TO_PERCENT = 90
"""Of the limit: eviction goes a little below it, or the next message would be over it again."""
_NEVER = 1 << 62


@dataclass(slots=True)
class BacklogStats:
    """Counted since the topic was loaded."""

    size_evictions: int = 0
    age_evictions: int = 0


@dataclass(frozen=True, slots=True)
class Oldest:
    """The oldest message that some subscription has not consumed. `time_ms`: when it was published, at the latest."""

    subscription: str
    position: Position
    time_ms: int


class Backlog:
    """Of one topic."""

    def __init__(self, ledger: ManagedLedger, subscriptions: Mapping[str, Subscription]) -> None:
        self.stats = BacklogStats()
        self.quotas = BacklogQuotas()
        """As they were at the last check."""
        self.oldest: Oldest | None = None
        """As it was at the last look; None: there was no backlog, or nobody looked."""
        self._ledger = ledger
        self._subscriptions = subscriptions
        self._published = (Position(-1, -1), 0)  # of the entry that was read last, and when

    def _slowest(self) -> Subscription | None:
        durable = (found for found in self._subscriptions.values() if found.durable and not found.closed)
        return min(durable, key=lambda found: found.cursor.mark_delete, default=None)

    @property
    def size_bytes(self) -> int:
        """What the slowest durable subscription has before it, estimated; 0 without one."""
        slowest = self._slowest()
        return 0 if slowest is None else self.size_of(slowest)

    def size_of(self, subscription: Subscription) -> int:
        """The same of one subscription."""
        return bytes_after(self._ledger.ledgers, subscription.cursor.mark_delete)

    async def find_oldest(self) -> Oldest | None:
        """Look for the oldest message. Its entry is read once. Errors of reads."""
        slowest = self._slowest()
        if slowest is None or not slowest.cursor.backlog:
            self.oldest = None
            return None
        position = self._ledger.next_position(slowest.cursor.mark_delete)
        if self._published[0] != position:
            self._published = (position, await self._published_ms(position))
        # Publish times are the producers' clocks; but nothing is younger than the end of its ledger.
        time_ms = min(self._published[1], self._closed_ms(position))
        self.oldest = Oldest(slowest.name, position, time_ms) if time_ms < _NEVER else None
        return self.oldest

    async def _published_ms(self, position: Position) -> int:
        entries = await self._ledger.read(position, entries_max=1, bytes_max=1)
        try:
            return peek(entries[0].data).publish_time_ms if entries else _NEVER
        except PeerProtocolError:
            return _NEVER  # stored by something that is no Pulsar producer: its ledger's end has to do

    def _closed_ms(self, position: Position) -> int:
        ledgers = self._ledger.ledgers
        return next((one.closed_ms or _NEVER for one in ledgers if one.ledger_id == position.ledger_id), _NEVER)

    async def evict_size(self, limit_bytes: int) -> None:
        """Skip, on each subscription that is behind it, to where less than the limit is left."""
        through = end_of_excess(self._ledger.ledgers, limit_bytes * EVICTED_TO_PERCENT // 100)
        for subscription in self._durable():
            if through is not None and subscription.cursor.mark_delete < through:
                await subscription.skip_through(through)
        self.stats.size_evictions += 1

    async def evict_age(self, before_ms: int) -> None:
        """Skip what was published before that time, in ms since the epoch."""
        for subscription in self._durable():
            if subscription.cursor.backlog:
                await subscription.expire(before_ms)
        self.stats.age_evictions += 1

    def _durable(self) -> list[Subscription]:
        return [found for found in self._subscriptions.values() if found.durable and not found.closed]
