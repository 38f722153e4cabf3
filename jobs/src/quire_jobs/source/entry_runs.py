"""Entries of a split, in order, from bookies or from offloaded objects. Owns which of the two, and what then.

Bounded: one run of `batch_bytes` is given out while the next one is read. A ledger is never opened with recovery.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from quire_bookie.errors import LedgerError, NoSuchEntryError, NoSuchLedgerError
from quire_bookie.model import Buffer, EntryId
from quire_jobs.errors import DataLossError
from quire_jobs.source.cluster import Cluster
from quire_jobs.source.options import SourceOptions
from quire_jobs.source.spans import LogName, Span

_GONE = (NoSuchLedgerError, NoSuchEntryError)
_log = logging.getLogger("quire.jobs.source")


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive entries of one ledger, at least one. Payloads may be views that pin a larger buffer."""

    ledger_id: int
    first: int
    payloads: Sequence[Buffer]


class StoredEntries(Protocol):
    """Something with `payload`s, in order."""

    @property
    def payload(self) -> Buffer:
        """What was appended."""
        ...


class EntrySource(Protocol):
    """A ledger opened for reads, wherever it is."""

    async def read(self, first: EntryId, last: EntryId, bytes_max: int | None = None) -> Sequence[StoredEntries]:
        """Entries `first` to `last`, or as many from `first` on as fit `bytes_max`, at least one."""
        ...

    async def close(self) -> None:
        """Release it."""
        ...


class EntryRuns:
    """Reads spans of one cluster's ledgers. One after the other: a task has one of these."""

    def __init__(self, cluster: Cluster, options: SourceOptions) -> None:
        self._cluster = cluster
        self._options = options

    async def of(self, log: LogName, spans: Sequence[Span]) -> AsyncGenerator[Run, None]:
        """The entries of all spans. DataLossError where they are gone, unless `failOnDataLoss` is off."""
        for span in spans:
            at = span.first
            try:
                async for run in self._span(span):
                    yield run
                    at = run.first + len(run.payloads)
            except _GONE as error:
                text = (
                    f"entries {at} to {span.last} of ledger {span.ledger_id} of {log} are gone ({error}): they were "
                    "trimmed or deleted after the job was planned"
                )
                if self._options.fail_on_data_loss:
                    raise DataLossError(
                        f"quire source: {text}; hold them by jobId and http, or pass them over by failOnDataLoss=false"
                    ) from error
                _log.warning("%s; failOnDataLoss is off, so the job goes on without them", text)

    async def one(self, span: Span, entry: int) -> bytes:
        """A single entry. Errors of the ledger client."""
        source = await self._open(span)
        try:
            found = await source.read(EntryId(entry), EntryId(entry))
            return bytes(found[0].payload)
        finally:
            await source.close()

    async def _span(self, span: Span) -> AsyncIterator[Run]:
        source = await self._open(span)
        ahead: asyncio.Task[Sequence[StoredEntries]] | None = None
        try:
            at = span.first
            while at <= span.last:
                found = await (ahead or self._read(source, at, span.last))
                first, at = at, at + len(found)
                ahead = None
                if at <= span.last:
                    ahead = asyncio.get_running_loop().create_task(self._read(source, at, span.last))
                yield Run(span.ledger_id, first, [entry.payload for entry in found])
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)
            await source.close()

    async def _read(self, source: EntrySource, first: int, last: int) -> Sequence[StoredEntries]:
        last = min(last, first + self._options.batch_rows - 1)
        return await source.read(EntryId(first), EntryId(last), self._options.batch_bytes)

    async def _open(self, span: Span) -> EntrySource:
        return await self._from_bookies(span)

    async def _from_bookies(self, span: Span) -> EntrySource:
        reader = await self._cluster.open_ledger(span.ledger_id)
        try:
            reader.take_confirmed(EntryId(span.last))
        except LedgerError:
            await reader.close()
            raise
        return reader
