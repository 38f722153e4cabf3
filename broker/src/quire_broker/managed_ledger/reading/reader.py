"""Reads ranges of a managed ledger: from the cache, the ledger being written, or closed ledgers. Decides no position.

The ledger being written is read through its writer, which knows the confirmed entries. Closed ledgers are opened
without recovery, from the bookies or a bucket (`tiers`). Their handles are kept; the least recently used are closed.
Simultaneous reads of the same range share one read, and so do reads of the cache in one turn of the loop. `find_first`
searches by reading, for seek by time.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire_bookie.env.background import Background
from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.errors import NoSuchLedgerError
from quire_bookie.model import Buffer, EntryId, LedgerId
from quire_broker.managed_ledger.errors import ManagedLedgerClosedError
from quire_broker.managed_ledger.ledger_port import Entry, Handle, Ledgers
from quire_broker.managed_ledger.nodes.ledger_list import LedgerList
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.managed_ledger.reading.entry_cache import TopicCache
from quire_broker.managed_ledger.reading.slow_reads import SlowReads
from quire_broker.managed_ledger.reading.tiers import OffloadedReadError, TieredReader
from quire_broker.offload.tier import Tier
from quire_broker.settings.managed_ledger import ManagedLedgerSettings

READ_BYTES_MAX = 5 * 1024 * 1024
"""Bytes that one call returns if its caller gives no bound."""


@dataclass(frozen=True, slots=True)
class CachedRead:
    """A read of the cache: from `start` on, while `end` was the last confirmed entry; `following` is the next to read.

    Several cursors share it: do not change its entries.
    """

    start: Position
    entries_max: int
    bytes_max: int
    end: Position
    entries: list[StoredEntry]
    following: Position

    def answers(self, start: Position, entries_max: int, bytes_max: int, end: Position) -> bool:
        """Return whether a read with these bounds gets the same entries."""
        found = len(self.entries)
        return (
            start == self.start
            and bytes_max == self.bytes_max
            and end == self.end
            and (entries_max == self.entries_max or (found <= entries_max and found < self.entries_max))
        )


class EntryReader:
    """Reads entries of one managed ledger. `tail` is the handle of the ledger being written; its writer sets it."""

    def __init__(
        self,
        client: Ledgers,
        ledgers: LedgerList,
        cache: TopicCache,
        background: Background,
        settings: ManagedLedgerSettings,
        tier: Tier,
        memory: ConnectionMemory,
        slow: SlowReads,
    ) -> None:
        self._slow = slow
        self._memory = memory
        self.tail: Handle | None = None
        self._client = client
        self._ledgers = ledgers
        self._cache = cache
        self._background = background
        self._settings = settings
        self._tier = tier
        self._readers: dict[int, TieredReader] = {}
        self._busy: dict[int, int] = {}
        self._reads: dict[tuple[int, int, int, int], asyncio.Task[Sequence[Entry]]] = {}
        self._turn: CachedRead | None = None
        """The last read of the cache in this turn of the loop."""

    async def read(
        self, start: Position, entries_max: int, bytes_max: int = READ_BYTES_MAX, *, through: Position | None = None
    ) -> list[StoredEntry]:
        """Read up to `entries_max` entries from `start` on, in order, across ledgers; [] at the end.

        Returns at least one entry if there is one, whatever its size, and none after `through`.
        ManagedLedgerClosedError; errors of the ledger client.
        """
        found: list[StoredEntry] = []
        position = start
        room_bytes = bytes_max
        while len(found) < entries_max and (room_bytes > 0 or not found):
            position = self._ledgers.at_or_after(position)
            end = self._ledgers.last_confirmed if through is None else min(through, self._ledgers.last_confirmed)
            if position > end:
                break
            ledger_id, first = position
            last = min(self._ledgers.entries_in(ledger_id) - 1, first + entries_max - len(found) - 1)
            if ledger_id == end.ledger_id:
                last = min(last, end.entry_id)
            taken = await self._read_in_ledger(ledger_id, first, last, room_bytes)
            if taken is None:
                continue  # the ledger was trimmed meanwhile: at_or_after skips it
            for entry in taken:
                room_bytes -= len(entry.data)
                if room_bytes < 0 and found:
                    return found
                found.append(entry)
            position = Position(ledger_id, first + len(taken))
        return found

    def read_cached(self, start: Position, entries_max: int, bytes_max: int) -> CachedRead | None:
        """Return entries of one ledger from `start` on if they are in the cache, as `read` would; else None.

        The same read in the same turn of the loop, by another cursor, returns the same object.
        """
        ledgers, turn = self._ledgers, self._turn
        if turn is not None and turn.answers(start, entries_max, bytes_max, ledgers.last_confirmed):
            self._cache.count_hits(len(turn.entries))
            return turn
        position, end = ledgers.at_or_after(start), ledgers.last_confirmed
        if position > end:
            return None
        ledger_id, first = position
        last = min(ledgers.entries_in(ledger_id) - 1, first + entries_max - 1)
        if ledger_id == end.ledger_id:
            last = min(last, end.entry_id)
        entries = self._from_cache(ledger_id, first, last, bytes_max)
        if not entries:
            return None
        if turn is None:
            asyncio.get_running_loop().call_soon(self._end_turn)
        following = ledgers.next_position(entries[-1].position)
        self._turn = CachedRead(start, entries_max, bytes_max, end, entries, following)
        return self._turn

    def _from_cache(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[StoredEntry]:
        cached = self._cache.get(ledger_id, first, last, bytes_max)
        return [StoredEntry(Position(ledger_id, first + at), data) for at, data in enumerate(cached)]

    def _end_turn(self) -> None:
        self._turn = None  # the cache alone decides how long entries stay in memory

    async def _read_in_ledger(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[StoredEntry] | None:
        """Read entries from `first` on, at least one; None if the ledger left the list during the read."""
        cached = self._from_cache(ledger_id, first, last, bytes_max)
        if cached:
            return cached
        try:
            entries = await self._shared_read(ledger_id, first, last, bytes_max)
        except (NoSuchLedgerError, OffloadedReadError):
            if ledger_id in self._ledgers.ids:
                raise
            return None
        self._cache.count_missed(len(entries))
        return [StoredEntry(Position(ledger_id, entry.entry_id), entry.payload) for entry in entries]

    async def _shared_read(self, ledger_id: int, first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        key = (ledger_id, first, last, bytes_max)
        task = self._reads.get(key)
        if task is None:
            task = self._reads[key] = self._background.spawn(self._fetch(*key), f"read of {key}")
            task.add_done_callback(lambda _: self._reads.pop(key, None))
        # The cancellation of one waiter must not cancel the read for the others.
        await asyncio.wait([task])
        if task.cancelled():
            raise ManagedLedgerClosedError(f"the managed ledger was closed while its ledger {ledger_id} was read")
        return task.result()

    async def _fetch(self, ledger_id: int, first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        """Read after reserving bytes in the memory budget that all connections share."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await self._memory.reserve(bytes_max)
        try:
            ready_s = loop.time()
            entries = await self._read_from_ledger(ledger_id, first, last, bytes_max)
            self._slow.done(ledger_id, first, began_s, ready_s, entries)
            return entries
        finally:
            self._memory.give_back(bytes_max)

    async def _read_from_ledger(self, ledger_id: int, first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        tail = self.tail
        if tail is not None and tail.ledger_id == ledger_id:
            return await tail.read(EntryId(first), EntryId(last), bytes_max)
        self._busy[ledger_id] = self._busy.get(ledger_id, 0) + 1
        reader = self._open(ledger_id)
        try:
            return await reader.read(EntryId(first), EntryId(last), bytes_max)
        finally:
            self._busy[ledger_id] -= 1
            if not self._busy[ledger_id]:
                del self._busy[ledger_id]

    def _open(self, ledger_id: int) -> TieredReader:
        reader = self._readers.pop(ledger_id, None)
        if reader is None:
            reader = TieredReader(
                LedgerId(ledger_id),
                self._client,
                self._tier,
                lambda: self._ledgers.record(ledger_id),
                self._settings.password,
                self._settings.offload,
            )
        self._readers[ledger_id] = reader  # the most recently used last
        self._close_surplus()
        return reader

    def _close_surplus(self) -> None:
        for ledger_id in list(self._readers)[: max(0, len(self._readers) - self._settings.open_readers_max)]:
            if ledger_id not in self._busy:
                self._background.spawn(
                    self._readers.pop(ledger_id).close(), f"closing the handle of ledger {ledger_id}"
                )

    def forget(self, ledger_ids: Sequence[int]) -> None:
        """Drop the cached entries and handles of ledgers that left the list."""
        for ledger_id in ledger_ids:
            self._cache.drop_ledger(ledger_id)
            reader = self._readers.pop(ledger_id, None)
            if reader is not None:
                self._background.spawn(reader.close(), f"closing the handle of ledger {ledger_id}")

    async def close(self) -> None:
        """Close every handle."""
        self.tail = None
        self._cache.drop_all()
        while self._readers:
            _, reader = self._readers.popitem()
            await reader.close()


async def find_first(ledgers: LedgerList, reader: EntryReader, predicate: Callable[[Buffer], bool]) -> Position | None:
    """Return the first entry for which `predicate` holds, or None. It must hold for every later entry too.

    Searches the entries that exist at the beginning. For entries that are trimmed meanwhile it counts as false.
    """
    spans = [(record.ledger_id, record.entries) for record in ledgers.counted() if record.entries]
    low, high = 0, sum(entries for _, entries in spans)
    end = high
    while low < high:
        middle = (low + high) // 2
        position = _nth(spans, middle)
        found = await reader.read(position, 1)
        if found and found[0].position == position and predicate(found[0].data):
            high = middle
        else:
            low = middle + 1
    return None if low == end else _nth(spans, low)


def _nth(spans: list[tuple[int, int]], index: int) -> Position:
    for ledger_id, entries in spans:
        if index < entries:
            return Position(ledger_id, index)
        index -= entries
    raise IndexError(index)
