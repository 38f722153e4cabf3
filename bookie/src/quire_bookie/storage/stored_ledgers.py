"""Looks up the states of the ledgers of one storage, in memory and then in the index.

Never reports a ledger as absent without proof.
"""

import logging
import struct
from collections.abc import Sequence
from typing import Any

from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError, NoSuchEntryError
from quire_bookie.model import ENTRY_HEADER_BYTES, NO_ENTRY, EntryId, LedgerId
from quire_bookie.storage.flush_worker import FlushWorker
from quire_bookie.storage.formats.block_index import known_top
from quire_bookie.storage.formats.index_keys import (
    BLOCK_SHIFT,
    STATES_END,
    STATES_START,
    block_key,
    block_of_key,
    last_block_key,
    ledger_of_state_key,
    state_key,
)
from quire_bookie.storage.index.index_commits import IndexCommits
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo, LedgerStates, decode_state, is_deleted
from quire_bookie.storage.logs.log_reader import LogReader
from quire_bookie.storage.read_cache import Extent

_log = logging.getLogger("quire.storage")
_LAC = struct.Struct(">q")
_LAC_OFFSET = 16


class StoredLedgers:
    """Loads and lists ledgers. The epoch of `flushes` shows whether a state may have changed during an index read."""

    def __init__(
        self,
        index: IndexStore,
        commits: IndexCommits,
        states: LedgerStates,
        reader: LogReader,
        flushes: FlushWorker[Any],
    ) -> None:
        self._index = index
        self._commits = commits
        self._states = states
        self._reader = reader
        self._flushes = flushes

    async def load(self, ledger: LedgerId, covered: EntryId = NO_ENTRY) -> LedgerInfo | None:
        """Return the ledger; None proves that this bookie never had it. DamagedError if that cannot be determined.

        `covered`: the caller puts this entry next, whose LAC is at least that of any entry before it. The LAC of the
        last entry held is read only if that entry is above `covered`.
        """
        while True:
            info = self._states.get(ledger)
            if info is not None:
                return info
            epoch = self._flushes.epoch
            value = await self._index.get(state_key(ledger))
            extent: Extent | None = None
            if value is not None:
                info = decode_state(ledger, value)
                if not info.deleted:
                    extent = await self._load_last(info, covered)
            if epoch != self._flushes.epoch:
                continue  # a flush intervened: the state that was read may be older than one evicted since
            if info is not None:
                kept = self._states.add_loaded(info)
                if kept is info and extent is not None:
                    self._reader.keep(extent)
                return kept
            if self._states.get(ledger) is None:
                self._states.note_absent(ledger)
                return None

    def is_unseen(self, ledger: LedgerId) -> bool:
        """Whether the ledger is absent for sure without a read: its id is above all that the index ever had.

        A ledger that the index does not have yet is in memory until the commit that names it is counted.
        """
        if not self._commits.is_above_all(ledger) or self._states.get(ledger) is not None:
            return False
        self._states.note_absent(ledger)
        return True

    async def absent_of(self, ledgers: Sequence[LedgerId]) -> set[LedgerId]:
        """Return those ledgers that are provably absent, after one read for all; none if that cannot be determined."""
        keys = [state_key(ledger) for ledger in ledgers]
        while True:
            epoch = self._flushes.epoch
            try:
                values = await self._index.get_many(keys)
            except DamagedError:
                return set()  # `load` finds out which one is damaged
            if epoch == self._flushes.epoch:
                break
        find = self._states.get
        absent = {each for each, value in zip(ledgers, values, strict=True) if value is None and find(each) is None}
        for ledger in absent:
            self._states.note_absent(ledger)
        return absent

    async def _load_last(self, info: LedgerInfo, covered: EntryId) -> Extent | None:
        """Set the last entry, and the LAC from it unless `covered`; return the extent that was read for it."""
        ledger = info.ledger_id
        try:
            pair = await self._index.last_at_or_below(last_block_key(ledger), block_key(ledger, 0))
        except DamagedError as error:
            _log.error("the last entry of ledger %d is not provable: %s", ledger, error)
            info.last_unproven = True
            return None
        if pair is None:
            return None
        top, info.last_unproven = known_top(*pair)
        info.last_entry = NO_ENTRY if top < 0 else EntryId(block_of_key(pair[0]) << BLOCK_SHIFT | top)
        if top < 0 or info.last_entry <= covered:
            return None
        try:
            extent = await self._reader.read_end(info, *pair)
        except (NoSuchEntryError, DamagedError):
            return None  # the LAC of a ledger is a lower bound; a read of the entry itself reports the damage
        if extent.holds(info.last_entry):
            body = extent.body(info.last_entry)
            if len(body) >= ENTRY_HEADER_BYTES:
                info.lac = EntryId(max(info.lac, _LAC.unpack_from(body, _LAC_OFFSET)[0]))
        return extent

    def is_limbo(self, ledger: LedgerId) -> bool:
        """Return whether an absent ledger may have been lost; for a held one, `LedgerInfo.limbo`."""
        info = self._states.get(ledger)
        return info.limbo if info is not None else self._states.limbo.active and self._states.limbo.covers(ledger)

    async def listed(self) -> list[LedgerId]:
        """Return every ledger held, ascending, without deleted ones; one with a damaged state counts as held."""
        found: set[LedgerId] = set()
        async for key, value in self._index.scan(STATES_START, STATES_END):
            ledger = ledger_of_state_key(key)
            try:
                if is_deleted(ledger, value):
                    continue
            except DamagedError as error:
                _log.error("%s", error)
            found.add(ledger)
        for info in self._states.dirty_ledgers():
            (found.discard if info.deleted else found.add)(info.ledger_id)
        return sorted(found)

    async def first_live(self, ledgers: Sequence[LedgerId]) -> LedgerId | None:
        """Return the first of these ledgers that is held; None if all were deleted."""
        try:
            values = await self._index.get_many([state_key(ledger) for ledger in ledgers])
            for ledger, value in zip(ledgers, values, strict=True):
                if value is not None and not is_deleted(ledger, value):
                    return ledger
        except DamagedError:
            return ledgers[0]  # unknown whether it is live
        return None
