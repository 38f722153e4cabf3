"""A subscription with delayed entries on a real managed ledger, in virtual time; its broker can be killed.

`Owner` is one broker with its dispatcher and one consumer; `Book` remembers all published and acknowledged entries.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.delivery import Delivery, KeyShared
from quire_broker.dispatch.key_shared import KeySharedDispatcher
from quire_broker.dispatch.shared import SharedDispatcher
from quire_broker.managed_ledger import Cursor, ManagedLedger, Position
from quire_broker.settings.dispatch import DispatchSettings
from quire_broker.wire.entry import seal
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata
from tests.unit.broker.dispatch.doubles import Link, spec
from tests.unit.broker.managed_ledger.world import Process, VirtualClock, World, append

TICK_MS = 16
"""The most that an entry may be late while nothing is slow."""


@dataclass
class Book:
    """The published entries, by position: the delivery time, 0 if an entry is not delayed."""

    due_ms: dict[Position, int] = field(default_factory=dict)
    acked: set[Position] = field(default_factory=set)
    number: int = 0


class Owner(Link):
    """A broker that serves the subscription. `held`: what its consumer has; `came`: all that came out, and when."""

    def __init__(self, world: World, process: Process, ledger: ManagedLedger, cursor: Cursor, book: Book) -> None:
        super().__init__()
        self.world = world
        self.process = process
        self.ledger = ledger
        self.cursor = cursor
        self.book = book
        self.clock = VirtualClock()
        self.held: dict[Position, int] = {}
        self.came: list[tuple[Position, int]] = []
        self.dispatcher: SharedDispatcher
        self.consumer: Consumer
        self.running: asyncio.Task[None]

    def start(self, *, key_shared: bool = False, **settings: Any) -> None:
        chosen = DispatchSettings(**{"delayed_bucket_entries": 4, "read_batch_entries": 7, **settings})
        self.dispatcher = (
            KeySharedDispatcher(self.cursor, self.ledger, chosen, self.clock, KeyShared())
            if key_shared
            else SharedDispatcher(self.cursor, self.ledger, chosen, self.clock)
        )
        self.ledger.on_append(self.dispatcher.appended)
        self.running = asyncio.get_running_loop().create_task(self.dispatcher.run())
        self.join()

    def join(self) -> None:
        self.consumer = Consumer(spec(1), self)
        self.consumer.flow(1_000_000)
        self.dispatcher.add(self.consumer)

    def leave(self) -> None:
        self.dispatcher.remove(self.consumer)
        self.held.clear()

    def deliver(self, consumer_id: int, deliveries: Any, messages: int) -> None:
        for delivery in deliveries:
            self._delivered(delivery)

    def _delivered(self, delivery: Delivery) -> None:
        position, now_ms = delivery.position, self.clock.now_ms()
        assert position not in self.held, f"{position} came out twice"
        assert position not in self.book.acked, f"{position} is acknowledged"
        assert self.book.due_ms[position] <= now_ms, f"{position} came out early"
        self.held[position] = now_ms
        self.came.append((position, now_ms))

    async def publish(self, *delays_ms: int) -> list[Position]:
        """Publish entries; one with a delay of 0 is not delayed."""
        now_ms = self.clock.now_ms()
        due = [now_ms + delay_ms if delay_ms else 0 for delay_ms in delays_ms]
        entries = []
        for due_ms in due:
            self.book.number += 1
            metadata = MessageMetadata(
                producer_name="p",
                sequence_id=self.book.number,
                publish_time=now_ms,
                partition_key=f"key{self.book.number % 5}",
            )
            if due_ms:
                metadata.deliver_at_time = due_ms
            entries.append(seal(metadata, b"m"))
        return await append_noted(self.ledger, entries, due, self.book)

    def acknowledge(self, *positions: Position) -> None:
        self.cursor.acknowledge(positions)
        self.dispatcher.acknowledged(self.consumer, positions)
        self.book.acked.update(positions)
        for position in positions:
            self.held.pop(position, None)

    def skip_through(self, position: Position) -> None:
        self.cursor.acknowledge_cumulative(position)
        self.dispatcher.acknowledged_through(position)
        self.book.acked.update(known for known in self.book.due_ms if known <= position)
        self.held = {known: at for known, at in self.held.items() if known > position}

    async def seek(self, position: Position) -> None:
        self.leave()
        async with self.dispatcher.step_lock:
            await self.cursor.reset(position)
            self.dispatcher.reset()
        first = self.ledger.first_position()  # entries before it were trimmed after they were acknowledged
        self.book.acked = {known for known in self.book.due_ms if known < max(position, first)}
        self.join()

    async def stop(self) -> None:
        self.dispatcher.retire()
        await asyncio.wait([self.running])


async def append_noted(ledger: ManagedLedger, entries: list[bytes], due: list[int], book: Book) -> list[Position]:
    """Append entries and note them before they can be delivered."""
    noted: list[Position] = []
    for entry, due_ms in zip(entries, due, strict=True):
        # The position of an entry is known when it is stored; until then its successor in the ledger is expected.
        expected = ledger.next_position(ledger.last_confirmed)
        book.due_ms[expected] = due_ms
        (position,) = await append(ledger, entry)
        if position != expected:
            del book.due_ms[expected]
            book.due_ms[position] = due_ms
        noted.append(position)
    return noted


async def owner(world: World, book: Book, *, start: bool = True, **settings: Any) -> Owner:
    """Return the subscription at a new broker."""
    process = world.process()
    ledger = await process.open()
    cursor = await process.run(ledger.open_cursor("sub"))
    made = Owner(world, process, ledger, cursor, book)
    if start:
        await process.run(_started(made, settings))
    return made


async def _started(made: Owner, settings: dict[str, Any]) -> None:
    made.start(**settings)
