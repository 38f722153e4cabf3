"""Raw frames against a whole broker: refusals of the right type, bad bytes, access modes, deduplication, ordering."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from quire_broker.errors import ServerError
from quire_broker.limits import TOPIC_WATCHERS_MAX
from quire_broker.server.topic_lists import topics_hash
from quire_broker.wire.commands import NO_REQUEST
from quire_broker.wire.entry import seal
from quire_broker.wire.frames import FrameDecoder, MessageFrame, SendRun, encode
from quire_broker.wire.hot import encode_send
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("wire"), message_bytes_max=100_000, batch_index_acks=True)
    yield process
    process.close()


class Wire:
    """A client of frames, in order, with nothing hidden."""

    def __init__(self, port: int, *, connect: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=15)
        self.decoder = FrameDecoder(10_000_000)
        self.frames: list[Any] = []
        if connect:
            self.send(connect=pb.CommandConnect(client_version="test", protocol_version=21))
            frame = self.next()
            assert frame.type == Kind.CONNECTED
            self.connected = frame.connected

    def send(self, **body: Any) -> None:
        """One simple command, named by its field."""
        ((name, value),) = body.items()
        number = pb.BaseCommand.DESCRIPTOR.fields_by_name[name].number
        self.socket.sendall(encode(pb.BaseCommand(type=number, **{name: value})))

    def publish(
        self, producer_id: int, sequence_id: int, payload: bytes = b"x", *, bad: bool = False, **more: Any
    ) -> None:
        """A SEND of one message; `bad` spoils its checksum."""
        entry = bytearray(seal(pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1), payload))
        if bad:
            entry[-1] ^= 1
        send = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id, **more)
        command = pb.BaseCommand(type=Kind.SEND, send=send).SerializeToString()
        size = 4 + len(command) + len(entry)
        self.socket.sendall(size.to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + bytes(entry))

    def next(self) -> Any:
        """The next frame; EOFError when the broker closed the connection."""
        while not self.frames:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self.frames += self.decoder.feed(data)
        frame = self.frames.pop(0)
        assert not isinstance(frame, SendRun)
        return frame

    def ask(self, **body: Any) -> Any:
        """Send a request and return the body of its answer, whatever its type."""
        self.send(**body)
        frame = self.next()
        return getattr(frame, frame.DESCRIPTOR.fields_by_number[frame.type].name)

    def producer(self, topic: str, producer_id: int = 1, **more: Any) -> Any:
        return self.ask(producer=pb.CommandProducer(topic=topic, producer_id=producer_id, request_id=5, **more))

    def subscribe(self, topic: str, consumer_id: int = 1, **more: Any) -> Any:
        more.setdefault("subType", 0)
        more.setdefault("subscription", "s")
        return self.ask(subscribe=pb.CommandSubscribe(topic=topic, consumer_id=consumer_id, request_id=6, **more))

    def closed(self) -> bool:
        """Whether the broker closes the connection without another word."""
        try:
            self.next()
        except (EOFError, ConnectionResetError):
            return True
        return False

    def refused(self) -> bool:
        """Whether it closes the connection and says why, unless the end of the connection overtakes that."""
        try:
            frame = self.next()
        except (EOFError, ConnectionResetError):
            return True
        assert (frame.type, frame.error.request_id) == (Kind.ERROR, NO_REQUEST)
        assert frame.error.message
        return self.closed()


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Any]:
    opened: list[Wire] = []

    def make(**options: bool) -> Wire:
        opened.append(Wire(broker.port, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.socket.close()


@pytest.mark.parametrize(
    "raw",
    [
        bytes.fromhex("0000000900000005081292010" + "0"),  # PING before CONNECT
        bytes.fromhex("7fffffff"),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes.fromhex("0000000500000009ff"),
    ],
)
def test_bad_bytes_end_that_connection_and_no_other(wire: Any, raw: bytes) -> None:
    other = wire()
    bad = wire(connect=False)
    bad.socket.sendall(raw)
    assert bad.closed()
    other.send(ping=pb.CommandPing())
    assert other.next().type == Kind.PONG


def test_an_oversized_frame_is_refused_before_it_is_sent_whole(wire: Any) -> None:
    client = wire()
    client.socket.sendall((200_000).to_bytes(4, "big"))
    assert client.refused()


def test_a_producer_of_a_topic_that_rules_of_placement_give_no_ledger_is_refused_with_the_reason(tmp_path: Any) -> None:
    broker = BrokerProcess(tmp_path, bookies=2, distinct_machines=True)
    client = Wire(broker.port)
    try:
        topic = ready(client, "persistent://public/default/apart")
        refused = client.producer(topic)
        assert refused.error == ServerError.PERSISTENCE
        assert "apart has no ledger to append to" in refused.message and "there is 1 machine" in refused.message
        assert "set enforceReplicasOnDistinctMachines=false" in refused.message
        assert client.subscribe(topic).DESCRIPTOR.name == "CommandSuccess"  # reading needs no ledger
    finally:
        client.socket.close()
        broker.close()


def test_unknown_commands_and_a_second_connect_end_the_connection(wire: Any) -> None:
    client = wire()
    client.socket.sendall(encode(pb.BaseCommand(type=99)))
    assert client.refused()
    client = wire()
    client.send(connect=pb.CommandConnect(client_version="again"))
    assert client.refused()


def test_the_lower_protocol_version_counts(wire: Any) -> None:
    client = wire(connect=False)
    connected = client.ask(connect=pb.CommandConnect(client_version="old", protocol_version=12))
    assert (connected.protocol_version, connected.max_message_size) == (12, 100_000)


def test_every_request_that_is_not_served_gets_an_answer_of_its_type(wire: Any) -> None:
    client = wire()
    txn = client.ask(new_txn=pb.CommandNewTxn(request_id=3))
    assert (txn.request_id, txn.error) == (3, ServerError.NOT_ALLOWED)
    tc = client.ask(tc_client_connect_request=pb.CommandTcClientConnectRequest(request_id=4, tc_id=0))
    assert (tc.request_id, tc.error) == (4, ServerError.NOT_ALLOWED)
    schema = client.ask(get_schema=pb.CommandGetSchema(request_id=6, topic="t"))
    assert (schema.request_id, schema.error_code) == (6, ServerError.TOPIC_NOT_FOUND)
    stats = client.ask(consumer_stats=pb.CommandConsumerStats(request_id=7, consumer_id=77))
    assert (stats.request_id, stats.error_code) == (7, ServerError.CONSUMER_NOT_FOUND)
    unknown = client.ask(unsubscribe=pb.CommandUnsubscribe(consumer_id=9, request_id=8))
    assert (unknown.request_id, unknown.error) == (8, ServerError.CONSUMER_NOT_FOUND)
    assert client.ask(close_consumer=pb.CommandCloseConsumer(consumer_id=9, request_id=9)).request_id == 9
    assert client.ask(close_producer=pb.CommandCloseProducer(producer_id=9, request_id=10)).request_id == 10


def test_names_and_namespaces_that_are_wrong(wire: Any) -> None:
    client = wire()
    answer = client.producer("persistent://public/default/")
    assert answer.error == ServerError.INVALID_TOPIC_NAME
    lookup = client.ask(lookup=pb.CommandLookupTopic(topic="persistent://no/where/t", request_id=2))
    assert (lookup.response, lookup.error) == (2, ServerError.TOPIC_NOT_FOUND)
    request = pb.CommandPartitionedTopicMetadata(topic="persistent://no/where/t", request_id=3)
    partitions = client.ask(partition_metadata=request)
    assert (partitions.response, partitions.error) == (1, ServerError.TOPIC_NOT_FOUND)
    assert partitions.message == "Namespace not found"
    request = pb.CommandPartitionedTopicMetadata(topic="never-made", request_id=4, metadata_auto_creation_enabled=False)
    partitions = client.ask(partition_metadata=request)
    assert (partitions.error, partitions.message) == (ServerError.TOPIC_NOT_FOUND, "")
    missing = client.subscribe("never-made", force_topic_creation=False)
    assert missing.error in (ServerError.TOPIC_NOT_FOUND, ServerError.SERVICE_NOT_READY)


def test_lookup_takes_the_bundle_and_answers_with_our_address(broker: BrokerProcess, wire: Any) -> None:
    client = wire()
    answer = client.ask(lookup=pb.CommandLookupTopic(topic="persistent://public/default/w-lookup", request_id=2))
    assert (answer.brokerServiceUrl, answer.response, answer.authoritative) == (broker.url, 1, True)


def ready(client: Wire, topic: str) -> str:
    """A topic name whose bundle is ours: clients look up before they produce."""
    client.ask(lookup=pb.CommandLookupTopic(topic=topic, request_id=1))
    return topic


def test_a_topic_nobody_looked_up_is_not_ours_yet(wire: Any) -> None:
    client = wire()
    names = (f"persistent://public/default/fresh-{number}" for number in range(2000))
    errors = {client.producer(name, number).error for number, name in zip(range(3), names, strict=False)}
    assert errors <= {0, ServerError.SERVICE_NOT_READY}


def test_receipts_come_in_the_order_of_the_sends(wire: Any) -> None:
    client = wire()
    made = client.producer(ready(client, "persistent://public/default/w-order"))
    assert made.last_sequence_id == -1
    for number in range(50):
        client.publish(1, number, bad=number == 20)
    answers = [client.next() for _ in range(50)]
    kinds = [answer.type for answer in answers]
    assert kinds.count(Kind.SEND_ERROR) == 1
    assert kinds[20] == Kind.SEND_ERROR
    assert answers[20].send_error.error == ServerError.CHECKSUM
    ids = [answer.send_receipt.message_id.entryId for answer in answers if answer.type == Kind.SEND_RECEIPT]
    assert ids == list(range(49))
    sequences = [(answer.send_receipt or answer.send_error).sequence_id for answer in answers]
    assert sequences[:20] == list(range(20))


def test_a_send_of_an_unknown_producer_ends_the_connection_but_a_late_one_does_not(wire: Any) -> None:
    client = wire()
    client.publish(44, 0)
    assert client.refused()
    client = wire()
    client.producer(ready(client, "persistent://public/default/w-late"))
    client.ask(close_producer=pb.CommandCloseProducer(producer_id=1, request_id=7))
    client.publish(1, 0)
    client.send(ping=pb.CommandPing())
    assert client.next().type == Kind.PONG


def test_entries_come_back_byte_for_byte_and_only_against_permits(wire: Any) -> None:
    client = wire()
    topic = ready(client, "persistent://public/default/w-bytes")
    assert client.subscribe(topic).request_id == 6
    client.producer(topic)
    for number in range(5):
        client.publish(1, number, b"payload %d" % number)
        assert client.next().type == Kind.SEND_RECEIPT
    client.send(flow=pb.CommandFlow(consumer_id=1, messagePermits=3))
    frames = [client.next() for _ in range(3)]
    assert all(isinstance(frame, MessageFrame) for frame in frames)
    wanted = seal(pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), b"payload 1")
    assert bytes(frames[1].entry) == wanted
    client.send(ping=pb.CommandPing())
    assert client.next().type == Kind.PONG
    client.send(flow=pb.CommandFlow(consumer_id=1, messagePermits=10))
    assert [client.next().command.message.message_id.entryId for _ in range(2)] == [3, 4]


def test_an_ack_with_a_request_id_is_answered(wire: Any) -> None:
    client = wire()
    topic = ready(client, "persistent://public/default/w-ack")
    client.subscribe(topic)
    client.producer(topic)
    client.publish(1, 0)
    where = client.next().send_receipt.message_id
    client.send(flow=pb.CommandFlow(consumer_id=1, messagePermits=3))
    assert isinstance(client.next(), MessageFrame)
    ids = [pb.MessageIdData(ledgerId=where.ledgerId, entryId=where.entryId)]
    done = client.ask(ack=pb.CommandAck(consumer_id=1, ack_type=0, message_id=ids, request_id=12))
    assert (done.consumer_id, done.request_id, done.HasField("error")) == (1, 12, False)
    refused = client.ask(ack=pb.CommandAck(consumer_id=5, ack_type=0, message_id=ids, request_id=13))
    assert (refused.request_id, refused.error) == (13, ServerError.CONSUMER_NOT_FOUND)


def test_the_producer_that_waits_is_told_when_the_topic_is_free(wire: Any) -> None:
    holder, waiter = wire(), wire()
    topic = ready(holder, "persistent://public/default/w-wait")
    first = holder.producer(topic, producer_access_mode=1)
    assert (first.producer_ready, first.topic_epoch) == (True, 0)
    second = waiter.producer(topic, producer_access_mode=2)
    assert (second.producer_ready, second.HasField("topic_epoch")) == (False, False)
    refused = wire().producer(topic, producer_access_mode=1)
    assert refused.error == ServerError.PRODUCER_FENCED
    holder.socket.close()
    promoted = waiter.next().producer_success
    assert (promoted.request_id, promoted.producer_ready, promoted.topic_epoch) == (5, True, 1)


def test_sends_above_the_pending_limit_are_all_answered(wire: Any) -> None:
    client = wire()
    client.producer(ready(client, "persistent://public/default/w-many"))
    for number in range(5000):
        client.publish(1, number)
    answered = [client.next().send_receipt.sequence_id for _ in range(5000)]
    assert answered == list(range(5000))


def test_the_topics_of_a_namespace_with_their_hash(broker: BrokerProcess, wire: Any) -> None:
    broker.rest("PUT", "/admin/v2/namespaces/public/listed")
    for name in ("a", "b"):
        broker.rest("PUT", f"/admin/v2/persistent/public/listed/{name}")
    client = wire()
    request = pb.CommandGetTopicsOfNamespace(request_id=3, namespace="public/listed")
    found = client.ask(get_topics_of_namespace=request)
    assert list(found.topics) == ["persistent://public/listed/a", "persistent://public/listed/b"]
    assert (found.changed, found.filtered) == (True, False)
    request.topics_hash = found.topics_hash
    again = client.ask(get_topics_of_namespace=request)
    assert (list(again.topics), again.changed, again.topics_hash) == ([], False, found.topics_hash)


def watched(client: Any, watcher_id: int, pattern: str, **more: Any) -> Any:
    """Return the answer to a client that watches the topics of `public/watched` that match."""
    request = pb.CommandWatchTopicList(
        request_id=7, watcher_id=watcher_id, namespace="public/watched", topics_pattern=pattern, **more
    )
    return client.ask(watch_topic_list=request)


def update_of(client: Any) -> tuple[int, list[str], list[str]]:
    """Return watcher, new and deleted topics of the next update."""
    update = client.next().watch_topic_update
    return update.watcher_id, list(update.new_topics), list(update.deleted_topics)


def test_a_client_is_told_about_new_and_deleted_topics_that_match_its_pattern(broker: BrokerProcess, wire: Any) -> None:
    prefix = "persistent://public/watched/"
    broker.rest("PUT", "/admin/v2/namespaces/public/watched")
    broker.rest("PUT", "/admin/v2/persistent/public/watched/in-1")
    client = wire()
    assert client.connected.feature_flags.supports_topic_watchers
    first = watched(client, 1, f"{prefix}in-.*")
    assert (first.watcher_id, list(first.topic)) == (1, [f"{prefix}in-1"])
    assert list(watched(client, 2, f"^{prefix}in-.*", topics_hash=first.topics_hash).topic) == []

    broker.rest("PUT", "/admin/v2/persistent/public/watched/other")
    broker.rest("PUT", "/admin/v2/persistent/public/watched/in-2")
    assert sorted([update_of(client), update_of(client)]) == [(at, [f"{prefix}in-2"], []) for at in (1, 2)]
    assert client.ask(watch_topic_list_close=pb.CommandWatchTopicListClose(request_id=8, watcher_id=2)).request_id == 8
    broker.rest("PUT", "/admin/v2/persistent/public/watched/in-3/partitions", 2)
    assert update_of(client) == (1, [f"{prefix}in-3-partition-0", f"{prefix}in-3-partition-1"], [])
    broker.rest("DELETE", "/admin/v2/persistent/public/watched/in-1")
    assert update_of(client) == (1, [], [f"{prefix}in-1"])
    listed = watched(wire(), 1, f"{prefix}in-.*")
    broker.rest("PUT", "/admin/v2/persistent/public/watched/in-4")
    update = client.next().watch_topic_update
    assert update.topics_hash == topics_hash([*listed.topic, f"{prefix}in-4"])


@pytest.mark.parametrize(
    ("request_of", "error"),
    [
        ({"topics_pattern": "x" * 51}, ServerError.NOT_ALLOWED),
        ({"topics_pattern": "(unclosed"}, ServerError.NOT_ALLOWED),
        ({"topics_pattern": "(?!lookahead).*"}, ServerError.NOT_ALLOWED),
        ({"topics_pattern": ".*", "namespace": "public/missing"}, ServerError.TOPIC_NOT_FOUND),
        ({"topics_pattern": ".*", "namespace": "missing"}, ServerError.INVALID_TOPIC_NAME),
    ],
)
def test_a_list_that_cannot_be_watched_is_refused(wire: Any, request_of: dict[str, Any], error: ServerError) -> None:
    request: dict[str, Any] = {"request_id": 5, "watcher_id": 1, "namespace": "public/default"} | request_of
    refused = wire().ask(watch_topic_list=pb.CommandWatchTopicList(**request))
    assert (refused.request_id, refused.error) == (5, error), refused


def test_a_connection_watches_a_bounded_number_of_lists(wire: Any) -> None:
    client = wire()

    def watch(watcher_id: int) -> Any:
        request = pb.CommandWatchTopicList(
            request_id=5, watcher_id=watcher_id, namespace="public/default", topics_pattern="public/default/none"
        )
        return client.ask(watch_topic_list=request)

    for watcher_id in range(TOPIC_WATCHERS_MAX):
        assert watch(watcher_id).watcher_id == watcher_id
    assert watch(3).error == ServerError.NOT_ALLOWED
    assert watch(1000).error == ServerError.TOO_MANY_REQUESTS
    client.ask(watch_topic_list_close=pb.CommandWatchTopicListClose(request_id=8, watcher_id=3))
    assert watch(1000).watcher_id == 1000


def test_a_pattern_cannot_stop_the_broker(wire: Any) -> None:
    client = wire()
    name = "public/default/" + "a" * 200
    client.producer(ready(client, f"persistent://{name}"))
    request = pb.CommandWatchTopicList(
        request_id=5, watcher_id=1, namespace="public/default", topics_pattern="public/default/(a*)*(a*)*b"
    )
    assert list(client.ask(watch_topic_list=request).topic) == []


def sealed(**fields: Any) -> bytes:
    return seal(pb.MessageMetadata(**{"producer_name": "p", "sequence_id": 1, "publish_time": 1, **fields}), b"x")


def test_an_entry_that_would_trouble_consumers_is_refused_and_the_others_go_on(wire: Any) -> None:
    client = wire()
    topic = ready(client, "persistent://public/default/w-poison")
    client.subscribe(topic, subType=3)
    client.producer(topic)
    client.send(flow=pb.CommandFlow(consumer_id=1, messagePermits=10))
    raw = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1).SerializeToString()
    not_text = raw + b"\x32\x02\xc3\x28"
    enormous = sealed(num_messages_in_batch=2**31 - 1)
    for sequence_id, entry in enumerate(
        (len(not_text).to_bytes(4, "big") + not_text, enormous, b"", b"\0\0\0\x09ab", sealed())
    ):
        client.socket.sendall(encode_send(1, sequence_id, entry))
    answers: list[Any] = []
    messages: list[Any] = []
    while len(answers) < 5 or not messages:
        frame = client.next()
        (messages if isinstance(frame, MessageFrame) else answers).append(frame)
    assert [answer.type for answer in answers] == [Kind.SEND_ERROR] * 4 + [Kind.SEND_RECEIPT]
    assert [message.command.message.message_id.entryId for message in messages] == [0]


def test_a_send_that_counts_wrong_gets_the_reason_and_ends_the_connection(wire: Any) -> None:
    client = wire()
    client.producer(ready(client, "persistent://public/default/w-negative"))
    client.publish(1, 0, num_messages=-5)
    frame = client.next()
    assert (frame.type, frame.error.request_id) == (Kind.ERROR, NO_REQUEST)
    assert frame.error.message == "SEND of -5 messages; num_messages is from 1 to 1048576"
    assert client.closed()


def test_a_request_with_a_value_that_there_is_not_is_answered_before_the_connection_ends(wire: Any) -> None:
    client = wire()
    topic = ready(client, "persistent://public/default/w-values")
    answer = client.subscribe(topic, subType=77)
    assert answer.request_id == 6
    assert "malformed SUBSCRIBE" in answer.message
    client = wire()
    answer = client.producer(ready(client, topic), producer_access_mode=77)
    assert answer.request_id == 5
    assert "unknown producer access mode 77" in answer.message


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"subscription": ""}, "the subscription name is empty"),
        ({"subscription": "s" * 90_000}, "has 90000 characters; the limit is 1024 (nameMaxCharacters)"),
        ({"subscription": "s\n2026 INFO forged"}, "holds a control character"),
        ({"consumer_name": "c\x1b[2J"}, "the consumer name 'c\\x1b[2J' holds"),
        ({"metadata": [pb.KeyValue(key="k", value="v" * 70_000)]}, "the limit is 65536"),
    ],
)
def test_a_consumer_of_a_refused_name_gets_the_reason_and_keeps_its_connection(
    wire: Any, fields: dict[str, Any], reason: str
) -> None:
    client = wire()
    topic = ready(client, "persistent://public/default/w-names")
    for durable in (True, False):
        answer = client.subscribe(topic, durable=durable, **fields)
        assert (answer.request_id, answer.error) == (6, ServerError.NOT_ALLOWED)
        assert reason in answer.message
    assert client.subscribe(topic).request_id == 6


def test_a_producer_and_a_topic_of_refused_names_get_the_reason(wire: Any) -> None:
    client = wire()
    topic = ready(client, "persistent://public/default/w-names")
    for fields in (
        {"producer_name": "p\n"},
        {"producer_name": "p" * 2000},
        {"initial_subscription_name": "s\r"},
        {"metadata": [pb.KeyValue(key="k" * 70_000, value="")]},
    ):
        assert client.producer(topic, **fields).error == ServerError.NOT_ALLOWED
    for odd in ("persistent://public/default/a\nb", "persistent://public/default/" + "x" * 90_000):
        assert client.producer(odd).error == ServerError.INVALID_TOPIC_NAME
        lookup = client.ask(lookup=pb.CommandLookupTopic(topic=odd, request_id=9))
        assert (lookup.request_id, lookup.error) == (9, ServerError.INVALID_TOPIC_NAME)
    client.send(ping=pb.CommandPing())
    assert client.next().type == Kind.PONG


def test_text_that_is_not_utf8_in_a_command_ends_that_connection(wire: Any) -> None:
    for body in (
        b"\x08\x05\x2a\x0b\x0a\x01t\x10\x01\x18\x02\x22\x02\xc3\x28",  # PRODUCER whose name is no text
        b"\x08\x04\x22\x0d\x0a\x02\xc3\x28\x12\x01s\x18\x00\x20\x01\x28\x02",  # SUBSCRIBE to such a topic
    ):
        client = wire()
        client.socket.sendall((len(body) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body)
        assert client.refused()


def test_a_reader_that_vanishes_after_its_seek_leaves_no_subscription(broker: BrokerProcess, wire: Any) -> None:
    keeper, topic = wire(), "persistent://public/default/w-reader-gone"
    ready(keeper, topic)
    for how in ("vanishes", "closes", "returns"):
        client = wire()
        assert client.subscribe(topic, subscription=f"reader-{how}", durable=False).request_id == 6
        client.send(seek=pb.CommandSeek(consumer_id=1, request_id=7, message_publish_time=0))
        assert client.next().close_consumer.consumer_id == 1
        assert client.next().success.request_id == 7
        if how == "closes":
            assert client.ask(close_consumer=pb.CommandCloseConsumer(consumer_id=1, request_id=8)).request_id == 8
        elif how == "returns":
            client.subscribe(topic, subscription="reader-returns", durable=False)
        else:
            client.socket.close()
    path = "/admin/v2/persistent/public/default/w-reader-gone/stats"
    for _ in range(100):
        left = list(broker.rest("GET", path)["subscriptions"])
        if left == ["reader-returns"]:
            break
    assert left == ["reader-returns"]


def test_a_reader_that_is_refused_leaves_no_subscription(broker: BrokerProcess, wire: Any) -> None:
    client, topic = wire(), "persistent://public/default/w-reader-refused"
    ready(client, topic)
    refused = client.subscribe(topic, subscription="reader-x", durable=False, subType=1, read_compacted=True)
    assert refused.error == ServerError.NOT_ALLOWED
    assert broker.rest("GET", "/admin/v2/persistent/public/default/w-reader-refused/stats")["subscriptions"] == {}


@pytest.mark.parametrize("cumulative", [0, 1])
def test_acknowledgements_of_what_never_was_change_nothing(wire: Any, cumulative: int) -> None:
    client = wire()
    topic = ready(client, f"persistent://public/default/w-odd-acks-{cumulative}")
    client.subscribe(topic)
    client.producer(topic)
    client.publish(1, 0)
    ledger = client.next().send_receipt.message_id.ledgerId
    for number, (ledger_id, entry_id) in enumerate(
        [(0, 0), (-1, -1), (-1, 0), (ledger, -1), (ledger, 5), (ledger - 1, 2**40), (2**63 - 1, 2**63 - 1)]
    ):
        for words, batch_size in ([], 0), ([5], 3), ([-1], -(2**31)):
            where = pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id, ack_set=words, batch_size=batch_size)
            ack = pb.CommandAck(consumer_id=1, ack_type=cumulative, message_id=[where], request_id=number)
            assert client.ask(ack=ack).request_id == number
    client.send(flow=pb.CommandFlow(consumer_id=1, messagePermits=10))
    assert client.next().command.message.message_id.entryId == 0
