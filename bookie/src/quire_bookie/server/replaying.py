"""From the journal into storage at start, and from storage's flushes back to the journal's mark.

Replay puts every record that the mark does not cover where it was before the crash. It is safe to deliver a record
twice: an entry is stored again with the same bytes, a key or fence is set again.
"""

import logging
from typing import Protocol

from quire_bookie.errors import TooManyRequestsError
from quire_bookie.journal.format import JournalPosition
from quire_bookie.journal.records import (
    EntryRecord,
    ExplicitLacRecord,
    FenceRecord,
    JournalRecord,
    MasterKeyRecord,
)
from quire_bookie.model import LedgerId, Run
from quire_bookie.server.explicit_lacs import lac_of_packet
from quire_bookie.server.ports import StoragePort
from quire_bookie.storage.ledger_states import LedgerInfo

_log = logging.getLogger("quire.server.replaying")


class MarkedJournal(Protocol):
    """The part of the journal that a flush needs."""

    def position(self) -> JournalPosition:
        """The place of the next group that is not submitted yet; during replay, of the group being delivered."""
        ...

    async def set_mark(self, position: JournalPosition, /) -> None:
        """Everything before `position` is durable in storage."""
        ...


class FlushableStorage(StoragePort, Protocol):
    """Storage that replay can make room in."""

    async def flush(self) -> None:
        """Write the caches out, durably."""
        ...


class JournalMarks:
    """What a flush covers: put and append share a loop step, so what is swapped lies before the captured position."""

    def __init__(self, journal: MarkedJournal) -> None:
        self._journal = journal

    def capture(self) -> JournalPosition:
        """Called at the cache swap."""
        return self._journal.position()

    async def commit(self, captured: object, /) -> None:
        """Called after the flush is durable."""
        assert isinstance(captured, JournalPosition)
        await self._journal.set_mark(captured)


class ReplayTarget:
    """Takes the journal's records into storage."""

    def __init__(self, storage: FlushableStorage) -> None:
        self._storage = storage
        self.entries = 0
        self.orphans = 0
        """Entries of ledgers whose key is neither in the journal nor in storage: never acknowledged, or collected."""

    async def deliver(self, record: JournalRecord) -> None:
        """Apply one record; makes room in the cache when it has to."""
        match record:
            case MasterKeyRecord(ledger, key):
                if await self._info(ledger) is None:
                    self._storage.create_ledger(ledger, key)
            case EntryRecord(run):
                await self._put(run)
            case FenceRecord(ledger):
                info = await self._info(ledger)
                if info is not None and not info.fenced:
                    self._storage.fence(info)
            case ExplicitLacRecord(ledger, packet):
                info = await self._info(ledger)
                if info is not None and not info.deleted:
                    self._storage.set_explicit_lac(info, packet, lac_of_packet(packet))

    async def _info(self, ledger: LedgerId) -> LedgerInfo | None:
        return self._storage.cached_ledger(ledger) or await self._storage.load_ledger(ledger)

    async def _put(self, run: Run) -> None:
        info = await self._info(run.ledger)
        if info is None or info.deleted:
            # The ledger was collected after the entries were journaled; its tombstone may be gone as well.
            self.orphans += len(run.entries)
            return
        self.entries += len(run.entries)
        while True:
            try:
                self._storage.put(info, run)
                return
            except TooManyRequestsError:
                await self._storage.flush()
