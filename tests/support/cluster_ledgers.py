"""Our client on a cluster of real processes: which bookies are writable, and every replica of a ledger's entries."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import BookieId, EntryId, LedgerId
from quire_bookie.recovery.fragments import closed_fragments
from tests.support.etcd_cluster import EtcdCluster

REGISTERED_TIMEOUT_S = 90


@asynccontextmanager
async def opened(cluster: EtcdCluster) -> AsyncIterator[tuple[MetadataStore, LedgerClient]]:
    """Our client and its metadata store."""
    store = await open_metadata_store(f"etcd://{cluster.etcd.endpoint}")
    client = await LedgerClient.open(store, clock=SystemClock(), chance=SystemChance())
    try:
        yield store, client
    finally:
        await client.close()
        await store.close()


async def until_registered(store: MetadataStore, wanted: set[str]) -> None:
    """Wait until exactly these bookies are writable."""
    registry = await BookieRegistry.open(store)
    try:
        async with asyncio.timeout(REGISTERED_TIMEOUT_S):
            while set(map(str, registry.writable)) != wanted:  # noqa: ASYNC110  the registry follows the store
                await asyncio.sleep(0.1)
    finally:
        await registry.close()


async def replica_payloads(client: LedgerClient, ledger: LedgerId) -> AsyncIterator[tuple[BookieId, EntryId, bytes]]:
    """Each entry of a closed ledger as each bookie of its write set answers it, with its digest checked.

    QuireError where a bookie does not have it.
    """
    reader = await client.open_ledger(ledger, recover=False)
    way = reader._handle.read_way
    for fragment in closed_fragments(await client.read_metadata(ledger)):
        for position, bookie in enumerate(fragment.ensemble):
            for first, last in fragment.stored(position):
                for entry in map(EntryId, range(first, last + 1)):
                    yield bookie, entry, bytes(way.decode(await way.ask(bookie, entry), entry).payload)
