"""Broken variants: rules of a bookie's journal, storage and limbo, each removed."""

from dataclasses import replace
from typing import Any
from unittest import mock

from quire_bookie.errors import TooManyRequestsError
from quire_bookie.journal.journals import JournalPositions
from quire_bookie.journal.records import FenceRecord, JournalRecord
from quire_bookie.journal.replay import Replay
from quire_bookie.model import LedgerId, Run
from quire_bookie.server.requests.adds import Adds
from quire_bookie.server.start.replaying import JournalMarks, ReplayTarget
from quire_bookie.storage.flush_worker import FlushWorker
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo, LedgerStates
from quire_bookie.storage.ledgers.limbo import Limbo
from quire_bookie.storage.logs.log_writes import LogWrites
from quire_bookie.storage.stored_ledgers import StoredLedgers
from quire_bookie.wire.messages import AddRequest
from tests.sim.broken.variant import Variant, replaced


def _mark_covers_later_adds() -> tuple[Any, ...]:
    """Moves the mark to the journal's position at the end of the flush, not at its begin."""

    async def broken(self: JournalMarks, captured: JournalPositions, /) -> None:
        if captured and self.journals is not None:
            await self.journals.set_mark(self.journals.position())

    return (replaced(JournalMarks, "commit", broken),)


def _mark_before_the_flush() -> tuple[Any, ...]:
    """Moves the mark when the flush begins."""
    proper = FlushWorker._flush_swapped

    async def broken(self: FlushWorker[Any]) -> None:
        assert self._swapped is not None
        await self._move_mark(self._swapped.mark)
        await proper(self)

    return (replaced(FlushWorker, "_flush_swapped", broken),)


def _replay_from_the_newest_file() -> tuple[Any, ...]:
    """Begins the replay with the last journal file, whatever the mark is."""
    proper = Replay.__init__

    def broken(self: Replay, disk: Any, directory: str, files: Any, mark: Any, *rest: Any) -> None:
        newest = files.live.get(max(files.live, default=0))
        if newest is not None and newest.header.generation > mark.position.generation + 1:
            from quire_bookie.journal.format import DATA_START, JournalPosition

            header = newest.header
            mark = replace(mark, position=JournalPosition(header.generation, DATA_START, header.first_sequence))
        proper(self, disk, directory, files, mark, *rest)

    return (replaced(Replay, "__init__", broken),)


def _fences_not_replayed() -> tuple[Any, ...]:
    proper = ReplayTarget._apply

    async def broken(self: ReplayTarget, record: JournalRecord) -> None:
        if not isinstance(record, FenceRecord):
            await proper(self, record)

    return (replaced(ReplayTarget, "_apply", broken),)


def _replay_drops_what_does_not_fit() -> tuple[Any, ...]:
    async def broken(self: ReplayTarget, run: Run) -> None:
        info = await self._content_info(run.ledger)
        if info is None or info.deleted:
            return
        try:
            self._storage.put(info, run)
        except TooManyRequestsError:
            await self._storage.flush()

    return (replaced(ReplayTarget, "_put", broken),)


def _index_before_the_sync() -> tuple[Any, ...]:
    """Lets the index refer to records of an entry log before they are synced."""
    proper = LogWrites.finish

    async def broken(self: LogWrites, *rest: Any) -> None:
        with mock.patch.object(type(self._file), "sync", _nothing):
            await proper(self, *rest)

    return (replaced(LogWrites, "finish", broken),)


async def _nothing(*_: object) -> None:
    return


def _limbo_denies() -> tuple[Any, ...]:
    """Answers *no such entry* in limbo for entries that the bookie may have lost."""

    def settle(self: LedgerStates, info: LedgerInfo) -> None:
        proper(self, info)
        info.limbo = False

    def never(self: StoredLedgers, ledger: LedgerId) -> bool:
        return False

    proper = LedgerStates._settle_limbo
    return (replaced(LedgerStates, "_settle_limbo", settle), replaced(StoredLedgers, "is_limbo", never))


def _limbo_not_fenced() -> tuple[Any, ...]:
    """Accepts adds in limbo for a ledger whose fence may be lost."""

    def settle(self: LedgerStates, info: LedgerInfo) -> None:
        fenced = info.fenced
        proper(self, info)
        info.fenced = fenced

    def add_unknown(self: Adds, connection: Any, request: AddRequest, info: LedgerInfo | None) -> None:
        if info is None:
            info = self._loading.create(request.run.ledger, request.master_key)
        add(self, connection, request, info)

    proper, add = LedgerStates._settle_limbo, Adds._add
    return (replaced(LedgerStates, "_settle_limbo", settle), replaced(Adds, "_add", add_unknown))


def _limbo_forgotten() -> tuple[Any, ...]:
    """Ends limbo at a restart."""

    async def broken(*_: object) -> Limbo:
        return Limbo()

    from quire_bookie.storage.ledgers import state_changes

    return (replaced(state_changes, "load_limbo", broken),)


STORAGE_RULES = (
    Variant("mark covers adds after the flush began", "duel", 52, _mark_covers_later_adds),
    Variant("mark moved before the flush is durable", "faults", 4, _mark_before_the_flush),
    Variant("replay begins with the newest file", "files", 3, _replay_from_the_newest_file),
    Variant("fences are not replayed", "faults", 4, _fences_not_replayed),
    Variant("replay drops what does not fit the cache", "faults", 20, _replay_drops_what_does_not_fit),
    Variant("index committed before the log is synced", "faults", 0, _index_before_the_sync),
    Variant("limbo answers no such entry", "modes", 26, _limbo_denies),
    Variant("limbo takes adds", "gaps", 5, _limbo_not_fenced),
    Variant("limbo forgotten by a restart", "modes", 8, _limbo_forgotten),
)
