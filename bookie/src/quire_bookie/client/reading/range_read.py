"""Reads consecutive entries in order: batch reads if every bookie holds every entry (E == Qw), otherwise single reads.

A range read returns a prefix of the requested range: all of it, or as much as fits `bytes_max`, at least one entry.
Single reads in flight are bounded by the expected bytes of their responses. A batch that fails, ends early or contains
a wrong digest is continued by single reads from the other replicas, entry by entry.
"""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from quire_bookie.client.entry_read import EntryRead, ReadWay
from quire_bookie.client.ledger_entry import LedgerEntry, StoredRun
from quire_bookie.client.reading.batch_read import Batch, BatchRead, Decode
from quire_bookie.client.speculation import Speculation
from quire_bookie.errors import LedgerError
from quire_bookie.limits import KIB
from quire_bookie.model import BookieId, EntryId, LedgerMetadata
from quire_bookie.quorum.write_set import write_set
from quire_bookie.settings.client import ClientSettings

_Entry = TypeVar("_Entry")
_EXPECTED_ENTRY_BYTES = 16 * KIB
_ENTRY_OVERHEAD_BYTES = 64
_ORDER_KEPT_S = 1.0  # observations of replicas expire, so their order is computed again


class RangeReader:
    """Reads ranges of one ledger. Prefers the replica that returned the last batch until it fails."""

    def __init__(self, way: ReadWay, settings: ClientSettings) -> None:
        self._way = way
        self._settings = settings
        self.speculation = Speculation(way.links, settings)
        """Watches the reads of this reader."""
        self._sticky: BookieId | None = None
        self._orders: dict[int, list[BookieId]] = {}
        self._ordered: Sequence[BookieId] = ()
        self._orders_version = -1
        self._orders_until_s = 0.0
        self._expected_bytes = _EXPECTED_ENTRY_BYTES

    async def read(
        self, metadata: LedgerMetadata, first: EntryId, last: EntryId, bytes_max: int | None
    ) -> list[LedgerEntry]:
        """Return entries from `first` to at most `last`, in order. The caller has checked that they are confirmed.

        If no replica returns an entry, returns the entries before it, or raises its error if it is the first one.
        """
        entries: list[LedgerEntry] = []
        budget = bytes_max
        while True:
            start = EntryId(first + len(entries))
            stop = _segment_end(metadata, start, last)
            found, used, error = await self._read_segment(metadata, start, stop, budget)
            assert len(found) <= stop - start + 1, "a read returns no more than it was asked for"
            entries += found
            if error is not None and not entries:
                raise error
            if error is not None or start + len(found) > last or len(found) < stop - start + 1:
                return entries
            if budget is not None:
                budget -= used
                if budget <= 0:
                    return entries

    async def read_stored(
        self, metadata: LedgerMetadata, first: EntryId, last: EntryId, bytes_max: int
    ) -> StoredRun | None:
        """Read one batch as `read` does, but return its stored bytes; digests are verified as well.

        None if no replica returns a batch, or the ledger is striped; use `read` then.
        """
        if metadata.ensemble_size != metadata.write_quorum:
            return None
        stop = _segment_end(metadata, first, last)
        size_max = min(bytes_max, self._settings.batch_read_bytes_max)
        ensemble = metadata.ensemble_of(first)
        batch = await self._read_batch(metadata, ensemble, first, stop, size_max, self._way.check_batch)
        return None if batch is None else StoredRun(first, batch.entries, batch.payload_bytes)

    async def _read_segment(
        self, metadata: LedgerMetadata, first: EntryId, last: EntryId, bytes_max: int | None
    ) -> tuple[list[LedgerEntry], int, LedgerError | None]:
        """Return entries, the bytes that they use of `bytes_max`, and the error that ended the read early."""
        ensemble = metadata.ensemble_of(first)
        entries: list[LedgerEntry] = []
        used = 0
        if metadata.ensemble_size == metadata.write_quorum and last > first:
            entries, used = await self._read_batches(metadata, ensemble, first, last, bytes_max)
            if entries and (entries[-1].entry_id == last or (bytes_max is not None and used >= bytes_max)):
                return entries, used, None
            if entries and bytes_max is not None:
                bytes_max -= used
        single = _SingleReads(self, metadata, ensemble, EntryId(first + len(entries)), last, bytes_max)
        found, error = await single.run()
        return entries + found, used + single.used, error

    async def _read_batches(
        self,
        metadata: LedgerMetadata,
        ensemble: Sequence[BookieId],
        first: EntryId,
        last: EntryId,
        bytes_max: int | None,
    ) -> tuple[list[LedgerEntry], int]:
        """Return as many entries as batches provide, possibly none, and the bytes that they use of `bytes_max`.

        If a replica fails, the next one continues after the last valid entry.
        """
        entries: list[LedgerEntry] = []
        used = 0
        while (start := EntryId(first + len(entries))) <= last:
            size_max = self._settings.batch_read_bytes_max
            if bytes_max is not None:
                # A bookie returns the first entry regardless of its size; a limit of 0 means exactly one entry.
                size_max = min(size_max, max(bytes_max - used, 0))
            batch = await self._read_batch(metadata, ensemble, start, last, size_max, self._way.decode_batch)
            if batch is None:
                return entries, used
            entries += batch.entries
            used += batch.payload_bytes + len(batch.entries) * _ENTRY_OVERHEAD_BYTES
            if bytes_max is not None and used >= bytes_max:
                return entries, used
        return entries, used

    async def _read_batch(
        self,
        metadata: LedgerMetadata,
        ensemble: Sequence[BookieId],
        first: EntryId,
        last: EntryId,
        size_max: int,
        decode: Decode[_Entry],
    ) -> Batch[_Entry] | None:
        replicas = self.replicas(metadata, ensemble, first)
        read = BatchRead(self._way, first, last - first + 1, size_max, replicas, self.speculation, decode)
        batch = await read.run()
        if batch is not None:
            # A bookie with a damaged entry is not preferred for the next batch, which begins with that entry.
            self._prefer(None if batch.is_damaged else batch.bookie)
        return batch

    def _prefer(self, bookie: BookieId | None) -> None:
        if bookie != self._sticky:
            self._sticky = bookie
            self._orders.clear()

    def replicas(self, metadata: LedgerMetadata, ensemble: Sequence[BookieId], entry: EntryId) -> list[BookieId]:
        """Return the replicas of `entry` in the order in which to read from them; see `ReplicaHealth.order`."""
        health, now_s = self._way.links.health, self._way.links.now_s()
        if health.version != self._orders_version or now_s >= self._orders_until_s or ensemble is not self._ordered:
            self._orders.clear()
            self._ordered = ensemble
            self._orders_version, self._orders_until_s = health.version, now_s + _ORDER_KEPT_S
        begins = entry % metadata.ensemble_size
        order = self._orders.get(begins)
        if order is None:
            replicas = [ensemble[p] for p in write_set(entry, metadata.ensemble_size, metadata.write_quorum)]
            order = self._orders[begins] = health.order(replicas, self._sticky)
        return order

    def window(self, bytes_max: int | None) -> int:
        """Return how many single reads may be in flight if at most `bytes_max` are wanted."""
        settings = self._settings
        size_bytes = settings.read_window_bytes if bytes_max is None else min(settings.read_window_bytes, bytes_max)
        return max(1, min(settings.read_entries_in_flight_max, size_bytes // self._expected_bytes))

    def learn(self, size_bytes: int) -> None:
        """Update the expected entry size, from which the window is computed."""
        self._expected_bytes = max(1, (self._expected_bytes * 3 + size_bytes + _ENTRY_OVERHEAD_BYTES) // 4)

    @property
    def way(self) -> ReadWay:
        """Parameters of the reads."""
        return self._way


class _SingleReads:
    """Reads one range entry by entry, with a window of reads in flight."""

    def __init__(
        self,
        reader: RangeReader,
        metadata: LedgerMetadata,
        ensemble: Sequence[BookieId],
        first: EntryId,
        last: EntryId,
        bytes_max: int | None,
    ) -> None:
        self._reader = reader
        self._metadata = metadata
        self._ensemble = ensemble
        self._next_read: int = first
        self._next_use: int = first
        self._last = last
        self._bytes_left = bytes_max
        self.used = 0
        """Bytes of `bytes_max` that the entries use."""
        self._ready: dict[int, LedgerEntry | LedgerError] = {}
        self._entries: list[LedgerEntry] = []
        self._error: LedgerError | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._filling = False

    async def run(self) -> tuple[list[LedgerEntry], LedgerError | None]:
        """Read the range. Return the entries in order and the error that ended the read early."""
        self._fill()
        await self._done
        assert self._next_use <= min(self._next_read, self._last + 1), "only entries that were read are used"
        return self._entries, self._error

    def _fill(self) -> None:
        if self._filling:
            return  # a response arrived within `start`; the running loop below continues
        self._filling = True
        while not self._done.done() and self._next_read <= min(
            self._last, self._next_use + self._reader.window(self._bytes_left) - 1
        ):
            entry = EntryId(self._next_read)
            self._next_read += 1
            replicas = self._reader.replicas(self._metadata, self._ensemble, entry)
            EntryRead(self._reader.way, entry, replicas, self._got, speculation=self._reader.speculation).start()
        self._filling = False

    def _got(self, entry: EntryId, result: LedgerEntry | LedgerError) -> None:
        if self._done.done():
            return
        self._ready[entry] = result
        while (ready := self._ready.pop(self._next_use, None)) is not None:
            if isinstance(ready, LedgerError):
                self._error = ready
                self._done.set_result(None)
                return
            size_bytes = len(ready.payload) + _ENTRY_OVERHEAD_BYTES
            self._reader.learn(size_bytes)
            self._entries.append(ready)
            self._next_use += 1
            self.used += size_bytes
            if self._bytes_left is not None:
                self._bytes_left -= size_bytes
            if self._next_use > self._last or (self._bytes_left is not None and self._bytes_left <= 0):
                self._done.set_result(None)
                return
        self._fill()


def _segment_end(metadata: LedgerMetadata, first: EntryId, last: EntryId) -> EntryId:
    for segment in metadata.segments:
        if segment.first_entry > first:
            return EntryId(min(last, segment.first_entry - 1))
    return last
