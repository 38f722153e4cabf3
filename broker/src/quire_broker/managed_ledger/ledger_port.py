"""The part of the ledger client that managed ledgers use. `quire_bookie.client.LedgerClient` provides it.

A writer's `submit` never waits: entries are confirmed in order through its listener, once per progress. After
`on_failed` the writer acknowledges nothing above `last_add_confirmed` to any client.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from quire_bookie.errors import LedgerError
from quire_bookie.metadata.joint_write import Transact
from quire_bookie.metadata.store import Check
from quire_bookie.model import BookieId, Buffer, DigestType, EntryId, LedgerId, LedgerMetadata, ReplicaState
from quire_bookie.quorum.bookie_groups import BookieGroups
from quire_broker.managed_ledger.stored_passwords import AcceptStored
from quire_broker.offload.segment_writer import StoredEntries

Payload: TypeAlias = Buffer | tuple[Buffer, ...]


class Entry(Protocol):
    """An entry read from a ledger."""

    @property
    def entry_id(self) -> EntryId:
        """Its id in the ledger."""
        ...

    @property
    def payload(self) -> Buffer:
        """The payload that was appended."""
        ...


class AppendListener(Protocol):
    """Receives the progress of a writer."""

    def on_confirmed(self, up_to: EntryId) -> None:
        """Handle that every entry up to this one is stored."""
        ...

    def on_failed(self, error: LedgerError) -> None:
        """Handle that the writer is finished. Called once."""
        ...


class Handle(Protocol):
    """A readable ledger."""

    @property
    def ledger_id(self) -> LedgerId:
        """Its id."""
        ...

    async def read(self, first: EntryId, last: EntryId, bytes_max: int | None = None) -> Sequence[Entry]:
        """Read entries `first` to `last`, or the first of them that fit into `bytes_max`; at least one."""
        ...


class Writer(Handle, Protocol):
    """The only writer of a ledger."""

    listener: AppendListener | None
    on_beyond_repair: Callable[[], None] | None
    """Called when `is_beyond_repair` became true."""

    @property
    def metadata(self) -> LedgerMetadata:
        """Its metadata at creation."""
        ...

    @property
    def metadata_check(self) -> Check:
        """The check of a transaction that the ledger exists and no other client changed its metadata."""
        ...

    def watch_answers(self, on_stored: Callable[[BookieId, int, int], None] | None) -> None:
        """Call `on_stored` with bookie, first entry and count when entries are stored at a bookie; None ends it."""
        ...

    @property
    def payload_bytes_max(self) -> int:
        """The size of the largest entry it accepts; `submit` raises LedgerError for a larger one."""
        ...

    @property
    def is_beyond_repair(self) -> bool:
        """Whether a replica of new entries is missing and the writer will not replace it in this ledger."""
        ...

    @property
    def last_add_confirmed(self) -> EntryId:
        """The id of the last confirmed entry."""
        ...

    def replica_states(self, entry: EntryId) -> Mapping[BookieId, ReplicaState]:
        """Return how far each bookie of an entry is, while the listener learns that it is stored."""
        ...

    def submit(self, payloads: Sequence[Payload]) -> EntryId:
        """Append without waiting and return the id of the first entry.

        Raises a LedgerError if the writer is finished.
        """
        ...

    async def tell_lac(self) -> EntryId:
        """Send the id of the last confirmed entry to the bookies, and return it when enough of them have it."""
        ...

    async def append(self, payload: Payload) -> EntryId:
        """Append one entry and wait until it is stored."""
        ...

    async def close(self, transact: Transact | None = None) -> LedgerMetadata:
        """Close the ledger at its last confirmed entry. `transact`: writes its metadata."""
        ...

    def abandon(self) -> None:
        """Drop pending requests and leave the ledger open; a recovery closes it."""
        ...


class Reader(Handle, Protocol):
    """A ledger opened for reads."""

    @property
    def metadata(self) -> LedgerMetadata:
        """Its metadata as last read."""
        ...

    @property
    def last_add_confirmed(self) -> EntryId:
        """The id of the last entry that may be read."""
        ...

    @property
    def length(self) -> int:
        """Payload bytes up to the last readable entry."""
        ...

    def take_confirmed(self, entry: EntryId) -> None:
        """Accept from its reader that the writer has confirmed `entry`. NoSuchEntryError if the ledger ended before."""
        ...

    async def wait_for_lac(self, beyond: EntryId, timeout_s: float) -> EntryId:
        """Wait until entries beyond this one may be read, the ledger is closed, or the time is over.

        Return `last_add_confirmed`. NoSuchLedgerError.
        """
        ...

    async def read_stored(self, first: EntryId, last: EntryId, bytes_max: int) -> StoredEntries | None:
        """Read entries in their stored form, at least one; None if no bookie returns them in one piece: use `read`."""
        ...

    async def close(self) -> None:
        """Release the handle."""
        ...


class Ledgers(Protocol):
    """Creates, opens and deletes ledgers."""

    def ensemble_max_in(self, groups: BookieGroups | None, wanted: int) -> int:
        """Return the size of the largest ensemble now in the groups of a ledger that wants one of `wanted` bookies."""
        ...

    def on_bookies_changed(self, listener: Callable[[], None]) -> object:
        """Call `listener` when the set of writable bookies, or their machines, changes."""
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
        """Create a ledger on bookies of the groups that `custom` names.

        With `fewer_bookies`, at least Qa writable bookies suffice instead of `ensemble_size`.
        """
        ...

    async def open_ledger(
        self, ledger: LedgerId, *, password: bytes, recover: bool, accept_stored: AcceptStored
    ) -> Reader:
        """Open for reads; with `recover`, first fence the writer and close the ledger. UnauthorizedError.

        A ledger for which `accept_stored` returns true is opened with the password in its metadata.
        """
        ...

    def writer_of(self, ledger: LedgerId) -> Writer | None:
        """Return the writer of a ledger that this client created, until all its bookies have what it sent."""
        ...

    async def read_metadata(self, ledger: LedgerId) -> LedgerMetadata:
        """Return the stored metadata of a ledger. Raises NoSuchLedgerError if it does not exist."""
        ...

    async def delete_ledger(self, ledger: LedgerId) -> None:
        """Delete the ledger. Raises NoSuchLedgerError if it does not exist."""
        ...
