"""Ends ledgers of this broker that rest although a replica is marked as missing, so that auto-recovery can repair them.

    written here, nothing written for `idle_s`   -->   rolls over, or its cursor leaves it
    not written here any more                    -->   its mark is written again: a worker looks at once

Auto-recovery removes the mark of an open ledger by itself if the writer goes on, or if it has no entries. If it has
entries and rests, only its writer knows whether the marked bookie lacks one: the ledger needs an end.

One watch serves all ledgers of a broker; marks of ledgers that others write are forgotten at once. Without marks there
is no periodic work. It must never end a ledger that was written since the last look, and never decides whether a
replica is whole.
"""

import asyncio
import logging
from collections.abc import Iterator

from quire_bookie.dataclass import dataclass
from quire_bookie.env.clock import WallClock
from quire_bookie.env.rate_limit import RateLimit
from quire_bookie.errors import MetadataError, QuireError
from quire_bookie.metadata.retrying import watch_with_retries, with_retries
from quire_bookie.metadata.store import Event, EventKind, MetadataStore
from quire_bookie.metadata.under_replication import MARKS, UnderReplication, ledger_of_mark
from quire_bookie.model import EntryId, LedgerId
from quire_broker.limits import MARKED_LEDGERS_AT_ONCE
from quire_broker.managed_ledger.factory import ManagedLedgerFactory
from quire_broker.managed_ledger.ledger_port import Ledgers, Writer
from quire_broker.managed_ledger.managed_ledger import ManagedLedger
from quire_broker.managed_ledger.stored_passwords import CURSOR, MANAGED_LEDGER
from quire_broker.settings.managed_ledger import MarkedLedgerSettings

ROUND_S = 1.0
"""Between two looks at the marked ledgers, while there are any."""
_LOOKS_PER_STEP = 100
_log = logging.getLogger("quire.managed_ledger")


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last confirmed entry of a marked ledger, and since when it is the same, in loop time."""

    last: EntryId
    since_s: float


class MarkedLedgers:
    """The marked ledgers that one broker writes. Needs a running event loop."""

    def __init__(
        self,
        factory: ManagedLedgerFactory,
        client: Ledgers,
        metadata: MetadataStore,
        settings: MarkedLedgerSettings,
        clock: WallClock,
    ) -> None:
        self.ended = 0
        """How many ledgers it has ended."""
        self._factory = factory
        self._client = client
        self._metadata = metadata
        self._marks = UnderReplication(metadata, clock)
        self._idle_s = settings.idle_s
        self._pace = RateLimit(settings.rollovers_s)
        self._loop = asyncio.get_running_loop()
        self._seen: dict[LedgerId, _Seen] = {}
        """Bounded by the writers of the client: a ledger without one leaves in the next round."""
        self._wake = asyncio.Event()

    @property
    def marked(self) -> list[LedgerId]:
        """The ledgers that are marked, and were written here when that became known."""
        return list(self._seen)

    async def follow(self) -> None:
        """Keep `marked` up to date until cancelled. Lost events are replaced by a list of all marks."""
        if not self._idle_s:
            return
        watch = await watch_with_retries(self._metadata, f"{MARKS}/", _log.warning)
        try:
            await self._list()
            async for event in watch:
                if event.kind is EventKind.RESYNC:
                    await self._list()
                else:
                    self._changed(event)
        finally:
            await watch.close()

    async def _list(self) -> None:
        found = await with_retries(self._written, "list the under-replicated ledgers", _log.warning)
        for ledger in [ledger for ledger in self._seen if ledger not in found]:
            del self._seen[ledger]
        for ledger in found:
            self._note(ledger)

    async def _written(self) -> dict[LedgerId, None]:
        found: dict[LedgerId, None] = {}
        async for page in self._marks.marked():
            found.update((ledger, None) for ledger in page if self._client.writer_of(ledger) is not None)
        return found

    def _changed(self, event: Event) -> None:
        ledger = ledger_of_mark(event.key)
        if ledger is None:
            return
        if event.kind is EventKind.DELETED:
            self._seen.pop(ledger, None)
        else:
            self._note(ledger)

    def _note(self, ledger: LedgerId) -> None:
        writer = self._client.writer_of(ledger)
        if writer is not None and ledger not in self._seen:
            self._seen[ledger] = _Seen(writer.last_add_confirmed, self._loop.time())
            self._wake.set()

    async def run(self) -> None:
        """End marked ledgers that rest, until cancelled."""
        while self._idle_s:
            await self._wake.wait()
            await asyncio.sleep(ROUND_S)
            await self.round()
            if not self._seen:
                self._wake.clear()

    async def round(self) -> None:
        """Look once at each marked ledger."""
        left, before = iter(self.marked), self.ended
        await asyncio.gather(*(self._look_at_some(left) for _ in range(MARKED_LEDGERS_AT_ONCE)))
        if self.ended > before:
            _log.info("ended %d ledgers that rest although a replica is marked as missing", self.ended - before)

    async def _look_at_some(self, left: Iterator[LedgerId]) -> None:
        for number, ledger in enumerate(left, 1):
            await self._look_at(ledger)
            if number % _LOOKS_PER_STEP == 0:
                await asyncio.sleep(0)

    async def _look_at(self, ledger: LedgerId) -> None:
        seen, writer = self._seen.get(ledger), self._client.writer_of(ledger)
        if seen is None:
            return
        if writer is not None:
            now_s = self._loop.time()
            if writer.last_add_confirmed != seen.last:
                self._seen[ledger] = _Seen(writer.last_add_confirmed, now_s)
                return
            if now_s - seen.since_s < self._idle_s:
                return
            await self._end(ledger, writer, seen)
        if self._client.writer_of(ledger) is None:
            await self._renew(ledger)

    async def _end(self, ledger: LedgerId, writer: Writer, seen: _Seen) -> None:
        cursor = writer.metadata.custom.get(CURSOR)
        name = None if cursor is None else cursor.decode()
        owner = self._owner(writer)
        if owner is None or not owner.may_end(ledger, name):
            return
        await self._pace.take(1)
        if self._seen.get(ledger) is not seen or writer.last_add_confirmed != seen.last:
            return  # its mark is gone, or it was written meanwhile
        self._seen[ledger] = _Seen(seen.last, self._loop.time())  # after a failure, the next attempt waits as long
        try:
            ended = await owner.end_ledger(ledger, name)
        except QuireError as error:
            _log.info("ledger %d of %s stays open for now: %s", ledger, owner.name, error)
        else:
            self.ended += ended  # not added across the await: several calls run at once

    def _owner(self, writer: Writer) -> ManagedLedger | None:
        name = writer.metadata.custom.get(MANAGED_LEDGER)
        return None if name is None else self._factory.find(name.decode())

    async def _renew(self, ledger: LedgerId) -> None:
        """Write the mark of a ledger that has ended again; forget the ledger."""
        try:
            await self._marks.renew(ledger)
        except MetadataError as error:
            _log.info("auto-recovery looks at ledger %d later, its mark cannot be written now: %s", ledger, error)
        else:
            self._seen.pop(ledger, None)
