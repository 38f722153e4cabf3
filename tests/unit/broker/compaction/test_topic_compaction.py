"""Compaction of topics on simulated metadata and fake bookies: the messages of readers, deletions and failures."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from quire_bookie.errors import BookieUnavailableError
from quire_bookie.model import LedgerId
from quire_broker.compaction.compacted_entry import encode
from quire_broker.compaction.compacted_output import CompactedOutput, custom_of
from quire_broker.compaction.topic_compaction import NO_LEDGER
from quire_broker.dispatch.delivery import AckId, ConsumerSpec
from quire_broker.errors import CompactionError, ConflictError
from quire_broker.managed_ledger.position import EARLIEST, LATEST, Position
from quire_broker.settings.compaction import CompactionSettings
from quire_broker.settings.managed_ledger import UNLIMITED, ManagedLedgerSettings
from quire_broker.topic.compaction_check import CompactionCheck
from quire_broker.topic.topic import Topic
from quire_broker.topic.topics import TopicsSettings
from quire_broker.wire.kinds import AckKind, SubscriptionType
from tests.unit.broker.compaction.messages import batch, entry, received, unpacked
from tests.unit.broker.dispatch.doubles import Link
from tests.unit.broker.managed_ledger.world import World, append, run
from tests.unit.broker.topic.test_topics import NAMESPACE, TOPIC, Broker

KEPT = ManagedLedgerSettings(rollover_age_min_s=0.0, trim_interval_s=1.0)


def scenario(
    work: Callable[[World, Broker, Topic], Coroutine[Any, Any, None]],
    ledgers: ManagedLedgerSettings = KEPT,
    **settings: Any,
) -> None:
    """Run `work` on a new topic."""

    async def play(world: World) -> None:
        process = world.process()

        async def inside() -> None:
            broker = Broker(process, ledger=ledgers, **settings)
            await broker.namespace()
            await work(world, broker, await broker.topics.get(TOPIC))
            await broker.topics.close()

        await process.run(inside())

    run(play, settings=ledgers)


async def compact(topic: Topic) -> None:
    topic.compaction.start()
    while topic.compaction.running:  # noqa: ASYNC110  virtual time
        await asyncio.sleep(0.1)
    assert topic.compaction.stats.status == "SUCCESS", topic.compaction.stats.last_error


async def failed(topic: Topic) -> str:
    topic.compaction.start()
    while topic.compaction.running:  # noqa: ASYNC110  virtual time
        await asyncio.sleep(0.1)
    assert topic.compaction.stats.status == "ERROR" and topic.compaction.stats.failed_ms > 0
    return topic.compaction.stats.last_error


async def publish(topic: Topic, *messages: tuple[str | None, bytes]) -> list[Position]:
    return await append(topic.ledger, *(entry(*message) for message in messages))


def test_a_reader_continues_in_the_topic_behind_the_horizon() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        assert await received(topic) == []
        await publish(topic, ("a", b"1"), ("b", b"1"), ("a", b"2"))
        assert len(await received(topic)) == 3, "nothing is compacted yet"
        await compact(topic)
        await publish(topic, ("b", b"2"))
        assert await received(topic) == [("b", b"1"), ("a", b"2"), ("b", b"2")]
        assert len(await received(topic, compacted=False)) == 4

    scenario(work)


def test_a_reader_begins_where_it_asked_for() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        positions = await publish(topic, *((f"k{number % 3}", b"%d" % number) for number in range(9)))
        await compact(topic)
        later = await publish(topic, ("k9", b"9"))
        everything = [("k0", b"6"), ("k1", b"7"), ("k2", b"8"), ("k9", b"9")]
        assert await received(topic, positions[0]) == await received(topic, positions[6]) == everything
        assert await received(topic, positions[7]) == everything[1:]
        assert await received(topic, later[0]) == everything[3:]
        assert await received(topic, LATEST) == []

    scenario(work)


def test_a_compacted_ledger_of_many_reads_is_read_in_order() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        positions = await publish(topic, *((f"k{number}", b"%d" % number) for number in range(450)))
        await compact(topic)
        assert await received(topic) == [(f"k{number}", b"%d" % number) for number in range(450)]
        assert len(await received(topic, positions[333])) == 450 - 333

    scenario(work)


def test_a_reader_that_is_in_the_middle_when_the_ledger_is_replaced_gets_what_follows() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        await publish(topic, *((f"k{number}", b"old") for number in range(10)))
        await compact(topic)
        link = Link()
        subscription = await topic.reader_subscription("r", EARLIEST)
        spec = ConsumerSpec(1, "c", SubscriptionType.EXCLUSIVE, durable=False, start=EARLIEST, read_compacted=True)
        consumer = await subscription.add_consumer(spec, link)
        subscription.flow(consumer, 4)
        await asyncio.sleep(1)
        await publish(topic, ("k1", b"new"), ("k7", b"new"), ("k8", b""))
        before = topic.ledger.compacted.current
        await compact(topic)
        await asyncio.sleep(5)
        assert before is not None and before.ledger_id not in world.bookies.ledgers
        subscription.redeliver(consumer, None, None)
        subscription.flow(consumer, 100)
        await asyncio.sleep(1)
        found = [message for _, delivery in link.deliveries[4:] for message in unpacked(bytes(delivery.data))]
        assert dict(found) == {f"k{number}": b"old" for number in (0, 2, 3, 4, 5, 6, 9)} | {"k1": b"new", "k7": b"new"}

    scenario(work)


def test_what_a_durable_consumer_acknowledged_is_not_delivered_again() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        await publish(topic, *((f"k{number % 4}", b"%d" % number) for number in range(12)))
        await compact(topic)
        subscription = await topic.subscription("s", create=True, initial=EARLIEST)
        spec = ConsumerSpec(1, "c", SubscriptionType.FAILOVER, read_compacted=True)

        async def delivered() -> list[Position]:
            link = Link()
            consumer = await subscription.add_consumer(spec, link)
            subscription.flow(consumer, 100)
            await asyncio.sleep(5)
            positions = [delivery.position for _, delivery in link.deliveries]
            subscription.acknowledge(consumer, AckKind.CUMULATIVE, [AckId(positions[1])])
            await subscription.remove_consumer(consumer)
            return positions

        first = await delivered()
        assert len(first) == 4
        assert await delivered() == first[2:]
        assert subscription.backlog == 0

    scenario(work)


def test_a_seek_to_the_beginning_reads_what_only_the_compacted_ledger_has() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        subscription = await topic.subscription("s", create=True, initial=EARLIEST)
        await publish(topic, ("a", b"1"), ("b", b"1"), ("a", b"2"))
        await compact(topic)
        await topic.ledger.roll()
        await publish(topic, ("c", b"1"))
        await subscription.skip_all()
        await asyncio.sleep(60)
        assert await received(topic, compacted=False) == [("c", b"1")], "the first ledger is deleted"
        await subscription.seek_position(EARLIEST)
        link = Link()
        consumer = await subscription.add_consumer(
            ConsumerSpec(1, "c", SubscriptionType.EXCLUSIVE, read_compacted=True), link
        )
        subscription.flow(consumer, 100)
        await asyncio.sleep(1)
        found = [message for _, delivery in link.deliveries for message in unpacked(bytes(delivery.data))]
        assert found == [("b", b"1"), ("a", b"2"), ("c", b"1")]

    scenario(work)


def test_the_last_message_is_the_last_one_that_compaction_kept() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        first = await append(topic.ledger, batch([("a", b"1"), ("b", b"1"), ("c", b"1"), ("c", b"")]), entry("b", b""))
        assert await topic.last_message(compacted=True) == (first[1], -1)
        await compact(topic)
        assert await topic.last_message(compacted=True) == (first[0], 0)
        assert await topic.last_message() == (first[1], -1)
        later = await publish(topic, ("a", b""))
        assert await topic.last_message(compacted=True) == (later[0], -1)
        await compact(topic)
        assert await topic.last_message(compacted=True) == (Position(-1, -1), -1)
        assert await received(topic) == []

    scenario(work)


def test_without_subscriptions_only_a_retention_deletes_compacted_entries() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        await publish(topic, ("a", b"1"), ("a", b"2"))
        await compact(topic)
        await topic.ledger.roll()
        await asyncio.sleep(60)
        assert len(await received(topic, compacted=False)) == 2
        topic.ledger.use(replace(KEPT, retention_s=1.0, retention_bytes=UNLIMITED))
        await asyncio.sleep(60)
        assert await received(topic, compacted=False) == []
        assert await received(topic) == [("a", b"2")]

    scenario(work)


def test_entries_behind_the_horizon_are_kept_until_the_next_compaction() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        subscription = await topic.subscription("s", create=True, initial=EARLIEST)
        await publish(topic, ("a", b"1"))
        await compact(topic)
        await publish(topic, ("b", b"1"))
        await topic.ledger.roll()
        await subscription.skip_all()
        await asyncio.sleep(60)
        assert await received(topic) == [("a", b"1"), ("b", b"1")]
        await compact(topic)
        await asyncio.sleep(60)
        assert await received(topic, compacted=False) == []
        assert await received(topic) == [("a", b"1"), ("b", b"1")]

    scenario(work)


def test_nothing_new_makes_no_new_ledger() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        await compact(topic)
        assert topic.ledger.compacted.current is None and not world.bookies.of_topic(b"compacted-topic")
        await publish(topic, ("a", b"1"))
        await compact(topic)
        before = topic.ledger.compacted.current
        await compact(topic)
        assert topic.ledger.compacted.current == before

    scenario(work)


def test_a_compaction_runs_once_at_a_time_and_ends_with_the_topic() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        await publish(topic, ("a", b"1"))
        topic.compaction.start()
        with pytest.raises(ConflictError, match="already in progress"):
            topic.compaction.start()
        assert topic.compaction.stats.status == "RUNNING" and topic.must_stay
        await broker.topics.unload(TOPIC)
        assert "unloaded" in topic.compaction.stats.last_error
        again = await broker.topics.get(TOPIC)
        await asyncio.sleep(30)
        assert not world.bookies.of_topic(b"compacted-topic")
        await compact(again)
        assert await received(again) == [("a", b"1")]

    scenario(work)


def test_a_compaction_that_fails_holds_nothing_back_and_leaves_nothing() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        subscription = await topic.subscription("s", create=True, initial=EARLIEST)
        await publish(topic, *((f"key {number} {'x' * 1000}", b"1") for number in range(1000)))
        assert "topicCompactionKeysMaxMb" in await failed(topic)
        await topic.ledger.roll()
        await subscription.skip_all()
        await asyncio.sleep(60)
        assert await received(topic, compacted=False) == []
        assert not world.bookies.of_topic(b"compacted-topic") and "__compaction" not in topic.ledger.cursors

    scenario(work, compaction=CompactionSettings(keys_bytes_max=1 << 20))


def test_bookies_that_do_not_answer_leave_the_former_ledger_in_use() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        await publish(topic, ("a", b"1"))
        await compact(topic)
        former = topic.ledger.compacted.current
        assert former is not None
        await publish(topic, ("a", b"2"))
        world.bookies.broken_reads[former.ledger_id] = BookieUnavailableError("no answer")
        assert "no answer" in await failed(topic)
        del world.bookies.broken_reads[former.ledger_id]
        assert topic.ledger.compacted.current == former
        assert await received(topic) == [("a", b"1"), ("a", b"2")]
        await asyncio.sleep(30)
        assert world.bookies.of_topic(b"compacted-topic") == [former.ledger_id]

    scenario(work)


def test_a_deleted_topic_leaves_no_compacted_ledger() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        await publish(topic, ("a", b"1"))
        await compact(topic)
        assert world.bookies.of_topic(b"compacted-topic")
        await broker.topics.delete(TOPIC)
        assert not world.bookies.ledgers

    scenario(work)


def test_another_owner_keeps_the_result_of_a_former_one_from_being_used() -> None:
    async def play(world: World) -> None:
        old, new = world.process(), world.process()

        async def begin() -> Topic:
            broker = Broker(old)
            await broker.namespace()
            topic = await broker.topics.get(TOPIC)
            await publish(topic, ("a", b"1"), ("a", b"2"))
            return topic

        former: Topic = await old.run(begin())
        writer = await old.run(former.ledger.compacted.create({}))
        await old.run(writer.close())

        async def take_over() -> None:
            topic = await Broker(new).topics.get(TOPIC)
            await compact(topic)
            current = topic.ledger.compacted.current
            await asyncio.sleep(10)

            with pytest.raises(CompactionError, match="another broker"):
                await old.run(former.ledger.compacted.record(writer.ledger_id, former.ledger.last_confirmed))
            assert topic.ledger.compacted.current == current
            assert await received(topic) == [("a", b"2")]

        await new.run(take_over())

    run(play, settings=KEPT)


def test_topics_are_compacted_when_more_than_the_threshold_was_added() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        check = CompactionCheck(broker.topics, CompactionSettings())

        async def checked() -> str:
            topic.compaction.stats.status = "NOT_RUN"
            await check.round()
            await asyncio.sleep(10)
            return topic.compaction.stats.status

        async def set_threshold(value: object) -> None:
            changed = {"compaction_threshold": value}
            await broker.policies.update_policies(NAMESPACE, lambda policies: policies.update(changed))
            await broker.topics.apply(topic, None)

        await publish(topic, ("a", b"x" * 1000), ("b", b"x" * 1000))
        assert await checked() == "NOT_RUN", "no threshold"
        await set_threshold(3000)
        assert await checked() == "NOT_RUN"
        await set_threshold(1000)
        assert await checked() == "SUCCESS"
        assert await checked() == "NOT_RUN", "nothing was added"
        await publish(topic, ("a", b"x" * 1000))
        assert await checked() == "SUCCESS"
        await set_threshold(0)
        await publish(topic, ("a", b"x" * 1000))
        assert await checked() == "NOT_RUN"
        check = CompactionCheck(broker.topics, CompactionSettings(threshold_bytes=1000))
        assert await checked() == "NOT_RUN", "0 of the namespace turns the broker's threshold off"
        await set_threshold(None)
        assert await checked() == "SUCCESS"

    scenario(work)


def test_settings_reach_the_compactions() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        await publish(topic, (None, b"1"), ("a", b"1"), ("a", b"2"))
        await compact(topic)
        assert await received(topic) == [(None, b"1"), ("a", b"2")]

    assert TopicsSettings().compaction == CompactionSettings()
    scenario(work, compaction=CompactionSettings(retain_null_key=True))


# ---- ledgers that a job wrote
async def written_by_job(topic: Topic, horizon: Position, kept: list[Position], *, close: bool = True) -> LedgerId:
    """Write a compacted ledger of these entries as the job `compact` does: recorded as unreferenced, not in use."""
    writer = await topic.ledger.compacted.create(custom_of(TOPIC, horizon))
    output = CompactedOutput(writer)
    for position in kept:
        (found,) = await topic.ledger.read(position, 1)
        await output.add(encode(position, TOPIC.partition, found.data), position)
    if close:
        await output.finish()
    return writer.ledger_id


def test_the_ledger_of_a_job_replaces_the_former_one() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        first = await publish(topic, ("a", b"1"), ("b", b"1"), ("a", b"2"))
        made = await written_by_job(topic, first[2], first[1:])
        assert len(await received(topic)) == 3, "not in use yet"
        await topic.compaction.adopt(made, first[2], NO_LEDGER)
        assert await received(topic) == [("b", b"1"), ("a", b"2")]
        assert topic.compaction.stats.status == "SUCCESS" and not topic.compaction.running
        await topic.compaction.adopt(made, first[2], NO_LEDGER)
        assert topic.compaction.stats.successes == 1, "a repetition changes nothing"

        second = await publish(topic, ("b", b"2"))
        newer = await written_by_job(topic, second[0], [first[2], *second])
        await topic.compaction.adopt(newer, second[0], made)
        await asyncio.sleep(5)
        assert made not in world.bookies.ledgers and newer in world.bookies.ledgers
        assert await received(topic) == [("a", b"2"), ("b", b"2")]

    scenario(work)


def test_a_ledger_that_does_not_fit_the_topic_is_refused_and_nothing_changes() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        at = await publish(topic, ("a", b"1"), ("b", b"1"), ("a", b"2"))
        await compact(topic)
        current = topic.ledger.compacted.current
        assert current is not None
        at += await publish(topic, ("c", b"1"))
        adopt, former = topic.compaction.adopt, current.ledger_id
        good = await written_by_job(topic, at[3], at[1:])
        unclosed = await written_by_job(topic, at[3], at[1:], close=False)
        earlier = await written_by_job(topic, at[1], at[:2])
        longer = await topic.ledger.compacted.create(custom_of(TOPIC, at[2]))
        beyond = Position(at[3].ledger_id, at[3].entry_id + 1)
        for ledger_id, horizon, read, said in (
            (good, at[3], NO_LEDGER, "a newer compaction wins"),
            (good, at[3], former + 77, "a newer compaction wins"),
            (earlier, at[1], former, f"already compacted up to {at[2].ledger_id}:{at[2].entry_id}, beyond"),
            (good, beyond, former, "has no entry"),
            (good, Position(at[3].ledger_id + 50, 0), former, "has no entry"),
            (unclosed, at[3], former, "is OPEN"),
            (longer.ledger_id, at[3], former, "no compacted ledger of"),
            (LedgerId(at[0].ledger_id), at[3], former, "no compacted ledger of"),
            (LedgerId(987_654), at[3], former, "does not exist"),
        ):
            with pytest.raises(ConflictError, match=said):
                await adopt(ledger_id, horizon, read)
            assert topic.ledger.compacted.current == current and not topic.compaction.running
        await topic.ledger.compacted._context.deletions.delete_now(good)
        with pytest.raises(ConflictError, match="does not exist"):
            await adopt(good, at[3], former)
        assert await received(topic) == [("b", b"1"), ("a", b"2"), ("c", b"1")]

    scenario(work)


def test_a_ledger_that_ends_beyond_its_horizon_is_refused() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        at = await publish(topic, ("a", b"1"), ("b", b"1"))
        made = await written_by_job(topic, at[0], at)
        with pytest.raises(ConflictError, match="beyond its horizon"):
            await topic.compaction.adopt(made, at[0], NO_LEDGER)
        assert topic.ledger.compacted.current is None

    scenario(work)


def test_the_ledger_of_a_job_whose_deletion_began_is_refused() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        at = await publish(topic, ("a", b"1"))
        made = await written_by_job(topic, at[0], at)
        assert await topic.ledger.compacted._context.deletions._claim(made)
        with pytest.raises(ConflictError, match="has begun to delete"):
            await topic.compaction.adopt(made, at[0], NO_LEDGER)
        assert topic.ledger.compacted.current is None and len(await received(topic)) == 1

    scenario(work)


def test_the_broker_and_a_job_do_not_compact_at_once() -> None:
    async def work(world: World, broker: Broker, topic: Topic) -> None:
        at = await publish(topic, ("a", b"1"), ("a", b"2"))
        made = await written_by_job(topic, at[1], at[1:])
        topic.compaction.start()
        with pytest.raises(ConflictError, match="is being compacted"):
            await topic.compaction.adopt(made, at[1], NO_LEDGER)
        while topic.compaction.running:  # noqa: ASYNC110  virtual time
            await asyncio.sleep(0.1)
        at += await publish(topic, ("a", b"3"))
        current = topic.ledger.compacted.current
        assert current is not None
        newer = await written_by_job(topic, at[2], at[2:])
        adopting = asyncio.create_task(topic.compaction.adopt(newer, at[2], current.ledger_id))
        await asyncio.sleep(0)
        with pytest.raises(ConflictError, match="in progress"):
            topic.compaction.start()
        await adopting
        assert await received(topic) == [("a", b"3")]

    scenario(work)
