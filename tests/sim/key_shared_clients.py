"""Consumers of one Key_Shared subscription that join and leave, and the check of what they get.

A consumer holds a message from its arrival until it sends the acknowledgement, asks for a redelivery, or leaves. The
broker knows of each of these later than its client, so a message counts for no longer than for the broker.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quire_bookie.errors import QuireError
from quire_broker.wire.frames import MessageFrame, encode
from quire_broker.wire.kinds import InitialPosition, KeySharedMode, Kind, SubscriptionType
from quire_broker.wire.proto import pulsar_pb2 as pb
from quire_client import Client
from quire_client.connection import Connection
from tests.sim.topic_clients import TopicHistory
from tests.support.raw_client import Consumer, Received, received_of

SUBSCRIPTION = "keys"
LOOK_S = 0.1
Attached = Callable[[str], set[str]]
"""Returns the names of the consumers that the broker of a host counts as attached."""


@dataclass(eq=False, slots=True)
class Stay:
    """One consumer of a member, from its SUBSCRIBE to its end. `host`: that of its broker."""

    name: str
    host: str
    held: set[int] = field(default_factory=set)
    newest: dict[int, int] = field(default_factory=dict)
    """The last message of each key."""
    refused: set[int] = field(default_factory=set)
    """Messages that it asked for again: they may arrive after later ones, which were on their way."""


class KeyHistory:
    """What the members of one subscription got: message `n` has the key `n % keys`."""

    def __init__(self, topic: TopicHistory, keys: int, attached: Attached) -> None:
        self._topic, self._keys, self._attached = topic, keys, attached
        self._next = list(range(keys))
        self._stays: list[Stay] = []

    def begin(self, name: str, host: str) -> Stay:
        """Note a new consumer."""
        stay = Stay(name, host)
        self._stays.append(stay)
        return stay

    def end(self, stay: Stay) -> None:
        """Note that a consumer leaves: others may get what it holds."""
        self._stays.remove(stay)

    def arrived(self, stay: Stay, number: int) -> None:
        """Check one delivery."""
        trouble = self._out_of_order(stay, number) or self._held_twice(stay, number)
        self._topic.trouble = self._topic.trouble or trouble
        stay.held.add(number)
        stay.refused.discard(number)
        key = number % self._keys
        stay.newest[key] = max(number, stay.newest.get(key, -1))
        self._topic.delivered.add(number)

    def released(self, stay: Stay, number: int, *, again: bool = False) -> None:
        """Note an acknowledgement, or (`again`) the request to deliver a message again."""
        stay.held.discard(number)
        if again:
            stay.refused.add(number)

    def _out_of_order(self, stay: Stay, number: int) -> str:
        key = number % self._keys
        if number > self._next[key]:
            return f"{stay.name} gets message {number} of key {key}, before any consumer got {self._next[key]}"
        if number == self._next[key]:
            self._next[key] += self._keys
        newest = stay.newest.get(key, -1)
        late = number <= newest and number not in stay.refused
        return f"{stay.name} gets message {number} of key {key} after {newest}" if late else ""

    def _held_twice(self, stay: Stay, number: int) -> str:
        key, attached = number % self._keys, self._attached(stay.host)
        if stay.name not in attached:
            return ""  # the broker has removed it since: it delivers its messages to others
        for other in self._stays:
            held = [one for one in other.held if one % self._keys == key]
            if held and other is not stay and other.host == stay.host and other.name in attached:
                return f"{stay.name} gets message {number} of key {key} while {other.name} holds {held}"
        return ""


class _KeyConsumer(Consumer):
    """Subscribes by key. Grants one permit for each message that it has dealt with."""

    PERMITS = 4

    def __init__(self, connection: Connection, queue: "asyncio.Queue[Received | QuireError]") -> None:
        super().__init__(connection, -1, queue)
        self.on_arrival: Callable[[int], None] = lambda number: None

    async def join(self, topic: str, name: str) -> None:
        """Subscribe under a name."""
        self._durable = True
        body = pb.CommandSubscribe(
            topic=topic,
            subscription=SUBSCRIPTION,
            subType=SubscriptionType.KEY_SHARED,
            consumer_id=self._id,
            consumer_name=name,
            initialPosition=InitialPosition.EARLIEST,
        )
        body.keySharedMeta.keySharedMode = KeySharedMode.AUTO_SPLIT
        await self._connection.ask(Kind.SUBSCRIBE, "subscribe", body)
        self._flow(self.PERMITS)

    async def leave(self) -> None:
        """Close the consumer in order: what it sent before is processed."""
        body = pb.CommandCloseConsumer(consumer_id=self._id)
        await self._connection.ask(Kind.CLOSE_CONSUMER, "close_consumer", body)

    def _on_message(self, frame: MessageFrame) -> None:
        position = frame.command.message.message_id
        (received,) = received_of(position.ledgerId, position.entryId, -1, frame.entry, ())
        self.on_arrival(int(received.message.payload))
        self._queue.put_nowait(received)

    def acknowledge(self, received: Received) -> None:
        """Acknowledge a message, and ask for another."""
        super().acknowledge(received)
        self._flow(1)

    def refuse(self, received: Received) -> None:
        """Ask for a message again."""
        body = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self._id)
        body.message_ids.add(ledgerId=received.ledger_id, entryId=received.entry_id)
        self._connection.write(encode(pb.BaseCommand(type=Kind.REDELIVER, redeliver=body)))
        self._flow(1)


class Member:
    """A client that consumes while it is `wanted`, through one consumer after another."""

    def __init__(
        self,
        name: str,
        topic: str,
        history: KeyHistory,
        urls: Sequence[str],
        chance: random.Random,
        note: Callable[[str], None],
    ) -> None:
        self.wanted = False
        self.leaves_in_order = True
        self.pause_s = 0.0
        """How long it works on one message."""
        self.refusals = 0
        """How many of the next messages it wants again."""
        self._name, self._topic, self._history = name, topic, history
        self._urls, self._chance, self._note = urls, chance, note
        self._stays = 0

    async def run(self) -> None:
        """Join and leave until cancelled."""
        while True:
            if self.wanted:
                client = Client(self._chance.choice(self._urls))
                try:
                    await self._stay(await client.brokers.owner(self._topic))
                except (QuireError, OSError) as error:
                    self._note(f"{self._name}: {error}")
                finally:
                    client.close()
            await asyncio.sleep(self._chance.uniform(LOOK_S, 4 * LOOK_S))

    async def _stay(self, connection: Connection) -> None:
        self._stays += 1
        assert connection._transport is not None
        host = connection._transport.get_extra_info("peername")[0]
        stay = self._history.begin(f"{self._name}-{self._stays}", host)
        queue: asyncio.Queue[Received | QuireError] = asyncio.Queue()
        consumer = _KeyConsumer(connection, queue)
        consumer.on_arrival = lambda number: self._history.arrived(stay, number)
        try:
            await consumer.join(self._topic, stay.name)
            self._note(f"{stay.name} joins at {host}")
            while self.wanted:
                await self._work(consumer, queue, stay)
            if self.leaves_in_order:
                await consumer.leave()
        finally:
            self._note(f"{stay.name} leaves")
            consumer.on_arrival = lambda number: None
            self._history.end(stay)

    async def _work(self, consumer: _KeyConsumer, queue: "asyncio.Queue[Received | QuireError]", stay: Stay) -> None:
        try:
            async with asyncio.timeout(LOOK_S):
                received = await queue.get()
        except TimeoutError:
            return
        if isinstance(received, QuireError):
            raise received
        number = int(received.message.payload)
        await asyncio.sleep(self.pause_s)
        again = self.refusals > 0
        self.refusals -= again
        self._history.released(stay, number, again=again)
        (consumer.refuse if again else consumer.acknowledge)(received)
