"""Subscriptions as sessions use them, on a topic in memory."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from quire_broker.compaction.compacted_cursor import CompactedCursor
from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.delivery import AckId, KeyShared
from quire_broker.errors import (
    ConsumerAssignError,
    ConsumerBusyError,
    NotAllowedError,
    ServiceNotReadyError,
    SubscriptionInUseError,
)
from quire_broker.managed_ledger.position import EARLIEST, LATEST, Position
from quire_broker.names import parse_topic
from quire_broker.topic.subscription import Subscription, SubscriptionSettings
from quire_broker.wire.entry import peek
from quire_broker.wire.kinds import AckKind, KeySharedMode, SubscriptionType
from tests.unit.broker.dispatch.doubles import (
    LEDGER,
    Clock,
    Link,
    MemoryCursor,
    MemoryLedger,
    NeverCompacted,
    settle,
    spec,
)

EXCLUSIVE, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED
FAILOVER, KEY_SHARED = SubscriptionType.FAILOVER, SubscriptionType.KEY_SHARED


class Bench:
    """One subscription with its surroundings."""

    def __init__(
        self, *, durable: bool = True, topic: str = "persistent://public/default/t", **settings: object
    ) -> None:
        self.ledger = MemoryLedger()
        self.cursor = MemoryCursor(self.ledger, durable=durable)
        self.clock = Clock()
        self.link = Link()
        settings = {"failover_delay_s": 0.0, **settings}
        chosen = SubscriptionSettings(**settings)  # type: ignore[arg-type]
        compacted = CompactedCursor(self.cursor, NeverCompacted())  # type: ignore[arg-type]
        self.sub = Subscription(parse_topic(topic), self.ledger, self.cursor, chosen, self.clock, compacted)  # type: ignore[arg-type]

    async def join(
        self, consumer_id: int = 0, kind: SubscriptionType = SHARED, permits: int = 0, **more: Any
    ) -> Consumer:
        consumer = await self.sub.add_consumer(spec(consumer_id, kind, **more), self.link)
        if permits:
            self.sub.flow(consumer, permits)
        await settle()
        return consumer

    def publish(self, count: int, **metadata: object) -> None:
        for number in range(count):
            self.ledger.publish(f"m{number}", **metadata)

    def ack(self, consumer: Consumer, *entries: int) -> None:
        self.sub.acknowledge(consumer, AckKind.INDIVIDUAL, [AckId(Position(LEDGER, entry)) for entry in entries])

    def ack_through(self, consumer: Consumer, entry: int) -> None:
        self.sub.acknowledge(consumer, AckKind.CUMULATIVE, [AckId(Position(LEDGER, entry))])

    def redeliver(self, consumer: Consumer, *entries: int, epoch: int | None = None) -> None:
        positions = [Position(LEDGER, entry) for entry in entries] or None
        self.sub.redeliver(consumer, positions, epoch)


@pytest.fixture
async def benches() -> AsyncIterator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for bench in made:
        await bench.sub.close()


@pytest.fixture
async def bench(benches: list[Bench]) -> Bench:
    benches.append(Bench())
    return benches[0]


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_no_more_messages_are_sent_than_permits_were_given(bench: Bench, kind: SubscriptionType) -> None:
    bench.publish(10, partition_key="k")
    consumer = await bench.join(0, kind, permits=3)
    assert bench.link.entries() == [0, 1, 2]
    bench.sub.flow(consumer, 2)
    await settle()
    assert bench.link.entries() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_later_entries_are_delivered_when_they_are_appended(bench: Bench, kind: SubscriptionType) -> None:
    await bench.join(0, kind, permits=100)
    bench.publish(2)
    await settle()
    bench.publish(1)
    await settle()
    assert bench.link.entries() == [0, 1, 2]


async def test_one_read_becomes_one_delivery_call(bench: Bench) -> None:
    bench.publish(50)
    await bench.join(0, EXCLUSIVE, permits=1000)
    assert len(bench.link.entries()) == 50
    assert bench.link.calls == 1


async def test_a_batch_may_overshoot_the_permits_but_only_once(bench: Bench) -> None:
    bench.publish(3, num_messages_in_batch=10)
    consumer = await bench.join(0, EXCLUSIVE, permits=5)
    assert bench.link.entries() == [0]
    assert consumer.permits == -5
    bench.sub.flow(consumer, 5)
    await settle()
    assert bench.link.entries() == [0]
    bench.sub.flow(consumer, 1)
    await settle()
    assert bench.link.entries() == [0, 1]


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
async def test_nothing_is_sent_to_a_client_that_does_not_read(bench: Bench, kind: SubscriptionType) -> None:
    bench.link.writable = False
    bench.publish(3)
    await bench.join(0, kind, permits=10)
    assert bench.link.entries() == []
    bench.link.drained()
    await settle()
    assert bench.link.entries() == [0, 1, 2]


async def test_an_idle_subscription_is_not_woken_by_appends_it_cannot_deliver(bench: Bench) -> None:
    bench.publish(1)
    await bench.join(0, SHARED, permits=1)
    reads = bench.ledger.reads
    for _ in range(20):
        bench.publish(1)
        await settle()
    assert bench.ledger.reads <= reads + 1


async def test_markers_are_acknowledged_by_the_broker_and_never_delivered(bench: Bench) -> None:
    bench.publish(1)
    bench.publish(1, marker_type=21)
    bench.publish(1)
    consumer = await bench.join(0, SHARED, permits=10)
    assert bench.link.entries() == [0, 2]
    bench.ack(consumer, 0, 2)
    assert bench.cursor.backlog == 0


async def test_an_entry_without_readable_metadata_does_not_stop_the_subscription(bench: Bench) -> None:
    bench.ledger.entries.append(b"\x00\x00\x00\x05nonsense")
    bench.publish(1)
    await bench.join(0, EXCLUSIVE, permits=10)
    assert bench.link.entries() == [1]
    assert bench.cursor.mark_delete == (LEDGER, 0)


# joining


async def test_a_second_exclusive_consumer_is_refused_while_the_first_answers(bench: Bench) -> None:
    await bench.join(0, EXCLUSIVE)
    with pytest.raises(ConsumerBusyError, match="Exclusive consumer is already connected"):
        await bench.join(1, EXCLUSIVE)


async def test_an_exclusive_consumer_that_does_not_answer_is_replaced(bench: Bench) -> None:
    first = await bench.join(0, EXCLUSIVE, permits=10)
    bench.link.is_alive = False
    await bench.join(1, EXCLUSIVE, permits=10)
    await bench.sub.remove_consumer(first)  # its session notices this later
    bench.publish(1)
    await settle()
    assert bench.link.entries(1) == [0]
    assert bench.link.entries(0) == []


async def test_another_type_is_refused_with_the_error_text_of_pulsar(bench: Bench) -> None:
    await bench.join(0, EXCLUSIVE)
    with pytest.raises(ConsumerBusyError) as caught:
        await bench.join(1, SHARED)
    assert str(caught.value) == (
        "Subscription is of different type. Active subscription type of 'Exclusive' is different than the connecting "
        "consumer's type 'Shared'."
    )


async def test_the_type_may_change_when_no_consumer_is_connected(bench: Bench) -> None:
    bench.publish(4)
    first = await bench.join(0, SHARED, permits=2)
    await bench.sub.remove_consumer(first)
    await bench.join(1, EXCLUSIVE, permits=10)
    assert bench.link.entries(1) == [0, 1, 2, 3]
    assert bench.sub.type_name == "Exclusive"


async def test_a_read_in_flight_of_the_old_type_loses_nothing_for_the_new_one(bench: Bench) -> None:
    bench.publish(4)
    bench.ledger.pause = asyncio.Event()
    first = await bench.join(0, SHARED, permits=10)
    await bench.sub.remove_consumer(first)
    await bench.join(1, EXCLUSIVE, permits=10)
    bench.ledger.pause.set()
    await settle()
    assert bench.link.entries(1) == [0, 1, 2, 3]
    assert bench.link.entries(0) == []


async def test_compacted_reading_needs_one_consumer_at_a_time(bench: Bench) -> None:
    with pytest.raises(NotAllowedError):
        await bench.join(0, SHARED, read_compacted=True)
    await bench.join(0, FAILOVER, read_compacted=True)


async def test_sticky_ranges_must_not_overlap_and_modes_must_agree(bench: Bench) -> None:
    sticky = KeySharedMode.STICKY
    await bench.join(0, KEY_SHARED, key_shared=KeyShared(sticky, ((0, 32767),)))
    await bench.join(1, KEY_SHARED, key_shared=KeyShared(sticky, ((32768, 65535),)))
    with pytest.raises(ConsumerAssignError, match="Range conflict with consumer"):
        await bench.join(2, KEY_SHARED, key_shared=KeyShared(sticky, ((1000, 2000),)))
    with pytest.raises(ConsumerBusyError, match="key_shared mode of 'STICKY'"):
        await bench.join(3, KEY_SHARED)
    with pytest.raises(ConsumerAssignError):
        await bench.join(4, KEY_SHARED, key_shared=KeyShared(sticky, ((5, 1),)))


# acknowledging


async def test_acks_beyond_the_end_are_ignored_and_the_rest_of_the_list_counts(bench: Bench) -> None:
    bench.publish(2)
    consumer = await bench.join(0, EXCLUSIVE, permits=10)
    bench.ack(consumer, 0, 99, 1)
    assert bench.cursor.backlog == 0


async def test_a_cumulative_ack_counts_on_exclusive_and_is_ignored_on_shared(benches: list[Bench]) -> None:
    for kind, backlog in ((EXCLUSIVE, 1), (SHARED, 3), (KEY_SHARED, 3)):
        bench = Bench()
        benches.append(bench)
        bench.publish(3)
        consumer = await bench.join(0, kind, permits=10)
        bench.ack_through(consumer, 1)
        assert bench.cursor.backlog == backlog


async def test_acks_inside_a_batch_are_joined_as_in_the_capture(benches: list[Bench]) -> None:
    bench = Bench(batch_index_acks=True)
    benches.append(bench)
    bench.publish(1, num_messages_in_batch=5)
    consumer = await bench.join(0, SHARED, permits=10)
    position = Position(LEDGER, 0)
    bench.sub.acknowledge(consumer, AckKind.INDIVIDUAL, [AckId(position, (0b10010,), 5)])
    assert (consumer.unacked, bench.cursor.backlog) == (2, 1)
    bench.redeliver(consumer, 0)
    await settle()
    again = bench.link.deliveries[-1][1]
    assert (again.redelivery_count, list(again.ack_set or ())) == (1, [0b10010])
    assert consumer.permits == 10 - 5 - 2
    twice = AckId(position, (0b01101,), 5)
    bench.sub.acknowledge(consumer, AckKind.INDIVIDUAL, [twice, twice])
    assert (consumer.unacked, bench.cursor.backlog) == (0, 0)


async def test_acks_inside_a_batch_are_ignored_if_they_are_disabled(bench: Bench) -> None:
    bench.publish(1, num_messages_in_batch=2)
    consumer = await bench.join(0, SHARED, permits=10)
    bench.sub.acknowledge(consumer, AckKind.INDIVIDUAL, [AckId(Position(LEDGER, 0), (0b10,), 2)])
    bench.sub.acknowledge(consumer, AckKind.INDIVIDUAL, [AckId(Position(LEDGER, 0), (0b01,), 2)])
    assert bench.cursor.backlog == 1


async def test_another_consumer_of_a_shared_subscription_may_acknowledge(bench: Bench) -> None:
    bench.publish(1)
    first = await bench.join(0, SHARED, permits=10)
    second = await bench.join(1, SHARED)
    bench.ack(second, 0)
    assert (first.unacked, len(first.pending), bench.cursor.backlog) == (0, 0, 0)


# redelivery


async def test_negatively_acknowledged_entries_are_redelivered_with_their_count_as_captured(bench: Bench) -> None:
    bench.publish(5)
    consumer = await bench.join(0, SHARED, permits=1000)
    bench.ack(consumer, 0, 2, 4)
    bench.redeliver(consumer, 1, 3)
    await settle()
    assert [(d.position.entry_id, d.redelivery_count) for _, d in bench.link.deliveries[5:]] == [(1, 1), (3, 1)]
    bench.redeliver(consumer)
    await settle()
    assert [(d.position.entry_id, d.redelivery_count) for _, d in bench.link.deliveries[7:]] == [(1, 2), (3, 2)]


async def test_only_what_the_consumer_holds_is_redelivered(bench: Bench) -> None:
    bench.publish(2)
    consumer = await bench.join(0, SHARED, permits=1000)
    bench.ack(consumer, 0)
    bench.redeliver(consumer, 0, 77)
    await settle()
    assert bench.link.entries() == [0, 1]


async def test_a_disconnect_hands_over_without_raising_counts(bench: Bench) -> None:
    bench.publish(2)
    first = await bench.join(0, SHARED, permits=2)
    await bench.join(1, SHARED, permits=10)
    await bench.sub.remove_consumer(first)
    await settle()
    assert [(d.position.entry_id, d.redelivery_count) for who, d in bench.link.deliveries if who == 1] == [
        (0, 0),
        (1, 0),
    ]


async def test_exclusive_starts_over_behind_the_mark_delete_with_the_new_epoch(bench: Bench) -> None:
    bench.publish(3)
    consumer = await bench.join(0, EXCLUSIVE, permits=1000, epoch=0)
    bench.redeliver(consumer, epoch=1)
    await settle()
    bench.redeliver(consumer, epoch=1)  # overtaken
    await settle()
    sent = [(d.position.entry_id, d.consumer_epoch, d.redelivery_count) for _, d in bench.link.deliveries]
    assert sent == [(0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 1, 0), (1, 1, 0), (2, 1, 0)]


async def test_shared_deliveries_carry_no_epoch(bench: Bench) -> None:
    bench.publish(1)
    await bench.join(0, SHARED, permits=1, epoch=3)
    assert bench.link.deliveries[0][1].consumer_epoch is None


async def test_a_consumer_at_its_limit_waits_until_half_is_acknowledged(benches: list[Bench]) -> None:
    bench = Bench(unacked_per_consumer_max=4)
    benches.append(bench)
    bench.publish(10)
    consumer = await bench.join(0, SHARED, permits=100)
    assert bench.link.entries() == [0, 1, 2, 3]
    bench.ack(consumer, 0, 1)
    await settle()
    assert len(bench.link.entries()) == 4
    bench.ack(consumer, 2)
    await settle()
    assert len(bench.link.entries()) == 7


async def test_a_subscription_at_its_limit_waits_until_half_is_acknowledged(benches: list[Bench]) -> None:
    bench = Bench(unacked_per_subscription_max=4)
    benches.append(bench)
    bench.publish(10)
    first = await bench.join(0, SHARED, permits=3)
    await bench.join(1, SHARED, permits=3)
    assert len(bench.link.entries()) == 4
    bench.ack(first, 0, 1, 2)
    await settle()
    assert len(bench.link.entries()) == 6


# failover


async def test_failover_notifies_consumers_as_captured(benches: list[Bench]) -> None:
    bench = Bench(topic="persistent://public/default/g-sub-failover")
    benches.append(bench)
    first = await bench.join(0, FAILOVER, permits=5, name="c1")
    assert bench.link.take() == [("active", 0, True)]
    await bench.join(1, FAILOVER, permits=5, name="c2")
    assert bench.link.take() == [("active", 1, False)]
    bench.publish(2)
    await settle()
    bench.ack(first, 0)
    await bench.sub.remove_consumer(first)
    await settle()
    told = bench.link.take()
    assert told == [("message", 0, 0), ("message", 0, 1), ("active", 1, True), ("message", 1, 1)]


async def test_failover_delivers_nothing_before_its_delay_has_passed(benches: list[Bench]) -> None:
    bench = Bench(failover_delay_s=0.02)
    benches.append(bench)
    bench.publish(1)
    await bench.join(0, FAILOVER, permits=5)
    assert bench.link.take() == []
    served = asyncio.Event()
    bench.link.active_changed = lambda *_: served.set()  # type: ignore[method-assign]
    await asyncio.wait_for(served.wait(), 5)
    await settle()
    assert bench.link.entries() == [0]


# seeking and the end


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_a_seek_closes_the_consumers_first_and_starts_with_the_given_entry(
    bench: Bench, kind: SubscriptionType
) -> None:
    bench.publish(5)
    consumer = await bench.join(0, kind, permits=10)
    bench.ack(consumer, 0, 1, 2, 3, 4)
    bench.link.take()
    await bench.sub.seek_position(Position(LEDGER, 2))
    assert bench.link.take() == [("close", 0, None)]
    await bench.join(0, kind, permits=10)
    assert [entry for what, _, entry in bench.link.take() if what == "message"] == [2, 3, 4]


async def test_a_seek_by_time_finds_the_first_entry_published_since(bench: Bench) -> None:
    bench.publish(5)
    await bench.sub.seek_time(peek(bench.ledger.entries[3]).publish_time_ms)
    await bench.join(0, EXCLUSIVE, permits=10)
    assert bench.link.entries() == [3, 4]


async def test_a_seek_beyond_all_times_goes_to_the_end_and_to_latest_as_well(bench: Bench) -> None:
    bench.publish(5)
    await bench.sub.seek_time(10**12)
    assert bench.cursor.backlog == 0
    await bench.sub.seek_position(EARLIEST)
    assert bench.cursor.backlog == 5
    await bench.sub.seek_position(LATEST)
    assert bench.cursor.backlog == 0


async def test_entries_read_before_a_seek_are_never_delivered_after_it(bench: Bench) -> None:
    bench.publish(5)
    bench.ledger.pause = asyncio.Event()
    await bench.join(0, SHARED, permits=10)
    seeking = asyncio.get_running_loop().create_task(bench.sub.seek_position(Position(LEDGER, 4)))
    await settle()
    with pytest.raises(ServiceNotReadyError):
        await bench.sub.add_consumer(spec(1), bench.link)
    bench.ledger.pause.set()
    await seeking
    await bench.join(0, SHARED, permits=10)
    assert bench.link.entries() == [4]


async def test_a_rollback_starts_the_given_seconds_ago(bench: Bench) -> None:
    bench.clock.now = 10_000
    for publish_time in (1_000, 6_000, 9_000):
        bench.publish(1, publish_time=publish_time)
    await bench.join(0, EXCLUSIVE, permits=10, rollback_s=5)
    assert bench.link.entries() == [1, 2]


async def test_the_end_of_a_terminated_topic_is_notified_once_after_the_last_ack(bench: Bench) -> None:
    bench.publish(2)
    consumer = await bench.join(0, EXCLUSIVE, permits=10)
    bench.sub.topic_terminated()
    bench.ack(consumer, 0)
    assert ("end", 0, None) not in bench.link.told
    bench.ack(consumer, 1)
    bench.ack(consumer, 1)
    assert bench.link.told.count(("end", 0, None)) == 1


async def test_unsubscribe_is_refused_while_others_are_attached(bench: Bench) -> None:
    first = await bench.join(0, SHARED)
    second = await bench.join(1, SHARED)
    with pytest.raises(SubscriptionInUseError, match="Unconnected or shared consumer attempting to unsubscribe"):
        await bench.sub.unsubscribe(first)
    await bench.sub.remove_consumer(second)
    await bench.sub.unsubscribe(first)
    assert bench.ledger.cursors == {}
    with pytest.raises(ServiceNotReadyError):
        await bench.sub.add_consumer(spec(2), bench.link)


async def test_closing_disconnects_all_consumers_and_keeps_a_durable_cursor(bench: Bench) -> None:
    await bench.join(0, SHARED)
    await bench.sub.close()
    assert bench.link.take() == [("close", 0, None)]
    assert not bench.cursor.closed
    assert bench.ledger.listeners == []


async def test_skipping_releases_the_entries_from_their_holders(bench: Bench) -> None:
    bench.publish(6)
    consumer = await bench.join(0, SHARED, permits=3)
    bench.ack(consumer, 0)
    await bench.sub.skip(3)
    assert bench.cursor.mark_delete == (LEDGER, 3)
    assert consumer.unacked == 0
    bench.sub.flow(consumer, 10)
    await settle()
    assert bench.link.entries() == [0, 1, 2, 4, 5]
    await bench.sub.skip_all()
    assert bench.cursor.backlog == 0


async def test_a_failed_read_is_tried_again(benches: list[Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(read_retry_first_s=0.0)
    benches.append(bench)
    read, failures = bench.cursor.read, [OSError("away")]

    async def failing(entries_max: int, bytes_max: int) -> object:
        if failures:
            raise failures.pop()
        return await read(entries_max, bytes_max)

    monkeypatch.setattr(bench.cursor, "read", failing)
    bench.publish(1)
    await bench.join(0, EXCLUSIVE, permits=1)
    assert bench.link.entries() == [0]
    assert bench.sub.stats.read_failures == 1
