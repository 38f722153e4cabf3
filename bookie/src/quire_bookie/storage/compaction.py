"""Compaction: what still lives of some sealed entry logs moves to new ones, and the old ones go.

Owns the order that no crash may break: records copied and synced, then their places moved in the index, and only then
the old log taken from the index and removed. Never resurrects or reverts an entry: a move takes effect only where the
index still points to the old record, under the write lock. Never removes a log of which something could not be read or
looked up, and never copies a record that fails its checksum.

    copy     old log -> compaction's own log, without the write lock; every record checked; the state of each ledger
             comes along, because the only record of it may lie in the old log
    commit   under the lock: the new log's state and the moved places, a bounded batch of them at a time
    drop     under the lock: the old log out of the index, then the file removed

A crash anywhere leaves each entry in the old log or in the new one, with the index pointing there. A copy keeps the age
of its record (`log_ages`), so that an index rebuilt from the logs takes the newest of several copies wherever it lies,
and what came before a tombstone stays behind it. The states of a ledger are merged: a fence is never undone.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

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
from quire_bookie.storage.logs.log_usages import LEDGERS_PER_LOOK, LogUsage, LogUsages

BLOCKS_PER_COMMIT: Final = 2048
"""Index blocks that are moved under one hold of the write lock."""
BYTES_PER_COMMIT: Final = 64 * MIB
BLOCKS_PER_GET: Final = 64
BATCH_BYTES: Final = 2 * MIB
BATCH_PIECES: Final = 1024
ENTRIES_PER_TURN: Final = 512
"""After so many entries the loop gets a turn: checking and encoding them takes 1 to 2 ms."""
_RESERVE_KEPT_PART: Final = 8
"""This part of the reserve is not for copies."""
GAP_BYTES: Final = 32 * 1024
"""Dead bytes that are read along rather than starting another read."""

_log = logging.getLogger("quire.storage.compaction")
T = TypeVar("T")


class Pace(Protocol):
    """How fast, and how long. Asked between batches of about `BATCH_BYTES`."""

    @property
    def stopping(self) -> bool:
        """Whether to end now; what was copied by then is kept."""
        ...

    async def spend(self, size_bytes: int, entries: int, /) -> None:
        """Wait as long as moving so much costs."""
        ...


@dataclass(slots=True)
class CompactionStats:
    """Counters since the start, for a collector to read."""

    logs_compacted: int = 0
    logs_incomplete: int = 0
    entries_moved: int = 0
    bytes_moved: int = 0
    records_damaged: int = 0
    reclaimed_bytes: int = 0


@dataclass(slots=True)
class _Piece:
    """Records of one block in one stretch of the log being emptied. After `check`: `bodies` of the intact ones."""

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
        """The stretches between damaged records."""
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
    """The pace says so."""


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
        """Held to the end even when the caller is cancelled: nothing is taken back while it is written or committed."""
        self._moves: dict[bytes, list[Move]] = {}
        self._moving_bytes = 0
        self._since_turn = 0
        self._stated: set[LedgerId] = set()
        self._emptied: set[int] = set()
        self.usages = LogUsages(logs, self._living)
        self.damaged: set[int] = set()
        """Logs with something that cannot be read: they stay as they are and are not tried again."""
        self.stats = CompactionStats()
        self.reserve: SpaceReserve | None = None
        """What copies may use on a full disk, but for a part: they give back more than they take."""

    @property
    def active_logs(self) -> int:
        """How many entry logs there are, those being written included."""
        return len(self._logs)

    @property
    def active_log_bytes(self) -> int:
        """What they take on disk."""
        return self._logs.size_bytes()

    async def usages_now(self) -> list[LogUsage]:
        """How full each sealed log is, without those that cannot be compacted. StorageError."""
        usages = await self.usages.refresh()
        self.damaged &= {usage.log for usage in usages}
        return [usage for usage in usages if usage.log not in self.damaged]

    async def compact(self, logs: Sequence[int], pace: Pace) -> int:
        """Empty sealed logs, in this order, and remove them; returns the bytes that it freed, copies subtracted.

        Ends early when `pace` says so: what was copied by then has moved. A log that is damaged somewhere gives up
        what is intact and stays. DiskFullError: no space for the copies; StorageError, OSError. Cancelled: what the
        index does not know yet is taken back.
        """
        async with self._running:
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
        """Whether enough is left for the commits that follow, which are what frees space."""
        return self.reserve is not None and self.reserve.held_bytes > self.reserve.size_bytes // _RESERVE_KEPT_PART

    async def _compact_from_reserve(self, log: int, pace: Pace) -> None:
        """One log on a full disk: its space is back before the next one needs any. DiskFullError: not even that."""
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
            await self._flushes.unbroken(self._take_back())
            raise
        except asyncio.CancelledError:
            try:
                await self._flushes.unbroken(self._take_back())
            except (QuireError, OSError) as error:  # who cancelled waits for the end, not for another attempt
                _log.error("what a compaction copied could not be taken back: %s", error)
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
                continue  # dropped meanwhile: nothing in it lived
            if complete:
                self._emptied.add(log)
            else:
                self.damaged.add(log)
                self.stats.logs_incomplete += 1
                _log.error("entry log %d stays: not everything in it could be read or looked up", log)

    # ---- copying, without the write lock
    async def _empty(self, log: int, pace: Pace) -> bool | None:
        """Copy what lives in a log. True: the copies make it superfluous once the index has them. None: it is gone."""
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
        for start in range(0, len(ledgers), LEDGERS_PER_LOOK):
            part = ledgers[start : start + LEDGERS_PER_LOOK]
            age = self._commits.next_age - 1  # as new as the newest flush: the state has all that it says
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
        """The state as the index has it. What is not in the index yet will be in a log that flush writes."""
        if ledger in self._stated:
            return
        self._stated.add(ledger)
        size = len(value) + RECORD_HEADER_BYTES
        writer = await self._unbroken(self._appender.writer_with_room(size))
        writer.append_state(ledger, value, age)
        self._moving_bytes += size

    async def _pieces(self, log: int, ledgers: LedgerMap, ages: LogAges) -> AsyncGenerator[_Piece | None, None]:
        """What the index still has in the log, ascending by ledger and id; None where it cannot say."""
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
                    await self._take_turns(32)
                    if block.lost:
                        yield None  # what is missing in the index may lie in here, for a rebuild to find
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
        """Read what lies together in one go, append by ledger and id. Damaged records go to `damage`."""
        by_place = sorted(batch, key=lambda piece: piece.segment.base)
        start = 0
        while start < len(by_place):
            end, base, limit = start + 1, by_place[start].segment.base, by_place[start].end
            while end < len(by_place) and by_place[end].end - base <= ENTRY_LOG_STRETCH_BYTES:
                if by_place[end].segment.base - limit > GAP_BYTES:
                    break
                limit = by_place[end].end
                end += 1
            await self._check(log, by_place[start:end], base, limit - base, damage)
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
        """Read and check records that lie together. A damaged one stays where it is, for whoever reads it."""
        path, salt = self._logs.files.path(log), self._logs.salt(log)
        try:
            data = memoryview(await self._logs.files.read(log, base, size))
        except DamagedError:
            data = memoryview(b"")  # part of it may be readable: each record is read by itself
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
                        raise  # dropped meanwhile: nothing in it lived
                    piece.damaged.add(low)
                    self.stats.records_damaged += 1
                    damage.append(error)
            await self._take_turns(len(segment.lows))

    async def _append(self, piece: _Piece) -> None:
        bodies = iter(piece.bodies)
        for old in piece.intact():
            ids = [piece.entry(low) for low in old.lows]
            size = sum(old.sizes) + len(ids) * RECORD_HEADER_BYTES
            writer = await self._unbroken(self._appender.writer_with_room(size))
            records: list[Buffer] = []
            log_format.encode_records(writer.salt, piece.ledger, ids, [next(bodies) for _ in ids], records)
            base = writer.append(piece.ledger, ids[0], ids[-1], len(ids), records, size, piece.age)
            self._moves.setdefault(piece.key, []).append(Move(old, BlockSegment(writer.log, base, old.lows, old.sizes)))
            self._moving_bytes += size
            if writer.has_piece:
                await self._unbroken(writer.write_out())
            await self._take_turns(len(ids))

    async def _take_turns(self, entries: int) -> None:
        self._since_turn += entries
        if self._since_turn >= ENTRIES_PER_TURN:
            self._since_turn = 0
            await asyncio.sleep(0)

    # ---- committing, in one piece even when the caller is cancelled
    async def _settle(self) -> None:
        """Sync what was copied, move the places, remove what is empty now.

        DiskFullError before anything was committed takes all of it back; later on the moves so far stand.
        """
        async with self._settling:
            if self._moving_bytes:
                log_states = await self._guarded(self._appender.end_flush())
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
        for key, value in await self._present(list(moves)):
            if value is None:
                continue  # the ledger was deleted meanwhile
            try:
                moved = moved_block(key, value, moves[key])
            except DamagedError:
                self.damaged |= {move.old.log for move in moves[key]}
                continue
            if moved is not None:
                puts.append((key, moved))
            entries += sum(len(move.old.lows) for move in moves[key])
            size += sum(sum(move.old.sizes) + len(move.old.sizes) * RECORD_HEADER_BYTES for move in moves[key])
            await self._take_turns(64 * len(moves[key]))
        await self._guarded(self._commits.commit([*puts, *log_states], next_log=self._appender.next_log))
        self.stats.entries_moved += entries
        self.stats.bytes_moved += size

    async def _present(self, keys: Sequence[bytes]) -> list[tuple[bytes, bytes | None]]:
        """What the index has now. One that cannot be read is given as an empty value, which is damaged as well."""
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
        """As `_guarded`, to its end even when the caller is cancelled, and `_take_back` waits for that: a write that a
        thread still makes would land behind the cut, or in whatever file got the number of the closed handle.
        """
        return await self._flushes.unbroken(self._settled(step))

    async def _settled(self, step: Coroutine[None, None, T]) -> T:
        async with self._settling:
            return await self._guarded(step)

    async def _guarded(self, step: Coroutine[None, None, T]) -> T:
        """Whether a sync or a commit that failed has happened is not known: nothing can be made durable any more."""
        try:
            return await step
        except DiskFullError:
            raise
        except (StorageError, OSError) as error:
            self._flushes.fail(error)
            raise

    async def _take_back(self) -> None:
        """What is not committed goes. After a failure it stays for the next start, which knows what the index names."""
        async with self._settling:
            self._moves, self._moving_bytes = {}, 0
            self._emptied.clear()
            if self._flushes.failure is None:
                await self._guarded(self._appender.rewind())  # finds what failed of writes that nobody waited for

    async def _living(self, ledgers: Sequence[LedgerId]) -> set[LedgerId]:
        """Those that live, or whose state cannot be read."""
        found: set[LedgerId] = set()
        for ledger, (key, value) in zip(ledgers, await self._present([state_key(one) for one in ledgers]), strict=True):
            assert key == state_key(ledger)
            if value is None:
                continue
            try:
                if is_deleted(ledger, value):
                    continue
            except DamagedError:
                _log.debug("the state of ledger %d cannot be read; it counts as living", ledger)
            found.add(ledger)
        return found
