"""Tests that a stock Java client reads a ledger that was created with two copies and raised to three."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quire_bookie.client import LedgerClient
from quire_bookie.model import BookieId, LedgerId
from tests.compat.conftest import GENERATIONS, open_clients
from tests.support.cluster_ledgers import opened, until_registered
from tests.support.cluster_processes import auto_recovery
from tests.support.etcd_cluster import EtcdCluster
from tests.support.java_driver import JavaDriver, class_path, described, payload

pytestmark = [pytest.mark.compat, pytest.mark.slow]

ENTRIES, SIZE = 120, 500
RAISED_TIMEOUT_S = 180


def open_ledger(java: JavaDriver, client: str, ledger: LedgerId) -> int:
    """Open a closed ledger without recovery; return its handle."""
    found = java.call("open", client=client, ledger=ledger, digest="CRC32C", password="", recovery=False)
    assert found["lac"] == ENTRIES - 1
    return int(found["handle"])


def check_read(java: JavaDriver, handle: int, ledger: LedgerId) -> None:
    """Read all entries and check their content."""
    found: list[Any] = java.call("read", handle=handle, first=0, last=ENTRIES - 1)
    assert found == [described(ledger, entry, SIZE) for entry in range(ENTRIES)]


async def written(client: LedgerClient) -> LedgerId:
    """Write a closed ledger as a broker creates it."""
    writer = await client.create_ledger(fewer_bookies=True)
    for entry in range(ENTRIES):
        await writer.append(payload(writer.ledger_id, entry, SIZE))
    await writer.close()
    return writer.ledger_id


async def ensemble(client: LedgerClient, ledger: LedgerId, copies: int) -> tuple[BookieId, ...]:
    """Wait until the ledger has `copies` copies; return its bookies."""
    async with asyncio.timeout(RAISED_TIMEOUT_S):
        while (metadata := await client.read_metadata(ledger)).write_quorum != copies:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    return metadata.segments[0].ensemble


async def test_open_stock_reader_continues_and_a_new_one_needs_only_the_new_copy(tmp_path: Path) -> None:
    class_path()
    cluster = EtcdCluster(tmp_path / "cluster")
    java = None
    try:
        away = cluster.add_bookies(3, zkTimeout="3000")[0]
        ids = {bookie.bookie_id for bookie in cluster.bookies}
        async with opened(cluster) as (store, client):
            java = JavaDriver(cluster.folder)
            await asyncio.to_thread(open_clients, java, cluster)
            away.kill()
            await until_registered(store, ids - {away.bookie_id})
            ledger = await written(client)
            former = await ensemble(client, ledger, 2)
            before = {name: open_ledger(java, name, ledger) for name in GENERATIONS}
            with auto_recovery(cluster):
                away.start()
                assert await ensemble(client, ledger, 3) == (*former, away.bookie_id)
            cluster.bookie(former[0]).kill()
            for handle in before.values():
                check_read(java, handle, ledger)
            cluster.bookie(former[1]).kill()
            await until_registered(store, {away.bookie_id})
            for name in GENERATIONS:
                check_read(java, open_ledger(java, name, ledger), ledger)
    finally:
        if java is not None:
            java.close()
        cluster.close()
