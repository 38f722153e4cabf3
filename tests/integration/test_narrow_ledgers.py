"""Ledgers that a broker creates while one of three bookies is away: each entry ends with three copies.

Real processes, disks and etcd, and the stock Pulsar client.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quire_bookie.client import LedgerClient
from quire_bookie.env.clock import SystemClock
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import LedgerId, LedgerMetadata, LedgerState
from quire_bookie.quorum.wanted_copies import missing_copies
from tests.support.cluster_ledgers import opened, replica_payloads, until_registered
from tests.support.cluster_processes import ClusterBroker, auto_recovery, cluster_broker
from tests.support.etcd_cluster import EtcdCluster

pulsar = pytest.importorskip("pulsar")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOPICS = ("narrow-a", "narrow-b")
MESSAGES = 40
RAISED_TIMEOUT_S = 240
Place = tuple[int, int]


def body(topic: str, number: int) -> bytes:
    """A message."""
    return b"%s message %d;" % (topic.encode(), number) * 30


@contextmanager
def stock_client(broker: ClusterBroker) -> Iterator[Any]:
    """A Pulsar client that is quiet."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(broker.url, operation_timeout_seconds=60, logger=logger)
    yield client
    client.close()


def publish(broker: ClusterBroker, numbers: range) -> dict[Place, bytes]:
    """One entry a message, each answered; where each is stored."""
    placed: dict[Place, bytes] = {}
    with stock_client(broker) as client:
        for topic in TOPICS:
            producer = client.create_producer(topic, batching_enabled=False)
            for number in numbers:
                found = producer.send(body(topic, number))
                placed[found.ledger_id(), found.entry_id()] = body(topic, number)
    return placed


def acknowledge_some(broker: ClusterBroker) -> None:
    """Have each topic keep a cursor's ledger too."""
    with stock_client(broker) as client:
        for topic in TOPICS:
            consumer = client.subscribe(topic, "kept", initial_position=pulsar.InitialPosition.Earliest)
            for _ in range(10):
                consumer.acknowledge(consumer.receive(30_000))


def check_read(broker: ClusterBroker, count: int) -> None:
    """A stock client reads all messages of each topic in order."""
    with stock_client(broker) as client:
        for topic in TOPICS:
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            for number in range(count):
                assert reader.read_next(30_000).data() == body(topic, number), (topic, number)
            assert not reader.has_message_available()


async def all_metadata(store: MetadataStore) -> dict[LedgerId, LedgerMetadata]:
    """Of every ledger."""
    nodes = LedgerNodes(store)
    return {ledger: (await nodes.read(ledger)).value async for page in nodes.ids() for ledger in page}


def narrow(ledgers: dict[LedgerId, LedgerMetadata]) -> set[LedgerId]:
    """Those with fewer copies than they want."""
    return {ledger for ledger, metadata in ledgers.items() if missing_copies(metadata)}


async def until_raised(store: MetadataStore) -> None:
    """Wait until no ledger lacks copies and none is marked."""
    marks = UnderReplication(store, SystemClock())
    async with asyncio.timeout(RAISED_TIMEOUT_S):
        while narrow(await all_metadata(store)) or [mark async for page in marks.marks() for mark in page]:  # noqa: ASYNC110
            await asyncio.sleep(0.5)


async def check_every_replica(
    client: LedgerClient, ledgers: Iterable[LedgerId], bookies: set[str], acknowledged: dict[Place, bytes]
) -> None:
    """Each bookie holds each entry of these ledgers, each entry has one content: the acknowledged one."""
    for ledger in ledgers:
        contents: dict[int, dict[str, bytes]] = {}
        async for bookie, entry, payload in replica_payloads(client, ledger):
            contents.setdefault(entry, {})[str(bookie)] = payload
        metadata = await client.read_metadata(ledger)
        assert sorted(contents) == list(range(metadata.last_entry + 1))
        for number, replicas in contents.items():
            assert set(replicas) == bookies, (ledger, number)
            assert len(set(replicas.values())) == 1, (ledger, number)
            wanted = acknowledged.pop((ledger, number), b"")
            assert replicas.popitem()[1].endswith(wanted), (ledger, number)


async def test_ledgers_created_while_a_bookie_is_away_get_their_third_copy(tmp_path: Path) -> None:
    cluster = EtcdCluster(tmp_path / "cluster")
    try:
        away = cluster.add_bookies(3, zkTimeout="3000")[0]
        ids = {bookie.bookie_id for bookie in cluster.bookies}
        async with opened(cluster) as (store, client):
            await until_registered(store, ids)
            away.kill()
            await until_registered(store, ids - {away.bookie_id})
            acknowledged: dict[Place, bytes] = {}
            for life in range(2):  # the second broker closes what the first one, killed, left open
                with cluster_broker(cluster, metadataStoreSessionTimeoutMillis="3000") as broker:
                    acknowledged |= await asyncio.to_thread(
                        publish, broker, range(life * MESSAGES, (life + 1) * MESSAGES)
                    )
                    await asyncio.to_thread(acknowledge_some, broker)
                    if life == 0:
                        continue
                    found = await all_metadata(store)
                    created = narrow(found)
                    assert {ledger for ledger, _ in acknowledged} <= created, "each message has two copies"
                    closed = {ledger for ledger in created if found[ledger].state is LedgerState.CLOSED}
                    assert len({ledger for ledger, _ in acknowledged} & closed) == len(TOPICS)

                    with auto_recovery(cluster, openLedgerRereplicationGracePeriod="1000"):
                        await asyncio.to_thread(away.start)
                        await until_registered(store, ids)
                        last = range(2 * MESSAGES, 3 * MESSAGES)
                        acknowledged |= await asyncio.to_thread(publish, broker, last)
                        await until_raised(store)
                    raised = await all_metadata(store)
                    for ledger in created:
                        assert (raised[ledger].ensemble_size, raised[ledger].write_quorum) == (3, 3)
                        assert all(set(map(str, part.ensemble)) == ids for part in raised[ledger].segments)
                    whole = {ledger for ledger, metadata in raised.items() if metadata.state is LedgerState.CLOSED}
                    assert created <= whole
                    left = dict(acknowledged)
                    await check_every_replica(client, whole, ids, left)
                    assert {ledger for ledger, _ in left} <= set(raised) - whole, "the entries left are in open ledgers"
                    await asyncio.to_thread(check_read, broker, 3 * MESSAGES)
    finally:
        cluster.close()
