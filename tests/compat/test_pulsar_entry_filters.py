"""Entry filters with the stock Python and Java clients: the broker drops what a subscription does not ask for."""

import itertools
from typing import Any

import pytest

pulsar = pytest.importorskip("pulsar")

from tests.support.broker_process import BrokerProcess  # noqa: E402  after the check that there is a client
from tests.support.polling import until  # noqa: E402
from tests.support.stock_clients import JavaSession  # noqa: E402

pytestmark = pytest.mark.compat
RECEIVE_MS = 60_000
_names = itertools.count()


@pytest.fixture
def client(python_client: Any) -> Any:
    return python_client


@pytest.fixture
def namespace(broker: BrokerProcess) -> str:
    name = f"f{next(_names)}"
    broker.rest("PUT", f"/admin/v2/namespaces/public/{name}")
    return name


@pytest.mark.parametrize("of_topic", [True, False], ids=["topic", "namespace"])
def test_a_subscription_gets_only_messages_with_the_properties_that_it_names(
    broker: BrokerProcess, client: Any, namespace: str, of_topic: bool
) -> None:
    topic = f"persistent://public/{namespace}/t"
    path = f"/admin/v2/persistent/public/{namespace}/t"
    red = client.subscribe(topic, "red", consumer_type=pulsar.ConsumerType.Shared)
    broker.rest("PUT", f"{path}/subscription/red/properties", {"filter.color": "red"})
    everything = client.subscribe(topic, "all")
    policy = f"{path if of_topic else f'/admin/v2/namespaces/public/{namespace}'}/entryFilters"
    broker.rest("POST", policy, {"entryFilterNames": "properties"})
    assert broker.rest("GET", policy) == {"entryFilterNames": "properties"}
    producer = client.create_producer(topic, batching_enabled=False)
    for color in ("blue", "red", "green", "red"):
        producer.send(color.encode(), properties={"color": color})
    for _ in range(2):
        message = red.receive(RECEIVE_MS)
        assert message.data() == b"red"
        red.acknowledge(message)
    assert [everything.receive(RECEIVE_MS).data() for _ in range(4)] == [b"blue", b"red", b"green", b"red"]

    def stats() -> Any:
        return broker.rest("GET", f"{path}/stats")["subscriptions"]["red"]

    until(lambda: stats()["msgBacklog"] == 0, lambda: f"dropped messages are acknowledged: {stats()}", timeout_s=60)
    counts = [stats()[f"filter{what}MsgCount"] for what in ("Processed", "Accepted", "Rejected", "Rescheduled")]
    assert counts == [4, 2, 2, 0]
    broker.rest("DELETE", policy)
    producer.send(b"after", properties={"color": "blue"})
    assert red.receive(RECEIVE_MS).data() == b"after"


def test_a_filter_that_the_broker_does_not_have_is_refused_with_the_reason(
    broker: BrokerProcess, namespace: str
) -> None:
    policy = f"/admin/v2/namespaces/public/{namespace}/entryFilters"
    code, reason = broker.refused("POST", policy, {"entryFilterNames": "org.example.Filter"})
    assert (code, "'org.example.Filter' not found: this broker has properties" in reason) == (412, True)
    code, reason = broker.refused("POST", policy, {"entryFilterNames": ""})
    assert (code, "use the remove method" in reason) == (412, True)
    assert broker.rest("GET", policy) is None


def test_a_backlog_is_analyzed_with_the_filters(broker: BrokerProcess, client: Any, namespace: str) -> None:
    topic, path = f"persistent://public/{namespace}/t", f"/admin/v2/persistent/public/{namespace}/t"
    client.subscribe(topic, "red").close()
    broker.rest("PUT", f"{path}/subscription/red/properties", {"filter.color": "red"})
    producer = client.create_producer(topic, batching_enabled=False)
    for color in ("blue", "red", "green"):
        producer.send(b"", properties={"color": color})
    broker.rest("POST", f"{path}/entryFilters", {"entryFilterNames": "properties"})
    found = broker.rest("POST", f"{path}/subscription/red/analyzeBacklog")
    assert (found["entries"], found["filterAcceptedEntries"], found["filterRejectedEntries"]) == (3, 1, 2)
    assert (found["filterAcceptedMessages"], found["filterRejectedMessages"]) == (1, 2)


@pytest.mark.slow
def test_filters_apply_to_topics_that_store_nothing(
    broker: BrokerProcess, client: Any, java_session: JavaSession, namespace: str
) -> None:
    topic = f"non-persistent://public/{namespace}/t"
    path = f"/admin/v2/non-persistent/public/{namespace}/t"
    broker.rest("POST", f"/admin/v2/namespaces/public/{namespace}/entryFilters", {"entryFilterNames": "properties"})
    everything = client.subscribe(topic, "all")
    java_session.subscribe(topic, "red", "Exclusive", "filter.color=red")

    def stats(name: str) -> Any:
        return broker.rest("GET", f"{path}/stats")["subscriptions"][name]

    until(lambda: all(stats(name)["consumers"][0]["availablePermits"] > 0 for name in ("red", "all")))
    producer = client.create_producer(topic, batching_enabled=False)
    for color in ("blue", "red", "green"):
        producer.send(color.encode(), properties={"color": color})
    assert [everything.receive(RECEIVE_MS).data() for _ in range(3)] == [b"blue", b"red", b"green"]
    assert [words.split(" ")[1] for words in java_session.receive(topic, "red", 1)] == ["=red"]
    counts = [stats("red")[f"filter{what}MsgCount"] for what in ("Processed", "Accepted", "Rejected", "Rescheduled")]
    assert counts == [3, 1, 2, 0]
    assert stats("red")["msgDropCounter"] == 0
