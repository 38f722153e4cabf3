"""Reads entries, in this order: write cache, read cache, index and entry log.

Owns the rules of absence: *no such entry* and *no such ledger* are proofs; limbo turns them into unknown. Never changes
stored data; delegates reads of the disk to `log_reader`.
"""

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from typing import Protocol

from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError, NoSuchEntryError, NoSuchLedgerError, UnknownLedgerStateError
from quire_bookie.limits import READS_PER_TURN
from quire_bookie.model import NO_ENTRY, Buffer, EntryId, LedgerId
from quire_bookie.storage.entry_ranges import EntryRange, cached_ranges, indexed_ranges, join_ranges
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo, LedgerStates
from quire_bookie.storage.logs.log_reader import LogReader
from quire_bookie.storage.read_cache import Extent, ReadCache
from quire_bookie.storage.stats import StorageStats
from quire_bookie.storage.write_cache import WriteCache


class Stretch(Protocol):
    """Entries of one ledger that are contiguous in memory; all arrays are int64 and must not be changed.

    `ids` ascend, possibly with gaps; `starts` (in `data`) and `sizes` are those of the entries.
    """

    @property
    def data(self) -> bytes:
        """The bytes that contain the entries."""
        ...

    @property
    def ids(self) -> "array[int]":
        """The id of each entry."""
        ...

    @property
    def starts(self) -> "array[int]":
        """The start of each entry in `data`."""
        ...

    @property
    def sizes(self) -> "array[int]":
        """The size of each entry, in bytes."""
        ...


def _may_be_unflushed(cache: WriteCache, ledger: LedgerId, extent: Extent) -> bool:
    """Return whether a newer copy of an entry in the extent may be unflushed."""
    first, last = extent.ids[0], extent.ids[-1]
    for half in (cache.active, cache.flushing):
        held = None if half is None else half.ledgers.get(ledger)
        if held is not None and (held.strays or (held.ids and held.ids[0] <= last and held.ids[-1] >= first)):
            return True
    return False


class EntryReads:
    """Serves the reads of one storage. `load` returns the state of a ledger that may not be in memory."""

    def __init__(
        self,
        directory: str,
        index: IndexStore,
        write_cache: WriteCache,
        read_cache: ReadCache,
        states: LedgerStates,
        reader: LogReader,
        stats: StorageStats,
        load: Callable[[LedgerId], Awaitable[LedgerInfo | None]],
        is_limbo: Callable[[LedgerId], bool],
    ) -> None:
        self._directory = directory
        self._index = index
        self._write_cache = write_cache
        self._read_cache = read_cache
        self._states = states
        self._reader = reader
        self._stats = stats
        self._load = load
        self._is_limbo = is_limbo
        self.on_damage: Callable[[LedgerId, EntryId, DamagedError], None] | None = None
        """Called when a read finds damage; entry -1: the record of which entries exist is damaged."""

    def _report(self, ledger: LedgerId, entry: EntryId, error: DamagedError) -> None:
        if self.on_damage is not None:
            self.on_damage(ledger, entry, error)

    def cached(self, info: LedgerInfo, entry: EntryId) -> bytes | None:
        """See `LedgerStorage.read_cached`."""
        body = self._write_cache.get(info.ledger_id, entry)
        if body is not None:
            self._stats.write_cache_hits += 1
            return body
        extent = self._read_cache.find(info.ledger_id, entry)
        if extent is None:
            return None
        self._stats.read_cache_hits += 1
        if not extent.followed:
            self._reader.follow(info, extent)
        return extent.body(entry)

    def stretch(self, info: LedgerInfo, entry: EntryId) -> Stretch | None:
        """See `LedgerStorage.stretch`."""
        extent = self._read_cache.find(info.ledger_id, entry)
        if extent is None or _may_be_unflushed(self._write_cache, info.ledger_id, extent):
            return None
        if not extent.followed:
            self._reader.follow(info, extent)
        return extent

    async def one(self, ledger: LedgerId, entry: EntryId) -> Buffer:
        """See `LedgerStorage.read`."""
        info = await self._readable(ledger)
        if entry == NO_ENTRY:
            if info.limbo:
                raise UnknownLedgerStateError(f"ledger {ledger} is in limbo: its last entry is unknown")
            if info.last_unproven:
                error = DamagedError(self._directory, 0, f"the last entry of ledger {ledger} is not provable")
                self._report(ledger, NO_ENTRY, error)
                raise error
            entry = info.last_entry
        return await self._read(info, entry)

    async def many(self, ledger: LedgerId, first: EntryId, entries_max: int, bytes_max: int) -> list[Buffer]:
        """See `LedgerStorage.read_many`."""
        info = await self._readable(ledger)
        found: list[Buffer] = []
        size = 0
        for entry in range(first, first + max(1, entries_max)):
            if len(found) % READS_PER_TURN == READS_PER_TURN - 1:
                await asyncio.sleep(0)  # reads from memory never wait: yield to adds and their responses
            try:
                body = self._in_memory(info, EntryId(entry))
                if body is None:
                    body = await self._read(info, EntryId(entry), bytes_max - size)
            except (NoSuchEntryError, DamagedError, UnknownLedgerStateError):
                if not found:
                    raise
                break
            if found and size + len(body) > bytes_max:
                break
            found.append(body)
            size += len(body)
            if size >= bytes_max:
                break
        assert len(found) == 1 or size <= bytes_max, "only the first entry may exceed the limit"
        return found

    async def ranges(self, ledger: LedgerId, *, known_only: bool = False) -> list[EntryRange]:
        """See `LedgerStorage.entry_ranges`."""
        info = await self._readable(ledger)
        if info.limbo and not known_only:
            raise UnknownLedgerStateError(f"ledger {ledger} is in limbo: which entries it held is unknown")
        # The caches first: entries that a flush moves in between are found twice, never missed.
        cached = cached_ranges(self._write_cache, ledger)
        try:
            indexed = await indexed_ranges(self._index, ledger)
        except DamagedError as error:
            self._report(ledger, NO_ENTRY, error)
            raise
        if info.deleted:
            raise NoSuchLedgerError(f"ledger {ledger} was deleted")
        return join_ranges((cached, indexed)) if cached else indexed

    async def _readable(self, ledger: LedgerId) -> LedgerInfo:
        try:
            info = self._states.get(ledger) or await self._load(ledger)
        except DamagedError as error:
            self._report(ledger, NO_ENTRY, error)
            raise
        if info is None and self._is_limbo(ledger):
            raise UnknownLedgerStateError(f"ledger {ledger} may have been lost: this bookie is in limbo")
        if info is not None and info.deleted and info.limbo:
            raise UnknownLedgerStateError(f"ledger {ledger} may have been revived and lost: this bookie is in limbo")
        if info is None or info.deleted:
            raise NoSuchLedgerError(f"ledger {ledger} is not held here")
        return info

    def _in_memory(self, info: LedgerInfo, entry: EntryId) -> bytes | None:
        """Return the entry from a cache, without the cost of an await; None: `_read` looks further."""
        body = None if info.deleted else self.cached(info, entry)
        self._stats.reads += body is not None
        return body

    async def _read(self, info: LedgerInfo, entry: EntryId, expected_bytes: int = 0) -> bytes:
        self._stats.reads += 1
        try:
            body = self.cached(info, entry)
            if body is None:
                if entry < 0 or (entry > info.last_entry and not info.last_unproven):
                    raise NoSuchEntryError(f"ledger {info.ledger_id} has no entry {entry} here")
                body = await self._reader.read(info, entry, expected_bytes)
        except (NoSuchEntryError, DamagedError) as error:
            if info.deleted:  # in the meantime, and the entry with it
                raise NoSuchLedgerError(f"ledger {info.ledger_id} was deleted") from error
            if info.limbo and isinstance(error, NoSuchEntryError):
                raise UnknownLedgerStateError(
                    f"ledger {info.ledger_id} is in limbo: entry {entry} may have been lost"
                ) from error
            if isinstance(error, DamagedError):
                self._stats.reads_damaged += 1
                self._report(info.ledger_id, entry, error)
            raise
        if info.deleted:
            raise NoSuchLedgerError(f"ledger {info.ledger_id} was deleted")
        return body
