"""When the memory of a deleted ledger may go.

A deleted ledger stays as a tombstone, so that a late writer, fenced before, cannot bring it back under its old id; its
adds are answered *fenced*. Owns the times of deletions and forgets tombstones that are older than `keep_ms`. Never
forgets one that somebody still holds in memory or that a flush has yet to write, and never one of unknown age: that
one begins to age when it is found, as those of earlier versions do.

    'd' ledger:u64   0  crc32c u32 over key and bytes 4..   4  version u8 = 1   5  deleted at, ms since the epoch, i64

A clock that was set back makes a time lie in the future; it is replaced by the present, so that nothing is kept for
good. A clock that jumps ahead forgets early: a ledger that then came back would be garbage, and collected as such.
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
    """The value under the ledger's deletion key."""
    rest = _TIME.pack(TOMBSTONE_VERSION, deleted_at_ms)
    return _CRC.pack(crc32c(rest, crc32c(deletion_key(ledger)))) + rest


def decode_deletion(ledger: LedgerId, value: bytes) -> int | None:
    """When the ledger was deleted, in ms since the epoch; None when the value does not say."""
    if len(value) != _CRC.size + _TIME.size:
        return None
    if crc32c(value[_CRC.size :], crc32c(deletion_key(ledger))) != _CRC.unpack_from(value)[0]:
        return None
    version, deleted_at_ms = _TIME.unpack_from(value, _CRC.size)
    return int(deleted_at_ms) if version == TOMBSTONE_VERSION else None


class Tombstones:
    """The deleted ledgers of one storage. `date` and `forget` are for the holder of the write lock."""

    def __init__(
        self, index: IndexStore, commits: IndexCommits, states: LedgerStates, clock: WallClock, keep_ms: int
    ) -> None:
        self._index = index
        self._commits = commits
        self._states = states
        self._clock = clock
        self._keep_ms = keep_ms
        self._looked_for_undated = False

    def new(self, ledger: LedgerId) -> tuple[bytes, bytes]:
        """What to commit together with the state of a ledger that is deleted now."""
        return deletion_key(ledger), encode_deletion(ledger, self._clock.now_ms())

    async def find(self) -> tuple[list[LedgerId], list[LedgerId]]:
        """Tombstones that are old enough to go, and those whose time has to be noted. Changes nothing."""
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
        if not self._looked_for_undated:  # only an earlier version, or a rebuilt index, leaves any
            async for key, value in self._index.scan(STATES_START, STATES_END):
                ledger = ledger_of_state_key(key)
                if ledger not in dated and _is_tombstone(ledger, value):
                    undated.append(ledger)
            self._looked_for_undated = True
        return old, undated

    async def date(self, ledgers: list[LedgerId]) -> None:
        """These begin to age now."""
        await self._commits.commit([self.new(ledger) for ledger in ledgers])

    async def forget(self, ledgers: list[LedgerId]) -> int:
        """Take them out of index and memory, as far as nobody holds them. How many went."""
        values = await self._index.get_many([state_key(ledger) for ledger in ledgers])
        deletes: list[bytes] = []
        gone = 0
        for ledger, value in zip(ledgers, values, strict=True):
            if value is None or not _is_tombstone(ledger, value):
                deletes.append(deletion_key(ledger))  # of a ledger that has no tombstone, there is nothing to age
            elif self._states.let_go(ledger):
                await self.drop_blocks(ledger)
                deletes += (state_key(ledger), deletion_key(ledger))
                gone += 1
        if deletes:
            await self._commits.commit([], deletes)
        return gone

    async def drop_blocks(self, ledger: LedgerId) -> None:
        """At the deletion, and again before the ledger may come back: a crash in between left them, and they would name
        what is gone. Durable with the next synced commit."""
        if await self._has_blocks(ledger):
            await self._index.delete_range(block_key(ledger, 0), last_block_key(ledger) + b"\0")

    async def _has_blocks(self, ledger: LedgerId) -> bool:
        try:
            return await self._index.last_at_or_below(last_block_key(ledger), block_key(ledger, 0)) is not None
        except DamagedError:
            return True  # whatever is there goes, unread


def _is_tombstone(ledger: LedgerId, value: bytes) -> bool:
    try:
        return is_deleted(ledger, value)
    except DamagedError:
        return False  # what it was is not known: it stays
