"""The block index during a rebuild: the newest of several copies of an entry wins, in any order of arrival.

Owns the entries' part of a rebuild: found entries are written to the new index in bounded batches of blocks. Ages
decide (`log_ages`), also between a tombstone and the entries of a ledger: older entries are dropped. If an age was lost
to damage and another copy exists, the newer one cannot be determined: both are left out, and the block is marked as
having lost entries. Never reads a log.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from quire_bookie.env.index_store import IndexStore
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.storage.formats.block_index import (
    Block,
    BlockSegment,
    decode_block,
    encode_block,
    merge_block,
    overlay,
)
from quire_bookie.storage.formats.index_keys import (
    BLOCK_MASK,
    BLOCK_SHIFT,
    block_key,
    block_of_key,
    last_block_key,
    ledger_of_block_key,
)
from quire_bookie.storage.formats.log_ages import UNKNOWN_AGE, LogAges
from quire_bookie.storage.formats.log_format import RECORD_HEADER_BYTES

BLOCKS_PER_COMMIT: Final = 2048


class Rank(NamedTuple):
    """The order of two records of the same item: the higher rank is newer. Logs without ages are ordered by id."""

    age: int
    log: int
    offset: int


class RebuiltBlocks:
    """Collects the entries of the logs for a new index."""

    def __init__(self, index: IndexStore) -> None:
        self._index = index
        self._ages: dict[int, LogAges] = {}
        self._segments: dict[bytes, list[BlockSegment]] = {}
        self._newest: dict[LedgerId, int] = {}
        self._tombstones: dict[LedgerId, Rank] = {}
        self._to_prune: set[LedgerId] = set()
        self._undecided: dict[bytes, set[int]] = {}
        self._open_key = b""
        self._open_end = (-1, -1)
        self.entries = 0
        """The number of indexed records."""

    @property
    def undecided(self) -> list[tuple[LedgerId, EntryId]]:
        """Entries with two copies of which the newer one is unknown."""
        return sorted(
            (ledger_of_block_key(key), EntryId(block_of_key(key) << BLOCK_SHIFT | low))
            for key, lows in self._undecided.items()
            for low in lows
        )

    @property
    def ledgers(self) -> set[LedgerId]:
        """Ledgers with an indexed entry."""
        return set(self._newest)

    @property
    def is_full(self) -> bool:
        """Whether `commit` is due."""
        return len(self._segments) >= BLOCKS_PER_COMMIT

    def begin_log(self, log: int) -> LogAges:
        """Return the ages of a log, which the caller must fill before it passes the records of a flush."""
        return self._ages.setdefault(log, LogAges(log))

    def rank(self, log: int, offset: int) -> Rank:
        """Return the rank of the record at an offset."""
        return Rank(self._ages[log].at(offset), log, offset)

    def is_behind_tombstone(self, ledger: LedgerId, age: int) -> bool:
        """Return whether everything up to this age was deleted since."""
        tombstone = self._tombstones.get(ledger)
        return tombstone is not None and age < tombstone.age

    def take(self, log: int, ledger: LedgerId, entry: EntryId, offset: int, size: int) -> None:
        """Index one record; the records of a log must arrive in its order."""
        if ledger in self._tombstones and self._is_gone(ledger, log, offset):
            return
        key, low = block_key(ledger, entry >> BLOCK_SHIFT), entry & BLOCK_MASK
        found = self._segments.setdefault(key, [])
        if key != self._open_key or (log, offset) != self._open_end or not found or low <= found[-1].lows[-1]:
            found.append(BlockSegment(log, offset, [], []))
            self._newest[ledger] = max(self._newest.get(ledger, 0), self._ages[log].newest)
            self._open_key = key
        lows, sizes = found[-1].lows, found[-1].sizes
        assert isinstance(lows, list) and isinstance(sizes, list)
        lows.append(low)
        sizes.append(size)
        self._open_end = (log, offset + size + RECORD_HEADER_BYTES)
        self.entries += 1

    def drop(self, ledger: LedgerId, rank: Rank) -> None:
        """Drop all records older than a tombstone, even if a ledger with that id was created again later."""
        if rank > self._tombstones.get(ledger, Rank(-1, -1, -1)):
            self._tombstones[ledger] = rank
            if ledger in self._newest:
                self._to_prune.add(ledger)

    async def drop_all(self, ledger: LedgerId) -> None:
        """Remove all entries of a ledger. Call after the last `commit`."""
        if ledger in self._newest:
            await self._index.delete_range(block_key(ledger, 0), last_block_key(ledger) + b"\0")

    async def commit(self) -> None:
        """Write the entries found so far to the index."""
        doomed, self._to_prune = self._to_prune, set()
        for ledger in sorted(doomed):
            await self._prune(ledger)
        if doomed:
            self._prune_taken(doomed)
        keys = sorted(self._segments)
        for start in range(0, len(keys), BLOCKS_PER_COMMIT):
            part = keys[start : start + BLOCKS_PER_COMMIT]
            old = await self._index.get_many(part)
            puts = [(key, self._merged(key, was)) for key, was in zip(part, old, strict=True)]
            await self._index.commit(puts, sync=False)
            await asyncio.sleep(0)
        self._segments = {}
        self._open_end = (-1, -1)

    # ---- tombstones
    def _is_gone(self, ledger: LedgerId, log: int, offset: int) -> bool:
        rank = self.rank(log, offset)
        if rank.age != UNKNOWN_AGE:
            return rank < self._tombstones[ledger]
        return False  # it is kept, and its unknown age matters only if there is another copy

    async def _prune(self, ledger: LedgerId) -> None:
        """Remove the entries that a tombstone deleted from the index."""
        start, end = block_key(ledger, 0), last_block_key(ledger) + b"\0"
        if self._newest[ledger] < self._tombstones[ledger].age:
            await self._index.delete_range(start, end)
            return
        puts: list[tuple[bytes, bytes]] = []
        deletes: list[bytes] = []
        async for key, value in self._index.scan(start, end):
            block = decode_block(key, value)
            left = self._still_held(ledger, block.segments)
            if left or block.lost:
                puts.append((key, encode_block(key, Block(left, block.lost))))
            else:
                deletes.append(key)
        await self._index.commit(puts, deletes, sync=False)

    def _prune_taken(self, doomed: set[LedgerId]) -> None:
        left: dict[bytes, list[BlockSegment]] = {}
        for key, segments in self._segments.items():
            ledger = ledger_of_block_key(key)
            held = self._still_held(ledger, segments) if ledger in doomed else segments
            if held:
                left[key] = held
        self._segments = left

    def _still_held(self, ledger: LedgerId, segments: Sequence[BlockSegment]) -> list[BlockSegment]:
        """Return the segments without records older than the tombstone, in the same order."""
        held: list[BlockSegment] = []
        for segment in segments:
            part: BlockSegment | None = None
            for low, offset, size in zip(segment.lows, segment.offsets(), segment.sizes, strict=False):
                if self._is_gone(ledger, segment.log, offset):
                    part = None
                elif part is None:
                    part = BlockSegment(segment.log, offset, [low], [size])
                    held.append(part)
                else:
                    part.lows, part.sizes = [*part.lows, low], [*part.sizes, size]
        return held

    # ---- copies
    def _merged(self, key: bytes, old: bytes | None) -> bytes:
        new = self._segments[key]
        if key not in self._undecided and len(new) == 1 and old is None:
            return merge_block(key, old, new)
        known = Block([]) if old is None else decode_block(key, old)
        segments = [*known.segments, *new]
        lows = [low for segment in segments for low in segment.lows]
        if key not in self._undecided and len(set(lows)) == len(lows):
            return merge_block(key, old, new)
        newest: dict[int, tuple[Rank, BlockSegment]] = {}
        undecided = self._undecided.get(key, set())
        for segment in segments:
            for low, offset, size in zip(segment.lows, segment.offsets(), segment.sizes, strict=False):
                copy = self.rank(segment.log, offset), BlockSegment(segment.log, offset, [low], [size])
                other = newest.get(low)
                if other is not None and UNKNOWN_AGE in (copy[0].age, other[0].age):
                    undecided.add(low)
                if other is None or copy[0] > other[0]:
                    newest[low] = copy
        if undecided:
            self._undecided[key] = undecided
        decided = [copy for low, (_rank, copy) in sorted(newest.items()) if low not in undecided]
        return encode_block(key, Block(overlay(decided), known.lost or bool(undecided)))
