"""Compaction: copies the live entries of sealed entry logs to new logs and deletes the old ones.

Owns the order that no crash may break: records are copied and synced, then their positions are moved in the index, and
only then is the old log removed from the index and deleted. Never resurrects or reverts an entry: a move takes effect,
under the write lock, only if the index still points to the old record. Never removes a log with a record that could not
be read or looked up, and never copies a record that fails its checksum.

    copy     old log -> compaction's own log, without the write lock; every record is checked; the state of each ledger
             is copied too, because its only record may be in the old log
    commit   under the lock: the new log's state and the moved positions, in bounded batches
    drop     under the lock: remove the old log from the index, then delete the file

A crash at any point leaves each entry in the old log or in the new one, with the index pointing there. A copy keeps the
age of its record (`log_ages`), so that a rebuild of the index uses the newest of several copies in any log, and copies
that are older than a tombstone remain older. The states of a ledger are merged: a fence is never undone.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import field
from typing import Any, Final, Protocol, TypeVar

from quire_bookie.dataclass import dataclass
from quire_bookie.env.index_store import IndexStore
from quire_bookie.env.space_reserve import SpaceReserve
from quire_bookie.errors import DamagedError, DiskFullError, QuireError, StorageError
from quire_bookie.limits import ENTRY_LOG_STRETCH_BYTES, MIB
from quire_bookie.model import Buffer, EntryId, LedgerId
from quire_bookie.storage.flush_worker import FlushWorker
from quire_bookie.storage.formats import log_format
from quire_bookie.storage.formats.block_index import BlockSegment, decode_block
from quire_bookie.storage.formats.block_moves import Move, moved_block, stretches
from quire_bookie.storage.formats.index_keys import BLOCK_SHIFT, block_key, block_of_key, state_key
from quire_bookie.storage.formats.log_ages import LogAges
from quire_bookie.storage.formats.log_format import RECORD_HEADER_BYTES, LedgerMap, LedgerSpan
from quire_bookie.storage.index.index_commits import IndexCommits
from quire_bookie.storage.ledgers.ledger_states import is_deleted
from quire_bookie.storage.logs.log_set import EntryLogs
from quire_bookie.storage.logs.log_usages import LEDGERS_PER_GET, LogUsage, LogUsages

BLOCKS_PER_COMMIT: Final = 2048
"""Index blocks that are moved in one critical section of the write lock."""
BYTES_PER_COMMIT: Final = 64 * MIB
BLOCKS_PER_GET: Final = 64
BATCH_BYTES: Final = 2 * MIB
BATCH_PIECES: Final = 1024
ENTRIES_PER_YIELD: Final = 512
"""Entries between two yields to the event loop: checking and encoding them takes 1 to 2 ms."""
_RESERVE_KEPT_PART: Final = 8
"""Copies may not use this fraction (1/n) of the reserve."""
GAP_BYTES: Final = 32 * 1024
"""Up to this many dead bytes are read too, to avoid a second read."""

_log = logging.getLogger("quire.storage.compaction")
T = TypeVar("T")


class Pace(Protocol):
    """Limits the speed and duration of a compaction. Called between batches of about `BATCH_BYTES`."""

    @property
    def stopping(self) -> bool:
        """Whether to end now; records copied so far are kept."""
        ...

    async def spend(self, size_bytes: int, entries: int, /) -> None:
        """Wait as long as the rate limit requires after these bytes and entries."""
        ...


@dataclass(slots=True)
class CompactionStats:
    """Counters since the start, for the metrics collector."""

    logs_compacted: int = 0
    logs_incomplete: int = 0
    entries_moved: int = 0
    bytes_moved: int = 0
    records_damaged: int = 0
    reclaimed_bytes: int = 0


@dataclass(slots=True)
class _Piece:
    """Records of one block in one stretch of the compacted log. After `_check`, `bodies` holds the intact ones."""

    ledger: LedgerId
    key: bytes
    segment: BlockSegment
    age: int
    bodies: list[Buffer] = field(default_factory=list)
    damaged: set[int] = field(default_factory=set)

    @property
    def size_bytes(self) -> int:
        return sum(self.segment.sizes) + len(self.segment.sizes) * RECORD_HEADER_BYTES

    @property
    def end(self) -> int:
        return self.segment.base + self.size_bytes

    def entry(self, low: int) -> EntryId:
        return EntryId(block_of_key(self.key) << BLOCK_SHIFT | low)

    def intact(self) -> list[BlockSegment]:
        """Return the stretches between damaged records."""
        if not self.damaged:
            return [self.segment]
        found: list[BlockSegment] = []
        offset = -1
        for low, size, start in zip(self.segment.lows, self.segment.sizes, self.segment.offsets(), strict=False):
            if low in self.damaged:
                continue
            if start != offset:
                found.append(BlockSegment(self.segment.log, start, [], []))
            found[-1].lows, found[-1].sizes = [*found[-1].lows, low], [*found[-1].sizes, size]
            offset = start + size + RECORD_HEADER_BYTES
        return found


class _StoppedError(Exception):
    """The pace asked to stop."""


class Compaction:
    """Compacts the logs of one storage, one call at a time."""

    def __init__(
        self,
        index: IndexStore,
        commits: IndexCommits,
        logs: EntryLogs,
        flushes: FlushWorker[Any],
    ) -> None:
        self._index = index
        self._commits = commits
        self._logs = logs
        self._appender = logs.compacted
        self._flushes = flushes
        self._running = asyncio.Lock()
        self._settling = asyncio.Lock()
        """Held to the end even if the caller is cancelled: no rollback during a write or commit."""
        self._moves: dict[bytes, list[Move]] = {}
        self._moving_bytes = 0
        self._since_yield = 0
        self._stated: set[LedgerId] = set()
        self._emptied: set[int] = set()
        self.usages = LogUsages(logs, self._live_ledgers)
        self.damaged: set[int] = set()
        """Logs with an unreadable record: they are kept, and not compacted again."""
        self.stats = CompactionStats()
        self.reserve: SpaceReserve | None = None
        """The reserve of which copies may use a part on a full disk: compaction frees more space than it takes."""

    @property
    def active_logs(self) -> int:
        """The number of entry logs, including those being written."""
        return len(self._logs)

    @property
    def active_log_bytes(self) -> int:
        """Their size on disk."""
        return self._logs.size_bytes()

    async def usages_now(self) -> list[LogUsage]:
        """Return the usage of each sealed log that can be compacted. StorageError."""
        usages = await self.usages.refresh()
        self.damaged &= {usage.log for usage in usages}
        return [usage for usage in usages if usage.log not in self.damaged]

    async def compact(self, logs: Sequence[int], pace: Pace) -> int:
        """Compact sealed logs, in this order; return the bytes freed minus those of the copies.

        Ends early if `pace` asks for it; records copied so far have moved. Of a damaged log the intact records are
        moved and the log is kept. DiskFullError: no space for the copies; StorageError, OSError. On cancellation,
        copies that the index does not reference yet are rolled back.
        """
        async with self._running:
            async with self._settling:
                pass  # the rollback of a compaction that was cancelled again: it would undo what this one begins
            before = self.stats.reclaimed_bytes - self.stats.bytes_moved
            try:
                await self._compact(logs, pace)
            except DiskFullError:
                if self.reserve is None:
                    raise
                for log in logs:
                    await self._compact_from_reserve(log, pace)
            return self.stats.reclaimed_bytes - self.stats.bytes_moved - before

    def _may_spend_reserve(self) -> bool:
        """Return whether enough of the reserve is left for the following commits, which free space."""
        return self.reserve is not None and self.reserve.held_bytes > self.reserve.size_bytes // _RESERVE_KEPT_PART

    async def _compact_from_reserve(self, log: int, pace: Pace) -> None:
        """Compact one log on a full disk: its space is freed before the next one is copied. DiskFullError."""
        while log in self._logs and not pace.stopping:
            try:
                await self._compact([log], pace, spend_floor=True)
                return
            except DiskFullError:
                if self.reserve is None or not self._may_spend_reserve() or not await self.reserve.release(1):
                    raise

    async def _compact(self, logs: Sequence[int], pace: Pace, *, spend_floor: bool = False) -> None:
        try:
            await self._appender.begin(spend_floor=spend_floor)
            await self._empty_all(logs, pace)
            await self._flushes.unbroken(self._settle())
        except (QuireError, OSError):
            await self._flushes.unbroken(self._roll_back())
            raise
        except asyncio.CancelledError:
            try:
                await self._flushes.unbroken(self._roll_back())
            except (QuireError, OSError) as error:  # the canceller waits for the end, not for another attempt
                _log.error("could not roll back the copies of a cancelled compaction: %s", error)
            raise
        finally:
            self._stated.clear()

    async def _empty_all(self, logs: Sequence[int], pace: Pace) -> None:
        for log in logs:
            if pace.stopping:
                return
            try:
                complete = await self._empty(log, pace)
            except _StoppedError:
                return
            if complete is None:
                continue  # dropped in the meantime: it had no live entries
            if complete:
                self._emptied.add(log)
            else:
                self.damaged.add(log)
                self.stats.logs_incomplete += 1
                _log.error("keeping entry log %d: some of its records could not be read or looked up", log)

    # ---- copying, without the write lock
    async def _empty(self, log: int, pace: Pace) -> bool | None:
        """Copy the live records of a log. True: the log is obsolete once the index has the copies. None: it is gone."""
        if log not in {state.log for state in self._logs.sealed()}:
            return None
        damage: list[DamagedError] = []
        complete: bool | None = False
        try:
            spans, ages = await self._logs.read_map(log), await self._logs.read_ages(log)
            complete = await self._copy_ledgers(log, spans, ages, pace, damage)
        except DamagedError as error:
            damage.append(error)
        if log not in self._logs:
            return None
        if damage:
            self._logs.put_in_quarantine(log, damage[0])
            return False
        return complete

    async def _copy_ledgers(
        self, log: int, spans: LedgerMap, ages: LogAges, pace: Pace, damage: list[DamagedError]
    ) -> bool:
        complete = True
        ledgers = sorted(spans)
        for start in range(0, len(ledgers), LEDGERS_PER_GET):
            part = ledgers[start : start + LEDGERS_PER_GET]
            age = self._commits.next_age - 1  # the age of the newest flush, all of whose changes the state has
            values = await self._index.get_many([state_key(ledger) for ledger in part])
            living: LedgerMap = {}
            for ledger, value in zip(part, values, strict=True):
                if value is not None and not is_deleted(ledger, value):
                    living[ledger] = spans[ledger]
                    await self._copy_state(ledger, value, age)
            batch: list[_Piece] = []
            size = 0
            async with aclosing(self._pieces(log, living, ages)) as pieces:
                async for piece in pieces:
                    if piece is None:
                        complete = False
                        continue
                    batch.append(piece)
                    size += piece.size_bytes
                    if size >= BATCH_BYTES or len(batch) >= BATCH_PIECES:
                        await self._copy_batch(log, batch, pace, damage)
                        batch, size = [], 0
            if batch:
                await self._copy_batch(log, batch, pace, damage)
        return complete

    async def _copy_state(self, ledger: LedgerId, value: bytes, age: int) -> None:
        """Copy the state that the index has. Changes that are not in the index yet go to the log of a later flush."""
        if ledger in self._stated:
            return
        self._stated.add(ledger)
        size = len(value) + RECORD_HEADER_BYTES
        writer = await self._unbroken(self._appender.writer_for(size))
        writer.append_state(ledger, value, age)
        self._moving_bytes += size

    async def _pieces(self, log: int, ledgers: LedgerMap, ages: LogAges) -> AsyncGenerator[_Piece | None, None]:
        """Yield the pieces that the index still has in the log, ascending by ledger and id; None for damaged blocks."""
        for ledger, span in ledgers.items():
            if not span.entries:
                continue
            async with aclosing(self._blocks(ledger, span)) as blocks:
                async for key, value in blocks:
                    try:
                        block = decode_block(key, value)
                    except DamagedError:
                        yield None
                        continue
                    await self._yield_to_loop(32)
                    if block.lost:
                        yield None  # this log may hold entries that the index lost; a rebuild can find them
                    for segment in block.segments:
                        if segment.log == log:
                            for part in stretches(segment, ENTRY_LOG_STRETCH_BYTES, ages.cuts):
                                yield _Piece(ledger, key, part, ages.at(part.base))

    async def _blocks(self, ledger: LedgerId, span: LedgerSpan) -> AsyncGenerator[tuple[bytes, bytes], None]:
        low, high = span.first >> BLOCK_SHIFT, span.last >> BLOCK_SHIFT
        if high - low < BLOCKS_PER_GET:
            keys = [block_key(ledger, block) for block in range(low, high + 1)]
            for key, value in zip(keys, await self._index.get_many(keys), strict=True):
                if value is not None:
                    yield key, value
            return
        async for key, value in self._index.scan(block_key(ledger, low), block_key(ledger, high) + b"\0"):
            yield key, value

    async def _copy_batch(self, log: int, batch: list[_Piece], pace: Pace, damage: list[DamagedError]) -> None:
        """Read adjacent records in one go, append them by ledger and id. Damaged records are added to `damage`."""
        by_offset = sorted(batch, key=lambda piece: piece.segment.base)
        start = 0
        while start < len(by_offset):
            end, base, limit = start + 1, by_offset[start].segment.base, by_offset[start].end
            while end < len(by_offset) and by_offset[end].end - base <= ENTRY_LOG_STRETCH_BYTES:
                if by_offset[end].segment.base - limit > GAP_BYTES:
                    break
                limit = by_offset[end].end
                end += 1
            await self._check(log, by_offset[start:end], base, limit - base, damage)
            start = end
        size = entries = 0
        for piece in batch:
            await self._append(piece)
            size += piece.size_bytes
            entries += len(piece.bodies)
        if len(self._moves) >= BLOCKS_PER_COMMIT or self._moving_bytes >= BYTES_PER_COMMIT:
            await self._flushes.unbroken(self._settle())
        await pace.spend(size, entries)
        if pace.stopping:
            raise _StoppedError

    async def _check(
        self, log: int, pieces: Sequence[_Piece], base: int, size: int, damage: list[DamagedError]
    ) -> None:
        """Read and check adjacent records. A damaged one is not moved: its readers must receive the error."""
        path, salt = self._logs.files.path(log), self._logs.salt(log)
        try:
            data = memoryview(await self._logs.files.read(log, base, size))
        except DamagedError:
            data = memoryview(b"")  # part of it may be readable: each record is read separately
        for piece in pieces:
            segment = piece.segment
            for low, body_bytes, offset in zip(segment.lows, segment.sizes, segment.offsets(), strict=False):
                record_bytes = body_bytes + RECORD_HEADER_BYTES
                try:
                    record: Buffer = data[offset - base : offset - base + record_bytes]
                    if not data:
                        record = await self._logs.files.read(log, offset, record_bytes)
                    piece.bodies.append(
                        log_format.check_record(salt, record, piece.ledger, piece.entry(low), path, offset)
                    )
                except DamagedError as error:
                    if log not in self._logs:
                        raise  # dropped in the meantime: it had no live entries
                    piece.damaged.add(low)
                    self.stats.records_damaged += 1
                    damage.append(error)
            await self._yield_to_loop(len(segment.lows))

    async def _append(self, piece: _Piece) -> None:
        bodies = iter(piece.bodies)
        for old in piece.intact():
            ids = [piece.entry(low) for low in old.lows]
            size = sum(old.sizes) + len(ids) * RECORD_HEADER_BYTES
            writer = await self._unbroken(self._appender.writer_for(size))
            records: list[Buffer] = []
            log_format.encode_records(writer.salt, piece.ledger, ids, [next(bodies) for _ in ids], records)
            base = writer.append(piece.ledger, ids[0], ids[-1], len(ids), records, size, piece.age)
            self._moves.setdefault(piece.key, []).append(Move(old, BlockSegment(writer.log, base, old.lows, old.sizes)))
            self._moving_bytes += size
            if writer.has_piece:
                await self._unbroken(writer.write_out())
            await self._yield_to_loop(len(ids))
        assert next(bodies, None) is None, "each intact record is copied"

    async def _yield_to_loop(self, entries: int) -> None:
        self._since_yield += entries
        if self._since_yield >= ENTRIES_PER_YIELD:
            self._since_yield = 0
            await asyncio.sleep(0)

    # ---- committing, uninterrupted even if the caller is cancelled
    async def _settle(self) -> None:
        """Sync the copies, move the positions in the index, remove the logs that are empty now.

        DiskFullError before the first commit: the caller rolls back everything. After it, committed moves remain.
        """
        async with self._settling:
            if self._moving_bytes:
                log_states = await self._guarded(self._appender.end_flush())
                assert self._settling.locked(), "no copy is appended between the sync and the commit"
                moves, self._moves, self._moving_bytes = self._moves, {}, 0
                keys = sorted(moves)
                committed = False
                while keys or not committed:
                    part, keys = keys[:BLOCKS_PER_COMMIT], keys[BLOCKS_PER_COMMIT:]
                    async with self._flushes.write_lock:
                        self._flushes.check_alive()
                        await self._commit({key: moves[key] for key in part}, () if committed else log_states)
                        if not committed:
                            await self._appender.committed()
                            committed = True
            emptied, self._emptied = self._emptied, set()
            emptied -= self.damaged
            if emptied:
                async with self._flushes.write_lock:
                    self._flushes.check_alive()
                    sizes = {state.log: state.durable_bytes for state in self._logs.sealed() if state.log in emptied}
                    await self._guarded(self._logs.remove(sorted(sizes), self._commits))
                self.stats.logs_compacted += len(sizes)
                self.stats.reclaimed_bytes += sum(sizes.values())

    async def _commit(self, moves: dict[bytes, list[Move]], log_states: Sequence[tuple[bytes, bytes]]) -> None:
        puts: list[tuple[bytes, bytes]] = []
        entries = size = 0
        for key, value in await self._current_values(list(moves)):
            if value is None:
                continue  # the ledger was deleted in the meantime
            try:
                moved = moved_block(key, value, moves[key])
            except DamagedError:
                self.damaged |= {move.old.log for move in moves[key]}
                continue
            if moved is not None:
                puts.append((key, moved))
            entries += sum(len(move.old.lows) for move in moves[key])
            size += sum(sum(move.old.sizes) + len(move.old.sizes) * RECORD_HEADER_BYTES for move in moves[key])
            await self._yield_to_loop(64 * len(moves[key]))
        await self._guarded(self._commits.commit([*puts, *log_states], next_log=self._appender.next_log))
        self.stats.entries_moved += entries
        self.stats.bytes_moved += size

    async def _current_values(self, keys: Sequence[bytes]) -> list[tuple[bytes, bytes | None]]:
        """Return the current values of the index; an unreadable one as an empty value, which also counts as damaged."""
        found: list[tuple[bytes, bytes | None]] = []
        for start in range(0, len(keys), BLOCKS_PER_GET):
            part = keys[start : start + BLOCKS_PER_GET]
            try:
                found += zip(part, await self._index.get_many(part), strict=True)
            except DamagedError:
                for key in part:
                    try:
                        found.append((key, await self._index.get(key)))
                    except DamagedError:
                        found.append((key, b""))
        return found

    async def _unbroken(self, step: Coroutine[None, None, T]) -> T:
        """As `_guarded`, to its end even if the caller is cancelled, which `_roll_back` waits for.

        Otherwise a write still running in a thread would land after the truncation, or in another file that was given
        the number of the closed handle.
        """
        return await self._flushes.unbroken(self._settled(step))

    async def _settled(self, step: Coroutine[None, None, T]) -> T:
        async with self._settling:
            return await self._guarded(step)

    async def _guarded(self, step: Coroutine[None, None, T]) -> T:
        """Fail the storage if a sync or commit fails: with an unknown outcome, nothing can be made durable any more."""
        try:
            return await step
        except DiskFullError:
            raise
        except (StorageError, OSError) as error:
            self._flushes.fail(error)
            raise

    async def _roll_back(self) -> None:
        """Remove uncommitted copies. After a failure the next start does so, as it knows what the index references."""
        async with self._settling:
            self._moves, self._moving_bytes = {}, 0
            self._emptied.clear()
            if self._flushes.failure is None:
                await self._guarded(self._appender.rewind())  # raises errors of writes that were not awaited

    async def _live_ledgers(self, ledgers: Sequence[LedgerId]) -> set[LedgerId]:
        """Return the ledgers that are not deleted, or whose state cannot be read."""
        found: set[LedgerId] = set()
        values = await self._current_values([state_key(one) for one in ledgers])
        for ledger, (key, value) in zip(ledgers, values, strict=True):
            assert key == state_key(ledger)
            if value is None:
                continue
            try:
                if is_deleted(ledger, value):
                    continue
            except DamagedError:
                _log.debug("the state of ledger %d cannot be read; treating it as live", ledger)
            found.add(ledger)
        return found
