"""A topic in memory for tests of dispatch: a ledger, a cursor, and links of consumers that record their calls."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.delivery import ConsumerSpec, Delivery
from quire_broker.managed_ledger.cursors.ack_ranges import AckRanges
from quire_broker.managed_ledger.cursors.ack_set import full_mask, unacked_mask, words_of
from quire_broker.managed_ledger.managed_ledger import ManagedLedgerState
from quire_broker.managed_ledger.position import EARLIEST, LATEST, Position, StoredEntry
from quire_broker.wire.entry import seal
from quire_broker.wire.kinds import Moved, SubscriptionType
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata

LEDGER = 7


class Clock:
    """A wall clock that tests set."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def now_ms(self) -> int:
        return self.now


class MemoryLedger:
    """Entries of one ledger. `pause` delays reads until it is set. Without `cached`, no cache has them."""

    name = "public/default/persistent/t"

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.state = ManagedLedgerState.OPEN
        self.listeners: list[Callable[[], None]] = []
        self.pause: asyncio.Event | None = None
        self.cursors: dict[str, MemoryCursor] = {}
        self.cached = True
        self.reads = 0

    @property
    def last_confirmed(self) -> Position:
        return Position(LEDGER, len(self.entries) - 1)

    def publish(self, payload: str = "m", **metadata: Any) -> Position:
        number = len(self.entries)
        fields = {"producer_name": "p", "sequence_id": number, "publish_time": 100 + number, **metadata}
        self.entries.append(seal(MessageMetadata(**fields), payload.encode()))
        self.confirmed()
        return self.last_confirmed

    def confirmed(self) -> None:
        for listener in list(self.listeners):
            listener()

    def on_append(self, listener: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    async def read(self, start: Position, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        self.reads += 1
        if self.pause is not None:
            await self.pause.wait()
        return self.found(start, entries_max, bytes_max)

    def found(self, start: Position, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        found: list[StoredEntry] = []
        for number in range(max(0, start.entry_id), min(len(self.entries), start.entry_id + entries_max)):
            if found and bytes_max <= 0:
                break
            bytes_max -= len(self.entries[number])
            found.append(StoredEntry(Position(LEDGER, number), self.entries[number]))
        return found

    def next_position(self, position: Position) -> Position:
        return Position(LEDGER, position.entry_id + 1)

    def previous_position(self, position: Position) -> Position:
        return Position(LEDGER, position.entry_id - 1)

    async def find_first(self, predicate: Callable[[bytes], bool]) -> Position | None:
        return next((Position(LEDGER, n) for n, data in enumerate(self.entries) if predicate(data)), None)

    async def delete_cursor(self, name: str) -> None:
        del self.cursors[name]

    def close_reader_cursor(self, cursor: "MemoryCursor") -> None:
        cursor.closed = True


class MemoryCursor:
    """A cursor over a MemoryLedger."""

    buckets = None

    def __init__(self, ledger: MemoryLedger, name: str = "sub", *, durable: bool = True) -> None:
        self.ledger = ledger
        self.name = name
        self.durable = durable
        self.active = False
        self.closed = False
        self.touches = 0
        self.acked: set[int] = set()
        self.batches: dict[int, int] = {}
        self.moves = 0
        self.next = 0
        self.first = 0
        self.keeps_all_acks = True
        ledger.cursors[name] = self

    @property
    def mark_delete(self) -> Position:
        number = self.first
        while number in self.acked:
            number += 1
        return Position(LEDGER, number - 1)

    @property
    def read_position(self) -> Position:
        return Position(LEDGER, self.next)

    @property
    def backlog(self) -> int:
        return sum(n not in self.acked for n in range(self.first, len(self.ledger.entries)))

    @property
    def has_more(self) -> bool:
        return self.next < len(self.ledger.entries)

    async def read(self, entries_max: int, bytes_max: int, besides: AckRanges | None = None) -> list[StoredEntry]:
        while True:
            moves = self.moves
            while self.next in self.acked:
                self.next += 1
            found = await self.ledger.read(Position(LEDGER, self.next), entries_max, bytes_max)
            if moves != self.moves:
                continue
            if not found:
                return []
            self.next = found[-1].position.entry_id + 1
            found = [entry for entry in found if entry.position.entry_id not in self.acked]
            found = [entry for entry in found if besides is None or entry.position not in besides]
            if found:
                return found

    def read_cached(self, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        if not self.ledger.cached or self.ledger.pause is not None:
            return []
        while self.next in self.acked:
            self.next += 1
        found = self.ledger.found(Position(LEDGER, self.next), entries_max, bytes_max)
        if found:
            self.next = found[-1].position.entry_id + 1
        return [entry for entry in found if entry.position.entry_id not in self.acked]

    def touch(self) -> None:
        self.touches += 1

    def rewind(self) -> None:
        self.moves += 1
        self.next = self.mark_delete.entry_id + 1

    def acknowledge(self, positions: Sequence[Position]) -> None:
        for position in positions:
            assert position <= self.ledger.last_confirmed
            self.acked.add(position.entry_id)
            self.batches.pop(position.entry_id, None)

    def acknowledge_batch(self, position: Position, ack_set: Sequence[int], batch_size: int) -> bool:
        left = self.batches.get(position.entry_id, full_mask(batch_size)) & unacked_mask(ack_set)
        if left == 0:
            self.acknowledge([position])
            return True
        self.batches[position.entry_id] = left
        return False

    def acknowledge_cumulative(self, position: Position, ack_set: Sequence[int] | None = None) -> None:
        through = position.entry_id
        if ack_set and unacked_mask(ack_set):
            self.batches[position.entry_id] = unacked_mask(ack_set)
            through -= 1
        self.acked.update(range(self.first, through + 1))

    @property
    def has_ack_sets(self) -> bool:
        return bool(self.batches)

    def ack_set(self, position: Position) -> tuple[int, ...] | None:
        left = self.batches.get(position.entry_id)
        return None if left is None else words_of(left)

    def is_acknowledged(self, position: Position) -> bool:
        return position.entry_id < self.first or position.entry_id in self.acked

    async def reset(self, position: Position) -> None:
        if position == EARLIEST:
            position = Position(LEDGER, 0)
        if position >= LATEST:
            position = Position(LEDGER, len(self.ledger.entries))
        self.first = self.next = position.entry_id
        self.acked.clear()
        self.batches.clear()
        self.moves += 1


class NeverCompacted:
    """A topic without a compacted ledger."""

    reader = None


class Link:
    """A consumer's link that records its calls, in order, as (call, consumer id, detail)."""

    peer = "127.0.0.1:50000"
    client_version = "test"

    def __init__(self) -> None:
        self.writable = True
        self.is_alive = True
        self.told: list[tuple[str, int, Any]] = []
        self.deliveries: list[tuple[int, Delivery]] = []
        self.calls = 0
        self.waiting: list[Callable[[], None]] = []

    def deliver(self, consumer_id: int, deliveries: Sequence[Delivery], messages: int) -> None:
        self.calls += 1
        for delivery in deliveries:
            self.deliveries.append((consumer_id, delivery))
            self.told.append(("message", consumer_id, delivery.position.entry_id))

    def active_changed(self, consumer_id: int, active: bool) -> None:
        self.told.append(("active", consumer_id, active))

    def reached_end(self, consumer_id: int) -> None:
        self.told.append(("end", consumer_id, None))

    def close_consumer(self, consumer_id: int, moved: Moved | None = None) -> None:
        self.told.append(("close", consumer_id, None))

    def on_writable(self, callback: Callable[[], None]) -> None:
        if callback not in self.waiting:
            self.waiting.append(callback)

    def drained(self) -> None:
        self.writable = True
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()

    async def alive(self) -> bool:
        return self.is_alive

    def entries(self, consumer_id: int | None = None) -> list[int]:
        """Return the ids of delivered entries, in order."""
        return [d.position.entry_id for known, d in self.deliveries if consumer_id is None or known == consumer_id]

    def take(self) -> list[tuple[str, int, Any]]:
        """Return the calls since the previous `take`."""
        told, self.told = self.told, []
        return told


def spec(
    consumer_id: int = 0, kind: SubscriptionType = SubscriptionType.SHARED, name: str | None = None, **more: Any
) -> ConsumerSpec:
    """Return the fields of a SUBSCRIBE."""
    return ConsumerSpec(consumer_id, name or f"c{consumer_id}", kind, **more)


def consumer(consumer_id: int, link: Link, permits: int = 0, **more: Any) -> Consumer:
    """Return a consumer with permits."""
    made = Consumer(spec(consumer_id, **more), link)
    made.flow(permits)
    return made


async def settle() -> None:
    """Let all runnable tasks proceed."""
    for _ in range(50):
        await asyncio.sleep(0)
