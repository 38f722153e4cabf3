"""Replays the journal into storage at start, and moves the journal mark after storage's flushes.

Replay delivers every record after the mark. It is safe to deliver a record twice: an entry is stored again with the
same bytes, a key or fence is set again.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from quire_bookie.errors import TooManyRequestsError
from quire_bookie.journal.journals import JournalPositions
from quire_bookie.journal.records import (
    EntryRecord,
    ExplicitLacRecord,
    FenceRecord,
    JournalRecord,
    MasterKeyRecord,
)
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId, Run
from quire_bookie.server.requests.explicit_lacs import lac_of_packet
from quire_bookie.server.requests.ports import StoragePort
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo

_log = logging.getLogger("quire.server.replaying")
LOADS_AT_ONCE: Final = 512
"""Ledgers whose states replay loads together; each takes a task and, at most, one entry in memory."""


class MarkedJournals(Protocol):
    """The methods of the journals that a flush needs."""

    def position(self) -> JournalPositions:
        """Return per journal the position of the next unsubmitted group; during replay, of the delivered records."""
        ...

    async def set_mark(self, positions: JournalPositions, /) -> None:
        """Move the mark: everything before the positions is durable in storage."""
        ...


class FlushableStorage(StoragePort, Protocol):
    """Storage whose caches replay can flush to make space."""

    async def flush(self) -> None:
        """Write out the caches, durably."""
        ...

    def create_ledger_without_key(self, ledger_id: LedgerId, /) -> LedgerInfo:
        """Create a ledger in limbo whose key was lost; only right after `load_ledger` returned None."""
        ...

    def restore_key(self, info: LedgerInfo, master_key: bytes, /) -> None:
        """Set the key of a ledger that was created without one."""
        ...


def _ledger_of(record: JournalRecord) -> LedgerId:
    return record.run.ledger if isinstance(record, EntryRecord) else record.ledger


def _last_of(record: JournalRecord) -> EntryId:
    """Return the highest entry of a record, NO_ENTRY if it has none."""
    return EntryId(record.run.first + len(record.run.entries) - 1) if isinstance(record, EntryRecord) else NO_ENTRY


class JournalMarks:
    """Captures the journal positions that a flush covers and moves the marks there after it.

    Put and append share a loop step, so all entries of the swapped cache lie before the captured positions. No mark
    moves until `journals` is set: storage is opened, and may be filled, before the journals are.
    """

    def __init__(self, journals: MarkedJournals | None = None) -> None:
        self.journals = journals

    def capture(self) -> JournalPositions:
        """Return the positions at the cache swap."""
        return () if self.journals is None else self.journals.position()

    async def commit(self, captured: JournalPositions, /) -> None:
        """Move the marks once the flush is durable."""
        if captured and self.journals is not None:
            await self.journals.set_mark(captured)


class ReplayTarget:
    """Applies journal records to storage."""

    def __init__(self, storage: FlushableStorage) -> None:
        self._storage = storage
        self.entries = 0
        self.orphans = 0
        """Entries of ledgers whose key is neither in the journal nor in storage: never acknowledged, or deleted."""
        self._without_key: set[LedgerId] = set()
        self._key_came_late = False

    async def deliver(self, records: Sequence[JournalRecord]) -> None:
        """Apply the records of one group in order; flush the cache if it is full."""
        loaded = await self._load(records)  # referenced: a state stays in memory until its records are applied
        for record in records:
            await self._apply(record)
        del loaded

    async def _load(self, records: Iterable[JournalRecord]) -> list[LedgerInfo | None]:
        """Load the ledgers of the records together: one after the other, each waits for its own reads.

        DamagedError and OSError, once all loads have ended.
        """
        last: dict[LedgerId, EntryId] = {}
        for record in records:
            ledger = _ledger_of(record)
            last[ledger] = max(last.get(ledger, NO_ENTRY), _last_of(record))
        wanted = [ledger for ledger in last if self._storage.cached_ledger(ledger) is None]
        loaded: list[LedgerInfo | None] = []
        for start in range(0, len(wanted), LOADS_AT_ONCE):
            loads = [self._storage.load_ledger(each, last[each]) for each in wanted[start : start + LOADS_AT_ONCE]]
            for outcome in await asyncio.gather(*loads, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
                loaded.append(outcome)
        return loaded

    async def _apply(self, record: JournalRecord) -> None:
        match record:
            case MasterKeyRecord(ledger, key, token):
                known = await self._known(ledger)
                if known is None:
                    known = self._storage.create_ledger(ledger, key)
                    self._key_came_late = self._key_came_late or ledger in self._without_key
                elif known.key_unknown and not known.deleted:
                    self._storage.restore_key(known, key)
                if token and not known.token and not known.deleted:
                    self._storage.set_token(known, token)
            case EntryRecord(run):
                await self._put(run)
            case FenceRecord(ledger):
                info = await self._info(ledger)
                if info is not None and not info.fenced:
                    self._storage.fence(info)
            case ExplicitLacRecord(ledger, packet):
                info = await self._content_info(ledger)
                if info is not None and not info.deleted:
                    self._storage.set_explicit_lac(info, packet, lac_of_packet(packet))

    def again(self) -> bool:
        """Whether records must be delivered again: the key of a ledger came after its records, from another journal.

        Those records were skipped. Called after a full delivery; resets the counters if it returns True.
        """
        if self._key_came_late:
            self.entries = self.orphans = 0
        return self._key_came_late

    async def _known(self, ledger: LedgerId) -> LedgerInfo | None:
        return self._storage.cached_ledger(ledger) or await self._storage.load_ledger(ledger)

    async def _info(self, ledger: LedgerId) -> LedgerInfo | None:
        info = await self._known(ledger)
        if info is None:
            self._without_key.add(ledger)
        return info

    async def _content_info(self, ledger: LedgerId) -> LedgerInfo | None:
        """As `_info`; in limbo, create a ledger whose key was lost, so that its acknowledged entries are kept."""
        info = await self._info(ledger)
        if info is None and self._storage.is_limbo(ledger):
            self._without_key.discard(ledger)
            info = self._storage.create_ledger_without_key(ledger)
        elif info is not None and info.deleted and info.limbo:
            # A revival is durable before any entry of the ledger is journaled. In limbo its record may have been lost.
            await self._storage.revive_copy(ledger, info.master_key)
        return info

    async def _put(self, run: Run) -> None:
        info = await self._content_info(run.ledger)
        if info is None or info.deleted:
            # The ledger was deleted after the entries were journaled; its tombstone may be gone as well.
            self.orphans += len(run.entries)
            return
        self.entries += len(run.entries)
        while True:
            try:
                self._storage.put(info, run)
                return
            except TooManyRequestsError:
                await self._storage.flush()
