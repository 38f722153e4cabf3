"""Tells the bookies of a ledger how far it is confirmed when no entry follows that would carry it.

A reader learns the LAC from the header of the entry after it; the last entries of a writer that pauses would stay
unread until it goes on or closes. Only what is confirmed is ever sent, so nothing of a recovery depends on it.
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
    """The writer, as far as it concerns its LAC."""

    @property
    def last_add_confirmed(self) -> EntryId:
        """May be told to everybody."""
        ...

    @property
    def last_add_pushed(self) -> EntryId:
        """Moves with each entry, which carries the LAC of its time."""
        ...

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        """Whom readers ask."""
        ...

    @property
    def ack_quorum(self) -> int:
        """So many must have it before it counts as told."""
        ...


class ExplicitLacs:
    """The explicit LACs of one writer. With `interval_s` above 0 also by itself, whenever the writer pauses."""

    def __init__(
        self, ledger: LedgerId, digest: Digest, master_key: bytes, links: Links, source: LacSource, interval_s: float
    ) -> None:
        self.told = EntryId(-1)
        """The last one that Qa bookies have."""
        self._ledger = ledger
        self._digest = digest
        self._master_key = master_key
        self._links = links
        self._source = source
        self._interval_s = interval_s
        self._pushed = EntryId(-1)
        self._telling: set[asyncio.Future[EntryId]] = set()
        self._timer: asyncio.TimerHandle | None = None
        if interval_s > 0:
            self._timer = links.call_later(interval_s, self._tick)

    async def tell(self) -> EntryId:
        """Write the LAC of this moment to the bookies; returns it once Qa of them have it. QuorumError."""
        lac = self._source.last_add_confirmed
        return lac if lac <= self.told else await self._tell(lac)

    def stop(self) -> None:
        """The writer ended: its metadata or its recovery tells the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        source = self._source
        pushed, lac = source.last_add_pushed, source.last_add_confirmed
        # While entries follow they carry it.
        if pushed == self._pushed and lac > self.told and not self._telling:
            telling = self._tell(lac)
            self._telling.add(telling)
            telling.add_done_callback(self._told)
        self._pushed = pushed
        self._timer = self._links.call_later(self._interval_s, self._tick)

    def _told(self, telling: "asyncio.Future[EntryId]") -> None:
        self._telling.discard(telling)
        if not telling.cancelled() and (error := telling.exception()) is not None:
            _log.warning("ledger %d: cannot tell its last confirmed entry, will try again: %s", self._ledger, error)

    def _tell(self, lac: EntryId) -> "asyncio.Future[EntryId]":
        packet = self._digest.encode_lac(self._ledger, lac)
        round_ = _Round(self._source.ensemble, self._source.ack_quorum, lac, self._reached)
        for bookie in self._source.ensemble:
            self._links.v3_link(bookie).ask(
                lambda transaction: v3_write_lac(transaction, self._ledger, lac, self._master_key, packet),
                partial(round_.answered, bookie),
            )
        return round_.result

    def _reached(self, lac: EntryId) -> None:
        self.told = max(self.told, lac)


class _Round:
    def __init__(
        self, ensemble: tuple[BookieId, ...], ack_quorum: int, lac: EntryId, reached: Callable[[EntryId], None]
    ) -> None:
        self.result: asyncio.Future[EntryId] = asyncio.get_running_loop().create_future()
        self._left = len(ensemble)
        self._needed = ack_quorum
        self._lac = lac
        self._reached = reached

    def answered(self, bookie: BookieId, answer: Response | LedgerError) -> None:
        """One bookie has it, or not."""
        self._left -= 1
        if not isinstance(answer, LedgerError) and answer.status is Status.OK:
            self._needed -= 1
            if self._needed == 0:
                self._reached(self._lac)
                if not self.result.done():
                    self.result.set_result(self._lac)
        elif self._left < self._needed and not self.result.done():
            error = answer if isinstance(answer, LedgerError) else error_of(answer.status, f"bookie {bookie}")
            failure = QuorumError(f"too few bookies took the last confirmed entry {self._lac}: {error}")
            failure.__cause__ = error
            self.result.set_exception(failure)
