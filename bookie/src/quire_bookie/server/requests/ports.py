"""Declares the methods of journal and storage that request handling uses, so that tests can replace them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from quire_bookie.model import Buffer, EntryId, IdReport, LedgerId, Run, RunBatch
from quire_bookie.storage.entry_reads import Stretch
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo

Done = Callable[[BaseException | None], None]
"""Called on the loop once the covering sync is done, or with the reason of its failure."""
BatchDone = Callable[[RunBatch, BaseException | None], None]
"""As `Done`, for some runs of a batch."""


class JournalPort(Protocol):
    """The journal. Appends never wait."""

    def append_run(self, run: Run, done: Done, /) -> None:
        """Log entries."""
        ...

    def append_batch(self, batch: RunBatch, done: BatchDone, /) -> None:
        """Log runs together. `done` may be called several times, each with a batch of some of the runs."""
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
        """Begin to log the records appended in this loop step; no further ones are appended in it."""
        ...

    def last_group_s(self, ledger: LedgerId, /) -> tuple[float, float] | None:
        """Return when the last group of a ledger's journal was submitted and became durable; None without a journal."""
        ...

    def append_force(self, done: Done, /) -> None:
        """Log nothing; call `done` once everything appended so far is durable in all journals."""
        ...


class StoragePort(Protocol):
    """The stored entries and the states of ledgers."""

    def id_report(self, ledger_known: bool | None, /) -> IdReport:
        """Return the highest ledger ids ever stored here, and the highest id counters ever read."""
        ...

    def cached_ledger(self, ledger_id: LedgerId, /) -> LedgerInfo | None:
        """Return the state if it is in memory."""
        ...

    def create_ledger(self, ledger_id: LedgerId, master_key: bytes, /) -> LedgerInfo:
        """Create a ledger; only right after `load_ledger`, `absent_of` or `is_unseen` proved it absent."""
        ...

    def set_token(self, info: LedgerInfo, token: bytes, /) -> None:
        """Store the token of a ledger without one."""
        ...

    def put(self, info: LedgerInfo, run: Run, /) -> None:
        """Store entries. TooManyRequestsError when there is no space now."""
        ...

    def put_batch(self, infos: Sequence[LedgerInfo], batch: RunBatch, /) -> None:
        """Store entries of several runs, `infos` in the order of their rows. TooManyRequestsError: none was stored."""
        ...

    def fence(self, info: LedgerInfo, /) -> None:
        """Set the fence."""
        ...

    def set_explicit_lac(self, info: LedgerInfo, packet: bytes, lac: EntryId, /) -> None:
        """Store an explicit LAC packet."""
        ...

    def read_cached(self, info: LedgerInfo, entry: EntryId, /) -> Buffer | None:
        """Return the entry if it is in memory, otherwise None. DamagedError."""
        ...

    def stretch(self, info: LedgerInfo, entry: EntryId, /) -> Stretch | None:
        """Return a contiguous piece of cached entries with this one, or None. Valid in this step only."""
        ...

    def note_served(self, entries: int, /) -> None:
        """Count entries of stretches that were sent to clients."""
        ...

    def is_limbo(self, ledger_id: LedgerId, /) -> bool:
        """Whether an absent ledger may have been stored here, and all its data was lost."""
        ...

    async def load_ledger(self, ledger_id: LedgerId, covered: EntryId = ..., /) -> LedgerInfo | None:
        """Return the state; None if the bookie provably never had the ledger, or if `is_limbo`."""
        ...

    async def absent_of(self, ledgers: Sequence[LedgerId], /) -> set[LedgerId]:
        """Return ledgers for which `load_ledger` would return None, after one read for all; it may miss some."""
        ...

    def is_unseen(self, ledger: LedgerId, /) -> bool:
        """Whether `load_ledger` would return None, as far as that is known without a read."""
        ...

    async def revive_copy(self, ledger_id: LedgerId, master_key: bytes, /) -> bool:
        """Revive a ledger, durably, that was deleted as a superfluous copy. False: it is not such a ledger."""
        ...

    async def read(self, ledger_id: LedgerId, entry: EntryId, /) -> Buffer:
        """Return one entry; NO_ENTRY means the last."""
        ...

    async def read_many(self, ledger_id: LedgerId, first: EntryId, entries_max: int, bytes_max: int, /) -> list[Buffer]:
        """Return consecutive entries."""
        ...

    async def entry_ranges(self, ledger_id: LedgerId, /) -> list[tuple[EntryId, EntryId]]:
        """Return the first and last id of each run of stored entries, ascending. Errors as `read`."""
        ...

    async def flush(self) -> None:
        """Make everything put before this call durable without the journal. DiskFullError, StorageError, OSError."""
        ...
