"""Managed ledgers on three real bookies in this process: TCP, real files, RocksDB, embedded metadata."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import QuireError
from quire_bookie.limits import MIB
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.model import LedgerId
from quire_bookie.server import BookieSettings, RunningBookie, start_bookie
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.disks import DiskRules
from quire_bookie.settings.journal import JournalSettings
from quire_bookie.settings.storage import StorageSettings
from quire_broker.managed_ledger import ManagedLedger, ManagedLedgerFactory, ManagedLedgerState, Position
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from tests.support.roomy_disk import NEVER_FULL

NAME = "public/default/persistent/topic"
_SETTINGS = ManagedLedgerSettings(
    ledger_entries_max=200, rollover_age_min_s=0.0, degraded_rollover_interval_s=0.0, tick_interval_s=0.1
)


class Cluster:
    """Three bookies and as many brokers as asked for."""

    def __init__(self, folder: Path, metadata: LocalMetadataStore) -> None:
        self.metadata = metadata
        self.bookies: list[RunningBookie] = []
        self._folder = folder
        self._clients: list[LedgerClient] = []
        self._disk = LocalDisk()

    async def start_bookie(self, number: int, port: int = 0) -> RunningBookie:
        settings = BookieSettings(
            data_dir=str(self._folder / f"bookie{number}"),
            disks=DiskRules(threshold=NEVER_FULL),
            listen="127.0.0.1",
            advertise="127.0.0.1",
            port=port,
            journal=JournalSettings(file_bytes=16 * MIB, group_bytes_max=6 * MIB),
            storage=StorageSettings(write_cache_bytes=24 * MIB, read_cache_bytes=4 * MIB),
        )
        bookie = await start_bookie(
            settings, metadata=self.metadata, disk=self._disk, clock=SystemClock(), chance=SystemChance()
        )
        self.bookies.append(bookie)
        return bookie

    async def factory(self) -> tuple[LedgerClient, ManagedLedgerFactory]:
        """A broker's."""
        client = await LedgerClient.open(
            self.metadata, ClientSettings(suspect_s=2.0), clock=SystemClock(), chance=SystemChance()
        )
        self._clients.append(client)
        return client, ManagedLedgerFactory(client, self.metadata, _SETTINGS, SystemClock(), SystemChance())

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for bookie in self.bookies:
            await bookie.stop()
        await self.metadata.close()


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    world = Cluster(tmp_path, await LocalMetadataStore.open(tmp_path / "metadata"))
    try:
        for number in range(3):
            await world.start_bookie(number)
        yield world
    finally:
        await world.close()


async def _append(ledger: ManagedLedger, entries: list[bytes]) -> list[Position]:
    """All positions, in the order of the answers, which must be that of the appends."""
    loop = asyncio.get_running_loop()
    finished: asyncio.Future[None] = loop.create_future()
    answers: list[Position | QuireError] = []

    def done(position: Position | None, error: QuireError | None) -> None:
        answers.append(position if position is not None else error)  # type: ignore[arg-type]
        if len(answers) == len(entries):
            finished.set_result(None)

    for entry in entries:
        ledger.append(entry, done)
    await asyncio.wait_for(finished, 30)
    failed = [answer for answer in answers if not isinstance(answer, Position)]
    assert not failed, failed[:1]
    return [answer for answer in answers if isinstance(answer, Position)]


async def _contents(ledger: ManagedLedger) -> list[bytes]:
    found: list[bytes] = []
    position = ledger.first_position()
    while entries := await ledger.read(position, 150):
        found += [bytes(entry.data) for entry in entries]
        position = ledger.next_position(entries[-1].position)
    return found


def _entries(count: int, start: int = 0) -> list[bytes]:
    return [b"%06d" % number * 20 for number in range(start, start + count)]


async def test_entries_and_acknowledgments_survive_rollovers_and_a_crash(cluster: Cluster) -> None:
    client, factory = await cluster.factory()
    ledger = await factory.open(NAME)
    cursor = await ledger.open_cursor("sub")
    positions = await _append(ledger, _entries(1000))
    assert positions == sorted(positions)
    assert [record.entries for record in ledger.ledgers[:5]] == [200] * 5
    assert await _contents(ledger) == _entries(1000)
    cursor.acknowledge(positions[:300])
    cursor.acknowledge(positions[400:600:2])
    cursor.acknowledge_batch(positions[401], [0b10], 2)
    await cursor.flush()
    ledger.stop()  # as a crash: nothing more is saved or closed, the writers are dropped
    await client.close()

    _, second = await cluster.factory()
    again = await second.open(NAME)
    back = again.cursors["sub"]
    assert back.mark_delete == positions[299]
    assert back.backlog == 1000 - 300 - 100
    assert back.ack_set(positions[401]) == (0b10,)
    seen: list[Position] = []
    while found := await back.read(100):
        seen += [entry.position for entry in found]
    assert seen == [*positions[300:400], *positions[401:600:2], *positions[600:]]
    assert len(again.ledgers) <= 6
    await second.close()
    await factory.close()


async def test_a_second_owner_fences_the_first_and_has_everything(cluster: Cluster) -> None:
    _, first = await cluster.factory()
    _, second = await cluster.factory()
    old = await first.open(NAME)
    await _append(old, _entries(50))
    new = await second.open(NAME)
    refused: asyncio.Future[QuireError | None] = asyncio.get_running_loop().create_future()
    old.append(b"stale", lambda position, error: refused.set_result(error))
    assert await asyncio.wait_for(refused, 30) is not None
    assert old.state is ManagedLedgerState.FENCED
    await _append(new, _entries(50, 50))
    assert await _contents(new) == _entries(100)
    await first.close()
    await second.close()


async def test_writing_survives_the_loss_of_one_bookie_and_heals_when_it_returns(cluster: Cluster) -> None:
    client, factory = await cluster.factory()
    ledger = await factory.open(NAME)
    await _append(ledger, _entries(100))
    lost = cluster.bookies.pop()
    port = lost.port
    await lost.stop()
    await _append(ledger, _entries(50, 100))
    assert await _contents(ledger) == _entries(150)
    await cluster.start_bookie(2, port)
    tail = LedgerId(ledger.ledgers[-1].ledger_id)
    for _ in range(300):
        segments = (await client.read_metadata(tail)).segments
        if len(segments) > 1:
            break
        await asyncio.sleep(0.05)
    assert len(segments) == 2, "the third bookie takes its place again"
    assert len(ledger.ledgers) == 1, "which needs no new ledger"
    await _append(ledger, _entries(30, 150))
    assert await _contents(ledger) == _entries(180)
    await factory.close()


async def test_consumed_ledgers_are_deleted_on_the_store(cluster: Cluster) -> None:
    client, factory = await cluster.factory()
    ledger = await factory.open(NAME)
    cursor = await ledger.open_cursor("sub")
    positions = await _append(ledger, _entries(900))
    cursor.acknowledge_cumulative(positions[-1])
    await ledger.trim()
    await factory.close()
    left = {ledger_id async for ledger_id in client.list_ledgers()}
    assert left == {record.ledger_id for record in ledger.ledgers}
    _, second = await cluster.factory()
    await second.delete(NAME)
    assert [ledger_id async for ledger_id in client.list_ledgers()] == []
    await second.close()
