"""The index and the time that a broker adds to entries: over batches, ledgers, owners, crashes and trimmed topics."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quire_broker.managed_ledger.position import EARLIEST
from quire_broker.settings.entry_metadata import EntryMetadataSettings, parse_interceptors
from quire_broker.topic.topic import Topic, TopicSettings
from quire_broker.wire.entry import peek, peek_broker_metadata, seal
from quire_broker.wire.frames import Send
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata
from tests.unit.broker.managed_ledger.world import START_MS, World, run
from tests.unit.broker.topic.test_topics import TOPIC, Broker, settle

BOTH = EntryMetadataSettings(timestamp=True, index=True)
NONE = EntryMetadataSettings()
Work = Callable[[Broker], Awaitable[None]]


def send(sequence_id: int, messages: int = 1) -> Send:
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
    if messages > 1:
        metadata.num_messages_in_batch = messages
    return Send(sequence_id, None, messages, False, False, memoryview(seal(metadata, b"m%d" % sequence_id)))


async def publish(broker: Broker, topic: Topic, *batches: int) -> None:
    """Store entries with these numbers of messages."""
    producer, link, _ = await broker.producer(topic)
    topic.publish(producer, [send(number, messages) for number, messages in enumerate(batches)])
    await settle(link, len(batches))
    topic.remove_producer(producer)


async def indexes(topic: Topic) -> list[int | None]:
    """The index of each stored entry, oldest first."""
    found: list[int | None] = []
    position = topic.ledger.first_position()
    while entries := await topic.ledger.read(position, 100):
        for entry in entries:
            added = peek_broker_metadata(entry.data)
            found.append(None if added is None else added.index)
        position = topic.ledger.next_position(entries[-1].position)
    return found


def processes(*works: tuple[EntryMetadataSettings, Work], kill: bool = True) -> None:
    """Run each in a process of its own, one after the other, on one world with public/default."""

    async def play(world: World) -> None:
        for number, (settings, work) in enumerate(works):
            process = world.process()

            async def inside(
                number: int = number, settings: EntryMetadataSettings = settings, work: Work = work
            ) -> None:
                broker = Broker(process, topic=TopicSettings(entry_metadata=settings))  # noqa: B023  used at once
                if number == 0:
                    await broker.namespace()
                await work(broker)

            await process.run(inside())
            if kill:
                process.kill()

    run(play)


def test_an_entry_has_the_time_and_the_index_of_its_last_message() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        await publish(broker, topic, 1, 3, 1)
        assert await indexes(topic) == [0, 3, 4]
        (entry,) = await topic.ledger.read(topic.ledger.first_position(), 1)
        added = peek_broker_metadata(entry.data)
        assert added is not None
        assert START_MS <= added.broker_timestamp < START_MS + 60_000
        assert bytes(entry.data).endswith(b"m0"), "the entry of the client is unchanged"
        assert peek(entry.data).publish_time_ms == 1

    processes((BOTH, work))


def test_a_topic_may_have_only_times() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        await publish(broker, topic, 1)
        (entry,) = await topic.ledger.read(topic.ledger.first_position(), 1)
        added = peek_broker_metadata(entry.data)
        assert added is not None
        assert (added.HasField("broker_timestamp"), added.HasField("index")) == (True, False)
        assert "index" not in topic.ledger.properties

    processes((EntryMetadataSettings(timestamp=True), work))


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "unloaded"])
def test_the_index_continues_over_ledgers_and_owners(kill: bool) -> None:
    async def first(broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        await publish(broker, topic, 2, 1)
        await topic.ledger.roll()
        await publish(broker, topic, 1)
        if not kill:
            await broker.topics.unload(TOPIC)

    async def second(broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        await publish(broker, topic, 5)
        assert await indexes(topic) == [1, 2, 3, 8]

    processes((BOTH, first), (BOTH, second), kill=kill)


def test_an_entry_whose_append_failed_leaves_no_gap_in_the_stored_indexes() -> None:
    async def first(broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        await publish(broker, topic, 1)
        producer, _, _ = await broker.producer(topic)
        topic.publish(producer, [send(number) for number in range(1, 4)])  # killed before any is stored

    async def second(broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        await publish(broker, topic, 1)
        found = await indexes(topic)
        assert found == list(range(len(found)))

    processes((BOTH, first), (BOTH, second))


def test_the_index_continues_after_every_ledger_was_trimmed() -> None:
    async def first(broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        subscription = await topic.subscription("s", create=True, initial=EARLIEST)
        await publish(broker, topic, 4, 3)
        await subscription.skip_all()
        await topic.ledger.roll()
        await topic.ledger.trim()
        await asyncio.sleep(1)
        assert topic.ledger.entries == 0
        assert topic.ledger.properties["index"] == "6"

    async def second(broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        await publish(broker, topic, 1)
        assert await indexes(topic) == [7]

    processes((BOTH, first), (BOTH, second))


def test_a_topic_without_an_index_gets_one_and_keeps_it_while_a_broker_adds_none() -> None:
    async def plain(broker: Broker) -> None:
        await publish(broker, await broker.topics.get(TOPIC), 1, 1)

    async def last(broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        await publish(broker, topic, 1)
        assert await indexes(topic) == [None, None, 1, 2, None, None, 3]

    async def indexed(broker: Broker) -> None:
        await publish(broker, await broker.topics.get(TOPIC), 2, 1)

    processes((NONE, plain), (BOTH, indexed), (NONE, plain), (BOTH, last))


@pytest.mark.parametrize(("text", "first"), [("41", 42), ("-1", 0), ("words", 0), ("9" * 40, 0)])
def test_the_property_of_another_broker_is_continued_if_it_is_a_number(text: str, first: int) -> None:
    async def store(broker: Broker) -> None:
        await (await broker.topics.get(TOPIC)).ledger.set_property("index", text)

    async def work(broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        await publish(broker, topic, 1)
        assert await indexes(topic) == [first]

    processes((NONE, store), (BOTH, work))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", NONE),
        ("AppendIndexMetadataInterceptor", EntryMetadataSettings(index=True)),
        (
            "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor, "
            "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor",
            BOTH,
        ),
    ],
)
def test_interceptors_are_known_by_their_names(text: str, expected: EntryMetadataSettings) -> None:
    assert parse_interceptors(text) == expected


def test_other_interceptors_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"'com.example.Mine'.*cannot load other classes of Java: remove it"):
        parse_interceptors("AppendIndexMetadataInterceptor,com.example.Mine")
