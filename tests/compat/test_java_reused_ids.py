"""Tests that bookies refuse the first add of a stock Java client whose new ledger has an id that they hold."""

from collections.abc import Iterator

import pytest

from quire_bookie.client import LedgerClient
from quire_bookie.errors import QuorumError
from quire_bookie.metadata import layout
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import BookieId, DigestType, EntryId, LedgerId, LedgerMetadata
from tests.compat.conftest import open_clients
from tests.compat.test_java_ledgers import append, create
from tests.support.cluster_ledgers import opened
from tests.support.etcd_cluster import EtcdCluster
from tests.support.java_driver import JavaDriver, payload

pytestmark = pytest.mark.compat

ENTRIES = 5
OLD_SIZE = 100
NEW_SIZE = 200
"""Sizes of the driver's payloads. Payloads of one size are equal, so a bookie would take them for a repeated add."""
REFUSED = ("UnauthorizedAccess", "LedgerFenced")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """Create a cluster for this module alone, since its id counter is set back."""
    cluster = EtcdCluster(tmp_path_factory.mktemp("reused"))
    try:
        cluster.add_bookies(3)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def java(cluster: EtcdCluster) -> Iterator[JavaDriver]:
    driver = JavaDriver(cluster.folder)
    try:
        open_clients(driver, cluster)
        yield driver
    finally:
        driver.close()


async def set_counter_back(store: MetadataStore, ledger: int) -> None:
    """Create the counter again, so that its next number is `ledger`."""
    await store.delete(layout.ID_COUNTER)
    while await store.put(layout.ID_COUNTER, b"") < ledger - 1:
        continue


async def held(client: LedgerClient, cluster: EtcdCluster, ledger: LedgerId) -> dict[str, list[bytes]]:
    """Return the payloads that each bookie returns, independent of the metadata of the ledger."""
    way = client._handle(ledger, DigestType.CRC32C, b"", LedgerMetadata(1, 1, 1, ())).read_way
    found: dict[str, list[bytes]] = {}
    for bookie in map(BookieId, (one.bookie_id for one in cluster.bookies)):
        entries = [(EntryId(entry), await way.ask(bookie, EntryId(entry))) for entry in range(ENTRIES)]
        found[bookie] = [bytes(way.decode(data, entry).payload) for entry, data in entries]
    return found


def written(java: JavaDriver, client: str) -> LedgerId:
    """Return a closed ledger with an entry on each bookie."""
    ledger = create(java, client, (3, 3, 3))
    append(java, ledger, ENTRIES, OLD_SIZE)
    java.call("close", handle=ledger["handle"])
    return LedgerId(ledger["ledger"])


@pytest.mark.parametrize("chosen", [False, True], ids=["counted", "chosen"])
async def test_first_add_with_an_id_that_bookies_hold_is_refused(
    java: JavaDriver, cluster: EtcdCluster, client: str, chosen: bool
) -> None:
    for _ in range(3):  # so that the counter can be set back
        create(java, client)
    ledger = written(java, client)
    async with opened(cluster) as (store, ours):
        before = await store.get(layout.ledger_path(ledger))
        assert before is not None
        payloads = [payload(ledger, entry, OLD_SIZE) for entry in range(ENTRIES)]
        old = {one.bookie_id: payloads for one in cluster.bookies}
        assert await held(ours, cluster, ledger) == old
        await store.delete(layout.ledger_path(ledger))
        if not chosen:  # with `chosen` the client names the id itself
            await set_counter_back(store, ledger)
        new = create(java, client, adv=chosen, ledger=ledger)
        assert new["ledger"] == ledger
        if chosen:
            done = java.call("append_at", handle=new["handle"], entries=[0], size=NEW_SIZE)
        else:
            done = java.call("append", handle=new["handle"], count=1, size=NEW_SIZE)
        assert done["error"] in REFUSED
        assert await held(ours, cluster, ledger) == old
        # An operator finds the older ledger and restores its metadata.
        await store.put(layout.ledger_path(ledger), before.value)
        found = await ours.open_ledger(ledger, recover=False)
        entries = await found.read(EntryId(0), EntryId(ENTRIES - 1))
        assert [bytes(entry.payload) for entry in entries] == payloads
        # The next ledger of a stock client then has a free id.
        assert written(java, client) > ledger


async def test_our_readers_of_a_reused_id_get_no_entry_of_our_older_ledger(
    java: JavaDriver, cluster: EtcdCluster, client: str
) -> None:
    async with opened(cluster) as (store, ours):
        writer = await ours.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        ledger = writer.ledger_id
        payloads = [payload(ledger, entry, OLD_SIZE) for entry in range(ENTRIES)]
        for one in payloads:
            await writer.append(one)
        await writer.close()
        before = await store.get(layout.ledger_path(ledger))
        assert before is not None
        await store.delete(layout.ledger_path(ledger))
        new = create(java, client, adv=True, ledger=ledger)
        assert new["ledger"] == ledger
        for recover in (False, True):
            with pytest.raises(QuorumError, match="holds another ledger with the id"):
                await ours.open_ledger(ledger, recover=recover)
        await store.put(layout.ledger_path(ledger), before.value)
        found = await ours.open_ledger(ledger, recover=False)
        entries = await found.read(EntryId(0), EntryId(ENTRIES - 1))
        assert [bytes(entry.payload) for entry in entries] == payloads
