"""A publisher and a consumer of one topic, as clients of several brokers, and the check of what the topic has.

The publisher numbers its messages and repeats those without a receipt on its next connection; deduplication is on. The
topic then has every acknowledged message once, in order.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quire_bookie.errors import QuireError
from quire_broker.wire.entry import seal
from quire_broker.wire.hot import encode_send
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from quire_client import Client
from quire_client.connection import Connection
from quire_client.errors import BrokerRefusedError, ConnectionLostError
from tests.sim.history import HistoryError
from tests.support.raw_client import Consumer, Received

WINDOW = 20
RECEIPT_S = 4.0
SUBSCRIPTION = "kept"


@dataclass(slots=True)
class TopicHistory:
    """The messages of one topic, by number."""

    topic: str
    sent: int = 0
    acknowledged: set[int] = field(default_factory=set)
    delivered: set[int] = field(default_factory=set)
    trouble: str = ""
    """The first delivery that a consumer should not have got, if consumers check."""

    def joined(self) -> None:
        """Note that the consumer subscribes again."""

    def arrived(self, number: int) -> None:
        """Note a delivery to the consumer."""
        self.delivered.add(number)

    def deliver_at_ms(self, number: int) -> int:
        """Return the delivery time of a message, in ms since the epoch; 0: at once."""
        return 0

    def check(self, found: list[int]) -> None:
        """Check the topic's whole content, in the order of a reader."""
        if found != list(range(len(found))):
            wrong = next((at, one) for at, one in enumerate(found) if at != one)
            raise HistoryError(f"{self.topic}: message {wrong[1]} is at place {wrong[0]}: lost, doubled or reordered")
        if len(found) > self.sent:
            raise HistoryError(f"{self.topic}: {len(found)} messages, but {self.sent} were sent")
        lost = [one for one in sorted(self.acknowledged) if one >= len(found)]
        if lost:
            raise HistoryError(f"{self.topic}: {len(lost)} acknowledged messages are lost, the first is {lost[0]}")

    @property
    def undelivered(self) -> list[int]:
        """The acknowledged messages that the consumer has not got."""
        return sorted(self.acknowledged - self.delivered)


class TopicClients:
    """The clients of one topic. `rate`: messages per second; it may change at any time."""

    def __init__(
        self,
        history: TopicHistory,
        urls: Sequence[str],
        chance: random.Random,
        note: Callable[[str], None],
        keys: int = 0,
    ) -> None:
        """`history`: of the topic. `keys`: message `n` has the key `n % keys`; 0: messages have none."""
        self.history = history
        self.rate = 1.0
        self.stops = False
        """Whether the publisher sends no new messages."""
        self._topic, self._urls, self._chance, self._note = history.topic, urls, chance, note
        self._keys = keys
        self._epoch = 0
        self._receipts = asyncio.Event()
        self._failure = ""

    async def publish(self) -> None:
        """Publish until `stops`, and everything sent is acknowledged."""
        while not (self.stops and len(self.history.acknowledged) == self.history.sent):
            client = Client(self._chance.choice(self._urls))
            try:
                await self._publish_on(await client.brokers.owner(self._topic))
            except (QuireError, OSError) as error:
                self._note(f"the publisher of {self._topic}: {error}")
            finally:
                client.close()
            await asyncio.sleep(self._chance.uniform(0.1, 1.0))

    async def publish_some(self, connection: Connection, count: int) -> None:
        """Publish a few more messages, and wait until everything sent is acknowledged."""
        self.stops = True
        self.history.sent += count
        await self._publish_on(connection)

    async def _publish_on(self, connection: Connection) -> None:
        number = connection.next_id()
        self._epoch += 1
        self._failure = ""
        connection.on_frame[(Kind.SEND_RECEIPT, number)] = self._on_receipt
        connection.on_frame[(Kind.SEND_ERROR, number)] = lambda error: self._fail(error.message)
        connection.on_frame[(Kind.CLOSE_PRODUCER, number)] = lambda _: connection.fail(
            ConnectionLostError("the broker closed the producer")
        )
        connection.on_lost[number] = lambda _: self._fail("the connection is lost")
        body = pb.CommandProducer(topic=self._topic, producer_id=number, producer_name="publisher", epoch=self._epoch)
        body.user_provided_producer_name = True
        await connection.ask(Kind.PRODUCER, "producer", body)
        next_number = len(self.history.acknowledged)
        while not self._failure:
            if next_number < self.history.sent or not self.stops:
                self._send(connection, number, next_number)
                next_number += 1
                self.history.sent = max(self.history.sent, next_number)
                await asyncio.sleep(self._chance.uniform(0.9, 1.1) / self.rate)
            sent_all = self.stops and next_number == self.history.sent
            if next_number - len(self.history.acknowledged) >= WINDOW or sent_all:
                if len(self.history.acknowledged) == self.history.sent:
                    return
                await self._receipt()
        raise BrokerRefusedError(self._failure)

    async def _receipt(self) -> None:
        self._receipts.clear()
        try:
            async with asyncio.timeout(RECEIPT_S):
                await self._receipts.wait()
        except TimeoutError:
            self._fail("no receipt")

    def _send(self, connection: Connection, producer: int, number: int) -> None:
        metadata = pb.MessageMetadata(producer_name="publisher", sequence_id=number, publish_time=1)
        if self._keys:
            metadata.partition_key = f"key {number % self._keys}"
        if at_ms := self.history.deliver_at_ms(number):
            metadata.deliver_at_time = at_ms
        connection.write(encode_send(producer, number, seal(metadata, b"%d" % number)))

    def _on_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        acknowledged = self.history.acknowledged
        if receipt.sequence_id != len(acknowledged) and receipt.sequence_id not in acknowledged:
            raise HistoryError(f"{self._topic}: a receipt for {receipt.sequence_id} after {len(acknowledged)} messages")
        acknowledged.add(receipt.sequence_id)
        self._receipts.set()

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._receipts.set()

    async def consume(self) -> None:
        """Consume with a durable subscription and acknowledge, until cancelled."""
        while True:
            client = Client(self._chance.choice(self._urls))
            try:
                await self._consume_on(await client.brokers.owner(self._topic))
            except (QuireError, OSError) as error:
                self._note(f"the consumer of {self._topic}: {error}")
            finally:
                client.close()
            await asyncio.sleep(self._chance.uniform(0.1, 1.0))

    async def _consume_on(self, connection: Connection) -> None:
        queue: asyncio.Queue[Received | QuireError] = asyncio.Queue()
        consumer = Consumer(connection, -1, queue)
        self.history.joined()
        await consumer.open(self._topic, SUBSCRIPTION, earliest=True)
        while True:
            received = await queue.get()
            if isinstance(received, QuireError):
                raise received
            self.history.arrived(int(received.message.payload))
            consumer.acknowledge(received)

    async def read_all(self) -> None:
        """Read the topic from its start and check it."""
        client = Client(self._urls[0])
        try:
            connection = await client.brokers.owner(self._topic)
            queue: asyncio.Queue[Received | QuireError] = asyncio.Queue()
            consumer = Consumer(connection, -1, queue)
            await consumer.open(self._topic, None, earliest=True)
            last, found = await consumer.last_position(), list[int]()
            while last >= (0, 0):
                received = await queue.get()
                if isinstance(received, QuireError):
                    raise received
                found.append(int(received.message.payload))
                if (received.ledger_id, received.entry_id) >= last:
                    break
            self.history.check(found)
        finally:
            client.close()
