"""Reads the entries of a split, in order, from bookies or from offloaded objects. Owns the choice and the fallback.

Memory is bounded: the caller processes one run of `batch_bytes` while the next is read. Never opens with recovery.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from quire_bookie.bulk import join_payloads
from quire_bookie.client import LedgerReader
from quire_bookie.errors import LedgerError, NoSuchEntryError, NoSuchLedgerError
from quire_bookie.model import Buffer, EntryId, LedgerId
from quire_bookie.wire.packed_entries import PackedEntries
from quire_broker.errors import SegmentMissingError
from quire_broker.managed_ledger.list_store import node_path
from quire_broker.managed_ledger.nodes.node_codec import decode_list
from quire_broker.managed_ledger.reading.tiers import TieredReader
from quire_broker.offload.settings import ReadFirst
from quire_jobs.errors import DataLossError
from quire_jobs.source.cluster import Cluster
from quire_jobs.source.options import SourceOptions
from quire_jobs.source.spans import LogName, Span

_GONE = (NoSuchLedgerError, NoSuchEntryError)
_log = logging.getLogger("quire.jobs.source")


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive entries of one ledger, at least one. The payload of each entry of `stored` begins after `head_bytes`.

    The entries may be views that keep a larger buffer in memory.
    """

    ledger_id: int
    first: int
    stored: Sequence[Buffer]
    head_bytes: int = 0

    def __len__(self) -> int:
        return len(self.stored)

    def joined(self) -> tuple[Buffer, bytes]:
        """Return the concatenated payloads: offsets of 32 bits, and the bytes."""
        if isinstance(self.stored, PackedEntries):
            return self.stored.payloads(self.head_bytes)
        return join_payloads(self.stored, self.head_bytes)

    @property
    def payloads(self) -> list[memoryview]:
        """The payloads without the heads, as the writer appended them."""
        return [memoryview(entry)[self.head_bytes :] for entry in self.stored]


def _is_gone(error: LedgerError) -> bool:
    """Return whether the error proves that the entries exist nowhere, as opposed to an unavailable server."""
    return isinstance(error, _GONE) or isinstance(error.__cause__, SegmentMissingError)


class StoredEntries(Protocol):
    """A stored entry with its payload."""

    @property
    def payload(self) -> Buffer:
        """The bytes that the writer appended."""
        ...


class EntrySource(Protocol):
    """A ledger opened for reads, from bookies or from a bucket."""

    async def read(self, first: EntryId, last: EntryId, bytes_max: int | None = None) -> Sequence[StoredEntries]:
        """Return entries `first` to `last`, or only the first ones that fit `bytes_max`, at least one."""
        ...

    async def close(self) -> None:
        """Release the reader."""
        ...


class EntryRuns:
    """Reads spans of one cluster's ledgers, one after the other. A task has one of these."""

    def __init__(self, cluster: Cluster, options: SourceOptions) -> None:
        self._cluster = cluster
        self._options = options

    async def of(self, log: LogName, spans: Sequence[Span]) -> AsyncGenerator[Run, None]:
        """Yield the entries of all spans. DataLossError if they are gone, unless `failOnDataLoss` is off."""
        for span in spans:
            at = span.first
            try:
                # Close the generator when the task stops early: the cluster that it reads from is closed right
                # afterwards.
                async with aclosing(self._span(span)) as runs:
                    async for run in runs:
                        yield run
                        at = run.first + len(run)
            except LedgerError as error:
                if not _is_gone(error):
                    raise
                moved = await self._moved(log, span)
                if moved is not None:
                    async with aclosing(self.of(log, [replace(moved, first=at)])) as runs:
                        async for run in runs:
                            yield run
                    continue
                text = (
                    f"entries {at} to {span.last} of ledger {span.ledger_id} of {log} are gone ({error}): they were "
                    "trimmed or deleted after the job was planned"
                )
                if self._options.fail_on_data_loss:
                    raise DataLossError(
                        f"quire source: {text}; keep them with jobId and http, or skip them with failOnDataLoss=false"
                    ) from error
                _log.warning("%s; failOnDataLoss is off, so the job continues without them", text)

    async def one(self, span: Span, entry: int) -> bytes:
        """Return a single entry. Errors of the ledger client."""
        source = await self._open(span)
        try:
            found = await source.read(EntryId(entry), EntryId(entry))
            return bytes(found[0].payload)
        finally:
            await source.close()

    async def _span(self, span: Span) -> AsyncGenerator[Run, None]:
        source = await self._open(span)
        ahead: asyncio.Task[Run] | None = None
        try:
            at = span.first
            while at <= span.last:
                run = await (ahead or self._read(source, span, at))
                ahead = None
                at += len(run)
                if at <= span.last:
                    ahead = asyncio.get_running_loop().create_task(self._read(source, span, at))
                yield run
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)
            await source.close()

    async def _read(self, source: EntrySource, span: Span, first: int) -> Run:
        last = EntryId(min(span.last, first + self._options.batch_rows - 1))
        size_max = self._options.batch_bytes
        if isinstance(source, LedgerReader):
            stored = await source.read_stored(EntryId(first), last, size_max)
            if stored is not None:
                return Run(span.ledger_id, first, stored.entries, stored.head_bytes)
        found = await source.read(EntryId(first), last, size_max)
        return Run(span.ledger_id, first, [entry.payload for entry in found])

    async def _moved(self, log: LogName, span: Span) -> Span | None:
        """Return the span at its new location if the ledger was offloaded after planning; None otherwise."""
        node = await self._cluster.metadata.get(node_path(log.name)) if log.name else None
        records = () if node is None else decode_list(node.value).ledgers
        record = next((known for known in records if known.ledger_id == span.ledger_id and known.offloaded), None)
        known = None if span.record is None else span.record.offload
        return None if record is None or record.offload == known else replace(span, record=record)

    async def _open(self, span: Span) -> EntrySource:
        if span.record is not None:
            cluster, ledger, first = self._cluster, LedgerId(span.ledger_id), ReadFirst(self._options.read_priority)
            record, tier = span.record, cluster.tier
            return TieredReader(ledger, cluster.client, tier, lambda: record, cluster.password, lambda: first)
        reader = await self._cluster.open_ledger(span.ledger_id)
        try:
            reader.take_confirmed(EntryId(span.last))
        except LedgerError:
            await reader.close()
            raise
        return reader
