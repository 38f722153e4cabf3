"""Reads of one ledger, closed or still being written. Never fences and never changes anything.

An open ledger is readable up to the last add confirmed that its bookies are known to have;
`read_last_add_confirmed` asks them again, and notices when the ledger was closed. Whoever holds the entries may change
under a reader: its writer and auto-recovery replace bookies. What no replica gives is therefore asked of those that the
metadata names by then.
"""

from quire_bookie.client.lac_read import read_lac
from quire_bookie.client.ledger_entry import LedgerEntry
from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.moved_replicas import find_moved
from quire_bookie.client.range_read import RangeReader
from quire_bookie.errors import LedgerClosedError, LedgerError, NoSuchEntryError
from quire_bookie.model import EntryId, LedgerId, LedgerMetadata, LedgerState


class LedgerReader:
    """See the module's text. Made by `LedgerClient.open_ledger`."""

    def __init__(self, handle: LedgerHandle, metadata: LedgerMetadata, lac: EntryId, length: int) -> None:
        """`lac` and `length` as known for a ledger that is not closed; a closed one's metadata says them."""
        self._handle = handle
        self._metadata = metadata
        closed = metadata.state is LedgerState.CLOSED
        self._lac = metadata.last_entry if closed else lac
        self._length = metadata.length if closed else length
        self._range = RangeReader(handle.read_way, handle.settings)
        self._closed = False

    @classmethod
    async def open(cls, handle: LedgerHandle, metadata: LedgerMetadata) -> "LedgerReader":
        """A reader that knows how far it may read. QuorumError when too few bookies answer."""
        reader = cls(handle, metadata, EntryId(metadata.segments[-1].first_entry - 1), 0)
        if not reader.is_closed:
            await reader._ask_bookies()
        return reader

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger."""
        return self._handle.ledger

    @property
    def metadata(self) -> LedgerMetadata:
        """As last read."""
        return self._metadata

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that may be read; NO_ENTRY while there is none. Never goes back."""
        return self._lac

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed: then it will never have other entries."""
        return self._metadata.state is LedgerState.CLOSED

    @property
    def length(self) -> int:
        """Payload bytes of the ledger; of one that is not closed as far as its bookies are known to have."""
        return self._length

    async def read(self, first: EntryId, last: EntryId, bytes_max: int | None = None) -> list[LedgerEntry]:
        """Entries `first` to `last` in order, or as many of them as fit `bytes_max`, at least one.

        NoSuchEntryError for ids beyond `last_add_confirmed`. When a replica is damaged or silent another one is asked;
        when none has a confirmed entry readable the error says why, and is NoSuchEntryError only if all of them
        answered that they do not have it. An error after the first entries shortens the answer instead of raising.
        """
        self._check_open()
        if not 0 <= first <= last or last > self._lac:
            raise NoSuchEntryError(
                f"entries {first} to {last} of ledger {self.ledger_id}: it can be read up to {self._lac}"
            )
        try:
            return await self._range.read(self._metadata, first, last, bytes_max)
        except LedgerError:
            moved = await find_moved(self._handle, self._metadata)
            if moved is None:
                raise
            # Only its segments: `read_last_add_confirmed` is what notices a close.
            self._metadata = moved
        return await self._range.read(self._metadata, first, last, bytes_max)

    async def read_last_add_confirmed(self) -> EntryId:
        """Ask how far the ledger can be read by now. QuorumError, MetadataUnavailableError, NoSuchLedgerError."""
        self._check_open()
        if not self.is_closed:
            self._metadata = (await self._handle.nodes.read(self.ledger_id)).value
            if self.is_closed:
                self._lac, self._length = self._metadata.last_entry, self._metadata.length
            else:
                await self._ask_bookies()
        return self._lac

    async def close(self) -> None:
        """No more reads through this handle. The ledger itself is left alone."""
        self._closed = True

    async def _ask_bookies(self) -> None:
        found = await read_lac(self._handle.read_way, self._metadata)
        self._lac = max(self._lac, found.lac)
        self._length = max(self._length, found.length)

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerClosedError(f"this reader of ledger {self.ledger_id} was closed")
