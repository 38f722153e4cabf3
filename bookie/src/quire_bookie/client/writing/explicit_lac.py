"""Sends the LAC of a ledger to its bookies when no further entry carries it.

A reader finds the LAC in the header of a later entry, so the last entries of a pausing writer would remain unread until
it continues or closes. Only confirmed entries are ever published, so recoveries do not depend on it.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from quire_bookie.client.links.bookie_link import Links
from quire_bookie.errors import LedgerError, QuorumError
from quire_bookie.model import BookieId, EntryId, LedgerId
from quire_bookie.wire.client_codec import v3_write_lac
from quire_bookie.wire.digest import Digest
from quire_bookie.wire.messages import Response, Status, error_of

_log = logging.getLogger("quire.client.lac")


class LacSource(Protocol):
    """The part of a writer that concerns its LAC."""

    @property
    def last_add_confirmed(self) -> EntryId:
        """The LAC to publish."""
        ...

    @property
    def last_add_pushed(self) -> EntryId:
        """The last entry submitted. Each entry carries the LAC at its submission."""
        ...

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        """The bookies from which readers read the LAC."""
        ...

    @property
    def ack_quorum(self) -> int:
        """How many bookies must store a LAC before it counts as published."""
        ...


class ExplicitLacs:
    """Publishes the explicit LACs of one writer; with `interval_s` above 0 automatically when the writer pauses."""

    def __init__(
        self, ledger: LedgerId, digest: Digest, master_key: bytes, links: Links, source: LacSource, interval_s: float
    ) -> None:
        self.published = EntryId(-1)
        """The last LAC that Qa bookies stored."""
        self._ledger = ledger
        self._digest = digest
        self._master_key = master_key
        self._links = links
        self._source = source
        self._interval_s = interval_s
        self._pushed = EntryId(-1)
        self._publishing: set[asyncio.Future[EntryId]] = set()
        self._timer: asyncio.TimerHandle | None = None
        if interval_s > 0:
            self._timer = links.call_later(interval_s, self._tick)

    async def publish(self) -> EntryId:
        """Write the current LAC to the bookies and return it when Qa of them stored it. QuorumError."""
        lac = self._source.last_add_confirmed
        return lac if lac <= self.published else await self._publish(lac)

    def stop(self) -> None:
        """Stop the timer: the writer ended, and its metadata or a recovery will show the end of the ledger."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        source = self._source
        pushed, lac = source.last_add_pushed, source.last_add_confirmed
        # While further entries are submitted, they carry the LAC.
        if pushed == self._pushed and lac > self.published and not self._publishing:
            publishing = self._publish(lac)
            self._publishing.add(publishing)
            publishing.add_done_callback(self._published)
        self._pushed = pushed
        self._timer = self._links.call_later(self._interval_s, self._tick)

    def _published(self, publishing: "asyncio.Future[EntryId]") -> None:
        self._publishing.discard(publishing)
        if not publishing.cancelled() and (error := publishing.exception()) is not None:
            _log.warning("cannot publish the LAC of ledger %d, will try again: %s", self._ledger, error)

    def _publish(self, lac: EntryId) -> "asyncio.Future[EntryId]":
        assert lac > self.published, "a published LAC never goes back"
        packet = self._digest.encode_lac(self._ledger, lac)
        round_ = _Round(self._source.ensemble, self._source.ack_quorum, lac, self._reached)
        for bookie in self._source.ensemble:
            self._links.v3_link(bookie).ask(
                lambda transaction: v3_write_lac(transaction, self._ledger, lac, self._master_key, packet),
                partial(round_.answered, bookie),
            )
        return round_.result

    def _reached(self, lac: EntryId) -> None:
        self.published = max(self.published, lac)


class _Round:
    """Counts the responses to one explicit LAC until Qa bookies stored it or cannot."""

    def __init__(
        self, ensemble: tuple[BookieId, ...], ack_quorum: int, lac: EntryId, reached: Callable[[EntryId], None]
    ) -> None:
        self.result: asyncio.Future[EntryId] = asyncio.get_running_loop().create_future()
        self._left = len(ensemble)
        self._needed = ack_quorum
        self._lac = lac
        self._reached = reached

    def answered(self, bookie: BookieId, answer: Response | LedgerError) -> None:
        """Count the response of one bookie."""
        self._left -= 1
        assert self._left >= 0, "each bookie responds once"
        if not isinstance(answer, LedgerError) and answer.status is Status.OK:
            self._needed -= 1
            if self._needed == 0:
                self._reached(self._lac)
                if not self.result.done():
                    self.result.set_result(self._lac)
        elif self._left < self._needed and not self.result.done():
            error = answer if isinstance(answer, LedgerError) else error_of(answer.status, f"bookie {bookie}")
            failure = QuorumError(f"too few bookies stored the LAC {self._lac}: {error}")
            failure.__cause__ = error
            self.result.set_exception(failure)
