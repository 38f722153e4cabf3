"""One flush: a half of the write cache and the changed ledger states become durable.

Owns the order: records appended and synced, then the index committed. Nothing that the index names is ever in a file
that was not synced before. A flush that ran out of space is taken back and can be tried again: the half still holds
everything.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError, DiskFullError
from quire_bookie.limits import ENTRY_LOG_STRETCH_BYTES
from quire_bookie.model import LedgerId
from quire_bookie.storage.block_index import BlockSegment, merge_block
from quire_bookie.storage.index_commits import IndexCommits
from quire_bookie.storage.index_keys import BLOCK_MASK, BLOCK_SHIFT, block_key, state_key
from quire_bookie.storage.ledger_states import LedgerInfo, encode_state
from quire_bookie.storage.log_appender import LogAppender
from quire_bookie.storage.log_format import RECORD_HEADER_BYTES
from quire_bookie.storage.settings import StorageStats
from quire_bookie.storage.write_cache import CacheHalf

ENTRIES_PER_TURN: Final = 2048
"""After so many entries the loop gets a turn: encoding them takes 1 to 2 ms."""
BLOCK_AS_ENTRIES: Final = 24
"""What a block costs beside its entries, in entries: with 10,000 ledgers of a few entries each that is the cost."""
KEYS_PER_GET: Final = 256


class Flush:
    """One attempt. The entries of a ledger that was deleted meanwhile are not written."""

    def __init__(self, half: CacheHalf, states: Mapping[LedgerId, LedgerInfo], logs: LogAppender) -> None:
        self._half = half
        self._states = states
        self._logs = logs
        self._state_puts: list[tuple[bytes, bytes]] = []
        self._segments: dict[bytes, list[BlockSegment]] = {}
        self._since_turn = 0
        self.found_full_folder = False
        """After DiskFullError: a folder turned out full, so that another attempt may write to other ones."""

    async def run(self, index: IndexStore, commits: IndexCommits, stats: StorageStats) -> None:
        """Make it durable. DiskFullError: nothing changed, try again after space was freed."""
        try:
            await self._append()
            log_states = await self._logs.end_flush()
            blocks = await self._merge(index)
            await commits.commit([*blocks, *self._state_puts, *log_states], next_log=self._logs.next_log)
        except DiskFullError:
            self.found_full_folder = await self._logs.rewind()
            raise
        await self._logs.committed()
        stats.flushes += 1
        stats.entries_flushed += self._half.entries
        stats.bytes_flushed += self._half.payload_bytes
        stats.index_blocks_written += len(blocks)

    async def _append(self) -> None:
        held = self._half.ledgers
        for ledger in sorted(held.keys() | self._states.keys()):
            if ledger in self._states:
                state = encode_state(self._states[ledger])
                self._state_puts.append((state_key(ledger), state))
                self._since_turn += 1
                writer = await self._logs.writer_with_room(len(state) + RECORD_HEADER_BYTES)
                writer.append_state(ledger, state)
            if ledger in held and not held[ledger].info.deleted:
                ids, places = held[ledger].in_order()
                at = 0
                while at < len(ids):
                    block = ids[at] >> BLOCK_SHIFT
                    end = bisect_left(ids, (block + 1) << BLOCK_SHIFT, at)
                    await self._append_block(ledger, block, ids[at:end], places[at:end])
                    at = end
            await self._take_turns()

    async def _append_block(self, ledger: LedgerId, block: int, ids: Sequence[int], places: Sequence[int]) -> None:
        """Append the entries of one block, in as many stretches as pieces and logs make necessary."""
        segments = self._segments[block_key(ledger, block)] = []
        sizes = self._half.sizes(places)
        start = 0
        while start < len(ids):
            end, size = _piece(sizes, start)
            writer = await self._logs.writer_with_room(size)
            taken = ids[start:end]
            base = writer.append_entries(ledger, taken, places[start:end], self._half, size)
            lows: Sequence[int] = range(taken[0] & BLOCK_MASK, (taken[-1] & BLOCK_MASK) + 1)
            if len(lows) != len(taken):  # with gaps
                lows = [entry & BLOCK_MASK for entry in taken]
            segments.append(BlockSegment(writer.log, base, lows, sizes[start:end]))
            self._since_turn += end - start + BLOCK_AS_ENTRIES
            start = end
            if writer.has_piece:
                await self._logs.write_out(writer)
        await self._take_turns()

    async def _take_turns(self) -> None:
        if self._since_turn >= ENTRIES_PER_TURN:
            self._since_turn = 0
            await asyncio.sleep(0)

    async def _merge(self, index: IndexStore) -> list[tuple[bytes, bytes]]:
        merged: list[tuple[bytes, bytes]] = []
        keys = list(self._segments)
        for start in range(0, len(keys), KEYS_PER_GET):
            part = keys[start : start + KEYS_PER_GET]
            for key, (old, lost) in zip(part, await _old_values(index, part), strict=True):
                merged.append((key, merge_block(key, old, self._segments[key], lost=lost)))
            await asyncio.sleep(0)
        return merged


def _piece(sizes: Sequence[int], start: int) -> tuple[int, int]:
    """End and bytes of the records from `start` on that go together: at most 1 MiB, at least one."""
    size = sum(sizes) + len(sizes) * RECORD_HEADER_BYTES
    if start == 0 and size <= ENTRY_LOG_STRETCH_BYTES:
        return len(sizes), size
    size = 0
    for end in range(start, len(sizes)):
        more = sizes[end] + RECORD_HEADER_BYTES
        if size and size + more > ENTRY_LOG_STRETCH_BYTES:
            return end, size
        size += more
    return len(sizes), size


async def _old_values(index: IndexStore, keys: Sequence[bytes]) -> list[tuple[bytes | None, bool]]:
    """The present values, and whether one could not be read: what it held must not become absent."""
    try:
        return [(value, False) for value in await index.get_many(keys)]
    except DamagedError:
        found: list[tuple[bytes | None, bool]] = []
        for key in keys:
            try:
                found.append((await index.get(key), False))
            except DamagedError:
                found.append((None, True))
        return found
