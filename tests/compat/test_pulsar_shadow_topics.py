"""Shadow topics with the stock Python and Java clients: the same messages and ids, for subscriptions of their own."""

import itertools
from typing import Any

import pytest

pulsar = pytest.importorskip("pulsar")

from tests.compat.conftest import path_of  # noqa: E402  after the check that there is a client
from tests.support.broker_process import BrokerProcess  # noqa: E402
from tests.support.polling import until  # noqa: E402
from tests.support.stock_clients import JavaSession  # noqa: E402

pytestmark = pytest.mark.compat
RECEIVE_MS = 60_000
PREFIX = "persistent://public/default/"
_names = itertools.count()


@pytest.fixture
def client(python_client: Any) -> Any:
    return python_client


@pytest.fixture
def source() -> str:
    return f"{PREFIX}source-{next(_names)}"


def shadow_of(broker: BrokerProcess, source: str) -> str:
    """A new shadow topic that the source knows, as `create-shadow-topic` and `set-shadow-topics` make it."""
    shadow = f"{source}-shadow"
    broker.rest("PUT", path_of(shadow), {"PULSAR.SHADOW_SOURCE": source})
    broker.rest("PUT", path_of(source, "/shadowTopics"), [shadow])
    return shadow


def place(sent: Any) -> tuple[int, int]:
    return sent.ledger_id(), sent.entry_id()


def test_a_shadow_topic_has_the_messages_of_its_source_with_their_ids(
    broker: BrokerProcess, client: Any, source: str
) -> None:
    producer = client.create_producer(source, batching_enabled=False)
    sent = [producer.send(b"%d" % number) for number in range(3)]
    shadow = shadow_of(broker, source)
    assert broker.rest("GET", path_of(shadow, "/properties")) == {"PULSAR.SHADOW_SOURCE": source}
    assert broker.rest("GET", path_of(source, "/shadowTopics")) == [shadow]
    consumer = client.subscribe(shadow, "s", initial_position=pulsar.InitialPosition.Earliest)
    received = [consumer.receive(RECEIVE_MS) for _ in range(3)]
    sent += [producer.send(b"%d" % number) for number in range(3, 6)]
    received += [consumer.receive(RECEIVE_MS) for _ in range(3)]
    assert [message.data() for message in received] == [b"%d" % number for number in range(6)]
    assert [place(message.message_id()) for message in received] == [place(one) for one in sent]
    for message in received[:5]:
        consumer.acknowledge(message)
    consumer.close()
    broker.rest("PUT", path_of(shadow, "/unload"))
    again = client.subscribe(shadow, "s")
    assert again.receive(RECEIVE_MS).data() == b"5", "the shadow has a progress of its own"
    assert broker.rest("GET", path_of(source, "/subscriptions")) == []


def test_the_last_message_of_a_source_that_rests_comes_through_too(
    broker: BrokerProcess, client: Any, source: str
) -> None:
    producer = client.create_producer(source)
    shadow = shadow_of(broker, source)
    consumer = client.subscribe(shadow, "s")
    producer.send(b"alone")
    assert consumer.receive(RECEIVE_MS).data() == b"alone"


def test_a_shadow_topic_cannot_be_terminated(broker: BrokerProcess, client: Any, source: str) -> None:
    client.create_producer(source).send(b"x")
    code, reason = broker.refused("POST", path_of(shadow_of(broker, source), "/terminate"))
    assert (code, "it takes none" in reason) == (412, True)


def test_the_deletion_of_a_shadow_topic_leaves_its_source(broker: BrokerProcess, client: Any, source: str) -> None:
    producer = client.create_producer(source)
    producer.send(b"1")
    shadow = shadow_of(broker, source)
    client.subscribe(shadow, "s").close()
    ledgers = [one["ledgerId"] for one in broker.rest("GET", path_of(source, "/internalStats"))["ledgers"]]
    broker.rest("DELETE", path_of(source, "/shadowTopics"))
    broker.rest("DELETE", path_of(shadow) + "?force=true")
    producer.send(b"2")
    reader = client.create_reader(source, pulsar.MessageId.earliest)
    assert [reader.read_next(RECEIVE_MS).data() for _ in range(2)] == [b"1", b"2"]
    assert [one["ledgerId"] for one in broker.rest("GET", path_of(source, "/internalStats"))["ledgers"]] == ledgers


def test_each_partition_of_a_shadow_topic_shows_that_of_the_source(
    broker: BrokerProcess, client: Any, source: str
) -> None:
    broker.rest("PUT", path_of(source, "/partitions"), 2)
    shadow = f"{source}-shadow"
    body = {"partitions": 2, "deleted": False, "properties": {"PULSAR.SHADOW_SOURCE": source}}
    broker.rest("PUT", path_of(shadow, "/partitions"), body)
    broker.rest("PUT", path_of(source, "/shadowTopics"), [shadow])
    consumer = client.subscribe(shadow, "s", initial_position=pulsar.InitialPosition.Earliest)
    for partition in range(2):
        client.create_producer(f"{source}-partition-{partition}").send(b"%d" % partition)
    assert {consumer.receive(RECEIVE_MS).data() for _ in range(2)} == {b"0", b"1"}
    with pytest.raises(pulsar.Timeout):
        consumer.receive(200)


def test_shadow_topics_that_could_not_work_are_refused_with_the_reason(
    broker: BrokerProcess, client: Any, source: str
) -> None:
    def refusal(shadow: str, of: str) -> tuple[int, str]:
        return broker.refused("PUT", path_of(shadow), {"PULSAR.SHADOW_SOURCE": of})

    code, reason = refusal(f"{source}-x", source)
    assert (code, "does not exist: create it first" in reason) == (404, True)
    client.create_producer(source).close()
    shadow = shadow_of(broker, source)
    assert "is a shadow topic itself" in refusal(f"{source}-y", shadow)[1]
    assert "are persistent" in refusal(f"{source}-y", source.replace("persistent", "non-persistent"))[1]
    broker.rest("PUT", path_of(f"{source}-parts", "/partitions"), 2)
    assert "give it as many" in refusal(f"{source}-y", f"{source}-parts")[1]
    assert "stays" in broker.refused("PUT", path_of(source, "/properties"), {"PULSAR.SHADOW_SOURCE": shadow})[1]
    names: Any
    for names, reason in (
        ([], "please use remove command"),
        ([f"{source}-none"], "not exists"),
        ([source], "is not a shadow topic of"),
        ("x", "must be a list"),
    ):
        code, found = broker.refused("PUT", path_of(source, "/shadowTopics"), names)
        assert (code, reason in found) == (412, True), found


@pytest.mark.slow
def test_a_java_client_reads_a_shadow_and_its_sends_fail_at_once(
    broker: BrokerProcess, java_session: JavaSession, source: str
) -> None:
    sent = java_session.publish(source, "k=1", "=2") + java_session.publish(source, "a=3", "b=4", batch=True)
    shadow = shadow_of(broker, source)
    java_session.subscribe(shadow, "s")
    texts = ["k=1", "=2", "a=3", "b=4"]
    assert java_session.receive(shadow, "s", 4) == [f"{at} {text}" for at, text in zip(sent, texts, strict=True)]
    before = broker.rest("GET", "/admin/quire/stats")["messages_in"]
    for _ in range(2):
        assert java_session.fails("publish", shadow, "single", "k=5") == "NotAllowedException"
    assert broker.rest("GET", "/admin/quire/stats")["messages_in"] == before
    stats = broker.rest("GET", path_of(shadow, "/stats"))
    assert (stats["msgInCounter"], stats["bytesInCounter"]) == (0, 0)
    sent += java_session.publish(source, "k=6")
    assert java_session.receive(shadow, "s", 1) == [f"{sent[-1]} k=6"]
    assert java_session.read(shadow) == java_session.read(source)


@pytest.mark.slow
def test_a_shadow_follows_ledgers_of_its_source_that_end_and_are_deleted(
    broker: BrokerProcess, java_session: JavaSession, source: str
) -> None:
    java_session.subscribe(source, "drained")
    java_session.call("close", source, "drained")
    first = java_session.publish(source, "k=1", "k=2")
    shadow = shadow_of(broker, source)
    java_session.subscribe(shadow, "s")
    assert len(java_session.receive(shadow, "s", 1)) == 1
    broker.rest("PUT", path_of(source, "/unload"))  # its ledger ends
    second = java_session.publish(source, "k=3")
    assert first[0].split(":")[0] != second[0].split(":")[0]
    assert java_session.receive(shadow, "s", 2) == [f"{first[1]} k=2", f"{second[0]} k=3"]
    java_session.call("close", shadow, "s")
    broker.rest("DELETE", path_of(source, "/truncate"))
    third = java_session.publish(source, "k=4")
    until(lambda: java_session.read(shadow) == [f"{third[0]} k=4"])
    java_session.subscribe(shadow, "s")
    assert java_session.receive(shadow, "s", 1) == [f"{third[0]} k=4"]
    broker.rest("PUT", path_of(shadow, "/unload"))
    fourth = java_session.publish(source, "k=5")
    assert java_session.receive(shadow, "s", 1) == [f"{fourth[0]} k=5"]
