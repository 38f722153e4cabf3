"""Tests that no id is used twice and no entry of another ledger is read after etcd was replaced by an older copy."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quire_bookie.client import LedgerClient
from quire_bookie.client.fresh_ids import FreshIds
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import ForeignLedgerError, LedgerIdInUseError, MetadataOutdatedError, QuorumError
from quire_bookie.metadata.ledger_ids import LedgerIds
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.server import BookieSettings, RunningBookie, start_bookie
from quire_bookie.server.upkeep.collection_doubts import InDoubtError
from quire_bookie.settings.client import ClientSettings
from quire_bookie.settings.disks import DiskRules
from tests.support.epochs import raise_epoch
from tests.support.etcd_server import EtcdServer, require_etcd
from tests.support.ports import free_port
from tests.support.roomy_disk import NEVER_FULL
from tests.support.stock_client import without_tokens


@asynccontextmanager
async def serving(etcd: EtcdServer, folder: Path, port: int) -> AsyncIterator[tuple[RunningBookie, LedgerClient]]:
    """Start etcd on its current data, the bookie and a client; stop them at the end."""
    etcd.start()
    try:
        metadata = await open_metadata_store(etcd.url)
        settings = BookieSettings(
            data_dir=str(folder / "bookie"),
            disks=DiskRules(threshold=NEVER_FULL),
            listen="127.0.0.1",
            advertise="127.0.0.1",
            port=port,
        )
        bookie = await start_bookie(
            settings, metadata=metadata, disk=LocalDisk(), clock=SystemClock(), chance=SystemChance()
        )
        client = await LedgerClient.open(metadata, ClientSettings(), clock=SystemClock(), chance=SystemChance())
        try:
            yield bookie, client
        finally:
            await client.close()
            await bookie.stop()
            await metadata.close()
    finally:
        etcd.stop()


async def write(client: LedgerClient, text: str) -> LedgerId:
    """Write a closed ledger with three entries that contain `text`; return its id."""
    writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    for number in range(3):
        await writer.append(f"{text} {number}".encode())
    await writer.close()
    return writer.ledger_id


async def read(client: LedgerClient, ledger: LedgerId) -> list[str]:
    reader = await client.open_ledger(ledger, recover=True)
    entries = await reader.read(EntryId(0), reader.last_add_confirmed)
    await reader.close()
    return [bytes(entry.payload).decode() for entry in entries]


async def wait_counter_read(bookie: RunningBookie, ledger: int) -> None:
    """Repeat the bookie's check until it has read a counter of `ledger`; a check already running may read an older
    one."""
    while bookie.storage.id_marks.seen.short < ledger:
        bookie.metadata_doubt._compared_s = float("-inf")
        assert await bookie.metadata_doubt.check() is None


async def prepare_older_copy(tmp_path: Path) -> tuple[EtcdServer, int]:
    """Return a stopped etcd with one ledger, whose data is copied to `older`, and the port for the bookie."""
    etcd, port = EtcdServer(require_etcd(), tmp_path), free_port()
    async with serving(etcd, tmp_path, port) as (_, client):
        assert await write(client, "early") == 1
    shutil.copytree(tmp_path / "data", tmp_path / "older")
    return etcd, port


def put_back(folder: Path) -> None:
    """Replace etcd's data by the older copy."""
    shutil.rmtree(folder / "data")
    shutil.move(folder / "older", folder / "data")


@pytest.mark.parametrize("revision_passed", [False, True])
async def test_running_client_notices_an_older_copy_before_it_issues_an_id(
    tmp_path: Path, revision_passed: bool
) -> None:
    etcd, port = EtcdServer(require_etcd(), tmp_path), free_port()
    async with serving(etcd, tmp_path, port) as (bookie, client), LedgerClient.connect(etcd.url) as idle:
        assert await write(idle, "early") == 1
        etcd.stop()
        shutil.copytree(tmp_path / "data", tmp_path / "older")
        etcd.start()
        # Number 2 is skipped: it was counted when the client found the connection broken.
        assert [await write(client, f"late {number}") for number in (3, 4, 5)] == [3, 4, 5]
        await wait_counter_read(bookie, 5)
        await idle.read_metadata(LedgerId(5))
        etcd.stop()
        put_back(tmp_path)
        etcd.start()
        if revision_passed:
            other = await open_metadata_store(etcd.url)
            for _ in range(100):
                await other.put("/quire/something-else", b"")
            await other.close()
        # The client holds no lease, got no id after the copy was made, and last asked the bookie before it.
        with pytest.raises(MetadataOutdatedError, match="was at 5"):
            await write(idle, "new")


async def test_older_copy_of_etcd_issues_no_id_and_deletes_nothing_until_an_operator_acts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etcd, port = await prepare_older_copy(tmp_path)
    async with serving(etcd, tmp_path, port) as (bookie, client):
        assert [await write(client, f"late {number}") for number in (2, 3, 4)] == [2, 3, 4]
        await wait_counter_read(bookie, 4)
    put_back(tmp_path)
    async with serving(etcd, tmp_path, port) as (bookie, client):
        with pytest.raises(MetadataOutdatedError, match="is at 1 and was at 4"):
            await write(client, "new")
        bookie.metadata_doubt._compared_s = float("-inf")
        with pytest.raises(InDoubtError, match="went back in time"):
            await bookie.garbage_collection.check()
        assert await read(client, LedgerId(1)) == ["early 0", "early 1", "early 2"]
        # A client that asks no bookie, like stock clients: the bookie refuses its adds and keeps its entries.
        async with LedgerClient.connect(etcd.url) as stock:
            without_tokens(stock)
            with monkeypatch.context() as patch:
                patch.setattr(FreshIds, "next_id", lambda self, _: LedgerIds(self._metadata).next_id())
                with pytest.raises(LedgerIdInUseError):
                    await write(stock, "new")
        held = [bytes(await bookie.storage.read(LedgerId(2), EntryId(entry))) for entry in range(3)]
        assert all(b"late 2" in body for body in held)
        # The last step of an operator's restore.
        await raise_epoch(client._ids._metadata, SystemClock().now_ms())
        fresh = await write(client, "fresh")
        assert fresh == 5, "the ids that the bookie holds are skipped"
        assert await read(client, fresh) == ["fresh 0", "fresh 1", "fresh 2"]
        bookie.metadata_doubt._compared_s = float("-inf")
        await bookie.garbage_collection.check()


async def test_reader_of_a_reused_id_gets_no_entry_of_the_older_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bookie knows the token from its journal after the first restart, from its index after the second."""
    etcd, port = await prepare_older_copy(tmp_path)
    async with serving(etcd, tmp_path, port) as (_, client):
        assert [await write(client, f"late {number}") for number in (2, 3)] == [2, 3]
    put_back(tmp_path)
    monkeypatch.setattr(FreshIds, "next_id", lambda self, _: LedgerIds(self._metadata).next_id())
    async with serving(etcd, tmp_path, port) as (bookie, client), LedgerClient.connect(etcd.url) as stock:
        without_tokens(stock)
        new = await stock.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        assert new.ledger_id == 2, "a stock client asks no bookie"
        for _ in range(2):
            for recover in (False, True):
                with pytest.raises(QuorumError, match="holds another ledger with the id 2"):
                    await client.open_ledger(new.ledger_id, recover=recover)
            way = client._handle_of(new.ledger_id, new.metadata, b"", None).read_way
            with pytest.raises(ForeignLedgerError):
                await way.ask(bookie.bookie_id, EntryId(0))
            await bookie.storage.flush()
        assert await write(client, "ours") == 4, "our client skips ids that the bookie holds, without any mark"
        assert await read(client, LedgerId(4)) == ["ours 0", "ours 1", "ours 2"]
        new.abandon()
    async with serving(etcd, tmp_path, port) as (bookie, client):
        with pytest.raises(QuorumError, match="holds another ledger with the id 2"):
            await client.open_ledger(LedgerId(2), recover=True)
        assert await read(client, LedgerId(1)) == ["early 0", "early 1", "early 2"]
        assert bookie.bookie.stats.tokens_refused > 0
