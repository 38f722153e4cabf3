"""One topic whose messages are not stored: each goes at once to the subscriptions, and is answered whether or not any
consumer took it.

It has no ledger and nothing in the metadata store. When its broker ends, or gives it away, only its name remains with
the clients, which open it again elsewhere.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from quire_bookie.env.background import Background
from quire_broker.dispatch.delivery import ConsumerSpec, Delivery
from quire_broker.dispatch.entry_filters import EntryFilter
from quire_broker.dispatch.limit import DispatchLimit
from quire_broker.errors import (
    ConflictError,
    NotAllowedError,
    ServerError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
)
from quire_broker.managed_ledger.position import Position
from quire_broker.names import TopicName
from quire_broker.policies.bundles import hash_of
from quire_broker.policies.rates import RateLimits
from quire_broker.settings.dispatch import DispatchSettings
from quire_broker.topic.deduplication import Deduplication
from quire_broker.topic.message_rules import MessageRules
from quire_broker.topic.non_persistent_subscription import UNSTORED, NonPersistentSubscription
from quire_broker.topic.producers import Producer, Producers, Receipt, Refusal
from quire_broker.topic.publish_limit import PublishLimit
from quire_broker.topic.resource_groups import NO_GROUP, GroupLimits
from quire_broker.topic.serving import ServedSubscription
from quire_broker.topic.subscribe_limit import SubscribeLimit
from quire_broker.topic.topic import TopicRates, TopicStats
from quire_broker.wire.entry import EntrySummary, flaw_of, peek
from quire_broker.wire.frames import Send
from quire_broker.wire.kinds import Moved


class NonPersistentTopic:
    """A topic in the memory of its broker."""

    deduplication: Deduplication | None = None
    holds_messages = False
    properties: Mapping[str, str] = MappingProxyType({})

    def __init__(self, name: TopicName, settings: DispatchSettings, background: Background) -> None:
        self.name = name
        self.hash = hash_of(str(name))
        """Its place on the ring of bundles."""
        self.stats = TopicStats()
        self.rates = TopicRates()
        self.subscriptions: dict[str, NonPersistentSubscription] = {}
        self.producers = Producers(None, self._keep_epoch)
        self.publish_limit = PublishLimit()
        self.group: GroupLimits = NO_GROUP
        self.message_rules = MessageRules()
        self.subscribe_limit = SubscribeLimit()
        self.closing = False
        self.loaded_s = self.used_at_s = asyncio.get_running_loop().time()
        """Loop time of the last request, or of the end of the last client."""
        self._settings = settings
        self._background = background
        self._filters: Sequence[EntryFilter] = ()
        self._lost = 0
        """Messages that ended subscriptions lost."""

    async def _keep_epoch(self, epoch: int) -> None:
        """Store nothing: the epoch of an exclusive producer ends with the topic."""

    @property
    def used(self) -> bool:
        """Whether a client is connected."""
        return bool(self.producers.everyone) or any(one.consumers for one in self.subscriptions.values())

    @property
    def dropped(self) -> int:
        """Number of messages that subscriptions lost, added up."""
        return self._lost + sum(one.drops.messages for one in self.subscriptions.values())

    def _require_open(self) -> None:
        if self.closing:
            raise ServiceNotReadyError(f"{self.name} is being unloaded; look it up again")

    # producers

    async def add_producer(self, producer: Producer, presented_epoch: int | None) -> int:
        """Admit a producer. Return -1: no sequence id is known."""
        self._require_open()
        await self.producers.add(producer, presented_epoch)
        if self.closing:
            self.producers.remove(producer)
        self._require_open()
        return -1

    def remove_producer(self, producer: Producer) -> None:
        """Remove a producer that left, and promote the next one that waits for exclusive access."""
        self.used_at_s = asyncio.get_running_loop().time()
        if self.producers.remove(producer):
            self._background.start(self.producers.promote(), f"promote a producer of {self.name}")

    def release_producer(self, producer: Producer) -> None:
        """Close a producer from the broker's side; its client requests another."""
        self.remove_producer(producer)
        producer.link.close_producer(producer)

    def publish(self, producer: Producer, sends: Iterable[Send], held_s: float = 0.0) -> int:
        """Answer a run of sends, then offer it to every subscription. Return how many were accepted."""
        entries: list[tuple[EntrySummary, Delivery]] = []
        taken = 0
        for send in sends:
            if self.closing:
                break
            taken += 1
            size, highest = len(send.entry), send.highest_sequence_id or 0
            flaw = None if send.is_sound else flaw_of(send.entry)
            if flaw is not None:
                # This error makes clients drop only this message; any other would make them send it again forever.
                self.stats.checksum_errors += 1
                producer.answered(size, Refusal(max(send.sequence_id, highest), ServerError.CHECKSUM, flaw))
                continue
            if self.message_rules.active and (refusal := self.message_rules.refusal_of(send)) is not None:
                producer.answered(size, refusal)
                continue
            self._count(producer, send)
            producer.answered(size, Receipt(send.sequence_id, highest, *UNSTORED))
            entries.append((peek(send.entry), Delivery(UNSTORED, send.entry)))
        for subscription in list(self.subscriptions.values()) if entries else ():
            subscription.offer(entries)
        return taken

    def _count(self, producer: Producer, send: Send) -> None:
        theirs, ours, size = producer.stats, self.stats, len(send.entry)
        theirs.entries += 1
        theirs.messages += send.num_messages
        theirs.size_bytes += size
        ours.entries_in += 1
        ours.messages_in += send.num_messages
        ours.bytes_in += size

    def use_limits(self, limits: RateLimits) -> None:
        """Apply the rate of publishing. Delivery is not limited: what waited would be lost."""
        self.publish_limit.use(limits.publish)

    def share_limits(self, group: GroupLimits, broker: DispatchLimit) -> None:
        """Apply the limit of publishing of a resource group."""
        self.group = group

    def use_filters(self, filters: Sequence[EntryFilter]) -> None:
        """Deliver only the entries that these let pass, from now on."""
        self._filters = filters
        for subscription in self.subscriptions.values():
            subscription.filters.filters = filters

    # subscriptions

    async def subscribed(self, name: str, spec: ConsumerSpec) -> NonPersistentSubscription:
        """Return the subscription that a consumer requests, created if necessary."""
        return self.subscription(name, durable=spec.durable, properties=spec.subscription_properties)

    async def first_subscription(self, name: str) -> NonPersistentSubscription:
        """Return the subscription that a producer requests, created if necessary."""
        return self.subscription(name)

    def subscription(
        self, name: str, *, durable: bool = True, properties: Mapping[str, str] = MappingProxyType({})
    ) -> NonPersistentSubscription:
        """Return the subscription of that name, created if necessary. It gets the messages from now on."""
        self._require_open()
        self.used_at_s = asyncio.get_running_loop().time()
        found = self.subscriptions.get(name)
        if found is None:
            found = NonPersistentSubscription(name, self.name, self._settings, dict(properties), durable=durable)
            found.filters.filters = self._filters
            self.subscriptions[name] = found
        return found

    async def drop_subscription(self, name: str, *, force: bool = False) -> None:
        """End a subscription. ConflictError while it has consumers, unless forced."""
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFoundError("Subscription not found")
        if subscription.consumers and not force:
            raise ConflictError("Subscription has active connected consumers")
        await subscription.close()
        self.forget_subscription(subscription)

    def forget_subscription(self, subscription: ServedSubscription) -> None:
        """Remove a subscription that ended itself (unsubscribe, or a reader that left)."""
        found = self.subscriptions.get(subscription.name)
        if found is not None and found is subscription:
            self._lost += found.drops.messages
            del self.subscriptions[subscription.name]

    async def consumer_left(self, subscription: ServedSubscription) -> None:
        """Handle that a consumer was detached: a reader's subscription ends with its last one."""
        self.used_at_s = asyncio.get_running_loop().time()
        if not subscription.durable and not subscription.consumers:
            self.forget_subscription(subscription)
            await subscription.close()

    async def last_message(self, *, compacted: bool = False) -> tuple[Position, int]:
        """Refuse, since no message is kept. NotAllowedError."""
        raise NotAllowedError(f"the last message of {self.name} is not known: the topic is non-persistent")

    # periodic work and the end

    def sample(self, now_s: float) -> None:
        """Update the rates. Called periodically."""
        self.rates.messages.sample(self.stats.messages_in, now_s)
        self.rates.size_bytes.sample(self.stats.bytes_in, now_s)
        for producer in self.producers.connected:
            producer.stats.message_rate.sample(producer.stats.messages, now_s)
            producer.stats.byte_rate.sample(producer.stats.size_bytes, now_s)
        for subscription in self.subscriptions.values():
            subscription.sample_rates(now_s)

    def check_deletable(self, *, force: bool) -> None:
        """Raise ConflictError while it is used, unless forced."""
        if self.used and not force:
            raise ConflictError("Topic has active producers/subscriptions")

    def disconnect(self, moved: Moved | None = None) -> None:
        """End the topic: its clients go to the new broker, or look the topic up again."""
        self.closing = True
        for subscription in list(self.subscriptions.values()):
            for consumer in subscription.stop():
                consumer.link.close_consumer(consumer.spec.consumer_id, moved)
        self.subscriptions.clear()
        self.producers.disconnect_all(moved)
