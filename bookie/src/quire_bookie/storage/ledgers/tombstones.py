"""Expiry of the tombstones of deleted ledgers.

A deleted ledger stays as a tombstone, so that a late writer, fenced before, cannot create it again under its old id;
its adds are answered *fenced*. Owns the times of deletions and removes tombstones that are older than `keep_ms`. Never
removes one whose state is still referenced in memory or not flushed yet, and never one of unknown age: its age counts
from when it is found, as for those of earlier versions.

    'd' ledger:u64   0  crc32c u32 over key and bytes 4..   4  version u8 = 1   5  deleted at, ms since the epoch, i64

If the clock was set back, a time in the future is replaced by the present, so that no tombstone is kept permanently. If
the clock jumps ahead, tombstones expire early: a ledger that a late writer then creates is collected as garbage.
"""

import struct
from typing import Final

from quire_bookie.crc import crc32c
from quire_bookie.env.clock import WallClock
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError
from quire_bookie.model import LedgerId
from quire_bookie.storage.formats.index_keys import (
    DELETIONS_END,
    DELETIONS_START,
    STATES_END,
    STATES_START,
    block_key,
    deletion_key,
    last_block_key,
    ledger_of_deletion_key,
    ledger_of_state_key,
    state_key,
)
from quire_bookie.storage.index.index_commits import IndexCommits
from quire_bookie.storage.ledgers.ledger_states import LedgerStates, is_deleted

TOMBSTONE_VERSION: Final = 1
LEDGERS_PER_COMMIT: Final = 500
_CRC = struct.Struct("<I")
_TIME = struct.Struct("<Bq")


def encode_deletion(ledger: LedgerId, deleted_at_ms: int) -> bytes:
    """Encode the value under the ledger's deletion key."""
    rest = _TIME.pack(TOMBSTONE_VERSION, deleted_at_ms)
    return _CRC.pack(crc32c(rest, crc32c(deletion_key(ledger)))) + rest


def decode_deletion(ledger: LedgerId, value: bytes) -> int | None:
    """Return when the ledger was deleted, in ms since the epoch; None if the value is damaged."""
    if len(value) != _CRC.size + _TIME.size:
        return None
    if crc32c(value[_CRC.size :], crc32c(deletion_key(ledger))) != _CRC.unpack_from(value)[0]:
        return None
    version, deleted_at_ms = _TIME.unpack_from(value, _CRC.size)
    return int(deleted_at_ms) if version == TOMBSTONE_VERSION else None


class Tombstones:
    """Tracks the deleted ledgers of one storage. The caller of `date` and `forget` holds the write lock."""

    def __init__(
        self, index: IndexStore, commits: IndexCommits, states: LedgerStates, clock: WallClock, keep_ms: int
    ) -> None:
        self._index = index
        self._commits = commits
        self._states = states
        self._clock = clock
        self._keep_ms = keep_ms
        self._searched_undated = False

    def new(self, ledger: LedgerId) -> tuple[bytes, bytes]:
        """Return the pair to commit with the state of a ledger that is deleted now."""
        return deletion_key(ledger), encode_deletion(ledger, self._clock.now_ms())

    async def find(self) -> tuple[list[LedgerId], list[LedgerId]]:
        """Return the tombstones that have expired, and those without a valid time. Changes nothing."""
        now_ms = self._clock.now_ms()
        old: list[LedgerId] = []
        undated: list[LedgerId] = []
        dated: set[LedgerId] = set()
        async for key, value in self._index.scan(DELETIONS_START, DELETIONS_END):
            ledger = ledger_of_deletion_key(key)
            at_ms = decode_deletion(ledger, value)
            dated.add(ledger)
            if at_ms is None or at_ms > now_ms:
                undated.append(ledger)
            elif now_ms - at_ms >= self._keep_ms:
                old.append(ledger)
        if not self._searched_undated:  # only an earlier version or a rebuilt index leaves any
            async for key, value in self._index.scan(STATES_START, STATES_END):
                ledger = ledger_of_state_key(key)
                if ledger not in dated and _is_tombstone(ledger, value):
                    undated.append(ledger)
            self._searched_undated = True
        return old, undated

    async def date(self, ledgers: list[LedgerId]) -> None:
        """Store the current time for tombstones: their age counts from now."""
        await self._commits.commit([self.new(ledger) for ledger in ledgers])

    async def forget(self, ledgers: list[LedgerId]) -> int:
        """Remove tombstones from index and memory, unless their state is in use; return how many were removed."""
        values = await self._index.get_many([state_key(ledger) for ledger in ledgers])
        deletes: list[bytes] = []
        gone = 0
        for ledger, value in zip(ledgers, values, strict=True):
            if value is None or not _is_tombstone(ledger, value):
                deletes.append(deletion_key(ledger))  # a time without a tombstone
            elif self._states.evict_unused(ledger):
                await self.drop_blocks(ledger)
                deletes += (state_key(ledger), deletion_key(ledger))
                gone += 1
        if deletes:
            await self._commits.commit([], deletes)
        return gone

    async def drop_blocks(self, ledger: LedgerId) -> None:
        """Delete a ledger's blocks, which would reference deleted entries. Durable with the next synced commit.

        Called at the deletion, and again before the ledger may be created again, as a crash may have left them.
        """
        if await self._has_blocks(ledger):
            await self._index.delete_range(block_key(ledger, 0), last_block_key(ledger) + b"\0")

    async def _has_blocks(self, ledger: LedgerId) -> bool:
        try:
            return await self._index.last_at_or_below(last_block_key(ledger), block_key(ledger, 0)) is not None
        except DamagedError:
            return True  # damaged blocks are deleted unread


def _is_tombstone(ledger: LedgerId, value: bytes) -> bool:
    try:
        return is_deleted(ledger, value)
    except DamagedError:
        return False  # unknown whether it is a tombstone: keep it
