"""One subscription of a topic: its cursor, its consumers and the dispatcher of its type. A facade: it decides whether
a consumer may join, passes acknowledgements to the cursor, and moves the cursor on a seek. The dispatcher chooses the
consumer of each entry.

`add_consumer`, seeks, `unsubscribe` and `close` hold one lock, because each awaits between checking and acting. The
commands of a consumer (FLOW, ACK, redelivery) are synchronous.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import takewhile

from quire_bookie.env.background import Background
from quire_bookie.env.clock import WallClock
from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import Buffer
from quire_broker.compaction.compacted_cursor import CompactedCursor
from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.delivery import AckId, ConsumerLink, ConsumerSpec
from quire_broker.dispatch.dispatcher import Dispatcher, DispatchStats
from quire_broker.dispatch.entry_filters import SubscriptionFilters
from quire_broker.dispatch.key_shared import KeySharedDispatcher
from quire_broker.dispatch.limit import DispatchLimit
from quire_broker.dispatch.shared import SharedDispatcher
from quire_broker.dispatch.tail_turns import TailTurns
from quire_broker.errors import ServiceNotReadyError, SubscriptionInUseError
from quire_broker.managed_ledger.cursors.cursor import REPLICATED, Cursor
from quire_broker.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerState
from quire_broker.managed_ledger.position import LATEST, Position, StoredEntry
from quire_broker.names import TopicName
from quire_broker.sampling import Rate
from quire_broker.settings.dispatch import DispatchSettings
from quire_broker.topic.subscription_acks import Acknowledgements
from quire_broker.topic.subscription_admission import conflicting, dispatcher_for, refusal
from quire_broker.wire.entry import entry_time_ms
from quire_broker.wire.kinds import TYPE_NAMES, AckKind, SubscriptionType

__all__ = ["Consumer", "Subscription", "SubscriptionSettings"]

SubscriptionSettings = DispatchSettings
_EXPIRED_AT_ONCE = 1000  # entries that are read for expiry before the lock is released for others
_SKIP_PAUSE_ENTRIES = 10_000  # counting this number of entries takes a few milliseconds; then other tasks run
_NEVER_MS = 1 << 62
log = logging.getLogger("quire.broker.subscription")


class Subscription:
    """A subscription as sessions, topics and REST use it."""

    def __init__(
        self,
        topic: TopicName,
        ledger: ManagedLedger,
        cursor: Cursor,
        settings: SubscriptionSettings,
        clock: WallClock,
        compacted: CompactedCursor,
    ) -> None:
        """Initialise. `compacted`: reads for the consumers with readCompacted."""
        self.name = cursor.name
        self.durable = cursor.durable
        self.cursor = cursor
        cursor.active = False  # it has no consumers yet
        self.closed = False
        self.on_use: Callable[[], None] = lambda: None
        """Called before each batch of deliveries or expired messages is counted, and after a consumer was attached."""
        self.filters = SubscriptionFilters(str(topic), cursor.name, lambda: cursor.cursor_properties)
        """Which entries are delivered; the others count as acknowledged."""
        self.turns = TailTurns()
        """Delivers at the tail; the subscriptions of a topic share it."""
        self.dispatch_limit = DispatchLimit()
        self._dispatch_limits: Sequence[DispatchLimit] = (self.dispatch_limit,)
        """Its own limit and those that it shares with other subscriptions."""
        self._topic = topic
        self._ledger = ledger
        self._compacted = compacted
        self._settings = settings
        self._clock = clock
        self._type = SubscriptionType.EXCLUSIVE
        self._dispatcher: Dispatcher | None = None
        self._reading = Background()
        self._lock = asyncio.Lock()
        self._moving = False
        self._stays = (Position(-1, -1), 0)
        """The entry at which the last expiry stopped, and its publish time: it is not read again each time."""
        self.expired = 0
        """Entries that were acknowledged because of their age since the subscription was loaded."""
        self.expired_rate = Rate()
        self.expired_at_ms = 0
        """When that happened last."""
        self._acks = Acknowledgements(ledger, cursor, batch_index_acks=settings.batch_index_acks)
        self._terminated = ledger.state is ManagedLedgerState.TERMINATED
        self._stop_listening = ledger.on_append(self._appended)

    # state for callers

    @property
    def consumers(self) -> Sequence[Consumer]:
        """The connected consumers."""
        return self._dispatcher.consumers if self._dispatcher is not None else ()

    @property
    def type(self) -> SubscriptionType:
        """Type of the consumers that are connected, or were last."""
        return self._type

    @property
    def type_name(self) -> str:
        """The type as Pulsar's tools write it."""
        return TYPE_NAMES[self._type]

    @property
    def active_consumer(self) -> Consumer | None:
        """The consumer that gets all entries on Exclusive and Failover; None on the other types."""
        return getattr(self._dispatcher, "active", None)

    @property
    def replicated(self) -> bool:
        """Whether its client wants other clusters to have its position."""
        return self.cursor.properties.get(REPLICATED) == 1

    async def set_replicated(self, value: bool) -> None:
        """Store the flag durably, as stock brokers do: with the position. Errors of the metadata store."""
        if value != self.replicated:
            others = {name: number for name, number in self.cursor.properties.items() if name != REPLICATED}
            self.cursor.set_properties(others | ({REPLICATED: 1} if value else {}))
            await self.cursor.flush()

    @property
    def stats(self) -> DispatchStats:
        """Counters since the subscription was loaded."""
        return self._dispatcher.stats if self._dispatcher is not None else DispatchStats()

    @property
    def changing(self) -> bool:
        """Whether a consumer is being admitted, or the subscription is moved or deleted."""
        return self._lock.locked() or self._moving

    @property
    def throttled(self) -> Sequence[int]:
        """How often delivery waited: for messages and bytes of its own, of the topic's and of the broker's limit."""
        return self._dispatcher.ration.times[:6] if self._dispatcher is not None else (0,) * 6

    def sample_rates(self, now_s: float) -> bool:
        """Update the outgoing rates per second. Called periodically. Return whether any is above 0."""
        moving = self.expired_rate.sample(self.expired, now_s)
        if self._dispatcher is None:
            return moving
        moving |= self._dispatcher.stats.sample_rates(now_s)
        for consumer in self._dispatcher.consumers:
            moving |= consumer.stats.sample_rates(now_s)
        return moving

    @property
    def backlog(self) -> int:
        """Number of entries that are not acknowledged."""
        return self.cursor.backlog

    @property
    def mark_delete(self) -> Position:
        """The position up to which everything is acknowledged."""
        return self.cursor.mark_delete

    # consumers

    def _check_open(self) -> None:
        if self.closed:
            raise ServiceNotReadyError(f"Subscription '{self.name}' is being closed")

    async def add_consumer(
        self, spec: ConsumerSpec, link: ConsumerLink, admit: Callable[[], None] = lambda: None
    ) -> Consumer:
        """Attach a consumer. ConsumerBusyError, ConsumerAssignError, NotAllowedError, ServiceNotReadyError.

        `admit` raises the first of these if there is no place for one more.
        A conflicting consumer whose client does not answer a PING is removed first.
        """
        self._check_open()
        if self._moving:
            raise ServiceNotReadyError(f"Subscription '{self.name}' is being moved by a seek")
        async with self._lock:
            self._check_open()
            if spec.rollback_s > 0 and not self.consumers:
                await self._roll_back(spec.rollback_s)
            while True:
                by_key = self._dispatcher if isinstance(self._dispatcher, KeySharedDispatcher) else None
                error = refusal(spec, self._type, self.consumers, None if by_key is None else by_key.mode)
                if error is not None:
                    raise error
                rival = conflicting(spec, self.consumers, None if by_key is None else by_key.sticky)
                if rival is None:
                    break
                if await rival.consumer.link.alive():
                    raise rival.error
                self._detach(rival.consumer)
                self._check_open()
            admit()  # no await follows: two consumers at once cannot take the same place
            dispatcher = self._dispatcher_of(spec)
            consumer = Consumer(spec, link, self._settings.unacked_per_consumer_max)
            dispatcher.add(consumer)
            self.cursor.active = True
            self.cursor.touch()
            self.on_use()
            return consumer

    def _dispatcher_of(self, spec: ConsumerSpec) -> Dispatcher:
        """Return the dispatcher, a new one for the first consumer, which may request another type or mode."""
        if self._dispatcher is not None and self._dispatcher.consumers:
            return self._dispatcher
        kept = self._dispatcher
        made = dispatcher_for(
            spec, kept, self.cursor, self._compacted, self._ledger, self._settings, self._clock, self._topic
        )
        if made is not kept:
            if kept is not None:
                made.stats = kept.stats  # counters continue since the subscription was loaded
                made.ration.times = kept.ration.times
                # A read of the old one may be in flight and moves the cursor when it ends: the new one waits for it.
                made.step_lock = kept.step_lock
                kept.retire()
            if not isinstance(made, SharedDispatcher) and self.cursor.buckets is not None:
                self.cursor.buckets.drop_soon(self.cursor.buckets.records)  # nothing is delayed any more
            self._type = spec.subscription_type
            self._dispatcher = made
            made.on_delivery = self.on_use
            made.turns = self.turns
            made.ration.limits = self._dispatch_limits
            made.filters = self.filters
            self._reading.start(made.run(), f"dispatch for {self.name} of {self._topic}")
        return made

    async def remove_consumer(self, consumer: Consumer) -> None:
        """Detach a consumer; an unknown one changes nothing. Its entries are delivered to others."""
        self._detach(consumer)

    def _detach(self, consumer: Consumer) -> None:
        if self._dispatcher is not None and consumer in self._dispatcher.consumers:
            self._dispatcher.remove(consumer)
            self.cursor.active = bool(self._dispatcher.consumers)
            self.cursor.touch()
        consumer.removed = True

    def _disconnect_all(self) -> None:
        for consumer in self._detach_all():
            consumer.link.close_consumer(consumer.spec.consumer_id)

    def _detach_all(self) -> list[Consumer]:
        consumers = list(self.consumers)
        for consumer in consumers:
            self._detach(consumer)
        return consumers

    # commands of clients, in order

    def _appended(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.appended()

    def share_limits(self, shared: Sequence[DispatchLimit]) -> None:
        """Deliver within these limits, too, which it shares with other subscriptions."""
        self._dispatch_limits = (self.dispatch_limit, *shared)
        if self._dispatcher is not None:
            self._dispatcher.ration.limits = self._dispatch_limits

    def limits_changed(self) -> None:
        """Note that a limit of delivery was changed: what waits for it may go on."""
        if self._dispatcher is not None:
            self._dispatcher.wake()

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Add permits that the client granted."""
        if consumer.removed or self._dispatcher is None:
            return
        consumer.flow(permits)
        self._dispatcher.wake()
        if self._terminated:
            self._notify_end()

    def acknowledge(self, consumer: Consumer, kind: AckKind, ids: Sequence[AckId]) -> None:
        """Process an ACK. Invalid ids are logged and ignored, because the client could do nothing about them."""
        dispatcher = self._dispatcher
        if dispatcher is None or consumer.removed:
            return
        self.cursor.touch()
        if kind is AckKind.INDIVIDUAL:
            self._acks.individual(dispatcher, consumer, ids)
        elif self._type in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED):
            log.warning("cumulative acknowledgement on %s subscription %s ignored", self.type_name, self.name)
        elif len(ids) != 1:
            log.warning("cumulative acknowledgement of %d ids on %s ignored", len(ids), self.name)
        else:
            self._acks.cumulative(ids[0])
        if self._terminated:
            self._notify_end()

    def acknowledge_entries(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """Process ACKs of whole entries: as `acknowledge` does each of them, in one step."""
        dispatcher = self._dispatcher
        if dispatcher is None or consumer.removed:
            return
        self.cursor.touch()
        self._acks.entries(dispatcher, consumer, positions)
        if self._terminated:
            self._notify_end()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Deliver entries again: these, or (None) all that the consumer did not acknowledge."""
        if self._dispatcher is not None and not consumer.removed:
            self._dispatcher.redeliver(consumer, positions, epoch)

    def topic_terminated(self) -> None:
        """Note that no more entries arrive. Consumers are notified when everything is acknowledged."""
        self._terminated = True
        self._notify_end()

    def _notify_end(self) -> None:
        if self.cursor.backlog:
            return
        for consumer in self.consumers:
            if not consumer.told_end:
                consumer.told_end = True
                consumer.link.reached_end(consumer.spec.consumer_id)

    # moving the cursor

    async def seek_position(self, position: Position) -> None:
        """Close all consumers, then durably start again at `position`: that entry is delivered next."""
        await self._move(position, None)

    async def seek_time(self, time_ms: int) -> None:
        """Seek to the first entry published at or after that time (ms since the epoch), or else to the end."""
        await self._move(None, time_ms)

    async def _move(self, position: Position | None, time_ms: int | None) -> None:
        if self._moving:
            raise ServiceNotReadyError(f"Subscription '{self.name}' is being moved by another seek")
        self._moving = True
        try:
            async with self._lock:
                self._check_open()
                if position is None:
                    position = await self._first_since(time_ms or 0)
                    self._check_open()
                self._disconnect_all()
                await self._reset(position)
        finally:
            self._moving = False

    async def _reset(self, position: Position) -> None:
        self.cursor.touch()
        if self._dispatcher is None:
            await self.cursor.reset(position)
            self._compacted.begin_at(position)
            return
        # Otherwise a read in flight would end after the reset, with entries from before it.
        async with self._dispatcher.step_lock:
            await self.cursor.reset(position)
            self._compacted.begin_at(position)
            self._dispatcher.reset()

    async def _first_since(self, time_ms: int) -> Position:
        def published_since(data: Buffer) -> bool:
            try:
                return entry_time_ms(data) >= time_ms
            except PeerProtocolError:
                return False  # an entry without a publish time counts as old, so that no entry is skipped because of it

        found = await self._ledger.find_first(published_since)
        return LATEST if found is None else found

    async def _roll_back(self, rollback_s: int) -> None:
        await self._reset(await self._first_since(self._clock.now_ms() - rollback_s * 1000))

    async def peek(self, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        """Return the first unacknowledged entries, whichever consumers hold them: at least one if there is one.

        At most `entries_max`, and none after those that together have `bytes_max` bytes.
        """
        found: list[StoredEntry] = []
        position = self._ledger.next_position(self.cursor.mark_delete)
        left_bytes = bytes_max
        while len(found) < entries_max and left_bytes > 0:
            self._check_open()
            entries = await self._ledger.read(position, entries_max - len(found), left_bytes)
            if not entries:
                break
            for entry in entries:
                if not self.cursor.is_acknowledged(entry.position):
                    found.append(entry)
                    left_bytes -= len(entry.data)
            position = self._ledger.next_position(entries[-1].position)
        return found

    async def skip(self, entries: int) -> None:
        """Acknowledge the next `entries` unacknowledged entries, whichever consumers hold them."""
        async with self._lock:
            self._check_open()
            position = self.cursor.mark_delete
            walked = 0
            while entries > 0 and position < self._ledger.last_confirmed:
                position = self._ledger.next_position(position)
                entries -= not self.cursor.is_acknowledged(position)
                walked += 1
                if walked % _SKIP_PAUSE_ENTRIES == 0:
                    await asyncio.sleep(0)
            self._skip_through(position)

    async def expire(self, before_ms: int) -> None:
        """Acknowledge the first entries that were published before that time (ms since the epoch).

        Stops at the first entry that stays, because publish times are from producers' clocks, which need not agree.
        Entries of a ledger that was closed before that time were published before it, whatever those clocks show.
        """
        async with self._lock:
            self._check_open()
            old = takewhile(lambda record: 0 < record.closed_ms < before_ms, self._ledger.ledgers)
            ends = [Position(record.ledger_id, record.entries - 1) for record in old if record.entries]
            if ends and ends[-1] > self.cursor.mark_delete:
                self._expire_through(ends[-1])
        if self._stays[0] == self._ledger.next_position(self.cursor.mark_delete) and self._stays[1] >= before_ms:
            return
        entries_max = 1  # usually the first one stays
        while await self._expire_some(before_ms, entries_max):
            entries_max = _EXPIRED_AT_ONCE

    async def _expire_some(self, before_ms: int, entries_max: int) -> bool:
        """Expire one run of entries, so that others get the lock in between. Return whether there may be more."""
        async with self._lock:
            self._check_open()
            entries = await self._ledger.read(self._ledger.next_position(self.cursor.mark_delete), entries_max)
            self._check_open()
            acknowledged = self.cursor.is_acknowledged
            old = list(takewhile(lambda entry: acknowledged(entry.position) or _older(entry.data, before_ms), entries))
            if old and old[-1].position > self.cursor.mark_delete:
                self._expire_through(old[-1].position)
            if len(old) < len(entries):
                self._stays = entries[len(old)].position, _published_ms(entries[len(old)].data)
            return bool(entries) and len(old) == len(entries)

    def _expire_through(self, position: Position) -> None:
        before = self.cursor.backlog
        self._skip_through(position)
        self.on_use()  # the topic samples the rate
        self.expired += max(0, before - self.cursor.backlog)
        self.expired_at_ms = self._clock.now_ms()

    async def skip_all(self) -> None:
        """Acknowledge all present entries."""
        async with self._lock:
            self._check_open()
            self._skip_through(self._ledger.last_confirmed)

    async def skip_through(self, position: Position) -> None:
        """Acknowledge everything up to and including a position; does nothing if it was already passed."""
        async with self._lock:
            self._check_open()
            self._skip_through(position)

    def _skip_through(self, position: Position) -> None:
        self.cursor.acknowledge_cumulative(position)
        if self._dispatcher is not None:
            self._dispatcher.acknowledged_through(position)
        if self._terminated:
            self._notify_end()

    # the end

    async def unsubscribe(self, consumer: Consumer, force: bool = False) -> None:
        """Delete the subscription. SubscriptionInUseError while others are attached, unless forced."""
        others = any(other is not consumer for other in self.consumers)
        if not force and (consumer not in self.consumers or others):
            raise SubscriptionInUseError("Unconnected or shared consumer attempting to unsubscribe")
        self._detach(consumer)
        await self.delete()

    async def delete(self) -> None:
        """Disconnect all consumers and delete the cursor with its state.

        After an error of the metadata store try again.
        """
        async with self._lock:
            self._disconnect_all()
            if self.durable:
                await self._ledger.delete_cursor(self.name)
            else:
                self._ledger.close_reader_cursor(self.cursor)
            await self._stop()

    async def close(self) -> None:
        """Disconnect all consumers; the clients look the topic up again. The ledger closes a durable cursor."""
        for consumer in await self.stop():
            consumer.link.close_consumer(consumer.spec.consumer_id)

    async def stop(self) -> list[Consumer]:
        """Do the same without notice to the clients. Return the consumers: the caller closes them."""
        async with self._lock:
            if self.closed:
                return []
            consumers = self._detach_all()
            await self._stop()
            if not self.durable:
                self._ledger.close_reader_cursor(self.cursor)
            return consumers

    async def _stop(self) -> None:
        self.closed = True
        self._stop_listening()
        if self._dispatcher is not None:
            self._dispatcher.retire()
        await self._reading.close()


def _older(data: Buffer, time_ms: int) -> bool:
    return _published_ms(data) < time_ms


def _published_ms(data: Buffer) -> int:
    """Return when an entry was published, in ms since the epoch. An unreadable one counts as published never."""
    try:
        return entry_time_ms(data)
    except PeerProtocolError:
        return _NEVER_MS
