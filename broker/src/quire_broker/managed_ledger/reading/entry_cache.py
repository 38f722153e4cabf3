"""Recently appended entries of all managed ledgers, for readers at the tail. Bounded by bytes; a miss costs only time.

Entries are kept, found and evicted in the batches in which they were confirmed, oldest batch first across all topics. A
view is kept without copying if at least half of its underlying buffer is used in its batch; then the whole buffer
counts. Otherwise it is copied, because a view of 100 bytes can pin 256 KiB.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from quire_bookie.model import Buffer
from quire_broker.managed_ledger.ledger_port import Payload
from quire_broker.managed_ledger.position import Position

ENTRY_OVERHEAD_BYTES = 256  # objects around one entry: view or bytes object, slots in lists
_COMPACT_AT = 256  # number of evicted batches at the head of a ledger's list at which it is shortened


@dataclass(slots=True)
class EntryCacheStats:
    """Counters of entries since the broker started. A reader adds what it fetched to `misses`."""

    hits: int = 0
    misses: int = 0
    inserted: int = 0
    evicted: int = 0


class _Batch:
    __slots__ = ("entries", "first", "inserted_s", "ledger_id", "owner", "size_bytes")

    def __init__(self, owner: "TopicCache", ledger_id: int, first: int, entries: list[Payload], inserted_s: float):
        self.owner = owner
        self.ledger_id = ledger_id
        self.first = first
        self.entries = entries
        self.size_bytes = _own(entries)
        self.inserted_s = inserted_s


@dataclass(slots=True)
class _LedgerBatches:
    firsts: list[int]
    batches: list[_Batch]
    evicted: int = 0  # at the head


class EntryCache:
    """Cache of one broker. `size_bytes` never stays above `capacity_bytes`."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.size_bytes = 0
        self.stats = EntryCacheStats()
        self._order: deque[_Batch] = deque()

    def topic(self) -> "TopicCache":
        """Return a part for one managed ledger."""
        return TopicCache(self)

    def insert(self, batch: _Batch) -> None:
        """Add the size of a batch and evict the oldest batches until the cache is within its capacity."""
        self._order.append(batch)
        self.size_bytes += batch.size_bytes
        self.stats.inserted += len(batch.entries)
        while self.size_bytes > self.capacity_bytes:
            self._evict(self._order.popleft())

    def expire(self, before_s: float) -> None:
        """Evict the batches inserted before this time of the event loop, in seconds."""
        while self._order and (self._order[0].inserted_s < before_s or not self._order[0].entries):
            self._evict(self._order.popleft())

    def release(self, batch: _Batch) -> None:
        """Drop the entries of a batch. The empty batch leaves the eviction order later."""
        self.size_bytes -= batch.size_bytes
        assert self.size_bytes >= 0
        self.stats.evicted += len(batch.entries)
        batch.size_bytes = 0
        batch.entries = []

    def _evict(self, batch: _Batch) -> None:
        if batch.entries:
            self.release(batch)
            batch.owner.forget_oldest(batch)


class TopicCache:
    """Cached entries of one managed ledger."""

    def __init__(self, cache: EntryCache) -> None:
        self._cache = cache
        self._ledgers: dict[int, _LedgerBatches] = {}

    def insert(self, ledger_id: int, first: int, entries: list[Payload], now_s: float) -> None:
        """Keep consecutive entries from `first` on. The cache owns the list afterwards."""
        batch = _Batch(self, ledger_id, first, entries, now_s)
        known = self._ledgers.get(ledger_id)
        if known is None:
            known = self._ledgers[ledger_id] = _LedgerBatches([], [])
        known.firsts.append(first)
        known.batches.append(batch)
        self._cache.insert(batch)

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing of this managed ledger."""
        return not self._ledgers

    def get(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[Buffer]:
        """Return cached entries from `first` on without a gap, up to `last` or `bytes_max` (at least one).

        [] on a miss.
        """
        known = self._ledgers.get(ledger_id)
        found: list[Buffer] = []
        if known is not None:
            _collect(known, first, last, bytes_max, found)
        self._cache.stats.hits += len(found)
        return found

    def count_hits(self, entries: int) -> None:
        """Count entries that a reader got together with another one."""
        self._cache.stats.hits += entries

    def count_missed(self, entries: int) -> None:
        """Count entries that a read fetched because they were not here."""
        self._cache.stats.misses += entries

    def drop_before(self, position: Position) -> None:
        """Drop entries that no cursor will read again."""
        for ledger_id in [known for known in self._ledgers if known < position.ledger_id]:
            self.drop_ledger(ledger_id)
        known = self._ledgers.get(position.ledger_id)
        if known is None:
            return
        index = known.evicted
        while index < len(known.batches):
            batch = known.batches[index]
            if batch.first + len(batch.entries) > position.entry_id:
                break
            self._cache.release(batch)
            index += 1
        known.evicted = index
        self._tidy(position.ledger_id, known)

    def drop_ledger(self, ledger_id: int) -> None:
        """Drop the entries of a ledger."""
        known = self._ledgers.pop(ledger_id, None)
        if known is not None:
            for batch in known.batches[known.evicted :]:
                self._cache.release(batch)

    def drop_all(self) -> None:
        """Drop all entries."""
        for ledger_id in list(self._ledgers):
            self.drop_ledger(ledger_id)

    def forget_oldest(self, batch: _Batch) -> None:
        """Remove `batch` after its eviction. It is the oldest batch that its ledger still has."""
        known = self._ledgers.get(batch.ledger_id)
        if known is not None and known.evicted < len(known.batches) and known.batches[known.evicted] is batch:
            known.evicted += 1
            self._tidy(batch.ledger_id, known)

    def _tidy(self, ledger_id: int, known: _LedgerBatches) -> None:
        if known.evicted == len(known.batches):
            del self._ledgers[ledger_id]
        elif known.evicted >= _COMPACT_AT and known.evicted * 2 >= len(known.batches):
            del known.firsts[: known.evicted]
            del known.batches[: known.evicted]
            known.evicted = 0


def _collect(known: _LedgerBatches, first: int, last: int, bytes_max: int, found: list[Buffer]) -> None:
    index = bisect_right(known.firsts, first) - 1
    if index < known.evicted:
        return
    size = 0
    wanted = first
    while index < len(known.batches) and wanted <= last:
        batch = known.batches[index]
        entries = batch.entries
        at = wanted - batch.first
        if not 0 <= at < len(entries):
            return
        for index_in_batch in range(at, min(len(entries), last - batch.first + 1)):
            data = entries[index_in_batch]
            if type(data) is tuple:
                data = entries[index_in_batch] = b"".join(data)  # joined once, at the first read
            size += len(data)
            if size > bytes_max and found:
                return
            found.append(data)  # type: ignore[arg-type]
            wanted += 1
        index += 1


def _own(entries: list[Payload]) -> int:
    """Return the bytes that a batch counts for. Copies views that pin too much; consecutive entries share a buffer."""
    total = ENTRY_OVERHEAD_BYTES * len(entries)
    index = 0
    while index < len(entries):
        base = _base_of(entries[index])
        end = index + 1
        live = _size_of(entries[index])
        if base is not None:
            while end < len(entries) and _base_of(entries[end]) is base:
                live += _size_of(entries[end])
                end += 1
            if live * 2 < len(base):
                entries[index:end] = [_copy_of(entry) for entry in entries[index:end]]
            else:
                live = len(base)
        total += live
        index = end
    return total


def _base_of(entry: Payload) -> bytes | bytearray | None:
    """Return the buffer under a view (of a tuple: under its first view); None for an object that owns its bytes."""
    if type(entry) is memoryview:
        return entry.obj  # type: ignore[return-value]
    if type(entry) is tuple:
        for part in entry:
            if type(part) is memoryview:
                return part.obj  # type: ignore[return-value]
    return None


def _size_of(entry: Payload) -> int:
    return sum(map(len, entry)) if type(entry) is tuple else len(entry)


def _copy_of(entry: Payload) -> bytes:
    return b"".join(entry) if type(entry) is tuple else bytes(entry)  # type: ignore[arg-type]


def sizes(entries: Sequence[Payload]) -> int:
    """Return the bytes of all entries together."""
    return sum([_size_of(entry) for entry in entries])
