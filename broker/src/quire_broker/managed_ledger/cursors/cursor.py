"""One cursor: which entries are acknowledged, which is read next, and when that is saved.

The mark-delete position is the last entry of the gapless acknowledged part. Entries acknowledged beyond a gap are kept
as ranges, partly acknowledged batches as masks. The mark-delete position moves only over acknowledged entries.
Acknowledging is synchronous and cheap. Snapshots are saved in the background, after 100 changes or one second, one at
a time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby, repeat
from operator import eq, itemgetter

from quire_bookie.errors import BadVersionError, MetadataUnavailableError, QuireError
from quire_bookie.metadata.joint_write import Transact
from quire_bookie.metadata.store import Check, Operation
from quire_broker.managed_ledger.context import ManagedLedgerContext
from quire_broker.managed_ledger.cursors.ack_ranges import AckRanges
from quire_broker.managed_ledger.cursors.ack_set import full_mask, mask_bytes, unacked_mask, words_of
from quire_broker.managed_ledger.cursors.bucket_format import BucketRecord
from quire_broker.managed_ledger.cursors.buckets import Buckets
from quire_broker.managed_ledger.cursors.cursor_fix import advanced, next_span
from quire_broker.managed_ledger.cursors.cursor_state import CursorState
from quire_broker.managed_ledger.cursors.cursor_store import CursorStore
from quire_broker.managed_ledger.errors import InvalidPositionError, ManagedLedgerClosedError
from quire_broker.managed_ledger.list_store import ListStore
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.managed_ledger.reading.reader import READ_BYTES_MAX, EntryReader

_log = logging.getLogger("quire.managed_ledger")
COMPACTION_CURSOR = "__compaction"
REPLICATED = "pulsar.replicated.subscription"
"""Integer property of a subscription whose position other clusters want; the name that stock brokers use."""
_SAVED_BYTES_PER_S = 8 << 20
"""A state of more than `_PACED_BYTES_MIN` is saved less often than every 100 changes: it would fill the journals."""
_PACED_BYTES_MIN = 64 << 10
_ledger_of = itemgetter(0)


class Cursor:
    """The progress of one subscription. A `durable` cursor survives a restart and holds back trimming."""

    def __init__(
        self,
        name: str,
        context: ManagedLedgerContext,
        lists: ListStore,
        reader: EntryReader,
        state: CursorState,
        store: CursorStore | None,
        *,
        trimming: asyncio.Lock,
        passed_ledger: Callable[[], None],
        moved: Callable[[], None],
        lost_node: Callable[[], None],
    ) -> None:
        """Initialise the cursor; `trimming`: see `Cursors`.

        Calls `passed_ledger()` when trimming may have work, `moved()` after a seek, `lost_node()` when another owner
        wrote the cursor's node.
        """
        self.name = name
        self.durable = store is not None
        self.active = True
        """Whether consumers wait for what it reads, so that these entries are worth caching. Its owner sets it."""
        self._context = context
        self._lists = lists
        self._ledgers = lists.ledgers
        self._reader = reader
        self._state = state
        self._masks_bytes = sum(map(mask_bytes, state.batches.values()))
        self._masks_full_logged = False
        self._store = store
        self._trimming = trimming
        self._seeking: Position | None = None  # the new mark-delete position of a seek that is being saved
        self._passed_ledger = passed_ledger
        self._moved = moved
        self._lost_node = lost_node
        self._read_position = self._ledgers.next_position(state.mark_delete)
        self._moves = 0  # count of rewinds and seeks: a read that began before one does not move the read position
        self._unsaved = 0
        self._saved: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lock = asyncio.Lock()
        self._closed = False
        self.buckets = None if store is None else Buckets(context, self)
        """Saved delivery times of delayed entries; None if the cursor is not durable."""

    # ---- position
    @property
    def mark_delete(self) -> Position:
        """The mark-delete position: every entry up to and including it is acknowledged."""
        return self._state.mark_delete

    @property
    def holds_back(self) -> Position:
        """The position that trimming must not pass: the mark-delete position, or the target of a seek in progress."""
        mark = self._state.mark_delete
        return mark if self._seeking is None else min(mark, self._seeking)

    @property
    def read_position(self) -> Position:
        """The position at which the next read begins."""
        return self._read_position

    @property
    def acknowledged_ranges(self) -> AckRanges:
        """The entries that are acknowledged beyond the mark-delete position. Do not change them."""
        return self._state.ranges

    @property
    def keeps_all_acks(self) -> bool:
        """Whether acks of the entries that `read` returns next can all be saved: few ranges, or gaps between them."""
        ranges, most = self._state.ranges, self._context.settings.unacked_ranges_max
        if ranges.entries < most or len(ranges) < most:
            return True
        last = ranges.ledgers()[-1]
        return self._read_position <= Position(last, ranges.last_of(last))

    @property
    def properties(self) -> dict[str, int]:
        """The integer properties that are saved with the position. Do not change them; see `set_properties`."""
        return self._state.properties

    @property
    def cursor_properties(self) -> dict[str, str]:
        """The subscription's own properties, as given to `open_cursor`. Do not change them."""
        return self._store.cursor_properties if self._store is not None else {}

    @property
    def last_active_ms(self) -> int:
        """When a consumer last used it, in ms since the epoch; of a cursor that is not durable: now."""
        return self._context.clock.now_ms() if self._store is None else self._store.last_active_ms

    def touch(self) -> None:
        """Note that a consumer uses it. Saved with the node."""
        if self._store is not None:
            self._store.last_active_ms = self._context.clock.now_ms()

    @property
    def backlog(self) -> int:
        """The number of entries that are not acknowledged; a batch counts as one."""
        between = self._ledgers.entries_between(self._state.mark_delete, self._ledgers.last_confirmed)
        return max(0, between - self._state.ranges.entries)

    @property
    def has_more(self) -> bool:
        """Whether entries follow the read position. All of them may already be individually acknowledged."""
        return self._read_position <= self._ledgers.last_confirmed

    @property
    def store(self) -> CursorStore | None:
        """The store of the cursor's state; None if the cursor is not durable."""
        return self._store

    # ---- reading
    async def read(
        self, entries_max: int, bytes_max: int = READ_BYTES_MAX, besides: AckRanges | None = None
    ) -> list[StoredEntry]:
        """Return the next unacknowledged entries and move the read position behind them; [] at the tail.

        Without those of `besides`, which the caller has read before.
        """
        while True:
            self._check_open()
            moves = self._moves
            run = self._next_read(entries_max, besides)
            if run is None:
                return []
            found = await self._reader.read(run[0], run[1], bytes_max)
            if moves != self._moves:
                continue  # the cursor was rewound during the read, which makes this result obsolete
            if not found:
                return []
            assert run[0] <= found[0].position <= found[-1].position and len(found) <= run[1]
            found = self._pass(found, besides)
            if found:
                return found

    def read_cached(self, entries_max: int, bytes_max: int) -> Sequence[StoredEntry]:
        """Do what `read` does if the cache has the next entries; else return nothing, and `read` has to be awaited.

        Cursors that read the same entries in one turn of the loop get the same sequence: do not change it.
        """
        if self._closed:
            return ()
        state, start = self._state, self._read_position
        is_plain = not state.ranges and start > state.mark_delete
        if not is_plain:
            run = self._next_read(entries_max, None)
            if run is None:
                return ()
            start, entries_max = run
        read = self._reader.read_cached(start, entries_max, bytes_max)
        if read is None:
            return ()
        if not is_plain:
            return self._pass(read.entries, None)
        self._read_position = read.following
        return read.entries

    def _next_read(self, entries_max: int, besides: AckRanges | None) -> tuple[Position, int] | None:
        """Return where to read and how many entries; None at the tail."""
        ledgers = self._ledgers
        start = max(self._read_position, ledgers.next_position(self._state.mark_delete))
        run = next_span(ledgers, [ranges for ranges in (self._state.ranges, besides) if ranges], start, entries_max)
        if run is None:
            self._read_position = ledgers.next_position(ledgers.last_confirmed)
            return None
        assert run[0] >= start and run[1] > 0, "a read begins behind the mark-delete position"
        return run

    def _pass(self, found: list[StoredEntry], besides: AckRanges | None) -> list[StoredEntry]:
        """Move the read position behind these entries. Return those that are not acknowledged, nor in `besides`."""
        self._read_position = self._ledgers.next_position(found[-1].position)
        ranges, mark = self._state.ranges, self._state.mark_delete
        if ranges or found[0].position <= mark:  # acknowledged while they were read
            found = [entry for entry in found if entry.position > mark and entry.position not in ranges]
        return [entry for entry in found if entry.position not in besides] if besides else found

    def rewind(self) -> None:
        """Move the read position back to the first unacknowledged entry."""
        self._moves += 1
        self._read_position = self._ledgers.next_position(self._state.mark_delete)

    def set_read_position(self, position: Position) -> None:
        """Read from `position` on, but not before the mark-delete position."""
        self._moves += 1
        first = self._ledgers.next_position(self._state.mark_delete)
        self._read_position = max(first, self._ledgers.at_or_after(position))

    # ---- acknowledging
    def acknowledge(self, positions: Iterable[Position]) -> None:
        """Acknowledge single entries. Raises InvalidPositionError and changes nothing if one is after the last
        confirmed.

        Entries that no longer exist or are already acknowledged change nothing.
        """
        wanted = positions if isinstance(positions, Sequence) else list(positions)
        if not wanted:
            return
        ledgers, state = self._ledgers, self._state
        if (highest := max(wanted)) > ledgers.last_confirmed:
            raise self._beyond(highest)
        if state.batches:
            for position in wanted:
                self._drop_mask(position)
        before, changed = state.mark_delete, 0
        if self._continues_mark(wanted):
            state.mark_delete, changed = wanted[-1], len(wanted)
        else:
            for ledger_id, group in groupby(wanted, _ledger_of):
                end = ledgers.entries_in(ledger_id)
                if ledger_id < before.ledger_id or not end:
                    continue
                first = before.entry_id + 1 if ledger_id == before.ledger_id else 0
                changed += state.ranges.add_all(ledger_id, [entry for _, entry in group if first <= entry < end])
        if changed:
            self._advance(before, changed)

    def _continues_mark(self, wanted: Sequence[Position]) -> bool:
        """Return whether these are the next entries behind the mark-delete position, of one ledger and in order."""
        ledger_id, first = wanted[0]
        last = wanted[-1].entry_id
        return (
            not self._state.ranges
            and last - first + 1 == len(wanted)
            and wanted[0] == self._ledgers.next_position(self._state.mark_delete)
            and last < self._ledgers.entries_in(ledger_id)
            and all(map(eq, wanted, zip(repeat(ledger_id), range(first, last + 1), strict=False)))
        )

    def acknowledge_batch(self, position: Position, ack_set: Sequence[int], batch_size: int) -> bool:
        """Acknowledge messages of one batch.

        Set bits in the words remain. Return True if the whole entry is acknowledged.
        """
        if position > self._ledgers.last_confirmed:
            raise self._beyond(position)
        if self.is_acknowledged(position) or not self._ledgers.holds(position):
            return True
        known = self._state.batches.get(position)
        whole = full_mask(batch_size)
        remaining = (whole if known is None else known) & unacked_mask(ack_set) & whole
        if remaining == 0:
            self.acknowledge([position])
            return True
        assert known is None or remaining & known == remaining, "an acknowledged message stays acknowledged"
        if remaining != known:
            self._keep_mask(position, known, remaining)
        return False

    def _keep_mask(self, position: Position, known: int | None, remaining: int) -> None:
        """Note what remains of a batch; drop the note, so that the batch is delivered again, where there is no room."""
        grown = mask_bytes(remaining) - (0 if known is None else mask_bytes(known))
        bound = self._context.settings.batch_masks_bytes_max
        if known is None and self._masks_bytes + grown > bound:
            if not self._masks_full_logged:
                self._masks_full_logged = True
                _log.warning(
                    "cursor %s of %s holds %d bytes about parts of batches, the most are %d: further batches are "
                    "delivered again until all their messages are acknowledged; acknowledge whole batches, or raise "
                    "batchIndexAcksMaxMbPerSubscription",
                    self.name,
                    self._context.name,
                    self._masks_bytes,
                    bound,
                )
            return
        self._state.batches[position] = remaining
        self._masks_bytes += grown
        self._note_change(1)

    def _drop_mask(self, position: Position) -> None:
        mask = self._state.batches.pop(position, None)
        if mask is not None:
            self._masks_bytes -= mask_bytes(mask)
            assert self._masks_bytes >= 0

    def acknowledge_cumulative(self, position: Position, ack_set: Sequence[int] | None = None) -> None:
        """Acknowledge everything up to `position`; with `ack_set`, of that entry only the messages whose bits are
        clear.

        Raises InvalidPositionError after the last confirmed entry. A position already passed changes nothing.
        """
        if position > self._ledgers.last_confirmed:
            raise self._beyond(position)
        state, before = self._state, self._state.mark_delete
        remaining = 0 if ack_set is None else unacked_mask(ack_set)
        target = position if self._ledgers.holds(position) else self._ledgers.previous_position(position)
        if remaining and position > before and self._ledgers.holds(position):
            known = state.batches.get(position)
            remaining = remaining if known is None else known & remaining
            if remaining and position not in state.ranges:
                target = self._ledgers.previous_position(position)
                if remaining != known:
                    self._keep_mask(position, known, remaining)
        if target <= before:
            return
        state.mark_delete = target
        state.ranges.drop_through(target.ledger_id, target.entry_id)
        self._advance(before, 1)

    @property
    def has_ack_sets(self) -> bool:
        """Whether a batch is partly acknowledged."""
        return bool(self._state.batches)

    def ack_set(self, position: Position) -> tuple[int, ...] | None:
        """Return words whose set bits are the unacknowledged messages of a batch.

        None if none of it was acknowledged.
        """
        mask = self._state.batches.get(position)
        return None if mask is None or position <= self._state.mark_delete else words_of(mask)

    def is_acknowledged(self, position: Position) -> bool:
        """Return whether the whole entry is acknowledged."""
        return position <= self._state.mark_delete or position in self._state.ranges

    def _beyond(self, position: Position) -> InvalidPositionError:
        return InvalidPositionError(
            f"cursor {self.name}: {position} is beyond the last confirmed entry {self._ledgers.last_confirmed}"
        )

    def _advance(self, before: Position, changed: int) -> None:
        state = self._state
        mark = state.mark_delete = advanced(state.mark_delete, state.ranges, self._ledgers)
        assert before <= mark, "the mark-delete position never goes back"
        if mark != before:
            if state.batches:
                state.batches = {position: mask for position, mask in state.batches.items() if position > mark}
                self._masks_bytes = sum(map(mask_bytes, state.batches.values()))
            if self._read_position <= mark:
                self._read_position = self._ledgers.next_position(mark)
            if mark.ledger_id != before.ledger_id or self._ends_ledger(mark):
                self._passed_ledger()
            if self.buckets is not None and self.buckets.lowest <= mark:
                self.buckets.passed(mark)
        self._note_change(changed)

    def _ends_ledger(self, mark: Position) -> bool:
        ledgers = self._ledgers
        return mark.ledger_id != ledgers.tail and mark.entry_id + 1 == ledgers.entries_in(mark.ledger_id)

    # ---- saving
    def set_properties(self, properties: Mapping[str, int]) -> None:
        """Replace the integer properties. They are saved together with the position, never separately."""
        self._state.properties = dict(properties)
        self._note_change(1)

    async def set_cursor_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the subscription's own properties durably. Raises errors of the metadata store."""
        if self._store is not None:
            async with self._lock:
                store = self._store
                await self._guarded(lambda: store.set_cursor_properties(dict(properties), self._state))

    # ---- buckets of delayed entries
    @property
    def bucket_records(self) -> tuple[BucketRecord, ...]:
        """The buckets that the node names."""
        return () if self._store is None else self._store.buckets

    async def add_bucket(self, record: BucketRecord) -> None:
        """Name one more bucket in the node, whose ledger is recorded as unreferenced. Errors of the store."""
        await self._write_buckets(lambda store: store.add_bucket(record, self._state))

    async def drop_buckets(self, records: Collection[BucketRecord]) -> None:
        """Name these buckets no more, and delete their ledgers. Errors of the store."""
        await self._write_buckets(lambda store: store.drop_buckets(records, self._state))

    async def _write_buckets(self, write: Callable[[CursorStore], Awaitable[None]]) -> None:
        store = self._store
        assert store is not None, "only a durable cursor has buckets"
        async with self._lock:
            self._check_open()
            await self._guarded(lambda: write(store))

    def _note_change(self, count: int) -> None:
        if self._store is None or self._closed:
            return
        self._unsaved += count
        if self._unsaved >= self._context.settings.cursor_persist_acks:
            self._save_soon()
        elif self._timer is None:
            interval_s = self._context.settings.cursor_persist_interval_s
            self._timer = asyncio.get_running_loop().call_later(interval_s, self._save_soon)

    def _save_soon(self) -> None:
        self._stop_timer()  # also if it has fired: what changes during a save starts it again
        if self._saved is None and not self._closed:
            self._saved = self._context.background.spawn(self._save_in_background(), f"saving of cursor {self.name}")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _save_in_background(self) -> None:
        settings = self._context.settings
        assert self._store is not None
        try:
            before = self._store.stats.snapshot_bytes
            await self.flush()
            saved_bytes = self._store.stats.snapshot_bytes - before
            if saved_bytes > _PACED_BYTES_MIN:
                await asyncio.sleep(min(saved_bytes / _SAVED_BYTES_PER_S, settings.cursor_persist_interval_s))
        except QuireError as error:
            _log.info("could not save cursor %s of %s, trying again: %s", self.name, self._context.name, error)
            await asyncio.sleep(settings.cursor_persist_interval_s)
        finally:
            self._saved = None
        if self._unsaved:
            self._note_change(0)

    async def flush(self) -> None:
        """Save all acknowledgments so far. After an error it is unknown whether they are saved; a retry follows."""
        if self._store is None:
            return
        async with self._lock:
            self._check_open()  # changes after the close are never saved, so they must not be reported as saved
            if self._unsaved:
                covered = self._unsaved
                await self._guarded_save(self._state)
                self._unsaved -= covered

    async def _guarded_save(self, state: CursorState) -> None:
        store = self._store
        assert store is not None
        await self._guarded(lambda: store.save(state))

    async def _guarded(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write the node. If another owner wrote it although the list is still ours, write once more.

        A former owner that has not noticed the take-over may still write its cursors. It cannot overwrite our second
        write, because it knows only the earlier version.
        """
        assert self._store is not None
        try:
            await write()
        except BadVersionError:
            if not await self._lists.still_owned():
                self._lost_node()
                raise
            await self._store.refresh()
            await write()

    def may_leave(self, ledger_id: int) -> bool:
        """Return whether its state is in this ledger and `leave` would move it."""
        return not self._closed and self._store is not None and self._store.may_leave(ledger_id)

    async def leave(self, ledger_id: int) -> bool:
        """Save the state outside this ledger, which is then deleted. Return whether it was there. QuireError."""
        store = self._store
        assert store is not None, "only a durable cursor has a ledger"
        async with self._lock:
            if not self.may_leave(ledger_id):
                return False
            covered = self._unsaved
            await self._guarded(lambda: store.leave(self._state))
            self._unsaved -= covered
        return True

    async def reset(self, position: Position) -> None:
        """Seek: everything before `position` counts as acknowledged, nothing from there on. Durable when it returns.

        Accepts EARLIEST and LATEST. Drops the integer properties, except those of the compaction cursor and
        `REPLICATED`. Drops acknowledgments that arrive meanwhile.
        """
        self._check_open()
        async with self._lock:
            async with self._trimming:
                # Ledgers that a trimming has already chosen are lost to this seek; the seek holds back the next
                # trimming.
                start = self._ledgers.at_or_after(position)
                mark = min(self._ledgers.previous_position(start), self._ledgers.last_confirmed)
                self._seeking = mark
            properties = self._state.properties
            if self.name != COMPACTION_CURSOR:
                properties = {REPLICATED: properties[REPLICATED]} if REPLICATED in properties else {}
            state = CursorState(mark, properties=dict(properties))
            try:
                if self._store is not None:
                    await self._guarded_save(state)
            except BaseException:
                self._seeking = None
                self._note_change(1)  # the new state may have been stored: save the valid state over it
                raise
            self._state = state
            self._masks_bytes = 0
            self._seeking = None
            self._unsaved = 0
            self._moves += 1
            self._read_position = self._ledgers.next_position(mark)
            if self.buckets is not None:
                self.buckets.drop_soon(self.buckets.records)
            self._moved()

    async def place(
        self, position: Position, properties: Mapping[str, int], also: Sequence[Operation], checks: Sequence[Check]
    ) -> None:
        """Acknowledge everything up to `position`, with other integer properties, in one transaction with `also`.

        In memory nothing changes before it is stored: trimming must not pass a position that a crash would forget.
        BadVersionError if another owner wrote the list, or a check failed.
        """
        self._check_open()
        store = self._store
        assert store is not None, "only a durable cursor is placed"
        async with self._lock:
            self._check_open()
            state = CursorState(position, properties=dict(properties))
            await self._guarded(lambda: self._lists.while_owned(lambda ours: store.place(state, also, [ours, *checks])))
            self._state = state
            self._masks_bytes = 0
            self._unsaved = 0
            self._moves += 1
            self._read_position = self._ledgers.next_position(position)
            self._passed_ledger()

    async def close(self, transact: Transact | None = None) -> None:
        """Save the state and release the cursor. After an error the state saved last is valid.

        `transact`: writes the node.
        """
        if self._closed:
            return
        self._closed = True
        self._stop_timer()
        if self._store is not None:
            store = self._store
            async with self._lock:
                await self._guarded(lambda: store.close(self._state, dirty=self._unsaved > 0, transact=transact))

    async def remove(self) -> None:
        """Delete the stored state. Called by the managed ledger only. After an error the cursor continues as before."""
        self._closed = True
        self._stop_timer()
        if self._store is not None:
            store = self._store
            try:
                async with self._lock:
                    await self._guarded(store.remove)
            except MetadataUnavailableError:
                self._closed = False
                self._note_change(0)
                raise

    def stop(self) -> None:
        """End without saving, because the managed ledger was fenced or is being deleted."""
        self._closed = True
        self._stop_timer()

    def _check_open(self) -> None:
        if self._closed:
            raise ManagedLedgerClosedError(f"cursor {self.name} of {self._context.name} is closed")
