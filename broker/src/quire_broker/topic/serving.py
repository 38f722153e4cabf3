"""Describes the part of topics and subscriptions that sessions use, whether messages are stored or not."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.delivery import AckId, ConsumerLink, ConsumerSpec
from quire_broker.dispatch.entry_filters import EntryFilter
from quire_broker.dispatch.limit import DispatchLimit
from quire_broker.managed_ledger.position import Position
from quire_broker.names import TopicName
from quire_broker.policies.rates import RateLimits
from quire_broker.topic.deduplication import Deduplication
from quire_broker.topic.message_rules import MessageRules
from quire_broker.topic.producers import Producer, Producers
from quire_broker.topic.publish_limit import PublishLimit
from quire_broker.topic.resource_groups import GroupLimits
from quire_broker.topic.subscribe_limit import SubscribeLimit
from quire_broker.wire.frames import Send
from quire_broker.wire.kinds import AckKind


class ServedSubscription(Protocol):
    """A subscription as sessions use it."""

    name: str
    durable: bool

    @property
    def consumers(self) -> Sequence[Consumer]:
        """The connected consumers."""
        ...

    @property
    def type_name(self) -> str:
        """The type as Pulsar's tools write it."""
        ...

    @property
    def backlog(self) -> int:
        """Number of entries that are not acknowledged."""
        ...

    @property
    def mark_delete(self) -> Position:
        """The position up to which everything is acknowledged."""
        ...

    async def add_consumer(self, spec: ConsumerSpec, link: ConsumerLink, admit: Callable[[], None] = ...) -> Consumer:
        """Attach a consumer. `admit` raises an error if there is no place for one more."""
        ...

    async def remove_consumer(self, consumer: Consumer) -> None:
        """Detach a consumer."""
        ...

    async def set_replicated(self, value: bool) -> None:
        """Store whether other clusters get the state of the subscription."""
        ...

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Add permits that the client granted."""
        ...

    def acknowledge(self, consumer: Consumer, kind: AckKind, ids: Sequence[AckId]) -> None:
        """Process an ACK."""
        ...

    def acknowledge_entries(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """Process ACKs of whole entries, one by one in their meaning, together in their cost."""
        ...

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Deliver entries again."""
        ...

    async def seek_position(self, position: Position) -> None:
        """Start again at a position."""
        ...

    async def seek_time(self, time_ms: int) -> None:
        """Start again at the first entry published at or after that time."""
        ...

    async def unsubscribe(self, consumer: Consumer, force: bool = False) -> None:
        """End the subscription."""
        ...

    async def close(self) -> None:
        """Disconnect all consumers."""
        ...


class TakenTraffic(Protocol):
    """What a topic has taken since it was loaded."""

    messages_in: int
    bytes_in: int


class ServedTopic(Protocol):
    """A topic as sessions use it."""

    @property
    def name(self) -> TopicName:
        """Its name."""
        ...

    @property
    def properties(self) -> Mapping[str, str]:
        """Its stored properties."""
        ...

    @property
    def stats(self) -> TakenTraffic:
        """What it has taken: refused messages do not count."""
        ...

    message_rules: MessageRules
    """Which messages it refuses."""

    @property
    def subscriptions(self) -> Mapping[str, ServedSubscription]:
        """Its subscriptions by name."""
        ...

    @property
    def producers(self) -> Producers:
        """Its producers."""
        ...

    @property
    def publish_limit(self) -> PublishLimit:
        """The rate at which messages may be published to it."""
        ...

    @property
    def group(self) -> GroupLimits:
        """The limits of its resource group."""
        ...

    @property
    def subscribe_limit(self) -> SubscribeLimit:
        """The rate at which one consumer may subscribe."""
        ...

    def use_limits(self, limits: RateLimits) -> None:
        """Apply rates from now on."""
        ...

    def use_filters(self, filters: Sequence[EntryFilter]) -> None:
        """Deliver only the entries that these let pass, from now on."""
        ...

    def share_limits(self, group: GroupLimits, broker: DispatchLimit) -> None:
        """Apply the limits of a resource group and of the broker, which it shares with other topics."""
        ...

    @property
    def deduplication(self) -> Deduplication | None:
        """The map of sequence ids, if the topic drops repeated sends."""
        ...

    @property
    def holds_messages(self) -> bool:
        """Whether messages are stored in it."""
        ...

    async def add_producer(self, producer: Producer, presented_epoch: int | None) -> int:
        """Admit a producer. Return the sequence id from which it continues (-1: unknown)."""
        ...

    def remove_producer(self, producer: Producer) -> None:
        """Remove a producer that left."""
        ...

    def release_producer(self, producer: Producer) -> None:
        """Close a producer from the broker's side."""
        ...

    def publish(self, producer: Producer, sends: Iterable[Send], held_s: float = 0.0) -> int:
        """Take a run of sends, which a limit has held back. Return how many were accepted."""
        ...

    async def subscribed(self, name: str, spec: ConsumerSpec) -> ServedSubscription:
        """Return the subscription that a consumer requests, created if necessary."""
        ...

    async def first_subscription(self, name: str) -> ServedSubscription:
        """Return the subscription that a producer requests, created at the end if necessary."""
        ...

    def forget_subscription(self, subscription: ServedSubscription) -> None:
        """Remove a subscription that ended itself."""
        ...

    async def consumer_left(self, subscription: ServedSubscription) -> None:
        """Handle that a consumer was detached."""
        ...

    async def last_message(self, *, compacted: bool = False) -> tuple[Position, int]:
        """Return position and batch index of the last message, with `compacted` of those that compaction kept."""
        ...
