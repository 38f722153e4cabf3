"""Three broker processes on a real etcd: owners killed, paused and stopped, and etcd away, under the stock client.

Every acknowledged message is read back once, in order.
"""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_cluster import BrokerCluster, BrokerOfCluster, Publishing, broker_cluster, read_back
from tests.support.polling import until

pulsar = pytest.importorskip("pulsar")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOPICS = [f"persistent://public/default/taken-{number}" for number in range(6)]
PAUSE_S = 0.01


class Run:
    """A cluster with publishers, and the broker that owns the first topic."""

    def __init__(self, cluster: BrokerCluster, client: Any) -> None:
        self.cluster, self.client = cluster, client
        self.publishing = Publishing(client, TOPICS, PAUSE_S)
        self.publishing.wait_for(TOPICS[0], time.monotonic())

    def owner(self, *asked: BrokerOfCluster) -> BrokerOfCluster:
        return self.cluster.owner_of(TOPICS[0], *(asked or self.cluster.brokers[:1]))

    def others(self, owner: BrokerOfCluster) -> list[BrokerOfCluster]:
        return [broker for broker in self.cluster.brokers if broker is not owner]

    def resume(self) -> None:
        """Wait until every topic is published to again."""
        since_s = time.monotonic()
        for topic in TOPICS:
            self.publishing.wait_for(topic, since_s)

    def check(self) -> None:
        self.publishing.end()
        assert not self.publishing.errors
        for topic in TOPICS:
            found = read_back(pulsar, self.client, topic, self.publishing.sent - 1)
            assert found == list(range(self.publishing.sent)), topic


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with broker_cluster(tmp_path / "cluster", brokerDeduplicationEnabled="true") as cluster:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(tmp_path / "client.log"))
        client = pulsar.Client(cluster.url, operation_timeout_seconds=60, logger=logger)
        yield Run(cluster, client)
        client.close()


def test_owners_that_are_killed_stopped_and_drained_hand_everything_on(run: Run) -> None:
    for end in (BrokerOfCluster.kill, BrokerOfCluster.stop, BrokerOfCluster.kill):
        owner = run.owner()
        end(owner)
        asked = run.others(owner)[0]
        until(lambda owner=owner, asked=asked: run.owner(asked) is not owner, "no other broker took over")  # type: ignore[misc]
        run.resume()
        owner.start()
    owner = run.owner()
    status, drained = owner.call("PUT", "/admin/quire/drain")
    assert (status, drained["bundles"]) == (200, 0)
    assert drained["moved"] > 0
    assert run.owner(owner) is not owner, "the drained broker names another"
    run.resume()
    for broker in run.cluster.brokers:
        assert broker.call("PUT", "/admin/v2/namespaces/public/default/unload") == (204, None)
    run.resume()
    run.check()


def test_a_next_owner_that_dies_or_sleeps_during_a_move_leaves_one_owner(run: Run) -> None:
    path = TOPICS[0].replace("persistent://", "/lookup/v2/topic/persistent/") + "/bundle"
    bundle = run.cluster.brokers[0].call("GET", path)[1]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        owner = run.owner()
        target = run.others(owner)[0]
        unload = f"/admin/v2/namespaces/public/default/{bundle}/unload?destinationBroker={target.broker_id}"
        target.send_signal(number)
        assert owner.call("PUT", unload) == (204, None), "it is released: the other broker does not take it"
        asked = next(broker for broker in run.cluster.brokers if broker is not target)
        assert run.owner(asked) is not target
        if number == signal.SIGSTOP:
            target.send_signal(signal.SIGCONT)
        else:
            target.kill()
            target.start()
        run.resume()
    run.check()


def test_an_owner_that_sleeps_beyond_its_lease_writes_nothing_more(run: Run) -> None:
    owner = run.owner()
    asked = run.others(owner)[0]
    owner.send_signal(signal.SIGSTOP)
    until(lambda: owner.broker_id not in asked.call("GET", "/admin/v2/brokers")[1], "its lease has not ended")
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(asked.url, operation_timeout_seconds=60, logger=quiet)
    producer = client.create_producer(TOPICS[0], producer_name="second", batching_enabled=False)
    producer.send(b"-1")
    owner.send_signal(signal.SIGCONT)  # the sends of the first client, which it got meanwhile, come late
    run.resume()
    producer.send(b"-2")
    client.close()
    run.publishing.end()
    found = read_back(pulsar, run.client, TOPICS[0], run.publishing.sent - 1)
    assert [number for number in found if number >= 0] == list(range(run.publishing.sent))
    assert -1 in found
    for topic in TOPICS[1:]:
        assert read_back(pulsar, run.client, topic, run.publishing.sent - 1) == list(range(run.publishing.sent)), topic


def test_while_etcd_is_away_owned_topics_are_served_and_nothing_is_assigned(run: Run) -> None:
    owner = run.owner()
    run.cluster.storage.etcd.stop()
    run.resume()
    for broker in run.cluster.brokers:
        until(lambda broker=broker: broker.call("GET", "/readyz")[0] == 503, "it reports nothing")  # type: ignore[misc]
    status, refused = owner.call("PUT", "/admin/v2/persistent/public/default/new-topic")
    assert status == 503, refused
    run.resume()
    run.cluster.storage.etcd.start()
    for broker in run.cluster.brokers:
        until(lambda broker=broker: broker.call("GET", "/readyz")[0] == 200, "it does not recover")  # type: ignore[misc]
    assert owner.call("PUT", "/admin/v2/persistent/public/default/new-topic")[0] in (204, 307)
    run.resume()
    run.check()
