"""The ledger client against three real bookies in this process: TCP, real files, RocksDB, embedded metadata."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import pytest_asyncio

from quire_bookie.client import LedgerClient, LedgerReader, LedgerWriter
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import LedgerFencedError, NoSuchLedgerError, QuorumError, UnauthorizedError
from quire_bookie.limits import MIB
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.model import LEDGER_TOKEN, BookieId, DigestType, EntryId, LedgerState
from quire_bookie.server import BookieSettings, RunningBookie, start_bookie
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.disks import DiskRules
from quire_bookie.settings.journal import JournalSettings
from quire_bookie.settings.storage import StorageSettings
from tests.support.roomy_disk import NEVER_FULL

_QUICK = ClientSettings(suspect_s=5.0)


@dataclass
class Cluster:
    """Bookies by id, and where their data is."""

    folder: Path
    metadata: LocalMetadataStore
    running: dict[BookieId, RunningBookie] = field(default_factory=dict)
    clients: list[LedgerClient] = field(default_factory=list)
    disk: LocalDisk = field(default_factory=LocalDisk)

    async def start(self, number: int) -> RunningBookie:
        """Start the bookie with that number, on its data if it has any."""
        settings = BookieSettings(
            data_dir=str(self.folder / f"bookie{number}"),
            disks=DiskRules(threshold=NEVER_FULL),
            listen="127.0.0.1",
            advertise="127.0.0.1",
            port=0,
            journal=JournalSettings(file_bytes=16 * MIB, group_bytes_max=6 * MIB),
            storage=StorageSettings(write_cache_bytes=24 * MIB, read_cache_bytes=4 * MIB),
        )
        bookie = await start_bookie(
            settings, metadata=self.metadata, disk=self.disk, clock=SystemClock(), chance=SystemChance()
        )
        self.running[bookie.bookie_id] = bookie
        return bookie

    async def stop(self, bookie: BookieId) -> None:
        """Stop a bookie."""
        await self.running.pop(bookie).stop()

    async def restart(self, bookie: BookieId) -> None:
        """Stop a bookie and start it on the same data, at the same port."""
        settings = replace(self.running[bookie].settings, port=self.running[bookie].port)
        await self.stop(bookie)
        self.running[bookie] = await start_bookie(
            settings, metadata=self.metadata, disk=self.disk, clock=SystemClock(), chance=SystemChance()
        )

    async def client(self) -> LedgerClient:
        """One more client."""
        client = await LedgerClient.open(self.metadata, _QUICK, clock=SystemClock(), chance=SystemChance())
        self.clients.append(client)
        return client


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    world = Cluster(tmp_path, await LocalMetadataStore.open(tmp_path / "metadata"))
    try:
        for number in range(3):
            await world.start(number)
        yield world
    finally:
        for client in world.clients:
            await client.close()
        for bookie in list(world.running):
            await world.stop(bookie)
        await world.metadata.close()


async def _create(
    client: LedgerClient, quorums: tuple[int, int, int] = (3, 3, 2), digest_type: DigestType = DigestType.CRC32C
) -> LedgerWriter:
    return await client.create_ledger(
        ensemble_size=quorums[0],
        write_quorum=quorums[1],
        ack_quorum=quorums[2],
        digest_type=digest_type,
        password=b"secret",
        custom={"component": b"test"},
    )


async def _open(client: LedgerClient, writer: LedgerWriter, *, recover: bool) -> LedgerReader:
    return await client.open_ledger(writer.ledger_id, password=b"secret", recover=recover)


async def _contents(reader: LedgerReader) -> list[bytes]:
    entries = await reader.read(EntryId(0), reader.last_add_confirmed)
    assert [entry.entry_id for entry in entries] == list(range(reader.last_add_confirmed + 1))
    return [bytes(entry.payload) for entry in entries]


def _numbered(count: int) -> list[bytes]:
    return [b"entry %d " % i * (i % 50 + 1) for i in range(count)]


@pytest.mark.parametrize("digest_type", list(DigestType))
@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 3, 2), (3, 2, 2)])
async def test_a_ledger_is_written_closed_and_read_by_another_client(
    cluster: Cluster, quorums: tuple[int, int, int], digest_type: DigestType
) -> None:
    written = _numbered(500)
    writer = await _create(await cluster.client(), quorums, digest_type)
    for start in range(0, 500, 50):
        writer.submit(written[start : start + 50])
    closed = await writer.close()
    assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, 499)
    assert closed.length == sum(map(len, written))
    other = await cluster.client()
    reader = await _open(other, writer, recover=False)
    assert reader.is_closed
    assert reader.metadata.custom == {"component": b"test", LEDGER_TOKEN: reader.metadata.token}
    assert await _contents(reader) == written


@pytest.mark.parametrize("quorums", [(1, 1, 1), (3, 3, 2), (3, 2, 2)])
async def test_recovery_takes_a_ledger_over_from_a_living_writer(
    cluster: Cluster, quorums: tuple[int, int, int]
) -> None:
    written = _numbered(200)
    writer = await _create(await cluster.client(), quorums)
    writer.submit(written[:100])
    for payload in written[100:]:
        await writer.append(payload)
    other = await cluster.client()
    tail = await _open(other, writer, recover=False)
    assert tail.last_add_confirmed >= 198
    reader = await _open(other, writer, recover=True)
    assert await _contents(reader) == written
    with pytest.raises(LedgerFencedError):
        await writer.append(b"too late")
    with pytest.raises(LedgerFencedError):
        await writer.close()
    assert (await other.read_metadata(writer.ledger_id)).last_entry == 199


async def test_a_ledger_goes_on_when_one_of_three_bookies_stops(cluster: Cluster) -> None:
    written = _numbered(300)
    client = await cluster.client()
    writer = await _create(client)
    writer.submit(written[:100])
    victim = writer.metadata.segments[0].ensemble[0]
    await writer.append(written[100])
    await cluster.stop(victim)
    for start in range(101, 300, 10):
        writer.submit(written[start : start + 10])
        await asyncio.sleep(0)
    closed = await writer.close()
    assert closed.last_entry == 299
    assert writer.degraded
    assert await _contents(await _open(await cluster.client(), writer, recover=False)) == written


async def test_without_its_ack_quorum_a_writer_fails_and_recovery_waits_for_the_bookies(cluster: Cluster) -> None:
    writer = await _create(await cluster.client())
    await writer.append(b"confirmed")
    first, second, _ = writer.metadata.segments[0].ensemble
    await cluster.stop(first)
    folder = int(Path(cluster.running[second].settings.data_dir).name.removeprefix("bookie"))
    await cluster.stop(second)
    with pytest.raises(QuorumError):
        await writer.append(b"cannot be confirmed")
    other = await cluster.client()
    with pytest.raises(QuorumError):
        await _open(other, writer, recover=True)
    await cluster.start(folder)
    reader = await _open(await cluster.client(), writer, recover=True)
    assert (await _contents(reader))[0] == b"confirmed"
    assert reader.last_add_confirmed in (0, 1)


async def test_entries_survive_a_restart_of_all_bookies(cluster: Cluster) -> None:
    written = _numbered(200)
    writer = await _create(await cluster.client())
    writer.submit(written)
    await writer.close()
    for bookie in list(cluster.running):
        await cluster.restart(bookie)
    assert await _contents(await _open(await cluster.client(), writer, recover=False)) == written


async def test_a_writer_survives_restarts_of_its_bookies_while_it_is_idle(cluster: Cluster) -> None:
    writer = await _create(await cluster.client())
    await writer.append(b"before")
    for bookie in list(cluster.running):
        await cluster.restart(bookie)
    await writer.append(b"after")
    await writer.close()
    assert await _contents(await _open(await cluster.client(), writer, recover=False)) == [b"before", b"after"]


async def test_a_wrong_password_opens_nothing(cluster: Cluster) -> None:
    writer = await _create(await cluster.client())
    await writer.append(b"entry")
    other = await cluster.client()
    for recover in (False, True):
        with pytest.raises(UnauthorizedError):
            await other.open_ledger(writer.ledger_id, password=b"guess", recover=recover)
    await writer.append(b"the writer is not disturbed")


async def test_a_deleted_ledger_is_gone_and_listed_no_more(cluster: Cluster) -> None:
    client = await cluster.client()
    writers = [await _create(client) for _ in range(3)]
    for writer in writers:
        await writer.close()
    await client.delete_ledger(writers[1].ledger_id)
    assert sorted([ledger async for ledger in client.list_ledgers()]) == sorted(
        [writers[0].ledger_id, writers[2].ledger_id]
    )
    with pytest.raises(NoSuchLedgerError):
        await _open(client, writers[1], recover=False)
    with pytest.raises(NoSuchLedgerError):
        await client.delete_ledger(writers[1].ledger_id)


async def test_large_entries_travel_whole(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await _create(client)
    written = [bytes([i]) * size for i, size in enumerate([0, 1, 65_536, 1_000_000, writer.payload_bytes_max])]
    writer.submit(written)
    await writer.close()
    assert await _contents(await _open(client, writer, recover=False)) == written


async def test_many_ledgers_share_the_connections(cluster: Cluster) -> None:
    client = await cluster.client()
    writers = [await _create(client) for _ in range(30)]
    for round_ in range(5):
        for writer in writers:
            writer.submit([b"%d in %d" % (round_, writer.ledger_id)] * 3)
    await asyncio.gather(*(writer.close() for writer in writers))
    for writer in writers:
        expected = [b"%d in %d" % (round_, writer.ledger_id) for round_ in range(5) for _ in range(3)]
        assert await _contents(await _open(client, writer, recover=False)) == expected
