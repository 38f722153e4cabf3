"""Entries of all managed ledgers in memory: the one cache of a broker. A miss costs only time.

    share      holds
    tail       entries as they are appended, for the readers at the tail
    read       entries that one reader fetched near the tail, for others that follow it
    catch-up   the same far behind the tail

Each share is bounded by bytes of its own, so a reader that catches up evicts nothing of the tail. Only entries that an
active cursor of the topic reads soon are kept (`active_readers`). A full share evicts those first of which that is no
longer true, then the oldest ones of all topics.

Entries are kept, found and evicted in the batches in which they were confirmed or fetched. A view is kept without
copying if at least half of its underlying buffer is used in its batch; then the whole buffer counts. Otherwise it is
copied, because a view of 100 bytes can pin 256 KiB.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from quire_bookie.dataclass import dataclass
from quire_bookie.model import Buffer
from quire_broker.managed_ledger.ledger_port import Entry, Payload

ENTRY_OVERHEAD_BYTES = 256  # objects around one entry: view or bytes object, slots in lists
CATCH_UP_SHARE = 8
"""Catch-up may use this fraction (1/n) of the bytes for reads."""
_REACH = 2
"""A cursor that is less than this fraction (1/n) of a share behind entries reads them soon."""
_LOOKED_AT_MAX = 32  # batches that one insertion asks for whether a cursor wants them
_DROPPED_AT_ONCE = 4_096  # batches of one topic: a few milliseconds
_COMPACT_AT = 256  # evicted batches in a ledger's list, from which on it is shortened when they are half of it


@dataclass(slots=True)
class EntryCacheStats:
    """Counters of entries since the broker started. A reader adds what it fetched to `misses`."""

    hits: int = 0
    misses: int = 0
    joined: int = 0
    inserted: int = 0
    evicted: int = 0


class Readers(Protocol):
    """The part of `ActiveReaders` that the cache asks."""

    def reads_soon(self, ledger_id: int, first: int, last: int, entries_max: int) -> bool:
        """Return whether an active cursor reads some of these entries and is at most `entries_max` before them."""
        ...

    def count(self, ledger_id: int, first: int, last: int, entries_max: int, most: int) -> int:
        """Return how many active cursors do, at most `most`."""
        ...


class _Batch:
    __slots__ = ("entries", "first", "inserted_s", "ledger_id", "owner", "share", "size_bytes")

    def __init__(
        self, owner: "TopicCache", share: "Share", ledger_id: int, first: int, entries: list[Payload], inserted_s: float
    ) -> None:
        self.owner = owner
        self.share = share
        self.ledger_id = ledger_id
        self.first = first
        self.entries = entries
        self.size_bytes = _own(entries)
        self.inserted_s = inserted_s

    @property
    def is_wanted(self) -> bool:
        count = len(self.entries)
        reach = self.share.reach(count, self.size_bytes)
        return self.owner.readers.reads_soon(self.ledger_id, self.first, self.first + count - 1, reach)


@dataclass(slots=True)
class _LedgerBatches:
    """Batches that do not overlap, in order. Evicted ones stay in the list, without entries, for a while."""

    firsts: list[int]
    batches: list[_Batch]
    head: int = 0  # the batches before it are evicted
    gone: int = 0  # all evicted ones


class Share:
    """A part of the cache. `size_bytes` is never above `capacity_bytes`."""

    def __init__(self, capacity_bytes: int, stats: EntryCacheStats) -> None:
        self.capacity_bytes = capacity_bytes
        self._reach_bytes = capacity_bytes // _REACH
        self.size_bytes = 0
        self._stats = stats
        self._unseen: deque[_Batch] = deque()
        """In the order of insertion."""
        self._wanted: deque[_Batch] = deque()
        """Older ones, which a cursor wanted when the share was full."""

    def reach(self, entries: int, size_bytes: int) -> int:
        """Return how many entries before these, of this size together, a cursor may be that reads them soon."""
        return self._reach_bytes * entries // size_bytes

    def insert(self, batch: _Batch) -> bool:
        """Evict until a batch fits, and take it. False: it is larger than the share."""
        if batch.size_bytes > self.capacity_bytes:
            return False
        self._make_room(batch.size_bytes)
        self._unseen.append(batch)
        self.size_bytes += batch.size_bytes
        self._stats.inserted += len(batch.entries)
        return True

    def _make_room(self, needed_bytes: int) -> None:
        looked_at = 0
        while self.size_bytes + needed_bytes > self.capacity_bytes:
            if self._unseen and looked_at < _LOOKED_AT_MAX:
                batch = self._unseen.popleft()
                if batch.entries and batch.is_wanted:
                    self._wanted.append(batch)
                    looked_at += 1
                    continue
            else:
                batch = (self._wanted or self._unseen).popleft()
            self._evict(batch)

    def expire(self, before_s: float) -> None:
        """Evict the batches inserted before this time of the event loop, in seconds."""
        for queue in (self._wanted, self._unseen):
            while queue and (queue[0].inserted_s < before_s or not queue[0].entries):
                self._evict(queue.popleft())

    def _evict(self, batch: _Batch) -> None:
        if batch.entries:
            self.release(batch)
            batch.owner.forget(batch)

    def release(self, batch: _Batch) -> None:
        """Drop the entries of a batch. The empty batch leaves the eviction order later."""
        self.size_bytes -= batch.size_bytes
        assert self.size_bytes >= 0
        self._stats.evicted += len(batch.entries)
        batch.size_bytes = 0
        batch.entries = []


class EntryCache:
    """Cache of one broker: `tail_bytes` for appended entries, `read_bytes` for fetched ones."""

    def __init__(self, tail_bytes: int, read_bytes: int) -> None:
        self.stats = EntryCacheStats()
        catch_up_bytes = read_bytes // CATCH_UP_SHARE
        self.tail = Share(tail_bytes, self.stats)
        self.read = Share(read_bytes - catch_up_bytes, self.stats)
        self.catch_up = Share(catch_up_bytes, self.stats)

    @property
    def size_bytes(self) -> int:
        """The bytes of all shares together."""
        return self.tail.size_bytes + self.read.size_bytes + self.catch_up.size_bytes

    def topic(self, readers: Readers) -> "TopicCache":
        """Return a part for one managed ledger."""
        return TopicCache(self, readers)

    def expire(self, before_s: float) -> None:
        """Evict the batches inserted before this time of the event loop, in seconds."""
        for share in (self.tail, self.read, self.catch_up):
            share.expire(before_s)


class TopicCache:
    """Cached entries of one managed ledger."""

    def __init__(self, cache: EntryCache, readers: Readers) -> None:
        self._cache = cache
        self.readers = readers
        self._ledgers: dict[int, _LedgerBatches] = {}

    def append(self, ledger_id: int, first: int, entries: list[Payload], now_s: float) -> None:
        """Keep newly confirmed entries if a cursor reads them soon. The cache owns the list afterwards."""
        share = self._cache.tail
        reach = share.reach(len(entries), sizes(entries) + ENTRY_OVERHEAD_BYTES * len(entries))
        if self.readers.reads_soon(ledger_id, first, first + len(entries) - 1, reach):
            self._insert(_Batch(self, share, ledger_id, first, entries, now_s))

    def fetched(
        self, ledger_id: int, entries: Sequence[Entry], waiters: int, now_s: float, *, far_behind: bool
    ) -> None:
        """Keep consecutive entries, as far as they are not here, if cursors beside `waiters` read them soon.

        The waiters, of which some may be cursors, get the entries without the cache.
        """
        share = self._cache.catch_up if far_behind else self._cache.read
        first, last = entries[0].entry_id, entries[-1].entry_id
        payloads: list[Payload] = [entry.payload for entry in entries]
        reach = share.reach(len(payloads), sizes(payloads) + ENTRY_OVERHEAD_BYTES * len(payloads))
        if self.readers.count(ledger_id, first, last, reach, waiters + 1) <= waiters:
            return
        known = self._ledgers.get(ledger_id)
        if known is not None:
            payloads = _missing(known, first, payloads)
        if payloads:
            self._insert(_Batch(self, share, ledger_id, first, payloads, now_s))

    def _insert(self, batch: _Batch) -> None:
        if not batch.share.insert(batch):
            return
        known = self._ledgers.get(batch.ledger_id)
        if known is None:
            known = self._ledgers[batch.ledger_id] = _LedgerBatches([], [])
        firsts, batches, first = known.firsts, known.batches, batch.first
        if not firsts or firsts[-1] < first:
            firsts.append(first)
            batches.append(batch)
            return
        start, end = bisect_left(firsts, first), bisect_left(firsts, first + len(batch.entries))
        assert not any(other.entries for other in batches[start:end]), "batches do not overlap"
        firsts[start:end] = [first]
        batches[start:end] = [batch]
        known.gone -= end - start
        known.head = min(known.head, start)

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

    def count_fetched(self, entries: int, *, joined: bool) -> None:
        """Count entries that a reader fetched because they were not here, or took from the fetch of another one."""
        if joined:
            self._cache.stats.joined += entries
        else:
            self._cache.stats.misses += entries

    def drop_passed(self) -> None:
        """Drop the oldest entries that no active cursor reads soon; of many, the rest at the next calls."""
        left = _DROPPED_AT_ONCE
        for ledger_id, known in list(self._ledgers.items()):
            while known.head < len(known.batches) and left:
                batch = known.batches[known.head]
                if batch.entries:
                    if batch.is_wanted:
                        break
                    batch.share.release(batch)
                    known.gone += 1
                    left -= 1
                known.head += 1
            self._tidy(ledger_id, known)

    def drop_ledger(self, ledger_id: int) -> None:
        """Drop the entries of a ledger."""
        known = self._ledgers.pop(ledger_id, None)
        if known is not None:
            for batch in known.batches[known.head :]:
                if batch.entries:
                    batch.share.release(batch)

    def drop_all(self) -> None:
        """Drop all entries."""
        for ledger_id in list(self._ledgers):
            self.drop_ledger(ledger_id)

    def forget(self, batch: _Batch) -> None:
        """Note that a batch was evicted."""
        known = self._ledgers[batch.ledger_id]
        known.gone += 1
        while known.head < len(known.batches) and not known.batches[known.head].entries:
            known.head += 1
        self._tidy(batch.ledger_id, known)

    def _tidy(self, ledger_id: int, known: _LedgerBatches) -> None:
        assert 0 <= known.gone <= len(known.batches)
        if known.gone == len(known.batches):
            del self._ledgers[ledger_id]
        elif known.gone >= _COMPACT_AT and known.gone * 2 >= len(known.batches):
            known.batches = [batch for batch in known.batches if batch.entries]
            known.firsts = [batch.first for batch in known.batches]
            known.head = known.gone = 0


def _missing(known: _LedgerBatches, first: int, entries: list[Payload]) -> list[Payload]:
    """Return the entries from `first` on up to the first one that is cached."""
    firsts, batches = known.firsts, known.batches
    index = bisect_right(firsts, first) - 1
    if index >= 0 and first < batches[index].first + len(batches[index].entries):
        return []
    for at in range(index + 1, bisect_left(firsts, first + len(entries))):
        if batches[at].entries:
            return entries[: batches[at].first - first]
    return entries


def _collect(known: _LedgerBatches, first: int, last: int, bytes_max: int, found: list[Buffer]) -> None:
    index = bisect_right(known.firsts, first) - 1
    if index < known.head:
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
