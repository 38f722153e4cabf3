"""Inactive topics with the stock Python client: a topic is deleted after its last client, and used again afterwards."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

pulsar = pytest.importorskip("pulsar")

from tests.support.polling import until  # noqa: E402  after the check that there is a client
from tests.support.standalone import StandaloneProcess  # noqa: E402  after the check that there is a client

pytestmark = pytest.mark.compat
RECEIVE_MS = 60_000
_names = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    settings = ("brokerDeleteInactiveTopicsFrequencySeconds=1",)
    process = StandaloneProcess(tmp_path_factory.mktemp("inactive"), settings=settings)
    process.start()
    yield process
    process.close()


@pytest.fixture
def client(broker: StandaloneProcess) -> Iterator[Any]:
    found = pulsar.Client(
        broker.url, operation_timeout_seconds=60, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    yield found
    found.close()


@pytest.mark.parametrize("mode", ["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"])
def test_a_topic_is_deleted_after_its_last_client_and_used_again(
    broker: StandaloneProcess, client: Any, mode: str
) -> None:
    namespace = f"public/n{next(_names)}"
    topic = f"persistent://{namespace}/t"
    broker.request("PUT", f"/admin/v2/namespaces/{namespace}")
    policy = {"inactiveTopicDeleteMode": mode, "maxInactiveDurationSeconds": 1, "deleteWhileInactive": True}
    broker.request("POST", f"/admin/v2/namespaces/{namespace}/inactiveTopicPolicies", policy)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"x")
    producer.close()
    consumer.acknowledge(consumer.receive(timeout_millis=RECEIVE_MS))
    if mode == "delete_when_no_subscriptions":
        consumer.unsubscribe()
    else:
        consumer.close()
    until(lambda: broker.request("GET", f"/admin/v2/namespaces/{namespace}/topics") == [], f"{topic} is still there")
    client.create_producer(topic).send(b"y")
    again = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert again.receive(timeout_millis=RECEIVE_MS).data() == b"y", "the first message is gone with its topic"
