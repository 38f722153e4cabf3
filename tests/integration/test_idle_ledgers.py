"""A bookie restarts while topics have clients that send nothing: no ledger stays marked, and nothing is lost.

Real processes, disks and etcd, and the stock Pulsar client.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quire_bookie.env.clock import SystemClock
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import LedgerId
from tests.support.cluster_ledgers import opened, until_registered
from tests.support.cluster_processes import ClusterBroker, auto_recovery, cluster_broker
from tests.support.etcd_cluster import EtcdCluster

pulsar = pytest.importorskip("pulsar")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MESSAGES = 20
MARKED_TIMEOUT_S = 90
CLEARED_TIMEOUT_S = 120


class IdleClients:
    """A producer and a consumer of one topic, and a consumer of another one that has no messages."""

    def __init__(self, broker: ClusterBroker) -> None:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self._client: Any = pulsar.Client(broker.url, operation_timeout_seconds=60, logger=logger)
        self.producer = self._client.create_producer("idle", batching_enabled=False)
        earliest = pulsar.InitialPosition.Earliest
        self.consumer = self._client.subscribe("idle", "slow", initial_position=earliest)
        self.waiting = self._client.subscribe("empty", "waits", initial_position=earliest)

    def send(self, numbers: range) -> set[int]:
        """Send these, and return the ledgers that have them."""
        return {self.producer.send(b"message %d" % number).ledger_id() for number in numbers}

    def take(self, numbers: range) -> None:
        """Receive exactly these, in order, and acknowledge them."""
        for number in numbers:
            message = self.consumer.receive(30_000)
            assert message.data() == b"message %d" % number
            self.consumer.acknowledge(message)

    def has_no_more(self) -> bool:
        """Whether nothing else is delivered."""
        try:
            self.consumer.receive(500)
        except pulsar.Timeout:
            return True
        return False

    def close(self) -> None:
        """Disconnect."""
        self._client.close()


async def marked(store: MetadataStore) -> set[LedgerId]:
    """The ledgers that are marked as under-replicated."""
    marks = UnderReplication(store, SystemClock())
    return {ledger async for page in marks.marked() for ledger in page}


async def test_the_marks_of_idle_topics_go_once_the_bookie_is_back(tmp_path: Path) -> None:
    cluster = EtcdCluster(tmp_path / "cluster")
    clients: IdleClients | None = None
    try:
        away = cluster.add_bookies(3, zkTimeout="3000")[0]
        ids = {bookie.bookie_id for bookie in cluster.bookies}
        async with opened(cluster) as (store, _):
            await until_registered(store, ids)
            recovery = {"lostBookieRecoveryDelay": "0", "lockReleaseOfFailedLedgerGracePeriod": "1000"}
            with cluster_broker(cluster) as broker, auto_recovery(cluster, **recovery):
                clients = await asyncio.to_thread(IdleClients, broker)
                before = await asyncio.to_thread(clients.send, range(MESSAGES))
                await asyncio.to_thread(clients.take, range(MESSAGES // 2))
                await asyncio.sleep(2)  # the cursor's state is in a ledger
                away.kill()
                await until_registered(store, ids - {away.bookie_id})
                async with asyncio.timeout(MARKED_TIMEOUT_S):
                    while not before <= await marked(store):  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
                await asyncio.to_thread(away.start)
                async with asyncio.timeout(CLEARED_TIMEOUT_S):
                    while await marked(store):  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
                after = await asyncio.to_thread(clients.send, range(MESSAGES, 2 * MESSAGES))
                assert not before & after, "the marked ledger was closed"
                await asyncio.to_thread(clients.take, range(MESSAGES // 2, 2 * MESSAGES))
                assert await asyncio.to_thread(clients.has_no_more)
    finally:
        if clients is not None:
            clients.close()
        cluster.close()
