"""Entries read from entry logs, as the stretches they were read in, bounded by bytes.

Owns memory only. An extent keeps the raw bytes of one disk read and the positions in it; a record is checked when it is
handed out, not when it is read ahead, so that what nobody asks for costs nothing.

Least recently used extents go first, of two kinds apart: entries written a moment ago, which tail readers want, and
older ones. Each kind may fill what the other leaves, and none pushes the other below a half of the cache: a reader that
catches up with everything ever stored does not send the tail readers to the disk.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from quire_bookie.model import EntryId, LedgerId
from quire_bookie.storage.index_keys import BLOCK_SHIFT
from quire_bookie.storage.log_format import RECORD_HEADER_BYTES, check_record

EXTENT_OVERHEAD_BYTES: Final = 600
BLOCK_OVERHEAD_BYTES: Final = 300
POSITION_OVERHEAD_BYTES: Final = 24
"""Of an entry in the three arrays of an extent."""


@dataclass(slots=True, eq=False)
class Extent:
    """Records of one ledger from one disk read. `ids` ascend; `offsets` and `sizes` (of bodies) are of the file.

    `recent`: they were written a moment ago.
    """

    ledger: LedgerId
    path: str
    salt: int
    base: int
    data: bytes
    ids: Sequence[int]
    offsets: Sequence[int]
    sizes: Sequence[int]
    recent: bool = False

    @property
    def charged_bytes(self) -> int:
        """Memory of it."""
        positions = len(self.ids) * POSITION_OVERHEAD_BYTES + len(self.blocks()) * BLOCK_OVERHEAD_BYTES
        return len(self.data) + positions + EXTENT_OVERHEAD_BYTES

    def index_of(self, entry: int) -> int:
        """Which of the records is the entry's; -1: none."""
        ids = self.ids
        index = entry - ids[0]  # without gaps, as most are
        if index < 0 or index >= len(ids) or ids[index] != entry:
            index = bisect_left(ids, entry)
            if index >= len(ids) or ids[index] != entry:
                return -1
        return index

    def holds(self, entry: int) -> bool:
        """Whether the entry is in here."""
        return self.index_of(entry) >= 0

    def body(self, entry: EntryId) -> bytes:
        """A checked copy of the entry, which it holds; DamagedError when its record is not intact."""
        return self.body_at(self.index_of(entry), entry)

    def body_at(self, index: int, entry: EntryId) -> bytes:
        """As `body`, by what `index_of` said."""
        offset = self.offsets[index]
        start = offset - self.base
        record = memoryview(self.data)[start : start + self.sizes[index] + RECORD_HEADER_BYTES]
        return bytes(check_record(self.salt, record, self.ledger, entry, self.path, offset))

    def blocks(self) -> range:
        """Numbers of the index blocks it spans."""
        return range(self.ids[0] >> BLOCK_SHIFT, (self.ids[-1] >> BLOCK_SHIFT) + 1)


class ReadCache:
    """Extents by ledger and block."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._recent: OrderedDict[int, Extent] = OrderedDict()
        self._older: OrderedDict[int, Extent] = OrderedDict()
        self._recent_bytes = 0
        self._by_block: dict[tuple[LedgerId, int], list[Extent]] = {}
        self.charged_bytes = 0

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

    def get(self, ledger: LedgerId, entry: EntryId) -> bytes | None:
        """A checked copy of a cached entry, None when it is not cached. DamagedError as the log says."""
        for extent in self._by_block.get((ledger, entry >> BLOCK_SHIFT), ()):
            index = extent.index_of(entry)
            if index >= 0:
                self._kind_of(extent).move_to_end(id(extent))
                return extent.body_at(index, entry)
        return None

    def add(self, extent: Extent) -> None:
        """Keep an extent, letting the oldest go; one that is larger than the cache is not kept."""
        if extent.charged_bytes > self._limit_bytes:
            return
        self._kind_of(extent)[id(extent)] = extent
        for block in extent.blocks():
            self._by_block.setdefault((extent.ledger, block), []).insert(0, extent)
        self._charge(extent, extent.charged_bytes)
        while self.charged_bytes > self._limit_bytes:
            larger = self._recent if self._recent_bytes * 2 > self.charged_bytes else self._older
            self._drop(next(iter(larger.values())))

    def forget(self, ledger: LedgerId, first: EntryId, last: EntryId) -> None:
        """Drop what may hold an older copy of entries that were stored again."""
        for block in range(first >> BLOCK_SHIFT, (last >> BLOCK_SHIFT) + 1):
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
        del self._kind_of(extent)[id(extent)]
        self._charge(extent, -extent.charged_bytes)
        for block in extent.blocks():
            held = self._by_block[(extent.ledger, block)]
            held.remove(extent)
            if not held:
                del self._by_block[(extent.ledger, block)]

    def _kind_of(self, extent: Extent) -> OrderedDict[int, Extent]:
        return self._recent if extent.recent else self._older

    def _charge(self, extent: Extent, size_bytes: int) -> None:
        self.charged_bytes += size_bytes
        if extent.recent:
            self._recent_bytes += size_bytes
