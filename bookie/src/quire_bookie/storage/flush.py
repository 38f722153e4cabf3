"""One part of a flush: makes some ledgers of a half of the write cache, and their changed states, durable.

Owns the order: records are appended and synced, then the index is committed. The index never references a record that
was not synced before. A part that runs out of space is rolled back and can be retried: the half still holds every
entry. A crash between two parts loses nothing: the journal still has the entries of both.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias, cast

from quire_bookie.bulk import ledger_runs, merge_blocks
from quire_bookie.bulk.plain_flushes import FlushRun
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError, DiskFullError
from quire_bookie.limits import ENTRY_LOG_STRETCH_BYTES
from quire_bookie.model import LedgerId
from quire_bookie.storage.flush_pace import FlushPace
from quire_bookie.storage.formats.block_index import merge_encoded
from quire_bookie.storage.formats.index_keys import state_key
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
        self._segments: list[bytes] = []
        """The new segments of each block, in order of their keys."""
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
        ledgers, at = list(self._ledgers), 0
        while at < len(ledgers):
            at, runs, keys = ledger_runs(self._half.ledgers, ledgers, at, RUNS_PER_YIELD)
            self._unread += keys
            self._read_old_values(index, KEYS_PER_GET if at < len(ledgers) else 1)
            await self._append_runs(runs)

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

    async def _append_runs(self, runs: list[FlushRun]) -> None:
        """Append the entries of some blocks, in stretches of as many blocks as fit."""
        done = 0
        while done < len(runs):
            part = runs[done:]
            segments = self._half.segments_of(part, ENTRY_LOG_STRETCH_BYTES)
            assert len(segments) <= len(part)
            if segments:
                self._segments += await self._append_stretch(part[: len(segments)], segments)
            else:
                self._segments.append(await self._append_large(part[0]))
            done += len(segments) or 1

    async def _append_large(self, run: FlushRun) -> bytes:
        """Append the entries of one block that is larger than a stretch. Return its segments."""
        ledger, ids, places, start, stop = run
        sizes = self._half.sizes(places[start:stop])
        placed: list[bytes] = []
        at = 0
        while at < len(sizes):
            end = _stretch_end(sizes, at)
            part = [(ledger, ids, places, start + at, start + end)]
            placed += await self._append_stretch(part, self._half.segments_of(part, _NO_BOUND))
            at = end
        return b"".join(placed)

    async def _append_stretch(self, runs: list[FlushRun], segments: list[tuple[int, bytes]]) -> list[bytes]:
        """Append the entries of some runs. Return the index segment of each."""
        size = sum([each[0] for each in segments])
        writer = await self._logs.writer_for(size)
        placed, entries = writer.append_runs(runs, segments, self._half, size)
        self.entries += entries
        self._pace.appended(entries)
        self.record_bytes += size
        if writer.has_piece:
            await self._logs.write_out(writer)
        if self._pace.turn_is_due():
            await asyncio.sleep(0)
        return placed

    async def _merge(self) -> list[tuple[bytes, bytes]]:
        merged: list[tuple[bytes, bytes]] = []
        for reading in self._olds:
            part, olds, lost = await reading
            for at in range(0, len(part), KEYS_PER_MERGE):
                some = slice(at, at + KEYS_PER_MERGE)
                fresh = self._segments[len(merged) : len(merged) + len(part[some])]
                merged += _merged(part[some], olds[some], lost[some], fresh)
                if self._pace.turn_is_due():
                    await asyncio.sleep(0)
        self._olds = []
        assert len(merged) == len(self._segments), "each block is merged once"
        return merged


def _merged(
    keys: list[bytes], olds: list[bytes | None], lost: list[bool], fresh: list[bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """Return the keys and new values of some blocks."""
    values = merge_blocks(keys, olds, fresh)
    if None in values or True in lost:
        for at, value in enumerate(values):
            if value is None or lost[at]:
                values[at] = merge_encoded(keys[at], olds[at], fresh[at], lost=lost[at])
    return zip(keys, cast(list[bytes], values), strict=True)


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
