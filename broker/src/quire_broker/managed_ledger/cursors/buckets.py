"""The buckets of one durable cursor: delivery times of delayed entries, saved in ledgers, so that an owner change does
not read those entries again. `bucket_format` has their form.

    create   a ledger, recorded as unreferenced
    write    pages, positions and head, in the background; then the ledger is closed
    record   one transaction: the cursor's node names the bucket, the ledger is no longer unreferenced
    drop     one transaction: the node names it no more, the ledger is recorded as unreferenced; then it is deleted

A crash before `record` leaves a ledger that the next owner deletes, and entries that it reads again. A bucket is only a
help: an owner that cannot read it drops it and reads the entries. Buckets up to the mark-delete position are dropped by
themselves, and all of them after a seek. Decides neither which entries are delayed nor when they are delivered.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator
from typing import Protocol, TypeAlias

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import LedgerError, MetadataError, MetadataFormatError, QuireError
from quire_bookie.model import Buffer, EntryId, LedgerId
from quire_broker.managed_ledger.context import ManagedLedgerContext
from quire_broker.managed_ledger.cursors.ack_ranges import AckRanges
from quire_broker.managed_ledger.cursors.bucket_format import (
    BucketHead,
    BucketRecord,
    Page,
    decode_head,
    decode_page,
    decode_positions,
    encode_head,
    encode_page,
    encode_positions,
)
from quire_broker.managed_ledger.errors import ManagedLedgerClosedError
from quire_broker.managed_ledger.ledger_port import Reader
from quire_broker.managed_ledger.position import LATEST, Position
from quire_broker.managed_ledger.stored_passwords import to_read
from quire_broker.managed_ledger.unreferenced import unreferenced

_log = logging.getLogger("quire.managed_ledger")

Chunk: TypeAlias = tuple[int, int, int]
"""Ledger, number and bits of a chunk of positions."""


class BucketNode(Protocol):
    """The cursor, as far as it names buckets in its node."""

    name: str

    @property
    def bucket_records(self) -> tuple[BucketRecord, ...]:
        """The buckets that the node names."""
        ...

    async def add_bucket(self, record: BucketRecord) -> None:
        """Name one more, whose ledger is recorded as unreferenced."""
        ...

    async def drop_buckets(self, records: Collection[BucketRecord]) -> None:
        """Name these no more, and delete their ledgers."""
        ...


@dataclass(slots=True)
class Draft:
    """What becomes a bucket. `pages` are made while they are written; `ledgers`: as the keys number them."""

    pages: Iterator[Page]
    positions: AckRanges
    ledgers: list[int]
    slots: str


@dataclass(slots=True)
class Bucket:
    """A bucket that the node names."""

    record: BucketRecord
    head: BucketHead
    reader: Reader | None = None


class Buckets:
    """Saves, loads and drops the buckets of one cursor."""

    def __init__(self, context: ManagedLedgerContext, node: BucketNode) -> None:
        self.lowest = LATEST
        """The lowest last position of a bucket: a mark-delete position below it passes none."""
        self._context = context
        self._node = node
        self._dropping: set[BucketRecord] = set()
        self._note_records()

    @property
    def records(self) -> list[BucketRecord]:
        """The buckets that the node names and that are not about to be dropped."""
        return [record for record in self._node.bucket_records if record not in self._dropping]

    def _note_records(self) -> None:
        self.lowest = min((record.last for record in self.records), default=LATEST)

    # ---- saving
    async def save(self, draft: Draft) -> Bucket:
        """Save a bucket. It goes on if the caller is cancelled. Errors of client and store: nothing is saved."""
        task = self._context.background.spawn(self._save(draft), f"saving delayed entries of {self._node.name}")
        return await asyncio.shield(task)

    async def _save(self, draft: Draft) -> Bucket:
        context, ends = self._context, draft.positions
        highest, lowest = ends.ledgers()[-1], ends.ledgers()[0]
        record_last = Position(highest, ends.last_of(highest))
        first = ends.entry_after(lowest, -1)
        assert first is not None, "a bucket holds at least one entry"
        writer = await unreferenced(context, context.maker.create(self._node.name))
        try:
            pages: list[tuple[int, int]] = []
            for page in draft.pages:
                await writer.append(encode_page(page))
                pages.append((page.times_ms[0], len(page)))
            positions = 0
            for data in encode_positions(ends, draft.ledgers):
                await writer.append(data)
                positions += 1
            head = BucketHead(
                context.name, self._node.name, draft.slots, draft.ledgers, (lowest, first), pages, positions
            )
            await writer.append(encode_head(head))
            await writer.close()
            bucket = Bucket(BucketRecord(writer.ledger_id, record_last), head)
            await self._node.add_bucket(bucket.record)
        except BaseException:
            writer.abandon()
            context.deletions.begin([writer.ledger_id])
            raise
        self._note_records()
        return bucket

    # ---- loading
    async def load(self, record: BucketRecord, slots: str) -> tuple[Bucket, list[Chunk]]:
        """Return a bucket with its positions. QuireError if it cannot be read or is not what it should be."""
        reader = await self._open(record)
        try:
            last = reader.last_add_confirmed
            head = decode_head(await _entry(reader, last))
            if (head.managed_ledger, head.cursor, head.slots) != (self._context.name, self._node.name, slots):
                raise MetadataFormatError(
                    f"ledger {record.ledger_id} has delayed entries of cursor {head.cursor} of {head.managed_ledger} "
                    f"with slots {head.slots!r}"
                )
            if len(head.pages) + head.positions != last:
                raise MetadataFormatError(
                    f"ledger {record.ledger_id} has {last} entries and the head of another bucket"
                )
            chunks: list[Chunk] = []
            for entry_id in range(len(head.pages), last):
                chunks += decode_positions(await _entry(reader, entry_id), head.ledgers)
                await asyncio.sleep(0)
        except BaseException:
            await _closed(reader)
            raise
        return Bucket(record, head, reader), chunks

    async def page(self, bucket: Bucket, number: int) -> Page:
        """Return one page. QuireError if it cannot be read or is damaged."""
        if bucket.reader is None:
            bucket.reader = await self._open(bucket.record)
        page = decode_page(await _entry(bucket.reader, number))
        if len(page) != bucket.head.pages[number][1]:
            raise MetadataFormatError(
                f"page {number} of ledger {bucket.record.ledger_id} has {len(page)} delayed entries, its head says "
                f"{bucket.head.pages[number][1]}"
            )
        return page

    async def _open(self, record: BucketRecord) -> Reader:
        return await self._context.client.open_ledger(
            LedgerId(record.ledger_id),
            password=self._context.settings.password,
            recover=False,
            accept_stored=to_read,
        )

    # ---- dropping
    def release(self, bucket: Bucket) -> None:
        """Close what reads a bucket."""
        reader, bucket.reader = bucket.reader, None
        if reader is not None:
            self._context.background.start(_closed(reader), f"closing ledger {bucket.record.ledger_id}")

    def passed(self, mark_delete: Position) -> None:
        """Drop the buckets that have no entry above the mark-delete position."""
        self.drop_soon([record for record in self.records if record.last <= mark_delete])

    def drop_soon(self, records: Iterable[BucketRecord]) -> None:
        """Drop buckets in the background, with retries; what a crash leaves, the next owner drops."""
        fresh = [record for record in records if record not in self._dropping]
        if not fresh:
            return
        is_first = not self._dropping
        self._dropping.update(fresh)
        self._note_records()
        if is_first:
            self._context.background.start(self._drop_all(), f"dropping delayed entries of {self._node.name}")

    async def _drop_all(self) -> None:
        backoff = self._context.backoff()
        try:
            while some := set(self._dropping):
                try:
                    await self._node.drop_buckets(some)
                except (LedgerError, MetadataError) as error:
                    _log.info("could not drop buckets of %s yet: %s", self._node.name, error)
                    await backoff.wait()
                except ManagedLedgerClosedError:
                    return  # the next owner drops them
                else:
                    self._dropping -= some
        finally:
            self._dropping.clear()
            self._note_records()


async def _entry(reader: Reader, entry_id: int) -> Buffer:
    entries = await reader.read(EntryId(entry_id), EntryId(entry_id))
    return entries[0].payload


async def _closed(reader: Reader) -> None:
    try:
        await reader.close()
    except QuireError as error:
        _log.debug("ledger %d: %s", reader.ledger_id, error)
