"""Topics and their registry on simulated metadata and fake bookies: loading, failing, deduplication across a crash."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quire_bookie.env.background import Background
from quire_bookie.errors import QuireError
from quire_broker.errors import (
    ConflictError,
    InvalidTopicNameError,
    NotAllowedError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    TopicTerminatedError,
)
from quire_broker.managed_ledger.errors import ManagedLedgerFencedError
from quire_broker.managed_ledger.managed_ledger import ManagedLedgerState
from quire_broker.managed_ledger.position import EARLIEST, Position
from quire_broker.names import PERSISTENT, NamespaceName, parse_topic, topic_of
from quire_broker.policies.store import POLICIES, PolicyStore
from quire_broker.topic.producers import Producer, Receipt, Refusal
from quire_broker.topic.topic import Topic, TopicSettings
from quire_broker.topic.topics import Topics, TopicsSettings
from quire_broker.wire.entry import seal
from quire_broker.wire.frames import Send
from quire_broker.wire.kinds import Moved
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata
from tests.support.topic_claims import OwnTopics
from tests.unit.broker.managed_ledger.world import Process, VirtualClock, World, run

TOPIC = parse_topic("persistent://public/default/t")
NAMESPACE = NamespaceName("public", "default")


class Link:
    """A connection that records, in order, the calls for a producer."""

    peer = "/client"
    client_version = "test"

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.done = 0

    def answers_ready(self, producer: Producer) -> None:
        asyncio.get_running_loop().call_soon(self._take, producer)

    def _take(self, producer: Producer) -> None:
        answers, producer.answers = producer.answers, []
        self.heard += answers

    def publish_done(self, count: int, size_bytes: int) -> None:
        self.done += count

    def close_producer(self, producer: Producer, moved: Moved | None = None) -> None:
        self._take(producer)
        self.heard.append("closed")

    def producer_ready(self, producer: Producer) -> None:
        self.heard.append("ready")

    def producer_refused(self, producer: Producer, error: QuireError) -> None:
        self.heard.append(error)

    async def alive(self) -> bool:
        return True


class Broker(OwnTopics):
    """The topics of one process."""

    def __init__(self, process: Process, **settings: Any) -> None:
        self.process = process
        self.policies = PolicyStore(process.store, "c")
        self.background = Background()
        self.topics = Topics(
            process.factory, self.policies, TopicsSettings(**settings), self.background, VirtualClock(), self
        )

    async def namespace(self) -> None:
        await self.policies.create_tenant("public", {})
        await self.policies.create_namespace(NAMESPACE)

    async def producer(self, topic: Topic, name: str = "p", **fields: Any) -> tuple[Producer, Link, int]:
        link = Link()
        producer = Producer(1, name, link, **fields)
        return producer, link, await topic.add_producer(producer, None)


def send(sequence_id: int, *, bad: bool = False, producer: str = "p") -> Send:
    entry = bytearray(
        seal(MessageMetadata(producer_name=producer, sequence_id=sequence_id, publish_time=1), b"m%d" % sequence_id)
    )
    if bad:
        entry[-1] ^= 1
    return Send(sequence_id, None, 1, False, False, memoryview(bytes(entry)))


def scenario(
    work: Callable[[World, Broker], Coroutine[Any, Any, None]], *, deduplication: bool = False, **settings: Any
) -> None:
    """Run `work` in the first process of a world that has public/default."""
    settings.setdefault("topic", TopicSettings(deduplication=deduplication))

    async def play(world: World) -> None:
        process = world.process()

        async def inside() -> None:
            broker = Broker(process, **settings)
            await broker.namespace()
            await work(world, broker)

        await process.run(inside())

    run(play)


async def settle(link: Link, count: int) -> None:
    """Wait until `count` sends are answered or failed."""
    while link.done < count:  # noqa: ASYNC110  virtual time
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)


def test_a_topic_is_loaded_once_for_any_number_of_requests() -> None:
    async def work(world: World, broker: Broker) -> None:
        topics = await asyncio.gather(*(broker.topics.get(TOPIC) for _ in range(10)))
        assert len({id(topic) for topic in topics}) == 1
        assert broker.topics.loaded == [topics[0]]
        assert await broker.topics.get(TOPIC) is topics[0]

    scenario(work)


def test_a_client_that_disconnects_does_not_cancel_the_load() -> None:
    async def work(world: World, broker: Broker) -> None:
        impatient = asyncio.ensure_future(broker.topics.get(TOPIC))
        patient = asyncio.ensure_future(broker.topics.get(TOPIC))
        await asyncio.sleep(0.001)
        impatient.cancel()
        assert (await patient).name == TOPIC

    scenario(work)


def test_a_topic_that_may_not_be_created_is_not_found() -> None:
    async def work(world: World, broker: Broker) -> None:
        with pytest.raises(TopicNotFoundError):
            await broker.topics.get(TOPIC)
        with pytest.raises(TopicNotFoundError, match="Namespace no/where"):
            await broker.topics.get(parse_topic("persistent://no/where/t"))
        with pytest.raises(TopicNotFoundError):
            await broker.topics.partitions_for_client(TOPIC, auto_create=True)
        with pytest.raises(NotAllowedError, match="non-persistent"):
            await broker.topics.get(parse_topic("non-persistent://public/default/t"))
        assert (await broker.topics.create(TOPIC)).name == TOPIC, "an administrator may"
        assert await broker.topics.partitions_for_client(TOPIC, auto_create=False) == 0

    scenario(work, auto_create=False)


def test_a_topic_of_another_broker_is_not_ready() -> None:
    async def work(world: World, broker: Broker) -> None:
        broker.owned = False
        with pytest.raises(ServiceNotReadyError, match="another broker"):
            await broker.topics.get(TOPIC)
        assert broker.topics.loaded == []

    scenario(work)


def test_a_partition_beyond_the_count_is_not_created() -> None:
    async def work(world: World, broker: Broker) -> None:
        await broker.topics.create_partitioned(TOPIC, 2)
        assert await broker.topics.partitions_for_client(TOPIC, auto_create=True) == 2
        await broker.topics.get(TOPIC.partition_of(1))
        with pytest.raises(TopicNotFoundError):
            await broker.topics.get(TOPIC.partition_of(2))
        assert [str(name) for name in await broker.topics.list(NAMESPACE)] == [
            str(TOPIC.partition_of(0)),
            str(TOPIC.partition_of(1)),
        ]
        await broker.topics.delete(TOPIC.partition_of(1))
        await broker.policies.delete_partitions(TOPIC)
        assert await broker.topics.list(NAMESPACE) == []

    scenario(work)


def test_an_added_partition_has_the_subscriptions_of_the_first_one_before_its_first_message() -> None:
    async def work(world: World, broker: Broker) -> None:
        await broker.topics.create_partitioned(TOPIC, 2)
        first = await broker.topics.get(TOPIC.partition_of(0))
        await first.subscription("kept", create=True)
        gone = await first.subscription("gone", create=True)
        await first.reader_subscription("reader", EARLIEST)
        await broker.topics.grow_partitioned(TOPIC, 3)
        await broker.topics.grow_partitioned(TOPIC, 4)
        await gone.delete()
        for index, expected in ((1, ""), (2, "kept"), (3, "kept")):
            partition = await broker.topics.get(TOPIC.partition_of(index))
            assert " ".join(partition.subscriptions) == expected, index
        producer, link, _ = await broker.producer(partition)
        partition.publish(producer, [send(0)])
        await settle(link, 1)
        assert partition.subscriptions["kept"].cursor.backlog == 1

    scenario(work)


def test_a_subscription_dropped_from_an_added_partition_is_not_created_again() -> None:
    async def work(world: World, broker: Broker) -> None:
        await broker.topics.create_partitioned(TOPIC, 1)
        await (await broker.topics.get(TOPIC.partition_of(0))).subscription("s", create=True)
        await broker.topics.grow_partitioned(TOPIC, 2)
        added = TOPIC.partition_of(1)
        await (await broker.topics.get(added)).drop_subscription("s")
        await broker.topics.unload(added)
        assert not (await broker.topics.get(added)).subscriptions

    scenario(work)


def test_subscriptions_that_an_added_partition_could_not_get_are_created_at_its_next_load() -> None:
    async def work(world: World, broker: Broker) -> None:
        await broker.topics.create_partitioned(TOPIC, 1)
        await (await broker.topics.get(TOPIC.partition_of(0))).subscription("s", create=True)
        await broker.topics.grow_partitioned(TOPIC, 2)
        added = TOPIC.partition_of(1)
        # A broker that created the ledger and died before it created the subscriptions.
        await (await broker.process.factory.open(added.ledger_name)).close()
        assert set((await broker.topics.get(added)).subscriptions) == {"s"}

    scenario(work)


@pytest.mark.parametrize("count", [10**9, -1, "3", True, [3]])
def test_a_namespace_may_not_create_topics_of_too_many_partitions(count: Any) -> None:
    async def work(world: World, broker: Broker) -> None:
        override = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": count}
        node = {"autoTopicCreationOverride": override}  # as written by a broker without checks
        await broker.process.store.put(f"{POLICIES}/{NAMESPACE}", json.dumps(node).encode())
        with pytest.raises(NotAllowedError):
            await broker.topics.partitions_for_client(TOPIC, auto_create=True)
        assert await broker.policies.partitions(TOPIC) == 0

    scenario(work)


def test_a_list_of_several_slices_is_whole_and_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_broker.limits.LIST_SLICE_NAMES", 2)

    async def work(world: World, broker: Broker) -> None:
        names = [topic_of(PERSISTENT, NAMESPACE, local) for local in ("e", "b", "d%", "a", "c")]
        for name in names:
            await broker.topics.create(name)
        await broker.topics.create_partitioned(TOPIC, 2)
        expected = [*names, TOPIC.partition_of(0), TOPIC.partition_of(1)]
        assert await broker.topics.list(NAMESPACE) == sorted(expected, key=str)

    scenario(work)


@pytest.mark.parametrize("local", ["a\nb", "a\x1bb", "x" * 1100])
def test_no_topic_with_a_refused_name_is_created(local: str) -> None:
    async def work(world: World, broker: Broker) -> None:
        name = topic_of(PERSISTENT, NAMESPACE, local)
        for making in (
            broker.topics.get(name),
            broker.topics.create(name),
            broker.topics.create_partitioned(name, 3),
            broker.topics.partitions_for_client(name, auto_create=True),
        ):
            with pytest.raises(InvalidTopicNameError, match="choose a"):
                await making
        assert await broker.topics.list(NAMESPACE) == []

    scenario(work)


@pytest.mark.parametrize("local", ["a\nb", "x" * 1100])
def test_a_topic_that_has_a_refused_name_already_can_be_deleted(local: str) -> None:
    async def work(world: World, broker: Broker) -> None:
        name = topic_of(PERSISTENT, NAMESPACE, local)
        await (await broker.process.factory.open(name.ledger_name)).close()
        assert await broker.topics.list(NAMESPACE) == [name]
        topic = await broker.topics.get(name)
        await topic.subscription("s", create=True)
        await topic.drop_subscription("s")
        await broker.topics.delete(name)
        assert await broker.topics.list(NAMESPACE) == []
        await broker.policies.create_partitions(name, 2)
        await broker.policies.delete_partitions(name)
        assert await broker.policies.partitions(name) == 0

    scenario(work)


def test_a_namespace_may_create_partitioned_topics_automatically() -> None:
    async def work(world: World, broker: Broker) -> None:
        override = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
        await broker.policies.update_policies(NAMESPACE, lambda value: value.update(autoTopicCreationOverride=override))
        assert await broker.topics.partitions_for_client(TOPIC, auto_create=True) == 3
        assert await broker.policies.partitions(TOPIC) == 3

    scenario(work)


def test_sends_are_stored_and_answered_in_order() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        producer, link, last = await broker.producer(topic)
        assert last == -1
        assert topic.publish(producer, [send(number, bad=number == 3) for number in range(6)]) == 6
        await settle(link, 6)
        kinds = [type(answer).__name__ for answer in link.heard]
        assert kinds == ["Receipt", "Receipt", "Receipt", "Refusal", "Receipt", "Receipt"]
        assert [answer.sequence_id for answer in link.heard] == list(range(6))
        assert (topic.stats.entries_in, topic.stats.checksum_errors, producer.stats.entries) == (5, 1, 5)
        assert (await topic.last_message())[0] == Position(link.heard[-1].ledger_id, link.heard[-1].entry_id)

    scenario(work)


def test_a_topic_that_another_owner_took_over_acknowledges_nothing_more_and_is_dropped() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        producer, link, _ = await broker.producer(topic)
        topic.publish(producer, [send(0)])
        await settle(link, 1)
        thief = world.process()
        await thief.open(TOPIC.ledger_name)
        topic.publish(producer, [send(1), send(2)])
        await settle(link, 3)
        assert [type(answer).__name__ for answer in link.heard] == ["Receipt", "str"]
        assert topic.publish(producer, [send(3)]) == 0
        with pytest.raises(ServiceNotReadyError):
            await topic.add_producer(Producer(2, "q", Link()), None)
        await broker.background.drain()
        assert broker.topics.find(TOPIC) is None
        again = await broker.topics.get(TOPIC)
        assert again is not topic

    scenario(work)


def test_an_unload_answers_pending_sends_before_it_notifies_the_client() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        producer, link, _ = await broker.producer(topic)
        topic.publish(producer, [send(number) for number in range(3)])
        await broker.topics.unload(TOPIC)
        assert [type(answer).__name__ for answer in link.heard] == ["Receipt", "Receipt", "Receipt", "str"]
        assert broker.topics.loaded == []
        assert (await broker.topics.get(TOPIC)).ledger.entries == 3

    scenario(work)


def test_deduplication_answers_a_repeat_without_storing_it() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        producer, link, _ = await broker.producer(topic)
        topic.publish(producer, [send(0), send(1)])
        topic.publish(producer, [send(1)])  # not yet durable: its outcome is unknown
        await settle(link, 3)
        topic.publish(producer, [send(0), send(1), send(2)])
        await settle(link, 6)
        first, second, unknown, repeat, repeat_too, third = link.heard
        assert isinstance(unknown, Refusal)
        assert (repeat.ledger_id, repeat_too.entry_id) == (-1, -1)
        assert (first.entry_id, second.entry_id, third.entry_id) == (0, 1, 2)
        assert topic.ledger.entries == 3
        assert topic.stats.duplicates == 3

    scenario(work, deduplication=True)


@pytest.mark.parametrize("unloaded", [True, False], ids=["unloaded", "killed"])
def test_deduplication_survives_the_process(unloaded: bool) -> None:
    async def play(world: World) -> None:
        settings = {"topic": TopicSettings(deduplication=True)}
        first = world.process()

        async def before() -> None:
            broker = Broker(first, **settings)
            await broker.namespace()
            topic = await broker.topics.get(TOPIC)
            producer, link, _ = await broker.producer(topic)
            topic.publish(producer, [send(number) for number in range(10)])
            await settle(link, 10)
            if unloaded:
                await broker.topics.unload(TOPIC)

        async def after() -> None:
            topic = await Broker(second, **settings).topics.get(TOPIC)
            producer, link, last = await Broker(second, **settings).producer(topic)
            assert last == 9
            topic.publish(producer, [send(number) for number in range(5, 12)])
            await settle(link, 7)
            assert [answer.entry_id == -1 for answer in link.heard if isinstance(answer, Receipt)] == [True] * 5 + [
                False
            ] * 2
            assert topic.ledger.entries == 12

        await first.run(before())
        first.kill()
        second = world.process()
        await second.run(after())

    run(play)


def test_the_deduplication_cursor_alone_trims_nothing() -> None:
    async def work(world: World, broker: Broker) -> None:
        for start in (0, 10, 20):
            topic = await broker.topics.get(TOPIC)
            producer, link, _ = await broker.producer(topic)
            topic.publish(producer, [send(number) for number in range(start, start + 10)])
            await settle(link, 10)
            await broker.topics.unload(TOPIC)  # writes the snapshot, and the next load a ledger
        topic = await broker.topics.get(TOPIC)
        assert await topic.ledger.trim() == []
        late = await topic.subscription("late", create=True, initial=EARLIEST)
        assert late.cursor.backlog == 30
        await late.skip_all()
        await asyncio.sleep(1)
        assert topic.ledger.entries < 30, "a subscription that has everything lets the ledgers go"

    scenario(work, deduplication=True)


def test_a_terminated_topic_takes_no_producers() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        producer, link, _ = await broker.producer(topic)
        topic.publish(producer, [send(0)])
        await settle(link, 1)
        last = await topic.terminate()
        assert last.entry_id == 0
        assert link.heard[-1] == "closed"
        with pytest.raises(TopicTerminatedError):
            await broker.producer(topic, "q")
        await broker.topics.unload(TOPIC)
        assert (await broker.topics.get(TOPIC)).terminated

    scenario(work)


def test_subscriptions_are_created_found_again_and_dropped() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        with pytest.raises(SubscriptionNotFoundError):
            await topic.subscription("s", create=False)
        made = await asyncio.gather(*(topic.subscription("s", create=True, initial=EARLIEST) for _ in range(3)))
        assert len({id(each) for each in made}) == 1
        with pytest.raises(QuireError, match="reserved"):
            await topic.subscription("pulsar.dedup", create=True)
        await broker.topics.unload(TOPIC)
        again = await broker.topics.get(TOPIC)
        assert list(again.subscriptions) == ["s"]
        await again.drop_subscription("s")
        with pytest.raises(SubscriptionNotFoundError):
            await again.drop_subscription("s")
        assert again.subscriptions == {}

    scenario(work)


def test_a_topic_in_use_is_deleted_only_by_force() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        _, link, _ = await broker.producer(topic)
        with pytest.raises(ConflictError):
            await broker.topics.delete(TOPIC)
        await broker.topics.delete(TOPIC, force=True)
        assert link.heard == ["closed"]
        assert not await broker.topics.exists(TOPIC)
        with pytest.raises(TopicNotFoundError):
            await broker.topics.delete(TOPIC)

    scenario(work)


def test_a_topic_that_failed_is_not_loaded_during_its_own_unload() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        producer, _, _ = await broker.producer(topic)
        await topic.subscription("s", create=True)
        thief = world.process()
        await thief.open(TOPIC.ledger_name)
        asked: asyncio.Future[asyncio.Task[Topic]] = asyncio.get_running_loop().create_future()

        def ask_at_once(_: ManagedLedgerFencedError) -> None:
            asked.set_result(asyncio.create_task(broker.topics.get(TOPIC)))

        assert topic.closing is False
        topic.ledger.on_fenced = ask_at_once
        topic.publish(producer, [send(1)])
        again = await (await asked)
        assert again is not topic
        assert topic.subscriptions == {} and topic.ledger.state is ManagedLedgerState.CLOSED
        await broker.background.drain()
        assert await broker.topics.get(TOPIC) is again

    scenario(work)


def test_an_unload_that_fails_still_notifies_the_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        _, link, _ = await broker.producer(topic)

        async def fails() -> None:
            raise QuireError("no")

        monkeypatch.setattr(topic.ledger, "close", fails)
        await broker.topics.unload(TOPIC)
        assert link.heard == ["closed"]
        monkeypatch.undo()
        assert await broker.topics.get(TOPIC) is not topic

    scenario(work)


def test_a_topic_whose_deletion_failed_can_be_used_and_deleted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World, broker: Broker) -> None:
        await broker.topics.get(TOPIC)

        async def fails(name: str) -> None:
            with pytest.raises(ServiceNotReadyError):
                await broker.topics.get(TOPIC)
            raise QuireError("no")

        monkeypatch.setattr(broker.process.factory, "delete", fails)
        with pytest.raises(QuireError, match="no"):
            await broker.topics.delete(TOPIC)
        monkeypatch.undo()
        topic = await broker.topics.get(TOPIC)
        producer, link, _ = await broker.producer(topic)
        topic.publish(producer, [send(1)])
        await settle(link, 1)
        await broker.topics.delete(TOPIC, force=True)
        assert not await broker.topics.exists(TOPIC)

    scenario(work)


def test_a_producer_that_took_a_name_over_is_not_dropped_when_the_old_one_leaves() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        old, link, _ = await broker.producer(topic)
        topic.publish(old, [send(7)])
        await settle(link, 1)
        new = Producer(1, "p", link, epoch=1)
        assert await topic.add_producer(new, None) == 7
        topic.remove_producer(old)
        await asyncio.sleep(25_000)
        topic.tick()
        topic.publish(new, [send(8)])
        await settle(link, 2)
        assert topic.deduplication is not None
        topic.deduplication.snapshot()
        await asyncio.sleep(25_000)
        topic.deduplication.snapshot()
        assert topic.deduplication.last_of("p") == 8

    scenario(work, deduplication=True)


def test_the_last_message_of_a_topic_with_foreign_entries_is_found() -> None:
    async def work(world: World, broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC)
        stored = asyncio.get_running_loop().create_future()
        topic.ledger.append(b"no metadata", lambda position, error: stored.set_result(position))
        position = await stored
        assert await topic.last_message() == (position, -1)

    scenario(work)
