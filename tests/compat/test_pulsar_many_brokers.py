"""Three brokers and three bookies that are killed, paused, unloaded and split under the stock Java and Go clients.

Every acknowledged message is read back once and in the order of its key, by a reader and by Key_Shared consumers that
come and go.
"""

import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_cluster import BrokerCluster, BrokerOfCluster, broker_cluster
from tests.support.polling import until
from tests.support.relay import BOTH, Way
from tests.support.stock_clients import StockConsumer, StockPublisher, command

pulsar = pytest.importorskip("pulsar")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

TOPICS = [f"persistent://public/default/judged-{number}" for number in range(4)]
NAMESPACE = "/admin/v2/namespaces/public/default"
KEYS = 16
PAUSE_MS = 5


class Judged:
    """A cluster, a publisher to all topics, and consumers of the first one."""

    def __init__(self, cluster: BrokerCluster, folder: Path, language: str, undo: ExitStack) -> None:
        self.cluster, self._folder, self._language, self._undo = cluster, folder, language, undo
        self.consumers: list[StockConsumer] = []
        self._all: list[StockConsumer] = []
        kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        assert cluster.brokers[0].call("POST", f"{NAMESPACE}/retention", kept)[0] == 204, (
            "consumed messages are read again"
        )
        for _ in range(2):
            self.join()
        log = folder / "publisher.log"
        self.publisher = StockPublisher(log, language, cluster.url, TOPICS, pause_ms=PAUSE_MS, keys=KEYS)
        undo.callback(self.publisher.kill)
        self.publisher.resume()

    def join(self) -> None:
        """Add a consumer."""
        log = self._folder / f"consumer{len(self._all)}.log"
        consumer = StockConsumer(log, self._language, self.cluster.url, "keys", TOPICS[0])
        self._undo.callback(consumer.kill)
        consumer.wait_for_line("R")
        self.consumers.append(consumer)
        self._all.append(consumer)

    def leave(self) -> None:
        """End the oldest consumer."""
        self.consumers.pop(0).end()

    def owner(self, *but: BrokerOfCluster) -> BrokerOfCluster:
        """Return the owner of the first topic, asked from a broker that is not among `but`."""
        asked = next(broker for broker in self.cluster.brokers if broker not in but)
        return self.cluster.owner_of(TOPICS[0], asked)

    def other(self, broker: BrokerOfCluster) -> BrokerOfCluster:
        """Return another broker."""
        return next(one for one in self.cluster.brokers if one is not broker)

    def received(self) -> list[tuple[int, str, int]]:
        """Return what all consumers received, by time."""
        return sorted(one for consumer in self._all for one in consumer.received)

    def check(self) -> None:
        """End everything, and check each topic and what the consumers received."""
        sent = self.publisher.finish()
        until(
            lambda: len({number for _, _, number in self.received()}) == sent,
            lambda: f"{sent} were sent, {len({number for _, _, number in self.received()})} received",
            timeout_s=120,
        )
        for consumer in self.consumers:
            consumer.end()
        in_order(((key, number) for _, key, number in self.received()), sent, again=True)
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(self.cluster.url, operation_timeout_seconds=60, logger=logger)
        for topic in TOPICS:
            in_order(stored(client, topic, sent), sent, again=False)
        client.close()


def stored(client: Any, topic: str, sent: int) -> list[tuple[str, int]]:
    """Return key and number of each message of a topic."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found: list[tuple[str, int]] = []
    while reader.has_message_available():
        message = reader.read_next(20_000)
        found.append((message.partition_key(), int(message.data())))
    reader.close()
    return found


def in_order(messages: Iterable[tuple[str, int]], sent: int, *, again: bool) -> None:
    """Check that all numbers are there, those of each key in order. `again`: a message may be delivered again."""
    found: dict[str, list[int]] = defaultdict(list)
    for key, number in messages:
        if not again or not found[key] or number not in found[key]:
            found[key].append(number)
    for at in range(KEYS):
        assert found[f"k{at}"] == list(range(at, sent, KEYS)), f"k{at}"


@pytest.fixture(params=["java", "go"])
def judged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Judged]:
    language: str = request.param
    command(language)  # skips the test before a process is started
    started = broker_cluster(tmp_path, bookies=3, linked=True, brokerDeduplicationEnabled="true")
    with started as cluster, ExitStack() as undo:
        yield Judged(cluster, tmp_path, language, undo)


def test_faults_of_brokers_and_bookies_lose_repeat_and_reorder_nothing(judged: Judged) -> None:
    owner = judged.owner()
    owner.kill()
    judged.publisher.resume()
    owner.start()
    judged.join()

    owner = judged.owner()
    owner.send_signal(signal.SIGSTOP)
    asked = judged.other(owner)
    until(lambda: owner.broker_id not in asked.call("GET", "/admin/v2/brokers")[1], "its lease has not ended")
    judged.publisher.resume()
    owner.send_signal(signal.SIGCONT)
    judged.leave()

    bundle = owner.call("GET", TOPICS[0].replace("persistent://", "/lookup/v2/topic/persistent/") + "/bundle")[1]
    assert owner.call("PUT", f"{NAMESPACE}/{bundle}/split?unload=true")[0] == 204
    judged.publisher.resume()
    judged.join()

    bookie = judged.cluster.storage.bookies[0]
    bookie.kill()
    assert owner.call("PUT", f"{NAMESPACE}/unload") == (204, None)
    judged.publisher.resume()
    bookie.start()

    judged.cluster.storage.etcd.stop()
    judged.publisher.resume()
    judged.cluster.storage.etcd.start()
    for broker in judged.cluster.brokers:
        until(lambda broker=broker: broker.call("GET", "/readyz")[0] == 200, "it does not recover")  # type: ignore[misc]
    judged.leave()

    owner = judged.owner()
    owner.stop()
    judged.publisher.resume()
    owner.start()
    judged.check()


def test_an_owner_that_etcd_hears_or_answers_no_more_loses_repeats_and_reorders_nothing(judged: Judged) -> None:
    for ways in ({Way.BACK}, {Way.TO}, BOTH):
        owner = judged.owner()
        link = judged.cluster.links[judged.cluster.brokers.index(owner)]
        link.hold(ways)
        asked = judged.other(owner)
        until(lambda: owner.broker_id not in asked.call("GET", "/admin/v2/brokers")[1], "its lease has not ended")  # noqa: B023
        judged.publisher.resume()
        judged.join()
        link.heal()
        until(lambda: owner.broker_id in asked.call("GET", "/admin/v2/brokers")[1], "it is not back")  # noqa: B023
        judged.publisher.resume()
        judged.leave()
    judged.check()
