"""Writes down which ledgers lack a replica of entries that are confirmed, for auto-recovery to find.

One task works through what is due and repeats what fails, whatever the failure is: a mark that cannot be written must
not keep the others from being written. What is due when the process dies is lost: an auditor finds the same when it
misses the bookie, or at its next full check. Decides nothing and repairs nothing.
"""

import asyncio
import logging
from typing import Protocol

from quire_bookie.env.background import start_background
from quire_bookie.errors import MetadataError
from quire_bookie.limits import HOLE_MARKS_PATIENCE_S, METADATA_RETRY_BACKOFF_S
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import BookieId, LedgerId

_log = logging.getLogger("quire.client.marks")


class Marks(Protocol):
    """Who is told that a bookie lacks entries of a ledger."""

    def mark(self, ledger: LedgerId, bookie: BookieId) -> None:
        """At least one confirmed entry of `ledger` is not on `bookie`, which its metadata names for it."""
        ...


class HoleMarks:
    """The marks that one client owes the metadata store."""

    def __init__(self, under_replication: UnderReplication) -> None:
        self.written = 0
        self.failures = 0
        """Attempts that failed, to be tried again."""
        self._under_replication = under_replication
        self._due: dict[LedgerId, set[BookieId]] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def mark(self, ledger: LedgerId, bookie: BookieId) -> None:
        """See Marks. Returns at once; the mark follows as soon as the metadata store takes it."""
        self._due.setdefault(ledger, set()).add(bookie)
        if self._task is None and not self._closed:
            self._task = start_background(self._write(), "hole marks", _log)

    async def close(self) -> None:
        """Wait a little for what is due, then give up."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=HOLE_MARKS_PATIENCE_S)
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
        if self._due:
            _log.warning("closed with marks of %d ledgers not written: %s", len(self._due), sorted(self._due)[:10])

    async def _write(self) -> None:
        low, high = METADATA_RETRY_BACKOFF_S
        delay_s = low
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
                # Behind the others: one that never succeeds holds up nobody.
                self._due.setdefault(ledger, set()).update(bookies)
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, high)
            else:
                self.written += 1
                delay_s = low
        self._task = None
