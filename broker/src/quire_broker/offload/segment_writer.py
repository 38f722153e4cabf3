"""Copies a closed ledger into a data object and an index object. Reports nothing: the objects count only once the
managed ledger's metadata names their uuid.

The index is written last, so a reader that finds it finds all data. Memory: the entries of two reads, and
`parts_at_once + 1` parts.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from quire_bookie.crc import crc32c
from quire_bookie.dataclass import dataclass
from quire_bookie.model import Buffer, EntryId, LedgerId, LedgerMetadata, LedgerState
from quire_bookie.object_store.store import ObjectStore
from quire_broker.errors import OffloadError
from quire_broker.offload.format import (
    ATTRIBUTES,
    SegmentEncoder,
    SegmentIndex,
    data_key,
    encode_index,
    index_key,
)
from quire_broker.offload.settings import WriteSettings

_PARTS_MAX = 9_000  # of an upload; services take 10,000
Pace: TypeAlias = Callable[[int], Awaitable[None]]
"""Awaited with the number of bytes just read, before reading continues: a rate limit waits here."""


class SourceEntry(Protocol):
    """An entry of the source ledger."""

    @property
    def entry_id(self) -> EntryId:
        """The entry id."""
        ...

    @property
    def payload(self) -> Buffer:
        """The payload as appended."""
        ...


class StoredEntries(Protocol):
    """Consecutive entries as a bookie stores them."""

    @property
    def entries(self) -> Sequence[Buffer]:
        """The entries, each with the bytes before its payload."""
        ...

    @property
    def head_bytes(self) -> int:
        """The number of bytes before each payload."""
        ...


class SourceLedger(Protocol):
    """A readable closed ledger; `quire_bookie.client.LedgerReader` is one."""

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger id."""
        ...

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata in the metadata store."""
        ...

    async def read(self, first: EntryId, last: EntryId, bytes_max: int | None = None) -> Sequence[SourceEntry]:
        """Return entries from `first` on, at least one."""
        ...

    async def read_stored(self, first: EntryId, last: EntryId, bytes_max: int) -> StoredEntries | None:
        """Return entries without an object for each, if a bookie serves them so; None: use `read`."""
        ...


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """Contents of a segment. `payload_bytes` is BookKeeper's length of the ledger, `crc` the CRC32C of all payloads."""

    uuid: str
    ledger_id: LedgerId
    entries: int
    payload_bytes: int
    data_bytes: int
    index_bytes: int
    blocks: int
    crc: int


_AT_ONCE = WriteSettings()


async def write_segment(
    objects: ObjectStore, ledger: SourceLedger, uuid: str, settings: WriteSettings = _AT_ONCE, pace: Pace | None = None
) -> SegmentSummary:
    """Write both objects; they are durable on return. After a cancellation or error some of them may exist.

    OffloadError: the ledger is empty or open, or does not match its metadata. ObjectStoreError; errors of the reads.
    """
    metadata = ledger.metadata
    if metadata.state is not LedgerState.CLOSED or metadata.last_entry < 0:
        raise OffloadError(f"ledger {ledger.ledger_id} is open or empty; offload closed ledgers with entries only")
    copy = _Copy(ledger, settings, pace)
    part_bytes = max(settings.part_bytes, metadata.length * 2 // _PARTS_MAX)
    await objects.put_stream(
        data_key(uuid, ledger.ledger_id),
        copy.chunks(),
        part_bytes=part_bytes,
        parts_at_once=settings.parts_at_once,
        attributes=ATTRIBUTES,
    )
    encoder = copy.encoder
    index = encode_index(SegmentIndex(encoder.data_bytes, metadata, tuple(encoder.blocks)))
    # It may exist already: the answer of a first attempt can get lost.
    await objects.put(index_key(uuid, ledger.ledger_id), index, overwrite=True, attributes=ATTRIBUTES)
    return SegmentSummary(
        uuid,
        ledger.ledger_id,
        metadata.last_entry + 1,
        metadata.length,
        encoder.data_bytes,
        len(index),
        len(encoder.blocks),
        copy.crc,
    )


class _Copy:
    """Copies one ledger once."""

    def __init__(self, ledger: SourceLedger, settings: WriteSettings, pace: Pace | None) -> None:
        metadata = ledger.metadata
        self.encoder = SegmentEncoder(metadata.last_entry, metadata.length, settings.block_bytes_max)
        self.crc = 0
        self._ledger = ledger
        self._last = metadata.last_entry
        self._read_bytes = settings.read_bytes
        self._pace = pace

    async def chunks(self) -> AsyncIterator[Buffer]:
        """Yield the bytes of the data object. The upload takes the next while earlier parts are in flight."""
        at = 0
        while at <= self._last:
            payloads = await self._payloads(at)
            if self._pace is not None:
                await self._pace(sum(map(len, payloads)))
            for payload in payloads:
                self.crc = crc32c(payload, self.crc)
            encoded = self.encoder.encode(at, payloads)
            at += len(payloads)
            if at > self._last:
                self.encoder.finish()
            yield encoded

    async def _payloads(self, at: int) -> Sequence[Buffer]:
        first, last = EntryId(at), EntryId(self._last)
        stored = await self._ledger.read_stored(first, last, self._read_bytes)
        if stored is None:
            return [entry.payload for entry in await self._ledger.read(first, last, self._read_bytes)]
        skip = stored.head_bytes
        return [memoryview(entry)[skip:] for entry in stored.entries]


async def delete_segment(objects: ObjectStore, ledger_id: int, uuid: str) -> None:
    """Remove both objects, the index first: without it the data is not a segment. Missing objects are fine."""
    await objects.delete(index_key(uuid, ledger_id))
    await objects.delete(data_key(uuid, ledger_id))
