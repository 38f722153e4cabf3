"""Reads one closed ledger from the bookies or from a bucket, in the configured order.

The ledger's record is checked for each read, because the ledger may be offloaded or leave the bookies while it is open
here. If one copy fails, the other one is tried if it exists, and the failed copy is not tried first for a while.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import Enum

from quire_bookie.errors import ConfigError, LedgerClosedError, LedgerError, MetadataError, ObjectStoreError, QuireError
from quire_bookie.model import EntryId, LedgerId
from quire_broker.errors import OffloadError
from quire_broker.managed_ledger.ledger_port import Entry, Ledgers, Reader
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.stored_passwords import to_read
from quire_broker.offload.segment_reader import SegmentReader
from quire_broker.offload.settings import ReadFirst
from quire_broker.offload.tier import Tier

_log = logging.getLogger("quire.offload")


class Copy(Enum):
    """Where a copy of a ledger is."""

    BOOKIES = "bookies"
    BUCKET = "bucket"


class OffloadedReadError(LedgerError):
    """An offloaded ledger cannot be read: the bucket failed, and the bookies failed or no longer have it. Retry may
    help.

    This is never reported as *no such entry*: an unavailable bucket must not make consumers skip entries.
    """


def copies(record: LedgerRecord | None, read_first: ReadFirst) -> tuple[Copy, ...]:
    """Return the existing copies in the order in which to try them."""
    if record is None or not record.offloaded or record.offload is None or not record.offload.uuid:
        return (Copy.BOOKIES,)
    if record.offload.bookies_deleted:
        return (Copy.BUCKET,)
    return (Copy.BUCKET, Copy.BOOKIES) if read_first is ReadFirst.BUCKET else (Copy.BOOKIES, Copy.BUCKET)


class TieredReader:
    """Reads one closed ledger; see the module docstring. Opens a copy when it is first read."""

    def __init__(
        self,
        ledger_id: LedgerId,
        client: Ledgers,
        tier: Tier,
        record: Callable[[], LedgerRecord | None],
        password: bytes,
        read_first: Callable[[], ReadFirst],
    ) -> None:
        self.ledger_id = ledger_id
        self._client = client
        self._tier = tier
        self._record = record
        self._password = password
        self._read_first = read_first
        self._bookies: Reader | None = None
        self._segment: SegmentReader | None = None
        self._opening = {Copy.BOOKIES: asyncio.Lock(), Copy.BUCKET: asyncio.Lock()}
        self._closed = False
        self._away_until_s: dict[Copy, float] = {}
        self._loop = asyncio.get_running_loop()

    async def read(self, first: EntryId, last: EntryId, bytes_max: int | None = None) -> Sequence[Entry]:
        """Read entries as from a ledger. LedgerError, MetadataError."""
        wanted = copies(self._record(), self._read_first())
        now_s = self._loop.time()
        order = sorted(wanted, key=lambda copy: self._away_until_s.get(copy, 0.0) > now_s)
        failure: QuireError | None = None
        for copy in order:
            try:
                found = await self._read(copy, first, last, bytes_max)
            except (LedgerError, MetadataError, OffloadError, ObjectStoreError, ConfigError) as error:
                self._away_until_s[copy] = self._loop.time() + self._tier.settings.away_s
                if len(order) > 1:
                    _log.warning("could not read ledger %d from %s: %s", self.ledger_id, copy.value, error)
                failure = failure or error
            else:
                self._tier.stats.fallbacks += failure is not None
                return found
        assert failure is not None
        if len(order) == 1 and isinstance(failure, (LedgerError, MetadataError)):
            raise failure
        raise OffloadedReadError(f"ledger {self.ledger_id} is offloaded and cannot be read: {failure}") from failure

    async def _read(self, copy: Copy, first: EntryId, last: EntryId, bytes_max: int | None) -> Sequence[Entry]:
        if copy is Copy.BOOKIES:
            reader = await self._open_bookies()
            return await reader.read(first, last, bytes_max)
        stats, timeout_s = self._tier.stats, self._tier.settings.read_timeout_s
        stats.reads += 1
        try:
            async with asyncio.timeout(timeout_s):
                segment = await self._open_segment()
                return await segment.read(first, last, bytes_max)
        except TimeoutError:
            stats.read_failures += 1
            raise ObjectStoreError(f"the bucket of ledger {self.ledger_id}: no answer for {timeout_s:.0f} s") from None
        except QuireError:
            stats.read_failures += 1
            raise

    async def _open_bookies(self) -> Reader:
        async with self._opening[Copy.BOOKIES]:
            self._check_open()
            if self._bookies is None:
                opened = await self._client.open_ledger(
                    self.ledger_id, password=self._password, recover=False, accept_stored=to_read
                )
                if self._closed:
                    await opened.close()
                self._check_open()
                self._bookies = opened
            return self._bookies

    async def _open_segment(self) -> SegmentReader:
        async with self._opening[Copy.BUCKET]:
            self._check_open()
            record = self._record()
            context = None if record is None else record.offload
            if context is None:
                raise ObjectStoreError(f"ledger {self.ledger_id} is not offloaded any more")
            if self._segment is None or self._segment.uuid != context.uuid:
                if self._segment is not None:
                    await self._segment.close()
                    self._segment = None
                properties = dict(context.properties)
                opened = await self._tier.open(self.ledger_id, context.uuid, context.driver, properties)
                if self._closed:
                    await opened.close()
                self._check_open()
                self._segment = opened
            return self._segment

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerClosedError(f"ledger {self.ledger_id} was closed: it is read through another handle now")

    async def close(self) -> None:
        """Release both copies."""
        self._closed = True
        bookies, self._bookies = self._bookies, None
        segment, self._segment = self._segment, None
        if segment is not None:
            await segment.close()
        if bookies is not None:
            await bookies.close()
