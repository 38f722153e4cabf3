"""One consumer at the owner of a topic or a partition, for a session; owns its permits.

The broker may send as many messages as the client may still take, less those that wait in the inbox. Messages of
batches beyond that are a debt that later permits pay.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress

from quire_bookie.errors import PeerProtocolError, QuireError
from quire_broker.limits import WEBSOCKET_QUEUE_MAX
from quire_broker.managed_ledger.cursors.ack_set import words_of
from quire_broker.names import TopicName
from quire_broker.server.broker_link import BrokerLink
from quire_broker.websocket.attachment import Attachment, Links
from quire_broker.websocket.inbox import Arrived, arrived_of
from quire_broker.websocket.message_ids import MessageId
from quire_broker.websocket.parameters import LATEST, ConsumerParameters
from quire_broker.websocket.unacknowledged import Entry
from quire_broker.wire.frames import MessageFrame
from quire_broker.wire.kinds import AckKind, Kind
from quire_broker.wire.proto import pulsar_pb2 as pb


class TopicConsumer(Attachment):
    """A subscription's consumer, or with `start` a reader's."""

    def __init__(
        self,
        links: Links,
        topic: TopicName,
        subscription: str,
        wanted: ConsumerParameters,
        opened: Callable[[], None],
        arrived: Callable[["TopicConsumer", Arrived], None],
        detached: Callable[["TopicConsumer"], None],
        failed: Callable[[PeerProtocolError], None],
        creates: tuple[bool, bool] = (True, True),
    ) -> None:
        """`opened`: called when it is attached; `arrived`: takes entries.

        `detached`: called when the broker will deliver everything again; `failed`: ends the session.
        `creates`: whether it may create the topic when it attaches first, and again.
        """
        super().__init__(links, topic)
        self._subscription = subscription
        self._wanted = wanted
        self._opened = opened
        self._arrived = arrived
        self._detached = detached
        self._failed = failed
        self._creates, self._creates_again = creates
        self._start = wanted.start
        """Where a reader continues; None for a consumer."""
        self._is_open = False
        """Whether the broker has answered SUBSCRIBE: it ignores a FLOW before that."""
        self._permits = 0
        """Messages that the broker may still send; negative after a batch that was larger."""
        self.waiting = 0
        """Messages in the inbox."""
        self._has_read = False
        """Whether the client of a reader has a message, which is `_start` then."""
        self.begun: Entry | None = None
        """The first chunk of the messages that a reader's client did not get: a reader begins there again."""
        self._joined: OrderedDict[Entry, list[Entry]] = OrderedDict()
        """The entries of chunked messages, by their last one."""

    @property
    def partition(self) -> int:
        """The index of the partition, or -1."""
        return self.topic.partition

    async def _open(self, link: BrokerLink) -> None:
        wanted = self._wanted
        body = pb.CommandSubscribe(
            topic=str(self.topic),
            subscription=self._subscription,
            subType=wanted.subscription_type,
            consumer_id=self.number,
            consumer_name=wanted.name,
            durable=wanted.durable,
            initialPosition=wanted.initial,
            priority_level=wanted.priority,
            force_topic_creation=self._creates,
        )
        if self._start is not None:
            start = self._start if self.begun is None else MessageId(*self.begun)
            body.start_message_id.CopyFrom(_position(start))
        elif not wanted.durable:
            body.start_message_id.CopyFrom(_position(LATEST))
        self._permits = self.waiting = 0
        await link.ask(pb.BaseCommand(type=Kind.SUBSCRIBE, subscribe=body), "subscribe")
        self._is_open, self.begun = True, None
        self._creates = self._creates_again
        self._opened()

    def detach(self) -> None:
        """Note that the broker no longer has it."""
        self._is_open = False
        super().detach()
        self._detached(self)

    def permit(self, window: int) -> None:
        """Let the broker send more, up to the window, once that is at least half of it."""
        more = window - self._permits - self.waiting
        if self._is_open and more >= max(1, window // 2):
            body = pb.CommandFlow(consumer_id=self.number, messagePermits=more)
            if self.send(pb.BaseCommand(type=Kind.FLOW, flow=body)):
                self._permits += more

    def message(self, frame: MessageFrame) -> None:
        """Take an entry of the broker; one that no client can read is acknowledged, as Pulsar's clients do."""
        try:
            arrived = arrived_of(self, frame)
        except PeerProtocolError as error:
            self._failed(error)
            return
        self._permits -= arrived.permits
        start = self._start
        if start is not None:  # the broker begins with this entry, not after it
            messages = [one for one in arrived.messages if not self._is_read(one.message_id)]
            arrived = Arrived(self, arrived.size_bytes, arrived.permits, arrived.mask, messages, arrived.chunk)
        self.waiting += len(arrived.messages)
        self._arrived(self, arrived)

    def joined(self, message_id: MessageId, entries: list[Entry]) -> bool:
        """Note the entries of a chunked message, which are acknowledged and delivered again with its last one.

        Return False if the client of a reader has it.
        """
        if self._is_read(message_id):
            return False
        self.waiting += 1
        self._joined[message_id.entry] = entries
        self._joined.move_to_end(message_id.entry)
        if len(self._joined) > WEBSOCKET_QUEUE_MAX:
            self._joined.popitem(last=False)
        return True

    def _is_read(self, message_id: MessageId) -> bool:
        """Return whether a reader's client has a message, or it comes before those that the client asked for."""
        if self._start is None:
            return False
        return _is_before(message_id, self._start) or (self._has_read and message_id.entry < self._start.entry)

    def delivered(self, message_id: MessageId) -> None:
        """Note that the client gets a message: a reader continues after it."""
        self.waiting -= 1
        if self._start is not None:
            self._start, self._has_read = message_id, True
            if message_id.batch_index in (-1, message_id.batch_size - 1):
                self._acknowledge(message_id, AckKind.CUMULATIVE, 0)

    def acknowledge(self, message_id: MessageId, left: int) -> None:
        """Acknowledge a message. `left`: the mask of messages of its batch that are not acknowledged."""
        first = [] if message_id.first is None else [message_id.first]
        others = [one for one in self._joined.pop(message_id.entry, first) if one != message_id.entry]
        self._acknowledge(message_id, AckKind.INDIVIDUAL, left, others)

    def _acknowledge(self, message_id: MessageId, kind: AckKind, left: int, others: Sequence[Entry] = ()) -> None:
        body = pb.CommandAck(consumer_id=self.number, ack_type=int(kind))
        found = body.message_id.add(ledgerId=message_id.ledger_id, entryId=message_id.entry_id)
        if left:
            found.ack_set.extend(words_of(left))
            found.batch_size = message_id.batch_size
        for ledger_id, entry_id in others:
            body.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        self.send(pb.BaseCommand(type=Kind.ACK, ack=body))

    def redeliver(self, entries: list[Entry]) -> None:
        """Let the broker deliver entries again."""
        body = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self.number)
        for ledger_id, entry_id in (one for entry in entries for one in self._joined.get(entry, [entry])):
            body.message_ids.add(ledgerId=ledger_id, entryId=entry_id)
        self.send(pb.BaseCommand(type=Kind.REDELIVER, redeliver=body))

    async def leave(self) -> None:
        """Detach, and close it at a broker that still has it."""
        link = self.link
        self.detach()
        if link is not None:
            body = pb.CommandCloseConsumer(consumer_id=self.number)
            with suppress(QuireError):  # the broker closes it with the topic or with the connection
                await link.ask(pb.BaseCommand(type=Kind.CLOSE_CONSUMER, close_consumer=body), "close_consumer")

    async def unsubscribe(self) -> None:
        """Delete the subscription. RefusedByBrokerError, ServiceNotReadyError."""
        link = self.link
        if link is None:
            await self.attach()
            link = self.link
            assert link is not None, "attached"
        body = pb.CommandUnsubscribe(consumer_id=self.number)
        await link.ask(pb.BaseCommand(type=Kind.UNSUBSCRIBE, unsubscribe=body), "unsubscribe")


def _position(start: MessageId) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=start.ledger_id, entryId=start.entry_id)


def _is_before(message_id: MessageId, start: MessageId) -> bool:
    """Return whether a reader that continues after `start` has read the message."""
    return message_id.entry == start.entry and (start.batch_index < 0 or message_id.batch_index <= start.batch_index)
