"""Publishes to a topic: chooses the partition of each message, and joins the results of all partitions."""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from quire_broker.wire.java_hash import java_hash
from quire_client.batch import PLAIN, Extra, OnDone
from quire_client.brokers import Brokers
from quire_client.errors import BrokerRefusedError, ClosedError
from quire_client.message import MessageId
from quire_client.options import ProducerOptions
from quire_client.topic_producer import TopicProducer


class Producer:
    """The producer of a topic with all its partitions. A key has one partition; without keys, batches go round."""

    def __init__(self, brokers: Brokers, topic: str, options: ProducerOptions | None = None) -> None:
        self._brokers = brokers
        self.topic = topic
        self._options = options or ProducerOptions()
        self._producers: list[TopicProducer] = []
        self._turn = 0

    async def open(self) -> Self:
        """Register with the brokers. BrokerRefusedError, ConfigError."""
        names = await self._brokers.partitions(self.topic, create=True)
        plain = len(names) == 1 and names[0] == self.topic
        try:
            for partition, name in enumerate(names):
                producer = TopicProducer(self._brokers, name, self._options, -1 if plain else partition)
                await producer.open()
                self._producers.append(producer)
        except BaseException:  # no partition stays registered
            await self.close()
            raise
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id that brokers had for this name, in any partition, at `open`; -1: none."""
        return max(each.last_sequence_id for each in self._producers)

    @property
    def message_bytes_max(self) -> int:
        """The largest message that the brokers of all partitions take."""
        return min(each.message_bytes_max for each in self._producers)

    async def send(
        self,
        payload: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        ordering_key: bytes | None = None,
        deliver_at_ms: int | None = None,
        sequence_id: int | None = None,
    ) -> MessageId:
        """Send a message, and return its id when the broker has confirmed that it is stored.

        The id is (-1, -1) if deduplication found it stored before. If the caller is cancelled, the message may still be
        stored. BrokerRefusedError, ConfigError.
        """
        stored: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()

        def done(result: MessageId | BrokerRefusedError) -> None:
            if stored.done():
                return
            if isinstance(result, MessageId):
                stored.set_result(result)
            else:
                stored.set_exception(result)

        extra = Extra(key, properties, event_time_ms, ordering_key, deliver_at_ms, sequence_id)
        await self.enqueue(payload, PLAIN if extra == PLAIN else extra, done)
        return await stored

    async def enqueue(self, payload: bytes, extra: Extra = PLAIN, on_done: OnDone | None = None) -> None:
        """Take a message, and wait only while the bounds are reached. `flush` waits until it is stored.

        `on_done` gets its id, or the error; without it `flush` raises the error. BrokerRefusedError, ConfigError.
        """
        producer = self._producers[0] if len(self._producers) == 1 else self._chosen(extra.key)
        if producer.is_full:
            await producer.until_ready()
        producer.add(payload, extra, on_done)

    def _chosen(self, key: str | None) -> TopicProducer:
        """Return the producer of the partition for the next message."""
        producers = self._producers
        if not producers:
            raise ClosedError(f"{self.topic}: the producer is not open")
        if key is not None:
            return producers[java_hash(key) % len(producers)]
        if not producers[self._turn].has_open_batch:
            self._turn = (self._turn + 1) % len(producers)
        return producers[self._turn]

    async def flush(self) -> None:
        """Wait until everything taken is stored. BrokerRefusedError: of a message without `on_done` that is not."""
        for producer in self._producers:
            producer.send_batch()
        for producer in self._producers:
            await producer.flush()

    async def close(self) -> None:
        """Close it; messages without a receipt fail. Call `flush` before."""
        for producer in self._producers:
            await producer.close()
