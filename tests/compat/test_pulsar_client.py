"""Tests of the stock Python client (C++ core) with a broker and one real bookie: all features for its users.

One broker process serves all tests of this module; each test has its own topics.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.error import HTTPError

import pytest

pulsar = pytest.importorskip("pulsar")

from tests.support.broker_process import BrokerProcess  # noqa: E402  after the check that there is a client

pytestmark = pytest.mark.compat

RECEIVE_MS = 20_000
NOTHING_MS = 600
COMPRESSIONS = ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"]
_names = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("compat"))
    yield process
    process.close()


@pytest.fixture
def connect(broker: BrokerProcess) -> Iterator[Callable[[], Any]]:
    """Return a function that creates clients, each with its own connection."""
    clients = []

    def make() -> Any:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn)
        client = pulsar.Client(broker.url, operation_timeout_seconds=20, logger=logger)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(connect: Callable[[], Any]) -> Any:
    return connect()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t{next(_names)}"


def publish(client: Any, topic: str, count: int, **options: Any) -> list[Any]:
    """Publish `count` messages `m0`, `m1`, ..., one after the other; return their ids."""
    options.setdefault("batching_enabled", False)
    producer = client.create_producer(topic, **options)
    ids = [producer.send(f"m{number}".encode()) for number in range(count)]
    producer.close()
    return ids


def receive(consumer: Any, count: int, *, ack: bool = True) -> list[Any]:
    messages = []
    for _ in range(count):
        message = consumer.receive(RECEIVE_MS)
        if ack:
            consumer.acknowledge(message)
        messages.append(message)
    return messages


def texts(messages: list[Any]) -> list[str]:
    return [message.data().decode() for message in messages]


def nothing_comes(consumer: Any) -> bool:
    try:
        message = consumer.receive(NOTHING_MS)
    except pulsar.Timeout:
        return True
    pytest.fail(f"unexpected message {message.data()!r}")


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_messages_of_every_size_are_returned_complete_and_in_order(
    client: Any, topic: str, batching: bool, compression: str
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, batching_enabled=batching, compression_type=getattr(pulsar.CompressionType, compression)
    )
    # The C++ core cannot decompress its own empty zlib payload, so empty messages are sent uncompressed.
    sizes = [0 if compression == "NONE" else 2, 1, 100, 1024, 65_536, 1_000_000]
    payloads = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    payloads += [f"line {number}".encode() for number in range(200)]
    failed: list[Any] = []
    for payload in payloads:
        producer.send_async(payload, lambda result, _id: None if result == pulsar.Result.Ok else failed.append(result))
    producer.flush()
    assert not failed
    assert [message.data() for message in receive(consumer, len(payloads))] == payloads
    assert nothing_comes(consumer)


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
def test_keys_properties_and_times_arrive(client: Any, topic: str, batching: bool) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="named", batching_enabled=batching)
    before_ms = int(time.time() * 1000)
    producer.send(
        b"x", properties={"a": "1", "ü": "zwei"}, partition_key="key-1", ordering_key="ord", event_timestamp=1234567
    )
    (message,) = receive(consumer, 1)
    assert message.properties() == {"a": "1", "ü": "zwei"}
    assert (message.partition_key(), message.ordering_key()) == ("key-1", "ord")
    assert message.event_timestamp() == 1234567
    assert abs(message.publish_timestamp() - before_ms) < 60_000
    assert message.producer_name() == "named"
    assert message.topic_name() == topic


def test_large_message_is_sent_in_chunks(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    payload = b"".join(number.to_bytes(4, "big") for number in range(3_500_000))
    producer.send(payload)
    producer.send(b"after")
    large, small = receive(consumer, 2)
    assert large.data() == payload
    assert small.data() == b"after"


def test_message_above_the_limit_is_refused_and_the_producer_continues(client: Any, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(b"x" * (5 * 1024 * 1024 + 1))
    producer.send(b"fits")


def test_an_exclusive_subscription_has_one_consumer(connect: Callable[[], Any], topic: str) -> None:
    first = connect().subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Exclusive)
    with pytest.raises(pulsar.ConsumerBusy):
        connect().subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Exclusive)
    first.close()
    connect().subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Exclusive)


def test_shared_subscription_distributes_messages_and_redelivers_those_of_a_closed_consumer(
    connect: Callable[[], Any], topic: str
) -> None:
    options = {"consumer_type": pulsar.ConsumerType.Shared, "receiver_queue_size": 10}
    first, second = (connect().subscribe(topic, "s", **options) for _ in range(2))
    publish(connect(), topic, 40)
    of_first = receive(first, 10, ack=False)
    of_second = receive(second, 10)
    first.close()  # its unacknowledged messages are redelivered to the other
    rest = receive(second, 30)
    assert set(texts(of_second)) | set(texts(rest)) == {f"m{number}" for number in range(40)}
    assert set(texts(of_first)) <= set(texts(rest))


def test_failover_subscription_switches_to_the_next_consumer(connect: Callable[[], Any], topic: str) -> None:
    options = {"consumer_type": pulsar.ConsumerType.Failover}
    first, second = (connect().subscribe(topic, "s", consumer_name=name, **options) for name in "ab")
    producer = connect().create_producer(topic, batching_enabled=False)
    for number in range(10):
        producer.send(f"m{number}".encode())
    try:
        active, standby = first, second
        got = [active.receive(5_000)]
    except pulsar.Timeout:
        active, standby = second, first
        got = [active.receive(RECEIVE_MS)]
    active.acknowledge(got[0])
    got += receive(active, 9)
    assert texts(got) == [f"m{number}" for number in range(10)]
    assert nothing_comes(standby)
    active.close()
    producer.send(b"later")
    assert texts(receive(standby, 1)) == ["later"]


def test_a_key_shared_subscription_keeps_each_key_on_one_consumer_and_in_order(
    connect: Callable[[], Any], topic: str
) -> None:
    options = {"consumer_type": pulsar.ConsumerType.KeyShared}
    consumers = [connect().subscribe(topic, "s", **options) for _ in range(3)]
    producer = connect().create_producer(topic, batching_enabled=False)
    keys = [f"key-{number}" for number in range(30)]
    for round_ in range(5):
        for key in keys:
            producer.send_async(f"{round_}".encode(), lambda result, _id: None, partition_key=key)
    producer.flush()
    seen: dict[str, list[tuple[int, str]]] = {}
    left = len(keys) * 5
    for index, consumer in itertools.cycle(enumerate(consumers)):
        try:
            while True:
                message = consumer.receive(200)
                consumer.acknowledge(message)
                seen.setdefault(message.partition_key(), []).append((index, message.data().decode()))
                left -= 1
        except pulsar.Timeout:
            pass
        if left == 0:
            break
    assert {key: [text for _, text in found] for key, found in seen.items()} == {key: list("01234") for key in keys}
    assert all(len({index for index, _ in found}) == 1 for found in seen.values())
    assert len({found[0][0] for found in seen.values()}) > 1


def test_individual_acknowledgements_are_remembered(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    publish(client, topic, 10)
    for number, message in enumerate(receive(consumer, 10, ack=False)):
        if number % 2:
            consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s")
    assert texts(receive(again, 5)) == ["m0", "m2", "m4", "m6", "m8"]
    assert nothing_comes(again)


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
def test_cumulative_acknowledgement_includes_all_earlier_messages(client: Any, topic: str, batching: bool) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=batching, batching_max_messages=5)
    for number in range(20):
        producer.send_async(f"m{number}".encode(), lambda result, _id: None)
    producer.flush()
    messages = receive(consumer, 20, ack=False)
    consumer.acknowledge_cumulative(messages[14])
    consumer.close()
    again = client.subscribe(topic, "s")
    assert texts(receive(again, 5)) == [f"m{number}" for number in range(15, 20)]


@pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
def test_negative_acknowledgement_redelivers_the_message(client: Any, topic: str, kind: str) -> None:
    consumer = client.subscribe(
        topic, "s", consumer_type=getattr(pulsar.ConsumerType, kind), negative_ack_redelivery_delay_ms=200
    )
    publish(client, topic, 3)
    messages = receive(consumer, 3, ack=False)
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[2])
    consumer.negative_acknowledge(messages[1])
    again = consumer.receive(RECEIVE_MS)
    assert again.data() == b"m1"
    if kind == "Shared":
        assert again.redelivery_count() == 1
    consumer.acknowledge(again)


def test_seek_by_id_and_by_time(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    ids = []
    for number in range(10):
        ids.append(producer.send(f"m{number}".encode()))
        time.sleep(0.005)  # gives each message its own publish time
    messages = receive(consumer, 10)
    consumer.seek(ids[4])
    # By default the C++ core drops the message that it seeks to, so only later messages are compared.
    after = texts(receive(consumer, 5))
    assert after in ([f"m{number}" for number in range(5, 10)], [f"m{number}" for number in range(4, 9)])
    consumer.seek(messages[7].publish_timestamp())
    assert texts(receive(consumer, 3)) == ["m7", "m8", "m9"]
    consumer.seek(pulsar.MessageId.earliest)
    assert texts(receive(consumer, 10)) == [f"m{number}" for number in range(10)]
    consumer.seek(pulsar.MessageId.latest)
    assert nothing_comes(consumer)
    producer.send(b"new")
    assert texts(receive(consumer, 1)) == ["new"]


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
def test_readers_from_earliest_latest_and_an_id(client: Any, topic: str, batching: bool) -> None:
    producer = client.create_producer(topic, batching_enabled=batching, batching_max_messages=4)
    ids: list[Any] = []
    for number in range(10):
        producer.send_async(f"m{number}".encode(), lambda result, message_id: ids.append(message_id))
    producer.flush()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(RECEIVE_MS))
    assert texts(found) == [f"m{number}" for number in range(10)]
    after = client.create_reader(topic, found[6].message_id())
    assert texts([after.read_next(RECEIVE_MS) for _ in range(3)]) == ["m7", "m8", "m9"]
    assert not after.has_message_available()
    including = client.create_reader(topic, found[6].message_id(), start_message_id_inclusive=True)
    assert including.read_next(RECEIVE_MS).data() == b"m6"
    latest = client.create_reader(topic, pulsar.MessageId.latest)
    assert not latest.has_message_available()
    producer.send(b"new")
    assert latest.read_next(RECEIVE_MS).data() == b"new"


def test_the_last_message_id_of_a_topic(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    assert consumer.get_last_message_id().entry_id() == -1
    last = publish(client, topic, 3)[-1]
    found = consumer.get_last_message_id()
    assert (found.ledger_id(), found.entry_id()) == (last.ledger_id(), last.entry_id())


def test_new_subscription_starts_at_its_initial_position(client: Any, topic: str) -> None:
    publish(client, topic, 3)
    earliest = client.subscribe(topic, "e", initial_position=pulsar.InitialPosition.Earliest)
    latest = client.subscribe(topic, "l")
    publish(client, topic, 1)
    assert texts(receive(earliest, 4)) == ["m0", "m1", "m2", "m0"]
    assert texts(receive(latest, 1)) == ["m0"]


def test_each_subscription_gets_every_message(connect: Callable[[], Any], topic: str) -> None:
    consumers = [connect().subscribe(topic, f"s{number}") for number in range(4)]
    publish(connect(), topic, 25)
    for consumer in consumers:
        assert texts(receive(consumer, 25)) == [f"m{number}" for number in range(25)]


def test_several_producers_on_several_topics(connect: Callable[[], Any]) -> None:
    topics = [f"persistent://public/default/t{next(_names)}" for _ in range(5)]
    consumer = connect().subscribe(topics, "all")
    for number, topic in enumerate(topics):
        for producer in (connect().create_producer(topic, batching_enabled=False) for _ in range(2)):
            producer.send(f"{number}".encode())
    assert sorted(texts(receive(consumer, 10))) == sorted("0123401234")


def test_a_pattern_finds_topics(client: Any) -> None:
    prefix = f"regex{next(_names)}"
    for number in range(3):
        publish(client, f"persistent://public/default/{prefix}-{number}", 1)
    import re

    consumer = client.subscribe(
        re.compile(f"persistent://public/default/{prefix}-.*"),
        "s",
        initial_position=pulsar.InitialPosition.Earliest,
    )
    assert len(receive(consumer, 3)) == 3


def test_partitioned_topic_created_over_rest(broker: BrokerProcess, client: Any) -> None:
    name = f"p{next(_names)}"
    path = f"/admin/v2/persistent/public/default/{name}"
    broker.rest("PUT", path + "/partitions", 3)
    assert broker.rest("GET", path + "/partitions") == {"partitions": 3, "deleted": False}
    with pytest.raises(HTTPError, match="409"):
        broker.rest("PUT", path + "/partitions", 3)
    topic = f"persistent://public/default/{name}"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, batching_enabled=False, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )
    for number in range(30):
        producer.send(f"m{number}".encode())
    messages = receive(consumer, 30)
    assert sorted(texts(messages)) == sorted(f"m{number}" for number in range(30))
    assert {message.message_id().partition() for message in messages} == {0, 1, 2}
    assert broker.rest("GET", "/admin/v2/persistent/public/default/partitioned").count(topic) == 1
    stats = broker.rest("GET", path + "/partitioned-stats")
    assert stats["msgInCounter"] == 30
    consumer.close()
    producer.close()
    broker.rest("DELETE", path + "/partitions")
    assert f"{topic}-partition-0" not in broker.rest("GET", "/admin/v2/persistent/public/default")


def test_keys_choose_the_partition(broker: BrokerProcess, client: Any) -> None:
    name = f"p{next(_names)}"
    broker.rest("PUT", f"/admin/v2/persistent/public/default/{name}/partitions", 4)
    consumer = client.subscribe(f"persistent://public/default/{name}", "s")
    producer = client.create_producer(f"persistent://public/default/{name}", batching_enabled=False)
    for number in range(40):
        producer.send(f"{number}".encode(), partition_key=f"k{number % 8}")
    places: dict[str, set[int]] = {}
    for message in receive(consumer, 40):
        places.setdefault(message.partition_key(), set()).add(message.message_id().partition())
    assert all(len(found) == 1 for found in places.values())


def test_unsubscribe_deletes_the_position(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    publish(client, topic, 2)
    receive(consumer, 1)
    consumer.unsubscribe()
    again = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert texts(receive(again, 2)) == ["m0", "m1"]


def test_a_producer_name_is_used_once(connect: Callable[[], Any], topic: str) -> None:
    first = connect().create_producer(topic, producer_name="p")
    with pytest.raises(pulsar.ProducerBusy):
        connect().create_producer(topic, producer_name="p")
    first.close()
    connect().create_producer(topic, producer_name="p")


def test_exclusive_producer_excludes_others(connect: Callable[[], Any], topic: str) -> None:
    exclusive = connect().create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.PulsarException):
        connect().create_producer(topic)
    exclusive.send(b"x")
    exclusive.close()
    connect().create_producer(topic).send(b"y")


def test_invalid_names_and_missing_namespaces_are_refused(client: Any) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://no/such/topic")
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://public/default/")


def test_dead_letters_go_to_their_topic(client: Any, topic: str) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=1, dead_letter_topic=topic + "-dead")
    dead = client.subscribe(topic + "-dead", "s")
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=policy,
    )
    publish(client, topic, 1)
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(RECEIVE_MS))
    assert texts(receive(dead, 1)) == ["m0"]


def test_delayed_messages_are_delivered_after_their_delay(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    from datetime import timedelta

    producer.send(b"later", deliver_after=timedelta(seconds=2))
    producer.send(b"now")
    assert texts(receive(consumer, 2)) == ["now", "later"]


@pytest.fixture
def ending(broker: BrokerProcess) -> Iterator[Any]:
    """A client that may see the end of a topic."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn)
    client = pulsar.Client(broker.url, operation_timeout_seconds=20, logger=logger)
    yield client
    # The C++ client has no case for REACHED_END_OF_TOPIC, which brokers send after the last ack: it logs an invalid
    # message, drops its connection and opens another one. Closing the client meanwhile raises NotConnected.
    with contextlib.suppress(pulsar.NotConnected):
        client.close()


def test_a_terminated_topic_ends(broker: BrokerProcess, ending: Any, topic: str) -> None:
    client = ending
    consumer = client.subscribe(topic, "s")
    ids = publish(client, topic, 3)
    path = topic.replace("persistent://", "/admin/v2/persistent/")
    last = broker.rest("POST", path + "/terminate")
    assert (last["ledgerId"], last["entryId"]) == (ids[-1].ledger_id(), ids[-1].entry_id())
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(topic)
    assert texts(receive(consumer, 3)) == ["m0", "m1", "m2"]


def test_unloading_a_topic_loses_and_repeats_nothing(broker: BrokerProcess, client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    path = topic.replace("persistent://", "/admin/v2/persistent/")
    for number in range(40):
        producer.send(f"m{number}".encode())
        if number % 10 == 5:
            broker.rest("PUT", path + "/unload")
    seen: list[str] = []
    while len(set(seen)) < 40:
        seen += texts(receive(consumer, 1))
    assert list(dict.fromkeys(seen)) == [f"m{number}" for number in range(40)]


def test_subscriptions_over_rest(broker: BrokerProcess, client: Any, topic: str) -> None:
    publish(client, topic, 5)
    path = topic.replace("persistent://", "/admin/v2/persistent/")
    broker.rest("PUT", path + "/subscription/made", "earliest")
    with pytest.raises(HTTPError, match="409"):
        broker.rest("PUT", path + "/subscription/made", "earliest")
    assert broker.rest("GET", path + "/subscriptions") == ["made"]
    assert broker.rest("GET", path + "/stats")["subscriptions"]["made"]["msgBacklog"] == 5
    broker.rest("POST", path + "/subscription/made/skip/2")
    assert broker.rest("GET", path + "/stats")["subscriptions"]["made"]["msgBacklog"] == 3
    broker.rest("POST", path + "/subscription/made/skip_all")
    assert broker.rest("GET", path + "/stats")["subscriptions"]["made"]["msgBacklog"] == 0
    broker.rest("POST", path + "/subscription/made/resetcursor/0")
    consumer = client.subscribe(topic, "made")
    assert texts(receive(consumer, 5)) == [f"m{number}" for number in range(5)]
    with pytest.raises(HTTPError, match="412"):
        broker.rest("DELETE", path + "/subscription/made")
    consumer.close()
    broker.rest("DELETE", path + "/subscription/made")
    with pytest.raises(HTTPError, match="404"):
        broker.rest("DELETE", path + "/subscription/made")


def test_deduplication_of_a_namespace(broker: BrokerProcess, client: Any) -> None:
    broker.rest("PUT", "/admin/v2/namespaces/public/dedup")
    broker.rest("POST", "/admin/v2/namespaces/public/dedup/deduplication", True)
    topic = f"persistent://public/dedup/t{next(_names)}"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="d", batching_enabled=False, initial_sequence_id=4)
    producer.send(b"five")
    producer.send(b"six")
    producer.close()
    assert texts(receive(consumer, 2)) == ["five", "six"]
    consumer.close()  # sends the acknowledgements that the client still groups
    broker.rest("PUT", topic.replace("persistent://", "/admin/v2/persistent/") + "/unload")
    again = client.create_producer(topic, producer_name="d", batching_enabled=False, initial_sequence_id=3)
    for text in (b"four again", b"five again", b"six again", b"seven"):
        again.send(text)
    consumer = client.subscribe(topic, "s")
    assert texts(receive(consumer, 1)) == ["seven"]
    assert nothing_comes(consumer)
    assert again.last_sequence_id() == 7
