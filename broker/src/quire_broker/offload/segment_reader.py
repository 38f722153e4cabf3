"""Reads entries of an offloaded ledger by range requests. Never returns an entry whose id is not the expected one.

Within a block an entry is found by going from head to head. The reader remembers the reached position, one per window,
so that a search reads a block at most once. Incomplete data is an error: a missing object is
SegmentMissingError, one with other content SegmentDamagedError, and neither is ever *no such entry*.
"""

from bisect import bisect_right, insort
from collections.abc import AsyncIterator
from typing import NamedTuple

from quire_bookie.crc import crc32c
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import NoSuchEntryError, ObjectMissingError
from quire_bookie.limits import MIB
from quire_bookie.model import Buffer, EntryId, LedgerId, LedgerMetadata
from quire_bookie.object_store.store import ObjectStore
from quire_broker.errors import SegmentDamagedError, SegmentMissingError
from quire_broker.offload.format import (
    ENTRY_HEAD_BYTES,
    HEADER_BYTES,
    SegmentIndex,
    check_block,
    data_key,
    decode_index,
    entry_head,
    index_key,
)
from quire_broker.offload.segment_writer import Pace
from quire_broker.offload.windows import WindowCache

SCAN_BYTES = 4 * MIB
INDEX_BYTES_MAX = 64 * MIB
"""Three million blocks: a ledger of 15 TiB."""
ENTRY_BYTES_MAX = 128 * MIB
_ENTRY_COST_MIN = 64
"""What a returned entry costs besides its payload: a block may hold millions of entries without one."""
_FIRST = EntryId(0)


class SegmentEntry(NamedTuple):
    """One entry. `payload` may be a view that keeps a window alive."""

    entry_id: EntryId
    payload: Buffer


@dataclass(slots=True)
class Verified:
    """Result of a complete verification. `crc`: the CRC32C of all payloads in order, as the writer computes it."""

    entries: int = 0
    payload_bytes: int = 0
    crc: int = 0


class SegmentReader:
    """Reads one segment. `open` reads its index; the data is read on demand."""

    def __init__(
        self, objects: ObjectStore, ledger_id: LedgerId, uuid: str, index: SegmentIndex, cache: WindowCache
    ) -> None:
        """Use `open`."""
        self.ledger_id = ledger_id
        self.uuid = uuid
        self.index = index
        self._objects = objects
        self._key = data_key(uuid, ledger_id)
        self._windows = cache.open(index.data_bytes, self._fetch)
        self._firsts = [block.first_entry for block in index.blocks]
        self._offsets: list[tuple[int, int]] = []  # (entry, offset of its head), at most one per window
        self._marked: set[int] = set()  # the windows that have one
        self._checked: set[int] = set()  # blocks with a verified header

    @classmethod
    async def open(cls, objects: ObjectStore, ledger_id: LedgerId, uuid: str, cache: WindowCache) -> "SegmentReader":
        """Read the index. SegmentMissingError, SegmentDamagedError, ObjectStoreError."""
        name = index_key(uuid, ledger_id)
        try:
            value = await objects.get_range(name, 0, INDEX_BYTES_MAX + 1)
        except ObjectMissingError as error:
            raise SegmentMissingError(f"{objects.url}: {name} is missing") from error
        try:
            if len(value) > INDEX_BYTES_MAX:
                raise SegmentDamagedError(f"an index of more than {INDEX_BYTES_MAX} bytes")
            index = decode_index(bytes(value))
        except SegmentDamagedError as error:
            raise SegmentDamagedError(f"{objects.url}: {name}: {error}") from error
        return cls(objects, ledger_id, uuid, index, cache)

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata at the time of the offload."""
        return self.index.metadata

    @property
    def last_add_confirmed(self) -> EntryId:
        """The id of the last entry."""
        return self.index.metadata.last_entry

    @property
    def length(self) -> int:
        """The payload bytes of all entries."""
        return self.index.metadata.length

    async def read(self, first: EntryId, last: EntryId, bytes_max: int | None = None) -> list[SegmentEntry]:
        """Return entries `first` to `last` in order, or as many of them as fit `bytes_max`, at least one.

        NoSuchEntryError beyond the last; SegmentMissingError, SegmentDamagedError, ObjectStoreError.
        """
        if not 0 <= first <= last or last > self.last_add_confirmed:
            raise NoSuchEntryError(
                f"entries {first} to {last} of ledger {self.ledger_id}: it has 0 to {self.last_add_confirmed}"
            )
        found: list[SegmentEntry] = []
        room = self.length + _ENTRY_COST_MIN * (last - first + 1) if bytes_max is None else bytes_max
        block = bisect_right(self._firsts, first) - 1
        entry, at = self._nearest(first, block)
        while entry <= last and room >= 0:
            end = self.index.end_of(block)
            entry, at, room = await self._take_from_window(found, entry, at, end, (first, last, room))
            if entry > last or room < 0:
                break
            length = -1 if end - at < ENTRY_HEAD_BYTES else await self._length_at(at, entry, end)
            if length < 0:
                block += 1
                self._expect_block(block, entry)
                await self._check_block(block)
                at = self.index.blocks[block].offset + HEADER_BYTES
                continue
            if entry >= first:
                room -= max(length, _ENTRY_COST_MIN)
                if room < 0 and found:
                    break
                found.append(SegmentEntry(EntryId(entry), await self._bytes(at + ENTRY_HEAD_BYTES, length)))
            at += ENTRY_HEAD_BYTES + length
            entry += 1
        return found

    async def _take_from_window(
        self, found: list[SegmentEntry], entry: int, at: int, end: int, wanted: tuple[int, int, int]
    ) -> tuple[int, int, int]:
        """Take the entries that are completely in the window of `at`.

        Return the next entry, its offset, and the remaining bytes. Stops before anything other than the expected entry,
        which the slow path handles.
        """
        first, last, room = wanted
        width = self._windows.window_bytes
        index = at // width
        window = await self._windows.window(index)
        base = index * width
        limit = min(len(window), end - base)
        position = at - base
        make = SegmentEntry._make
        while entry <= last and position + ENTRY_HEAD_BYTES <= limit:
            length, entry_id = entry_head(window, position)
            stop = position + ENTRY_HEAD_BYTES + length
            if length < 0 or stop > limit or entry_id != entry:
                break
            if entry >= first:
                room -= max(length, _ENTRY_COST_MIN)
                if room < 0 and found:
                    break
                found.append(make((entry, window[position + ENTRY_HEAD_BYTES : stop])))
            position = stop
            entry += 1
        self._remember(entry, base + position)
        return entry, base + position, room

    async def scan(
        self, first: EntryId = _FIRST, last: EntryId | None = None, bytes_max: int = SCAN_BYTES
    ) -> AsyncIterator[list[SegmentEntry]]:
        """Yield all entries from `first` to `last` (or the end), in runs of about `bytes_max`. Errors as in `read`."""
        stop = self.last_add_confirmed if last is None else last
        at = first
        while at <= stop:
            run = await self.read(at, stop, bytes_max)
            at = EntryId(run[-1].entry_id + 1)
            yield run

    async def verify(self, pace: Pace | None = None) -> Verified:
        """Read the whole segment. SegmentDamagedError if it does not match its index; other errors as in `read`.

        `pace`: awaited with the bytes of each window.
        """
        found = Verified()
        ends = [*self._firsts[1:], self.last_add_confirmed + 1]
        for block, end_entry in enumerate(ends):
            await self._check_block(block)
            await self._verify_block(block, end_entry, found, pace)
        if found.payload_bytes != self.length:
            raise SegmentDamagedError(f"{self._key} holds {found.payload_bytes} bytes; its index says {self.length}")
        return found

    async def _verify_block(self, block: int, end_entry: int, found: Verified, pace: Pace | None) -> None:
        """Read a block from head to head, using each entry only for the checksum."""
        width = self._windows.window_bytes
        entry, at = self._firsts[block], self.index.blocks[block].offset + HEADER_BYTES
        end, crc = self.index.end_of(block), found.crc
        while entry < end_entry:
            window = await self._windows.window(at // width)
            if pace is not None:
                await pace(len(window))
            base = at - at % width
            limit, position = min(len(window), end - base), at - base
            while entry < end_entry and position + ENTRY_HEAD_BYTES <= limit:
                length, entry_id = entry_head(window, position)
                stop = position + ENTRY_HEAD_BYTES + length
                if length < 0 or stop > limit or entry_id != entry:
                    break
                crc = crc32c(window[position + ENTRY_HEAD_BYTES : stop], crc)
                found.payload_bytes += length
                position = stop
                entry += 1
            at = base + position
            if entry < end_entry and at // width == base // width:  # it continues in the next window, or is damaged
                length = -1 if end - at < ENTRY_HEAD_BYTES else await self._length_at(at, entry, end)
                if length < 0:
                    raise SegmentDamagedError(f"{self._objects.url}: {self._key} ends a block before entry {end_entry}")
                crc = crc32c(await self._bytes(at + ENTRY_HEAD_BYTES, length), crc)
                found.payload_bytes += length
                at += ENTRY_HEAD_BYTES + length
                entry += 1
        found.entries += end_entry - self._firsts[block]
        found.crc = crc

    async def check_ends(self) -> None:
        """Check that the data object exists with the index's length, and begins correctly. Errors as in `read`."""
        await self._check_block(0)
        await self._bytes(self.index.data_bytes - 1, 1)

    async def close(self) -> None:
        """Drop cached data of the segment."""
        self._windows.close()

    # ---- finding
    def _nearest(self, first: int, block: int) -> tuple[int, int]:
        """Return a known offset in the block at or before the entry; the block's start if none is nearer."""
        start = self.index.blocks[block]
        begin = (start.first_entry, start.offset + HEADER_BYTES)
        index = bisect_right(self._offsets, (first, self.index.data_bytes)) - 1
        return max(begin, self._offsets[index]) if index >= 0 else begin

    def _remember(self, entry: int, at: int) -> None:
        window = at // self._windows.window_bytes
        if window not in self._marked:
            self._marked.add(window)
            insort(self._offsets, (entry, at))

    def _expect_block(self, block: int, entry: int) -> None:
        if block >= len(self.index.blocks) or self.index.blocks[block].first_entry != entry:
            raise SegmentDamagedError(f"{self._objects.url}: {self._key} ends a block before entry {entry}")

    async def _check_block(self, block: int) -> None:
        if block in self._checked:
            return
        known = self.index.blocks[block]
        head = await self._bytes(known.offset, HEADER_BYTES)
        check_block(head, known.first_entry, self.index.end_of(block) - known.offset)
        self._checked.add(block)

    async def _length_at(self, at: int, entry: int, end: int) -> int:
        """Return the payload length of `entry`, whose head is expected at `at`; negative: padding up to `end`."""
        length, entry_id = entry_head(await self._bytes(at, ENTRY_HEAD_BYTES), 0)
        if length < 0:
            return length
        if entry_id != entry or at + ENTRY_HEAD_BYTES + length > end or length > ENTRY_BYTES_MAX:
            raise SegmentDamagedError(
                f"{self._objects.url}: {self._key} has entry {entry_id} of {length} bytes at {at} instead of {entry}"
            )
        return length

    # ---- bytes
    async def _bytes(self, at: int, size: int) -> memoryview:
        """Return a range of the data object, from one window or joined."""
        width = self._windows.window_bytes
        index, skip = divmod(at, width)
        window = await self._windows.window(index)
        if skip + size <= len(window):
            return window[skip : skip + size]
        pieces = bytearray(window[skip:])
        while len(pieces) < size and len(window) == width:
            index += 1
            window = await self._windows.window(index)
            pieces += window[: size - len(pieces)]
        if len(pieces) < size:
            raise SegmentDamagedError(f"{self._objects.url}: {self._key} ends before {at + size}")
        return memoryview(pieces)

    async def _fetch(self, start: int, end: int) -> Buffer:
        try:
            return await self._objects.get_range(self._key, start, end)
        except ObjectMissingError as error:
            raise SegmentMissingError(f"{self._objects.url}: {self._key} is missing") from error
