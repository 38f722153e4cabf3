"""Publishes messages of one session that were delivered too often to the dead letter topic.

    a redelivery above the bound arrives   the client does not get it; it is published, with the client's credentials
    the topic has stored it                it is acknowledged
    the session ends before                another session publishes it: the dead letter topic may hold it twice

No message is kept for that: those that wait for their turn are in the inbox. Brokers count redeliveries of Shared and
Key_Shared subscriptions only.
"""

import asyncio

from quire_bookie.env.clock import WallClock
from quire_broker.errors import BrokerError
from quire_broker.names import TopicName
from quire_broker.websocket.attachment import Links
from quire_broker.websocket.inbox import Incoming
from quire_broker.websocket.message_ids import MessageId
from quire_broker.websocket.parameters import ProducerParameters
from quire_broker.websocket.topic_producer import Sent, TopicProducer
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata

_FOREVER = ProducerParameters(send_timeout_s=float("inf"))


class DeadLetters:
    """Owns the producer of the dead letter topic, which attaches before the first message."""

    def __init__(
        self, links: Links, topic: TopicName, subscription: str, redeliveries_max: int, clock: WallClock
    ) -> None:
        """`redeliveries_max`: how often a message comes again to the client."""
        self._subscription = subscription
        self._redeliveries_max = redeliveries_max
        self._clock = clock
        self._producer = TopicProducer(links, topic, _FOREVER, self._done)
        self._opened = asyncio.Event()
        self._answer: asyncio.Future[None]

    def takes(self, incoming: Incoming) -> bool:
        """Return whether a message was delivered too often."""
        return incoming.redeliveries > self._redeliveries_max

    async def publish(self, incoming: Incoming) -> None:
        """Return when the topic has stored the message. One at a time. QuireError."""
        if not self._opened.is_set():
            await self._producer.attach_in_time()
            self._opened.set()
        message = incoming.message
        metadata = MessageMetadata(publish_time=self._clock.now_ms())
        if message.key is not None:
            metadata.partition_key = message.key
        if message.event_time_ms is not None:
            metadata.event_time = message.event_time_ms
        place = incoming.message_id.shown()
        properties = {
            "REAL_TOPIC": str(incoming.consumer.topic.partitioned),
            "ORIGIN_MESSAGE_IDY_TIME": place,
            "ORIGIN_MESSAGE_ID": place,
            "REAL_SUBSCRIPTION": self._subscription,
        }
        for name, value in (properties | message.properties).items():
            metadata.properties.add(key=name, value=value)
        self._answer = asyncio.get_running_loop().create_future()
        self._producer.publish(metadata, message.payload, None)
        await self._answer

    async def keep(self) -> None:
        """Attach again whenever the broker has closed the producer, until cancelled. QuireError."""
        await self._opened.wait()
        await self._producer.stay()

    def _done(self, _: Sent, message_id: MessageId | None, reason: str) -> None:
        if self._answer.done():
            return
        if message_id is None:
            self._answer.set_exception(BrokerError(f"not stored in {self._producer.topic}: {reason}"))
        else:
            self._answer.set_result(None)
