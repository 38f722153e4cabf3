"""Reads entries through the index: one get for the place, one disk read for the entry and those after it.

Owns read-ahead and the joining of reads. The window of a sequential reader grows from 16 KiB to `read_ahead_bytes`;
that of a random reader stays small. While a sequential reader is served from one window, the next one is read
(`follow`). Reads of a block that is already being read wait for it. Every record is checked after the disk read.
Absence is reported only if the index proves it. Damage raises DamagedError; damage in records that were only read ahead
is ignored until one of them is requested.
"""

import asyncio
import logging
from array import array
from bisect import bisect_right
from typing import Final

from quire_bookie.dataclass import dataclass
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError, NoSuchEntryError, StorageError
from quire_bookie.limits import KIB
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId
from quire_bookie.storage.formats.block_index import BlockSegment, decode_block, tail_from
from quire_bookie.storage.formats.index_keys import BLOCK_MASK, BLOCK_SHIFT, block_key
from quire_bookie.storage.formats.log_format import RECORD_HEADER_BYTES, check_record
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from quire_bookie.storage.logs.log_set import EntryLogs
from quire_bookie.storage.read_cache import Extent, ReadCache
from quire_bookie.storage.stats import StorageStats

_log = logging.getLogger("quire.storage.reads")

WINDOW_BYTES_MIN: Final = 16 * KIB
WINDOW_GROWTH: Final = 4
BLOCKS_AHEAD_MAX: Final = 64
SEQUENTIAL_GAP_ENTRIES: Final = 16
"""A reader of a striped ledger skips the ids that other bookies hold."""
WINDOWS_IN_CACHE_MIN: Final = 4
"""No window is larger than this fraction (1/n) of the cache, so that read-ahead does not evict entries in use."""
FOLLOWED_AT_ONCE_MAX: Final = 8
"""The maximum number of windows being read ahead at once; they are in no cache yet."""


@dataclass(slots=True)
class _Plan:
    """One disk read: records of `ids` in `log`, from the first of `offsets` to `end`."""

    log: int
    ids: list[int]
    offsets: list[int]
    sizes: list[int]
    end: int

    def extend(self, segment: BlockSegment, block: int, window: int) -> bool:
        """Add a later stretch of the same log, as far as the window allows. False if it does not follow."""
        first = block << BLOCK_SHIFT | segment.lows[0]
        if segment.log != self.log or segment.base < self.end or first <= self.ids[-1]:
            return False
        offsets = segment.offsets()
        count = bisect_right(offsets, self.offsets[0] + window) - 1
        if count <= 0:
            return False
        self.ids += [block << BLOCK_SHIFT | low for low in segment.lows[:count]]
        self.offsets += offsets[:count]
        self.sizes += segment.sizes[:count]
        self.end = offsets[count]
        return True


def _plan_of(tail: BlockSegment, block: int, window: int) -> _Plan:
    """Return the plan for the records of a stretch that fit the window; at least the first one."""
    offsets = tail.offsets()
    count = max(1, bisect_right(offsets, tail.base + window) - 1)
    ids = [block << BLOCK_SHIFT | low for low in tail.lows[:count]]
    return _Plan(tail.log, ids, offsets[:count], list(tail.sizes[:count]), offsets[count])


class LogReader:
    """Reads entries from the logs into the read cache. Entries in the last `recent_bytes` of flushes are recent."""

    def __init__(
        self,
        index: IndexStore,
        logs: EntryLogs,
        cache: ReadCache,
        read_ahead_bytes: int,
        recent_bytes: int,
        stats: StorageStats,
    ) -> None:
        self._index = index
        self._logs = logs
        self._cache = cache
        self._read_ahead_bytes = min(read_ahead_bytes, cache.limit_bytes // WINDOWS_IN_CACHE_MIN)
        self._recent_bytes = recent_bytes
        self._stats = stats
        self._pending: dict[tuple[LedgerId, int], asyncio.Future[Extent | None]] = {}
        self._following: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Wait for running read-aheads; no read may follow."""
        await asyncio.gather(*self._following, return_exceptions=True)

    async def read(self, info: LedgerInfo, entry: EntryId, expected_bytes: int = 0) -> bytes:
        """Return the entry. NoSuchEntryError: provably absent; DamagedError. `expected_bytes`: hint of range reads."""
        key = (info.ledger_id, entry >> BLOCK_SHIFT)
        while (pending := self._pending.get(key)) is not None:
            self._stats.reads_joined += 1
            extent = await asyncio.shield(pending)
            if extent is not None and extent.holds(entry):
                return extent.body(entry)
            body = self._cache.get(info.ledger_id, entry)
            if body is not None:
                return body
        return (await self._load(info, entry, self._window(info, entry, expected_bytes))).body(entry)

    async def read_end(self, info: LedgerInfo, key: bytes, value: bytes) -> Extent:
        """Return an extent with the last entry, given key and value of its block; the cache gets it only by `keep`.

        A ledger that fits the smallest window is read whole, because a ledger is loaded for reads of its entries.
        Damaged records are missing in the extent. NoSuchEntryError, DamagedError.
        """
        held = self._cache.find(info.ledger_id, info.last_entry)
        if held is not None:
            return held
        block, low = info.last_entry >> BLOCK_SHIFT, info.last_entry & BLOCK_MASK
        whole = tail_from(key, value, 0, or_later=True) if block == 0 else None
        if whole is not None and whole.lows[-1] == low and whole.offsets()[-1] - whole.base <= WINDOW_BYTES_MIN:
            extent = await self._read_tail(info, whole, block)
            if extent.holds(info.last_entry):
                return extent
        tail = tail_from(key, value, low)
        if tail is None:
            raise NoSuchEntryError(f"ledger {info.ledger_id} has no entry {info.last_entry} here")
        return await self._read_tail(info, tail, block)

    async def _read_tail(self, info: LedgerInfo, tail: BlockSegment, block: int) -> Extent:
        plan = _plan_of(tail, block, WINDOW_BYTES_MIN)
        extent, _ = await self._read_planned(info, EntryId(plan.ids[0]), WINDOW_BYTES_MIN, plan)
        return extent

    def keep(self, extent: Extent) -> None:
        """Add an extent of `read_end` to the cache. Only if its ledger was not changed since `read_end` began."""
        if extent.ids and self._cache.find(extent.ledger, EntryId(extent.ids[-1])) is not extent:
            self._cache.add(extent)

    def follow(self, info: LedgerInfo, extent: Extent) -> None:
        """Start to read the window after this extent, from which a sequential reader is being served."""
        if extent.followed or not extent.window_bytes or len(self._following) >= FOLLOWED_AT_ONCE_MAX:
            return
        extent.followed = True
        first = EntryId(extent.ids[-1] + 1)
        if first > info.last_entry or self._cache.find(info.ledger_id, first) is not None:
            return
        window = min(self._read_ahead_bytes, extent.window_bytes * WINDOW_GROWTH)
        task = asyncio.get_running_loop().create_task(self._read_on(info, first, window), name="read-ahead")
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def _read_on(self, info: LedgerInfo, first: EntryId, window: int) -> None:
        if (info.ledger_id, first >> BLOCK_SHIFT) in self._pending:
            return  # a reader already requested it
        try:
            info.read_ahead_bytes = window
            await self._load(info, first, window, or_later=True)
        except (NoSuchEntryError, DamagedError):
            return  # a read of the entry reports it
        except (StorageError, OSError) as error:
            _log.warning("cannot read ahead of entry %d of ledger %d: %s", first, info.ledger_id, error)

    async def _load(self, info: LedgerInfo, entry: EntryId, window: int, *, or_later: bool = False) -> Extent:
        """Read an entry and those after it into the cache. Concurrent reads of these blocks wait for it.

        `or_later`: or start at the first entry after it in its block.
        """
        mine: asyncio.Future[Extent | None] = asyncio.get_running_loop().create_future()
        keys = [(info.ledger_id, entry >> BLOCK_SHIFT)]
        self._pending[keys[0]] = mine
        shared: Extent | None = None
        ahead_bytes, rewrites = info.read_ahead_bytes, info.rewrites
        try:
            plan = await self._plan(info, entry, window, or_later)
            entry = EntryId(plan.ids[0])
            for block in range((entry >> BLOCK_SHIFT) + 1, (plan.ids[-1] >> BLOCK_SHIFT) + 1):
                later = (info.ledger_id, block)
                if later not in self._pending:
                    self._pending[later] = mine
                    keys.append(later)
            extent, damage = await self._read_planned(info, entry, window, plan)
            if extent.ids:
                info.read_ahead_entry = EntryId(extent.ids[-1] + 1)
                extent.window_bytes = ahead_bytes if ahead_bytes > WINDOW_BYTES_MIN else 0
                # Otherwise an id was stored again, and these may be its older bytes; or the ledger was deleted, and
                # they must not be in the cache when it is revived.
                if info.rewrites == rewrites and not info.deleted:
                    self._cache.add(extent)
                    shared = extent
            if damage is not None:
                raise damage
            return extent
        finally:
            for key in keys:
                del self._pending[key]
            mine.set_result(shared)

    def _window(self, info: LedgerInfo, entry: EntryId, expected_bytes: int) -> int:
        ahead = entry - info.read_ahead_entry
        if info.read_ahead_entry != NO_ENTRY and 0 <= ahead <= SEQUENTIAL_GAP_ENTRIES:
            window = info.read_ahead_bytes * WINDOW_GROWTH
        else:
            window = WINDOW_BYTES_MIN
        info.read_ahead_bytes = min(self._read_ahead_bytes, window)
        # A quarter more for the record headers.
        return max(info.read_ahead_bytes, min(expected_bytes + expected_bytes // 4, self._read_ahead_bytes))

    async def _plan(self, info: LedgerInfo, entry: EntryId, window: int, or_later: bool = False) -> _Plan:
        """Plan the disk read. The entry itself is in the plan even if it is larger than the window."""
        block = entry >> BLOCK_SHIFT
        key = block_key(info.ledger_id, block)
        tail = tail_from(key, await self._index.get(key), entry & BLOCK_MASK, or_later=or_later)
        if tail is None:
            raise NoSuchEntryError(f"ledger {info.ledger_id} has no entry {entry} here")
        plan = _plan_of(tail, block, window)
        left = window - (plan.end - tail.base)
        if window > WINDOW_BYTES_MIN and len(plan.ids) == len(tail.lows) and left > 0:
            await self._plan_ahead(info, plan, block, window, left)
        return plan

    async def _plan_ahead(self, info: LedgerInfo, plan: _Plan, block: int, window: int, left: int) -> None:
        """Add entries of the next blocks to the plan. Damage there does not affect this read."""
        average = (plan.end - plan.offsets[0]) // len(plan.ids)
        count = min(BLOCKS_AHEAD_MAX, 1 + left // (average * (BLOCK_MASK + 1)))
        last = info.last_entry >> BLOCK_SHIFT
        blocks = range(block + 1, min(block + 1 + count, last + 1))
        keys = [block_key(info.ledger_id, number) for number in blocks]
        try:
            values = await self._index.get_many(keys) if keys else []
            for number, key, value in zip(blocks, keys, values, strict=True):
                if value is None:
                    return
                segments = sorted(decode_block(key, value).segments, key=lambda segment: segment.lows[0])
                if not all(plan.extend(segment, number, window) for segment in segments):
                    return
        except DamagedError:
            return

    async def _read_planned(
        self, info: LedgerInfo, entry: EntryId, window: int, plan: _Plan
    ) -> tuple[Extent, DamagedError | None]:
        """Read by a plan; by a new one if compaction moved the entry and removed its log in the meantime."""
        while True:
            try:
                return await self._read_extent(info, plan)
            except DamagedError:
                gone = plan.log
                if gone in self._logs:
                    raise
                plan = await self._plan(info, entry, window)
                if plan.log == gone:
                    raise

    async def _read_extent(self, info: LedgerInfo, plan: _Plan) -> tuple[Extent, DamagedError | None]:
        """Return the intact records of a plan, and the damage of the first record, if any."""
        path, salt = self._logs.files.path(plan.log), self._logs.salt(plan.log)
        base = plan.offsets[0]
        try:
            data = await self._logs.files.read(plan.log, base, plan.end - base)
        except DamagedError:
            if len(plan.ids) == 1:
                raise
            # The damage may be in the records read ahead.
            plan = _Plan(plan.log, plan.ids[:1], [base], plan.sizes[:1], base + plan.sizes[0] + RECORD_HEADER_BYTES)
            data = await self._logs.files.read(plan.log, base, plan.end - base)
        self._stats.log_reads += 1
        self._stats.log_bytes_read += len(data)
        head = RECORD_HEADER_BYTES - base
        starts = array("q", [offset + head for offset in plan.offsets])
        extent = Extent.checked(info.ledger_id, salt, data, array("q", plan.ids), starts, array("q", plan.sizes))
        since = self._logs.flushed.bytes_since(plan.log, plan.end)
        extent.recent = since is not None and since < self._recent_bytes
        first = EntryId(plan.ids[0])
        if extent.ids and extent.ids[0] == first:
            return extent, None
        try:
            check_record(salt, data[: plan.sizes[0] + RECORD_HEADER_BYTES], info.ledger_id, first, path, base)
        except DamagedError as error:
            return extent, error
        raise AssertionError(f"both intact and damaged: entry {first} of ledger {info.ledger_id} in {path}")
