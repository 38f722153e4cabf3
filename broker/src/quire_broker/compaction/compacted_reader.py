"""Reads one compacted ledger by the positions that its entries have in the topic. Owns its handle; decides no position.

Its entries are in the order of these positions, so the first entry at or after one is found by bisection. Readers that
continue where a read ended find their place without one.
"""

import asyncio
from typing import TypeVar

from quire_bookie.model import EntryId, LedgerMetadata
from quire_broker.compaction.compacted_entry import decode
from quire_broker.managed_ledger.compacted_ledgers import Compacted, CompactedLedgers
from quire_broker.managed_ledger.ledger_port import Reader
from quire_broker.managed_ledger.position import Position, StoredEntry

K = TypeVar("K")
V = TypeVar("V")
PLACES_MAX = 1_000
"""Known positions of entries; the oldest is forgotten."""


class CompactedReader:
    """Reads the compacted ledger `of`. It is opened by the first read."""

    def __init__(self, ledgers: CompactedLedgers, of: Compacted) -> None:
        self.of = of
        self._ledgers = ledgers
        self._reader: Reader | None = None
        self._opening = asyncio.Lock()
        self._positions: dict[int, Position] = {}
        self._continued: dict[Position, int] = {}

    async def _opened(self) -> Reader:
        async with self._opening:
            if self._reader is None:
                self._reader = await self._ledgers.open(self.of.ledger_id)
            return self._reader

    @property
    def known_size(self) -> tuple[int, int]:
        """Its entries and its bytes; zeros before it is opened."""
        return (0, 0) if self._reader is None else (self._reader.last_add_confirmed + 1, self._reader.length)

    async def metadata(self) -> LedgerMetadata:
        """Return the metadata of the ledger. Errors of the ledger client."""
        return (await self._opened()).metadata

    async def size(self) -> tuple[int, int]:
        """Return its entries and its bytes. Errors of the ledger client."""
        await self._opened()
        return self.known_size

    async def read(self, start: Position, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        """Return entries from the first one at or after `start` on: at least one if there is one, [] after the last.

        PeerProtocolError for a damaged entry; errors of the ledger client.
        """
        reader = await self._opened()
        first = self._continued.get(start)
        if first is None:
            first = await self._find(reader, start)
        found = await self._read(reader, first, entries_max, bytes_max)
        if found:
            _remember(self._continued, found[-1].position.following, first + len(found))
        return found

    async def last(self) -> StoredEntry | None:
        """Return the last entry; None if compaction kept none."""
        reader = await self._opened()
        found = await self._read(reader, reader.last_add_confirmed, 1, 1) if reader.last_add_confirmed >= 0 else []
        return found[0] if found else None

    async def _read(self, reader: Reader, first: int, entries_max: int, bytes_max: int) -> list[StoredEntry]:
        last = min(reader.last_add_confirmed, first + entries_max - 1)
        if first > last:
            return []
        await self._ledgers.reserve(bytes_max)
        try:
            entries = await reader.read(EntryId(first), EntryId(last), bytes_max)
        finally:
            self._ledgers.give_back(bytes_max)
        return [decode(entry.payload) for entry in entries]

    async def _find(self, reader: Reader, start: Position) -> int:
        """Return the id of the first entry at or after a position; after the last entry if there is none."""
        low, high = 0, reader.last_add_confirmed + 1
        while low < high:
            middle = (low + high) // 2
            if await self._position_of(reader, middle) < start:
                low = middle + 1
            else:
                high = middle
        return low

    async def _position_of(self, reader: Reader, entry_id: int) -> Position:
        known = self._positions.get(entry_id)
        if known is None:
            known = (await self._read(reader, entry_id, 1, 1))[0].position
            _remember(self._positions, entry_id, known)
        return known

    async def close(self) -> None:
        """Release the handle."""
        async with self._opening:
            if self._reader is not None:
                await self._reader.close()
                self._reader = None


def _remember(places: dict[K, V], key: K, value: V) -> None:
    places[key] = value
    if len(places) > PLACES_MAX:
        del places[next(iter(places))]
