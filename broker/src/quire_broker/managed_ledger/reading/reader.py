"""Reads ranges of a managed ledger: from the cache, the ledger being written, or closed ledgers. Decides no position.

The ledger being written is read through its writer, which knows the confirmed entries. Closed ledgers are opened
without recovery, from the bookies or a bucket (`tiers`). Their handles are kept; the least recently used are closed.
Simultaneous reads of the same range share one read, and so do reads of the cache in one turn of the loop. `find_first`
searches by reading, for seek by time.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from quire_bookie.dataclass import dataclass
from quire_bookie.env.background import Background
from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.errors import NoSuchLedgerError
from quire_bookie.model import Buffer, EntryId, LedgerId
from quire_broker.managed_ledger.ledger_port import Entry, Handle, Ledgers
from quire_broker.managed_ledger.nodes.ledger_list import LedgerList
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.managed_ledger.reading.active_readers import ActiveReaders
from quire_broker.managed_ledger.reading.catch_up_turns import CatchUpTurns
from quire_broker.managed_ledger.reading.entry_cache import TopicCache
from quire_broker.managed_ledger.reading.fetches import Fetch, Fetches
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


class _Taken(NamedTuple):
    """Entries of one ledger. `far_behind`: they were fetched in a turn of catch-up."""

    entries: list[StoredEntry]
    far_behind: bool


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
        readers: ActiveReaders,
        turns: CatchUpTurns,
    ) -> None:
        self._slow = slow
        self._active = readers
        self._turns = turns
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
        self._fetches = Fetches(background, self._fetch)
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
            last = self._last_of(position, entries_max - len(found), end)
            taken = await self._read_in_ledger(ledger_id, first, last, room_bytes)
            if taken is None:
                continue  # the ledger was trimmed meanwhile: at_or_after skips it
            for entry in taken.entries:
                room_bytes -= len(entry.data)
                if room_bytes < 0 and found:
                    return found
                found.append(entry)
            if taken.far_behind:
                break  # other readers have their turn before the rest
            position = Position(ledger_id, first + len(taken.entries))
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
        last = self._last_of(position, entries_max, end)
        entries = self._from_cache(ledger_id, first, last, bytes_max)
        if not entries:
            return None
        if turn is None:
            asyncio.get_running_loop().call_soon(self._end_turn)
        following = ledgers.next_position(entries[-1].position)
        self._turn = CachedRead(start, entries_max, bytes_max, end, entries, following)
        return self._turn

    def _last_of(self, start: Position, entries_max: int, end: Position) -> int:
        """Return the last entry to read in the ledger of `start`, none after `end`."""
        last = min(self._ledgers.entries_in(start.ledger_id), start.entry_id + entries_max) - 1
        return min(last, end.entry_id) if start.ledger_id == end.ledger_id else last

    def _from_cache(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[StoredEntry]:
        cached = self._cache.get(ledger_id, first, last, bytes_max)
        return [StoredEntry(Position(ledger_id, first + at), data) for at, data in enumerate(cached)]

    def _end_turn(self) -> None:
        self._turn = None  # the cache alone decides how long entries stay in memory

    async def _read_in_ledger(self, ledger_id: int, first: int, last: int, bytes_max: int) -> _Taken | None:
        """Read entries from `first` on, at least one; None if the ledger left the list during the read."""
        cached = self._from_cache(ledger_id, first, last, bytes_max)
        if cached:
            return _Taken(cached, False)
        far_behind = self._active.is_far_behind(ledger_id, first, self._settings.cache_backlog_max)
        if far_behind:
            bytes_max = min(bytes_max, self._settings.catch_up_read_bytes)
        try:
            entries, joined = await self._fetches.entries(ledger_id, first, last, bytes_max, far_behind=far_behind)
        except (NoSuchLedgerError, OffloadedReadError):
            if ledger_id in self._ledgers.ids:
                raise
            return None
        self._cache.count_fetched(len(entries), joined=joined)
        return _Taken(
            [StoredEntry(Position(ledger_id, entry.entry_id), entry.payload) for entry in entries], far_behind
        )

    async def _fetch(self, fetch: Fetch) -> Sequence[Entry]:
        """Fetch in a turn, if it is far behind, and with memory of the budget that all connections share."""
        if not fetch.far_behind:
            return await self._fetch_now(fetch)
        async with self._turns.turn():
            return await self._fetch_now(fetch)

    async def _fetch_now(self, fetch: Fetch) -> Sequence[Entry]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await self._memory.reserve(fetch.bytes_max)
        try:
            ready_s = loop.time()
            entries = await self._read_from_ledger(fetch.ledger_id, fetch.first, fetch.last, fetch.bytes_max)
            self._slow.done(fetch.ledger_id, fetch.first, began_s, ready_s, entries)
            self._cache.fetched(fetch.ledger_id, entries, fetch.waiters, loop.time(), far_behind=fetch.far_behind)
            return entries
        finally:
            self._memory.give_back(fetch.bytes_max)

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

    def use(self, settings: ManagedLedgerSettings) -> None:
        """Read with these settings from now on."""
        self._settings = settings

    def _open(self, ledger_id: int) -> TieredReader:
        reader = self._readers.pop(ledger_id, None)
        if reader is None:
            reader = TieredReader(
                LedgerId(ledger_id),
                self._client,
                self._tier,
                lambda: self._ledgers.record(ledger_id),
                self._settings.password,
                lambda: self._settings.offload.read_first,
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
