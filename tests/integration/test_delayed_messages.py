"""Delayed messages of a stock client on broker processes whose owner is killed: their times are read from ledgers."""

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from quire_bookie.metadata.opening import open_metadata_store
from quire_broker.managed_ledger.cursors.cursor_state import decode_node
from quire_broker.managed_ledger.list_store import node_path
from tests.support.broker_cluster import BrokerCluster, BrokerOfCluster, broker_cluster
from tests.support.polling import until

pulsar = pytest.importorskip("pulsar")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC = "persistent://public/default/delayed"
STATS = "/admin/v2/persistent/public/default/delayed/stats"
CURSOR = f"{node_path('public/default/persistent/delayed')}/s"
BUCKET = 100
BUCKETS = 10
DELAYED = BUCKETS * BUCKET + 7
DELAY_S = 60.0


def publish(client: Any) -> dict[str, float]:
    """Publish delayed messages with live ones between. Return when each delayed one was sent."""
    producer = client.create_producer(TOPIC, batching_enabled=False, block_if_queue_full=True)
    sent: dict[str, float] = {}
    for number in range(DELAYED):
        sent[f"late-{number}"] = time.time()
        producer.send_async(f"late-{number}".encode(), lambda *_: None, deliver_after=timedelta(seconds=DELAY_S))
        if number % 10 == 0:
            producer.send_async(f"live-{number}".encode(), lambda *_: None)
    producer.flush()
    producer.close()
    return sent


def receive(consumer: Any, count: int, timeout_s: float, *, repeated: str = "none") -> dict[str, float]:
    """Receive and acknowledge `count` messages. Return when each arrived; none may come twice.

    Those whose text begins with `repeated` do not count: a killed owner had not saved their acknowledgments.
    """
    found: dict[str, float] = {}
    while len(found) < count:
        message = consumer.receive(int(timeout_s * 1000))
        text = message.data().decode()
        assert text not in found, f"{text} came twice"
        consumer.acknowledge(message)
        if not text.startswith(repeated):
            found[text] = time.time()
    return found


def backlog(broker: BrokerOfCluster) -> int:
    status, stats = broker.call("GET", STATS)
    return int(stats["subscriptions"]["s"]["msgBacklog"]) if status == 200 else -1


def recorded(cluster: BrokerCluster) -> int:
    """Return how many buckets the cursor's node names: those that the next owner knows."""

    async def read() -> int:
        store = await open_metadata_store(f"etcd://{cluster.storage.etcd.endpoint}")
        try:
            node = await store.get(CURSOR)
        finally:
            await store.close()
        return 0 if node is None else len(decode_node(node.value).buckets)

    return asyncio.run(read())


@pytest.mark.parametrize("end", [BrokerOfCluster.kill, BrokerOfCluster.stop], ids=["killed", "stopped"])
def test_the_next_owner_knows_the_times_of_delayed_messages(tmp_path: Path, end: Any) -> None:
    with broker_cluster(
        tmp_path / "cluster",
        brokers=2,
        delayedDeliveryMinIndexCountPerBucket=str(BUCKET),
        metadataStoreSessionTimeoutMillis="10000",
    ) as cluster:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(tmp_path / "client.log"))
        client = pulsar.Client(cluster.url, operation_timeout_seconds=60, logger=logger)
        consumer = client.subscribe(TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared)
        sent = publish(client)
        live = receive(consumer, DELAYED // 10 + 1, 30)
        assert all(text.startswith("live-") for text in live)
        owner = cluster.owner_of(TOPIC, cluster.brokers[0])
        until(lambda: backlog(owner) == DELAYED, "the live messages are not acknowledged")
        until(lambda: recorded(cluster) == BUCKETS, lambda: f"{recorded(cluster)} of {BUCKETS} buckets are recorded")
        end(owner)
        other = next(broker for broker in cluster.brokers if broker is not owner)
        loaded = f"has {BUCKETS * BUCKET} delayed entries in {BUCKETS} buckets"
        until(lambda: loaded in other.log.read_text(), lambda: f"not all buckets were loaded:\n{other.log.read_text()}")

        producer = client.create_producer(TOPIC)
        producer.send(b"now")
        found = receive(consumer, DELAYED + 1, DELAY_S + 60, repeated="live-")
        assert found.keys() == {"now", *sent}
        assert any(at > found["now"] for at in found.values()), "a live message does not wait for all delayed ones"
        assert all(found[text] >= at + DELAY_S - 0.001 for text, at in sent.items()), "none is early"
        until(lambda: backlog(other) == 0, "something is left")
        until(lambda: recorded(cluster) == 0, lambda: f"{recorded(cluster)} buckets are left")
        client.close()
