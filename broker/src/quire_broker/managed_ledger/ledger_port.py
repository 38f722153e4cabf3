"""What managed ledgers need of the ledger client. `quire_bookie.client.LedgerClient` provides it; tests have their own.

A writer's `submit` never waits: entries are confirmed in order through its listener, once per progress. After
`on_failed` nothing above `last_add_confirmed` is acknowledged to anybody through that writer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from quire_bookie.errors import LedgerError
from quire_bookie.model import BookieId, Buffer, DigestType, EntryId, LedgerId, LedgerMetadata
from quire_broker.managed_ledger.stored_passwords import AcceptStored
from quire_broker.offload.segment_writer import StoredEntries

Payload: TypeAlias = Buffer | tuple[Buffer, ...]


class Entry(Protocol):
    """An entry as it was read."""

    @property
    def entry_id(self) -> EntryId:
        """Its id in the ledger."""
        ...

    @property
    def payload(self) -> Buffer:
        """What was appended."""
        ...


class AppendListener(Protocol):
    """Told of a writer's progress."""

    def on_confirmed(self, up_to: EntryId) -> None:
        """Everything up to this entry is stored."""
        ...

    def on_failed(self, error: LedgerError) -> None:
        """The writer is finished; once."""
        ...


class Handle(Protocol):
    """A ledger that can be read."""

    @property
    def ledger_id(self) -> LedgerId:
        """Its id."""
        ...

    async def read(self, first: EntryId, last: EntryId, bytes_max: int | None = None) -> Sequence[Entry]:
        """Entries `first` to `last`, or as many from `first` on as fit `bytes_max`, at least one."""
        ...


class Writer(Handle, Protocol):
    """The one writer of a ledger."""

    listener: AppendListener | None

    @property
    def metadata(self) -> LedgerMetadata:
        """As it was created."""
        ...

    @property
    def payload_bytes_max(self) -> int:
        """The largest entry it takes; `submit` raises LedgerError for a larger one."""
        ...

    @property
    def is_beyond_repair(self) -> bool:
        """Whether a replica of new entries is missing, and the writer will not replace it in this ledger."""
        ...

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last stored entry."""
        ...

    def submit(self, payloads: Sequence[Payload]) -> EntryId:
        """Append, pipelined; the id of the first. Raises a LedgerError when the writer is finished."""
        ...

    async def append(self, payload: Payload) -> EntryId:
        """Append one entry and wait until it is stored."""
        ...

    async def close(self) -> LedgerMetadata:
        """Close the ledger at its last confirmed entry."""
        ...

    def abandon(self) -> None:
        """Drop what is under way and leave the ledger open; a recovery closes it."""
        ...


class Reader(Handle, Protocol):
    """A ledger opened for reads."""

    @property
    def metadata(self) -> LedgerMetadata:
        """As last read."""
        ...

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that may be read."""
        ...

    @property
    def length(self) -> int:
        """Payload bytes up to there."""
        ...

    async def read_stored(self, first: EntryId, last: EntryId, bytes_max: int) -> StoredEntries | None:
        """Entries as bookies store them, at least one; None where nobody gives them in one piece: ask `read`."""
        ...

    async def close(self) -> None:
        """Release it."""
        ...


class Ledgers(Protocol):
    """Makes, opens and deletes ledgers."""

    @property
    def writable_bookies(self) -> frozenset[BookieId]:
        """Bookies that take new ledgers, as far as known."""
        ...

    def on_bookies_changed(self, listener: Callable[[], None]) -> object:
        """Be told when that set changes."""
        ...

    async def create_ledger(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        digest_type: DigestType,
        password: bytes,
        custom: Mapping[str, bytes],
        fewer_bookies: bool,
    ) -> Writer:
        """A new ledger. `fewer_bookies`: on fewer than `ensemble_size`, at least Qa, while no more are writable."""
        ...

    async def open_ledger(
        self, ledger: LedgerId, *, password: bytes, recover: bool, accept_stored: AcceptStored
    ) -> Reader:
        """Open for reads; with `recover`, fence its writer and close it first.

        `accept_stored`: a ledger for which it returns true opens with the password in its metadata. UnauthorizedError.
        """
        ...

    async def delete_ledger(self, ledger: LedgerId) -> None:
        """Delete. NoSuchLedgerError when it does not exist."""
        ...
