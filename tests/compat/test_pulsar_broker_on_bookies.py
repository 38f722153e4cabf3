"""Tests of a stock Pulsar broker on our bookies with one etcd; `scripts/peers/fetch.sh` installs the broker once.

make peers && make test ARGS="-m peers tests/compat"
"""

import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pulsar = pytest.importorskip("pulsar")

from tests.support.etcd_cluster import EtcdCluster  # noqa: E402  after the check that there is a client
from tests.support.ports import free_port  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.peers, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "peers" / "pulsar.sh"
START_TIMEOUT_S = 180
RECEIVE_MS = 30_000


class StockBroker:
    """Starts and stops the broker with its script."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self.folder = cluster.folder / "run"
        self.port, self.web_port = free_port(), free_port()
        self._environment = {
            **os.environ,
            "RUN": str(self.folder),
            "ETCD_PORT": str(cluster.etcd.port),
            "BROKER_PORT": str(self.port),
            "WEB_PORT": str(self.web_port),
            "PULSAR_MEM": "-Xms256m -Xmx768m -XX:MaxDirectMemorySize=512m",
            "E": "3",
            "QW": "3",
            "QA": "2",
        }

    def run(self, *words: str) -> str:
        """Run the script once; return its output."""
        done = subprocess.run(
            [str(SCRIPT), *words],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        return done.stdout

    def start(self) -> None:
        """Start it, with short ledgers so that they roll over."""
        (self.folder / "broker" / "log").unlink(missing_ok=True)
        settings = ["managedLedgerMaxEntriesPerLedger=200", "managedLedgerMinLedgerRolloverTimeMinutes=0"]
        said = self.run("start", "etcd", *settings)
        assert "broker up" in said, said

    def stop(self) -> None:
        """Stop it by SIGTERM."""
        self.run("stop")

    def call(self, method: str, path: str) -> bytes:
        """Send a REST request to it; return the answer."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.web_port}{path}", method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            body: bytes = answer.read()
            return body

    def client(self) -> Any:
        """Return a stock Python client of it."""
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        return pulsar.Client(f"pulsar://127.0.0.1:{self.port}", operation_timeout_seconds=60, logger=logger)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quire" / "peers"
    if not list((Path(os.environ.get("PEERS_ROOT") or cache) / "lib-pulsar").glob("pulsar-broker-4*.jar")):
        pytest.skip("no stock broker: run `make peers` once")
    cluster = EtcdCluster(tmp_path_factory.mktemp("pulsar"))
    try:
        cluster.add_bookies(3)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def broker(cluster: EtcdCluster) -> Iterator[StockBroker]:
    broker = StockBroker(cluster)
    broker.run("init", "etcd")
    broker.start()
    yield broker
    broker.stop()


def publish(client: Any, topic: str, first: int, count: int) -> None:
    producer = client.create_producer(topic, batching_enabled=False, max_pending_messages=500, block_if_queue_full=True)
    failed: list[Any] = []
    for number in range(first, first + count):
        producer.send_async(
            b"%d:" % number + bytes(1000),
            lambda result, _: failed.append(result) if result != pulsar.Result.Ok else None,
        )
    producer.flush()
    producer.close()
    assert not failed


def consume(consumer: Any, first: int, count: int) -> None:
    """Receive each message once, in order."""
    for number in range(first, first + count):
        message = consumer.receive(RECEIVE_MS)
        assert message.data() == b"%d:" % number + bytes(1000)
        consumer.acknowledge(message)


def read_all(client: Any, topic: str) -> list[int]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(int(reader.read_next(RECEIVE_MS).data().split(b":")[0]))
    reader.close()
    return found


def test_messages_survive_unloads_restarts_and_dead_bookies(broker: StockBroker, cluster: EtcdCluster) -> None:
    topic = "persistent://public/default/on-quire"
    client = broker.client()
    client.subscribe(topic, "keeper").close()
    consumer = client.subscribe(topic, "worker")
    publish(client, topic, 0, 1000)
    consume(consumer, 0, 700)

    broker.call("PUT", "/admin/v2/persistent/public/default/on-quire/unload")
    publish(client, topic, 1000, 500)
    consume(consumer, 700, 300)
    client.close()

    broker.stop()
    broker.start()
    client = broker.client()
    consumer = client.subscribe(topic, "worker")
    consume(consumer, 1000, 500)
    assert read_all(client, topic) == list(range(1500))

    cluster.bookies[0].restart()
    publish(client, topic, 1500, 500)
    consume(consumer, 1500, 500)
    for bookie in cluster.bookies:
        bookie.restart(kill=False)
    assert read_all(client, topic) == list(range(2000))
    client.close()


def test_broker_loses_nothing_when_all_bookies_died(broker: StockBroker, cluster: EtcdCluster) -> None:
    topic = "persistent://public/default/killed"
    client = broker.client()
    client.subscribe(topic, "keeper").close()
    publish(client, topic, 0, 1000)
    client.close()
    broker.stop()
    for bookie in cluster.bookies:
        bookie.kill()
    for bookie in cluster.bookies:
        bookie.start()
    broker.start()
    client = broker.client()
    assert read_all(client, topic) == list(range(1000))
    publish(client, topic, 1000, 100)
    assert read_all(client, topic) == list(range(1100))
    client.close()
