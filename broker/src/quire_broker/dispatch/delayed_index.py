"""The delayed entries of one Shared or Key_Shared subscription, by delivery time, in bounded memory.

    add -> queue (the last one takes new entries) -- full --> saved as a bucket -- page by page --> take_due
              `--- due meanwhile ----------------------------------------------------------------------^

`waiting` holds a bit for every entry that comes out of here later, and reads of the topic skip those. An entry whose
bit is not set any more (it came out, or was skipped) is dropped when its record appears, so no entry comes out twice.
A queue stays in use until its bucket is recorded. Of a bucket, memory holds at most two pages, from some seconds before
their time. A bucket that cannot be read is replaced by reading its entries again. Of too many buckets, the one with
the fewest entries left is joined with the entries that are saved next. Nothing here makes a step of delivery wait:
loading and saving are tasks of their own.

An owner that takes over loads the heads of the buckets and their bits (`load`), and reads only the other entries.
"""

import asyncio
import heapq
import logging
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Final, Protocol

from quire_bookie.env.background import Background
from quire_bookie.env.backoff import Backoff
from quire_bookie.env.clock import WallClock
from quire_bookie.errors import QuireError
from quire_broker.dispatch.delayed import DelayedQueue
from quire_broker.dispatch.delivery import EntryCursor, EntryLedger
from quire_broker.dispatch.redelivery import NO_SLOT
from quire_broker.limits import DELAYED_BUCKETS_MAX, DELAYED_IN_MEMORY_MAX, DELAYED_PAGES_AT_ONCE
from quire_broker.managed_ledger.cursors.ack_ranges import AckRanges
from quire_broker.managed_ledger.cursors.bucket_format import PAGE_ENTRIES, BucketRecord, Page, position_of
from quire_broker.managed_ledger.cursors.buckets import Bucket, Buckets, Chunk, Draft
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.settings.dispatch import DispatchSettings

LEAD_MS: Final = 10_000
"""A page is read this long before its first entry is due."""
_BACKOFF_S: Final = (1.0, 60.0)
_CHUNKS_PER_STEP: Final = 512
_SLOT_BITS: Final = 20
_KEY_BITS: Final = 64
_TIME_SHIFT: Final = _SLOT_BITS + _KEY_BITS
log = logging.getLogger("quire.broker.dispatch")


class DelayingCursor(EntryCursor, Protocol):
    """A cursor whose reads skip delayed entries. `buckets`: None if it is not durable."""

    @property
    def buckets(self) -> Buckets | None:
        """Where the times of delayed entries are saved."""
        ...

    @property
    def mark_delete(self) -> Position:
        """The position up to which everything is acknowledged."""
        ...

    @property
    def read_position(self) -> Position:
        """The position at which the next read begins."""
        ...

    async def read(self, entries_max: int, bytes_max: int, besides: AckRanges | None = None) -> list[StoredEntry]:
        """Return the next unacknowledged entries that are not in `besides`; [] at the tail."""
        ...


class _Saved:
    """A bucket in use, with up to two of its pages. `due_ms`: when it has work; None while a page is being read."""

    __slots__ = ("ahead", "at", "bucket", "due_ms", "is_loading", "next_page", "page")

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.page: Page | None = None
        self.at = 0  # entries of the page before this one came out
        self.ahead: Page | None = None
        self.next_page = 0
        self.is_loading = False
        self.due_ms: int | None = None

    @property
    def left(self) -> int:
        """How many of its entries have not come out; some may be acknowledged."""
        unread = sum(entries for _, entries in self.bucket.head.pages[self.next_page :])
        return unread + sum(len(page) for page in (self.page, self.ahead) if page is not None) - self.at

    @property
    def wants_page(self) -> bool:
        return self.ahead is None and not self.is_loading and self.next_page < len(self.bucket.head.pages)

    @property
    def load_at_ms(self) -> int:
        return self.bucket.head.pages[self.next_page][0] - LEAD_MS

    @property
    def next_ms(self) -> int | None:
        """When to look at it next."""
        found = [self.load_at_ms] if self.wants_page else []
        if self.page is not None:
            found.append(self.page.times_ms[self.at])
        return min(found, default=None)

    @property
    def is_empty(self) -> bool:
        return self.page is None and not self.is_loading and self.next_page == len(self.bucket.head.pages)

    def arrived(self, page: Page) -> None:
        self.next_page += 1
        self.is_loading = False
        if self.page is None:
            self.page, self.at = page, 0
        else:
            self.ahead = page

    def passed(self, at: int) -> None:
        """Note that the entries of the page before `at` came out."""
        assert self.page is not None and self.at <= at <= len(self.page)
        self.at = at
        if at == len(self.page):
            self.page, self.at, self.ahead = self.ahead, 0, None


class DelayedIndex:
    """Delayed entries by delivery time. `slots`: the kind of slots that they have, empty if none."""

    def __init__(
        self,
        cursor: DelayingCursor,
        ledger: EntryLedger,
        settings: DispatchSettings,
        clock: WallClock,
        time_and_slot: Callable[[StoredEntry], tuple[int, int]],
        wake: Callable[[], None],
    ) -> None:
        """`time_and_slot`: of an entry that is read again. `wake`: called when `take_due` may have work earlier."""
        self.waiting = AckRanges()
        """The entries that come out of here later. Do not change them."""
        self.slots = ""
        self.is_loaded = False
        self._cursor = cursor
        self._buckets = cursor.buckets if cursor.buckets is not None and settings.delayed_delivery else None
        self._ledger = ledger
        self._settings = settings
        self._clock = clock
        self._time_and_slot = time_and_slot
        self._wake = wake
        self._queues = [DelayedQueue()]
        self._saved: dict[_Saved, None] = {}  # in a fixed order: a simulation repeats
        self._events: list[tuple[int, int, _Saved]] = []  # a heap: when to look at a bucket, a number, the bucket
        self._numbers = count()
        self._tasks = Background(log)
        self._gate = asyncio.Semaphore(DELAYED_PAGES_AT_ONCE)
        self._is_saving = False

    def __len__(self) -> int:
        return self.waiting.entries

    @property
    def in_memory(self) -> int:
        """Entries that are in no bucket."""
        return sum(map(len, self._queues))

    @property
    def is_full(self) -> bool:
        """Whether no more entries may be added now."""
        return len(self) >= self._settings.delayed_entries_max or self.in_memory >= DELAYED_IN_MEMORY_MAX

    # ---- adding and taking entries
    def add(self, deliver_at_ms: int, position: Position, slot: int, now_ms: int) -> None:
        """Keep an entry until it is due."""
        self.waiting.add(position.ledger_id, position.entry_id, position.entry_id)
        self._queue(deliver_at_ms, position, slot, now_ms)

    def _queue(self, deliver_at_ms: int, position: Position, slot: int, now_ms: int) -> None:
        self._queues[-1].add(deliver_at_ms, position, slot, now_ms)
        if self._buckets is not None and len(self._queues[-1]) >= self._bucket_entries:
            self._queues.append(DelayedQueue())
            self._save_soon()

    @property
    def _bucket_entries(self) -> int:
        """How many entries become a bucket: several times those of the smallest of too many buckets."""
        return max(self._settings.delayed_bucket_entries, 4 * len(self) // DELAYED_BUCKETS_MAX)

    def take_due(self, now_ms: int, due_max: int, looks_max: int) -> list[tuple[Position, int]]:
        """Remove and return up to `due_max` due entries with their slots. Looks at about `looks_max` entries.

        Those that the cursor has not reached yet are removed only: it reads them, in order with others of their key.
        """
        found: list[tuple[Position, int]] = []
        due = [queue for queue in self._queues if (due_ms := queue.due_in_ms(now_ms)) is not None and due_ms <= 1]
        for queue in due:
            share = max(1, looks_max // len(due))
            for position, slot in queue.take_due(now_ms, due_max - len(found), share):
                self._take(position, slot, found)
        while looks_max > 0 and len(found) < due_max and self._events and self._events[0][0] <= now_ms:
            due_ms, _, saved = heapq.heappop(self._events)
            if saved in self._saved and saved.due_ms == due_ms:
                looks_max -= self._take_saved(saved, now_ms, min(looks_max, due_max - len(found)), found)
                self._schedule(saved, now_ms)
        return found

    def _take_saved(self, saved: _Saved, now_ms: int, entries_max: int, found: list[tuple[Position, int]]) -> int:
        """Move up to `entries_max` due entries of one page to `found`. Return at how many it has looked, at least 1."""
        page, first = saved.page, saved.at
        if page is None:
            return 1
        end = min(bisect_right(page.times_ms, now_ms, first), first + entries_max)
        for at in range(first, end):
            self._take(*_entry_of(saved.bucket, page, at), found)
        saved.passed(end)
        return max(1, end - first)

    def _take(self, position: Position, slot: int, found: list[tuple[Position, int]]) -> None:
        if self.waiting.remove(position.ledger_id, position.entry_id) and position < self._cursor.read_position:
            found.append((position, slot))

    def _schedule(self, saved: _Saved, now_ms: int) -> None:
        if saved.is_empty:
            self._remove(saved)
            return
        if saved.wants_page and saved.load_at_ms <= now_ms:
            saved.is_loading = True
            self._tasks.start(self._load_page(saved), f"reading delayed entries of {self._cursor.name}")
        self._look_at(saved, saved.next_ms)

    def _forget(self, saved: _Saved) -> None:
        self._saved.pop(saved, None)
        if self._buckets is not None:
            self._buckets.release(saved.bucket)

    def _remove(self, saved: _Saved) -> None:
        self._forget(saved)
        self._drop([saved.bucket.record])

    def _drop(self, records: list[BucketRecord]) -> None:
        if self._buckets is not None:
            self._buckets.drop_soon(records)

    def due_in_ms(self, now_ms: int) -> int | None:
        """Return the milliseconds until `take_due` has work, at least 1; None if there is none."""
        found = [due_ms for queue in self._queues if (due_ms := queue.due_in_ms(now_ms)) is not None]
        if self._events:
            found.append(max(1, self._events[0][0] - now_ms))
        return min(found, default=None)

    def drop_through(self, position: Position) -> None:
        """Drop the entries up to and including `position`, because they are acknowledged."""
        self.waiting.drop_through(position.ledger_id, position.entry_id)
        for queue in self._queues:
            if queue.highest <= position:
                queue.clear()
        for saved in [known for known in self._saved if known.bucket.record.last <= position]:
            self._remove(saved)

    def clear(self) -> None:
        """Drop all entries and buckets, because the cursor was moved: the entries are read again."""
        self.waiting.clear()
        self._queues = [DelayedQueue()]
        for saved in list(self._saved):
            self._remove(saved)
        self._events.clear()

    async def close(self) -> None:
        """End its tasks. Saved buckets stay for the next owner."""
        await self._tasks.close()
        for saved in list(self._saved):
            self._forget(saved)

    # ---- buckets: loading
    async def load(self) -> None:
        """Load the buckets that an earlier owner saved. One that cannot be used is dropped: its entries are read."""
        self.is_loaded = True
        buckets = self._buckets
        if buckets is None:
            if self._cursor.buckets is not None:
                self._cursor.buckets.drop_soon(self._cursor.buckets.records)
            return
        mark, end, records = self._cursor.mark_delete, self._ledger.last_confirmed, buckets.records
        usable = [record for record in records if mark < record.last <= end]
        self._drop([record for record in records if record not in usable])
        loaded = await asyncio.gather(*(self._load_head(buckets, record) for record in usable))
        for bucket, chunks in [found for found in loaded if found is not None]:
            await self._add_chunks(chunks)
            self._adopt(bucket)
        self.waiting.drop_through(mark.ledger_id, mark.entry_id)
        if self._saved:
            log.info(
                "subscription %s of %s has %d delayed entries in %d buckets",
                self._cursor.name, self._ledger.name, len(self), len(self._saved),
            )  # fmt: skip

    async def _load_head(self, buckets: Buckets, record: BucketRecord) -> tuple[Bucket, list[Chunk]] | None:
        async with self._gate:
            try:
                return await buckets.load(record, self.slots)
            except QuireError as error:
                log.warning(
                    "delayed entries of subscription %s of %s are read again, their bucket is dropped: %s",
                    self._cursor.name, self._ledger.name, error,
                )  # fmt: skip
                self._drop([record])
                return None

    async def _add_chunks(self, chunks: list[Chunk]) -> None:
        for first in range(0, len(chunks), _CHUNKS_PER_STEP):
            for ledger_id, number, bits in chunks[first : first + _CHUNKS_PER_STEP]:
                self.waiting.add_chunk(ledger_id, number, bits)
            await asyncio.sleep(0)

    def _adopt(self, bucket: Bucket) -> None:
        saved = _Saved(bucket)
        self._saved[saved] = None
        self._look_at(saved, 0)

    def _look_at(self, saved: _Saved, at_ms: int | None) -> None:
        """Make `take_due` look at a bucket at this time; None: when a page has arrived."""
        saved.due_ms = at_ms
        if at_ms is not None:
            heapq.heappush(self._events, (at_ms, next(self._numbers), saved))

    async def _load_page(self, saved: _Saved) -> None:
        buckets = self._buckets
        assert buckets is not None, "a bucket is in use"
        try:
            async with self._gate:
                page = await buckets.page(saved.bucket, saved.next_page)
        except QuireError as error:
            if saved in self._saved:
                await self._read_entries_of(saved, error)
            return
        if saved in self._saved:
            saved.arrived(page)
            self._look_at(saved, saved.next_ms)
            self._wake()

    # ---- buckets: replacing one that cannot be read
    async def _read_entries_of(self, saved: _Saved, why: QuireError) -> None:
        """Read the entries of a bucket again and drop it. Their bits stay set meanwhile, so nothing else reads them."""
        self._forget(saved)
        record, mark = saved.bucket.record, self._cursor.mark_delete
        self.waiting.drop_through(mark.ledger_id, mark.entry_id)
        position, backoff = Position(*saved.bucket.head.first), Backoff(_BACKOFF_S)
        if record.last > mark:
            log.warning(
                "delayed entries of subscription %s of %s are read again, a page of their bucket cannot be read: %s",
                self._cursor.name, self._ledger.name, why,
            )  # fmt: skip
        while (first := self._next_waiting(position)) is not None and first <= record.last:
            try:
                entries = await self._ledger.read(
                    first, entries_max=self._settings.read_batch_entries, bytes_max=self._settings.read_batch_bytes
                )
            except QuireError as error:
                log.info("could not read delayed entries of %s, trying again: %s", self._ledger.name, error)
                await backoff.wait()
                continue
            position = self._put_again(first, entries, record.last)
            self._wake()
        self._drop([record])

    def _put_again(self, first: Position, entries: list[StoredEntry], last: Position) -> Position:
        """Add those of the entries that wait to a queue. Return where to read on."""
        found = entries[0].position if entries else last.following
        while first < found:  # these entries do not exist any more
            self.waiting.remove(first.ledger_id, first.entry_id)
            following = self._next_waiting(first)
            if following is None:
                return last.following
            first = following
        for entry in entries:
            if entry.position in self.waiting and entry.position <= last:
                deliver_at_ms, slot = self._time_and_slot(entry)
                self.add(deliver_at_ms, entry.position, slot, self._clock.now_ms())
        return entries[-1].position.following if entries else last.following

    def _next_waiting(self, start: Position) -> Position | None:
        """Return the first entry from `start` on that waits."""
        for ledger_id in self.waiting.ledgers():
            if ledger_id >= start.ledger_id:
                after = start.entry_id - 1 if ledger_id == start.ledger_id else -1
                found = self.waiting.entry_after(ledger_id, after)
                if found is not None:
                    return Position(ledger_id, found)
        return None

    # ---- buckets: saving
    def _save_soon(self) -> None:
        if not self._is_saving:
            self._is_saving = True
            self._tasks.start(self._save_all(), f"saving delayed entries of {self._cursor.name}")

    async def _save_all(self) -> None:
        backoff = Backoff(_BACKOFF_S)
        try:
            while len(self._queues) > 1:
                try:
                    await self._save(self._queues[0])
                    backoff.reset()
                except QuireError as error:
                    log.info(
                        "could not save the delivery times of subscription %s of %s, trying again: %s",
                        self._cursor.name, self._ledger.name, error,
                    )  # fmt: skip
                    await backoff.wait()
        finally:
            self._is_saving = False

    async def _save(self, queue: DelayedQueue) -> None:
        buckets = self._buckets
        assert buckets is not None, "queues are only split to be saved"
        draft = await self._draft_of(queue)
        bucket = None if draft is None else await buckets.save(draft)
        if queue in self._queues:
            self._queues.remove(queue)
            if bucket is not None:
                self._adopt(bucket)
        elif bucket is not None:
            self._drop([bucket.record])
        self._wake()
        if len(self._saved) > DELAYED_BUCKETS_MAX:
            await self._dissolve(min(self._saved, key=lambda saved: saved.left))

    async def _draft_of(self, queue: DelayedQueue) -> Draft | None:
        """Return the entries of a queue that still wait, to be saved; None if there are none."""
        ledgers, positions = list(queue.ledgers), AckRanges()
        runs: list[list[int]] = []
        rows: list[int] = []
        for times_ms, keys, slots in list(queue.columns()):
            for at, key in enumerate(keys):
                position = position_of(key, ledgers)
                if position not in self.waiting:
                    continue
                if self._cursor.is_acknowledged(position):
                    self.waiting.remove(position.ledger_id, position.entry_id)
                    continue
                positions.add(position.ledger_id, position.entry_id, position.entry_id)
                slot = NO_SLOT if slots is None else slots[at]
                rows.append(times_ms[at] << _TIME_SHIFT | key << _SLOT_BITS | slot - NO_SLOT)
                if len(rows) == PAGE_ENTRIES // 2:
                    rows.sort()
                    runs.append(rows)
                    rows = []
                    await asyncio.sleep(0)
        runs.append(sorted(rows))
        return Draft(_pages(runs), positions, ledgers, self.slots) if positions else None

    # ---- buckets: joining
    async def _dissolve(self, saved: _Saved) -> None:
        """Move the entries left of a bucket to the last queue, to be saved with it, and drop the bucket."""
        buckets, bucket = self._buckets, saved.bucket
        assert buckets is not None, "a bucket is in use"
        self._saved.pop(saved, None)
        try:
            for page, first in ((saved.page, saved.at), (saved.ahead, 0)):
                if page is not None:
                    self._queue_page(bucket, page, first)
            for number in range(saved.next_page, len(bucket.head.pages)):
                async with self._gate:
                    page = await buckets.page(bucket, number)
                self._queue_page(bucket, page, 0)
                await asyncio.sleep(0)
        except QuireError as error:
            await self._read_entries_of(saved, error)
        else:
            self._drop([bucket.record])
        finally:
            buckets.release(bucket)

    def _queue_page(self, bucket: Bucket, page: Page, first: int) -> None:
        now_ms = self._clock.now_ms()
        for at in range(first, len(page)):
            position, slot = _entry_of(bucket, page, at)
            if position in self.waiting:
                self._queue(page.times_ms[at], position, slot, now_ms)


def _entry_of(bucket: Bucket, page: Page, at: int) -> tuple[Position, int]:
    """Return position and slot of an entry of a page."""
    position = position_of(page.keys[at], bucket.head.ledgers)
    return position, NO_SLOT if page.slots is None else page.slots[at]


def _pages(runs: list[list[int]]) -> Iterator[Page]:
    """Yield the sorted rows of all runs, page by page."""
    merged = heapq.merge(*runs)
    key_mask, slot_mask = (1 << _KEY_BITS) - 1, (1 << _SLOT_BITS) - 1
    while rows := list(islice(merged, PAGE_ENTRIES)):
        slots = [(row & slot_mask) + NO_SLOT for row in rows]
        yield Page(
            array("q", [row >> _TIME_SHIFT for row in rows]),
            array("q", [row >> _SLOT_BITS & key_mask for row in rows]),
            array("i", slots) if any(slot != NO_SLOT for slot in slots) else None,
        )
