"""What a broker adds to entries, with stock clients: the Java client shows it, the Python client reads past it."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

pulsar = pytest.importorskip("pulsar")

from tests.compat.conftest import path_of  # noqa: E402  after the check that there is a client
from tests.support.broker_process import BrokerProcess  # noqa: E402
from tests.support.polling import until  # noqa: E402
from tests.support.stock_clients import Program  # noqa: E402

pytestmark = pytest.mark.compat
RECEIVE_MS = 60_000
INTERCEPTORS = (
    "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor,"
    "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), interceptors=INTERCEPTORS, entry_metadata_sent=True)
    yield process
    process.close()


def publish(client: Any, topic: str, count: int) -> list[Any]:
    """Publish a message alone, and `count` in one batch; return their ids."""
    alone = client.create_producer(topic, batching_enabled=False)
    ids = [alone.send(b"0")]
    alone.close()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for number in range(1, count + 1):
        producer.send_async(str(number).encode(), lambda result, sent: ids.append(sent))
    producer.flush()
    producer.close()
    return ids


def test_the_python_client_reads_past_it_and_seeks_by_the_time_of_the_broker(
    broker: BrokerProcess, python_client: Any
) -> None:
    topic = "persistent://public/default/python"
    publish(python_client, topic, 3)
    between = int(time.time() * 1000) + 1
    until(lambda: time.time() * 1000 > between, "the clock stands", timeout_s=60)
    publish(python_client, topic, 0)
    consumer = python_client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert [consumer.receive(RECEIVE_MS).data() for _ in range(5)] == [b"0", b"1", b"2", b"3", b"0"]
    consumer.seek(between)
    assert consumer.receive(RECEIVE_MS).data() == b"0"
    with pytest.raises(pulsar.Timeout):
        consumer.receive(200)


def test_a_message_is_found_by_its_index_also_after_an_unload(broker: BrokerProcess, python_client: Any) -> None:
    topic = "persistent://public/default/found"
    first = publish(python_client, topic, 3)
    broker.rest("PUT", path_of(topic, "/unload"))
    second = publish(python_client, topic, 2)
    expected = [first[0], *[first[1]] * 3, second[0], *[second[1]] * 2]
    for index, sent in enumerate(expected):
        found = broker.rest("GET", path_of(topic, f"/getMessageIdByIndex?index={index}"))
        assert found == {"ledgerId": sent.ledger_id(), "entryId": sent.entry_id(), "partitionIndex": -1}
    code, reason = broker.refused("GET", path_of(topic, "/getMessageIdByIndex?index=7"))
    assert (code, reason.startswith("Message not found for index 7")) == (404, True)
    assert broker.refused("GET", path_of(topic, "/getMessageIdByIndex?index=x"))[0] == 400
    with urlopen(broker.http + path_of(topic, "/examinemessage?initialPosition=earliest&messagePosition=2")) as answer:
        assert answer.headers["X-Pulsar-Broker-Entry-METADATA-index"] == "3"
        assert abs(int(answer.headers["X-Pulsar-Broker-Entry-METADATA-timestamp"]) - time.time() * 1000) < 600_000
    code, reason = broker.refused("PUT", path_of(topic, "/properties"), {"index": "0"})
    assert (code, "use another name" in reason) == (412, True)


@pytest.mark.slow
def test_the_java_client_gets_index_and_time_of_each_message(
    broker: BrokerProcess, python_client: Any, tmp_path: Path
) -> None:
    topic = "persistent://public/default/java"
    publish(python_client, topic, 3)
    consumer = Program(tmp_path / "log", "java", "indexed", broker.url, "s", topic)
    try:
        until(lambda: len(consumer.of("I")) == 4, lambda: f"{consumer.lines} {consumer.why()}", timeout_s=120)
        consumer.end()
    finally:
        consumer.kill()
    assert [(words[0], words[2].strip()) for words in consumer.of("I")] == [(str(n), str(n)) for n in range(4)]
    assert all(abs(int(words[1]) - time.time() * 1000) < 600_000 for words in consumer.of("I"))
