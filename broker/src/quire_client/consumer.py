"""Receives from a topic: joins its partitions in one queue, and passes acknowledgements to the right one."""

import asyncio
from collections import deque
from types import TracebackType
from typing import Self

from quire_bookie.errors import ConfigError
from quire_broker.names import parse_topic
from quire_broker.wire.kinds import TYPE_NAMES, SubscriptionType
from quire_client.brokers import Brokers
from quire_client.errors import BrokerRefusedError, ClosedError
from quire_client.message import Message, MessageId
from quire_client.options import ConsumerOptions
from quire_client.topic_consumer import TopicConsumer

_IN_ORDER = (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)


class Receiver:
    """What consumers and readers have in common: the partitions, and the queue of received messages."""

    def __init__(self, brokers: Brokers, topic: str, options: ConsumerOptions | None) -> None:
        self._brokers = brokers
        self.topic = topic
        self._options = options or ConsumerOptions()
        self._parts: list[TopicConsumer] = []
        self._queue: deque[Message] = deque()
        self._ready = asyncio.Event()
        self._error: BrokerRefusedError | None = None
        """Why the first of the partitions is finished."""

    def _part(self, name: str, partition: int) -> TopicConsumer:
        """Return the consumer of one partition, -1 for a plain topic."""
        raise NotImplementedError

    async def open(self) -> Self:
        """Register with the brokers. BrokerRefusedError, ConfigError."""
        try:
            for name in await self._brokers.partitions(self.topic, create=self._options.creates_topic):
                part = self._part(name, parse_topic(name).partition)
                await part.open()
                self._parts.append(part)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        return await self.receive()

    async def receive(self) -> Message:
        """Return the next message, and wait for it if there is none. BrokerRefusedError.

        A caller that is cancelled loses no message.
        """
        while self._error is not None or not self._queue:  # without a partition it must not go on in silence
            self._raise_if_failed()
            self._ready.clear()
            await self._ready.wait()
        message = self._queue.popleft()
        message.arrival.source.taken(message)
        return message

    async def receive_many(self, messages_max: int = 1000) -> list[Message]:
        """Return at least one message, and what else has arrived. BrokerRefusedError."""
        found = [await self.receive()]
        while self._queue and len(found) < messages_max:
            message = self._queue.popleft()
            message.arrival.source.taken(message)
            found.append(message)
        return found

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error
        if not self._parts:
            raise ClosedError(f"{self.topic}: it is not open")

    def _failed(self, error: BrokerRefusedError) -> None:
        self._error = self._error or error
        self._ready.set()

    async def last_message_ids(self) -> list[MessageId]:
        """Return the last message of each partition; the entry is -1 in an empty one. BrokerRefusedError."""
        return [await part.last_message_id() for part in self._parts]

    async def close(self) -> None:
        """Close it; the broker gives unacknowledged messages to others."""
        for part in self._parts:
            await part.close()
        self._ready.set()


class Consumer(Receiver):
    """Consumes a topic by a durable subscription."""

    def __init__(self, brokers: Brokers, topic: str, subscription: str, options: ConsumerOptions | None = None) -> None:
        super().__init__(brokers, topic, options)
        self.subscription = subscription

    def _part(self, name: str, partition: int) -> TopicConsumer:
        return TopicConsumer(
            self._brokers,
            name,
            self.subscription,
            self._options,
            self._queue,
            self._ready.set,
            self._failed,
            partition=partition,
        )

    async def acknowledge(self, message: Message) -> None:
        """Acknowledge a message, and wait until the broker has confirmed it. BrokerRefusedError.

        Of a batch the broker remembers single messages if it has that feature; others deliver a batch again until all
        of it is acknowledged.
        """
        self.acknowledge_soon(message)
        await message.arrival.source.acknowledged()

    def acknowledge_soon(self, message: Message) -> None:
        """Acknowledge a message without waiting; `confirmed` waits. Before that it may be delivered again."""
        self._own(message).acknowledge(message)

    async def acknowledge_all_to(self, message: Message) -> None:
        """Acknowledge a message and all before it in its partition, and wait for the broker. BrokerRefusedError.

        ConfigError on Shared and Key_Shared subscriptions, where messages before it may be with other consumers.
        """
        kind = self._options.kind
        if kind not in _IN_ORDER:
            raise ConfigError(
                f"{self.topic}: acknowledge_all_to on a {TYPE_NAMES[kind]} subscription; acknowledge each message"
            )
        self._own(message).acknowledge(message, cumulative=True)
        await message.arrival.source.acknowledged()

    async def confirmed(self) -> None:
        """Wait until the broker has confirmed all acknowledgements. BrokerRefusedError."""
        for part in self._parts:
            await part.confirmed()

    def refuse(self, message: Message) -> None:
        """Let a message be delivered again after `redelivery_delay_s`, with the rest of its batch.

        On Exclusive and Failover subscriptions everything that is not acknowledged comes again, in order.
        """
        self._own(message).refuse(message)

    async def seek(self, target: MessageId | int) -> None:
        """Continue with the entry of a message, or with those published since a time in ms since the epoch.

        An id is of one partition; the others stay where they are. `EARLIEST` and `LATEST` are of all.
        BrokerRefusedError.
        """
        for index, part in enumerate(self._parts):
            if not isinstance(target, MessageId) or target.partition in (-1, index):
                await part.seek(target)

    async def unsubscribe(self) -> None:
        """Delete the subscription. BrokerRefusedError: also while other consumers use it."""
        for part in self._parts:
            await part.unsubscribe()

    def _own(self, message: Message) -> TopicConsumer:
        source: TopicConsumer = message.arrival.source
        if source not in self._parts:
            raise ConfigError(f"message {message.id} of {message.topic} was not received by this consumer")
        return source


class Reader(Receiver):
    """Reads a topic from a position. The broker remembers nothing of it."""

    def __init__(self, brokers: Brokers, topic: str, start: MessageId, options: ConsumerOptions | None = None) -> None:
        super().__init__(brokers, topic, options)
        self._start = start
        self._name = f"reader-{brokers.chance.token(5).hex()}"

    def _part(self, name: str, partition: int) -> TopicConsumer:
        return TopicConsumer(
            self._brokers,
            name,
            self._name,
            self._options,
            self._queue,
            self._ready.set,
            self._failed,
            partition=partition,
            start=self._start,
        )
