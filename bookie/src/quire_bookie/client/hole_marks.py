"""Marks ledgers that lack a replica of confirmed entries as under-replicated, so that auto-recovery finds them.

One task writes the due marks and retries after every kind of failure: a mark that cannot be written must not block the
others. Marks that are due when the process dies are lost; an auditor finds the same ledgers when it misses the bookie,
or at its next full check. Makes no decisions and repairs nothing.
"""

import asyncio
import logging
from typing import Protocol

from quire_bookie.env.background import start_background
from quire_bookie.env.backoff import Backoff
from quire_bookie.errors import MetadataError
from quire_bookie.limits import HOLE_MARKS_CLOSE_S, METADATA_RETRY_BACKOFF_S
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import BookieId, LedgerId

_log = logging.getLogger("quire.client.marks")


class Marks(Protocol):
    """Receives the bookies that lack entries of a ledger."""

    def mark(self, ledger: LedgerId, bookie: BookieId) -> None:
        """Record that `bookie` lacks a confirmed entry of `ledger` although it is in the entry's ensemble."""
        ...


class HoleMarks:
    """Writes the marks of one client to the metadata store."""

    def __init__(self, under_replication: UnderReplication) -> None:
        self.written = 0
        self.failures = 0
        """Failed attempts, each of which is retried."""
        self._under_replication = under_replication
        self._due: dict[LedgerId, set[BookieId]] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def mark(self, ledger: LedgerId, bookie: BookieId) -> None:
        """See Marks. Returns at once; the mark is written as soon as the metadata store accepts it."""
        self._due.setdefault(ledger, set()).add(bookie)
        if self._task is None and not self._closed:
            self._task = start_background(self._write(), "hole marks", _log)

    async def close(self) -> None:
        """Wait briefly for the due marks, then give up."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=HOLE_MARKS_CLOSE_S)
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
        if self._due:
            _log.warning(
                "closed without marking %d ledgers as under-replicated: %s", len(self._due), sorted(self._due)[:10]
            )

    async def _write(self) -> None:
        backoff = Backoff(METADATA_RETRY_BACKOFF_S)
        while self._due:
            ledger, bookies = next(iter(self._due.items()))
            del self._due[ledger]
            try:
                await self._under_replication.mark(ledger, sorted(bookies))
            except Exception as error:  # noqa: BLE001 - the root of the task
                self.failures += 1
                trace = None if isinstance(error, MetadataError) else error
                _log.warning(
                    "cannot mark ledger %d as under-replicated, will try again: %s", ledger, error, exc_info=trace
                )
                # Behind the others, so that a mark that never succeeds does not block them.
                self._due.setdefault(ledger, set()).update(bookies)
                await backoff.wait()
            else:
                self.written += 1
                backoff.reset()
        self._task = None
