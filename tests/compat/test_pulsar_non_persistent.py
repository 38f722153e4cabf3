"""Topics whose messages are not stored, with the stock Python, Java and Go clients and REST."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

pulsar = pytest.importorskip("pulsar")

from tests.support.broker_process import BrokerProcess  # noqa: E402  after the check that there is a client
from tests.support.polling import until  # noqa: E402
from tests.support.stock_clients import JavaSession, StockConsumer, StockPublisher  # noqa: E402

pytestmark = pytest.mark.compat

RECEIVE_MS = 20_000
NAMESPACE = "/admin/v2/non-persistent/public/default"
_names = itertools.count()


@pytest.fixture
def client(python_client: Any) -> Any:
    return python_client


@pytest.fixture
def local() -> str:
    return f"n{next(_names)}"


@pytest.fixture
def topic(local: str) -> str:
    return f"non-persistent://public/default/{local}"


def received(consumer: Any, count: int) -> list[str]:
    found = []
    for _ in range(count):
        message = consumer.receive(RECEIVE_MS)
        consumer.acknowledge(message)
        found.append(message.data().decode())
    return found


def granted(broker: BrokerProcess, local: str, subscription: str, consumers: int = 1) -> None:
    """Wait until every consumer of the subscription has granted permits: before that, messages are lost."""

    def ready() -> bool:
        found = broker.rest("GET", f"{NAMESPACE}/{local}/stats")["subscriptions"].get(subscription, {"consumers": []})
        permits = [consumer["availablePermits"] for consumer in found["consumers"]]
        return len(permits) == consumers and all(count > 0 for count in permits)

    until(ready)


def refused(call: Callable[[], Any]) -> int:
    with pytest.raises(HTTPError) as caught:
        call()
    return caught.value.code


@pytest.mark.parametrize("batched", [False, True])
def test_connected_consumers_get_messages_in_order(
    client: Any, broker: BrokerProcess, topic: str, local: str, batched: bool
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=batched)
    granted(broker, local, "s")
    for number in range(50):
        producer.send_async(str(number).encode(), None)
    producer.flush()
    assert received(consumer, 50) == [str(number) for number in range(50)]
    stats = broker.rest("GET", f"{NAMESPACE}/{local}/stats")
    assert (stats["msgInCounter"], stats["msgOutCounter"], stats["msgDropCounter"]) == (50, 50, 0)


def test_messages_without_a_consumer_are_dropped_and_counted(
    client: Any, broker: BrokerProcess, topic: str, local: str
) -> None:
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", receiver_queue_size=2)
    granted(broker, local, "s")
    for number in range(10):
        producer.send(str(number).encode())
    assert broker.rest("GET", f"{NAMESPACE}/{local}/stats")["subscriptions"]["s"]["msgDropCounter"] == 8
    consumer.close()
    producer.send(b"unseen")
    again = client.subscribe(topic, "s")
    granted(broker, local, "s")
    producer.send(b"seen")
    assert received(again, 1) == ["seen"]
    assert broker.rest("GET", f"{NAMESPACE}/{local}/stats")["msgDropCounter"] == 9


def test_shared_consumers_take_turns(client: Any, broker: BrokerProcess, topic: str, local: str) -> None:
    consumers = [client.subscribe(topic, "s", pulsar.ConsumerType.Shared) for _ in range(2)]
    granted(broker, local, "s", 2)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(10):
        producer.send(str(number).encode())
    found = [received(consumer, 5) for consumer in consumers]
    assert sorted(itertools.chain(*found), key=int) == [str(number) for number in range(10)]


def test_a_key_goes_to_one_consumer(client: Any, broker: BrokerProcess, topic: str, local: str) -> None:
    consumers = [client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared) for _ in range(2)]
    granted(broker, local, "s", 2)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(60):
        producer.send(str(number).encode(), partition_key=f"k{number % 20}")

    def stats() -> list[int]:
        found = broker.rest("GET", f"{NAMESPACE}/{local}/stats")["subscriptions"]["s"]["consumers"]
        return [consumer["msgOutCounter"] for consumer in found]

    counts = {
        consumer["consumerName"]: consumer["msgOutCounter"]
        for consumer in broker.rest("GET", f"{NAMESPACE}/{local}/stats")["subscriptions"]["s"]["consumers"]
    }
    assert sum(stats()) == 60 and all(stats())
    keys = []
    for consumer in consumers:
        messages = [consumer.receive(RECEIVE_MS) for _ in range(counts[consumer.consumer_name()])]
        keys.append({message.partition_key() for message in messages})
    assert not keys[0] & keys[1]


def test_the_next_failover_consumer_takes_over(client: Any, broker: BrokerProcess, topic: str, local: str) -> None:
    consumers = [client.subscribe(topic, "s", pulsar.ConsumerType.Failover, consumer_name=name) for name in ("a", "b")]
    granted(broker, local, "s", 2)
    producer = client.create_producer(topic)
    active = broker.rest("GET", f"{NAMESPACE}/{local}/stats")["subscriptions"]["s"]["activeConsumerName"]
    first, second = consumers if active == "a" else reversed(consumers)
    producer.send(b"1")
    assert received(first, 1) == ["1"]
    first.close()
    producer.send(b"2")
    assert received(second, 1) == ["2"]


def test_an_exclusive_subscription_is_held_by_one(client: Any, topic: str) -> None:
    client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared)


def test_readers_get_new_messages(client: Any, broker: BrokerProcess, topic: str, local: str) -> None:
    reader = client.create_reader(topic, pulsar.MessageId.earliest, reader_name="r")
    (subscription,) = broker.rest("GET", f"{NAMESPACE}/{local}/stats")["subscriptions"]
    granted(broker, local, subscription)
    client.create_producer(topic).send(b"x")
    assert reader.read_next(RECEIVE_MS).data() == b"x"
    reader.close()
    until(lambda: broker.rest("GET", f"{NAMESPACE}/{local}/stats")["subscriptions"] == {})


def test_seeks_are_refused(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    with pytest.raises(pulsar.PulsarException):
        consumer.seek(pulsar.MessageId.earliest)


def test_clients_return_after_an_unload(client: Any, broker: BrokerProcess, topic: str, local: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    broker.rest("PUT", f"{NAMESPACE}/{local}/unload")
    until(lambda: local in str(broker.rest("GET", NAMESPACE)))
    granted(broker, local, "s")
    producer.send(b"after")
    assert received(consumer, 1) == ["after"]


def test_partitioned_topics(client: Any, broker: BrokerProcess, topic: str, local: str) -> None:
    broker.rest("PUT", f"{NAMESPACE}/{local}/partitions", 3)
    assert topic in broker.rest("GET", f"{NAMESPACE}/partitioned")
    consumer = client.subscribe(topic, "s")
    for index in range(3):
        granted(broker, f"{local}-partition-{index}", "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(9):
        producer.send(str(number).encode())
    assert sorted(received(consumer, 9)) == [str(number) for number in range(9)]
    stats = broker.rest("GET", f"{NAMESPACE}/{local}/partitioned-stats")
    assert stats["msgInCounter"] == 9 and len(stats["partitions"]) == 3
    consumer.close()
    producer.close()
    broker.rest("DELETE", f"{NAMESPACE}/{local}/partitions")
    assert not [name for name in broker.rest("GET", NAMESPACE) if local in name]


def test_topics_over_rest(client: Any, broker: BrokerProcess, topic: str, local: str) -> None:
    assert refused(lambda: broker.rest("GET", f"{NAMESPACE}/{local}/stats")) == 404
    broker.rest("PUT", f"{NAMESPACE}/{local}")
    assert refused(lambda: broker.rest("PUT", f"{NAMESPACE}/{local}")) == 409
    assert topic in broker.rest("GET", NAMESPACE)
    assert topic in broker.rest("GET", "/admin/v2/namespaces/public/default/topics?mode=ALL")
    assert topic not in broker.rest("GET", "/admin/v2/namespaces/public/default/topics")
    consumer = client.subscribe(topic, "s")
    assert broker.rest("GET", f"{NAMESPACE}/{local}/subscriptions") == ["s"]
    assert refused(lambda: broker.rest("DELETE", f"{NAMESPACE}/{local}")) == 412
    assert refused(lambda: broker.rest("DELETE", f"{NAMESPACE}/{local}/subscription/s")) == 412
    consumer.close()
    broker.rest("DELETE", f"{NAMESPACE}/{local}/subscription/s")
    broker.rest("DELETE", f"{NAMESPACE}/{local}")
    assert topic not in broker.rest("GET", NAMESPACE)
    assert refused(lambda: broker.rest("POST", f"{NAMESPACE}/{local}/terminate")) == 412


def test_pattern_consumers_find_them(client: Any, broker: BrokerProcess) -> None:
    names = [f"pattern{next(_names)}" for _ in range(2)]
    producers = [client.create_producer(f"non-persistent://public/default/{name}") for name in names]
    consumer = client.subscribe(
        re.compile("non-persistent://public/default/pattern.*"),
        "s",
        regex_subscription_mode=pulsar.RegexSubscriptionMode.NonPersistentOnly,
    )
    for name, producer in zip(names, producers, strict=True):
        granted(broker, name, "s")
        producer.send(name.encode())
    assert sorted(received(consumer, 2)) == sorted(names)


def test_limits_of_the_namespace_hold(client: Any, broker: BrokerProcess) -> None:
    namespace = "/admin/v2/namespaces/public/limited"
    broker.rest("PUT", namespace)
    broker.rest("POST", f"{namespace}/maxConsumersPerTopic", 1)
    topic = "non-persistent://public/limited/t"
    client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared)


@pytest.mark.slow
@pytest.mark.parametrize("language", ["java", "go"])
def test_clients_of_other_languages(
    broker: BrokerProcess, topic: str, local: str, language: str, tmp_path: Path
) -> None:
    pause_ms = 1 if language == "java" else 250
    """The Go client drops messages while it has not sent its last acknowledgment: all have the same id, as on stock."""
    consumer = StockConsumer(tmp_path / "consumer", language, broker.url, "s", topic)
    try:
        consumer.wait_for_line("R")
        granted(broker, local, "s")
        publisher = StockPublisher(tmp_path / "publisher", language, broker.url, [topic], pause_ms=pause_ms, keys=4)
        try:
            publisher.resume()
            sent = publisher.finish()
        finally:
            publisher.kill()
        found = broker.rest("GET", f"{NAMESPACE}/{local}/stats")
        assert (found["msgInCounter"], found["msgDropCounter"]) == (sent, 0)
        until(lambda: len(consumer.received) == sent, lambda: consumer.why(), timeout_s=60)
        consumer.end()
    finally:
        consumer.kill()
    for key in range(4):
        found = [number for _, name, number in consumer.received if name == f"k{key}"]
        assert found == list(range(key, sent, 4)), "the Java client makes batches of each key"


@pytest.mark.slow
def test_a_java_client_subscribes_in_each_way(broker: BrokerProcess, java_session: JavaSession, local: str) -> None:
    for kind in ("Exclusive", "Failover", "Shared", "Key_Shared"):
        name = f"{local}-{kind}"
        topic = f"non-persistent://public/default/{name}"
        java_session.subscribe(topic, "s", kind)
        granted(broker, name, "s")
        java_session.publish(topic, "a=1", "b=2")
        java_session.publish(topic, "a=3", "a=4", batch=True)
        found = [words.split(" ")[1] for words in java_session.receive(topic, "s", 4)]
        assert found == ["a=1", "b=2", "a=3", "a=4"]
        java_session.call("close", topic, "s")
