"""Reads of one ledger, closed or still being written. Never fences and never changes anything.

An open ledger is readable up to the last add confirmed that its bookies are known to have;
`read_last_add_confirmed` asks them again, and notices when the ledger was closed; `wait_for_lac` and `tail` wait until
there is more. Whoever holds the entries may change
under a reader: its writer and auto-recovery replace bookies. What no replica gives is therefore asked of those that the
metadata names by then.
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
    """See the module's text. Made by `LedgerClient.open_ledger`."""

    def __init__(self, handle: LedgerHandle, metadata: LedgerMetadata, lac: EntryId, length: int) -> None:
        """`lac` and `length` as known for a ledger that is not closed; a closed one's metadata says them."""
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
        """A reader that knows how far it may read. QuorumError when too few bookies answer."""
        reader = cls(handle, metadata, EntryId(metadata.segments[-1].first_entry - 1), 0)
        if not reader.is_closed:
            await reader._ask_bookies()
        return reader

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger."""
        return self._handle.ledger

    @property
    def metadata(self) -> LedgerMetadata:
        """As last read."""
        return self._metadata

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that may be read; NO_ENTRY while there is none. Never goes back."""
        return self._lac

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed: then it will never have other entries."""
        return self._metadata.state is LedgerState.CLOSED

    @property
    def length(self) -> int:
        """Payload bytes of the ledger; of one that is not closed as far as its bookies are known to have."""
        return self._length

    async def read(self, first: EntryId, last: EntryId, bytes_max: int | None = None) -> list[LedgerEntry]:
        """Entries `first` to `last` in order, or as many of them as fit `bytes_max`, at least one.

        NoSuchEntryError for ids beyond `last_add_confirmed`. When a replica is damaged or silent another one is asked;
        when none has a confirmed entry readable the error says why, and is NoSuchEntryError only if all of them
        answered that they do not have it. An error after the first entries shortens the answer instead of raising.
        """
        self._check_range(first, last)
        known = self._metadata
        followed = await read_where_stored(
            self._handle, known, lambda metadata: self._range.read(metadata, first, last, bytes_max)
        )
        if self._metadata is known:
            self._metadata = followed.metadata  # only its segments differ: `_take` is what notices a close
        return followed.entries

    async def read_stored(self, first: EntryId, last: EntryId, bytes_max: int) -> StoredRun | None:
        """As `read`, for whom the stored bytes are enough: no object is made of an entry. Digests are checked as well.

        None where no replica gives them in one piece: `read` gives them, or says why not.
        """
        self._check_range(first, last)
        return await self._range.read_stored(self._metadata, first, last, bytes_max)

    def take_confirmed(self, entry: EntryId) -> None:
        """Take it from whoever wrote the ledger that everything up to `entry` is confirmed: it knows before bookies do.

        NoSuchEntryError when the ledger is closed and ends before.
        """
        self._check_open()
        if self.is_closed and entry > self._lac:
            raise NoSuchEntryError(f"ledger {self.ledger_id} is closed at entry {self._lac}; there is no {entry}")
        self._lac = max(self._lac, entry)

    async def read_last_add_confirmed(self) -> EntryId:
        """Ask how far the ledger can be read by now. QuorumError, MetadataUnavailableError, NoSuchLedgerError."""
        return await self._refresh(explicit=False)

    async def read_explicit_lac(self) -> EntryId:
        """As `read_last_add_confirmed`, and also finds what a pausing writer told its bookies without an entry."""
        return await self._refresh(explicit=True)

    async def wait_for_lac(self, beyond: EntryId, timeout_s: float) -> EntryId:
        """Wait until more than `beyond` can be read, the ledger is closed, or the time is over; `last_add_confirmed`.

        Long polls at one bookie at a time: bookies and metadata that cannot be reached only make it wait. The last
        entries of a writer that pauses are heard of when it tells them (`explicit_lac_interval_s`), goes on, or closes.
        NoSuchLedgerError when it was deleted.
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
            # A close tells no bookie, and another ensemble may have the rest.
            with contextlib.suppress(MetadataError):
                self._take((await self._handle.nodes.read(self.ledger_id)).value)
            if not self.is_closed and loop.time() - began_s < LAC_POLL_S[0]:
                await asyncio.sleep(min(LAC_POLL_S[0], max(end_s - loop.time(), 0.0)))
            slice_s = min(slice_s * 2, slice_max_s)

    # ---- iterating
    def __aiter__(self) -> AsyncIterator[LedgerEntry]:
        """All entries that can be read now."""
        return self.entries()

    async def entries(self, first: EntryId = _FIRST, last: EntryId | None = None) -> AsyncGenerator[LedgerEntry, None]:
        """Entries from `first` to `last`, or to the last one that could be read when this began. Errors as `read`.

        Whoever has used up what the first read brought is taken to want more: from then on one read is ahead.
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
        """Entries from `first` on, waiting for more until the ledger is closed. Errors as `read`, NoSuchLedgerError."""
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
        """The reader."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()

    async def close(self) -> None:
        """No more reads through this handle. The ledger itself is left alone."""
        self._closed = True

    async def _refresh(self, *, explicit: bool) -> EntryId:
        self._check_open()
        if not self.is_closed:
            self._take((await self._handle.nodes.read(self.ledger_id)).value)
        if not self.is_closed:
            await self._ask_bookies(explicit=explicit)
        return self._lac

    def _take(self, metadata: LedgerMetadata) -> None:
        """The metadata as they are now, unless an older answer came late. NoSuchLedgerError: of another ledger."""
        if self.is_closed:
            return
        if metadata.is_another_than(self._metadata):
            raise NoSuchLedgerError(f"ledger {self.ledger_id} was deleted, and its id was given to another one")
        self._metadata = metadata
        if self.is_closed:
            self._lac, self._length = metadata.last_entry, metadata.length

    async def _ask_bookies(self, *, explicit: bool = False) -> None:
        found = await read_lac(self._handle.read_way, self._metadata, explicit=explicit)
        if self.is_closed:
            return  # noticed meanwhile by another task: its end counts
        self._lac = max(self._lac, found.lac)
        self._length = max(self._length, found.length)

    def _check_range(self, first: EntryId, last: EntryId) -> None:
        self._check_open()
        if not 0 <= first <= last or last > self._lac:
            raise NoSuchEntryError(
                f"entries {first} to {last} of ledger {self.ledger_id}: it can be read up to {self._lac}"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerClosedError(f"this reader of ledger {self.ledger_id} was closed")
