"""Compaction of topics with the stock Python and Java clients: consumers with readCompacted, readers, table views."""

import itertools
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError

import pytest

pulsar = pytest.importorskip("pulsar")

from tests.support.broker_process import BrokerProcess  # noqa: E402  after the check that there is a client
from tests.support.polling import until  # noqa: E402
from tests.support.stock_clients import JavaSession  # noqa: E402
from tests.support.stock_reader import read_keyed  # noqa: E402

pytestmark = pytest.mark.compat
RECEIVE_MS = 60_000
ROOT = "/admin/v2/persistent/public/default"
_names = itertools.count()


@pytest.fixture
def client(python_client: Any) -> Any:
    return python_client


@pytest.fixture
def local() -> str:
    return f"c{next(_names)}"


@pytest.fixture
def topic(local: str) -> str:
    return f"persistent://public/default/{local}"


def publish(client: Any, topic: str, messages: list[tuple[str | None, bytes]], *, batch: bool = False) -> None:
    producer = client.create_producer(
        topic,
        batching_enabled=batch,
        batching_max_messages=len(messages) + 1,
        batching_max_publish_delay_ms=60_000,
        compression_type=pulsar.CompressionType.LZ4,
    )
    for key, value in messages:
        producer.send_async(value, lambda *_: None, partition_key=key)
    producer.flush()
    producer.close()


def compact(broker: BrokerProcess, local: str) -> None:
    broker.rest("PUT", f"{ROOT}/{local}/compaction")
    until(lambda: broker.rest("GET", f"{ROOT}/{local}/compaction")["status"] != "RUNNING")
    assert broker.rest("GET", f"{ROOT}/{local}/compaction") == {"status": "SUCCESS", "lastError": ""}


def consumed(consumer: Any, count: int) -> list[tuple[str, bytes]]:
    found = []
    for _ in range(count):
        message = consumer.receive(RECEIVE_MS)
        consumer.acknowledge_cumulative(message)
        found.append((message.partition_key(), message.data()))
    return found


@pytest.mark.parametrize("batch", [False, True])
def test_a_reader_gets_the_latest_message_of_each_key(
    client: Any, broker: BrokerProcess, topic: str, local: str, batch: bool
) -> None:
    publish(client, topic, [("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("b", b""), (None, b"x")], batch=batch)
    compact(broker, local)
    assert read_keyed(client, topic) == [("a", b"2"), ("c", b"1")]
    assert len(read_keyed(client, topic, compacted=False)) == 6
    publish(client, topic, [("c", b"2"), ("d", b"1")], batch=batch)
    assert read_keyed(client, topic) == [("a", b"2"), ("c", b"1"), ("c", b"2"), ("d", b"1")]
    compact(broker, local)
    assert read_keyed(client, topic) == [("a", b"2"), ("c", b"2"), ("d", b"1")]


def test_a_topic_whose_keys_are_all_deleted_has_no_message(
    client: Any, broker: BrokerProcess, topic: str, local: str
) -> None:
    publish(client, topic, [("a", b"1"), ("a", b"")])
    compact(broker, local)
    assert read_keyed(client, topic) == []
    publish(client, topic, [("b", b"1")])
    assert read_keyed(client, topic) == [("b", b"1")]


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_a_consumer_with_read_compacted_continues_behind_what_it_acknowledged(
    client: Any, broker: BrokerProcess, topic: str, local: str, kind: str
) -> None:
    options = {"is_read_compacted": True, "consumer_type": getattr(pulsar.ConsumerType, kind)}
    client.subscribe(topic, "s", **options).close()
    publish(client, topic, [(f"k{number % 3}", b"%d" % number) for number in range(30)])
    compact(broker, local)
    consumer = client.subscribe(topic, "s", **options)
    assert consumed(consumer, 2) == [("k0", b"27"), ("k1", b"28")]
    consumer.close()
    publish(client, topic, [("k0", b"30")])
    consumer = client.subscribe(topic, "s", **options)
    assert consumed(consumer, 2) == [("k2", b"29"), ("k0", b"30")]
    until(lambda: broker.rest("GET", f"{ROOT}/{local}/stats")["subscriptions"]["s"]["msgBacklog"] == 0)
    consumer.close()


def test_what_compaction_kept_stays_readable_when_its_ledgers_are_deleted(
    client: Any, broker: BrokerProcess, topic: str, local: str
) -> None:
    client.subscribe(topic, "drained").close()
    publish(client, topic, [("a", b"1"), ("b", b"1"), ("a", b"2")])
    compact(broker, local)
    before = broker.rest("GET", f"{ROOT}/{local}/internalStats")["ledgers"]
    broker.rest("DELETE", f"{ROOT}/{local}/truncate")
    until(lambda: broker.rest("GET", f"{ROOT}/{local}/internalStats")["ledgers"][0] != before[0])
    assert read_keyed(client, topic, compacted=False) == []
    assert read_keyed(client, topic) == [("b", b"1"), ("a", b"2")]
    broker.rest("PUT", f"{ROOT}/{local}/unload")
    assert read_keyed(client, topic) == [("b", b"1"), ("a", b"2")]
    publish(client, topic, [("b", b"2")])
    compact(broker, local)
    assert read_keyed(client, topic) == [("a", b"2"), ("b", b"2")]
    late = client.subscribe(topic, "late", is_read_compacted=True, initial_position=pulsar.InitialPosition.Earliest)
    assert consumed(late, 2) == [("a", b"2"), ("b", b"2")]
    late.close()


def test_a_table_view_has_the_latest_values(client: Any, broker: BrokerProcess, topic: str, local: str) -> None:
    publish(client, topic, [("a", b"1"), ("b", b"1"), ("a", b"2"), ("b", b"")])
    compact(broker, local)
    publish(client, topic, [("c", b"1")])
    view = client.create_table_view(topic)
    until(lambda: len(view) == 2)
    assert (view.get("a"), view.get("c")) == (b"2", b"1")
    publish(client, topic, [("a", b"3")])
    until(lambda: view.get("a") == b"3")
    view.close()


def test_read_compacted_is_refused_where_it_cannot_be_served(client: Any, topic: str) -> None:
    def refused(name: str, kind: Any) -> None:
        with pytest.raises(pulsar.PulsarException):
            client.subscribe(name, "s", is_read_compacted=True, consumer_type=kind)

    refused(topic, pulsar.ConsumerType.Shared)
    refused(topic, pulsar.ConsumerType.KeyShared)
    refused("non-persistent://public/default/n", pulsar.ConsumerType.Exclusive)


def status_of(call: Callable[[], Any]) -> int:
    with pytest.raises(HTTPError) as caught:
        call()
    return caught.value.code


def test_the_compacted_ledger_is_in_the_internal_stats(
    client: Any, broker: BrokerProcess, topic: str, local: str
) -> None:
    publish(client, topic, [("a", b"1"), ("b", b"1"), ("a", b"2")])
    assert broker.rest("GET", f"{ROOT}/{local}/compaction") == {"status": "NOT_RUN", "lastError": ""}
    none = broker.rest("GET", f"{ROOT}/{local}/internalStats")["compactedLedger"]
    assert none == {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False, "underReplicated": False}
    compact(broker, local)
    found = broker.rest("GET", f"{ROOT}/{local}/internalStats")
    compacted = found["compactedLedger"]
    assert compacted["entries"] == 2 and compacted["size"] > 0
    cursor = found["cursors"]["__compaction"]
    assert cursor["properties"] == {"CompactedTopicLedger": compacted["ledgerId"]}
    assert cursor["markDeletePosition"] == found["lastConfirmedEntry"]
    described = broker.rest("GET", f"/admin/quire/ledgers/{compacted['ledgerId']}")
    assert described["state"] == "CLOSED"
    stats = broker.rest("GET", f"{ROOT}/{local}/stats")["compaction"]
    assert stats["lastCompactionRemovedEventCount"] == 1 and stats["lastCompactionSucceedTimestamp"] > 0


def test_partitions_are_compacted_together(client: Any, broker: BrokerProcess, local: str) -> None:
    broker.rest("PUT", f"{ROOT}/{local}/partitions", 2)
    topic = f"persistent://public/default/{local}"
    publish(client, topic, [(f"k{number % 8}", b"%d" % number) for number in range(40)])
    broker.rest("PUT", f"{ROOT}/{local}/compaction")
    for partition in range(2):
        path = f"{ROOT}/{local}-partition-{partition}/compaction"
        until(lambda path=path: broker.rest("GET", path)["status"] == "SUCCESS")  # type: ignore[misc]
    found = [each for partition in range(2) for each in read_keyed(client, f"{topic}-partition-{partition}")]
    assert dict(found) == {f"k{key}": b"%d" % (32 + key) for key in range(8)} and len(found) == 8
    assert status_of(lambda: broker.rest("GET", f"{ROOT}/{local}/compaction")) == 412
    assert status_of(lambda: broker.rest("PUT", f"{ROOT}/missing/compaction")) == 404


@pytest.mark.slow
@pytest.mark.parametrize("batch", [False, True])
def test_a_java_client_reads_what_compaction_kept(
    broker: BrokerProcess, java_session: JavaSession, topic: str, local: str, batch: bool
) -> None:
    ids = java_session.publish(topic, "a=1", "b=1", "a=2", "c=1", "b=", "=x", batch=batch)
    compact(broker, local)
    kept = [f"{ids[2]} a=2", f"{ids[3]} c=1"]
    assert java_session.read(topic, compacted=True) == kept
    assert len(java_session.read(topic)) == 6
    assert java_session.table(topic) == ["a=2", "c=1"]
    later = java_session.publish(topic, "c=2", "d=1", "a=", batch=batch)
    assert java_session.read(topic, compacted=True) == [*kept, f"{later[0]} c=2", f"{later[1]} d=1", f"{later[2]} a="]
    until(lambda: java_session.table(topic) == ["c=2", "d=1"])
    compact(broker, local)
    assert java_session.read(topic, compacted=True) == [f"{later[0]} c=2", f"{later[1]} d=1"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_a_java_consumer_with_read_compacted_continues_behind_what_it_acknowledged(
    broker: BrokerProcess, java_session: JavaSession, topic: str, local: str, kind: str
) -> None:
    java_session.subscribe(topic, "s", kind, compacted=True)
    java_session.call("close", topic, "s")
    ids = java_session.publish(topic, *(f"k{number % 3}={number}" for number in range(30)))
    compact(broker, local)
    java_session.subscribe(topic, "s", kind, compacted=True)
    assert java_session.receive(topic, "s", 2) == [f"{ids[27]} k0=27", f"{ids[28]} k1=28"]
    java_session.call("close", topic, "s")
    ids += java_session.publish(topic, "k0=30")
    java_session.subscribe(topic, "s", kind, compacted=True)
    assert java_session.receive(topic, "s", 2)[-1] == f"{ids[30]} k0=30"
    java_session.call("close", topic, "s")


@pytest.mark.slow
def test_read_compacted_of_a_java_client_is_refused_where_it_cannot_be_served(
    java_session: JavaSession, topic: str
) -> None:
    assert java_session.fails("subscribe", topic, "s", "Shared", "compacted") == "InvalidConfigurationException"
