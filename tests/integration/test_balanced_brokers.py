"""Three brokers on one etcd: topics are spread, an overloaded broker gives bundles away, one is split; nothing is lost.

Real processes and the stock Pulsar client. Intervals are shorter than the defaults.
"""

import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.cluster_processes import ClusterBroker, cluster_broker
from tests.support.etcd_cluster import EtcdCluster
from tests.support.polling import until

pulsar = pytest.importorskip("pulsar")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NAMESPACE = "public/balanced"
BUNDLES = 12
TOPICS = tuple(f"persistent://{NAMESPACE}/topic-{number}" for number in range(120))
SETTINGS = {
    "managedLedgerDefaultEnsembleSize": "1",
    "brokerDeduplicationEnabled": "true",
    "loadBalancerHostUsageCheckIntervalMinutes": "0.05",
    "loadBalancerSheddingIntervalMinutes": "0.05",
    "loadBalanceSheddingDelayInSeconds": "10",
    "loadBalancerSheddingConditionHitCountThreshold": "2",
    "loadBalancerBrokerThresholdShedderPercentage": "5",
    "loadBalancerIdleThresholdPercentage": "5",
    "loadBalancerNamespaceBundleSplitConditionHitCountThreshold": "1000",
}
SENT_AT_ONCE = 200


def rest(broker: ClusterBroker, path: str, method: str = "GET", body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(broker.http + path, data, {"Content-Type": "application/json"}, method=method)
    with urlopen(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text else None


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[ClusterBroker]]:
    cluster = EtcdCluster(tmp_path / "cluster")
    try:
        cluster.add_bookies(1)
        with ExitStack() as running:
            yield [running.enter_context(cluster_broker(cluster, ports=None, **SETTINGS)) for _ in range(3)]
    finally:
        cluster.close()


class Load:
    """Sends numbered messages to topics and records the acknowledged ones."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._producers: dict[str, Any] = {}
        self.sent: Counter[str] = Counter()
        self.acknowledged: dict[str, set[int]] = defaultdict(set)
        self.failed = 0

    def send(self, topic: str, count: int) -> None:
        producer = self._producers.get(topic)
        if producer is None:
            producer = self._producers[topic] = self._client.create_producer(topic, block_if_queue_full=True)
        for _ in range(count):
            number = self.sent[topic]
            self.sent[topic] += 1
            producer.send_async(f"{number} {'x' * 500}".encode(), self._answered(topic, number))

    def _answered(self, topic: str, number: int) -> Any:
        def answered(result: Any, _: Any) -> None:
            if result == pulsar.Result.Ok:
                self.acknowledged[topic].add(number)
            else:
                self.failed += 1

        return answered

    def flush(self) -> None:
        for producer in self._producers.values():
            producer.flush()


def bundle_counts(broker: ClusterBroker) -> dict[str, int]:
    """Return the number of bundles of each broker, by its HTTP address."""
    state = rest(broker, "/admin/quire/balancing")
    return {f"http://{each['broker']}": each["bundles"] for each in state["brokers"]}


def topics_at(broker: ClusterBroker) -> list[str]:
    found = rest(broker, "/admin/v2/broker-stats/topics").get(NAMESPACE, {})
    return [topic for bundle in found.values() for topic in bundle["persistent"]]


def read_all(client: Any, load: Load) -> None:
    """Every acknowledged message of each topic is read once, in order."""
    for topic in TOPICS:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        numbers = []
        while reader.has_message_available():
            numbers.append(int(reader.read_next(30_000).data().split()[0]))
        assert numbers == sorted(numbers), f"out of order or twice: {topic}"
        assert len(numbers) == len(set(numbers))
        assert load.acknowledged[topic] <= set(numbers), f"lost in {topic}"
        reader.close()


def test_topics_are_spread_moved_and_split_and_nothing_is_lost(brokers: list[ClusterBroker]) -> None:
    rest(brokers[0], f"/admin/v2/namespaces/{NAMESPACE}", "PUT", {"bundles": {"numBundles": BUNDLES}})
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(brokers[0].url, operation_timeout_seconds=60, logger=logger)
    load = Load(client)
    for topic in TOPICS:
        load.send(topic, 2)
    load.flush()
    until(lambda: sum(bundle_counts(brokers[0]).values()) == BUNDLES, lambda: bundle_counts(brokers[0]))
    counts = bundle_counts(brokers[0])
    assert len(counts) == 3
    assert min(counts.values()) > 1, counts
    leaders = {rest(broker, "/admin/v2/brokers/leaderBroker")["brokerId"] for broker in brokers}
    assert len(leaders) == 1, "every broker names the same leader"

    overloaded = max(brokers, key=lambda broker: counts[broker.http])
    busy = topics_at(overloaded)
    quire = [sys.executable, "-c", "from quire_bookie.cli.main import main; main()"]

    def moved() -> bool:
        for topic in busy:
            load.send(topic, SENT_AT_ONCE)
        return bundle_counts(brokers[0])[overloaded.http] < counts[overloaded.http]

    until(moved, lambda: rest(brokers[0], "/admin/quire/balancing"), poll_s=0.0, timeout_s=120)
    command = [*quire, "broker", "balance", "--dry-run", "--http", brokers[1].http]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "leader" in shown

    ring = rest(brokers[0], f"/admin/v2/namespaces/{NAMESPACE}/bundles")
    assert ring["numBundles"] == BUNDLES
    first = f"{ring['boundaries'][0]}_{ring['boundaries'][1]}"
    for topic in TOPICS:
        load.send(topic, 5)
    rest(brokers[0], f"/admin/v2/namespaces/{NAMESPACE}/{first}/split", "PUT")
    for topic in TOPICS:
        load.send(topic, 5)
    load.flush()
    assert rest(brokers[0], f"/admin/v2/namespaces/{NAMESPACE}/bundles")["numBundles"] == BUNDLES + 1
    with pytest.raises(HTTPError, match="404"):
        rest(brokers[0], f"/admin/v2/namespaces/{NAMESPACE}/{first}/split", "PUT")

    assert load.failed == 0
    assert sum(map(len, load.acknowledged.values())) == load.sent.total()
    read_all(client, load)
    client.close()
