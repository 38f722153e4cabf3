"""Receives from one topic or partition: asks for as much as may be held, unpacks entries, acknowledges.

After a reconnect a durable subscription gets its unacknowledged messages again: the queued ones are dropped, and
acknowledgements that the broker has not confirmed are sent before any message is asked for. A reader goes on after the
last message that was received from it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from quire_bookie.errors import PeerProtocolError
from quire_broker.wire.entry import peek
from quire_broker.wire.frames import MessageFrame, encode
from quire_broker.wire.kinds import KeySharedMode, Kind, SubscriptionType
from quire_broker.wire.proto import pulsar_pb2 as pb
from quire_client.acks import Group, Place
from quire_client.attachment import Attachment
from quire_client.brokers import Brokers
from quire_client.chunks import Chunks
from quire_client.connection import Connection
from quire_client.errors import BrokerRefusedError, ConnectionLostError, error_of
from quire_client.message import Arrival, Message, MessageId, messages_of
from quire_client.options import LATEST, ConsumerOptions

_REDELIVERS_ALL = (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)
"""Types whose order forbids that single messages come again."""
_DECAY = 4
"""A message moves the estimate of the largest one down by a part of 2 ** _DECAY."""


class TopicConsumer(Attachment):
    """The consumer of one topic. Call `open` first."""

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        subscription: str,
        options: ConsumerOptions,
        queue: deque[Message],
        on_ready: Callable[[], None],
        on_failed: Callable[[BrokerRefusedError], None],
        *,
        partition: int = -1,
        start: MessageId | None = None,
    ) -> None:
        """`queue`: gets the messages; other partitions share it. `on_ready`: called after it did.

        `start`: a reader begins after this message; None: a durable subscription.
        """
        super().__init__(brokers, topic)
        self._subscription = subscription
        self._options = options
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._partition = partition
        self._after = start
        self.is_reader = start is not None
        self._last: Message | None = None
        """The last message that was received from it."""
        self._awaits_first = False
        """A reader of new messages has none yet: those up to `_after` that were published meanwhile come, too."""
        self._queue = queue
        self._granted = 0
        """Messages that the broker may send, and those that are queued."""
        self._heaviest = self._low = 0
        self._epoch = 0
        self._chunks = Chunks(options.chunked_bytes_max)
        self._is_attached = False
        self._group = Group()
        self._sent: list[Group] = []
        self._unconfirmed = 0
        self._ack_handle: asyncio.Handle | None = None
        self._unseen: BrokerRefusedError | None = None
        """The first refusal of acknowledgements that were not awaited."""
        self._refused: dict[Place, None] = {}
        self._refused_timer: asyncio.TimerHandle | None = None

    # ---- the registration

    async def _register(self, connection: Connection, number: int) -> None:
        options = self._options
        body = pb.CommandSubscribe(
            topic=self.topic,
            subscription=self._subscription,
            subType=options.kind,
            consumer_id=number,
            durable=not self.is_reader,
            initialPosition=options.initial,
            force_topic_creation=options.creates_topic,
            read_compacted=options.read_compacted,
            consumer_epoch=self._epoch,
        )
        if options.name:
            body.consumer_name = options.name
        if options.kind is SubscriptionType.KEY_SHARED:
            body.keySharedMeta.keySharedMode = KeySharedMode.AUTO_SPLIT
        if (after := self._last.id if self.is_reader and self._last is not None else self._after) is not None:
            self._after, self._awaits_first = after, False
            # The broker begins with this entry; its received messages are skipped.
            body.start_message_id.ledgerId, body.start_message_id.entryId = after.ledger_id, after.entry_id
        for name, value in options.properties.items():
            body.metadata.add(key=name, value=value)
        if (schema := options.schema) is not None:
            body.schema.name, body.schema.type, body.schema.schema_data = "", schema.type, schema.data
        connection.on_frame[(Kind.MESSAGE, number)] = self._on_message
        connection.on_frame[(Kind.CLOSE_CONSUMER, number)] = self._on_closed
        await connection.ask(Kind.SUBSCRIBE, "subscribe", body)
        if after == LATEST and not options.read_compacted:
            # A reconnect goes on from here, not from the end that the topic has then.
            self._after = await self._last_of(connection, number)
            self._awaits_first = True
        if self._connection is not connection:
            return
        self._is_attached = True
        self._send_acks()  # before any message is asked for, so that none of these comes again
        self._granted = 0
        self._heaviest = connection.message_bytes_max
        self._grant()

    def _closing(self, number: int) -> tuple[Kind, str, Any]:
        return Kind.CLOSE_CONSUMER, "close_consumer", pb.CommandCloseConsumer(consumer_id=number)

    def _detached(self) -> None:
        self._is_attached = False
        self._drop_queue()
        self._refused.clear()  # they come again, like everything that is not acknowledged
        again = Group()
        for group in [*self._sent, self._group]:
            again.take(group)
        self._sent, self._group, self._unconfirmed = [], again, 0

    def _drop_queue(self) -> None:
        """Drop its messages."""
        kept = [message for message in self._queue if message.arrival.source is not self]
        self._granted -= len(self._queue) - len(kept)
        self._queue.clear()
        self._queue.extend(kept)
        self._chunks.clear()

    def _failed(self, error: BrokerRefusedError) -> None:
        self._is_attached = False
        for timer in (self._ack_handle, self._refused_timer):
            if timer is not None:
                timer.cancel()
        for group in [*self._sent, self._group]:
            group.end(error)
        self._sent.clear()
        self._on_failed(error)

    def _on_closed(self, _: pb.CommandCloseConsumer) -> None:
        self._lost(ConnectionLostError(f"{self.topic}: the broker closed the consumer"))

    # ---- messages

    def _on_message(self, frame: MessageFrame) -> None:
        if self._error is not None:
            return  # what follows an unreadable entry must not pass it
        command = frame.command.message
        place = command.message_id
        try:
            summary = peek(frame.entry)
            arrival = Arrival(
                (place.ledgerId, place.entryId),
                frame.entry,
                summary,
                partition=self._partition,
                topic=self.topic,
                redeliveries=command.redelivery_count,
                source=self,
            )
            if command.HasField("consumer_epoch") and command.consumer_epoch < self._epoch:
                found = []  # it was on its way when everything was asked for again
            elif summary.num_chunks > 1:
                whole = self._chunks.add(arrival)
                found = [] if whole is None else [whole]
            else:
                found = self._not_received(messages_of(arrival, command.ack_set))
        except PeerProtocolError as error:
            self._finish(BrokerRefusedError(f"{self.topic}: entry {place.ledgerId}:{place.entryId}: {error}"))
            return
        count = summary.num_messages
        size_bytes = len(frame.entry) if summary.is_plain else len(frame.entry) + summary.metadata.uncompressed_size
        weight = size_bytes // count
        self._heaviest = max(weight, self._heaviest - ((self._heaviest - weight) >> _DECAY))
        self._granted -= count - len(found)
        if found:
            self._queue.extend(found)
            self._on_ready()
        if self._granted <= self._low:
            self._grant()

    def _not_received(self, messages: list[Message]) -> list[Message]:
        """Return the messages without those of a reader's first entry that were received before."""
        after = self._after
        if self._awaits_first and messages:
            self._awaits_first = False
            ledger_id, entry_id = messages[0].arrival.place
            self._after = after = MessageId(ledger_id, entry_id - 1)
        if after is None or not messages or messages[0].arrival.place != after[:2]:
            return messages
        return [message for message in messages if 0 <= after.batch_index < message.batch_index]

    def taken(self, message: Message) -> None:
        """Note that the program has received a message: another may come."""
        self._last = message
        self._granted -= 1
        if self._granted <= self._low:
            self._grant()

    def _grant(self) -> None:
        """Let the broker send up to the bounds of the queue, unless too many acknowledgements are not confirmed."""
        options = self._options
        window = min(options.queue_messages_max, max(1, options.queue_bytes_max // max(1, self._heaviest)))
        self._low = window // 2
        if not self._is_attached or self._connection is None or self._unconfirmed > options.acks_max:
            return
        if self._granted > self._low:
            return
        body = pb.CommandFlow(consumer_id=self._number, messagePermits=window - self._granted)
        self._granted = window
        self._connection.write(encode(pb.BaseCommand(type=Kind.FLOW, flow=body)))

    # ---- acknowledgements

    def acknowledge(self, message: Message, *, cumulative: bool = False) -> None:
        """Acknowledge a message with the others of this turn of the event loop; `cumulative`: all up to it, too."""
        arrival = message.arrival
        index = message.batch_index
        if index < 0:
            arrival.unacked = 0
        elif cumulative:
            arrival.unacked &= -1 << (index + 1)
        else:
            arrival.unacked &= ~(1 << index)
        if cumulative:
            self._group.note_all_to(arrival.place, arrival.unacked)
        else:
            for place in arrival.places:
                self._group.note(place, arrival.unacked)
        if self._ack_handle is None:
            self._ack_handle = self._loop.call_soon(self._send_acks)

    async def confirmed(self) -> None:
        """Wait until the broker has confirmed all acknowledgements. BrokerRefusedError."""
        waiters = [group.waiter() for group in [*self._sent, self._group] if len(group)]
        if waiters and self._error is not None:
            raise self._error
        await asyncio.gather(*waiters)
        unseen, self._unseen = self._unseen, None
        if unseen is not None:
            raise unseen

    async def acknowledged(self) -> None:
        """Wait until the broker has confirmed the acknowledgements of this turn of the loop. BrokerRefusedError."""
        if self._error is not None:
            raise self._error
        await self._group.waiter()

    def _send_acks(self) -> None:
        self._ack_handle = None
        if not self._is_attached or self._connection is None or not len(self._group):
            return
        group, self._group = self._group, Group()
        self._sent.append(group)
        self._unconfirmed += len(group)
        answers = [self._connection.begin(Kind.ACK, "ack", body) for body in group.commands(self._number)]
        left = len(answers)

        def answered(answer: "asyncio.Future[pb.CommandAckResponse]") -> None:
            nonlocal left
            left -= 1
            if group not in self._sent:
                return  # collected again: the connection is gone
            if answer.exception() is not None:
                return  # the connection ends: `_detached` follows
            if answer.result().HasField("error"):
                self._confirm(group, error_of(answer.result().error, answer.result().message, self.topic))
            elif not left:
                self._confirm(group, None)

        for answer in answers:
            answer.add_done_callback(answered)

    def _confirm(self, group: Group, error: BrokerRefusedError | None) -> None:
        self._sent.remove(group)
        self._unconfirmed -= len(group)
        if error is not None and not group.waiters:
            self._unseen = self._unseen or error
        group.end(error)
        if self._granted <= self._low:
            self._grant()

    def refuse(self, message: Message) -> None:
        """Ask for the entry of a message again, after the pause of the options."""
        for place in message.arrival.places:
            self._refused[place] = None
        if len(self._refused) > self._options.acks_max:
            self._redeliver()
        elif self._refused_timer is None:
            self._refused_timer = self._loop.call_later(self._options.redelivery_delay_s, self._redeliver)

    def _redeliver(self) -> None:
        if self._refused_timer is not None:
            self._refused_timer.cancel()
            self._refused_timer = None
        places, self._refused = self._refused, {}
        if not places or not self._is_attached or self._connection is None:
            return
        self._send_acks()  # acknowledged messages must not come again
        body = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self._number)
        if self._options.kind in _REDELIVERS_ALL:
            self._epoch += 1
            body.consumer_epoch = self._epoch
            self._drop_queue()
        else:
            for ledger_id, entry_id in places:
                body.message_ids.add(ledgerId=ledger_id, entryId=entry_id)
        self._connection.write(encode(pb.BaseCommand(type=Kind.REDELIVER, redeliver=body)))
        self._grant()

    # ---- requests

    async def last_message_id(self) -> MessageId:
        """Return the id of the topic's last message; the entry is -1 if it is empty. BrokerRefusedError."""
        return await self._last_of(self._required(), self._number)

    async def _last_of(self, connection: Connection, number: int) -> MessageId:
        body = pb.CommandGetLastMessageId(consumer_id=number)
        reply = await connection.ask(Kind.GET_LAST_MESSAGE_ID, "get_last_message_id", body)
        last = reply.last_message_id
        return MessageId(last.ledgerId, last.entryId, last.batch_index, self._partition)

    async def seek(self, target: MessageId | int) -> None:
        """Continue with the entry of a message, or with those published since a time in ms since the epoch.

        BrokerRefusedError.
        """
        await self.confirmed()  # later, acknowledgements would count for messages that are to come again
        connection, number = self._required(), self._number
        body = pb.CommandSeek(consumer_id=number)
        if isinstance(target, MessageId):
            body.message_id.ledgerId, body.message_id.entryId = target.ledger_id, target.entry_id
        else:
            body.message_publish_time = target
        await connection.ask(Kind.SEEK, "seek", body)
        if self._number == number:  # the broker has not closed the consumer: earlier messages are queued
            self._drop_queue()
            self._grant()

    async def unsubscribe(self) -> None:
        """Delete the subscription. BrokerRefusedError: also while other consumers use it."""
        body = pb.CommandUnsubscribe(consumer_id=self._number)
        await self._required().ask(Kind.UNSUBSCRIBE, "unsubscribe", body)

    def _required(self) -> Connection:
        if self._error is not None:
            raise self._error
        if self._connection is None or not self._is_attached:
            raise ConnectionLostError(f"{self.topic}: the consumer is looking for its broker")
        return self._connection

    async def close(self) -> None:
        """Close it on the broker. Acknowledgements that are not sent yet are sent before."""
        self._send_acks()
        connection, number = self._connection, self._number
        try:
            if self._is_attached and connection is not None:
                self._is_attached = False
                await self._close_there(connection, number)
        finally:  # also if the caller is cancelled
            await self._end("consumer")
