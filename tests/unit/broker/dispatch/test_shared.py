"""Shared and Key_Shared in detail, on a topic in memory."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.delivery import Delivery, KeyShared
from quire_broker.dispatch.key_shared import KeySharedDispatcher
from quire_broker.dispatch.shared import SharedDispatcher
from quire_broker.managed_ledger.position import Position
from quire_broker.settings.dispatch import DispatchSettings
from quire_broker.wire.kinds import KeySharedMode
from tests.sim.loop import SimLoop, simulate
from tests.unit.broker.dispatch.doubles import LEDGER, Clock, Link, MemoryCursor, MemoryLedger, consumer, settle


class Stage:
    """A topic in memory with a running dispatcher under test."""

    def __init__(self) -> None:
        self.ledger = MemoryLedger()
        self.cursor = MemoryCursor(self.ledger)
        self.clock = Clock()
        self.link = Link()
        self.dispatcher: SharedDispatcher
        self.running: list[asyncio.Task[None]] = []

    def start(self, key_shared: KeyShared | None = None, **settings: int) -> SharedDispatcher:
        chosen = DispatchSettings(**settings)  # type: ignore[arg-type]
        if key_shared is None:
            self.dispatcher = SharedDispatcher(self.cursor, self.ledger, chosen, self.clock)
        else:
            self.dispatcher = KeySharedDispatcher(self.cursor, self.ledger, chosen, self.clock, key_shared)
        self.ledger.on_append(self.dispatcher.appended)
        self.running.append(asyncio.get_running_loop().create_task(self.dispatcher.run()))
        return self.dispatcher

    async def join(self, number: int, permits: int, link: Link | None = None, **more: object) -> Consumer:
        member = consumer(number, link or self.link, permits, **more)
        self.dispatcher.add(member)
        await settle()
        return member

    def ack(self, member: Consumer, *entries: int) -> None:
        positions = [Position(LEDGER, entry) for entry in entries]
        self.cursor.acknowledge(positions)
        self.dispatcher.acknowledged(member, positions)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    made.dispatcher.close()
    for task in made.running:
        task.cancel()
    await asyncio.gather(*made.running, return_exceptions=True)


def publish(stage: Stage, count: int, **metadata: Any) -> None:
    for _ in range(count):
        stage.ledger.publish(**metadata)


async def test_turns_are_of_twenty_messages(stage: Stage) -> None:
    stage.start()
    for number in range(3):
        await stage.join(number, 100)
    publish(stage, 60)
    await settle()
    assert [len(stage.link.entries(number)) for number in range(3)] == [20, 20, 20]
    assert stage.link.entries(0) == list(range(20))
    assert stage.link.calls == 3


async def test_a_subscription_at_the_tail_reads_once_for_each_append(stage: Stage) -> None:
    dispatcher = stage.start()
    await stage.join(0, 100)
    before = dispatcher.stats.reads
    for number in range(3):
        publish(stage, 1)
        await settle()
        assert stage.link.entries(0) == list(range(number + 1))
    assert dispatcher.at_tail
    assert dispatcher.stats.reads == before + 3, "no read finds that nothing is left"


async def test_lower_priority_gets_entries_only_when_the_best_have_no_permits(stage: Stage) -> None:
    stage.start()
    await stage.join(1, 100, priority_level=1)
    await stage.join(0, 5, priority_level=0)
    publish(stage, 8)
    await settle()
    assert stage.link.entries(0) == [0, 1, 2, 3, 4]
    assert stage.link.entries(1) == [5, 6, 7]


async def test_all_chunks_of_a_message_go_to_one_consumer(stage: Stage) -> None:
    stage.start(round_robin_messages=1)
    await stage.join(0, 100)
    await stage.join(1, 100)
    for chunk in range(3):
        for uuid in ("a", "b"):
            publish(stage, 1, uuid=uuid, chunk_id=chunk, num_chunks_from_msg=3, total_chunk_msg_size=9)
    await settle()
    assert sorted([stage.link.entries(0), stage.link.entries(1)]) == [[0, 2, 4], [1, 3, 5]]


async def test_chunks_wait_for_their_consumer_in_order(stage: Stage) -> None:
    stage.start()
    first = await stage.join(0, 1)
    publish(stage, 1, uuid="a", chunk_id=0, num_chunks_from_msg=3)
    await settle()
    await stage.join(1, 100)
    for chunk in (1, 2):
        publish(stage, 1, uuid="a", chunk_id=chunk, num_chunks_from_msg=3)
    publish(stage, 1)
    await settle()
    assert (stage.link.entries(0), stage.link.entries(1)) == ([0], [3])
    first.flow(10)
    stage.dispatcher.wake()
    await settle()
    assert stage.link.entries(0) == [0, 1, 2]


async def test_delayed_entries_wait_and_others_overtake_them(stage: Stage) -> None:
    stage.start()
    member = await stage.join(0, 100)
    publish(stage, 1, deliver_at_time=stage.clock.now + 20)
    publish(stage, 1)
    await settle()
    assert stage.link.entries() == [1]
    stage.clock.now += 19
    stage.dispatcher.wake()
    await settle()
    assert stage.link.entries() == [1], "not a millisecond early"
    stage.clock.now += 17
    stage.dispatcher.wake()
    await settle()
    assert stage.link.entries() == [1, 0]
    stage.ack(member, 0, 1)
    assert stage.cursor.backlog == 0


async def test_delayed_entries_that_are_acknowledged_or_skipped_meanwhile_are_not_delivered(stage: Stage) -> None:
    stage.start()
    member = await stage.join(0, 100)
    publish(stage, 5, deliver_at_time=stage.clock.now + 20)
    await settle()
    stage.ack(member, 3)
    stage.cursor.acknowledge([Position(LEDGER, entry) for entry in (0, 1)])
    stage.dispatcher.acknowledged_through(Position(LEDGER, 1))
    stage.clock.now += 40
    stage.dispatcher.wake()
    await settle()
    assert stage.link.entries() == [2, 4]


async def test_expired_delayed_entries_do_not_stop_the_reading(stage: Stage) -> None:
    stage.start(delayed_entries_max=5)
    await stage.join(0, 100)
    publish(stage, 5, deliver_at_time=stage.clock.now + 3_600_000)
    await settle()
    publish(stage, 1)
    await settle()
    assert stage.link.entries() == [], "as many wait as may"
    stage.cursor.acknowledge([Position(LEDGER, entry) for entry in range(4)])
    stage.dispatcher.acknowledged_through(Position(LEDGER, 3))
    await settle()
    assert stage.link.entries() == [5]
    stage.clock.now += 3_600_016
    stage.dispatcher.wake()
    await settle()
    assert stage.link.entries() == [5, 4]


async def test_a_timer_wakes_the_delayed_entries(stage: Stage) -> None:
    stage.start()
    await stage.join(0, 100)
    delivered = asyncio.Event()
    deliver = stage.link.deliver

    def noticed(consumer_id: int, deliveries: Sequence[Delivery], messages: int) -> None:
        deliver(consumer_id, deliveries, messages)
        delivered.set()

    stage.link.deliver = noticed  # type: ignore[method-assign]
    publish(stage, 1, deliver_at_time=stage.clock.now + 10)
    await settle()
    assert stage.link.entries() == []
    stage.clock.now += 26
    await asyncio.wait_for(delivered.wait(), 5)
    assert stage.link.entries() == [0]


def test_delayed_entries_are_noticed_within_a_minute_after_the_clock_jumped() -> None:
    async def scenario(loop: SimLoop) -> None:
        stage = Stage()
        stage.start()
        await stage.join(0, 100)
        publish(stage, 1, deliver_at_time=stage.clock.now + 7_200_000)
        await asyncio.sleep(10)
        stage.clock.now += 7_200_016
        await asyncio.sleep(60)
        assert stage.link.entries() == [0]
        stage.dispatcher.retire()

    simulate(scenario, seed=1, time_limit_s=1000)


async def test_replays_are_read_again_in_few_reads(stage: Stage) -> None:
    stage.start()
    member = await stage.join(0, 100)
    publish(stage, 40)
    await settle()
    reads = stage.ledger.reads
    stage.dispatcher.redeliver(member, [Position(LEDGER, entry) for entry in range(0, 40, 2)], None)
    await settle()
    assert stage.link.entries()[40:] == list(range(0, 40, 2))
    assert stage.ledger.reads <= reads + 2


async def test_a_deleted_entry_does_not_block_the_replays(stage: Stage) -> None:
    stage.start()
    member = await stage.join(0, 100)
    publish(stage, 3)
    await settle()
    stage.dispatcher.replay.add(Position(LEDGER, 77))
    stage.dispatcher.redeliver(member, [Position(LEDGER, 1)], None)
    await settle()
    assert stage.link.entries() == [0, 1, 2, 1]
    assert len(stage.dispatcher.replay) == 0


async def test_key_shared_gives_the_captured_keys_to_the_captured_consumers(stage: Stage) -> None:
    stage.start(KeyShared())
    await stage.join(1, 100)
    await stage.join(2, 100)
    for number in range(10):
        publish(stage, 1, partition_key=f"k{number % 5}")
    await settle()
    assert stage.link.entries(1) == [0, 3, 5, 8]
    assert stage.link.entries(2) == [1, 2, 4, 6, 7, 9]


async def test_a_slot_drains_before_its_new_owner_gets_more(stage: Stage) -> None:
    stage.start(KeyShared())
    first = await stage.join(1, 100)
    publish(stage, 2, partition_key="k1")
    await settle()
    await stage.join(2, 100)  # owns k1 from now on
    publish(stage, 2, partition_key="k1")
    await settle()
    assert stage.link.entries(2) == []
    stage.ack(first, 0)
    await settle()
    assert stage.link.entries(2) == []
    stage.ack(first, 1)
    await settle()
    assert stage.link.entries(2) == [2, 3]


async def test_out_of_order_delivery_does_not_wait_for_draining(stage: Stage) -> None:
    stage.start(KeyShared(allow_out_of_order=True))
    await stage.join(1, 100)
    publish(stage, 2, partition_key="k1")
    await settle()
    await stage.join(2, 100)
    publish(stage, 1, partition_key="k1")
    await settle()
    assert stage.link.entries(2) == [2]


async def test_entries_of_slots_without_an_owner_are_not_delivered(stage: Stage) -> None:
    stage.start(KeyShared(KeySharedMode.STICKY))
    mine = KeyShared(KeySharedMode.STICKY, ((5536, 5536),))  # the slot of key-1
    await stage.join(0, 100, key_shared=mine)
    publish(stage, 1, partition_key="my-key")
    publish(stage, 1, partition_key="key-1")
    await settle()
    assert stage.link.entries() == [1]
    assert stage.cursor.backlog == 2


async def test_a_slow_consumer_bounds_the_look_ahead(stage: Stage) -> None:
    stage.start(KeyShared(), look_ahead_per_consumer=5, look_ahead_max=5)
    await stage.join(1, 1)
    await stage.join(2, 1000)
    publish(stage, 1, partition_key="k0")
    publish(stage, 50, partition_key="k0")
    publish(stage, 50, partition_key="k1")
    await settle()
    assert len(stage.dispatcher.replay) == 5
    assert stage.link.entries(2) == []
