"""One topic: a managed ledger with its producers and subscriptions. The facade for sessions and REST.

    Producer SENDs -> publish: checksum, metadata, deduplication -> ManagedLedger.append, all in one loop iteration
    ManagedLedger confirms -> Producer.stored, in order -> receipts of the batch in one write

A failed append ends the topic's life in this process (`on_failed`): it is unloaded, and the next use opens it again
from its durable state. Otherwise a later send of the same producer could overtake the failed one.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

from quire_bookie.dataclass import dataclass
from quire_bookie.env.background import Background
from quire_bookie.env.clock import WallClock
from quire_bookie.errors import PeerProtocolError, QuireError
from quire_bookie.metadata.joint_write import Place
from quire_broker.compaction.compacted_cursor import CompactedCursor
from quire_broker.compaction.topic_compaction import Compactions, TopicCompaction
from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.delivery import ConsumerSpec
from quire_broker.dispatch.entry_filters import EntryFilter
from quire_broker.dispatch.limit import DispatchLimit
from quire_broker.dispatch.tail_turns import TailTurns
from quire_broker.errors import (
    BrokerError,
    ConflictError,
    ServerError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicTerminatedError,
)
from quire_broker.managed_ledger.cursors.cursor import COMPACTION_CURSOR, Cursor
from quire_broker.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerState
from quire_broker.managed_ledger.position import EARLIEST, LATEST, Position
from quire_broker.names import TopicName
from quire_broker.policies.bundles import hash_of
from quire_broker.policies.inactivity import InactivityRules
from quire_broker.policies.rates import RateLimits
from quire_broker.sampling import Rate
from quire_broker.settings.entry_metadata import EntryMetadataSettings
from quire_broker.topic.backlog import Backlog
from quire_broker.topic.deduplication import CURSOR, Deduplication, DeduplicationSettings, Verdict
from quire_broker.topic.entry_metadata import EntryMetadata
from quire_broker.topic.message_rules import MessageRules
from quire_broker.topic.producers import NO_POSITION, Producer, Producers, Receipt, Refusal
from quire_broker.topic.publish_limit import PublishLimit
from quire_broker.topic.resource_groups import NO_GROUP, GroupLimits
from quire_broker.topic.serving import ServedSubscription
from quire_broker.topic.shadows import refuse_sends
from quire_broker.topic.subscribe_limit import SubscribeLimit
from quire_broker.topic.subscription import Subscription, SubscriptionSettings
from quire_broker.wire.entry import flaw_of, peek
from quire_broker.wire.frames import Send
from quire_broker.wire.kinds import InitialPosition, Moved
from quire_broker.wire.payload import last_index

EPOCH_PROPERTY = "pulsar.topic.epoch"
_RESERVED_CURSORS = (CURSOR, COMPACTION_CURSOR)
log = logging.getLogger("quire.broker.topic")


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings of all topics of a broker, or of a namespace whose policies override them."""

    deduplication: bool = False
    deduplication_snapshots: DeduplicationSettings = field(default_factory=DeduplicationSettings)
    subscriptions: SubscriptionSettings = field(default_factory=SubscriptionSettings)
    entry_metadata: EntryMetadataSettings = field(default_factory=EntryMetadataSettings)


@dataclass(slots=True)
class TopicStats:
    """Counters since the topic was loaded."""

    messages_in: int = 0
    entries_in: int = 0
    bytes_in: int = 0
    chunks_in: int = 0
    duplicates: int = 0
    checksum_errors: int = 0


@dataclass(slots=True)
class TopicRates:
    """Growth of the counters per second over the last tick."""

    messages: Rate = field(default_factory=Rate)
    size_bytes: Rate = field(default_factory=Rate)


class Topic:
    """A loaded topic. `load` creates one; `close` ends it."""

    def __init__(
        self,
        name: TopicName,
        ledger: ManagedLedger,
        settings: TopicSettings,
        background: Background,
        clock: WallClock,
        compactions: Compactions,
        on_failed: "Callable[[Topic, QuireError], None]",
    ) -> None:
        self.name = name
        self.hash = hash_of(str(name))
        """Its place on the ring of bundles."""
        self.ledger = ledger
        self.compaction = TopicCompaction(name, ledger, compactions, background)
        self.settings = settings
        self.stats = TopicStats()
        self.rates = TopicRates()
        self.subscriptions: dict[str, Subscription] = {}
        self.backlog = Backlog(ledger, self.subscriptions)
        self.deduplication: Deduplication | None = None
        added = settings.entry_metadata
        self.entry_metadata = EntryMetadata(added, ledger, clock) if added.active and not ledger.source else None
        self._background = background
        self._clock = clock
        self._on_failed = on_failed
        self._failure: QuireError | None = None
        self._closing = False
        epoch = ledger.properties.get(EPOCH_PROPERTY)
        self.producers = Producers(int(epoch) if epoch is not None else None, self._write_epoch)
        self._limits = RateLimits()
        self.publish_limit = PublishLimit()
        self.message_rules = MessageRules()
        self.subscribe_limit = SubscribeLimit()
        self._turns = TailTurns()
        self.dispatch_limit = DispatchLimit()
        self._dispatch_limits: Sequence[DispatchLimit] = (self.dispatch_limit,)
        """The limits that its subscriptions share, some of them with those of other topics."""
        self.group: GroupLimits = NO_GROUP
        """The limits of its resource group."""
        self._filters: Sequence[EntryFilter] = ()
        self._stopped: list[Consumer] = []
        """Consumers whose clients do not know yet that the topic is closed."""
        self._opening = asyncio.Lock()  # subscriptions are rarely created, so one at a time
        ledger.on_fenced = self._fenced
        self.used_at_s = asyncio.get_running_loop().time()
        """Loop time of the last request, or of the end of the last client."""
        self.loaded_s = self.idle_since_s = self.used_at_s
        """Loop times of the load, and of the end of the last client or subscription, as `inactive` last saw it."""
        self.rules = InactivityRules()
        self.on_activity: Callable[[Topic], None] = lambda topic: None
        """Called when a resting topic needs `tick` again."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when it gets a subscription: see `changes`."""
        self._resting = False

    async def load(self) -> None:
        """Open the durable subscriptions and, if enabled, the deduplication map and the index of messages."""
        if self.entry_metadata is not None:
            await self.entry_metadata.load()
        if self.settings.deduplication and self.ledger.source is None:
            await self._load_deduplication()
        for cursor_name in list(self.ledger.cursors):
            if cursor_name not in _RESERVED_CURSORS and cursor_name not in self.subscriptions:
                cursor = await self.ledger.open_cursor(cursor_name)
                self._add_subscription(cursor)

    async def _load_deduplication(self) -> None:
        cursor = await self.ledger.open_cursor(CURSOR, EARLIEST)
        loop = asyncio.get_running_loop()
        deduplication = Deduplication(cursor, self.settings.deduplication_snapshots, loop.time)
        await deduplication.recover()
        self.deduplication = deduplication

    def _add_subscription(self, cursor: Cursor, start: Position | None = None) -> Subscription:
        compacted = CompactedCursor(cursor, self.compaction, start)
        subscription = Subscription(self.name, self.ledger, cursor, self.settings.subscriptions, self._clock, compacted)
        subscription.on_use = self._active
        subscription.turns = self._turns
        subscription.share_limits(self._dispatch_limits)
        subscription.dispatch_limit.use(self._limits.of_subscription(cursor.name))
        subscription.filters.filters = self._filters
        self.subscriptions[cursor.name] = subscription
        self.on_change()
        return subscription

    async def _write_epoch(self, epoch: int) -> None:
        await self.ledger.set_property(EPOCH_PROPERTY, str(epoch))

    # state

    @property
    def closing(self) -> bool:
        """Whether the topic no longer accepts requests."""
        return self._closing or self._failure is not None

    @property
    def terminated(self) -> bool:
        """Whether publishing has been ended permanently."""
        return self.ledger.state is ManagedLedgerState.TERMINATED

    @property
    def properties(self) -> Mapping[str, str]:
        """Its stored properties."""
        return self.ledger.properties

    @property
    def holds_messages(self) -> bool:
        """Whether messages are stored in it."""
        return self.ledger.size_bytes > 0

    def _require_open(self) -> None:
        if self.closing:
            raise ServiceNotReadyError(f"{self.name} is being unloaded; look it up again")

    def _fenced(self, error: QuireError) -> None:
        self._fail(error)

    def _fail(self, error: QuireError) -> None:
        if self._failure is not None or self._closing:
            return
        self._failure = error
        log.warning("unloading %s after a failure: %s", self.name, error)
        self.producers.disconnect_all()
        self._on_failed(self, error)

    # rates

    def use_limits(self, limits: RateLimits) -> None:
        """Apply rates from now on, also to connected clients."""
        if limits == self._limits:
            return
        self._limits = limits
        self.publish_limit.use(limits.publish)
        self.subscribe_limit.use(limits.subscribe)
        self._limit_dispatch()
        self.limits_changed()

    def share_limits(self, group: GroupLimits, broker: DispatchLimit) -> None:
        """Apply the limits of a resource group and of the broker, which it shares with other topics."""
        if group is self.group and len(self._dispatch_limits) > 1:
            return
        self.group = group
        self._dispatch_limits = (self.dispatch_limit, broker, group.dispatch)
        for subscription in self.subscriptions.values():
            subscription.share_limits(self._dispatch_limits)
        self.limits_changed()

    def limits_changed(self) -> None:
        """Note that a limit of delivery was changed, its own or one that it shares: what waits for it may go on."""
        for subscription in self.subscriptions.values():
            subscription.limits_changed()

    def use_filters(self, filters: Sequence[EntryFilter]) -> None:
        """Deliver only the entries that these let pass, from now on."""
        self._filters = filters
        for subscription in self.subscriptions.values():
            subscription.filters.filters = filters

    def _limit_dispatch(self) -> None:
        """Apply the rates of delivery; some depend on the measured rate of publishing."""
        published = self.rates.messages.per_s, self.rates.size_bytes.per_s
        self.dispatch_limit.use(self._limits.dispatch.above(*published))
        for subscription in self.subscriptions.values():
            subscription.dispatch_limit.use(self._limits.of_subscription(subscription.name).above(*published))

    # producers

    async def add_producer(self, producer: Producer, presented_epoch: int | None) -> int:
        """Admit a producer. Return the sequence id from which it continues (-1: unknown)."""
        self._require_open()
        self._active()
        if self.terminated:
            raise TopicTerminatedError("Topic was already terminated")
        await self.producers.add(producer, presented_epoch)
        if self.closing:
            self.producers.remove(producer)
        self._require_open()
        producer.on_failure = self._append_failed
        producer.deduplication = self.deduplication
        if self.deduplication is None:
            return -1
        self.deduplication.connected(producer.name)
        return self.deduplication.last_of(producer.name)

    def remove_producer(self, producer: Producer) -> None:
        """Remove a producer that left, and promote the next one that waits for exclusive access."""
        self.used_at_s = self.idle_since_s = asyncio.get_running_loop().time()
        promotable = self.producers.remove(producer)
        if self.deduplication is not None and not self.producers.has(producer.name):
            self.deduplication.disconnected(producer.name)  # unless a successor took the name over
        if promotable:
            self._background.start(self.producers.promote(), f"promote a producer of {self.name}")

    def release_producer(self, producer: Producer) -> None:
        """Close a producer from the broker's side when its sends are answered; its client requests another.

        Later sends of this producer are dropped. The client sends them again through the new one, so nothing is stored
        twice.
        """
        producer.leave(lambda: self._released(producer))

    def _released(self, producer: Producer) -> None:
        if not producer.closed:
            self.remove_producer(producer)
            producer.link.close_producer(producer)

    def _append_failed(self, error: QuireError) -> None:
        if isinstance(error, TopicTerminatedError):
            self.producers.disconnect_all()
        else:
            self._fail(error)

    def publish(self, producer: Producer, sends: Iterable[Send], held_s: float = 0.0) -> int:
        """Append a run of sends, in one loop iteration. Answers are sent through the producer's link, in order.

        `held_s`: how long a rate of publishing has held the run back.
        Returns how many were accepted. The others, after a failure, are never answered: the producer is closed.
        """
        self._active()
        if held_s:
            self.ledger.held(held_s)
        if self.ledger.source is not None:
            return refuse_sends(producer, sends)
        taken = messages = entries = size_bytes = chunks = 0
        append, done, pushed = self.ledger.append, producer.stored, producer.pushed
        rules = self.message_rules if self.message_rules.active else None
        stamp = None if self.entry_metadata is None else self.entry_metadata.stamper()
        for send in sends:
            if self._failure is not None or self._closing:
                break  # an append failed at once; later ones would overtake it
            taken += 1
            sequence_id, given_highest, num_messages, is_chunk, _, entry, is_sound = send
            size = len(entry)
            highest = given_highest or 0
            flaw = None if is_sound else flaw_of(entry)
            if flaw is not None:
                # This error makes clients drop only this message; any other would make them send it again forever.
                self.stats.checksum_errors += 1
                producer.answered(size, Refusal(max(sequence_id, highest), ServerError.CHECKSUM, flaw))
                continue
            if rules is not None and (refusal := rules.refusal_of(send)) is not None:
                producer.answered(size, refusal)
                continue
            recorded: int | None = None
            if self.deduplication is not None:
                verdict, recorded = self._check_repeat(producer, send)
                if verdict is not Verdict.PUSH:
                    self._answer_repeated(producer, send, verdict)
                    continue
            pushed(sequence_id, highest, size, recorded)
            entries += 1
            messages += num_messages
            size_bytes += size
            chunks += is_chunk
            append(entry if stamp is None else stamp(entry, num_messages), done)
        self._count(producer, entries, messages, size_bytes, chunks)
        return taken

    def _count(self, producer: Producer, entries: int, messages: int, size_bytes: int, chunks: int) -> None:
        theirs, ours = producer.stats, self.stats
        theirs.entries += entries
        theirs.messages += messages
        theirs.size_bytes += size_bytes
        theirs.chunks += chunks
        ours.entries_in += entries
        ours.messages_in += messages
        ours.bytes_in += size_bytes
        ours.chunks_in += chunks

    def _check_repeat(self, producer: Producer, send: Send) -> tuple[Verdict, int | None]:
        assert self.deduplication is not None
        highest = max(send.sequence_id, send.highest_sequence_id or 0)
        summary = peek(send.entry)
        verdict = self.deduplication.check(producer.name, send.sequence_id, highest, summary)
        recorded = highest if summary.marker is None and summary.is_last_chunk else None
        return verdict, recorded

    def _answer_repeated(self, producer: Producer, send: Send, verdict: Verdict) -> None:
        self.stats.duplicates += 1
        size, highest = len(send.entry), send.highest_sequence_id or 0
        if verdict is Verdict.DUPLICATE:
            producer.answered(size, Receipt(send.sequence_id, highest, -1, -1))
            return
        message = "Cannot determine whether the message is a duplicate at this time"
        producer.answered(size, Refusal(max(send.sequence_id, highest), ServerError.PERSISTENCE, message))

    # subscriptions

    async def subscription(
        self, name: str, *, create: bool, initial: Position = LATEST, properties: dict[str, str] | None = None
    ) -> Subscription:
        """Return the durable subscription of that name; SubscriptionNotFoundError if it must not be created."""
        self._require_open()
        async with self._opening:
            existing = self.subscriptions.get(name)
            if existing is not None:
                return existing
            if name in _RESERVED_CURSORS:
                raise BrokerError(f"subscription name '{name}' is reserved for the broker")
            if not create:
                raise SubscriptionNotFoundError(f"Subscription '{name}' does not exist")
            cursor = await self.ledger.open_cursor(name, initial, properties or {})
            self._require_open()
            return self._add_subscription(cursor)

    async def subscribed(self, name: str, spec: ConsumerSpec) -> Subscription:
        """Return the subscription that a consumer requests, created if necessary."""
        if not spec.durable:
            return await self.reader_subscription(name, LATEST if spec.start is None else spec.start)
        initial = EARLIEST if spec.initial is InitialPosition.EARLIEST else LATEST
        return await self.subscription(
            name, create=True, initial=initial, properties=dict(spec.subscription_properties)
        )

    async def first_subscription(self, name: str) -> Subscription:
        """Return the subscription that a producer requests, created at the end if necessary."""
        return await self.subscription(name, create=True, initial=LATEST)

    async def reader_subscription(self, name: str, start: Position) -> Subscription:
        """Return a non-durable subscription from `start` on; it ends with its last consumer."""
        self._require_open()
        existing = self.subscriptions.get(name)
        if existing is not None:
            return existing
        cursor = self.ledger.open_reader_cursor(name, start)
        return self._add_subscription(cursor, start)

    async def drop_subscription(self, name: str, *, force: bool = False) -> None:
        """Delete a durable subscription. ConflictError while it has consumers, unless forced."""
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFoundError("Subscription not found")
        if subscription.consumers and not force:
            raise ConflictError("Subscription has active connected consumers")
        await subscription.delete()
        self.subscriptions.pop(name, None)
        self.idle_since_s = asyncio.get_running_loop().time()

    def forget_subscription(self, subscription: ServedSubscription) -> None:
        """Remove a subscription that deleted itself (unsubscribe, or a reader that left)."""
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            self.idle_since_s = asyncio.get_running_loop().time()

    async def consumer_left(self, subscription: ServedSubscription) -> None:
        """Handle that a consumer was detached: a reader's subscription is closed with its last one."""
        self.used_at_s = self.idle_since_s = asyncio.get_running_loop().time()
        if not subscription.durable and not subscription.consumers:
            self.forget_subscription(subscription)
            await subscription.close()

    async def last_message(self, *, compacted: bool = False) -> tuple[Position, int]:
        """Return position and batch index (-1: not a batch) of the last message; (-1, -1) and -1 for an empty topic.

        With `compacted` the last one that a consumer with readCompacted gets: it would wait for another one forever.
        """
        reader, last = self.compaction.reader, self.ledger.last_confirmed
        if compacted and reader is not None and self.ledger.next_position(reader.of.horizon) > last:
            kept = await reader.last()
            return (NO_POSITION, -1) if kept is None else (kept.position, last_index(kept.data))
        if last.entry_id < 0:
            return NO_POSITION, -1
        entries = await self.ledger.read(last, entries_max=1, bytes_max=1)
        if not entries:
            return NO_POSITION, -1
        try:
            summary = peek(entries[-1].data)
        except PeerProtocolError:
            return entries[-1].position, -1  # not stored by a Pulsar producer
        return entries[-1].position, summary.num_messages - 1 if summary.is_batch else -1

    # the end

    async def terminate(self) -> Position:
        """End publishing permanently; consumers continue to the end. Return the last position."""
        position = await self.ledger.terminate()
        self.producers.disconnect_all()
        for subscription in list(self.subscriptions.values()):
            subscription.topic_terminated()
        return position

    def _active(self) -> None:
        if self._resting:
            self._resting = False
            self._sample()  # a rate after a rest counts from its end
            self.on_activity(self)

    def _sample(self) -> bool:
        """Update the rates. Return whether any is above 0."""
        now_s = asyncio.get_running_loop().time()
        moving = self.rates.messages.sample(self.stats.messages_in, now_s)
        moving |= self.rates.size_bytes.sample(self.stats.bytes_in, now_s)
        for producer in self.producers.connected:
            moving |= producer.stats.message_rate.sample(producer.stats.messages, now_s)
            producer.stats.byte_rate.sample(producer.stats.size_bytes, now_s)
            producer.stats.chunk_rate.sample(producer.stats.chunks, now_s)
        for subscription in self.subscriptions.values():
            moving |= subscription.sample_rates(now_s)
        if self._limits.relative:
            self._limit_dispatch()
        return moving

    def tick(self) -> bool:
        """Run periodic work. Called by the registry. Return whether more is due; if not, `on_activity` tells."""
        moving = self._sample()
        if self.deduplication is not None and not self.closing:
            self.deduplication.snapshot_when_due()
            moving |= self.deduplication.has_unsaved
        self._resting = not moving
        return moving

    async def quiesce(self, place: Place | None = None) -> None:
        """Store pending appends, save the state and close the ledger. Afterwards another broker may load the topic.

        `ledger.settle` is left to the caller. `place`: see `ManagedLedger.save`.
        The clients stay connected until `disconnect`. What they send from now on is dropped: they send it again to the
        next owner.
        """
        self._closing = True
        await self.compaction.stop()
        for subscription in list(self.subscriptions.values()):
            self._stopped += await subscription.stop()
        self.subscriptions.clear()
        await self.ledger.drain()
        if self.deduplication is not None and self._failure is None:
            self.deduplication.snapshot()  # of all entries: then the next owner replays none. The ledger saves it
        await self.ledger.save(place)

    def disconnect(self, moved: Moved | None = None) -> None:
        """Disconnect all clients: they go to the new broker, or look the topic up again.

        The receipts of pending sends have been sent before.
        """
        stopped, self._stopped = self._stopped, []
        for consumer in stopped:
            consumer.link.close_consumer(consumer.spec.consumer_id, moved)
        self.producers.disconnect_all(moved)

    @property
    def used(self) -> bool:
        """Whether a client is connected."""
        return bool(len(self.producers) or self._stopped) or any(sub.consumers for sub in self.subscriptions.values())

    @property
    def changing(self) -> bool:
        """Whether a client or a subscription is being admitted, moved or removed."""
        return self._opening.locked() or self.producers.busy or any(one.changing for one in self.subscriptions.values())

    @property
    def must_stay(self) -> bool:
        """Whether it must stay loaded although no client is connected: it has a backlog, or its ledgers change."""
        subscriptions = self.subscriptions.values()
        busy = self.ledger.must_stay or self.compaction.running
        return busy or any(one.cursor.backlog or not one.durable for one in subscriptions)

    @property
    def has_backlog(self) -> bool:
        """Whether an open subscription has a message that it has not acknowledged."""
        return any(one.cursor.backlog and not one.closed for one in self.subscriptions.values())

    @property
    def durable_subscriptions(self) -> list[Subscription]:
        """The durable subscriptions."""
        return [found for found in self.subscriptions.values() if found.durable]

    def check_deletable(self, *, force: bool) -> None:
        """Raise ConflictError while it is used, unless forced; ServiceNotReadyError while another call ends it."""
        self._require_open()
        if self.used and not force:
            raise ConflictError("Topic has active producers/subscriptions")

    async def prepare_delete(self) -> None:
        """Disconnect all clients. The caller deletes the data."""
        self._closing = True
        self.producers.disconnect_all()
        await self.compaction.stop()
        await self._close_subscriptions()

    async def _close_subscriptions(self) -> None:
        for subscription in list(self.subscriptions.values()):
            await subscription.close()
        self.subscriptions.clear()
