"""One part of a flush: makes some ledgers of a half of the write cache, and their changed states, durable.

Owns the order: records are appended and synced, then the index is committed. The index never references a record that
was not synced before. A part that runs out of space is rolled back and can be retried: the half still holds every
entry. A crash between two parts loses nothing: the journal still has the entries of both.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from quire_bookie.bulk import merge_blocks
from quire_bookie.bulk.plain_flushes import FlushRun
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError, DiskFullError
from quire_bookie.limits import ENTRY_LOG_STRETCH_BYTES
from quire_bookie.model import LedgerId
from quire_bookie.storage.flush_pace import FlushPace
from quire_bookie.storage.formats.block_index import merge_encoded, segment_head
from quire_bookie.storage.formats.index_keys import BLOCK_SHIFT, block_key, state_key
from quire_bookie.storage.formats.log_format import RECORD_HEADER_BYTES
from quire_bookie.storage.index.index_commits import IndexCommits
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo, encode_state
from quire_bookie.storage.logs.log_appender import LogAppender
from quire_bookie.storage.stats import StorageStats
from quire_bookie.storage.write_cache import CacheHalf

RUNS_PER_YIELD: Final = 256
"""Blocks between two yields to the event loop, at most a stretch of 1 MiB: they take 1 to 2 ms."""
STATES_PER_YIELD: Final = 256
KEYS_PER_GET: Final = 2048
"""A read waits for the thread of the index and for a loop turn full of adds; other reads wait behind it for 6 ms."""
KEYS_PER_MERGE: Final = 512
"""Blocks merged between two yields."""
_NO_BOUND: Final = 1 << 62
_OldValues: TypeAlias = tuple[list[bytes], list[bytes | None], list[bool]]


class Flush:
    """One attempt to flush `ledgers`, ascending. The entries of a ledger deleted in the meantime are not written."""

    def __init__(
        self,
        half: CacheHalf,
        states: Mapping[LedgerId, LedgerInfo],
        ledgers: Sequence[LedgerId],
        logs: LogAppender,
        pace: FlushPace,
    ) -> None:
        self._half = half
        self._states = states
        self._ledgers = ledgers
        self._logs = logs
        self._pace = pace
        self._state_puts: list[tuple[bytes, bytes]] = []
        self._segments: dict[bytes, bytes] = {}
        self._unread: list[bytes] = []
        """Keys of blocks whose old values are not requested yet."""
        self._olds: list[asyncio.Task[_OldValues]] = []
        """The old values of the blocks, in order of their keys, read while the entries are appended."""
        self.found_full_folder = False
        """After DiskFullError: whether a folder was found full, so that a new attempt may use other folders."""
        self.entries = 0
        self.record_bytes = 0
        """The records written, with their headers."""

    async def run(self, index: IndexStore, commits: IndexCommits, stats: StorageStats, *, is_last: bool) -> None:
        """Make the ledgers durable. DiskFullError: nothing changed; retry after space was freed.

        `is_last`: no other part of the half follows, so the commit must be proved.
        """
        assert not self._segments and not self._state_puts, "an attempt runs once"
        try:
            await self._append(index)
            log_states = await self._logs.end_flush()
            blocks = await self._merge()
            await commits.commit(
                [*self._state_puts, *log_states], blocks=blocks, next_log=self._logs.next_log, proves=is_last
            )
        except DiskFullError:
            self.found_full_folder = await self._logs.rewind()
            raise
        finally:
            await self._end_reads()
        await self._logs.committed()
        stats.entries_flushed += self.entries
        stats.bytes_flushed += self.record_bytes - self.entries * RECORD_HEADER_BYTES
        stats.index_blocks_written += len(blocks)

    async def _append(self, index: IndexStore) -> None:
        await self._append_states()
        held = self._half.ledgers
        runs: list[FlushRun] = []
        keys: list[bytes] = []
        add, add_key = runs.append, keys.append
        for ledger in self._ledgers:
            entries = held.get(ledger)
            if entries is None or entries.info.deleted:
                continue
            ids, places = entries.in_order()
            at, count = 0, len(ids)
            last = ids[-1] >> BLOCK_SHIFT
            while at < count:
                block = ids[at] >> BLOCK_SHIFT
                end = count if block == last else bisect_left(ids, (block + 1) << BLOCK_SHIFT, at)
                add((ledger, ids, places, at, end))
                add_key(block_key(ledger, block))
                at = end
            if len(runs) >= RUNS_PER_YIELD:
                self._unread += keys
                self._read_old_values(index, KEYS_PER_GET)
                await self._append_runs(runs, keys)
                runs.clear()
                keys.clear()
        self._unread += keys
        self._read_old_values(index, 1)
        await self._append_runs(runs, keys)

    def _read_old_values(self, index: IndexStore, keys_min: int) -> None:
        """Request the values that `_merge` needs, if `keys_min` are known. Under the write lock they do not change."""
        unread, loop = self._unread, asyncio.get_running_loop()
        while len(unread) >= keys_min:
            keys, unread[:KEYS_PER_GET] = unread[:KEYS_PER_GET], []
            self._olds.append(loop.create_task(_old_values(index, keys), name="storage-old-values"))

    async def _end_reads(self) -> None:
        """End the reads that an error left unused."""
        olds, self._olds = self._olds, []
        if olds:
            for reading in olds:
                reading.cancel()
            await asyncio.gather(*olds, return_exceptions=True)

    async def _append_states(self) -> None:
        changed = [ledger for ledger in self._ledgers if ledger in self._states]
        for number, ledger in enumerate(changed, 1):
            state = encode_state(self._states[ledger])
            self._state_puts.append((state_key(ledger), state))
            writer = await self._logs.writer_for(len(state) + RECORD_HEADER_BYTES)
            writer.append_state(ledger, state)
            if number % STATES_PER_YIELD == 0 and self._pace.turn_is_due():
                await asyncio.sleep(0)

    async def _append_runs(self, runs: list[FlushRun], keys: list[bytes]) -> None:
        """Append the entries of some blocks with these keys, in stretches of as many blocks as fit."""
        done = 0
        while done < len(runs):
            part = runs[done:]
            segments = self._half.segments_of(part, ENTRY_LOG_STRETCH_BYTES)
            assert len(segments) <= len(part)
            if segments:
                await self._append_stretch(part[: len(segments)], keys[done : done + len(segments)], segments)
            else:
                await self._append_large(part[0], keys[done])
            done += len(segments) or 1

    async def _append_large(self, run: FlushRun, key: bytes) -> None:
        """Append the entries of one block that is larger than a stretch."""
        ledger, ids, places, start, stop = run
        sizes = self._half.sizes(places[start:stop])
        at = 0
        while at < len(sizes):
            end = _stretch_end(sizes, at)
            part = [(ledger, ids, places, start + at, start + end)]
            await self._append_stretch(part, [key], self._half.segments_of(part, _NO_BOUND))
            at = end

    async def _append_stretch(self, runs: list[FlushRun], keys: list[bytes], segments: list[tuple[int, bytes]]) -> None:
        size = sum([each[0] for each in segments])
        writer = await self._logs.writer_for(size)
        first, log, known = writer.append_runs(runs, segments, self._half, size), writer.log, self._segments
        base = first
        for key, (size, tail) in zip(keys, segments, strict=True):
            segment = segment_head(log, base) + tail
            known[key] = known[key] + segment if key in known else segment
            base += size
        assert base == writer.offset, "the segments cover the stretch"
        entries = sum([stop - start for _ledger, _ids, _places, start, stop in runs])
        self.entries += entries
        self._pace.appended(entries)
        self.record_bytes += base - first
        if writer.has_piece:
            await self._logs.write_out(writer)
        if self._pace.turn_is_due():
            await asyncio.sleep(0)

    async def _merge(self) -> list[tuple[bytes, bytes]]:
        merged: list[tuple[bytes, bytes]] = []
        for reading in self._olds:
            part, olds, lost = await reading
            for at in range(0, len(part), KEYS_PER_MERGE):
                some = slice(at, at + KEYS_PER_MERGE)
                merged += self._merged(part[some], olds[some], lost[some])
                if self._pace.turn_is_due():
                    await asyncio.sleep(0)
        self._olds = []
        assert len(merged) == len(self._segments), "each block is merged once"
        return merged

    def _merged(self, keys: list[bytes], olds: list[bytes | None], lost: list[bool]) -> Iterator[tuple[bytes, bytes]]:
        fresh = [self._segments[key] for key in keys]
        for at, value in enumerate(merge_blocks(keys, olds, fresh)):
            if value is None or lost[at]:
                value = merge_encoded(keys[at], olds[at], fresh[at], lost=lost[at])
            yield keys[at], value


def _stretch_end(sizes: Sequence[int], start: int) -> int:
    """Return the end of the records from `start` on that form a stretch: at most 1 MiB, at least one record."""
    size = 0
    for end in range(start, len(sizes)):
        more = sizes[end] + RECORD_HEADER_BYTES
        if size and size + more > ENTRY_LOG_STRETCH_BYTES:
            return end
        size += more
    return len(sizes)


async def _old_values(index: IndexStore, keys: list[bytes]) -> _OldValues:
    """Return keys, current values, and which could not be read: their entries must not become absent."""
    try:
        return keys, list(await index.get_many(keys)), [False] * len(keys)
    except DamagedError:
        found: list[bytes | None] = []
        lost: list[bool] = []
        for key in keys:
            try:
                found.append(await index.get(key))
                lost.append(False)
            except DamagedError:
                found.append(None)
                lost.append(True)
        return keys, found, lost
