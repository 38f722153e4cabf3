"""Reads one ledger, closed or still being written. Never fences and never changes anything.

An open ledger is readable up to the LAC that its bookies are known to have. `read_last_add_confirmed` asks them again
and notices when the ledger was closed; `wait_for_lac` and `tail` wait for more entries. The writer and auto-recovery
may replace bookies while a reader is open. Entries that no known replica returns are therefore read again from the
replicas in the current metadata.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Self

from quire_bookie.client.ledger_entry import LedgerEntry, StoredRun
from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.reading.lac_poll import LacPolls
from quire_bookie.client.reading.lac_read import read_lac
from quire_bookie.client.reading.moved_replicas import read_where_stored
from quire_bookie.client.reading.range_read import RangeReader
from quire_bookie.errors import LedgerClosedError, MetadataError, NoSuchEntryError, NoSuchLedgerError
from quire_bookie.limits import ITERATED_READ_BYTES, LAC_POLL_S
from quire_bookie.model import EntryId, LedgerId, LedgerMetadata, LedgerState

_FIRST = EntryId(0)


class LedgerReader:
    """Reads one ledger. Created by `LedgerClient.open_ledger`."""

    def __init__(self, handle: LedgerHandle, metadata: LedgerMetadata, lac: EntryId, length: int) -> None:
        """`lac` and `length`: as known so far; ignored for a closed ledger, whose metadata contain them."""
        self._handle = handle
        self._metadata = metadata
        closed = metadata.state is LedgerState.CLOSED
        self._lac = metadata.last_entry if closed else lac
        self._length = metadata.length if closed else length
        self._range = RangeReader(handle.read_way, handle.settings)
        self._polls = LacPolls(handle.read_way)
        self._closed = False

    @classmethod
    async def open(cls, handle: LedgerHandle, metadata: LedgerMetadata) -> "LedgerReader":
        """Create a reader and find how far the ledger can be read. QuorumError if too few bookies respond."""
        reader = cls(handle, metadata, EntryId(metadata.segments[-1].first_entry - 1), 0)
        if not reader.is_closed:
            await reader._ask_bookies()
        return reader

    @property
    def ledger_id(self) -> LedgerId:
        """The id of the ledger."""
        return self._handle.ledger

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as last read."""
        return self._metadata

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that may be read; NO_ENTRY if there is none. Never decreases."""
        return self._lac

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed, so that its entries are final."""
        return self._metadata.state is LedgerState.CLOSED

    @property
    def length(self) -> int:
        """Payload bytes of the ledger; for an open one, as far as known from its bookies."""
        return self._length

    async def read(self, first: EntryId, last: EntryId, bytes_max: int | None = None) -> list[LedgerEntry]:
        """Return entries `first` to `last` in order, or those that fit `bytes_max`, at least one.

        NoSuchEntryError for ids beyond `last_add_confirmed`. If a replica is damaged or silent, another one is read. If
        no replica returns a confirmed entry, the error has the reasons; it is a NoSuchEntryError only if all of them
        reported that they lack it. An error after the first entries shortens the result instead of raising.
        """
        self._check_range(first, last)
        known = self._metadata
        followed = await read_where_stored(
            self._handle, known, lambda metadata: self._range.read(metadata, first, last, bytes_max)
        )
        if self._metadata is known:
            self._metadata = followed.metadata  # only the segments differ: `_take` notices a close
        return followed.entries

    async def read_stored(self, first: EntryId, last: EntryId, bytes_max: int) -> StoredRun | None:
        """Read as `read` does, but return the stored bytes without decoding entries. Digests are verified as well.

        None if no replica returns them in one response; use `read` then, which returns the entries or the reason.
        """
        self._check_range(first, last)
        return await self._range.read_stored(self._metadata, first, last, bytes_max)

    def take_confirmed(self, entry: EntryId) -> None:
        """Accept from the ledger's writer, which knows it before the bookies do, that `entry` is confirmed.

        NoSuchEntryError if the ledger is closed and ends before `entry`.
        """
        self._check_open()
        if self.is_closed and entry > self._lac:
            raise NoSuchEntryError(f"ledger {self.ledger_id} is closed at entry {self._lac}; there is no {entry}")
        self._lac = max(self._lac, entry)

    async def read_last_add_confirmed(self) -> EntryId:
        """Update and return `last_add_confirmed`. QuorumError, MetadataUnavailableError, NoSuchLedgerError."""
        return await self._refresh(explicit=False)

    async def read_explicit_lac(self) -> EntryId:
        """Update as `read_last_add_confirmed` does, including the explicit LAC that a pausing writer sent."""
        return await self._refresh(explicit=True)

    async def wait_for_lac(self, beyond: EntryId, timeout_s: float) -> EntryId:
        """Wait until entries beyond `beyond` can be read, the ledger is closed, or the time is over.

        Returns `last_add_confirmed`. Long polls at one bookie at a time; unreachable bookies and metadata only delay
        it. The last entries of a pausing writer are found when it sends its LAC (`explicit_lac_interval_s`), continues,
        or closes. NoSuchLedgerError if the ledger was deleted.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        slice_s, slice_max_s = LAC_POLL_S
        while True:
            self._check_open()
            began_s = loop.time()
            if self._lac > beyond or self.is_closed or began_s >= end_s:
                return self._lac
            left_s = end_s - began_s
            lac = await self._polls.wait(self._metadata, max(beyond, self._lac), min(slice_s, left_s))
            self._lac = max(self._lac, lac)
            if self._lac > beyond:
                return self._lac
            # Bookies are not informed of a close, and another ensemble may have the further entries.
            with contextlib.suppress(MetadataError):
                self._take((await self._handle.nodes.read(self.ledger_id)).value)
            if not self.is_closed and loop.time() - began_s < LAC_POLL_S[0]:
                await asyncio.sleep(min(LAC_POLL_S[0], max(end_s - loop.time(), 0.0)))
            slice_s = min(slice_s * 2, slice_max_s)

    # ---- iterating
    def __aiter__(self) -> AsyncIterator[LedgerEntry]:
        """Iterate over all entries that can be read now."""
        return self.entries()

    async def entries(self, first: EntryId = _FIRST, last: EntryId | None = None) -> AsyncGenerator[LedgerEntry, None]:
        """Yield entries from `first` to `last`, or to the last one readable at the start. Errors as `read`.

        After the caller has consumed the entries of the first read, the next read is always started ahead.
        """
        stop = self._lac if last is None else last
        position = first
        ahead: asyncio.Task[list[LedgerEntry]] | None = None
        try:
            while position <= stop:
                found = await (ahead or self.read(position, stop, ITERATED_READ_BYTES))
                ahead, position = None, EntryId(found[-1].entry_id + 1)
                if found[0].entry_id != first and position <= stop:
                    read = self.read(position, stop, ITERATED_READ_BYTES)
                    ahead = asyncio.get_running_loop().create_task(read, name="read ahead")
                for entry in found:
                    yield entry
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    async def tail(self, first: EntryId = _FIRST) -> AsyncGenerator[LedgerEntry, None]:
        """Yield entries from `first` on and wait for more until the ledger is closed. Errors as `read`, and
        NoSuchLedgerError.
        """
        position = first
        while True:
            async with contextlib.aclosing(self.entries(position)) as entries:
                async for entry in entries:
                    yield entry
                    position = EntryId(entry.entry_id + 1)
            if position > self._lac:
                if self.is_closed:
                    return
                await self.wait_for_lac(EntryId(position - 1), LAC_POLL_S[1])

    async def __aenter__(self) -> Self:
        """Return the reader."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the reader."""
        await self.close()

    async def close(self) -> None:
        """Refuse further reads through this reader. The ledger itself is unchanged."""
        self._closed = True

    async def _refresh(self, *, explicit: bool) -> EntryId:
        self._check_open()
        if not self.is_closed:
            self._take((await self._handle.nodes.read(self.ledger_id)).value)
        if not self.is_closed:
            await self._ask_bookies(explicit=explicit)
        return self._lac

    def _take(self, metadata: LedgerMetadata) -> None:
        """Use newly read metadata, unless the ledger is known to be closed. NoSuchLedgerError if of another ledger."""
        if self.is_closed:
            return
        if metadata.is_another_than(self._metadata):
            raise NoSuchLedgerError(f"ledger {self.ledger_id} was deleted, and another ledger has its id")
        self._metadata = metadata
        if self.is_closed:
            self._lac, self._length = metadata.last_entry, metadata.length

    async def _ask_bookies(self, *, explicit: bool = False) -> None:
        found = await read_lac(self._handle.read_way, self._metadata, explicit=explicit)
        if self.is_closed:
            return  # another task noticed the close meanwhile: the end in the metadata counts
        self._lac = max(self._lac, found.lac)
        self._length = max(self._length, found.length)

    def _check_range(self, first: EntryId, last: EntryId) -> None:
        self._check_open()
        if not 0 <= first <= last or last > self._lac:
            raise NoSuchEntryError(
                f"entries {first} to {last} of ledger {self.ledger_id}: readable up to entry {self._lac}"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerClosedError(f"this reader of ledger {self.ledger_id} was closed")
