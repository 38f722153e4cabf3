"""What request handling asks of journal and storage. Both exist; named here so that tests can put others in place."""

from collections.abc import Callable, Sequence
from typing import Protocol

from quire_bookie.model import Buffer, EntryId, IdReport, LedgerId, Run, RunBatch
from quire_bookie.storage.entry_reads import Stretch
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo

Done = Callable[[BaseException | None], None]
"""Called on the loop once the covering sync is done, or with the reason why it never will be."""
BatchDone = Callable[[RunBatch, BaseException | None], None]
"""The same for some runs of a batch."""


class JournalPort(Protocol):
    """The write-ahead log. Appends never wait."""

    def append_run(self, run: Run, done: Done, /) -> None:
        """Log entries."""
        ...

    def append_batch(self, batch: RunBatch, done: BatchDone, /) -> None:
        """Log runs together. `done` may come in parts, each with a batch of some of the runs."""
        ...

    def append_master_key(self, ledger: LedgerId, key: bytes, done: Done, /, token: bytes) -> None:
        """Log a ledger's key, and its token; part of the same group as the next append, or of an earlier one."""
        ...

    def append_fence(self, ledger: LedgerId, done: Done, /) -> None:
        """Log a fence."""
        ...

    def append_explicit_lac(self, ledger: LedgerId, packet: bytes, done: Done, /) -> None:
        """Log an explicit LAC."""
        ...

    def start_now(self) -> None:
        """Begin to log what was appended in this step of the loop: no more comes in it."""
        ...

    def append_force(self, done: Done, /) -> None:
        """Log nothing; `done` after everything appended so far is durable in all journals."""
        ...


class StoragePort(Protocol):
    """The entries at rest and the state of ledgers."""

    def id_report(self, ledger_known: bool | None, /) -> IdReport:
        """The highest ledger ids ever held here, and the highest counters of ids ever read."""
        ...

    def cached_ledger(self, ledger_id: LedgerId, /) -> LedgerInfo | None:
        """The state if it is in memory."""
        ...

    def create_ledger(self, ledger_id: LedgerId, master_key: bytes, /) -> LedgerInfo:
        """Create; only right after `load_ledger` proved that there is none."""
        ...

    def set_token(self, info: LedgerInfo, token: bytes, /) -> None:
        """Keep the token of a ledger that has none."""
        ...

    def put(self, info: LedgerInfo, run: Run, /) -> None:
        """Take entries. TooManyRequestsError when there is no room now."""
        ...

    def put_batch(self, infos: Sequence[LedgerInfo], batch: RunBatch, /) -> None:
        """Take several runs' entries, `infos` in the order of their rows. TooManyRequestsError: none was taken."""
        ...

    def fence(self, info: LedgerInfo, /) -> None:
        """Set the fence."""
        ...

    def set_explicit_lac(self, info: LedgerInfo, packet: bytes, lac: EntryId, /) -> None:
        """Keep a packet."""
        ...

    def read_cached(self, info: LedgerInfo, entry: EntryId, /) -> Buffer | None:
        """The entry if it is in memory; None says nothing. DamagedError."""
        ...

    def stretch(self, info: LedgerInfo, entry: EntryId, /) -> Stretch | None:
        """Entries with this one among them that memory holds in one piece; None says nothing. For this step only."""
        ...

    def note_served(self, entries: int, /) -> None:
        """So many entries of stretches were handed out."""
        ...

    def is_limbo(self, ledger_id: LedgerId, /) -> bool:
        """Whether an absent ledger may have been held here, with everything that was known of it lost."""
        ...

    async def load_ledger(self, ledger_id: LedgerId, /) -> LedgerInfo | None:
        """The state; None: provably never had it, or `is_limbo`."""
        ...

    async def revive_copy(self, ledger_id: LedgerId, master_key: bytes, /) -> bool:
        """Hold a ledger again, durably, that was deleted as a superfluous copy. False: it is no such."""
        ...

    async def read(self, ledger_id: LedgerId, entry: EntryId, /) -> Buffer:
        """One entry; NO_ENTRY: the last."""
        ...

    async def read_many(self, ledger_id: LedgerId, first: EntryId, entries_max: int, bytes_max: int, /) -> list[Buffer]:
        """Consecutive entries."""
        ...

    async def entry_ranges(self, ledger_id: LedgerId, /) -> list[tuple[EntryId, EntryId]]:
        """First and last id of each run of entries held, ascending. Errors as `read`."""
        ...

    async def flush(self) -> None:
        """Make everything put before this call durable without the journal. DiskFullError, StorageError, OSError."""
        ...
