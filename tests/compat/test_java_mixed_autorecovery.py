"""Tests of auto-recovery in a cluster of stock Java bookies and ours: bookies and auto-recovery of either kind.

The Java bookies use DbLedgerStorage, Pulsar's default, which does not answer requests for lists of entries.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from quire_bookie.client import LedgerClient
from quire_bookie.env.clock import SystemClock
from quire_bookie.metadata.recovery_controls import RecoveryControls
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import LedgerId
from tests.support.cluster_ledgers import opened, replica_payloads, until_registered
from tests.support.cluster_processes import auto_recovery, running
from tests.support.etcd_cluster import EtcdCluster
from tests.support.java_bookie import JavaBookie
from tests.support.java_driver import JAVA_OPTIONS, class_path

pytestmark = [pytest.mark.compat, pytest.mark.slow]

LEDGERS = 12
ENTRIES = 60
QUORUMS = ((3, 3, 2), (3, 2, 2), (2, 2, 2))
REPAIRED_TIMEOUT_S = 180
"""The Java auto-recovery took 28 s for 48 ledgers; ours once waited 10 s for each and cleared no mark."""


@contextmanager
def java_auto_recovery(cluster: EtcdCluster) -> Iterator[None]:
    """Run the stock auditor and replication worker as a process."""
    settings = {
        "metadataServiceUri": cluster.java_uri,
        "bookiePort": 0,
        "advertisedAddress": "127.0.0.1",
        "allowLoopback": "true",
        "lostBookieRecoveryDelay": 0,
        "auditorPeriodicCheckInterval": 0,
        "auditorPeriodicBookieCheckInterval": 5,
        "rwRereplicateBackoffMs": 500,
        "httpServerEnabled": "false",
    }
    conf = cluster.folder / "autorecovery.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = ["java", "-Xmx256m", *JAVA_OPTIONS, "-Dlevel=info", "-cp", class_path()]
    command += ["org.apache.bookkeeper.replication.AutoRecoveryMain", "--conf", str(conf)]
    with running(command, cluster.folder / "autorecovery.log"):
        yield


@contextmanager
def our_auto_recovery(cluster: EtcdCluster) -> Iterator[None]:
    """Run `quire autorecovery` as a process, with no delay before a bookie counts as lost."""
    with auto_recovery(cluster, lostBookieRecoveryDelay="0"):
        yield


AUTO_RECOVERY = {"java": java_auto_recovery, "ours": our_auto_recovery}


def payload(ledger: LedgerId, entry: int) -> bytes:
    """Return the content of an entry."""
    return b"ledger %d entry %d;" % (ledger, entry) * 20


async def written(client: LedgerClient) -> list[LedgerId]:
    """Write closed ledgers with all quorums."""
    found = []
    for number in range(LEDGERS):
        ensemble, write, ack = QUORUMS[number % len(QUORUMS)]
        writer = await client.create_ledger(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)
        for entry in range(ENTRIES):
            await writer.append(payload(writer.ledger_id, entry))
        await writer.close()
        found.append(writer.ledger_id)
    return found


async def wait_repaired(store: MetadataStore, client: LedgerClient, ledgers: list[LedgerId], lost: str) -> None:
    """Wait until no ledger names the lost bookie and no mark is left."""
    marks = UnderReplication(store, SystemClock())
    async with asyncio.timeout(REPAIRED_TIMEOUT_S):
        for ledger in ledgers:
            while True:
                metadata = await client.read_metadata(ledger)
                named = {str(bookie) for segment in metadata.segments for bookie in segment.ensemble}
                if lost not in named and await marks.read(ledger) is None:
                    break
                await asyncio.sleep(0.2)


async def check_every_replica(client: LedgerClient, ledgers: list[LedgerId]) -> None:
    """Read each entry from each bookie that must hold it, with its digest."""
    for ledger in ledgers:
        async for bookie, entry, found in replica_payloads(client, ledger):
            assert found == payload(ledger, entry), (ledger, entry, bookie)


@pytest.mark.parametrize("kind", sorted(AUTO_RECOVERY))
async def test_entries_of_a_lost_bookie_of_either_kind_are_copied(tmp_path: Path, kind: str) -> None:
    class_path()
    cluster = EtcdCluster(tmp_path / "cluster")
    both = [JavaBookie(cluster.folder / f"java{number}", cluster) for number in range(3)]
    try:
        cluster.add_bookies(3, zkTimeout="5000")
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(JavaBookie.start, both))
        ids = {bookie.bookie_id for bookie in both} | {bookie.bookie_id for bookie in cluster.bookies}
        async with opened(cluster) as (store, client):
            await until_registered(store, ids)
            ledgers = await written(client)
            with AUTO_RECOVERY[kind](cluster):
                for lost in (both[0], cluster.bookies[0]):
                    lost.kill()
                    ids.remove(lost.bookie_id)
                    await until_registered(store, ids)
                    await RecoveryControls(store).set_lost_bookie_delay_s(0)
                    await wait_repaired(store, client, ledgers, lost.bookie_id)
                    await check_every_replica(client, ledgers)
    finally:
        for bookie in both:
            bookie.kill()
        cluster.close()
