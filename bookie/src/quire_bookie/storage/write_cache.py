"""Holds entries that are not in an entry log yet, in two halves: one receives entries, one is being flushed.

Owns the memory of unflushed entries and its accounting. Never accesses a disk, never drops an entry: a half is emptied
only by `release`, after the index commit. Until then both halves serve lookups, the active one first because it is
newer.

Small entries are copied into chunks of 1 MiB, so that no entry needs a Python object: two arrays have its id and its
place, and the view into the socket's buffer is released. Larger entries are kept uncopied, unless they fill less than
half of the buffer that they pin; then they are copied. The whole retained buffer is charged, plus measured overheads:
32 bytes per entry in the arrays, 200 per entry kept as an object, 700 per ledger.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from mmap import mmap
from typing import Final

from quire_bookie.bulk import encode_runs, run_segments, store_entries, store_rows
from quire_bookie.bulk.plain import CHUNK_BYTES as CHUNK_BYTES
from quire_bookie.bulk.plain import PLACE_KEPT as _KEPT
from quire_bookie.bulk.plain import PLACE_SIZE_BITS as _SIZE_BITS
from quire_bookie.bulk.plain import PLACE_SIZE_MASK as _SIZE_MASK
from quire_bookie.bulk.plain_flushes import FlushRun
from quire_bookie.errors import TooManyRequestsError
from quire_bookie.model import NO_ENTRY, Buffer, EntryId, LedgerId, Run, RunBatch
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo

KEPT_ENTRY_BYTES_MIN: Final = 16 * 1024
"""Entries of at least this size are kept as objects: copying costs more than the object."""
ENTRY_OVERHEAD_BYTES: Final = 32
KEPT_OVERHEAD_BYTES: Final = 200
STRAY_OVERHEAD_BYTES: Final = 160
LEDGER_OVERHEAD_BYTES: Final = 700


class LedgerEntries:
    """The entries of one ledger in one half. `ids` ascends; later entries at or below its end are `strays`."""

    __slots__ = ("ids", "info", "places", "strays")

    def __init__(self, info: LedgerInfo) -> None:
        self.info = info
        self.ids = array("q")
        self.places = array("q")
        self.strays: dict[int, int] = {}

    def append(self, first: int, places: Sequence[int]) -> None:
        """Add entries above all others, from `first` on."""
        if self.strays:
            for entry in range(first, first + len(places)):
                self.strays.pop(entry, None)  # older than the new copy
        if len(places) == 1:
            self.ids.append(first)
            self.places.append(places[0])
        else:
            self.ids.extend(range(first, first + len(places)))
            self.places.extend(places)

    def find(self, entry: int) -> int | None:
        """Return the place of the newest copy of an entry."""
        if self.strays:
            place = self.strays.get(entry)
            if place is not None:
                return place
        index = bisect_left(self.ids, entry)
        if index < len(self.ids) and self.ids[index] == entry:
            return self.places[index]
        return None

    def in_order(self) -> "tuple[array[int], array[int]]":
        """Return the ids, ascending, and the places of their newest copies."""
        assert len(self.ids) == len(self.places), "each id has a place"
        if not self.strays:
            return self.ids, self.places
        newest = dict(zip(self.ids, self.places, strict=True))
        newest.update(self.strays)
        ids = array("q", sorted(newest))
        return ids, array("q", [newest[entry] for entry in ids])

    @property
    def last(self) -> EntryId:
        """The highest id."""
        return EntryId(max(self.ids[-1] if self.ids else NO_ENTRY, max(self.strays, default=NO_ENTRY)))


class CacheHalf:
    """One half: chunks of small entries, kept large ones, and the place of each entry."""

    def __init__(self, spare_chunks: list[bytearray]) -> None:
        self._spare = spare_chunks
        self._reset()

    def _reset(self) -> None:
        self._chunks: list[bytearray] = []
        self._end = 0
        self._limit = 0
        self._kept: list[Buffer] = []
        self._kept_bytes = 0
        self.ledgers: dict[LedgerId, LedgerEntries] = {}
        self.rewritten: dict[LedgerId, tuple[EntryId, EntryId]] = {}
        """First and last of the ids that were stored before; the range may include ids that were not."""
        self.charged_bytes = 0
        self.entries = 0
        self.payload_bytes = 0

    def note_rewritten(self, ledger: LedgerId, first: EntryId, last: EntryId) -> None:
        """Record ids that were stored before: cached reads of them are outdated once this half is flushed."""
        known = self.rewritten.get(ledger, (first, last))
        self.rewritten[ledger] = min(first, known[0]), max(last, known[1])

    def add(self, info: LedgerInfo, run: Run) -> None:
        """Add a run. Cannot fail."""
        entries, first = run.entries, run.first
        count = len(entries)
        held = self.ledgers.get(run.ledger)
        if held is None:
            held = self.ledgers[run.ledger] = LedgerEntries(info)
            self.charged_bytes += LEDGER_OVERHEAD_BYTES
        if run.size_bytes >= KEPT_ENTRY_BYTES_MIN * count:
            places: Sequence[int] = self._keep(run)
        elif count == 1:
            places = (self._copy_one(entries[0]),)
        else:
            places = self._copy(entries, run.size_bytes)
        ids = held.ids
        if not ids or first > ids[-1]:
            held.append(first, places)
        else:
            held.strays.update(zip(range(first, first + count), places, strict=True))
            self.charged_bytes += count * STRAY_OVERHEAD_BYTES
        self.entries += count
        self.payload_bytes += run.size_bytes
        self.charged_bytes += count * ENTRY_OVERHEAD_BYTES

    def add_batch(self, infos: Sequence[LedgerInfo], batch: RunBatch) -> None:
        """Add several runs in one copy, `infos` in the order of the rows. Cannot fail."""
        if self._end + batch.size_bytes > self._limit:
            if batch.size_bytes > CHUNK_BYTES // 4:
                for info, run in zip(infos, batch.runs(), strict=True):
                    self.add(info, run)
                return
            self._next_chunk()
        found = store_rows(self._chunks[-1], self._end % CHUNK_BYTES, self._end, batch.pieces, batch.entries)
        places = array("q")
        places.frombytes(found)
        self._end += batch.size_bytes
        ledgers = self.ledgers
        at = strays = number = 0
        for _records, rows in batch.pieces:
            for row in rows:
                first, count = row[1], row[2]
                held = ledgers.get(row[0])
                if held is None:
                    held = ledgers[row[0]] = LedgerEntries(infos[number])
                    self.charged_bytes += LEDGER_OVERHEAD_BYTES
                number += 1
                ids = held.ids
                if ids and first <= ids[-1]:
                    held.strays.update(zip(range(first, first + count), places[at : at + count], strict=True))
                    strays += count
                elif count == 1 and not held.strays:
                    ids.append(first)
                    held.places.append(places[at])
                else:
                    held.append(first, places[at : at + count])
                at += count
        assert at == batch.entries == len(places) and number == len(infos), "each entry has a place"
        self.entries += at
        self.payload_bytes += batch.size_bytes
        self.charged_bytes += batch.size_bytes + at * ENTRY_OVERHEAD_BYTES + strays * STRAY_OVERHEAD_BYTES

    def body(self, place: int) -> bytes:
        """Return a copy of the entry at a place; a copy, as chunks are reused after a flush."""
        if place & _KEPT:
            return bytes(self._kept[place ^ _KEPT])
        start, size = place >> _SIZE_BITS, place & _SIZE_MASK
        offset = start % CHUNK_BYTES
        return bytes(memoryview(self._chunks[start // CHUNK_BYTES])[offset : offset + size])

    def write_runs(self, target: mmap, at: int, salt: int, runs: list[FlushRun]) -> int:
        """Write the log records of some entries into `target` from `at` on; return the position after them."""
        return encode_runs(target, at, salt, runs, self._chunks, self._kept)

    def segments_of(self, runs: list[FlushRun], bytes_max: int) -> list[tuple[int, bytes]]:
        """Return the sizes of the records of some runs, and their index segments; see `bulk.run_segments`."""
        return run_segments(runs, self._kept, bytes_max)

    def sizes(self, places: Sequence[int]) -> list[int]:
        """Return the sizes in bytes of the entries at some places."""
        if max(places) < _KEPT:
            return [place & _SIZE_MASK for place in places]
        return [len(self._kept[p ^ _KEPT]) if p & _KEPT else p & _SIZE_MASK for p in places]

    def clear(self) -> None:
        """Remove all entries; the chunks are reused."""
        self._spare.extend(self._chunks)
        self._reset()

    def _copy_one(self, entry: Buffer) -> int:
        size = len(entry)
        if self._end + size > self._limit:
            self._next_chunk()
        end = self._end
        offset = end % CHUNK_BYTES
        self._chunks[-1][offset : offset + size] = entry
        self._end = end + size
        self.charged_bytes += size
        return end << _SIZE_BITS | size

    def _copy(self, entries: Sequence[Buffer], size_bytes: int) -> Sequence[int]:
        if self._end + size_bytes > self._limit:
            if size_bytes > CHUNK_BYTES // 4:
                # Such a large run would waste the rest of a chunk; entry by entry, at most one entry's size is wasted.
                return [
                    self._copy_one(entry) if len(entry) <= CHUNK_BYTES else self._keep_one(entry) for entry in entries
                ]
            self._next_chunk()
        places = array("q")
        places.frombytes(
            store_entries(
                self._chunks[-1],
                self._end % CHUNK_BYTES,
                self._end,
                entries if isinstance(entries, list) else list(entries),
            )
        )
        self._end += size_bytes
        self.charged_bytes += size_bytes
        return places

    def _next_chunk(self) -> None:
        assert self._end <= self._limit, "no entry extends beyond its chunk"
        self.charged_bytes += self._limit - self._end
        self._chunks.append(self._spare.pop() if self._spare else bytearray(CHUNK_BYTES))
        self._limit = len(self._chunks) * CHUNK_BYTES
        self._end = self._limit - CHUNK_BYTES

    def _keep_one(self, entry: Buffer) -> int:
        self._kept.append(bytes(entry))
        self.charged_bytes += len(entry) + KEPT_OVERHEAD_BYTES
        return _KEPT | len(self._kept) - 1

    def _keep(self, run: Run) -> list[int]:
        owners = {id(owner): len(owner) for owner in map(_owner, run.entries)}
        retained = sum(owners.values())
        at = len(self._kept)
        if run.size_bytes * 2 < retained:
            retained = run.size_bytes
            self._kept.extend(bytes(entry) for entry in run.entries)
        else:
            self._kept.extend(run.entries)
        # Large entries and spare chunks share one limit, so the former displace the latter.
        self._kept_bytes += retained
        while self._spare and self._kept_bytes >= CHUNK_BYTES:
            self._spare.pop()
            self._kept_bytes -= CHUNK_BYTES
        self.charged_bytes += retained + KEPT_OVERHEAD_BYTES * len(run.entries)
        return [_KEPT | index for index in range(at, len(self._kept))]


def _owner(entry: Buffer) -> bytes | bytearray:
    return entry.obj if isinstance(entry, memoryview) else entry  # type: ignore[return-value]


class WriteCache:
    """Owns both halves. `limit_bytes` is for the two together."""

    def __init__(self, limit_bytes: int) -> None:
        self._half_bytes = limit_bytes // 2
        self._spare: list[bytearray] = []
        self._active = CacheHalf(self._spare)
        self._other = CacheHalf(self._spare)
        self._flushing = False

    @property
    def active(self) -> CacheHalf:
        """The half that receives entries."""
        return self._active

    @property
    def flushing(self) -> CacheHalf | None:
        """The half that is being flushed, if any."""
        return self._other if self._flushing else None

    @property
    def active_share(self) -> float:
        """How much of the half that receives entries is used, from 0 to 1; a run larger than a half exceeds that."""
        return self._active.charged_bytes / self._half_bytes

    @property
    def charged_bytes(self) -> int:
        """The memory charged for both halves."""
        return self._active.charged_bytes + self._other.charged_bytes

    @property
    def spare_bytes(self) -> int:
        """The memory of chunks that wait to be reused."""
        return len(self._spare) * CHUNK_BYTES

    def has_space(self, run: Run | RunBatch) -> bool:
        """Return whether the active half can receive this run, or all of this batch. An empty half receives any."""
        active = self._active
        return active.charged_bytes + run.size_bytes <= self._half_bytes or not active.entries

    def put(self, info: LedgerInfo, run: Run) -> None:
        """Store a run in the active half; TooManyRequestsError if it has no space."""
        active = self._active
        if active.charged_bytes + run.size_bytes > self._half_bytes and active.entries:
            raise TooManyRequestsError("both halves of the write cache are full; a flush is running")
        active.add(info, run)

    def swap(self) -> CacheHalf:
        """Make the active half the one to flush. The other must be free."""
        assert not self._flushing, "the other half is still being flushed"
        assert not self._other.entries and not self._other.charged_bytes, "the half that becomes active is empty"
        self._active, self._other = self._other, self._active
        self._flushing = True
        return self._other

    def release(self) -> None:
        """Empty the flushed half: its entries are found through the index from now on."""
        assert self._flushing, "nothing is being flushed"
        assert self._other is not self._active, "the flushed half is not the active one"
        self._other.clear()
        self._flushing = False

    def get(self, ledger: LedgerId, entry: EntryId) -> bytes | None:
        """Return the newest unflushed copy of an entry."""
        for half in self._halves():
            held = half.ledgers.get(ledger)
            if held is not None:
                place = held.find(entry)
                if place is not None:
                    return half.body(place)
        return None

    def forget_ledger(self, ledger: LedgerId) -> None:
        """Drop a deleted ledger's unflushed entries; their memory is freed with the half. Not during a flush."""
        self._active.ledgers.pop(ledger, None)
        self._other.ledgers.pop(ledger, None)

    def last_entry(self, ledger: LedgerId) -> EntryId:
        """Return the highest unflushed id of a ledger, or NO_ENTRY."""
        return max((half.ledgers[ledger].last for half in self._halves() if ledger in half.ledgers), default=NO_ENTRY)

    def ids_of(self, ledger: LedgerId) -> list[Sequence[int]]:
        """Return the unflushed ids of a ledger, ascending, of each half; those of the active half may grow later."""
        return [half.ledgers[ledger].in_order()[0] for half in self._halves() if ledger in half.ledgers]

    def _halves(self) -> Iterator[CacheHalf]:
        yield self._active
        if self._flushing:
            yield self._other
