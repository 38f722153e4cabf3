"""One subscription of a topic whose messages are not stored: its consumers, and which of them gets an entry.

It has no cursor. An entry goes to a consumer with permits at once, or this subscription loses it and counts that.
Acknowledgements change nothing, and nothing is delivered twice.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

from quire_bookie.dataclass import dataclass
from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.delivery import AckId, ConsumerLink, ConsumerSpec, Delivery
from quire_broker.dispatch.dispatcher import DispatchStats, hand_over, size_of
from quire_broker.dispatch.entry_filters import FilterMissingError, SubscriptionFilters
from quire_broker.dispatch.immediate import ByKey, InTurn, ToActive
from quire_broker.errors import NotAllowedError, ServiceNotReadyError, SubscriptionInUseError
from quire_broker.managed_ledger.position import Position
from quire_broker.names import TopicName
from quire_broker.sampling import Rate
from quire_broker.settings.dispatch import DispatchSettings
from quire_broker.topic.subscription_admission import conflicting, key_shared_of, refusal
from quire_broker.wire.entry import EntrySummary
from quire_broker.wire.kinds import TYPE_NAMES, AckKind, SubscriptionType

UNSTORED = Position(0, 0)
"""Id of every message of a non-persistent topic."""
_NO_POSITION = Position(-1, -1)
log = logging.getLogger("quire.broker.dispatch")


@dataclass(slots=True)
class Drops:
    """Messages that were lost because no consumer could take them."""

    messages: int = 0
    rate: Rate = field(default_factory=Rate)


class NonPersistentSubscription:
    """A subscription as sessions, its topic and REST use it."""

    backlog = 0
    mark_delete = _NO_POSITION

    def __init__(
        self, name: str, topic: TopicName, settings: DispatchSettings, properties: Mapping[str, str], *, durable: bool
    ) -> None:
        """`properties`: those that its first consumer gave it. Entry filters see them."""
        self.name = name
        self.properties = properties
        self.filters = SubscriptionFilters(str(topic), name, lambda: properties)
        self.durable = durable
        self.closed = False
        self.stats = DispatchStats()
        self.drops = Drops()
        self._topic = topic
        self._settings = settings
        self._type = SubscriptionType.EXCLUSIVE
        self._choice = InTurn()
        self._lock = asyncio.Lock()
        self._unfiltered_until_s = 0.0
        """Loop time until which its filters have used up their share of the broker's time."""
        self._misses_filter = False
        """Whether the log says that one of its filters is not installed."""

    @property
    def consumers(self) -> Sequence[Consumer]:
        """The connected consumers."""
        return self._choice.consumers

    @property
    def type_name(self) -> str:
        """Type of the consumers that are connected, or were last, as Pulsar's tools write it."""
        return TYPE_NAMES[self._type]

    @property
    def active_consumer(self) -> Consumer | None:
        """The consumer that gets all entries on Exclusive and Failover; None on the other types."""
        return self._choice.active

    def sample_rates(self, now_s: float) -> None:
        """Update the rates per second. Called periodically."""
        self.stats.sample_rates(now_s)
        self.drops.rate.sample(self.drops.messages, now_s)
        for consumer in self.consumers:
            consumer.stats.sample_rates(now_s)

    # consumers

    async def add_consumer(
        self, spec: ConsumerSpec, link: ConsumerLink, admit: Callable[[], None] = lambda: None
    ) -> Consumer:
        """Attach a consumer. ConsumerBusyError, ConsumerAssignError, NotAllowedError, ServiceNotReadyError.

        `admit` raises the first of these if there is no place for one more.
        A conflicting consumer whose client does not answer a PING is removed first.
        """
        if spec.read_compacted:
            raise NotAllowedError("readCompacted only allowed on persistent topics")
        async with self._lock:
            while True:
                self._check_open()
                error = refusal(spec, self._type, self.consumers, self._choice.mode)
                if error is not None:
                    raise error
                rival = conflicting(spec, self.consumers, self._choice.sticky)
                if rival is None:
                    break
                if await rival.consumer.link.alive():
                    raise rival.error
                self._detach(rival.consumer)
            admit()  # no await follows: two consumers at once cannot take the same place
            if not self.consumers:
                self._choice = self._choice_for(spec)
                self._type = spec.subscription_type
            consumer = Consumer(spec, link)
            self._choice.add(consumer)
            return consumer

    def _check_open(self) -> None:
        if self.closed:
            raise ServiceNotReadyError(f"Subscription '{self.name}' is being closed")

    def _choice_for(self, spec: ConsumerSpec) -> InTurn:
        match spec.subscription_type:
            case SubscriptionType.SHARED:
                return InTurn()
            case SubscriptionType.KEY_SHARED:
                return ByKey(key_shared_of(spec), consistent_hashing=self._settings.key_shared_consistent_hashing)
        failover = spec.subscription_type is SubscriptionType.FAILOVER
        return ToActive(str(self._topic), self._topic.partition, failover=failover)

    async def remove_consumer(self, consumer: Consumer) -> None:
        """Detach a consumer; an unknown one changes nothing."""
        self._detach(consumer)

    def _detach(self, consumer: Consumer) -> None:
        if consumer in self._choice.consumers:
            self._choice.remove(consumer)
        consumer.removed = True

    # entries

    def offer(self, entries: Iterable[tuple[EntrySummary, Delivery]]) -> None:
        """Give each entry to a consumer that can take it now, in order; drop it if there is none.

        Entries that filters reject are no drops; entries that come while the filters must pause are.
        """
        if self.filters.filters:
            entries = self._filtered(entries)
        batches: dict[Consumer, tuple[list[Delivery], list[int]]] = {}
        for summary, delivery in entries:
            consumer = self._choice.choose(summary)
            if consumer is None:
                self.drops.messages += summary.num_messages
                continue
            consumer.permits -= summary.num_messages
            deliveries, counts = batches.setdefault(consumer, ([], []))
            deliveries.append(delivery)
            counts.append(summary.num_messages)
        for consumer, (deliveries, counts) in batches.items():
            hand_over(consumer, self.stats, deliveries, sum(counts), size_of(deliveries))

    def _filtered(self, entries: Iterable[tuple[EntrySummary, Delivery]]) -> list[tuple[EntrySummary, Delivery]]:
        """Return the entries that the filters let pass."""
        cost, now_s = self.filters.cost, asyncio.get_running_loop().time()
        found = []
        for summary, delivery in entries:
            if now_s < self._unfiltered_until_s or cost.is_spent:
                self.drops.messages += summary.num_messages
                continue
            try:
                if self.filters.admits(summary):
                    found.append((summary, delivery))
            except FilterMissingError as error:
                self.drops.messages += summary.num_messages
                if not self._misses_filter:
                    self._misses_filter = True
                    log.warning("subscription %s of %s gets nothing: %s", self.name, self._topic, error)
        if pause_s := cost.take_pause_s():
            self._unfiltered_until_s = asyncio.get_running_loop().time() + pause_s
        return found

    # commands of clients

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Add permits that the client granted."""
        if not consumer.removed:
            consumer.flow(permits)

    def acknowledge(self, consumer: Consumer, kind: AckKind, ids: Sequence[AckId]) -> None:
        """Count the acknowledgement of messages that the broker no longer has."""
        consumer.stats.entries_acked += len(ids)

    def acknowledge_entries(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """Count them, as `acknowledge`."""
        consumer.stats.entries_acked += len(positions)

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Use the client's new epoch: there is nothing to deliver again."""
        if epoch is not None:
            consumer.epoch = epoch

    async def set_replicated(self, value: bool) -> None:
        """Refuse to replicate a state that does not exist. NotAllowedError."""
        if value:
            raise self._refused("replicateSubscriptionState")

    async def seek_position(self, position: Position) -> None:
        """Refuse, since there is nothing to move in. NotAllowedError."""
        raise self._refused("a seek")

    async def seek_time(self, time_ms: int) -> None:
        """Refuse, since there is nothing to move in. NotAllowedError."""
        raise self._refused("a seek")

    def _refused(self, what: str) -> NotAllowedError:
        return NotAllowedError(f"{what} needs stored messages, and {self._topic} is non-persistent")

    # the end

    async def unsubscribe(self, consumer: Consumer, force: bool = False) -> None:
        """End the subscription. SubscriptionInUseError while others are attached, unless forced."""
        others = any(other is not consumer for other in self.consumers)
        if not force and (consumer not in self.consumers or others):
            raise SubscriptionInUseError("Unconnected or shared consumer attempting to unsubscribe")
        self._detach(consumer)
        await self.close()

    async def close(self) -> None:
        """Disconnect all consumers and accept no more."""
        for consumer in self.stop():
            consumer.link.close_consumer(consumer.spec.consumer_id)

    def stop(self) -> list[Consumer]:
        """Do the same without notice to the clients. Return the consumers: the caller closes them."""
        self.closed = True
        consumers = list(self.consumers)
        for consumer in consumers:
            self._detach(consumer)
        return consumers
