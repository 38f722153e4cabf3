"""Owns the producers of one session: handles PRODUCER, SEND and CLOSE_PRODUCER, and answers sends."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from quire_bookie.bulk import encode_receipts
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import PeerProtocolError, QuireError
from quire_broker import limits
from quire_broker.errors import PersistenceError, ServiceNotReadyError, TooManyOperationsError, server_error_of
from quire_broker.names import TopicName, parse_topic
from quire_broker.security.authorization import Rights
from quire_broker.server import schemas
from quire_broker.server.connection import Connection
from quire_broker.server.parts import BrokerParts
from quire_broker.server.permission_watch import Opened
from quire_broker.topic import policy_limits
from quire_broker.topic.client_names import check_name, check_properties
from quire_broker.topic.producers import Producer, Receipt
from quire_broker.topic.publish_limit import PublishLimit
from quire_broker.topic.serving import ServedTopic
from quire_broker.wire import commands
from quire_broker.wire.frames import Send, SendRun
from quire_broker.wire.kinds import AccessMode, Moved
from quire_broker.wire.proto import pulsar_pb2 as pb


@dataclass(frozen=True, slots=True)
class _OpenProducer:
    """A producer whose permission is checked again."""

    topic: ServedTopic
    producer: Producer
    rights: Rights

    async def require(self) -> None:
        await self.rights.require_produce(self.topic.name)

    async def revoke(self) -> None:
        if not self.producer.closed:
            self.topic.release_producer(self.producer)


class Producing:
    """A ProducerLink with the producers of one session."""

    def __init__(
        self,
        parts: BrokerParts,
        connection: Connection,
        call_soon: Callable[[Callable[[], None]], object],
        rights: Callable[[], Rights],
    ) -> None:
        self._parts = parts
        self._rights = rights
        self._connection = connection
        self._call_soon = call_soon
        self._producers: dict[int, tuple[ServedTopic, Producer]] = {}
        self._being_made: set[int] = set()
        self._abandoned: set[int] = set()
        self._recently_closed: OrderedDict[int, None] = OrderedDict()
        self._answering: list[Producer] = []
        self._done = self._done_bytes = 0
        self.client_version = ""

    @property
    def count(self) -> int:
        """The number of producers of this connection."""
        return len(self._producers)

    def opened(self) -> list[Opened]:
        """Return the producers, for checks of their permissions."""
        return [_OpenProducer(topic, producer, self._rights()) for topic, producer in self._producers.values()]

    @property
    def peer(self) -> str:
        """The address of the client."""
        return self._connection.peer

    # PRODUCER, CLOSE_PRODUCER

    async def create(self, request: pb.CommandProducer) -> bytes | None:
        """Admit a producer and return the answer, or None if the client closed it meanwhile."""
        producer_id = request.producer_id
        existing = self._producers.get(producer_id)
        if existing is not None and not existing[1].closed:
            last = existing[0].deduplication
            known = -1 if last is None else last.last_of(existing[1].name)
            return self._made(request.request_id, existing[1], known)
        if producer_id in self._being_made:
            raise ServiceNotReadyError("Producer is already present on the connection")
        if len(self._producers) + len(self._being_made) >= limits.PRODUCERS_PER_CONNECTION_MAX:
            raise TooManyOperationsError(f"{limits.PRODUCERS_PER_CONNECTION_MAX} producers on one connection")
        self._being_made.add(producer_id)
        try:
            return await self._create(request)
        finally:
            self._being_made.discard(producer_id)
            self._abandoned.discard(producer_id)

    async def _create(self, request: pb.CommandProducer) -> bytes | None:
        producer_id = request.producer_id
        name = parse_topic(request.topic)
        self._check_names(request)
        await self._rights().require_produce(name)
        if request.initial_subscription_name:
            await self._rights().require_subscribe(name, request.initial_subscription_name)
        topic = await self._topic(name)
        producer = Producer(
            producer_id=producer_id,
            name=request.producer_name or self._parts.names.next(),
            link=self,
            epoch=request.epoch,
            mode=_access_mode(request.producer_access_mode),
            generated_name=not request.producer_name,
            metadata={item.key: item.value for item in request.metadata},
            encrypted=request.encrypted,
            connected_since_ms=self._parts.clock.now_ms(),
            request_id=request.request_id,
            schema_version=await schemas.of_producer(self._parts, self._rights(), name, request.schema),
        )
        presented = request.topic_epoch if request.HasField("topic_epoch") else None
        policies = await self._parts.topics.rules(topic)
        if request.initial_subscription_name:
            policy_limits.require_subscription(policies, topic, request.initial_subscription_name)
            await topic.first_subscription(request.initial_subscription_name)
        policy_limits.require_producer(policies, topic, producer.name)
        policy_limits.require_encrypted_producer(policies, topic, encrypted=producer.encrypted)
        last = await topic.add_producer(producer, presented)
        if self._connection.closed or producer_id in self._abandoned:
            topic.remove_producer(producer)
            return None
        self._recently_closed.pop(producer_id, None)
        self._producers[producer_id] = (topic, producer)
        return self._made(request.request_id, producer, last)

    async def _topic(self, name: TopicName) -> ServedTopic:
        """Return the topic of a new producer.

        ProducerHoldError, ProducerQuotaError: its backlog is at its quota. PersistenceError: nothing can be stored.
        """
        if not name.persistent:
            return await self._parts.topics.non_persistent.get(name)
        topic = await self._parts.topics.get(name)
        if obstacle := topic.ledger.obstacle():
            raise PersistenceError(f"{name} has no ledger to append to: {obstacle}")
        await self._parts.backlog_quotas.admit(topic)
        return topic

    def _check_names(self, request: pb.CommandProducer) -> None:
        """Raise NotAllowedError for invalid names and properties. A producer without a name gets one later."""
        characters_max = self._parts.settings.name_characters_max
        check_name("producer", request.producer_name, characters_max)
        check_name("subscription", request.initial_subscription_name, characters_max)
        check_properties("producer", request.metadata)

    def _made(self, request_id: int, producer: Producer, last: int) -> bytes:
        epoch = producer.topic_epoch if producer.ready else None
        return commands.producer_success(
            request_id,
            producer.name,
            last,
            schema_version=producer.schema_version,
            topic_epoch=epoch,
            ready=producer.ready,
        )

    def abandon(self, producer_id: int) -> None:
        """Let a producer that is just being made end as soon as it is: its client no longer waits for it."""
        if producer_id in self._being_made:
            self._abandoned.add(producer_id)

    def close(self, request: pb.CommandCloseProducer) -> bytes:
        """Close a producer for the client and return SUCCESS, even for an unknown one."""
        producer_id = request.producer_id
        self.abandon(producer_id)
        self._forget(producer_id)
        return commands.success(request.request_id)

    def _forget(self, producer_id: int) -> None:
        found = self._producers.pop(producer_id, None)
        if found is None:
            return
        topic, producer = found
        self._remember_closed(producer_id)
        topic.remove_producer(producer)

    def _remember_closed(self, producer_id: int) -> None:
        self._recently_closed[producer_id] = None
        while len(self._recently_closed) > limits.RECENTLY_CLOSED_PRODUCERS_MAX:
            self._recently_closed.popitem(last=False)

    def lost(self) -> None:
        """Remove all producers: the connection is gone."""
        for producer_id in list(self._producers):
            self._forget(producer_id)

    # SEND

    def publish(self, run: SendRun) -> None:
        """Pass a run to its topic. PeerProtocolError if its producer never existed."""
        found = self._producers.get(run.producer_id)
        if found is None or found[1].closed or found[1].leaving or not found[1].ready:
            if found is None and run.producer_id not in self._recently_closed:
                raise PeerProtocolError(f"SEND of unknown producer {run.producer_id}")
            return  # sent before the client noticed that the producer was closed; it sends this again
        topic, producer = found
        shared = topic.group.publish, self._parts.publish_limit
        limits_in_force = [limit for limit in (topic.publish_limit, *shared) if limit.active]
        sends = self._within(limits_in_force, run) if limits_in_force else run.sends
        size_bytes = sum(len(send.entry) for send in sends)
        self._connection.publish_taken(len(sends), size_bytes)
        before, counted = len(sends), topic.stats
        messages_before, bytes_before = counted.messages_in, counted.bytes_in
        taken = topic.publish(producer, sends, self._connection.held_s if limits_in_force else 0.0)
        stats = self._parts.stats
        stats.messages_in += counted.messages_in - messages_before  # without those that the topic refused
        stats.bytes_in += counted.bytes_in - bytes_before
        if taken < before:  # the topic failed in between: drop the rest, the client sends it again
            rest = sends[taken:]
            self._connection.publish_done(len(rest), sum(len(send.entry) for send in rest))

    def _within(self, limits_in_force: list[PublishLimit], run: SendRun) -> list[Send]:
        """Return the first sends, up to the one that exceeds a limit. The connection handles the others later."""
        for count, send in enumerate(run.sends, 1):
            messages, size_bytes = send.num_messages, len(send.entry)
            late = [limit for limit in limits_in_force if not limit.charge(messages, size_bytes)]
            if late:
                left = run.sends[count:]
                rest = SendRun(run.producer_id, left) if left else None
                self._connection.throttle(partial(_ready_s, late), rest)
                return run.sends[:count]
        return run.sends

    # ProducerLink

    def answers_ready(self, producer: Producer) -> None:
        """Flush at the end of this loop iteration, together with other answers that become ready."""
        if not self._answering:
            self._call_soon(self._flush)
        self._answering.append(producer)

    def _flush(self) -> None:
        producers, self._answering = self._answering, []
        parts: list[bytes] = []
        for producer in producers:
            answers, producer.answers = producer.answers, []
            receipts: list[Receipt] = []
            for answer in answers:
                if isinstance(answer, Receipt):
                    receipts.append(answer)
                    continue
                if receipts:
                    parts.append(encode_receipts(producer.producer_id, receipts))
                    receipts = []
                parts.append(commands.send_error(producer.producer_id, answer.sequence_id, answer.code, answer.message))
            if receipts:
                parts.append(encode_receipts(producer.producer_id, receipts))
        self._connection.write(b"".join(parts))
        done, self._done = self._done, 0
        size_bytes, self._done_bytes = self._done_bytes, 0
        self._connection.publish_done(done, size_bytes)

    def publish_done(self, count: int, size_bytes: int) -> None:
        """Release budget: with the next answers if some are pending, else at once."""
        if self._answering:
            self._done += count
            self._done_bytes += size_bytes
        else:
            self._connection.publish_done(count, size_bytes)

    def close_producer(self, producer: Producer, moved: Moved | None = None) -> None:
        """Close a producer for the broker; messages that the client already sent to it are ignored."""
        if self._answering:
            self._flush()  # receipts of stored messages go first
        if self._producers.get(producer.producer_id, (None, None))[1] is producer:
            del self._producers[producer.producer_id]
        self._remember_closed(producer.producer_id)
        self._connection.write(
            commands.close_producer(producer.producer_id, moved and moved.seen_from(self._connection.listener))
        )

    def producer_ready(self, producer: Producer) -> None:
        """Answer a producer whose wait for exclusive access is over."""
        deduplication = producer.deduplication
        last = -1 if deduplication is None else deduplication.last_of(producer.name)
        self._connection.write(self._made(producer.request_id, producer, last))

    def producer_refused(self, producer: Producer, error: QuireError) -> None:
        """Reject a waiting producer: it will not be admitted."""
        self._producers.pop(producer.producer_id, None)
        self._connection.write(commands.error(producer.request_id, server_error_of(error), str(error)))

    async def alive(self) -> bool:
        """Return whether the client answers."""
        return await self._connection.alive()


def _ready_s(late: list[PublishLimit]) -> float:
    """Return the loop time from which all of these limits permit more."""
    return max(limit.ready_s for limit in late)


def _access_mode(value: int) -> AccessMode:
    try:
        return AccessMode(value)
    except ValueError as error:
        raise PeerProtocolError(f"unknown producer access mode {value}") from error
