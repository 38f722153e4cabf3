"""Caches entries of entry logs in the stretches in which they were read, bounded by bytes.

Owns memory only. An extent keeps the raw bytes of one disk read and the positions of the intact records in it. Each
record is checked once, after the disk read (`Extent.checked`), so that reads from memory compute no checksum. A damaged
record is in no extent: a read of it goes to the disk and receives the error.

Eviction is least recently used, in two classes: recently written entries, which tail readers need, and older ones. Each
class may use the space that the other leaves, and neither evicts the other below half of the cache: a reader that
catches up from the oldest entry does not send the tail readers to the disk.
"""

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from quire_bookie.bulk import check_records
from quire_bookie.dataclass import dataclass
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.storage.formats.index_keys import BLOCK_SHIFT

EXTENT_OVERHEAD_BYTES: Final = 600
BLOCK_OVERHEAD_BYTES: Final = 300
POSITION_OVERHEAD_BYTES: Final = 24
"""Bytes per entry in the three arrays of an extent."""


@dataclass(slots=True, eq=False)
class Extent:
    """Intact records of one ledger from one disk read.

    All arrays are int64. `ids` ascend; `starts` (in `data`) and `sizes` are those of the bodies. `recent`: recently
    written. `window_bytes`: size of the read-ahead of a sequential reader, 0 for other reads. `followed`: the stretch
    after it was requested, or is not needed.
    """

    ledger: LedgerId
    data: bytes
    ids: "array[int]"
    starts: "array[int]"
    sizes: "array[int]"
    recent: bool = False
    window_bytes: int = 0
    followed: bool = False

    @classmethod
    def checked(
        cls,
        ledger: LedgerId,
        salt: int,
        data: bytes,
        ids: "array[int]",
        starts: "array[int]",
        sizes: "array[int]",
    ) -> "Extent":
        """Return an extent of the intact records, possibly none."""
        damaged = check_records(data, salt, ledger, ids, starts, sizes)
        for index in reversed(damaged):
            del ids[index], starts[index], sizes[index]
        assert len(ids) == len(starts) == len(sizes)
        return cls(ledger, data, ids, starts, sizes)

    @property
    def charged_bytes(self) -> int:
        """Its memory, overhead included."""
        positions = len(self.ids) * POSITION_OVERHEAD_BYTES + len(self.blocks()) * BLOCK_OVERHEAD_BYTES
        return len(self.data) + positions + EXTENT_OVERHEAD_BYTES

    def index_of(self, entry: int) -> int:
        """Return the index of the entry's record, or -1."""
        ids = self.ids
        index = entry - ids[0]  # the common case: ids without gaps
        if index < 0 or index >= len(ids) or ids[index] != entry:
            index = bisect_left(ids, entry)
            if index >= len(ids) or ids[index] != entry:
                return -1
        return index

    def holds(self, entry: int) -> bool:
        """Return whether the extent has the entry."""
        return bool(self.ids) and self.index_of(entry) >= 0

    def body(self, entry: EntryId) -> bytes:
        """Return a copy of an entry that the extent has."""
        return self.body_at(self.index_of(entry))

    def body_at(self, index: int) -> bytes:
        """Return a copy of the entry at an index from `index_of`."""
        start = self.starts[index]
        return self.data[start : start + self.sizes[index]]

    def blocks(self) -> range:
        """Return the numbers of the index blocks that the extent spans."""
        return range(self.ids[0] >> BLOCK_SHIFT, (self.ids[-1] >> BLOCK_SHIFT) + 1)


class ReadCache:
    """Owns the extents, by ledger and block, and their eviction."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._recent: OrderedDict[int, Extent] = OrderedDict()
        self._older: OrderedDict[int, Extent] = OrderedDict()
        self._recent_bytes = 0
        self._by_block: dict[tuple[LedgerId, int], list[Extent]] = {}
        self.charged_bytes = 0

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

    @property
    def limit_bytes(self) -> int:
        """The limit of `charged_bytes`."""
        return self._limit_bytes

    def get(self, ledger: LedgerId, entry: EntryId) -> bytes | None:
        """Return a copy of a cached entry, or None."""
        extent = self.find(ledger, entry)
        return None if extent is None else extent.body(entry)

    def find(self, ledger: LedgerId, entry: EntryId) -> Extent | None:
        """Return the extent that has an entry, or None. Marks the extent as used."""
        for extent in self._by_block.get((ledger, entry >> BLOCK_SHIFT), ()):
            if extent.index_of(entry) >= 0:
                self._class_of(extent).move_to_end(id(extent))
                return extent
        return None

    def add(self, extent: Extent) -> None:
        """Add an extent and evict the oldest. An empty one, or one larger than the cache, is not added."""
        if not extent.ids or extent.charged_bytes > self._limit_bytes:
            return
        self._class_of(extent)[id(extent)] = extent
        for block in extent.blocks():
            self._by_block.setdefault((extent.ledger, block), []).insert(0, extent)
        self._charge(extent, extent.charged_bytes)
        while self.charged_bytes > self._limit_bytes:
            larger = self._recent if self._recent_bytes * 2 > self.charged_bytes else self._older
            self._drop(next(iter(larger.values())))

    def forget(self, ledger: LedgerId, first: EntryId, last: EntryId) -> None:
        """Drop extents that may have an older copy of entries that were stored again."""
        low, high = first >> BLOCK_SHIFT, last >> BLOCK_SHIFT
        if high - low >= len(self._by_block):  # a wide range of ids must not cost a look-up for each block in it
            self._drop_where(lambda each: each.ledger == ledger and each.ids[0] <= last and each.ids[-1] >= first)
            return
        for block in range(low, high + 1):
            for extent in list(self._by_block.get((ledger, block), ())):
                if extent.ids[0] <= last and extent.ids[-1] >= first:
                    self._drop(extent)

    def forget_ledger(self, ledger: LedgerId) -> None:
        """Drop everything of a ledger."""
        self._drop_where(lambda extent: extent.ledger == ledger)

    def _drop_where(self, unwanted: Callable[[Extent], bool]) -> None:
        for extent in [extent for extent in (*self._recent.values(), *self._older.values()) if unwanted(extent)]:
            self._drop(extent)

    def _drop(self, extent: Extent) -> None:
        del self._class_of(extent)[id(extent)]
        self._charge(extent, -extent.charged_bytes)
        for block in extent.blocks():
            extents = self._by_block[(extent.ledger, block)]
            extents.remove(extent)
            if not extents:
                del self._by_block[(extent.ledger, block)]

    def _class_of(self, extent: Extent) -> OrderedDict[int, Extent]:
        return self._recent if extent.recent else self._older

    def _charge(self, extent: Extent, size_bytes: int) -> None:
        self.charged_bytes += size_bytes
        if extent.recent:
            self._recent_bytes += size_bytes
        assert 0 <= self._recent_bytes <= self.charged_bytes
