"""Tests of the stock Python client (C++ core) on topics with backlog quotas: delay, refusal, return and eviction.

One process, which checks the backlogs every second, serves all tests; each test has its own namespace.
"""

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError

import pytest

pulsar = pytest.importorskip("pulsar")

from tests.support.polling import until  # noqa: E402  after the check that there is a client
from tests.support.standalone import StandaloneProcess  # noqa: E402  after the check that there is a client

pytestmark = pytest.mark.compat

RECEIVE_MS = 20_000
NOTHING_MS = 600
GUARD_S = 60
PAYLOAD = bytes(1000)
LIMIT_BYTES = 20_000
SENT = 40  # about twice the limit
REFUSED = {
    "producer_request_hold": pulsar.ProducerBlockedQuotaExceededError,
    "producer_exception": pulsar.ProducerBlockedQuotaExceededException,
}
_names = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    settings = ("backlogQuotaCheckIntervalInSeconds=1", "exposeTopicLevelMetricsInPrometheus=true")
    process = StandaloneProcess(tmp_path_factory.mktemp("quotas"), settings=settings)
    process.start()
    yield process
    process.close()


@pytest.fixture
def client(broker: StandaloneProcess) -> Iterator[Any]:
    found = pulsar.Client(
        broker.url, operation_timeout_seconds=3, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    yield found
    found.close()


def namespace(broker: StandaloneProcess) -> str:
    name = f"public/n{next(_names)}"
    broker.request("PUT", f"/admin/v2/namespaces/{name}")
    return name


def limit(broker: StandaloneProcess, namespace: str, policy: str, *, size: int = -1, age_s: int = -1) -> None:
    """Set a quota of the kind for which a limit is given."""
    kind = "destination_storage" if size > 0 else "message_age"
    quota = {"limitSize": size, "limitTime": age_s, "policy": policy}
    broker.request("POST", f"/admin/v2/namespaces/{namespace}/backlogQuota?backlogQuotaType={kind}", quota)


def stats(broker: StandaloneProcess, topic: str) -> Any:
    return broker.request("GET", f"/admin/v2/persistent/{topic}/stats")


def publish(client: Any, url: str, count: int) -> None:
    producer = client.create_producer(url, batching_enabled=False)
    for number in range(count):
        producer.send(b"%d|" % number + PAYLOAD)
    producer.close()


def number_of(message: Any) -> int:
    return int(message.data().split(b"|", 1)[0])


def numbers(consumer: Any, last: int) -> list[int]:
    """Receive and acknowledge up to and including the message `last`; return the numbers."""
    found: list[int] = []
    while not found or found[-1] != last:
        message = consumer.receive(RECEIVE_MS)
        consumer.acknowledge(message)
        found.append(number_of(message))
    return found


@pytest.mark.parametrize("policy", ["producer_request_hold", "producer_exception"])
def test_producers_are_refused_until_the_backlog_is_consumed(
    broker: StandaloneProcess, client: Any, policy: str
) -> None:
    within = namespace(broker)
    name, url = f"{within}/t", f"persistent://{within}/t"
    consumer = client.subscribe(url, "s")
    publish(client, url, SENT)
    limit(broker, within, policy, size=LIMIT_BYTES)
    until(lambda: stats(broker, name)["backlogQuotaLimitSize"] == LIMIT_BYTES)
    found = stats(broker, name)
    assert found["backlogSize"] > LIMIT_BYTES
    with pytest.raises(REFUSED[policy]):
        client.create_producer(url)
    assert numbers(consumer, SENT - 1) == list(range(SENT))
    until(lambda: stats(broker, name)["backlogSize"] == 0)
    publish(client, url, 1)
    assert numbers(consumer, 0) == [0]


class Sender:
    """Sends numbers one after the other in its own thread. The policy decides whether its client fails."""

    def __init__(self, client: Any, url: str) -> None:
        self.stored: list[int] = []
        self.failures: list[Exception] = []
        self._client, self._url = client, url
        self._ended = threading.Event()
        self._producer = self._make()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _make(self) -> Any:
        return self._client.create_producer(self._url, batching_enabled=False, send_timeout_millis=0)

    def _run(self) -> None:
        number = 0
        while not self._ended.is_set():
            try:
                self._producer.send(b"%d|" % number + PAYLOAD)
            except pulsar.PulsarException as error:
                self.failures.append(error)
                self._come_back()
                continue
            self.stored.append(number)
            number += 1

    def _come_back(self) -> None:
        """Create another producer as soon as the broker accepts it, like an application whose producer failed."""
        while not self._ended.is_set():
            try:
                self._producer = self._make()
                return
            except pulsar.PulsarException:
                self._ended.wait(0.05)

    @property
    def ended(self) -> bool:
        """Stop sending; return whether the thread has ended. A delayed send ends once the broker accepts it."""
        self._ended.set()
        return not self._thread.is_alive()


@pytest.mark.parametrize("policy", ["producer_request_hold", "producer_exception"])
def test_closed_producer_loses_and_repeats_nothing_when_it_returns(
    broker: StandaloneProcess, client: Any, policy: str
) -> None:
    within = namespace(broker)
    name, url = f"{within}/t", f"persistent://{within}/t"
    limit(broker, within, policy, size=LIMIT_BYTES)
    consumer = client.subscribe(url, "s")
    sender = Sender(client, url)
    try:
        # Its client gets the refusal shortly after the producer was closed, when it reconnects.
        until(lambda: sender.stored and not stats(broker, name)["publishers"])
        until(lambda: policy == "producer_request_hold" or sender.failures)
        reached = len(sender.stored)
        got = [number_of(_acknowledged(consumer)) for _ in range(reached)]
        until(lambda: len(sender.stored) > reached)
    finally:
        deadline = time.monotonic() + GUARD_S
        while not sender.ended and time.monotonic() < deadline:
            got += _what_is_there(consumer)
    got += _what_is_there(consumer)
    assert got == list(range(len(got)))
    assert set(sender.stored) <= set(got)
    assert bool(sender.failures) == (policy == "producer_exception")


def _acknowledged(consumer: Any) -> Any:
    message = consumer.receive(RECEIVE_MS)
    consumer.acknowledge(message)
    return message


def _what_is_there(consumer: Any) -> list[int]:
    found: list[int] = []
    while True:
        try:
            message = consumer.receive(NOTHING_MS)
        except pulsar.Timeout:
            return found
        consumer.acknowledge(message)
        found.append(number_of(message))


def test_eviction_affects_only_the_slowest_subscription_and_readers_continue(
    broker: StandaloneProcess, client: Any
) -> None:
    within = namespace(broker)
    name, url = f"{within}/t", f"persistent://{within}/t"
    limit(broker, within, "consumer_backlog_eviction", size=LIMIT_BYTES)
    slow, quick = client.subscribe(url, "slow"), client.subscribe(url, "quick")
    reader = client.create_reader(url, pulsar.MessageId.earliest, receiver_queue_size=1)
    producer = client.create_producer(url, batching_enabled=False)
    for number in range(SENT):
        producer.send(b"%d|" % number + PAYLOAD)
        if number < SENT - 5:
            assert number_of(_acknowledged(quick)) == number
    slow.close()
    until(lambda: stats(broker, name)["backlogSize"] < LIMIT_BYTES)
    producer.send(b"%d|" % SENT + PAYLOAD)
    left = numbers(client.subscribe(url, "slow"), SENT)
    assert left == list(range(left[0], SENT + 1))
    assert 0.8 * LIMIT_BYTES < (len(left) - 1) * len(PAYLOAD) < LIMIT_BYTES
    assert numbers(quick, SENT) == list(range(SENT - 5, SENT + 1))
    assert number_of(reader.read_next(RECEIVE_MS)) == 0
    assert number_of(reader.read_next(RECEIVE_MS)) == 1
    lines = [line for line in broker.text("/metrics").splitlines() if f'topic="{url}"' in line]
    evicted = next(line for line in lines if "evictions_total" in line and 'quota_type="size"' in line)
    assert int(float(evicted.split()[-1])) >= 1
    assert any(line.startswith("pulsar_storage_backlog_quota_limit{") and line.endswith(" 20000.0") for line in lines)


def test_age_quotas_evict_messages_and_delay_producers(broker: StandaloneProcess, client: Any) -> None:
    evicting, holding = namespace(broker), namespace(broker)
    consumers = {}
    for found in (evicting, holding):
        consumers[found] = client.subscribe(f"persistent://{found}/t", "s")
        publish(client, f"persistent://{found}/t", 3)
    limit(broker, evicting, "consumer_backlog_eviction", age_s=1)
    limit(broker, holding, "producer_exception", age_s=1)
    until(lambda: stats(broker, f"{evicting}/t")["subscriptions"]["s"]["msgBacklog"] == 0)
    until(lambda: stats(broker, f"{holding}/t")["oldestBacklogMessageAgeSeconds"] >= 1)
    assert stats(broker, f"{holding}/t")["oldestBacklogMessageSubscriptionName"] == "s"
    with pytest.raises(REFUSED["producer_exception"]):
        client.create_producer(f"persistent://{holding}/t")
    assert numbers(consumers[holding], 2) == [0, 1, 2]
    until(lambda: stats(broker, f"{holding}/t")["subscriptions"]["s"]["msgBacklog"] == 0)
    publish(client, f"persistent://{holding}/t", 1)


def test_quotas_are_stored_shown_and_removed_and_invalid_ones_refused(broker: StandaloneProcess) -> None:
    name = namespace(broker)
    limit(broker, name, "producer_exception", size=1000)
    root = f"/admin/v2/namespaces/{name}"
    stored = {"destination_storage": {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}}
    assert broker.request("GET", f"{root}/backlogQuotaMap") == stored
    for path, body in (
        (f"{root}/backlogQuota", {"limitSize": 0, "policy": "producer_exception"}),
        (f"{root}/backlogQuota", {"limitSize": "many", "policy": "producer_exception"}),
        (f"{root}/backlogQuota", {"limitSize": 5, "policy": "none"}),
        (f"{root}/backlogQuota?backlogQuotaType=other", {"limitSize": 5, "policy": "producer_exception"}),
    ):
        with pytest.raises(HTTPError) as refused:
            broker.request("POST", path, body)
        assert refused.value.code == 412
    broker.request("DELETE", f"{root}/backlogQuota?backlogQuotaType=destination_storage")
    assert broker.request("GET", f"{root}/backlogQuotaMap") == {}
