"""Owns the consumers of one session: handles SUBSCRIBE and later commands, and writes deliveries to the socket.

Dispatch delivers through it as a ConsumerLink. A MESSAGE never precedes the SUCCESS of its SUBSCRIBE, because
nothing is delivered before the first FLOW. Commands for a consumer that is gone are ignored.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import PeerProtocolError, QuireError
from quire_bookie.model import new_tuple
from quire_broker import limits
from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.delivery import AckId, ConsumerSpec, Delivery, KeyShared
from quire_broker.errors import (
    ConsumerNotFoundError,
    NotAllowedError,
    ServerError,
    ServiceNotReadyError,
    TooManyOperationsError,
)
from quire_broker.limits import BATCH_MESSAGES_MAX
from quire_broker.managed_ledger.position import Position
from quire_broker.names import parse_topic
from quire_broker.security.authorization import Rights
from quire_broker.server import schemas
from quire_broker.server.connection import Connection
from quire_broker.server.parts import BrokerParts
from quire_broker.server.permission_watch import Opened
from quire_broker.topic import policy_limits
from quire_broker.topic.client_names import check_name, check_properties
from quire_broker.topic.serving import ServedSubscription, ServedTopic
from quire_broker.wire import commands
from quire_broker.wire.entry import deliverable
from quire_broker.wire.frames import AckRun
from quire_broker.wire.hot import MessageFrames
from quire_broker.wire.kinds import AckKind, InitialPosition, KeySharedMode, Moved, SubscriptionType
from quire_broker.wire.proto import pulsar_pb2 as pb

CHECKSUM_VERSION = 11
BROKER_METADATA_VERSION = 18
ACK_SET_WORD_BITS = 64
ACTIVE_CHANGE_VERSION = 12


@dataclass(slots=True)
class _Attached:
    """A consumer with everything needed to deliver to it."""

    topic: ServedTopic
    subscription: ServedSubscription
    consumer: Consumer
    frames: MessageFrames


@dataclass(frozen=True, slots=True)
class _OpenConsumer:
    """A consumer whose permission is checked again."""

    attached: _Attached
    rights: Rights
    close: Callable[[_Attached], Awaitable[None]]

    async def require(self) -> None:
        await self.rights.require_subscribe(self.attached.topic.name, self.attached.subscription.name)

    async def revoke(self) -> None:
        await self.close(self.attached)


class Consuming:
    """A ConsumerLink with the consumers of one session."""

    def __init__(self, parts: BrokerParts, connection: Connection, rights: Callable[[], Rights]) -> None:
        self._parts = parts
        self._rights = rights
        self._traces = None if parts.traces is None else parts.traces.entries
        self._connection = connection
        self._consumers: dict[int, _Attached] = {}
        self._left_by_seek: dict[int, _Attached] = {}  # closed readers whose clients are expected to reconnect
        self._being_made: set[int] = set()
        self._abandoned: set[int] = set()
        self._version = 0
        self._whole_entries = True
        self._keeps_broker_metadata = False
        self.client_version = ""

    def client_connected(self, client_version: str, protocol_version: int, features: pb.FeatureFlags) -> None:
        """Record the version and features of the client."""
        self.client_version = client_version
        self._version = protocol_version
        self._whole_entries = protocol_version >= CHECKSUM_VERSION
        self._keeps_broker_metadata = (
            self._parts.settings.entry_metadata_sent
            and protocol_version >= BROKER_METADATA_VERSION
            and features.supports_broker_entry_metadata
        )

    @property
    def count(self) -> int:
        """The number of consumers of this connection."""
        return len(self._consumers)

    def opened(self) -> list[Opened]:
        """Return the consumers, for checks of their permissions."""
        return [_OpenConsumer(attached, self._rights(), self._revoke) for attached in self._consumers.values()]

    async def _revoke(self, attached: _Attached) -> None:
        consumer_id = attached.consumer.spec.consumer_id
        if self._consumers.get(consumer_id) is not attached:
            return
        del self._consumers[consumer_id]
        await self._detach(attached.topic, attached.subscription, attached.consumer)
        self._connection.write(commands.close_consumer(consumer_id))

    # SUBSCRIBE and the other requests

    async def subscribe(self, request: pb.CommandSubscribe) -> bytes | None:
        """Attach a consumer and return the answer, or None if the client closed it meanwhile."""
        consumer_id = request.consumer_id
        if consumer_id in self._consumers:
            return commands.success(request.request_id)
        if consumer_id in self._being_made:
            raise ServiceNotReadyError("Consumer is already present on the connection")
        if len(self._consumers) + len(self._being_made) >= limits.CONSUMERS_PER_CONNECTION_MAX:
            raise TooManyOperationsError(f"{limits.CONSUMERS_PER_CONNECTION_MAX} consumers on one connection")
        characters_max = self._parts.settings.name_characters_max
        check_name("subscription", request.subscription, characters_max, required=True)
        check_name("consumer", request.consumer_name, characters_max)
        check_properties("consumer", [*request.metadata, *request.subscription_properties])
        spec = consumer_spec(request, self._parts.clock.now_ms())
        self._being_made.add(consumer_id)
        try:
            return await self._subscribe(request, spec)
        finally:
            self._being_made.discard(consumer_id)
            self._abandoned.discard(consumer_id)

    async def _subscribe(self, request: pb.CommandSubscribe, spec: ConsumerSpec) -> bytes | None:
        name = parse_topic(request.topic)
        await self._rights().require_subscribe(name, request.subscription)
        topic = await self._parts.topics.serve(name, create=request.force_topic_creation)
        await schemas.of_consumer(self._parts, self._rights(), topic, request.subscription, request.schema)
        policies = await self._parts.topics.rules(topic)
        policy_limits.require_type(policies, topic, spec.subscription_type)
        topic.subscribe_limit.admit(self._connection.address, spec.name, spec.consumer_id)
        creates = spec.durable and name.persistent
        policy_limits.require_subscription(policies, topic, request.subscription, by_client=creates)
        subscription = await topic.subscribed(request.subscription, spec)
        if spec.durable and request.HasField("replicate_subscription_state"):
            await subscription.set_replicated(request.replicate_subscription_state)
        try:
            admit = partial(policy_limits.require_consumer, policies, topic, subscription)
            consumer = await subscription.add_consumer(spec, self, admit)
        except QuireError:
            await topic.consumer_left(subscription)  # a refused reader must leave no subscription
            raise
        self._left_by_seek.pop(spec.consumer_id, None)
        if self._connection.closed or spec.consumer_id in self._abandoned:
            await self._detach(topic, subscription, consumer)
            return None
        frames = MessageFrames(spec.consumer_id, topic.name.partition)
        self._consumers[spec.consumer_id] = _Attached(topic, subscription, consumer, frames)
        return commands.success(request.request_id)

    def abandon(self, consumer_id: int) -> None:
        """Let a consumer that is just being made end as soon as it is: its client no longer waits for it."""
        if consumer_id in self._being_made:
            self._abandoned.add(consumer_id)

    async def close(self, request: pb.CommandCloseConsumer) -> bytes:
        """Close a consumer for the client and return SUCCESS, even for an unknown one."""
        self.abandon(request.consumer_id)
        attached = self._consumers.pop(request.consumer_id, None) or self._left_by_seek.pop(request.consumer_id, None)
        if attached is not None:
            await self._detach(attached.topic, attached.subscription, attached.consumer)
        return commands.success(request.request_id)

    @staticmethod
    async def _detach(topic: ServedTopic, subscription: ServedSubscription, consumer: Consumer) -> None:
        await subscription.remove_consumer(consumer)
        await topic.consumer_left(subscription)

    def lost(self) -> None:
        """Detach all consumers: the connection is gone."""
        gone = [*self._consumers.values(), *self._left_by_seek.values()]
        self._consumers, self._left_by_seek = {}, {}
        for attached in gone:
            work = self._detach(attached.topic, attached.subscription, attached.consumer)
            self._parts.background.start(work, f"detach a consumer of {attached.topic.name}")

    def _attached(self, consumer_id: int) -> _Attached:
        attached = self._consumers.get(consumer_id)
        if attached is None:
            raise ConsumerNotFoundError("Consumer not found")
        return attached

    async def unsubscribe(self, request: pb.CommandUnsubscribe) -> bytes:
        """Delete the subscription if this is its only consumer, or by force."""
        attached = self._attached(request.consumer_id)
        try:
            await attached.subscription.unsubscribe(attached.consumer, request.force)
        except QuireError:
            if attached.consumer.removed and self._consumers.get(request.consumer_id) is attached:
                self.close_consumer(request.consumer_id)  # the cursor stays; the client reconnects to it
            raise
        self._consumers.pop(request.consumer_id, None)
        attached.topic.forget_subscription(attached.subscription)
        return commands.success(request.request_id)

    async def seek(self, request: pb.CommandSeek) -> bytes:
        """Move the subscription; its consumers are closed first and reconnect."""
        attached = self._attached(request.consumer_id)
        if request.HasField("message_id"):
            position = Position(request.message_id.ledgerId, request.message_id.entryId)
            await attached.subscription.seek_position(position)
        elif request.HasField("message_publish_time"):
            await attached.subscription.seek_time(request.message_publish_time)
        else:
            raise NotAllowedError("SEEK without a message id or a time")
        return commands.success(request.request_id)

    async def last_message_id(self, request: pb.CommandGetLastMessageId) -> bytes:
        """Return the topic's last message and the subscription's mark-delete position."""
        attached = self._attached(request.consumer_id)
        compacted = attached.consumer.spec.read_compacted
        position, batch_index = await attached.topic.last_message(compacted=compacted)
        mark = attached.subscription.mark_delete
        last = (position.ledger_id, position.entry_id, attached.topic.name.partition, batch_index)
        return commands.last_message_id(request.request_id, last, (mark.ledger_id, mark.entry_id))

    def stats(self, request: pb.CommandConsumerStats) -> bytes:
        """Answer CONSUMER_STATS."""
        answer = pb.CommandConsumerStatsResponse(request_id=request.request_id)
        attached = self._consumers.get(request.consumer_id)
        if attached is None:
            answer.error_code, answer.error_message = ServerError.CONSUMER_NOT_FOUND, "Consumer not found"
            return commands.consumer_stats(answer)
        consumer = attached.consumer
        answer.consumerName = consumer.spec.name
        answer.availablePermits = max(0, consumer.permits)
        answer.unackedMessages = consumer.unacked
        answer.blockedConsumerOnUnackedMsgs = consumer.blocked
        answer.address = self.peer
        answer.type = attached.subscription.type_name
        answer.msgRateOut = consumer.stats.message_rate.per_s
        answer.msgThroughputOut = consumer.stats.byte_rate.per_s
        answer.msgBacklog = attached.subscription.backlog
        return commands.consumer_stats(answer)

    # commands that run at once, in order

    def flow(self, request: pb.CommandFlow) -> None:
        """Handle FLOW: add permits."""
        attached = self._consumers.get(request.consumer_id)
        if attached is not None:
            attached.subscription.flow(attached.consumer, request.messagePermits)

    def acknowledge(self, request: pb.CommandAck) -> None:
        """Handle ACK; it is answered if it has a request id."""
        attached = self._consumers.get(request.consumer_id)
        wants_answer = request.HasField("request_id")
        if attached is None or attached.consumer.removed:
            if wants_answer:
                self._connection.write(
                    commands.ack_response(
                        request.consumer_id, request.request_id, ServerError.CONSUMER_NOT_FOUND, "Consumer not found"
                    )
                )
            return
        if request.txnid_most_bits or request.txnid_least_bits:
            if wants_answer:
                message = "transactions are not supported yet"
                answer = commands.ack_response(
                    request.consumer_id, request.request_id, ServerError.NOT_ALLOWED, message
                )
                self._connection.write(answer)
            return
        ids = [
            _part_of_batch(item) if item.ack_set else AckId(Position(item.ledgerId, item.entryId))
            for item in request.message_id
        ]
        kind = AckKind.CUMULATIVE if request.ack_type == AckKind.CUMULATIVE else AckKind.INDIVIDUAL
        attached.subscription.acknowledge(attached.consumer, kind, ids)
        if self._traces is not None and self._traces.awaits(attached.subscription):
            whole, now_s = [each.position for each in ids if not each.ack_set], self._connection.now_s
            if kind is AckKind.CUMULATIVE and whole:
                self._traces.acknowledged_through(attached.subscription, whole[-1], now_s)
            else:
                self._traces.acknowledged(attached.subscription, whole, now_s)
        if wants_answer:
            self._connection.write(commands.ack_response(request.consumer_id, request.request_id))

    def acknowledge_entries(self, run: AckRun) -> None:
        """Handle consecutive ACKs of whole entries, which want no answer, in one step."""
        attached = self._consumers.get(run.consumer_id)
        if attached is not None and not attached.consumer.removed:
            positions = [new_tuple(Position, entry) for entry in run.entries]
            attached.subscription.acknowledge_entries(attached.consumer, positions)
            if self._traces is not None and self._traces.awaits(attached.subscription):
                self._traces.acknowledged(attached.subscription, positions, self._connection.now_s)

    def redeliver(self, request: pb.CommandRedeliverUnacknowledgedMessages) -> None:
        """Send the given entries again, or all unacknowledged ones."""
        attached = self._consumers.get(request.consumer_id)
        if attached is None:
            return
        positions = [Position(item.ledgerId, item.entryId) for item in request.message_ids]
        epoch = request.consumer_epoch if request.HasField("consumer_epoch") else None
        attached.subscription.redeliver(attached.consumer, positions or None, epoch)

    # ConsumerLink

    @property
    def peer(self) -> str:
        """The address of the client."""
        return self._connection.peer

    @property
    def writable(self) -> bool:
        """Whether more may be delivered."""
        return self._connection.writable

    def on_writable(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the connection is writable again."""
        self._connection.on_writable(callback)

    def deliver(self, consumer_id: int, deliveries: Sequence[Delivery], messages: int) -> None:
        """Send MESSAGE frames, in one write with those of other consumers; stored entries are sent unchanged."""
        attached = self._consumers.get(consumer_id)
        if attached is None:
            return
        if not self._whole_entries:
            deliveries = [
                delivery._replace(data=deliverable(delivery.data, broker_metadata=False, checksum=False))
                for delivery in deliveries
            ]
        strips = self._whole_entries and not self._keeps_broker_metadata
        parts, size = attached.frames.encode(deliveries, strips=strips)
        stats = self._parts.stats
        stats.messages_out += messages
        stats.bytes_out += size
        self._connection.write_joined(parts)
        if self._traces is not None:
            subscription, name = attached.subscription, attached.consumer.spec.name
            now_s = self._connection.now_s
            self._traces.delivered(attached.topic.name, subscription.name, subscription, name, deliveries, now_s)

    def active_changed(self, consumer_id: int, active: bool) -> None:
        """Send ACTIVE_CONSUMER_CHANGE."""
        if self._version >= ACTIVE_CHANGE_VERSION:
            self._connection.write(commands.active_consumer_change(consumer_id, active))

    def reached_end(self, consumer_id: int) -> None:
        """Send REACHED_END_OF_TOPIC."""
        self._connection.write(commands.reached_end_of_topic(consumer_id))

    def close_consumer(self, consumer_id: int, moved: Moved | None = None) -> None:
        """Close a consumer for the broker; the client reconnects by itself."""
        attached = self._consumers.pop(consumer_id, None)
        if attached is not None and not attached.subscription.durable and not self._connection.closed:
            self._left_by_seek[consumer_id] = attached
        self._connection.write(
            commands.close_consumer(consumer_id, moved and moved.seen_from(self._connection.listener))
        )

    async def alive(self) -> bool:
        """Return whether the client answers."""
        return await self._connection.alive()


def _part_of_batch(item: pb.MessageIdData) -> AckId:
    """Return an id with an ack set. PeerProtocolError for more messages than an entry can hold: each needs memory."""
    messages = max(item.batch_size, len(item.ack_set) * ACK_SET_WORD_BITS)
    if messages > BATCH_MESSAGES_MAX:
        raise PeerProtocolError(f"ACK of a batch of {messages} messages; an entry has at most {BATCH_MESSAGES_MAX}")
    return AckId(Position(item.ledgerId, item.entryId), tuple(item.ack_set), item.batch_size)


def consumer_spec(request: pb.CommandSubscribe, now_ms: int = 0) -> ConsumerSpec:
    """Convert a SUBSCRIBE for dispatch; PeerProtocolError for values that the protocol does not define."""
    try:
        subscription_type = SubscriptionType(request.subType)
        initial = InitialPosition(request.initialPosition)
        key_shared = None
        if request.HasField("keySharedMeta"):
            meta = request.keySharedMeta
            ranges = tuple((item.start, item.end) for item in meta.hashRanges)
            key_shared = KeyShared(KeySharedMode(meta.keySharedMode), ranges, meta.allowOutOfOrderDelivery)
    except ValueError as error:
        raise PeerProtocolError(f"malformed SUBSCRIBE: {error}") from error
    start = None
    if request.HasField("start_message_id"):
        start = Position(request.start_message_id.ledgerId, request.start_message_id.entryId)
    return ConsumerSpec(
        consumer_id=request.consumer_id,
        name=request.consumer_name,
        subscription_type=subscription_type,
        priority_level=max(0, request.priority_level),
        durable=request.durable,
        start=start,
        initial=initial,
        rollback_s=request.start_message_rollback_duration_sec,
        read_compacted=request.read_compacted,
        key_shared=key_shared,
        epoch=request.consumer_epoch if request.HasField("consumer_epoch") else None,
        metadata={item.key: item.value for item in request.metadata},
        subscription_properties={item.key: item.value for item in request.subscription_properties},
        connected_since_ms=now_ms,
    )
