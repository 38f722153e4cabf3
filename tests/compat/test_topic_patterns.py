"""A stock Java client that subscribes by a pattern learns of new topics from the broker, not by listing them again."""

from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.polling import until
from tests.support.stock_clients import Program

pytestmark = pytest.mark.slow
PREFIX = "persistent://public/default/pattern-"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path)
    yield process
    process.close()


def test_messages_of_a_new_topic_reach_a_pattern_consumer_at_once(broker: BrokerProcess, tmp_path: Path) -> None:
    client = pulsar.Client(broker.url)

    def publish(topic: str, value: str) -> None:
        client.create_producer(PREFIX + topic).send(value.encode(), partition_key="k")

    publish("first", "1")
    consumer = Program(tmp_path / "log", "java", "pattern", broker.url, "s", f"{PREFIX}.*")
    try:

        def received() -> set[str]:
            return {words[2].strip() for words in consumer.of("M")}

        until(lambda: received() == {"1"}, lambda: f"{received()} {consumer.why()}", timeout_s=60)
        publish("second", "2")
        until(lambda: received() == {"1", "2"}, lambda: f"{received()} {consumer.why()}", timeout_s=60)
        broker.rest("PUT", "/admin/v2/persistent/public/default/pattern-parts/partitions", 2)
        publish("parts", "3")
        until(lambda: received() == {"1", "2", "3"}, lambda: f"{received()} {consumer.why()}", timeout_s=60)
        consumer.end()
    finally:
        consumer.kill()
        client.close()
