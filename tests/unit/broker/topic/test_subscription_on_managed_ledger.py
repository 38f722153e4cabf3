"""Subscriptions on real managed ledgers and cursors, in virtual time: rollovers, crashes, seeks, readers."""

import asyncio
from typing import Any

import pytest

from quire_broker.compaction.compacted_cursor import CompactedCursor
from quire_broker.dispatch.delivery import AckId
from quire_broker.dispatch.limit import DispatchLimit
from quire_broker.managed_ledger import EARLIEST, LATEST, ManagedLedger, Position
from quire_broker.managed_ledger.cursors.cursor import Cursor
from quire_broker.names import parse_topic
from quire_broker.topic.resource_groups import GroupLimits
from quire_broker.topic.subscription import Consumer, Subscription, SubscriptionSettings
from quire_broker.wire.entry import peek, seal
from quire_broker.wire.kinds import AckKind, SubscriptionType
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata
from tests.unit.broker.dispatch.doubles import Link, NeverCompacted, spec
from tests.unit.broker.managed_ledger.world import Process, VirtualClock, World, append, run

ENTRIES_PER_LEDGER = 7


def _message(number: int) -> bytes:
    key = f"k{number % 5}"
    fields = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1000 + number, partition_key=key)
    return seal(fields, b"payload")


async def _publish(ledger: ManagedLedger, first: int, count: int) -> None:
    for number in range(first, first + count):
        await append(ledger, _message(number))


async def _subscribe(process: Process, ledger: ManagedLedger, **settings: Any) -> Subscription:
    async def work() -> Subscription:
        cursor = await ledger.open_cursor("sub", EARLIEST)
        return _on(ledger, cursor, **settings)

    made: Subscription = await process.run(work())
    return made


def _on(ledger: ManagedLedger, cursor: Cursor, **settings: Any) -> Subscription:
    topic = parse_topic("persistent://public/default/topic")
    compacted = CompactedCursor(cursor, NeverCompacted())
    return Subscription(topic, ledger, cursor, SubscriptionSettings(**settings), VirtualClock(), compacted)


async def _join(
    process: Process, sub: Subscription, link: Link, number: int, kind: SubscriptionType, permits: int = 1000
) -> Consumer:
    consumer: Consumer = await process.run(sub.add_consumer(spec(number, kind), link))
    sub.flow(consumer, permits)
    await asyncio.sleep(5)
    return consumer


def _numbers(link: Link, consumer_id: int | None = None) -> list[int]:
    return [peek(d.data).sequence_id for who, d in link.deliveries if consumer_id in (None, who)]


def _ack(sub: Subscription, consumer: Consumer, *positions: Position) -> None:
    sub.acknowledge(consumer, AckKind.INDIVIDUAL, [AckId(position) for position in positions])


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_every_entry_of_many_ledgers_is_delivered_and_acknowledged(kind: SubscriptionType) -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        sub = await _subscribe(process, ledger)
        await _publish(ledger, 0, 20)
        link = Link()
        consumer = await _join(process, sub, link, 0, kind)
        await _publish(ledger, 20, 20)
        await asyncio.sleep(1)
        assert _numbers(link) == list(range(40))
        positions = [delivery.position for _, delivery in link.deliveries]
        assert len({position.ledger_id for position in positions}) > 3
        _ack(sub, consumer, *reversed(positions))
        assert sub.cursor.backlog == 0
        assert sub.cursor.mark_delete == ledger.last_confirmed
        await sub.close()

    run(scenario, ledger_entries_max=ENTRIES_PER_LEDGER)


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_replays_cross_ledgers(kind: SubscriptionType) -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        sub = await _subscribe(process, ledger)
        await _publish(ledger, 0, 30)
        link = Link()
        first = await _join(process, sub, link, 0, kind)
        positions = [delivery.position for _, delivery in link.deliveries]
        _ack(sub, first, *positions[::3])
        sub.redeliver(first, positions, None)
        await asyncio.sleep(1)
        left = [number for number in range(30) if number % 3]
        assert _numbers(link)[30:] == left
        assert {d.redelivery_count for _, d in link.deliveries[30:]} == {1}
        second = await _join(process, sub, link, 1, kind)
        await process.run(sub.remove_consumer(first))
        await asyncio.sleep(1)
        assert _numbers(link, 1) == left
        _ack(sub, second, *positions)
        assert sub.cursor.backlog == 0
        await sub.close()

    run(scenario, ledger_entries_max=ENTRIES_PER_LEDGER)


def test_after_a_crash_unacknowledged_entries_are_delivered_again_uncounted() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        sub = await _subscribe(process, ledger)
        await _publish(ledger, 0, 20)
        link = Link()
        consumer = await _join(process, sub, link, 0, SubscriptionType.SHARED)
        positions = [delivery.position for _, delivery in link.deliveries]
        _ack(sub, consumer, *positions[:5], positions[9])
        sub.redeliver(consumer, positions[10:11], None)
        await asyncio.sleep(5)
        process.kill()
        process = world.process()
        sub = await _subscribe(process, await process.open())
        link = Link()
        await _join(process, sub, link, 0, SubscriptionType.SHARED)
        assert _numbers(link) == [n for n in range(5, 20) if n != 9]
        assert {delivery.redelivery_count for _, delivery in link.deliveries} == {0}
        await sub.close()

    run(scenario, ledger_entries_max=ENTRIES_PER_LEDGER)


def test_seeks_by_id_and_time_work_across_ledgers() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        sub = await _subscribe(process, ledger)
        await _publish(ledger, 0, 20)
        link = Link()
        consumer = await _join(process, sub, link, 0, SubscriptionType.EXCLUSIVE)
        positions = [delivery.position for _, delivery in link.deliveries]
        sub.acknowledge(consumer, AckKind.CUMULATIVE, [AckId(positions[3])])  # its ledger stays: nothing is trimmed
        for seek, expected in (
            (sub.seek_position(positions[6]), list(range(6, 20))),
            (sub.seek_time(1000 + 13), list(range(13, 20))),
            (sub.seek_position(EARLIEST), list(range(20))),
            (sub.seek_position(LATEST), []),
            (sub.seek_time(10**6), []),
        ):
            await process.run(seek)
            link = Link()
            await _join(process, sub, link, 0, SubscriptionType.EXCLUSIVE)
            assert _numbers(link) == expected
        await sub.close()

    run(scenario, ledger_entries_max=ENTRIES_PER_LEDGER)


def test_a_reader_starts_with_the_given_entry_and_leaves_nothing_behind() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await _publish(ledger, 0, 5)
        start = ledger.previous_position(ledger.last_confirmed)

        async def work() -> Subscription:
            return _on(ledger, ledger.open_reader_cursor("reader-1", start))

        sub: Subscription = await process.run(work())
        link = Link()
        await _join(process, sub, link, 0, SubscriptionType.EXCLUSIVE)
        assert _numbers(link) == [3, 4]
        await sub.close()
        assert "reader-1" not in ledger.cursors

    run(scenario)


def test_a_failover_switch_takes_its_delay() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        sub = await _subscribe(process, ledger)
        await _publish(ledger, 0, 1)
        link = Link()
        consumer: Consumer = await process.run(sub.add_consumer(spec(0, SubscriptionType.FAILOVER), link))
        sub.flow(consumer, 10)
        await asyncio.sleep(0.9)
        assert link.told == []
        await asyncio.sleep(0.2)
        assert link.told == [("active", 0, True), ("message", 0, ledger.last_confirmed.entry_id)]
        await sub.close()

    run(scenario)


def test_a_terminated_topic_notifies_later_consumers_of_its_end_too() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        await _publish(ledger, 0, 1)
        await process.run(ledger.terminate())
        sub = await _subscribe(process, ledger)
        link = Link()
        consumer = await _join(process, sub, link, 0, SubscriptionType.EXCLUSIVE)
        assert [what for what, _, _ in link.told] == ["message"]
        _ack(sub, consumer, link.deliveries[0][1].position)
        assert [what for what, _, _ in link.told] == ["message", "end"]
        await sub.close()

    run(scenario)


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 14, 29, 30])
def test_entries_older_than_the_time_to_live_are_acknowledged_and_no_later_ones(kept: int) -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        sub = await _subscribe(process, ledger)
        await _publish(ledger, 0, 30)
        await process.run(sub.expire(1000 + kept))
        assert sub.cursor.backlog == 30 - kept
        await process.run(sub.expire(0))
        assert sub.cursor.backlog == 30 - kept, "nothing comes back"
        link = Link()
        await _join(process, sub, link, 0, SubscriptionType.SHARED)
        assert _numbers(link) == list(range(kept, 30))
        await sub.close()

    run(scenario, ledger_entries_max=ENTRIES_PER_LEDGER)


def _published(*times_ms: int) -> list[bytes]:
    fields = [MessageMetadata(producer_name="p", sequence_id=n, publish_time=t) for n, t in enumerate(times_ms)]
    return [seal(one, b"payload") for one in fields]


@pytest.mark.parametrize(
    ("times_ms", "left"),
    [
        # A producer whose clock is wrong: a binary search would find its messages and skip the others.
        ([10, 900, 900, 10, 10, 10, 10, 900], 7),
        ([900, 10, 10, 10, 10, 10, 10, 10], 8),
        ([10, 10, 10, 10, 900], 1),
    ],
)
def test_a_message_that_is_young_is_never_expired_because_later_ones_are_old(times_ms: list[int], left: int) -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        sub = await _subscribe(process, ledger)
        for message in _published(*times_ms):
            await append(ledger, message)
        await process.run(sub.expire(500))
        assert sub.cursor.backlog == left
        await sub.close()

    run(scenario)


def test_a_message_that_stays_is_not_read_again_until_it_expires() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        sub = await _subscribe(process, ledger)
        for message in _published(10, 900, 950):
            await append(ledger, message)
        await asyncio.sleep(60)  # no longer cached
        await process.run(sub.expire(500))
        reads = world.bookies.reads
        for before_ms in (500, 600, 900):
            await process.run(sub.expire(before_ms))
        assert (sub.cursor.backlog, world.bookies.reads) == (2, reads)
        await process.run(sub.expire(901))
        assert sub.cursor.backlog == 1
        await process.run(sub.seek_position(EARLIEST))
        await process.run(sub.expire(901))
        assert sub.cursor.backlog == 1
        await sub.close()

    run(scenario)


def test_an_acknowledged_young_message_does_not_keep_later_ones() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        sub = await _subscribe(process, ledger)
        for message in _published(10, 900, 10, 900):
            await append(ledger, message)
        link = Link()
        consumer = await _join(process, sub, link, 0, SubscriptionType.SHARED)
        _ack(sub, consumer, link.deliveries[1][1].position)
        await process.run(sub.expire(500))
        assert sub.cursor.backlog == 1
        await sub.close()

    run(scenario)


def test_entries_stored_long_ago_expire_even_with_a_publish_time_in_the_future() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        sub = await _subscribe(process, ledger)
        far = VirtualClock().now_ms() * 2
        for message in _published(far, 10, far, far):
            await append(ledger, message)
        closed = [record for record in ledger.ledgers if record.closed_ms]
        assert closed
        await process.run(sub.expire(closed[-1].closed_ms))
        before = sub.cursor.backlog
        await process.run(sub.expire(closed[-1].closed_ms + 1))
        assert (before, sub.cursor.backlog) == (4, 4 - sum(record.entries for record in closed))
        await sub.close()

    run(scenario, ledger_entries_max=3)


def test_a_peek_returns_what_is_not_acknowledged_and_changes_nothing() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        sub = await _subscribe(process, ledger)
        await _publish(ledger, 0, 20)
        link = Link()
        consumer = await _join(process, sub, link, 0, SubscriptionType.SHARED)
        taken = {0, 1, 2, 4, 5, 6, 7, 9, 13, 14}
        _ack(sub, consumer, *(delivery.position for _, delivery in link.deliveries if _number(delivery.data) in taken))

        async def peeked(entries_max: int, bytes_max: int = 1 << 20) -> list[int]:
            found = await process.run(sub.peek(entries_max, bytes_max))
            return [_number(entry.data) for entry in found]

        left = [number for number in range(20) if number not in taken]
        backlog, unacked = sub.cursor.backlog, consumer.unacked
        for count in (1, 2, 3, 9, 10, 11, 1000):
            assert await peeked(count) == left[:count], "across ledgers"
        assert await peeked(1000, 1) == left[:1], "at least one entry"
        assert (sub.cursor.backlog, consumer.unacked) == (backlog, unacked)
        await process.run(sub.skip_all())
        assert await peeked(5) == []
        await sub.close()

    run(scenario, ledger_entries_max=ENTRIES_PER_LEDGER)


def _number(data: object) -> int:
    return peek(data).sequence_id  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
@pytest.mark.parametrize("pauses", [True, False])
def test_nothing_new_is_read_while_further_acks_could_not_be_saved(kind: SubscriptionType, *, pauses: bool) -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        sub = await _subscribe(process, ledger, pause_on_acks=pauses)
        await _publish(ledger, 0, 20)
        link = Link()
        consumer = await _join(process, sub, link, 0, kind, permits=8)
        positions = [delivery.position for _, delivery in link.deliveries]
        _ack(sub, consumer, positions[1], positions[3], positions[5])
        sub.flow(consumer, 4)
        await asyncio.sleep(5)
        assert _numbers(link) == list(range(8 if pauses else 12))
        await process.run(sub.remove_consumer(consumer))
        again = await _join(process, sub, link, 1, kind, permits=5)
        assert _numbers(link, 1) == [0, 2, 4, 6, 7], "entries between acknowledged ones are always read"
        sub.flow(again, 10)
        await asyncio.sleep(5)
        assert len(_numbers(link, 1)) == 5 if pauses else 15
        _ack(sub, again, positions[0], positions[2])
        await asyncio.sleep(5)
        assert _numbers(link, 1)[5:] == list(range(8, 18)), "acks that close gaps let it go on"
        await sub.close()

    run(scenario, unacked_ranges_max=3)


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_at_the_tail_nothing_new_is_delivered_while_further_acks_could_not_be_saved(kind: SubscriptionType) -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        sub, link = await _subscribe(process, ledger, pause_on_acks=True), Link()
        consumer = await _join(process, sub, link, 0, kind)
        await _publish(ledger, 0, 8)
        await asyncio.sleep(1)
        positions = [delivery.position for _, delivery in link.deliveries]
        assert _numbers(link) == list(range(8))
        _ack(sub, consumer, positions[1], positions[3], positions[5])
        await _publish(ledger, 8, 8)
        await asyncio.sleep(5)
        assert _numbers(link) == list(range(8))
        _ack(sub, consumer, positions[0], positions[2])
        await asyncio.sleep(5)
        assert _numbers(link) == list(range(16))
        await sub.close()

    run(scenario, unacked_ranges_max=3)


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_at_the_tail_a_resource_group_limits_delivery(kind: SubscriptionType) -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        ledger = await process.open()
        sub, link, group = await _subscribe(process, ledger), Link(), GroupLimits()
        await _join(process, sub, link, 0, kind)
        sub.share_limits((DispatchLimit(), DispatchLimit(), group.dispatch))
        await _publish(ledger, 0, 8)
        await asyncio.sleep(1)
        assert _numbers(link) == list(range(8)), "it has no rate yet"
        group.use((0, 0, 2, 0))
        for first in range(8, 48, 8):
            await _publish(ledger, first, 8)
            await asyncio.sleep(2)
        assert 8 + 10 <= len(_numbers(link)) <= 8 + 2 * (10 + 2)
        await asyncio.sleep(20)
        assert _numbers(link) == list(range(48))
        await sub.close()

    run(scenario)
