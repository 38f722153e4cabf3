"""A writer of known content that retries forever, and a check of its acknowledged entries: for tests with faults.

Ledgers are written one after the other. A failed one is left to recovery; the next is created as soon as possible.
"""

import asyncio
import hashlib
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from quire_bookie.client import LedgerClient, LedgerWriter
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import QuireError
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.metadata.service_info import BookieAddress
from quire_bookie.model import BookieId, EntryId, LedgerId
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.metadata import MetadataSettings
from tests.support.relay import Relay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

# A lagging replica is noticed soon; slowness of all, as on a busy machine, is not a failure.
QUICK = ClientSettings(suspect_s=5.0, add_timeout_s=30.0, slow_replica_s=3.0, read_timeout_s=6.0)
ENTRIES_OF_A_LEDGER = 2_000
AT_ONCE = 20


def payload(ledger: LedgerId, entry: int) -> bytes:
    """Return the known bytes of an entry, of varying length."""
    return hashlib.sha256(b"%d/%d" % (ledger, entry)).digest() * (1 + entry % 40)


@asynccontextmanager
async def ledger_client(
    url: str, relays: "Mapping[int, Relay] | None" = None, metadata_settings: MetadataSettings | None = None
) -> "AsyncIterator[LedgerClient]":
    """Yield a client. `relays`: the relay to each bookie, by the bookie's advertised port."""
    metadata = await open_metadata_store(url, metadata_settings or MetadataSettings())
    registry = await BookieRegistry.open(metadata)
    direct = registry.address_of

    def address_of(bookie: BookieId) -> BookieAddress | None:
        found = direct(bookie)
        relay = None if found is None or relays is None else relays.get(found.port)
        return found if relay is None else BookieAddress("127.0.0.1", relay.port)

    registry.address_of = address_of  # type: ignore[method-assign]
    client = LedgerClient(metadata, registry, QUICK, SystemClock(), SystemChance())
    try:
        yield client
    finally:
        await client.close()
        await metadata.close()


class LedgerLoad:
    """Appends entries, `AT_ONCE` at a time, from `start` to `stop`."""

    def __init__(self, client: LedgerClient, entries_of_a_ledger: int = ENTRIES_OF_A_LEDGER) -> None:
        self.acknowledged: dict[LedgerId, int] = {}
        """The number of acknowledged entries of each ledger, from its first on."""
        self.submitted: dict[LedgerId, int] = {}
        self.failures: list[QuireError] = []
        self.longest_pause_s = 0.0
        """The longest time without an acknowledgement since `watch_pause`."""
        self._client = client
        self._entries = entries_of_a_ledger
        self._seen_s = 0.0
        self._stopped = False
        self._writer: LedgerWriter | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def total(self) -> int:
        """The number of acknowledged entries of all ledgers."""
        return sum(self.acknowledged.values())

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        """The ensemble of new entries, by the writer's current metadata."""
        return () if self._writer is None else self._writer.metadata.segments[-1].ensemble

    @property
    def replicas(self) -> frozenset[BookieId]:
        """The bookies of the ensemble that do not count as failed."""
        return frozenset() if self._writer is None else frozenset(self.ensemble) - self._writer.failed_replicas.keys()

    def start(self) -> None:
        """Start appending."""
        self.watch_pause()
        self._task = asyncio.create_task(self._run(), name="load")

    def watch_pause(self) -> None:
        """Measure the longest pause from now on."""
        self._seen_s, self.longest_pause_s = time.monotonic(), 0.0

    async def progress(self, entries: int, timeout_s: float = 60) -> None:
        """Wait until `entries` more are acknowledged."""
        wanted = self.total + entries
        async with asyncio.timeout(timeout_s):
            while self.total < wanted:
                assert self._task is not None and not self._task.done(), "the load ended"
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Stop after the appends in progress."""
        self._stopped = True
        assert self._task is not None
        await asyncio.wait_for(self._task, 60)

    async def _run(self) -> None:
        while not self._stopped:
            try:
                writer = await self._client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
            except QuireError as error:
                self.failures.append(error)
                await asyncio.sleep(0.1)
                continue
            self._writer = writer
            self.acknowledged[writer.ledger_id] = self.submitted[writer.ledger_id] = 0
            try:
                while not self._stopped and self.submitted[writer.ledger_id] < self._entries:
                    await self._append_some(writer)
                await writer.close()
            except QuireError as error:
                self.failures.append(error)
                writer.abandon()

    async def _append_some(self, writer: LedgerWriter) -> None:
        ledger = writer.ledger_id
        first = self.submitted[ledger]
        self.submitted[ledger] += AT_ONCE
        entries = range(first, first + AT_ONCE)
        answers = await asyncio.gather(*(self._append(writer, entry) for entry in entries), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def _append(self, writer: LedgerWriter, entry: int) -> None:
        ledger = writer.ledger_id
        assert await writer.append(payload(ledger, entry)) == entry
        assert self.acknowledged[ledger] == entry, "acknowledged out of order"
        self.acknowledged[ledger] = entry + 1
        now_s = time.monotonic()
        self.longest_pause_s = max(self.longest_pause_s, now_s - self._seen_s)
        self._seen_s = now_s

    async def check(self, client: LedgerClient, *, recover: bool = True) -> None:
        """Check that every acknowledged entry has its bytes, and that no entry was invented."""
        for ledger, acknowledged in self.acknowledged.items():
            reader = await client.open_ledger(ledger, recover=recover)
            last = reader.last_add_confirmed
            assert acknowledged - 1 <= last < self.submitted[ledger], (ledger, acknowledged, last)
            at = 0
            while at <= last:
                entries = await reader.read(EntryId(at), last)
                for entry in entries:
                    assert entry.entry_id == at
                    assert bytes(entry.payload) == payload(ledger, at), f"ledger {ledger} entry {at} has other bytes"
                    at += 1
